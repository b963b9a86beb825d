/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_factors.h - the products of one instruction set whose factors are read as
 * they lie: the last part of gemm_tile.h. Weights become panels a few at a time. */

enum { GROUP = 4 }; /* panels packed at once: rows of w are read in longer pieces */

/* Columns [col, col + cols) of w, at most GROUP panels, elements [first, first + depth)
 * of the inner index. */
static void pack_group(const slm_cpu_linear *of, size_t col, size_t cols, size_t first,
                       size_t depth, float to[GROUP][DEPTH * SLM_CPU_WIDTH])
{
    const size_t ld = of->w.ld;
    const int rows_are_columns = (of->how & (SLM_CPU_BACK | SLM_CPU_OUTER)) == 0;

    for (size_t p = 0; rows_are_columns && p * SLM_CPU_WIDTH < cols; p++) {
        const size_t j = p * SLM_CPU_WIDTH;
        const size_t have = cols - j < SLM_CPU_WIDTH ? cols - j : SLM_CPU_WIDTH;

        slm_cpu_transpose(of->w.data + (col + j) * ld + first, ld, have, depth, to[p]);
    }
    for (size_t k = 0; !rows_are_columns && k < depth; k++) {
        const float *from = of->w.data + (first + k) * ld + col;

        for (size_t j = 0, p = 0; j < cols; j += SLM_CPU_WIDTH, p++) {
            const size_t have = cols - j < SLM_CPU_WIDTH ? cols - j : SLM_CPU_WIDTH;
            float *row = to[p] + k * SLM_CPU_WIDTH;

            slm_cpu_copy_row(row, from + j, have, sizeof *row);
            for (size_t i = have; i < SLM_CPU_WIDTH; i++) row[i] = 0.0f;
        }
    }
}

/* ---- x of a gradient: a sum over its rows ---- */

enum {
    OUTER_ROWS = 256,  /* most that are packed                                        */
    OUTER_DEPTH = 256, /* steps for which they are, and the second cache holds them   */
    TOGETHER = 16,     /* steps whose rows stay in the first cache while all are read */
    WORTH = 64         /* steps and rows from which on packing pays                   */
};

/* Steps of one tile's columns; `high` is a constant. */
static inline __attribute__((always_inline)) void
copy_steps(const float *from, size_t ld, size_t steps, size_t high, float *to)
{
    for (size_t k = 0; k < steps; k++)
        memcpy(to + k * high, from + k * ld, high * sizeof *to);
}

#define COPY_STEPS(n)                                                                  \
    case n + 1:                                                                        \
        copy_steps(from, ld, steps, n + 1, to);                                        \
        break;
#define COPY_ALL(n) ROWS_##n(COPY_STEPS)
#define COPY_EACH(n) COPY_ALL(n)

static void copy_tile(const float *from, size_t ld, size_t steps, size_t high,
                      float *to)
{
    switch (high) {
        COPY_EACH(TILE_ROWS)
    }
}

/* Columns [0, rows) of x [depth, ..] in the order in which tiles read them. */
static void pack_columns(const float *x, size_t ld, size_t rows, size_t depth,
                         float *to)
{
    const size_t n = slm_cpu_ceil_div(rows, TILE_ROWS);

    for (size_t k = 0; k < depth; k += TOGETHER)
        for (size_t i = 0; i < n; i++) {
            const size_t first = rows * i / n, high = rows * (i + 1) / n - first;

            copy_tile(x + k * ld + first, ld,
                      depth - k < TOGETHER ? depth - k : TOGETHER, high,
                      to + first * depth + k * high);
        }
}

/* ---- few rows by w as it lies, [inner, cols]: its rows are streamed ---- */

enum {
    ROWS_AT_ONCE = 8,
    FEW_TERMS = 2 /* of a gradient that is written by rows */
};

/* Vector of y plus its products with `n` rows of w, a constant; x is [n]. */
static inline __attribute__((always_inline)) vec
sum_rows(size_t n, const vec *x, const float *w, size_t ld, vec sum)
{
#pragma GCC unroll 8
    for (size_t u = 0; u < n; u++) sum = vec_fma(x[u], vec_load(w + u * ld), sum);
    return sum;
}

/* y [cols] = x w, or y +=, of `n` rows of w. */
static inline __attribute__((always_inline)) void stream_rows(size_t n, const float *x,
                                                              const float *w, size_t ld,
                                                              size_t cols, float *y,
                                                              int add)
{
    vec from[ROWS_AT_ONCE];
    size_t j = 0;

#pragma GCC unroll 8
    for (size_t u = 0; u < n; u++) from[u] = vec_set(x[u]);
    for (; j + LANES <= cols; j += LANES)
        vec_store(y + j,
                  sum_rows(n, from, w + j, ld, add ? vec_load(y + j) : vec_zero()));
    if (j == cols) return;

    const size_t left = (cols - j) * sizeof *y;
    float edge[ROWS_AT_ONCE * LANES] = {0}, last[LANES] = {0};

    for (size_t u = 0; u < n; u++) memcpy(edge + u * LANES, w + u * ld + j, left);
    if (add) memcpy(last, y + j, left);
    vec_store(last, sum_rows(n, from, edge, LANES, vec_load(last)));
    memcpy(y + j, last, left);
}

static void few_rows_product(const slm_cpu_linear *of)
{
    const size_t whole = of->inner / ROWS_AT_ONCE * ROWS_AT_ONCE, ld = of->w.ld;
    const int add = (of->how & SLM_CPU_ADD) != 0;
    size_t k = 0;

    for (; k < whole; k += ROWS_AT_ONCE)
        for (size_t i = 0; i < of->rows; i++)
            stream_rows(ROWS_AT_ONCE, slm_cpu_row(of->x, i) + k, of->w.data + k * ld,
                        ld, of->cols, slm_cpu_row(of->y, i), add || k > 0);
    for (; k < of->inner; k++)
        for (size_t i = 0; i < of->rows; i++)
            stream_rows(1, slm_cpu_row(of->x, i) + k, of->w.data + k * ld, ld, of->cols,
                        slm_cpu_row(of->y, i), add || k > 0);
}

/* A gradient from few rows of w. */
static void few_terms_gradient(const slm_cpu_linear *of)
{
    const int add = (of->how & SLM_CPU_ADD) != 0;

    for (size_t i = 0; i < of->rows; i++)
        for (size_t k = 0; k < of->inner; k++)
            stream_rows(1, slm_cpu_row(of->x, k) + i, slm_cpu_row(of->w, k), 0,
                        of->cols, slm_cpu_row(of->y, i), add || k > 0);
}

/* ---- the product ---- */

/* Whole panels of w are read where they lie, unless many rows would read many of its
 * rows again and again: they share few sets of a cache. */
static int reads_in_place(const slm_cpu_linear *of, size_t cols)
{
    return (of->how & (SLM_CPU_BACK | SLM_CPU_OUTER)) && cols % SLM_CPU_WIDTH == 0 &&
           (of->rows < WORTH || of->inner < WORTH);
}

static int packs_x(const slm_cpu_linear *of)
{
    return (of->how & SLM_CPU_OUTER) && of->rows <= OUTER_ROWS && of->inner >= WORTH &&
           of->cols >= WORTH;
}

static void gemm(const slm_cpu_linear *of)
{
    enum { COLS = GROUP * SLM_CPU_WIDTH };
    float panels[GROUP][DEPTH * SLM_CPU_WIDTH] __attribute__((aligned(64)));
    float packed[OUTER_ROWS * OUTER_DEPTH] __attribute__((aligned(64)));
    const int outer = (of->how & SLM_CPU_OUTER) != 0, packs = packs_x(of);
    const int add = (of->how & SLM_CPU_ADD) != 0;
    const size_t ldx = of->x.ld;
    const size_t most = packs && DEPTH > OUTER_DEPTH ? OUTER_DEPTH : DEPTH;

    if ((of->how & SLM_CPU_BACK) && of->rows <= FEW_ROWS) {
        few_rows_product(of);
        return;
    }
    if (outer && of->inner <= FEW_TERMS) {
        few_terms_gradient(of);
        return;
    }
    for (size_t k = 0; k < of->inner; k += most) {
        const size_t left = of->inner - k;
        const size_t depth = left < most ? left : most;
        const rows_of x = packs   ? (rows_of){packed, 0, 0, 1}
                          : outer ? (rows_of){of->x.data + k * ldx, 1, ldx, 0}
                                  : (rows_of){of->x.data + k, ldx, 1, 0};

        if (packs) pack_columns(of->x.data + k * ldx, ldx, of->rows, depth, packed);
        for (size_t col = 0; col < of->cols; col += COLS) {
            const size_t cols = of->cols - col < COLS ? of->cols - col : COLS;
            const int in_place = reads_in_place(of, cols);

            if (!in_place) pack_group(of, col, cols, k, depth, panels);
            for (size_t j = 0, p = 0; j < cols; j += SLM_CPU_WIDTH, p++) {
                const size_t have = cols - j < SLM_CPU_WIDTH ? cols - j : SLM_CPU_WIDTH;
                const float *there = of->w.data + k * of->w.ld + col + j;
                const weights_of w =
                    in_place ? (weights_of){there, of->w.ld, 0, 0, NULL}
                             : (weights_of){panels[p], SLM_CPU_WIDTH, 0, 0, NULL};

                rows_panel(of->rows, have, &x, &w, depth, of->y.data + col + j,
                           of->y.ld, add || k > 0);
            }
        }
    }
}
