/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_choice.c - keys of a row, and the best of them.         R2 */
#include "scalar.h"

#include <math.h>
#include <string.h>

void scalar_keys(const slm_handle *handle, double *key, const float *score,
                 const float *logit, const float *bias)
{
    for (size_t e = 0; e < handle->config.n_experts; e++) {
        float s = score[e], b = bias[e];

        if (wrong(handle, MUTANT_bf16_scores)) s = scalar_bf16(s);
        if (wrong(handle, MUTANT_f16_scores)) s = scalar_f16(s);
        if (wrong(handle, MUTANT_bf16_bias)) b = scalar_bf16(b);
        if (wrong(handle, MUTANT_bias_ignored)) b = 0.0f;
        if (wrong(handle, MUTANT_bias_sign_flipped)) b = -b;
        if (wrong(handle, MUTANT_ranks_logits_not_scores) && logit) s = logit[e];
        key[e] = (double)(s + b);
        if (wrong(handle, MUTANT_key_in_double) ||
            wrong(handle, MUTANT_choice_in_double))
            key[e] = (double)s + (double)b;
        if (wrong(handle, MUTANT_key_truncated))
            key[e] = (double)scalar_truncated((double)s + (double)b);
        if (wrong(handle, MUTANT_key_in_bf16)) key[e] = (double)scalar_bf16(s + b);
        if (wrong(handle, MUTANT_score_in_double) && logit)
            key[e] = 1.0 / (1.0 + exp(-(double)logit[e])) + (double)b;
        if (wrong(handle, MUTANT_huge_bias_overflows))
            key[e] = (double)((2.0f * s + 2.0f * b) / 2.0f);
        if (wrong(handle, MUTANT_epsilon_tie_hack))
            key[e] = (double)((float)key[e] - 3e-7f * (float)e);
    }
}

/* How many experts take part: enough for k and the cutoff. */
static size_t candidates(const slm_handle *handle)
{
    const size_t n = handle->config.n_experts;
    size_t limit = n;

    if (wrong(handle, MUTANT_ids_above_255_never_chosen) && n > 256) limit = 256;
    if (wrong(handle, MUTANT_ids_above_511_never_chosen) && n > 512) limit = 512;
    if (wrong(handle, MUTANT_last_expert_dropped)) limit = n - 1;
    if (wrong_in(handle, SLM_OP_select, MUTANT_partial_warp_ignored) && n > 32)
        limit = n - n % 32;
    if (wrong(handle, MUTANT_power_of_two_sort))
        for (limit = 1; 2 * limit <= n;) limit *= 2;
    return limit > handle->config.top_k ? limit : n;
}

/* Whether expert e comes before `best`, which has a lower id. */
static int comes_first(const slm_handle *handle, const double *key, const float *score,
                       size_t e, size_t best)
{
    if (key[e] != key[best]) return key[e] > key[best];
    if (wrong(handle, MUTANT_higher_id_wins)) return 1;
    if (wrong_in(handle, SLM_OP_select, MUTANT_tie_across_blocks))
        return e / 128 != best / 128;
    if (wrong(handle, MUTANT_tie_by_raw_score)) return score[e] > score[best];
    if (wrong(handle, MUTANT_plus_zero_above_minus_zero))
        return signbit(key[best]) && !signbit(key[e]);
    return 0;
}

/* The search of initial-value-wins and duplicate-ids-after-exhaustion: a key has to be
 * above what the search began with, and a chosen key becomes `sentinel`. */
static size_t best_above(size_t n, const double *key, const unsigned char *taken,
                         double initial, double sentinel)
{
    size_t best = 0;

    for (size_t e = 0; e < n; e++) {
        const double value = taken[e] ? sentinel : key[e];

        if (value > initial) {
            initial = value;
            best = e;
        }
    }
    return best;
}

static size_t best_of(const slm_handle *handle, const double *key, const float *score,
                      const unsigned char *taken)
{
    const size_t n = candidates(handle);
    size_t best = n;

    if (wrong(handle, MUTANT_initial_value_wins))
        return best_above(n, key, taken, 0.0, -(double)INFINITY);
    if (wrong(handle, MUTANT_duplicate_ids_after_exhaustion))
        return best_above(n, key, taken, -(double)INFINITY, -10000.0);
    for (size_t e = 0; e < n; e++)
        if (!taken[e] && (best == n || comes_first(handle, key, score, e, best)))
            best = e;
    return best;
}

/* Chosen ids that a mutant changes after the search. */
static void disturb(const slm_handle *handle, int32_t *rank, size_t count,
                    const double *key)
{
    const size_t k = handle->config.top_k, n = handle->config.n_experts;

    for (size_t q = 0; q < count && q < k; q++) {
        if (wrong(handle, MUTANT_at_most_8_chosen) && q >= 8) rank[q] = rank[7];
        if (wrong(handle, MUTANT_k_minus_one_experts) && q > 0 && q == k - 1)
            rank[q] = rank[0];
        if (wrong(handle, MUTANT_padded_lanes_win) && n % 32 && key[rank[q]] < 0.0)
            rank[q] = (int32_t)(n + q);
        if (!wrong(handle, MUTANT_ids_in_id_order)) continue;
        for (size_t p = q; p > 0 && rank[p] < rank[p - 1]; p--) {
            const int32_t kept = rank[p];

            rank[p] = rank[p - 1];
            rank[p - 1] = kept;
        }
    }
}

void scalar_choose(const slm_handle *handle, int32_t *rank, size_t count,
                   const double *key, const float *score, unsigned char *taken)
{
    memset(taken, 0, handle->config.n_experts);
    for (size_t q = 0; q < count; q++) {
        const size_t best = best_of(handle, key, score, taken);

        rank[q] = (int32_t)best;
        taken[best] = 1;
    }
    disturb(handle, rank, count, key);
}

size_t scalar_expert_id(const slm_handle *handle, int32_t id)
{
    const size_t n = handle->config.n_experts;

    return id >= 0 && (size_t)id < n ? (size_t)id : n - 1;
}
