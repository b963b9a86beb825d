/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/hist.c - Quantile Balancing by a histogram: accumulate, merge, solve.
 *
 * Clause   Q3, Q5, C1.  Preconditions are the contract's; none is checked here.
 * Method   hist_count.c counts. A candidate is computed in pairs of binary64.
 * Order    counts are integers: any split of the tokens gives the same. */
#include "hist.h"

__extension__ typedef __int128 wide;

slm_cpu_extent slm_cpu_extent_of(const slm_tensor *bias)
{
    slm_cpu_extent found = {INFINITY, -INFINITY};

    for (size_t j = 0; j < bias->shape[0]; j++) {
        const double b = (double)*slm_cpu_f32(bias, j, 0);

        found.least = fmin(found.least, b);
        found.most = fmax(found.most, b);
    }
    return found;
}

slm_cpu_pair slm_cpu_width_of(slm_cpu_extent of)
{
    return slm_cpu_pair_add(slm_cpu_two_sum(of.most, -of.least),
                            (slm_cpu_pair){2.0, 0.0});
}

slm_cpu_pair slm_cpu_along(slm_cpu_extent of, slm_cpu_pair position, double bins)
{
    const slm_cpu_pair width = slm_cpu_width_of(of);
    const slm_cpu_pair scaled = slm_cpu_pair_add(
        slm_cpu_pair_times(width, position.hi), slm_cpu_pair_times(width, position.lo));

    return slm_cpu_pair_add(slm_cpu_two_sum(of.least, -1.0),
                            slm_cpu_pair_over(scaled, bins));
}

slm_status slm_cpu_qb_hist_accumulate(slm_handle *handle,
                                      const slm_qb_hist_accumulate_args *args,
                                      slm_error *error)
{
    const slm_cpu_counting from = {SLM_OP_qb_hist_accumulate,
                                   args,
                                   &args->call,
                                   &args->score,
                                   &args->bias,
                                   &args->hist,
                                   &args->mask};
    size_t m;

    return slm_cpu_accumulate(handle, &from, &m, error);
}

slm_status slm_cpu_qb_hist_merge(slm_handle *handle, const slm_qb_hist_merge_args *args,
                                 slm_error *error)
{
    const size_t n = handle->config.n_experts, count = handle->config.n_bins;
    const int64_t *first = args->parts.data;
    const ptrdiff_t *step = args->parts.stride;

    (void)error;
#pragma omp parallel for schedule(static)
    for (size_t j = 0; j < n; j++)
        for (size_t t = 0; t < count; t++) {
            int64_t sum = 0;

            for (size_t part = 0; part < args->call.n_parts; part++)
                sum += first[(ptrdiff_t)part * step[0] + (ptrdiff_t)j * step[1] +
                             (ptrdiff_t)t * step[2]];
            *slm_cpu_i64(&args->hist, j, t) = sum;
        }
    return SLM_OK;
}

static slm_cpu_pair pair_of(wide value)
{
    const double high = (double)value;

    return slm_cpu_two_sum(high, (double)(value - (wide)high));
}

/* Candidate of one row: bin t, then (q - c) / h of it, with q = m k / n unrounded. */
static slm_cpu_pair solve_row(const slm_tensor *hist, const slm_config *config,
                              slm_cpu_extent of, size_t rows, size_t expert)
{
    const wide pairs = (wide)rows * (wide)config->top_k, n = (wide)config->n_experts;
    const wide target = (pairs + n - 1) / n;
    wide before = 0, here = 0;
    size_t t = 0;

    for (; t < config->n_bins; t++) {
        here = *slm_cpu_i64(hist, expert, t);
        if (before + here >= target) break;
        before += here;
    }

    /* Two divisions: n h might not fit in a binary64. */
    const slm_cpu_pair inside = slm_cpu_pair_over(
        slm_cpu_pair_over(pair_of(pairs - n * before), (double)n), (double)here);

    return slm_cpu_along(of, slm_cpu_pair_add((slm_cpu_pair){(double)t, 0.0}, inside),
                         (double)config->n_bins);
}

size_t slm_cpu_qb_hist_solve_space(const slm_config *config, const slm_call *call)
{
    slm_cpu_arena arena = {NULL, 0};

    (void)call;
    slm_cpu_take(&arena, config->n_experts, 1, sizeof(slm_cpu_pair));
    return arena.used;
}

slm_status slm_cpu_qb_hist_solve(slm_handle *handle, const slm_qb_hist_solve_args *args,
                                 slm_error *error)
{
    const slm_config *config = &handle->config;
    const slm_status status =
        slm_check_finite(SLM_OP_qb_hist_solve, config, args, error);
    slm_cpu_pair *candidate = args->call.workspace;

    if (status) return status;
    if (args->call.n_tokens == 0) {
        slm_cpu_keep_bias(&args->bias, &args->new_bias, &args->candidate);
        return SLM_OK;
    }

    const slm_cpu_extent of = slm_cpu_extent_of(&args->bias);

#pragma omp parallel for schedule(static)
    for (size_t j = 0; j < config->n_experts; j++)
        candidate[j] = solve_row(&args->hist, config, of, args->call.n_tokens, j);
    slm_cpu_centre(candidate, config->n_experts, &args->new_bias, &args->candidate);
    return SLM_OK;
}
