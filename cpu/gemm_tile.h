/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_tile.h - the products of one instruction set, from a few vector operations.
 *
 * Included once by each gemm_LEVEL.c, which defines before
 *   LANES            of a vector
 *   TILE_ROWS        most rows of a tile of two vectors, 12, 6 or 4
 *   FEW_ROWS         most rows of gemm_few.h, 6, 3 or 2
 *   WIDE             most of these rows that have registers for four streams, 3 or 0
 *   DEPTH            of the inner index, taken through all rows at once: what a tile
 *                    reads of a panel in so many steps stays in the first cache, or
 *                    nearly
 *   vec              a vector; vec_zero, vec_set, vec_load, vec_store, vec_fma(a, b, c)
 *   vec_even(p)      binary32 of the bf16 elements p[0], p[2], ...; vec_odd: p[1], ...
 *
 * Method   a tile keeps rows x vectors of sums in registers and walks the inner index.
 *          Many rows: DEPTH steps of a tile's columns of a panel serve all rows, then
 *          the next columns; with 16 lanes the tiles share in asking for what is read
 *          next. A few tiles of narrower vectors: a panel serves them as it comes from
 *          memory. Few rows: gemm_few.h.
 * Order    one chain a sum, ascending: gemm.h. */

#include <limits.h>

#define ROWS_1(X) X(0)
#define ROWS_2(X) ROWS_1(X) X(1)
#define ROWS_3(X) ROWS_2(X) X(2)
#define ROWS_4(X) ROWS_3(X) X(3)
#define ROWS_5(X) ROWS_4(X) X(4)
#define ROWS_6(X) ROWS_5(X) X(5)
#define ROWS_7(X) ROWS_6(X) X(6)
#define ROWS_8(X) ROWS_7(X) X(7)
#define ROWS_9(X) ROWS_8(X) X(8)
#define ROWS_10(X) ROWS_9(X) X(9)
#define ROWS_11(X) ROWS_10(X) X(10)
#define ROWS_12(X) ROWS_11(X) X(11)

/* Element of row i, `at` elements on: four pointers and a distance from row to row
 * name all. */
#define AT_0 x0[0 * across + at]
#define AT_1 x0[across + at]
#define AT_2 x0[2 * across + at]
#define AT_3 x3[at]
#define AT_4 x3[across + at]
#define AT_5 x3[2 * across + at]
#define AT_6 x6[at]
#define AT_7 x6[across + at]
#define AT_8 x6[2 * across + at]
#define AT_9 x9[at]
#define AT_10 x9[across + at]
#define AT_11 x9[2 * across + at]

/* Rows of x: element (i, k) at x[i row + k step]. Or packed: a tile of `high` rows from
 * `first` on begins at x[first inner], its element (i, k) is i + k high further. */
typedef struct rows_of {
    const float *x;
    size_t row;
    size_t step;
    int packed;
} rows_of;

/* ---- tiles of two vectors: y [rows, 2 LANES] from a panel, of rows 32 wide ---- */

enum { TILE_COLS = 2 * LANES };

/* What a tile asks for while it runs: nothing, the panel itself, further on, where `line`
 * is where the tile begins; or for each four steps `lines` lines, up to 8, which lie
 * `apart`, the first one from here on. Tiles take its address: GCC reads a copy on the
 * stack as one vector, before its two halves are written, which cost 5 % of a product. */
typedef struct wish {
    const char *line;
    size_t apart;
    int lines;
} wish;

typedef void tile(const float *x0, size_t row, size_t step, const float *w, size_t ldw,
                  size_t inner, float *y, size_t ldy, int add, const wish *ahead);

#define DECLARE_2(i) vec a##i = vec_zero(), b##i = vec_zero();
#define LOAD_2(i)                                                                      \
    a##i = vec_load(y + i * ldy);                                                      \
    b##i = vec_load(y + i * ldy + LANES);
#define STEP_2(i)                                                                      \
    {                                                                                  \
        const vec one = vec_set(AT_##i);                                               \
                                                                                       \
        a##i = vec_fma(one, left, a##i);                                               \
        b##i = vec_fma(one, right, b##i);                                              \
    }
#define STORE_2(i)                                                                     \
    vec_store(y + i * ldy, a##i);                                                      \
    vec_store(y + i * ldy + LANES, b##i);

/* Of a panel, of either type. FETCH asks for the row AHEAD of this one, for a panel that
 * is streamed. With narrow vectors the CPU does it better: asked for, memory gave 17
 * GB/s, not 22 (Zen 3). */
enum { ROW_BYTES = SLM_CPU_WIDTH * sizeof(float), AHEAD = 24 };
#if LANES > 8
enum { STREAM = 32 };
#define FETCH(w)                                                                       \
    (__builtin_prefetch((const char *)(w) + AHEAD * ROW_BYTES),                        \
     __builtin_prefetch((const char *)(w) + AHEAD * ROW_BYTES + 64))
#else
enum { STREAM = INT_MAX };
#define FETCH(w) ((void)(w))
#endif
#define FETCH_NONE(w) ((void)(w))
#define NO_LINES
#define LINES_1                                                                        \
    __builtin_prefetch(line, 0, 2);                                                    \
    line += 64
#define LINES_2                                                                        \
    __builtin_prefetch(line + apart, 0, 2);                                            \
    LINES_1
#define LINES_3                                                                        \
    __builtin_prefetch(line + 2 * apart, 0, 2);                                        \
    LINES_2
#define LINES_4                                                                        \
    __builtin_prefetch(line + 2 * apart, 0, 2);                                        \
    __builtin_prefetch(line + 3 * apart, 0, 2);                                        \
    LINES_2
#define LINES_8                                                                        \
    __builtin_prefetch(line + 4 * apart, 0, 2);                                        \
    __builtin_prefetch(line + 5 * apart, 0, 2);                                        \
    __builtin_prefetch(line + 6 * apart, 0, 2);                                        \
    __builtin_prefetch(line + 7 * apart, 0, 2);                                        \
    LINES_4

#define NEXT_X(by)                                                                     \
    x0 += (by);                                                                        \
    x3 += (by);                                                                        \
    x6 += (by);                                                                        \
    x9 += (by);

/* Step u from here on. */
#define WALK_ONE_2(n, u, down, step, ldw, fetch)                                       \
    {                                                                                  \
        const size_t across = (down), at = (u) * (step);                               \
        const vec left = vec_load(w + (u) * (ldw));                                    \
        const vec right = vec_load(w + (u) * (ldw) + LANES);                           \
                                                                                       \
        fetch(w + (u) * (ldw));                                                        \
        ROWS_##n(STEP_2)                                                               \
    }
#define WALK_2(n, down, step, ldw, fetch, lines)                                       \
    for (; k + 4 <= inner; k += 4) {                                                   \
        lines;                                                                         \
        WALK_ONE_2(n, 0, down, step, ldw, fetch)                                       \
        WALK_ONE_2(n, 1, down, step, ldw, fetch)                                       \
        WALK_ONE_2(n, 2, down, step, ldw, fetch)                                       \
        WALK_ONE_2(n, 3, down, step, ldw, fetch)                                       \
        NEXT_X(4 * (step))                                                             \
        w += 4 * (ldw);                                                                \
    }

#define BEGIN_2(n)                                                                     \
    const float *x3 = x0 + (n > 3 ? 3 * row : 0);                                      \
    const float *x6 = x0 + (n > 6 ? 6 * row : 0);                                      \
    const float *x9 = x0 + (n > 9 ? 9 * row : 0);                                      \
    ROWS_##n(DECLARE_2);                                                               \
                                                                                       \
    (void)x3, (void)x6, (void)x9;                                                      \
    if (add) {                                                                         \
        ROWS_##n(LOAD_2);                                                              \
    }

#define TILE(n)                                                                        \
    static void tile_##n(const float *x0, size_t row, size_t step, const float *w,     \
                         size_t ldw, size_t inner, float *y, size_t ldy, int add,      \
                         const wish *ahead)                                            \
    {                                                                                  \
        const char *line = ahead->line;                                                \
        const size_t apart = ahead->apart;                                             \
        const int lines = ahead->lines;                                                \
        const int is_panel = step == 1 && ldw == SLM_CPU_WIDTH;                        \
        size_t k = 0;                                                                  \
                                                                                       \
        (void)apart, (void)lines;                                                      \
        BEGIN_2(n)                                                                     \
        /* constants: rows as they lie, rows packed by tiles */                        \
        if (LANES > 8 && is_panel && line == (const char *)w) {                        \
            WALK_2(n, row, 1, SLM_CPU_WIDTH, FETCH, NO_LINES)                          \
        } else if (LANES > 8 && is_panel && lines == 1) {                              \
            WALK_2(n, row, 1, SLM_CPU_WIDTH, FETCH_NONE, LINES_1)                      \
        } else if (LANES > 8 && is_panel && lines == 2) {                              \
            WALK_2(n, row, 1, SLM_CPU_WIDTH, FETCH_NONE, LINES_2)                      \
        } else if (LANES > 8 && is_panel && lines == 3) {                              \
            WALK_2(n, row, 1, SLM_CPU_WIDTH, FETCH_NONE, LINES_3)                      \
        } else if (LANES > 8 && is_panel && lines == 4) {                              \
            WALK_2(n, row, 1, SLM_CPU_WIDTH, FETCH_NONE, LINES_4)                      \
        } else if (LANES > 8 && is_panel && lines == 8) {                              \
            WALK_2(n, row, 1, SLM_CPU_WIDTH, FETCH_NONE, LINES_8)                      \
        } else if (is_panel) {                                                         \
            WALK_2(n, row, 1, SLM_CPU_WIDTH, FETCH_NONE, NO_LINES)                     \
        } else if (step == 1) {                                                        \
            WALK_2(n, row, 1, ldw, FETCH_NONE, NO_LINES)                               \
        } else if (row == 1 && step == n && ldw == SLM_CPU_WIDTH) {                    \
            WALK_2(n, 1, n, SLM_CPU_WIDTH, FETCH_NONE, NO_LINES)                       \
        }                                                                              \
        for (; k < inner; k++) {                                                       \
            WALK_ONE_2(n, 0, row, step, ldw, FETCH_NONE)                               \
            NEXT_X(step)                                                               \
            w += ldw;                                                                  \
        }                                                                              \
        ROWS_##n(STORE_2);                                                             \
    }                                                                                  \
                                                                                       \
    static void tile_half_##n(const float *x0, size_t row, size_t step,                \
                              const uint16_t *w, size_t inner, float *y, size_t ldy,   \
                              int add)                                                 \
    {                                                                                  \
        BEGIN_2(n)                                                                     \
        for (size_t k = 0; k < inner; k += 2) {                                        \
            {                                                                          \
                const size_t across = row, at = 0;                                     \
                const vec left = vec_even(w), right = vec_even(w + 2 * LANES);         \
                                                                                       \
                FETCH(w);                                                              \
                ROWS_##n(STEP_2)                                                       \
            }                                                                          \
            if (k + 1 < inner) {                                                       \
                const size_t across = row, at = step;                                  \
                const vec left = vec_odd(w), right = vec_odd(w + 2 * LANES);           \
                                                                                       \
                ROWS_##n(STEP_2)                                                       \
            }                                                                          \
            NEXT_X(2 * step)                                                           \
            w += 2 * SLM_CPU_WIDTH;                                                    \
        }                                                                              \
        ROWS_##n(STORE_2);                                                             \
    }

TILE(1)
TILE(2)
TILE(3)
TILE(4)
#if TILE_ROWS > 4
TILE(5)
TILE(6)
#endif
#if TILE_ROWS > 6
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
#endif

typedef void tile_half(const float *x0, size_t row, size_t step, const uint16_t *w,
                       size_t inner, float *y, size_t ldy, int add);

#if TILE_ROWS > 6
#define EACH_TILE(name)                                                                \
    NULL, name##1, name##2, name##3, name##4, name##5, name##6, name##7, name##8,      \
        name##9, name##10, name##11, name##12
#elif TILE_ROWS > 4
#define EACH_TILE(name) NULL, name##1, name##2, name##3, name##4, name##5, name##6
#else
#define EACH_TILE(name) NULL, name##1, name##2, name##3, name##4
#endif

static tile *const tiles[TILE_ROWS + 1] = {EACH_TILE(tile_)};
static tile_half *const half_tiles[TILE_ROWS + 1] = {EACH_TILE(tile_half_)};

/* Where a panel's weights are read from; a column is four bytes, of bf16 a pair. */
typedef struct weights_of {
    const void *data;
    size_t ld; /* of binary32; a panel's is SLM_CPU_WIDTH */
    int half;
    int asked;        /* these have been asked for                        */
    const char *next; /* what is read after them, of binary32, or NULL */
} weights_of;

static void run_tile(size_t rows, const rows_of *x, const weights_of *w, size_t col,
                     size_t inner, float *y, size_t ldy, int add, const wish *ahead)
{
    const void *from = (const char *)w->data + col * sizeof *y;

    if (w->half)
        half_tiles[rows](x->x, x->row, x->step, from, inner, y, ldy, add);
    else
        tiles[rows](x->x, x->row, x->step, from, w->ld, inner, y, ldy, add, ahead);
}

/* Of up to TILE_ROWS rows the columns from `col` of the panel on, where y has fewer
 * than a tile. */
static void edge_tile(size_t rows, size_t cols, const rows_of *x, const weights_of *w,
                      size_t col, size_t inner, float *y, size_t ldy, int add,
                      const wish *ahead)
{
    float edge[TILE_ROWS * TILE_COLS] __attribute__((aligned(64)));

    memset(edge, 0, sizeof edge);
    for (size_t i = 0; add && i < rows; i++)
        memcpy(edge + i * TILE_COLS, y + i * ldy, cols * sizeof *y);
    run_tile(rows, x, w, col, inner, edge, TILE_COLS, add, ahead);
    for (size_t i = 0; i < rows; i++)
        memcpy(y + i * ldy, edge + i * TILE_COLS, cols * sizeof *y);
}

static rows_of tile_of(const rows_of *x, size_t first, size_t end, size_t inner)
{
    if (x->packed) return (rows_of){x->x + first * inner, 1, end - first, 1};
    return (rows_of){x->x + first * x->row, x->row, x->step, 0};
}

/* Of tile i of n: up to eight of them ask for a share of what is read next, in so many
 * lines each; but the first one for the panel itself, if nobody did. */
static wish wish_of(size_t i, size_t n, const weights_of *w, size_t inner)
{
    const size_t sharing = n < 8 ? n : 8, lines = slm_cpu_ceil_div(8, sharing);
    const size_t share = inner * ROW_BYTES / sharing;

    if (i == 0 && !w->asked) return (wish){w->data, 0, 0};
    if (i >= sharing || !w->next) return (wish){NULL, 0, 0};
    return (wish){w->next + i * share, share / lines, (int)lines};
}

/* All columns of a panel that y has, `cols` of them, for any number of rows, in tiles
 * as even as can be. */
static void rows_panel(size_t rows, size_t cols, const rows_of *x, const weights_of *w,
                       size_t inner, float *y, size_t ldy, int add)
{
    const size_t n = slm_cpu_ceil_div(rows, TILE_ROWS);

    for (size_t col = 0; col < cols; col += TILE_COLS)
        for (size_t i = 0; i < n; i++) {
            const size_t first = rows * i / n, end = rows * (i + 1) / n;
            const rows_of part = tile_of(x, first, end, inner);
            const wish ahead =
                LANES > 8 && col == 0 ? wish_of(i, n, w, inner) : (wish){NULL, 0, 0};
            float *to = y + first * ldy + col;

            if (cols - col < TILE_COLS)
                edge_tile(end - first, cols - col, &part, w, col, inner, to, ldy, add,
                          &ahead);
            else
                run_tile(end - first, &part, w, col, inner, to, ldy, add, &ahead);
        }
}

#include "gemm_few.h"

/* ---- packed weights ---- */

/* Steps [k, k + depth) of the panel with columns from `col` on, at `w`. */
static void panel_steps(const slm_cpu_strip *on, const weights_of *w, size_t col,
                        size_t k, size_t depth)
{
    const size_t left = on->cols - col;

    rows_panel(on->rows, left < SLM_CPU_WIDTH ? left : SLM_CPU_WIDTH,
               &(rows_of){on->x + k, on->ldx, 1, 0}, w, depth, on->y + col, on->ldy,
               on->add || k > 0);
}

static const char *steps_at(const slm_cpu_strip *on, size_t bytes, size_t col, size_t k)
{
    return (const char *)on->panels + col / SLM_CPU_WIDTH * bytes +
           (on->half ? k / 2 : k) * ROW_BYTES;
}

/* Panel by panel, which is read from wherever it is once. */
static void some_panels(const slm_cpu_strip *on, size_t bytes)
{
    for (size_t col = 0; col < on->cols; col += SLM_CPU_WIDTH)
        for (size_t k = 0; k < on->inner; k += STREAM)
            panel_steps(on,
                        &(weights_of){steps_at(on, bytes, col, k), SLM_CPU_WIDTH,
                                      on->half, 0, NULL},
                        col, k, on->inner - k < STREAM ? on->inner - k : STREAM);
}

/* What is read after those steps: of the next panel, of the first one again, or of what
 * the next call begins with. */
static const char *after(const slm_cpu_strip *on, size_t bytes, size_t col, size_t k,
                         size_t depth)
{
    if (on->half) return NULL;
    if (col + SLM_CPU_WIDTH < on->cols)
        return steps_at(on, bytes, col + SLM_CPU_WIDTH, k);
    if (k + depth < on->inner) return steps_at(on, bytes, 0, k + depth);
    return on->follows ? steps_at(on, bytes, col + SLM_CPU_WIDTH, 0) : NULL;
}

static void many_panels(const slm_cpu_strip *on, size_t bytes)
{
    const size_t cuts = slm_cpu_ceil_div(on->inner, DEPTH);
    const size_t most = (slm_cpu_ceil_div(on->inner, cuts) + 1) / 2 * 2;

    for (size_t k = 0; k < on->inner; k += most) {
        const size_t depth = on->inner - k < most ? on->inner - k : most;

        for (size_t col = 0; col < on->cols; col += SLM_CPU_WIDTH)
            panel_steps(on,
                        &(weights_of){steps_at(on, bytes, col, k), SLM_CPU_WIDTH,
                                      on->half, on->asked || k > 0 || col > 0,
                                      after(on, bytes, col, k, depth)},
                        col, k, depth);
    }
}

/* Each value rounded to a bf16. A NaN stays one. */
static void round_half(size_t count, float *values)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        values[i] = slm_cpu_of_bf16(slm_cpu_to_bf16(values[i]));
}

static inline void narrow_row(size_t count, const float *from, uint16_t *to)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++) to[i] = slm_cpu_to_bf16(from[i]);
}

static void narrow(size_t rows, size_t cols, slm_cpu_matrix from, uint16_t *to,
                   size_t ld)
{
    for (size_t i = 0; i < rows; i++, to += ld)
        if (cols == SLM_CPU_WIDTH) /* known, it needs no loop */
            narrow_row(SLM_CPU_WIDTH, slm_cpu_row(from, i), to);
        else
            narrow_row(cols, slm_cpu_row(from, i), to);
}

static void multiply(const slm_cpu_strip *on)
{
    const size_t bytes = slm_cpu_strip_bytes(on->inner, on->half);
    slm_cpu_strip rest = *on;

    if (on->rows <= FEW_ROWS) {
        rest.cols = few_panels(on, bytes);
        if (rest.cols == 0) return;
        rest.y += on->cols - rest.cols;
        rest.panels =
            (const char *)on->panels + (on->cols - rest.cols) / SLM_CPU_WIDTH * bytes;
    }
    if (on->rows <= (LANES > 8 ? FEW_ROWS : 2 * TILE_ROWS))
        some_panels(&rest, bytes);
    else
        many_panels(&rest, bytes);
}

#include "gemm_factors.h"
