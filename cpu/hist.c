/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/hist.c - Quantile Balancing by a histogram: accumulate, merge, solve.
 *
 * Clause   Q3, Q5, C1.  Preconditions are the contract's; none is checked here.
 * Method   a table of edges; a guess by multiplication is moved until it fits. An edge
 *          is compared with alpha - s in binary64, and where these are too close to
 *          tell, by the sign of an exact sum: so every bin is that of exact rationals,
 *          also where min b - 1 is no binary64.
 * Order    counts are integers: any split of the tokens gives the same. */
#include "balance.h"

__extension__ typedef __int128 wide;

/* lo and hi of the clause are least - 1 and most + 1. */
typedef struct range {
    double least;
    double most;
} range;

static range range_of(const slm_tensor *bias)
{
    range found = {INFINITY, -INFINITY};

    for (size_t j = 0; j < bias->shape[0]; j++) {
        const double b = (double)*slm_cpu_f32(bias, j, 0);

        found.least = fmin(found.least, b);
        found.most = fmax(found.most, b);
    }
    return found;
}

static slm_cpu_pair width_of(range of)
{
    return slm_cpu_pair_add(slm_cpu_two_sum(of.most, -of.least),
                            (slm_cpu_pair){2.0, 0.0});
}

/* lo + position (hi - lo) / bins. */
static slm_cpu_pair along(range of, slm_cpu_pair position, double bins)
{
    const slm_cpu_pair width = width_of(of);
    const slm_cpu_pair scaled = slm_cpu_pair_add(
        slm_cpu_pair_times(width, position.hi), slm_cpu_pair_times(width, position.lo));

    return slm_cpu_pair_add(slm_cpu_two_sum(of.least, -1.0),
                            slm_cpu_pair_over(scaled, bins));
}

typedef struct bins {
    range of;
    size_t count;
    const double *edge; /* [count]: RN64 of lo + t (hi - lo) / count */
    double low;
    double per_width;
    double doubt; /* absolute error of an edge, far above the real one */
} bins;

/* alpha - s >= edge t, all exact:
 * B (alpha - s) - (B - t)(least - 1) - t (most + 1) >= 0. */
static int reaches_exactly(const bins *table, size_t t, float alpha, float score)
{
    const double whole = (double)table->count, part = (double)t, rest = whole - part;
    const slm_cpu_pair product[] = {
        slm_cpu_two_product(whole, (double)alpha),
        slm_cpu_two_product(-whole, (double)score),
        slm_cpu_two_product(-rest, table->of.least),
        slm_cpu_two_product(-part, table->of.most),
    };
    const double term[] = {product[0].hi, product[0].lo, product[1].hi, product[1].lo,
                           product[2].hi, product[2].lo, product[3].hi, product[3].lo,
                           rest,          -part};

    return slm_cpu_sign_of_sum(term, sizeof term / sizeof *term) >= 0;
}

static int reaches(const bins *table, size_t t, double r, float alpha, float score)
{
    const double edge = table->edge[t];

    if (fabs(r - edge) <= fabs(edge) * 0x1p-50 + table->doubt)
        return reaches_exactly(table, t, alpha, score);
    return r > edge;
}

static size_t bin_of(const bins *table, float alpha, float score)
{
    const double r = (double)alpha - (double)score;
    const double guess = (r - table->low) * table->per_width;
    const double last = (double)(table->count - 1);
    size_t t = guess > 0.0 ? (size_t)(guess < last ? guess : last) : 0;

    while (t + 1 < table->count && reaches(table, t + 1, r, alpha, score)) t++;
    while (t > 0 && !reaches(table, t, r, alpha, score)) t--;
    return t;
}

typedef struct space {
    float *bias;    /* [n]                                          */
    float *score;   /* [T, n]  only when it cannot be read in place */
    float *alpha;   /* [T]                                          */
    int32_t *mask;  /* [T]     only when there is one               */
    uint64_t *best; /* [tasks, k + 1]                               */
    double *edge;   /* [B]                                          */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};

    at->bias = slm_cpu_take_f32(&arena, 1, config->n_experts);
    at->score = slm_cpu_take_f32(&arena, rows, config->n_experts);
    at->alpha = slm_cpu_take_f32(&arena, rows, 1);
    at->mask = slm_cpu_take(&arena, rows, 1, sizeof *at->mask);
    at->best = slm_cpu_take(&arena, slm_cpu_ceil_div(rows, SLM_CPU_ROWS),
                            config->top_k + 1, sizeof *at->best);
    at->edge = slm_cpu_take(&arena, config->n_bins, 1, sizeof *at->edge);
    return arena.used;
}

size_t slm_cpu_qb_hist_accumulate_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

static bins make_bins(const slm_tensor *bias, size_t count, double *edge)
{
    const range of = range_of(bias);
    const double low = of.least - 1.0, high = of.most + 1.0;

    for (size_t t = 0; t < count; t++)
        edge[t] = along(of, (slm_cpu_pair){(double)t, 0.0}, (double)count).hi;
    return (bins){of,
                  count,
                  edge,
                  low,
                  (double)count / width_of(of).hi,
                  (fabs(low) + fabs(high)) * 0x1p-90};
}

size_t slm_cpu_accumulate(const slm_handle *handle, const slm_call *call,
                          const slm_tensor *score, const slm_tensor *bias,
                          const slm_tensor *hist, const slm_tensor *mask)
{
    const slm_config *config = &handle->config;
    const size_t rows = call->n_tokens, n = config->n_experts;
    slm_cpu_matrix from;
    size_t m = 0;
    space at;

    if (rows == 0) return 0;
    lay_out(&at, call->workspace, config, rows);
    slm_cpu_pack(at.bias, bias);
    from = slm_cpu_read(score, at.score);

    const bins table = make_bins(bias, config->n_bins, at.edge);
    const int32_t *counted = slm_cpu_mask(call, mask, at.mask);

    slm_cpu_cutoffs(handle, rows, from, at.bias, counted, at.best, at.alpha);
    for (size_t t = 0; t < rows; t++) m += (size_t)slm_cpu_counts(counted, t);
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < n; first += SLM_CPU_COLUMNS) {
        const size_t end = n - first < SLM_CPU_COLUMNS ? n : first + SLM_CPU_COLUMNS;

        for (size_t t = 0; t < rows; t++) {
            const float *row = slm_cpu_row(from, t);

            if (!slm_cpu_counts(counted, t)) continue;
            for (size_t j = first; j < end; j++)
                ++*slm_cpu_i64(hist, j, bin_of(&table, at.alpha[t], row[j]));
        }
    }
    return m;
}

slm_status slm_cpu_qb_hist_accumulate(slm_handle *handle,
                                      const slm_qb_hist_accumulate_args *args,
                                      slm_error *error)
{
    const slm_status status =
        slm_check_finite(SLM_OP_qb_hist_accumulate, &handle->config, args, error);

    if (!status)
        slm_cpu_accumulate(handle, &args->call, &args->score, &args->bias, &args->hist,
                           &args->mask);
    return status;
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
                              range of, size_t rows, size_t expert)
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

    return along(of, slm_cpu_pair_add((slm_cpu_pair){(double)t, 0.0}, inside),
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

    const range of = range_of(&args->bias);

#pragma omp parallel for schedule(static)
    for (size_t j = 0; j < config->n_experts; j++)
        candidate[j] = solve_row(&args->hist, config, of, args->call.n_tokens, j);
    slm_cpu_centre(candidate, config->n_experts, &args->new_bias, &args->candidate);
    return SLM_OK;
}
