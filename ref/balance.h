/* SPDX-License-Identifier: Apache-2.0 */
/* ref/balance.h - what the balancing operations share. */
#ifndef SLM_REF_BALANCE_H
#define SLM_REF_BALANCE_H

#include "internal.h"

/* The m tokens that the statistic counts, by their rows in the batch, ascending. Q5 */
typedef struct slm_ref_tokens {
    size_t m;
    size_t *row; /* [m] */
} slm_ref_tokens;

/* `mask` as an argument of the call, absent or not. SLM_OK or SLM_ERR_MEMORY, which
 * leaves nothing to close. */
slm_status slm_ref_tokens_open(slm_ref_tokens *tokens, const slm_call *call,
                               const slm_tensor *mask);
void slm_ref_tokens_close(slm_ref_tokens *tokens);

/* alpha[i]: the (k+1)-th key of counted token i, 1 <= k < n.                    Q1, R2
 * SLM_OK or SLM_ERR_MEMORY. */
slm_status slm_ref_cutoffs(float *alpha, const slm_tensor *score,
                           const slm_tensor *bias, const slm_config *config,
                           const slm_ref_tokens *tokens);

/* Add the counted tokens' required biases to hist [n, B].                         Q3
 * SLM_OK or SLM_ERR_MEMORY, which changes nothing. */
slm_status slm_ref_accumulate(const slm_config *config, const slm_tensor *score,
                              const slm_tensor *bias, const slm_tensor *hist,
                              const slm_ref_tokens *tokens);

/* q = m k / n, the equal load of an expert. */
void slm_ref_equal_load(fmpq_t q, size_t m, size_t n, size_t k);

/* Where an i64 tensor keeps the count of a row-major index. */
int64_t *slm_ref_count(const slm_tensor *counts, size_t index);

/* A binary64, which any binary32 is, as the rational that it is. */
void slm_ref_rational(fmpq_t out, double value);

/* new_bias = RN32(candidate - mean(candidate)) [n]. `tap`, unless absent, receives the
 * candidates, each rounded once to binary64.                                      Q1 */
void slm_ref_centre(const slm_tensor *new_bias, const slm_tensor *tap,
                    const fmpq *candidate, size_t n);

/* Without tokens nothing is known: new_bias and the tap are bias, bit for bit.   Q1 */
void slm_ref_keep_bias(const slm_tensor *new_bias, const slm_tensor *tap,
                       const slm_tensor *bias, size_t n);

#endif
