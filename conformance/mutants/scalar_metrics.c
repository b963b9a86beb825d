/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_metrics.c - the sign step and load metrics.        Q6, Q7 */
#include "scalar.h"

#include <float.h>
#include <math.h>
#include <string.h>

__extension__ typedef __int128 wide;

static int sign(wide value)
{
    return (value > 0) - (value < 0);
}

/* Sign of mean load - load.                                                     Q6 */
static int direction(const slm_handle *handle, wide sum, int64_t load)
{
    const wide n = (wide)handle->config.n_experts;
    const double share = (double)handle->config.top_k / (double)n;

    if (wrong(handle, MUTANT_integer_mean_load)) return sign(sum / n - load);
    if (wrong(handle, MUTANT_load_against_share))
        return ((double)load < share) - ((double)load > share);
    if (wrong(handle, MUTANT_float_mean_load)) {
        const double mean = (double)sum / (double)n;

        return (mean > (double)load) - (mean < (double)load);
    }
    if (wrong(handle, MUTANT_sign_step_flipped)) return sign((wide)load * n - sum);
    if (wrong(handle, MUTANT_sign_of_zero_is_up) && (wide)load * n == sum) return 1;
    return sign(sum - (wide)load * n);
}

/* Load j as the mutant keeps it. */
static int64_t load_at(const slm_handle *handle, const slm_tensor *load, size_t j)
{
    return scalar_count(handle, *(const int64_t *)scalar_element(load, j));
}

slm_status scalar_sign_step(slm_handle *handle, const slm_sign_step_args *args,
                            slm_error *error)
{
    const size_t n = handle->config.n_experts;
    const float rate = (float)handle->config.rate;
    const slm_status status = scalar_begin(handle, SLM_OP_sign_step, args, error);
    wide sum = 0;

    if (status) return status;
    for (size_t j = 0; j < n; j++) sum += load_at(handle, &args->load, j);
    if (wrong(handle, MUTANT_counts_32_bit)) sum = (int32_t)(uint32_t)sum;
    for (size_t j = 0; j < n; j++) {
        const int64_t load = load_at(handle, &args->load, j);
        const int step = direction(handle, sum, load);
        float b;

        memcpy(&b, scalar_element(&args->bias, j), sizeof b);
        if (wrong(handle, MUTANT_sign_step_proportional))
            b += rate * (float)((double)sum / (double)n - (double)load);
        else if (step)
            b += wrong(handle, MUTANT_bias_sign_flipped) ? -rate * (float)step
                                                         : rate * (float)step;
        if (wrong(handle, MUTANT_sign_step_saturates))
            b = fminf(fmaxf(b, -FLT_MAX), FLT_MAX);
        memcpy(scalar_element(&args->new_bias, j), &b, sizeof b);
    }
    return SLM_OK;
}

/* What is needed of the loads. */
typedef struct summary {
    double least;
    double most;
    double dead;
    double squares;   /* sum of (load - mean)^2 */
    double distances; /* sum of |load - mean|   */
    double mean;
} summary;

static summary summarise(const slm_handle *handle, const slm_tensor *load, double pairs)
{
    const size_t n = handle->config.n_experts;
    summary of = {.least = INFINITY};
    double active = 0.0;

    for (size_t j = 0; j < n; j++) {
        const double value = (double)*(const int64_t *)scalar_element(load, j);

        of.least = fmin(of.least, value);
        of.most = fmax(of.most, value);
        if (value == 0.0)
            of.dead += 1.0;
        else
            active += 1.0;
    }
    of.mean = pairs / (double)n;
    if (wrong(handle, MUTANT_mean_over_active)) of.mean = pairs / active;
    for (size_t j = 0; j < n; j++) {
        const double off = (double)*(const int64_t *)scalar_element(load, j) - of.mean;

        of.squares += off * off;
        of.distances += fabs(off);
    }
    return of;
}

static void measure(const slm_handle *handle, const slm_tensor *load, double pairs,
                    double metric[4])
{
    const double n = (double)handle->config.n_experts;
    const double freedom = wrong(handle, MUTANT_cv_of_sample) && n > 1 ? n - 1 : n;
    const double whole =
        wrong(handle, MUTANT_residual_not_halved) ? pairs : 2.0 * pairs;
    const summary of = summarise(handle, load, pairs);

    metric[0] = (of.most - of.mean) / of.mean;
    if (wrong(handle, MUTANT_vio_of_min)) metric[0] = (of.mean - of.least) / of.mean;
    metric[1] = sqrt(of.squares / freedom) / of.mean;
    metric[2] = wrong(handle, MUTANT_dead_not_counted) ? 0.0 : of.dead;
    metric[3] = of.distances / whole;
    for (size_t i = 0; is(handle, VARIANT_balance_in_binary32) && i < 4; i++)
        metric[i] = (double)(float)metric[i];
}

static void count_token(const slm_handle *handle, const slm_load_metrics_args *args,
                        size_t t)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;

    for (size_t q = 0; q < k; q++) {
        const int32_t id = *(const int32_t *)scalar_element(&args->ids, t * k + q);
        int64_t *load = scalar_element(&args->load, scalar_expert_id(handle, id));

        if (wrong(handle, MUTANT_last_expert_dropped) && id == (int32_t)n - 1) continue;
        if (wrong(handle, MUTANT_counts_of_256_experts) && id >= 256) continue;
        if (wrong(handle, MUTANT_loads_of_first_slot_only) && q &&
            !slm_given(&args->call, &args->mask))
            continue;
        *load = scalar_count(handle, *load + 1);
    }
}

slm_status scalar_load_metrics(slm_handle *handle, const slm_load_metrics_args *args,
                               slm_error *error)
{
    const size_t n = handle->config.n_experts, n_tokens = args->call.n_tokens;
    const slm_status status = scalar_begin(handle, SLM_OP_load_metrics, args, error);
    const slm_tensor *mask = slm_given(&args->call, &args->mask);
    double metric[4] = {0.0, 0.0, (double)n, 0.0};
    size_t pairs = 0;

    if (status) return status;
    if (n_tokens == 0 && wrong(handle, MUTANT_counts_not_written)) return SLM_OK;
    if (wrong(handle, MUTANT_masked_rows_of_metrics_counted)) mask = NULL;
    for (size_t j = 0; j < n; j++) *(int64_t *)scalar_element(&args->load, j) = 0;
    for (size_t t = 0; t < n_tokens; t++) {
        const int counts = scalar_counts(handle, mask, t);

        if (counts) count_token(handle, args, t);
        if (counts || wrong(handle, MUTANT_mask_counts_in_m))
            pairs += handle->config.top_k;
    }
    if (pairs || wrong(handle, MUTANT_zero_over_zero))
        measure(handle, &args->load, (double)pairs, metric);
    for (size_t i = 0; i < 4; i++)
        *(double *)scalar_element(&args->metric, i) = metric[i];
    return SLM_OK;
}
