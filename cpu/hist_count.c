/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/hist_count.c - Quantile Balancing by a histogram: the counts.
 *
 * Clause   Q3, Q5.  Preconditions are the contract's; none is checked here.
 * Method   most bins come from binary32 with a bound on its error, a row of some
 *          columns at a time. Where that is too close to an edge to tell: a table of
 *          edges; a guess by multiplication is moved until it fits. An edge is compared
 *          with alpha - s in binary64, and where these are too close to tell, by the
 *          sign of an exact sum: so every bin is that of exact rationals, also where
 *          min b - 1 is no binary64. Many tokens are counted apart, in counters of 16
 *          bits that the cache holds, and added when all have been.
 * Order    counts are integers: any split of the tokens gives the same. */
#include "hist.h"
#include "topk.h"

typedef struct bins {
    slm_cpu_extent of;
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

enum {
    BLOCK = 1024,      /* rows whose bins are found, then counted           */
    MOST_APART = 8192, /* bins: beyond, a strip's counters fill any cache   */
    MOST_COUNTED = UINT16_MAX
};

typedef struct space {
    slm_cpu_batch batch;
    double *edge;      /* [B]                                                       */
    uint16_t *bin;     /* [strips, block, SLM_CPU_STRIP]                            */
    uint16_t *counter; /* [n, B]  only when tokens are counted apart                */
    uint32_t *wide;    /* [n, B]  only when these may overflow, else NULL           */
} space;

static int counts_apart(const slm_config *config, size_t rows)
{
    return config->n_bins <= MOST_APART && rows >= config->n_bins / 2 &&
           rows <= UINT32_MAX;
}

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};
    const size_t n = config->n_experts;
    const int apart = counts_apart(config, rows), may_overflow = rows > MOST_COUNTED;

    slm_cpu_take_batch(&arena, config, rows, &at->batch);
    at->edge = slm_cpu_take(&arena, config->n_bins, 1, sizeof *at->edge);
    at->bin = slm_cpu_take(&arena, slm_cpu_ceil_div(n, SLM_CPU_STRIP) * SLM_CPU_STRIP,
                           rows < BLOCK ? rows : BLOCK, sizeof *at->bin);
    at->counter =
        slm_cpu_take(&arena, apart ? n : 0, config->n_bins, sizeof *at->counter);
    at->wide = slm_cpu_take(&arena, apart && may_overflow ? n : 0, config->n_bins,
                            sizeof *at->wide);
    if (!may_overflow) at->wide = NULL;
    return arena.used;
}

size_t slm_cpu_qb_hist_accumulate_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

static bins make_bins(const slm_tensor *bias, size_t count, double *edge)
{
    const slm_cpu_extent of = slm_cpu_extent_of(bias);
    const double low = of.least - 1.0, high = of.most + 1.0;

    for (size_t t = 0; t < count; t++)
        edge[t] = slm_cpu_along(of, (slm_cpu_pair){(double)t, 0.0}, (double)count).hi;
    return (bins){of,
                  count,
                  edge,
                  low,
                  (double)count / slm_cpu_width_of(of).hi,
                  (fabs(low) + fabs(high)) * 0x1p-90};
}

/* Bins in binary32. The position of a bin is then off by less than `doubt`: half an ulp
 * each of r, of lo, of their difference, of the factor and of the product, doubled. */
static slm_cpu_scale scale_of(const bins *table)
{
    const double width = (double)table->count / table->per_width;
    const double far = fabs(table->of.least) + fabs(table->of.most) + 2.0;
    const double doubt = 0x1p-23 * (double)table->count * (far / width + 4.0);

    return (slm_cpu_scale){(float)table->low, (float)table->per_width,
                           (float)table->count, (float)fmin(doubt, 1.0)};
}

/* One call. */
typedef struct job {
    const slm_handle *handle;
    const slm_cpu_batch *batch;
    bins table;
    slm_cpu_scale scale;
    const slm_tensor *hist;
    const space *at;
    int apart; /* counted in at->counter first */
} job;

/* Bins of row i of the batch, to place `row` of the block. */
static void find_bins(const job *on, size_t i, size_t row, size_t rows)
{
    const size_t n = on->handle->config.n_experts;
    const float *score = slm_cpu_row(on->batch->score, on->batch->row[i]);
    const float alpha = on->batch->alpha[i];
    uint16_t *bin = on->at->bin + row * SLM_CPU_STRIP;

    for (size_t left = 0; left < n; left += SLM_CPU_PIECE) {
        const size_t cols = n - left < SLM_CPU_PIECE ? n - left : SLM_CPU_PIECE;
        uint16_t *here = bin + left * rows;
        uint64_t open = on->handle->topk->bins(&on->scale, alpha, score + left, cols,
                                               here, rows * SLM_CPU_STRIP);

        for (; open; open &= open - 1) {
            const size_t j = (size_t)__builtin_ctzll(open);

            here[j / SLM_CPU_STRIP * rows * SLM_CPU_STRIP + j % SLM_CPU_STRIP] =
                (uint16_t)bin_of(&on->table, alpha, score[left + j]);
        }
    }
}

/* One row of a whole strip. Loads bound it, so four bins come with one. */
static inline void count_row(const uint16_t *bin, uint16_t *counter, size_t count)
{
    enum { FOUR = 4 };
    const int first_is_low = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

#pragma GCC unroll 4
    for (size_t j = 0; j < SLM_CPU_STRIP; j += FOUR) {
        uint64_t word;

        memcpy(&word, bin + j, sizeof word);
#pragma GCC unroll 4
        for (size_t i = 0; i < FOUR; i++, counter += count)
            counter[(uint16_t)(word >> 16 * (first_is_low ? i : FOUR - 1 - i))]++;
    }
}

/* Count the strip of columns from `left` on of the block's bins. */
static void count_strip(const job *on, size_t left, size_t rows)
{
    const size_t n = on->handle->config.n_experts, count = on->table.count;
    const size_t cols = n - left < SLM_CPU_STRIP ? n - left : SLM_CPU_STRIP;
    const uint16_t *bin = on->at->bin + left * rows;
    uint16_t *counter = on->at->counter + left * count;

    for (size_t i = 0; i < rows; i++, bin += SLM_CPU_STRIP) {
        if (!on->apart)
            for (size_t j = 0; j < cols; j++)
                ++*slm_cpu_i64(on->hist, left + j, bin[j]);
        else if (cols == SLM_CPU_STRIP)
            count_row(bin, counter, count);
        else
            for (size_t j = 0; j < cols; j++) counter[j * count + bin[j]]++;
    }
}

/* The rows [first, end) of the batch, at most BLOCK: their bins, then the counts. Not 0
 * when one has a score that is NaN or infinite; looked for only if counted apart. */
static int count_block(const job *on, size_t first, size_t end)
{
    const size_t n = on->handle->config.n_experts, rows = end - first;
    int wrong = 0;

#pragma omp parallel for schedule(static) reduction(| : wrong)
    for (size_t i = first; i < end; i += SLM_CPU_ROWS) {
        const size_t last = end - i < SLM_CPU_ROWS ? end : i + SLM_CPU_ROWS;

        if (on->apart) wrong |= slm_cpu_cutoffs(on->handle, on->batch, i, last);
        for (size_t t = i; t < last; t++) find_bins(on, t, t - first, rows);
    }
    if (wrong) return 1;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t left = 0; left < n; left += SLM_CPU_STRIP) count_strip(on, left, rows);
    return 0;
}

/* Make the counters 0, once they are added to the wide ones; if `first`, make all 0. */
static void empty_counters(const job *on, int first)
{
    const size_t size = on->handle->config.n_experts * on->table.count;
    uint16_t *counter = on->at->counter;
    uint32_t *sum = on->at->wide;

#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < size; i++) {
        if (sum) sum[i] = first ? 0 : sum[i] + counter[i];
        counter[i] = 0;
    }
}

static void add_counters(const job *on)
{
    const size_t count = on->table.count;

#pragma omp parallel for schedule(static)
    for (size_t j = 0; j < on->handle->config.n_experts; j++)
        for (size_t t = 0; t < count; t++) {
            const size_t i = j * count + t;
            const uint32_t more = on->at->wide ? on->at->wide[i] : 0;

            *slm_cpu_i64(on->hist, j, t) += (int64_t)more + on->at->counter[i];
        }
}

/* The bins of scales that binary32 cannot tell, one by one. */
static void count_singly(const job *on)
{
#pragma omp parallel for schedule(dynamic, SLM_CPU_COLUMNS)
    for (size_t j = 0; j < on->handle->config.n_experts; j++)
        for (size_t i = 0; i < on->batch->m; i++) {
            const float *score = slm_cpu_row(on->batch->score, on->batch->row[i]);

            ++*slm_cpu_i64(on->hist, j,
                           bin_of(&on->table, on->batch->alpha[i], score[j]));
        }
}

/* Not 0, and hist as it was, when a score is NaN or infinite. */
static int count_batch(const job *on)
{
    const size_t m = on->batch->m;
    const int single = on->scale.doubt >= 0.25f || on->table.count > UINT16_MAX;
    size_t counted = 0;

    if ((single || !on->apart) && slm_cpu_all_cutoffs(on->handle, on->batch)) return 1;
    if (single) {
        count_singly(on);
        return 0;
    }
    if (on->apart) empty_counters(on, 1);
    for (size_t first = 0; first < m; first += BLOCK) {
        const size_t end = m - first < BLOCK ? m : first + BLOCK;

        if (on->apart && counted + (end - first) > MOST_COUNTED) {
            empty_counters(on, 0);
            counted = 0;
        }
        if (count_block(on, first, end)) return 1;
        counted += end - first;
    }
    if (on->apart) add_counters(on);
    return 0;
}

slm_status slm_cpu_accumulate(const slm_handle *handle, const slm_cpu_counting *from,
                              size_t *m, slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = from->call->n_tokens;
    int wrong;
    space at;
    job on = {.handle = handle,
              .batch = &at.batch,
              .hist = from->hist,
              .at = &at,
              .apart = counts_apart(config, rows)};

    lay_out(&at, from->call->workspace, config, rows);
    wrong =
        !slm_cpu_read_batch(&at.batch, from->call, from->score, from->bias, from->mask);
    *m = at.batch.m;
    if (!wrong && *m) {
        on.table = make_bins(from->bias, config->n_bins, at.edge);
        on.scale = scale_of(&on.table);
        wrong = count_batch(&on);
    }
    return wrong ? slm_check_finite(from->op, config, from->args, error) : SLM_OK;
}
