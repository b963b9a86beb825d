/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/permute.c - grouping of (token, slot) pairs by expert; load metrics.
 *
 * Clause   L5, Q5, Q7.  Preconditions are the contract's; none is checked here.
 * Method   counting sort, two passes. The metrics are ratios of integers, exact up to
 *          their last division or square root. */
#include "internal.h"

__extension__ typedef __int128 wide;

void slm_cpu_group(size_t rows, size_t n, size_t k, const int32_t *ids, int64_t *counts,
                   int64_t *offsets, int64_t *order)
{
    memset(counts, 0, n * sizeof *counts);
    for (size_t i = 0; i < rows * k; i++) counts[ids[i]]++;
    offsets[0] = 0;
    for (size_t e = 0; e < n; e++) offsets[e + 1] = offsets[e] + counts[e];
    /* counts becomes the places already taken, and is whole again at the end. */
    memset(counts, 0, n * sizeof *counts);
    for (size_t i = 0; i < rows * k; i++) {
        const int32_t e = ids[i];

        order[offsets[e] + counts[e]++] = (int64_t)i;
    }
}

typedef struct space {
    int32_t *ids;     /* [T, k]     */
    int64_t *counts;  /* [n]        */
    int64_t *offsets; /* [n + 1]    */
    int64_t *order;   /* [T k]      */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};
    const size_t n = config->n_experts, k = config->top_k;

    at->ids = slm_cpu_take(&arena, rows, k, sizeof *at->ids);
    at->counts = slm_cpu_take(&arena, n, 1, sizeof *at->counts);
    at->offsets = slm_cpu_take(&arena, n + 1, 1, sizeof *at->offsets);
    at->order = slm_cpu_take(&arena, rows, k, sizeof *at->order);
    return arena.used;
}

size_t slm_cpu_permute_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status slm_cpu_permute(slm_handle *handle, const slm_permute_args *args,
                           slm_error *error)
{
    const size_t rows = args->call.n_tokens;
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    space at;

    (void)error;
    lay_out(&at, args->call.workspace, &handle->config, rows);
    for (size_t t = 0; t < rows; t++)
        for (size_t q = 0; q < k; q++)
            at.ids[t * k + q] = *slm_cpu_i32(&args->ids, t, q);
    slm_cpu_group(rows, n, k, at.ids, at.counts, at.offsets, at.order);
    for (size_t e = 0; e < n; e++) *slm_cpu_i64(&args->counts, e, 0) = at.counts[e];
    for (size_t e = 0; e <= n; e++) *slm_cpu_i64(&args->offsets, e, 0) = at.offsets[e];
    for (size_t i = 0; i < rows * k; i++)
        *slm_cpu_i64(&args->order, i, 0) = at.order[i];
    return SLM_OK;
}

slm_status slm_cpu_load_metrics(slm_handle *handle, const slm_load_metrics_args *args,
                                slm_error *error)
{
    const size_t rows = args->call.n_tokens, k = handle->config.top_k;
    const size_t n = handle->config.n_experts;
    const slm_tensor *mask = slm_given(&args->call, &args->mask);
    wide pairs = 0, squares = 0, distance = 0, top = 0;
    size_t dead = 0;
    double metric[4] = {0.0, 0.0, 0.0, 0.0};

    (void)error;
    for (size_t e = 0; e < n; e++) *slm_cpu_i64(&args->load, e, 0) = 0;
    for (size_t t = 0; t < rows; t++) {
        if (mask && *slm_cpu_i32(mask, t, 0) == 0) continue;
        pairs += (wide)k;
        for (size_t q = 0; q < k; q++)
            ++*slm_cpu_i64(&args->load, (size_t)*slm_cpu_i32(&args->ids, t, q), 0);
    }
    for (size_t e = 0; e < n; e++) {
        const wide load = *slm_cpu_i64(&args->load, e, 0);
        const wide over = (wide)n * load - pairs; /* n (load - mean) */

        squares += load * load;
        distance += over < 0 ? -over : over;
        top = load > top ? load : top;
        dead += load == 0;
    }
    if (pairs > 0) {
        metric[0] = (double)((wide)n * top - pairs) / (double)pairs;
        metric[1] = sqrt((double)((wide)n * squares - pairs * pairs)) / (double)pairs;
        metric[3] = (double)distance / (2.0 * (double)n * (double)pairs);
    }
    metric[2] = (double)dead;
    for (size_t i = 0; i < 4; i++) *slm_cpu_f64(&args->metric, i) = metric[i];
    return SLM_OK;
}
