/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_weight.c - the weights of the chosen experts.          R3 */
#include "scalar.h"

#include <math.h>

/* What slot q puts into the sum: the raw score. */
static float share(const slm_handle *handle, size_t e, const float *score,
                   const double *key, const float *bias)
{
    const slm_config *config = &handle->config;

    if (wrong(handle, MUTANT_bias_leaks_into_weights)) return (float)key[e];
    if (wrong(handle, MUTANT_bias_leaks_at_one_size) && config->n_experts == 896 &&
        config->top_k == 16)
        return (float)key[e];
    if (wrong(handle, MUTANT_weights_from_key_minus_bias))
        return (float)key[e] - bias[e];
    return score[e];
}

/* The sum that shares are divided by. */
static float denominator(const slm_handle *handle, const float *weight,
                         const float *score)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    const int ratio = handle->config.weighting == SLM_WEIGHT_RATIO;
    const int skips_eps = wrong(handle, MUTANT_release_eps_missing) &&
                          handle->config.score == SLM_SCORE_SIGMOID;
    float sum = 0.0f;

    if (wrong(handle, MUTANT_normalised_over_all)) {
        for (size_t e = 0; e < n; e++) sum += score[e];
        return sum;
    }
    for (size_t q = 0; q < k; q++) sum += weight[q];
    if (wrong(handle, MUTANT_f16_sum_clamp) && sum < 0x1p-14f) return 0x1p-14f;
    if (wrong(handle, MUTANT_paper_adds_1e_20)) return sum + 1e-20f;
    if (wrong(handle, MUTANT_paper_adds_1e_9)) return sum + 1e-9f;
    if (wrong(handle, MUTANT_tiny_sum_clamped) && ratio && sum > 0.0f &&
        sum < 0x1p-126f)
        return 0x1p-126f;
    if (wrong(handle, MUTANT_k1_clamped_sum) && k == 1) return fmaxf(sum, 0x1p-126f);
    if (wrong(handle, MUTANT_sum_of_ones_at_zero) && sum == 0.0f) return 1.0f;
    if (handle->config.weighting == SLM_WEIGHT_RELEASE && !skips_eps) sum += 1e-20f;
    return sum;
}

/* Whether the shares are the weights already. */
static int undivided(const slm_handle *handle)
{
    const slm_config *config = &handle->config;

    if (wrong(handle, MUTANT_no_renormalise)) return 1;
    if (wrong_in(handle, SLM_OP_select, MUTANT_softmax_not_renormalised) &&
        config->score == SLM_SCORE_SOFTMAX && config->weighting == SLM_WEIGHT_RATIO)
        return 1;
    if (config->top_k != 1) return 0;
    if (config->weighting == SLM_WEIGHT_RELEASE)
        return !wrong(handle, MUTANT_k1_normalised);
    return wrong(handle, MUTANT_k1_not_normalised);
}

static void swap(float *a, float *b)
{
    const float kept = *a;

    *a = *b;
    *b = kept;
}

/* What mutants do to finished weights. */
static void disturb(const slm_handle *handle, float *weight)
{
    const size_t k = handle->config.top_k;

    if (wrong(handle, MUTANT_k_minus_one_experts) && k > 1) weight[k - 1] = 0.0f;
    if (wrong(handle, MUTANT_slots_permuted)) swap(&weight[0], &weight[k - 1]);
    for (size_t q = 0; q < k; q++) {
        if (wrong(handle, MUTANT_at_most_8_chosen) && q >= 8) weight[q] = 0.0f;
        if (wrong(handle, MUTANT_uniform_weights)) weight[q] = 1.0f / (float)k;
        if (wrong(handle, MUTANT_routed_scale_applied)) weight[q] *= 2.5f;
        if (wrong(handle, MUTANT_weights_in_bf16)) weight[q] = scalar_bf16(weight[q]);
        if (!wrong(handle, MUTANT_weights_sorted)) continue;
        for (size_t p = q; p > 0 && weight[p] > weight[p - 1]; p--)
            swap(&weight[p], &weight[p - 1]);
    }
}

/* Shares become weights. */
static void divide(const slm_handle *handle, float *weight, const float *score)
{
    const size_t k = handle->config.top_k;
    const float sum = denominator(handle, weight, score);

    for (size_t q = 0; q < k; q++) {
        if (sum == 0.0f && !wrong(handle, MUTANT_zero_over_zero))
            weight[q] = 1.0f / (float)k;
        else
            weight[q] /= sum;
        if (wrong(handle, MUTANT_renormalised_twice)) weight[q] /= sum;
    }
}

void scalar_weigh(const slm_handle *handle, float *weight, const int32_t *ids,
                  const float *score, const double *key, const float *bias)
{
    const size_t k = handle->config.top_k;

    for (size_t q = 0; q < k; q++)
        weight[q] = share(handle, scalar_expert_id(handle, ids[q]), score, key, bias);
    if (!undivided(handle)) divide(handle, weight, score);
    disturb(handle, weight);
}
