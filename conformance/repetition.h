/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/repetition.h - a case that passed, once more under other circumstances: what
 * the parts of hygiene.h share. */
#ifndef SLM_REPETITION_H
#define SLM_REPETITION_H

#include "judge.h"
#include "testee.h"

typedef struct repetition {
    slm_testee *testee;
    const vec_case *test;
    const char *digest;     /* frame_digest() of the answer that passed */
    judge_verdict *verdict; /* of that answer, until a repetition fails */
} repetition;

/* Put a fault into the verdict: the circumstance, then why. */
void repetition_fail(const repetition *check, judge_state state, const char *clause,
                     const char *circumstance, const char *why);

/* Whether an answer has the bits of the first one, or else passes. If not, the verdict
 * says so; `clause` is for what the judge has none for. */
bool repetition_accept(const repetition *check, const call_frame *frame,
                       const testee_reply *reply, const char *clause,
                       const char *circumstance);

/* Whether the bits are those of the first time, where it declares itself deterministic:
 * for the same call, whatever lies in outputs and workspace before it. */
bool repetition_same_bits(const repetition *check, const call_frame *frame,
                          const char *circumstance);

/* What lies in a frame's inputs and in what is input and output. */
typedef struct contents {
    unsigned char *bytes[FRAME_MAX_BUFFERS]; /* NULL: not kept */
} contents;

/* Whether an input's contents may be exchanged between calls for others as lawful. */
bool contents_vary(const frame_buffer *buffer);

/* Free what was kept with contents_free(). Without memory a buffer is not kept. */
void contents_keep(const call_frame *frame, contents *saved);
void contents_restore(const call_frame *frame, const contents *saved);
void contents_free(contents *saved);

#endif
