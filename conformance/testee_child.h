/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee_child.h - the process that holds a backend: started, heard, buried.
 *
 * The child is a process group: a time-out or a fault ends all of it, and the next case
 * starts it anew. What it prints comes through a pipe and is drained while the judge
 * waits for a reply. */
#ifndef SLM_TESTEE_CHILD_H
#define SLM_TESTEE_CHILD_H

#include "protocol.h"
#include "testee_kind.h"

#include <sys/types.h>

typedef struct child_testee {
    slm_testee base;
    char *name;
    testee_options options;
    pid_t pid;   /* 0: not running                                              */
    int process; /* pidfd, readable once the process ended; -1 when there is none */
    int request;
    int output;
    int arena;
    unsigned failed_starts; /* in a row */
    bool open;              /* a handle, by begin() */
    size_t resident;        /* pages before the case */
    size_t n_printed;
    char printed[TESTEE_OUTPUT]; /* since the case began, cut                   */
    protocol_reader reader;

    /* What a question before begin() came to, when it was no answer: begin() tells. */
    bool lost;
    testee_reply loss;
} child_testee;

/* The descriptor moved above those of the protocol, close-on-exec. */
int child_descriptor(int fd);

/* Start the process and hear its hello. Returns 0 and `why` (TESTEE_WHY). */
int child_start(child_testee *testee, char *why);

/* Next message until a time of stopwatch_now(); the end of the process ends the wait even
 * when a process that it left behind still holds the descriptor. */
protocol_result child_hear(child_testee *testee, double deadline, json_t **message);

/* Let the process end by itself, for five seconds. */
void child_leave(child_testee *testee);

/* End the whole process group and close what led to it. */
void child_stop(child_testee *testee);

/* What the testee printed since the case began, made printable. */
void child_output(child_testee *testee, testee_reply *reply);

/* The child is gone or silent: fill the reply with how it ended, and clear it away. fault
 * is its last word on a faulting access, or NULL. */
void child_bury(child_testee *testee, const call_frame *frame, const json_t *fault,
                testee_reply *reply);

/* A string member, "" when there is none. */
const char *child_text(const json_t *object, const char *key);

#endif
