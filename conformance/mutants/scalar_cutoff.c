/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_cutoff.c - what both ways of balancing need.       Q1, Q3 */
#include "scalar.h"

#include <math.h>
#include <string.h>

void scalar_cutoff_take(scalar_cutoff *work, scalar_scratch *scratch,
                        const slm_config *config)
{
    const size_t n = config->n_experts;

    work->bias = scalar_take(scratch, n, sizeof *work->bias);
    work->score = scalar_take(scratch, n, sizeof *work->score);
    work->key = scalar_take(scratch, n, sizeof *work->key);
    work->taken = scalar_take(scratch, n, sizeof *work->taken);
    work->rank = scalar_take(scratch, config->top_k + 1, sizeof *work->rank);
}

double scalar_alpha(const slm_handle *handle, scalar_cutoff *work,
                    const slm_tensor *score)
{
    const size_t k = handle->config.top_k;
    const size_t place = wrong(handle, MUTANT_cutoff_is_kth_key) ? k - 1 : k;
    size_t e;

    scalar_load(work->score, score);
    scalar_keys(handle, work->key, work->score, NULL, work->bias);
    scalar_choose(handle, work->rank, k + 1, work->key, work->score, work->taken);
    e = scalar_expert_id(handle, work->rank[place]);
    if (wrong(handle, MUTANT_cutoff_is_raw_score)) return (double)work->score[e];
    if (wrong(handle, MUTANT_choice_in_double)) return (double)(float)work->key[e];
    return work->key[e];
}

double scalar_required(const slm_handle *handle, const scalar_cutoff *work,
                       double alpha, size_t j)
{
    double s = (double)work->score[j];

    if (wrong(handle, MUTANT_required_bias_from_key)) s = work->key[j];
    if (wrong(handle, MUTANT_logits_in_histogram)) s = log(s / (1.0 - s));
    if (wrong(handle, MUTANT_margin_not_required_bias)) return s - alpha;
    if (is(handle, VARIANT_balance_in_binary32) ||
        wrong_in(handle, SLM_OP_qb_exact, MUTANT_required_bias_in_binary32))
        return (double)(float)(alpha - s);
    return alpha - s;
}

static double median(const double *value, size_t n)
{
    double result = value[0];

    for (size_t i = 0; i < n; i++) {
        size_t below = 0, equal = 0;

        for (size_t j = 0; j < n; j++) {
            below += value[j] < value[i];
            equal += value[j] == value[i];
        }
        if (below <= n / 2 && below + equal > n / 2) result = value[i];
    }
    return result;
}

/* The mean that is subtracted. */
static double centre_of(const slm_handle *handle, const double *candidate)
{
    const size_t n = handle->config.n_experts;
    const int narrow = wrong(handle, MUTANT_centred_in_binary32) ||
                       is(handle, VARIANT_balance_in_binary32);
    double sum = 0.0;

    if (wrong(handle, MUTANT_no_centring)) return 0.0;
    if (wrong(handle, MUTANT_centred_by_median)) return median(candidate, n);
    for (size_t j = 0; j < n; j++) {
        sum += candidate[j];
        if (narrow) sum = (double)(float)sum;
    }
    return narrow ? (double)((float)sum / (float)n) : sum / (double)n;
}

void scalar_centre(const slm_handle *handle, double *candidate, const float *bias,
                   const slm_tensor *new_bias, const slm_tensor *tap)
{
    const size_t n = handle->config.n_experts;
    double mean;

    for (size_t j = 0; tap->rank && j < n; j++)
        *(double *)scalar_element(tap, j) = candidate[j];
    for (size_t j = 0; j < n; j++)
        if (wrong(handle, MUTANT_candidate_rounded_first))
            candidate[j] = (double)(float)candidate[j];
    mean = centre_of(handle, candidate);
    for (size_t j = 0; j < n; j++) {
        double value = candidate[j] - mean;

        if (wrong(handle, MUTANT_bias_added_to_old)) value += (double)bias[j];
        if (wrong(handle, MUTANT_bias_sign_flipped)) value = -value;
        *(float *)scalar_element(new_bias, j) = (float)value;
    }
}

void scalar_keep_bias(const slm_handle *handle, const slm_tensor *bias,
                      const slm_tensor *new_bias, const slm_tensor *tap)
{
    const size_t n = handle->config.n_experts;
    double sum = 0.0;

    for (size_t j = 0; j < n; j++) sum += (double)*(float *)scalar_element(bias, j);
    for (size_t j = 0; j < n; j++) {
        float b;

        memcpy(&b, scalar_element(bias, j), sizeof b);
        if (tap->rank) *(double *)scalar_element(tap, j) = (double)b;
        if (wrong(handle, MUTANT_empty_batch_centres) && handle->n_tokens == 0)
            b -= (float)(sum / (double)n);
        if (wrong(handle, MUTANT_counts_not_written)) continue;
        memcpy(scalar_element(new_bias, j), &b, sizeof b);
    }
}
