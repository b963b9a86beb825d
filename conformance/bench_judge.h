/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_judge.h - a backend must be right before it may be fast. */
#ifndef SLM_BENCH_JUDGE_H
#define SLM_BENCH_JUDGE_H

#include "judge.h"
#include "testee.h"

/* What is judged of a timed call. */
typedef struct bench_sample {
    size_t n_tokens; /* of the judged call                                  */
    size_t judged;   /* of them, spread over the batch                      */
} bench_sample;

/* The whole batch is called and `wanted` of its tokens are judged, where rows stand for
 * themselves; else a batch of at most BENCH_WHOLE tokens, all of it. */
enum { BENCH_WHOLE = 32 };
bench_sample bench_sample_of(slm_op op, size_t n_tokens, size_t wanted);

/* Judge one call of what is timed, without taps, on the first layer's and place's
 * tensors. JUDGE_SKIP: the backend does not offer it. */
void bench_judge(slm_testee *testee, slm_op op, const slm_config *config,
                 const bench_sample *sample, judge_verdict *verdict);

/* Keep `judged` rows of every tensor of tokens, spread from the first to the last, and
 * make the frame one of so many tokens. Not for a frame that is yet to be called. */
void bench_cut(call_frame *frame, size_t judged);

#endif
