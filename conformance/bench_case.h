/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_case.h - the arguments of a timed call, as a case without answers.
 *
 * Judge and timer make the same tensors from it: a value is a function of seed, name and
 * index. All are random, so nothing can be compressed or skipped. */
#ifndef SLM_BENCH_CASE_H
#define SLM_BENCH_CASE_H

#include "vector.h"

enum { BENCH_CASE_INPUTS = 24 };

typedef struct bench_case {
    vec_case test;
    vec_outcome anything;
    vec_tensor in[BENCH_CASE_INPUTS];
} bench_case;

/* Make it. Weights depend on `layer`, other inputs on `place`. Balancing is relaxed:
 * drawn scores may tie by the note's test. Returns 0 without memory. */
int bench_case_make(bench_case *out, slm_op op, const slm_config *config,
                    size_t n_tokens, size_t layer, size_t place);
void bench_case_free(bench_case *made);

/* Whether a tensor is one of the layer's weights. */
int bench_is_weight(const vec_tensor *tensor);

/* Different values among the ids [n]. `seen` [n_experts] gains a 1 for each. */
size_t bench_count_experts(const int32_t *ids, size_t n, unsigned char *seen,
                           size_t n_experts);

#endif
