/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee_kind.h - what a way of holding a backend must offer. */
#ifndef SLM_TESTEE_KIND_H
#define SLM_TESTEE_KIND_H

#include "testee.h"

/* The functions of testee.h, for one way. */
typedef struct testee_kind {
    void (*close)(slm_testee *testee);
    int (*offers)(slm_testee *testee, const vec_case *test, char *reason);
    int (*frame)(slm_testee *testee, const vec_case *test, const frame_options *layout,
                 call_frame *frame, char *why);
    void (*begin)(slm_testee *testee, call_frame *frame, testee_reply *reply);
    void (*call)(slm_testee *testee, call_frame *frame, testee_beside beside,
                 testee_reply *reply);
    void (*end)(slm_testee *testee, call_frame *frame, testee_reply *reply);
    void (*neighbour)(slm_testee *testee, call_frame *frame, bool open,
                      testee_reply *reply);
} testee_kind;

/* The first member of each way's own struct. */
struct testee {
    const testee_kind *kind;
    testee_about about;
};

#endif
