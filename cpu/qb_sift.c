/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/qb_sift.c - the lower ends of the columns of r = alpha - s, read row by row.
 *
 * Clause   Q1, Q5.  Preconditions are the contract's; none is checked here.
 * Method   the element of a column that balancing takes is near its lower end. A sample
 *          of the rows gives each column a pivot a little above it; then every row of
 *          scores is read once, for its cutoff and for what RN32(r) says is not above
 *          the pivots. Rounding is monotone, so what is kept is a lower end of the
 *          exact column. Slabs of rows keep what they find in order of rows; it is
 *          sorted by column at last.
 * Order    slabs are cut by sizes alone. */
#include "qb_sift.h"

#include "cut.h"
#include "topk.h"

__extension__ typedef unsigned __int128 unsigned_wide;

enum {
    LEAST_SAMPLE = 1024,
    MOST_SAMPLE = 2048, /* up to so many rows all are the sample */
    SLAB = 256          /* rows that are worth a slab            */
};

static size_t sample_size(size_t m)
{
    const size_t some = m / 32;

    if (m <= MOST_SAMPLE) return m;
    return some < LEAST_SAMPLE ? LEAST_SAMPLE : some > MOST_SAMPLE ? MOST_SAMPLE : some;
}

/* Three and a half standard deviations above what is expected, and a little: one column
 * in some thousands has its element above the pivot. */
static double ample(double expected)
{
    return expected + 3.5 * sqrt(expected) + 3.0;
}

/* Elements that a slab may keep: half more than what the pivots let pass of balanced
 * rows; 0 where sifting is not worth it. SIZE_MAX when it does not fit. */
static size_t room_of(const slm_config *config, size_t rows, size_t slabs)
{
    const double n = (double)config->n_experts, k = (double)config->top_k;
    const double each =
        (double)slm_cpu_ceil_div(slm_cpu_ceil_div(rows, SLM_CPU_ROWS), slabs) *
        SLM_CPU_ROWS;
    const double expected = LEAST_SAMPLE * k / n;
    const double room = 1.5 * each * k * ample(expected) / expected + 4.0 * n;

    if (2.0 * k > n || rows > UINT32_MAX) return 0;
    return room < 0x1p60 ? (size_t)room : SIZE_MAX;
}

void slm_cpu_take_sieve(slm_cpu_arena *arena, const slm_config *config, size_t rows,
                        slm_cpu_sieve *at)
{
    const size_t n = config->n_experts;
    const size_t sample = rows < MOST_SAMPLE ? rows : MOST_SAMPLE; /* of any m <= T */

    at->sampled = slm_cpu_take(arena, sample, 1, sizeof *at->sampled);
    at->sampled_alpha = slm_cpu_take_f32(arena, sample, 1);
    at->sampled_score = slm_cpu_take(arena, sample, 1, sizeof *at->sampled_score);
    at->strips = slm_cpu_take(arena, sample, n + SLM_CPU_LANES, sizeof *at->strips);
    at->pivot = slm_cpu_take_f32(arena, n, 1);
    at->row_end = slm_cpu_take(arena, rows, 1, sizeof *at->row_end);
    at->start = slm_cpu_take(arena, n + 1, 1, sizeof *at->start);

    at->slabs = rows / SLAB < 1               ? 1
                : rows / SLAB > SLM_CPU_SLABS ? SLM_CPU_SLABS
                                              : rows / SLAB;
    at->room = room_of(config, rows, at->slabs);
    at->sorted = slm_cpu_take(arena, at->slabs, at->room, sizeof *at->sorted);
    for (size_t i = 0; i < at->slabs; i++) {
        slm_cpu_kept *slab = &at->slab[i];

        *slab = (slm_cpu_kept){.used = 0};
        slab->column = slm_cpu_take(arena, at->room, 1, sizeof *slab->column);
        slab->score = slm_cpu_take_f32(arena, at->room, 1);
        slab->per_column =
            slm_cpu_take(arena, at->room ? n : 0, 1, sizeof *slab->per_column);
    }
}

/* One call. */
typedef struct job {
    const slm_handle *handle;
    const slm_cpu_batch *batch;
    slm_cpu_sieve *at;
    size_t nth;
} job;

/* The sample, evenly spread, and its cutoffs; the batch itself where that is small.
 * Returns whether a score is NaN or infinite. */
static int draw_sample(const job *on, slm_cpu_batch *sample)
{
    const slm_cpu_batch *all = on->batch;
    slm_cpu_sieve *at = on->at;
    int wrong;

    *sample = *all;
    sample->m = sample_size(all->m);
    if (sample->m < all->m) {
        for (size_t i = 0; i < sample->m; i++)
            at->sampled[i] = all->row[(size_t)((unsigned_wide)i * all->m / sample->m)];
        sample->row = at->sampled;
        sample->alpha = at->sampled_alpha;
    }
    wrong = slm_cpu_all_cutoffs(on->handle, sample);
    for (size_t i = 0; i < sample->m; i++)
        at->sampled_score[i] = slm_cpu_row(all->score, sample->row[i]);
    return wrong;
}

static void find_pivots(const job *on, const slm_cpu_batch *sample)
{
    const slm_cpu_topk *topk = on->handle->topk;
    const size_t n = on->handle->config.n_experts, s = sample->m;
    const double expected = (double)(on->nth + 1) * (double)s / (double)on->batch->m;
    const size_t some = (size_t)ample(expected);
    const size_t rank = s == on->batch->m ? on->nth + 1 : some < s ? some : s;

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t first = 0; first < n; first += topk->lanes) {
        const slm_cpu_sample from = {on->at->sampled_score, sample->alpha, s,
                                     on->at->strips + first * s};

        topk->pivots(&from, first, n - first < topk->lanes ? n - first : topk->lanes,
                     rank, on->at->pivot + first);
    }
}

/* Keep of row i of the batch what is not above the pivots. */
static void sift_row(const job *on, slm_cpu_kept *slab, size_t i)
{
    const float *score = slm_cpu_row(on->batch->score, on->batch->row[i]);
    const size_t n = on->handle->config.n_experts, first = slab->used;

    slab->full |= on->at->room - first < n + SLM_CPU_BEYOND;
    if (slab->full) return;
    slab->used += on->handle->topk->below(on->batch->alpha[i], score, on->at->pivot, n,
                                          slab->column + first);
    for (size_t p = first; p < slab->used; p++) {
        slab->score[p] = score[slab->column[p]];
        slab->per_column[slab->column[p]]++;
    }
    on->at->row_end[i] = slab->used;
}

static void sift_slab(const job *on, size_t index, int has_cutoffs)
{
    const range of = part_of(on->batch->m, SLM_CPU_ROWS, on->at->slabs, index);
    slm_cpu_kept *slab = &on->at->slab[index];

    memset(slab->per_column, 0, on->handle->config.n_experts * sizeof(uint32_t));
    for (size_t first = of.first; first < of.end; first += SLM_CPU_ROWS) {
        const size_t end =
            of.end - first < SLM_CPU_ROWS ? of.end : first + SLM_CPU_ROWS;

        if (!has_cutoffs)
            slab->wrong |= slm_cpu_cutoffs(on->handle, on->batch, first, end);
        for (size_t i = first; i < end; i++) sift_row(on, slab, i);
    }
}

/* Where the kept of each column, and in it of each slab, begin. */
static void count_kept(const job *on)
{
    slm_cpu_sieve *at = on->at;
    size_t used = 0;

    for (size_t j = 0; j < on->handle->config.n_experts; j++) {
        size_t here = 0;

        at->start[j] = used;
        for (size_t i = 0; i < at->slabs; i++) {
            const uint32_t count = at->slab[i].per_column[j];

            at->slab[i].per_column[j] = (uint32_t)here;
            here += count;
        }
        used += here;
    }
    at->start[on->handle->config.n_experts] = used;
}

static void sort_slab(const job *on, size_t index)
{
    const range of = part_of(on->batch->m, SLM_CPU_ROWS, on->at->slabs, index);
    const slm_cpu_kept *slab = &on->at->slab[index];
    size_t p = 0;

    for (size_t i = of.first; i < of.end; i++)
        for (; p < on->at->row_end[i]; p++) {
            const uint32_t j = slab->column[p];

            on->at->sorted[on->at->start[j] + slab->per_column[j]++] =
                (slm_cpu_halves){on->batch->alpha[i], slab->score[p]};
        }
}

int slm_cpu_sift(const slm_handle *handle, const slm_cpu_batch *batch, size_t nth,
                 slm_cpu_sieve *at, int *sifted)
{
    const job on = {handle, batch, at, nth};
    slm_cpu_batch sample;
    int wrong = 0, full = 0;

    *sifted = 0;
    if (at->room == 0) return slm_cpu_all_cutoffs(handle, batch);
    if (draw_sample(&on, &sample)) return 1;
    find_pivots(&on, &sample);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < at->slabs; i++) sift_slab(&on, i, sample.m == batch->m);
    for (size_t i = 0; i < at->slabs; i++) {
        wrong |= at->slab[i].wrong;
        full |= at->slab[i].full;
    }
    if (wrong || full) return wrong;
    count_kept(&on);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < at->slabs; i++) sort_slab(&on, i);
    *sifted = 1;
    return 0;
}
