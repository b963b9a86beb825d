/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee.h - a backend under test, as the judge sees it.
 *
 * testee.c runs the backend in a process of its own; testee_table.c in this one: our own
 * mutants, and in slmoe-inprocess, for a debugger, any backend (never certifiable). */
#ifndef SLM_TESTEE_H
#define SLM_TESTEE_H

#include <slm/backend.h>

#include "frame.h"

typedef struct testee slm_testee;

enum { TESTEE_WHY = 512, TESTEE_OUTPUT = 4096 };

typedef struct testee_options {
    double timeout; /* seconds a call may take                              */
    double slow;    /* factor on it, for valgrind and the like              */
} testee_options;

/* What a backend says of itself. */
typedef struct testee_about {
    char name[64];
    char version[64];
    char url[256];
    char note[256];    /* of the host, for people; may be ""                   */
    char emulated[64]; /* what stands in for its hardware; "": nothing      */
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t flags;
    uint32_t levels;
    uint32_t offered; /* mask of 1u << slm_op                               */
    bool certifiable;
    bool neighbours; /* can have a second handle (testee_neighbour)          */
    slm_arithmetic arithmetic;
} testee_about;

/* What a call came to. Anything but TESTEE_RETURNED is already a verdict. */
typedef enum testee_outcome {
    TESTEE_RETURNED,
    TESTEE_CRASHED,
    TESTEE_TIMED_OUT,
    TESTEE_BROKEN /* broke the rules of the interface; see `why` */
} testee_outcome;

typedef struct testee_reply {
    testee_outcome outcome;
    slm_status status;
    slm_error error;
    char why[TESTEE_WHY];
    char output[TESTEE_OUTPUT]; /* what the testee printed, cut             */
    double seconds;
} testee_reply;

/* Open "ref", "cpu-blas", ..., the path of a plug-in, or "cmd:PROGRAM ARGUMENTS". NULL
 * and a message for people (TESTEE_WHY bytes) when it cannot be used. */
slm_testee *testee_open(const char *name, const testee_options *options, char *why);
void testee_close(slm_testee *testee);

/* A table in this process. trusted: its frames need no guards (the mutants are our own
 * and stay in their buffers). NULL when it is none. */
slm_testee *testee_open_table(const slm_backend *table, bool trusted);

const testee_about *testee_describe(const slm_testee *testee);

/* 1 when the backend is to be given this case, else 0 and a reason (256 bytes): what it
 * does not offer, and cases for the door when it leaves the door to the contract. */
int testee_offers(slm_testee *testee, const vec_case *test, char *reason);

/* Lay out the case with exactly the workspace that the backend asks for. Of `layout`
 * only the places of inputs and outputs count; NULL puts all at the end of its pages.
 * The frame is the caller's to free, before the next is made. Returns 0 and fills `why`
 * (TESTEE_WHY) when it cannot be. */
int testee_frame(slm_testee *testee, const vec_case *test, const frame_options *layout,
                 call_frame *frame, char *why);

/* Open a handle on the frame's configuration and weights; call on it, any number of
 * times, with what lies in the frame then; close it. The contract's checks at the door
 * come before each call. A testee that crashed or hung is started anew by the next
 * begin. */
void testee_begin(slm_testee *testee, call_frame *frame, testee_reply *reply);
void testee_call(slm_testee *testee, call_frame *frame, testee_reply *reply);
void testee_end(slm_testee *testee, call_frame *frame, testee_reply *reply);

/* Open a second handle of the frame's sizes with other numbers and weights (open), or
 * close it; before begin() or after it, and whether or not a first one is open. What it
 * answers nobody judges. Precondition: about->neighbours. */
void testee_neighbour(slm_testee *testee, call_frame *frame, bool open,
                      testee_reply *reply);

/* What the neighbour does at a call: nothing; one call before it; calls in a thread of
 * its own until it is done. */
typedef enum testee_beside {
    TESTEE_ALONE,
    TESTEE_AFTER_NEIGHBOUR,
    TESTEE_WITH_NEIGHBOUR
} testee_beside;

/* testee_call() beside the open neighbour. */
void testee_call_beside(slm_testee *testee, call_frame *frame, testee_beside beside,
                        testee_reply *reply);

/* The three in a row. */
void testee_run(slm_testee *testee, call_frame *frame, testee_reply *reply);

/* What is said of a call that left another floating-point environment behind. */
#define TESTEE_ENVIRONMENT                                                             \
    "left another rounding mode or flush-to-zero behind: restore what you change"

/* ---- testee_door.c: what both implementations share ---- */

/* Whether every outcome of the case is a refusal at the door. */
int testee_is_for_the_door(const vec_case *test);

/* Whether this backend is given such cases. */
int testee_owns_the_door(const testee_about *about);

/* 1 when the backend's minor ABI version has every argument that the case gives, else 0
 * and a reason (256 bytes). */
int testee_knows_arguments(const testee_about *about, const vec_case *test,
                           char *reason);

/* The contract at the door, unless the backend has its own. */
slm_status testee_door(const testee_about *about, const call_frame *frame,
                       slm_error *error);

#endif
