/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/every_backend.h - tests that run once for each built-in backend, on
 * calls that golden vectors hold. */
#ifndef SLM_TEST_EVERY_BACKEND_H
#define SLM_TEST_EVERY_BACKEND_H

#include "../testee.h"

/* A test of one table. */
typedef void backend_test(const slm_backend *table);

typedef struct named_backend_test {
    const char *name;
    backend_test *run;
} named_backend_test;

#define EVERY_BACKEND(function)                                                        \
    {                                                                                  \
#function, function                                                            \
    }

/* Run them for every built-in backend of this build, each as "BACKEND NAME", on the
 * vectors of that folder. The value of main(). */
int every_backend(const char *vectors, const named_backend_test *tests, size_t n);

/* A vector of vectors/ by its whole id; the running test fails when there is none. */
const vec_case *golden_case(const char *id);

/* A vector of that operation that succeeds, with two tokens or more where it has tokens
 * at all, and that the backend is given. NULL when it offers none. */
const vec_case *golden_case_of(slm_testee *testee, slm_op op);

/* An open backend and one call on it. The frame may be changed between calls. */
typedef struct open_case {
    slm_testee *testee;
    const vec_case *test;
    call_frame frame;
    testee_reply reply;
    void *given[FRAME_MAX_BUFFERS]; /* of what is input and output */
} open_case;

/* 0 and nothing to close when the backend is not given such a case. */
int open_case_begin(open_case *at, const slm_backend *table, const vec_case *test);
void open_case_end(open_case *at);

/* Poison the outputs and the workspace, set back what is input and output, then call.
 * The status of the call. */
slm_status open_case_call(open_case *at);

/* The same with every byte of the outputs and of the workspace this one before. */
slm_status open_case_call_onto(open_case *at, int old_byte);

/* What the backend leaves in this case on a handle of its own: 65 bytes. 0 when it is
 * not given the case. */
int fresh_digest(const slm_backend *table, const vec_case *test, char *digest);

#endif
