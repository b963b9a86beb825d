/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_few.h - the products of one instruction set for few rows, which stream a
 * panel once: a part of gemm_tile.h.
 *
 * Method   a row keeps vectors of sums of two streams of weights: of the left and the
 *          right half of a panel, or, where these fill a panel each, of two panels.
 *          Memory gives two streams more than one. */

/* Vectors of a stream that n rows keep, and the columns of both streams. One row leaves
 * registers for a whole row of 8 lanes' panel. */
enum { MOST_VECS = LANES == 8 ? SLM_CPU_WIDTH / LANES : 2 };
#define VECS_OF(n) ((n) == 1 ? MOST_VECS : 2)

static size_t few_cols(size_t rows)
{
    return 2 * LANES * (size_t)VECS_OF(rows);
}

/* A call: weights of both streams, columns of y from `y` on. */
typedef struct streams {
    const char *left;
    const char *right;
    float *y;
    size_t ldy;
} streams;

/* Vector j of a row of weights; of bf16 the pair's first or second. */
static inline __attribute__((always_inline)) vec weights_at(const char *row, size_t j,
                                                            int half, size_t phase)
{
    const void *at = row + j * LANES * sizeof(float);

    if (!half) return vec_load((const float *)at);
    return phase ? vec_odd((const uint16_t *)at) : vec_even((const uint16_t *)at);
}

/* Sums of a row for both streams. */
typedef struct sums {
    vec left[MOST_VECS];
    vec right[MOST_VECS];
} sums;

/* `n` rows of x, element k of each at x[i ldx], by a row of both streams. From here on n,
 * n_vecs, half and phase are constants, so that the sums are registers. */
static inline __attribute__((always_inline)) void
few_step(const float *x, size_t ldx, const char *left, const char *right, size_t n,
         size_t n_vecs, int half, size_t phase, sums *of)
{
#pragma GCC unroll 8
    for (size_t j = 0; j < n_vecs; j++) {
        const vec w = weights_at(left, j, half, phase);
        const vec v = weights_at(right, j, half, phase);

#pragma GCC unroll 8
        for (size_t i = 0; i < n; i++) {
            const vec one = vec_set(x[i * ldx]);

            of[i].left[j] = vec_fma(one, w, of[i].left[j]);
            of[i].right[j] = vec_fma(one, v, of[i].right[j]);
        }
    }
}

/* `n` rows, `n_vecs` vectors of each stream. */
static inline __attribute__((always_inline)) void
few_rows(const slm_cpu_strip *on, const streams *at, size_t n, size_t n_vecs, int half)
{
    const size_t steps = half ? 2 : 1, cols = n_vecs * LANES;
    const char *left = at->left, *right = at->right;
    const float *x = on->x;
    sums of[FEW_ROWS];

#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 8
        for (size_t j = 0; j < n_vecs; j++) {
            const float *y = at->y + i * at->ldy + j * LANES;

            of[i].left[j] = on->add ? vec_load(y) : vec_zero();
            of[i].right[j] = on->add ? vec_load(y + cols) : vec_zero();
        }
    for (size_t k = 0; k < on->inner; k += steps, x += steps) {
        FETCH(left);
        if (cols == SLM_CPU_WIDTH) FETCH(right);
        few_step(x, on->ldx, left, right, n, n_vecs, half, 0, of);
        if (half && k + 1 < on->inner) {
            /* the sums need the registers in which these words would be kept */
            __asm__("" : "+r"(left), "+r"(right));
            few_step(x + 1, on->ldx, left, right, n, n_vecs, half, 1, of);
        }
        left += ROW_BYTES;
        right += ROW_BYTES;
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 8
        for (size_t j = 0; j < n_vecs; j++) {
            float *y = at->y + i * at->ldy + j * LANES;

            vec_store(y, of[i].left[j]);
            vec_store(y + cols, of[i].right[j]);
        }
}

typedef void few(const slm_cpu_strip *on, const streams *at);

#define FEW(i)                                                                         \
    static void few_##i(const slm_cpu_strip *on, const streams *at)                    \
    {                                                                                  \
        few_rows(on, at, (i) + 1, VECS_OF((i) + 1), 0);                                \
    }                                                                                  \
    static void few_half_##i(const slm_cpu_strip *on, const streams *at)               \
    {                                                                                  \
        few_rows(on, at, (i) + 1, VECS_OF((i) + 1), 1);                                \
    }
#define NAME(i) few_##i,
#define NAME_HALF(i) few_half_##i,
#define EACH_ROW(n, X) EACH_ROW_OF(n, X)
#define EACH_ROW_OF(n, X) ROWS_##n(X)

EACH_ROW(FEW_ROWS, FEW)

/* By rows, from one on. */
static few *const few_of[] = {EACH_ROW(FEW_ROWS, NAME)};
static few *const few_half_of[] = {EACH_ROW(FEW_ROWS, NAME_HALF)};

/* Columns of y, as many as both streams have, from `col` of the panel on. */
static void few_columns(const slm_cpu_strip *on, const char *panel, size_t bytes,
                        size_t col, float *y, size_t ldy)
{
    const size_t half_of_them = few_cols(on->rows) / 2;
    const char *left = panel + col * sizeof *y;
    const streams at = {left,
                        half_of_them < SLM_CPU_WIDTH ? left + half_of_them * sizeof *y
                                                     : left + bytes,
                        y, ldy};
    few *const run = on->half ? few_half_of[on->rows - 1] : few_of[on->rows - 1];

    run(on, &at);
}

/* The same where y has `have` of these columns, fewer. */
static void few_edge(const slm_cpu_strip *on, const char *panel, size_t bytes,
                     size_t col, size_t have, float *y)
{
    enum { MOST_COLS = 2 * LANES * MOST_VECS };
    float edge[FEW_ROWS * MOST_COLS] __attribute__((aligned(64))) = {0};

    for (size_t i = 0; on->add && i < on->rows; i++)
        memcpy(edge + i * MOST_COLS, y + i * on->ldy, have * sizeof *y);
    few_columns(on, panel, bytes, col, edge, MOST_COLS);
    for (size_t i = 0; i < on->rows; i++)
        memcpy(y + i * on->ldy, edge + i * MOST_COLS, have * sizeof *y);
}

/* Up to FEW_ROWS rows. Columns that are left where streams are of two panels and there
 * is no second: the return value, else 0. */
static size_t few_panels(const slm_cpu_strip *on, size_t bytes)
{
    const size_t most = few_cols(on->rows);
    const size_t step = most > SLM_CPU_WIDTH ? most : SLM_CPU_WIDTH;
    const char *panel = on->panels;

    for (size_t first = 0; first < on->cols; first += step) {
        const size_t left = on->cols - first, cols = left < step ? left : step;

        if (most > SLM_CPU_WIDTH && cols <= SLM_CPU_WIDTH) return cols;
        for (size_t col = 0; col < cols; col += most) {
            float *y = on->y + first + col;

            if (cols - col < most)
                few_edge(on, panel, bytes, col, cols - col, y);
            else
                few_columns(on, panel, bytes, col, y, on->ldy);
        }
        panel += step / SLM_CPU_WIDTH * bytes;
    }
    return 0;
}
