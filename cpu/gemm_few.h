/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_few.h - the products of one instruction set for few rows, which stream a
 * panel once: a part of gemm_tile.h.
 *
 * Method   a row keeps vectors of sums of two or four streams of weights: of panels side
 *          by side or, where a row's vectors of a panel do not fit the registers, of the
 *          left and the right half of one. Memory gives two streams more than one, and
 *          four more than two. */

/* Vectors of a stream that n rows keep. One row leaves registers for a whole row of 8
 * lanes' panel. */
enum { MOST_VECS = LANES == 8 ? SLM_CPU_WIDTH / LANES : 2, MOST_STREAMS = 4 };
#define VECS_OF(n) ((n) == 1 ? MOST_VECS : 2)

/* A call: the first stream's weights, bytes from stream to stream, columns of y. */
typedef struct streams {
    const char *first;
    size_t apart;
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

/* Sums of a row. */
typedef struct sums {
    vec of[MOST_STREAMS][MOST_VECS];
} sums;

/* `n` rows of x, element k of each at x[i ldx], by a row of one stream. From here on n,
 * n_streams, n_vecs, half and phase are constants, so that the sums are registers. */
static inline __attribute__((always_inline)) void
few_step(const float *x, size_t ldx, const char *row, size_t stream, size_t n,
         size_t n_vecs, int half, size_t phase, sums *to)
{
#pragma GCC unroll 8
    for (size_t j = 0; j < n_vecs; j++) {
        const vec w = weights_at(row, j, half, phase);

#pragma GCC unroll 8
        for (size_t i = 0; i < n; i++)
            to[i].of[stream][j] = vec_fma(vec_set(x[i * ldx]), w, to[i].of[stream][j]);
    }
}

/* Rows of all streams, and the sums so far. */
typedef struct walk {
    const float *x;
    const char *row[MOST_STREAMS];
    sums to[FEW_ROWS];
} walk;

/* Steps [k, end). What is asked for lies `further` than AHEAD rows. */
static inline __attribute__((always_inline)) void
few_steps(const slm_cpu_strip *on, size_t k, size_t end, size_t further, size_t n,
          size_t n_streams, size_t n_vecs, int half, walk *at)
{
    const size_t steps = half ? 2 : 1;
    const int whole = n_vecs * LANES == SLM_CPU_WIDTH; /* a panel is one stream */

    for (; k < end; k += steps, at->x += steps) {
#pragma GCC unroll 8
        for (size_t s = 0; s < n_streams; s++) {
            if (s == 0 || whole) FETCH(at->row[s] + further);
            few_step(at->x, on->ldx, at->row[s], s, n, n_vecs, half, 0, at->to);
        }
        if (half && k + 1 < on->inner)
#pragma GCC unroll 8
            for (size_t s = 0; s < n_streams; s++) {
                /* the sums need the registers in which these words would be kept */
                __asm__("" : "+r"(at->row[s]));
                few_step(at->x + 1, on->ldx, at->row[s], s, n, n_vecs, half, 1, at->to);
            }
#pragma GCC unroll 8
        for (size_t s = 0; s < n_streams; s++) at->row[s] += ROW_BYTES;
    }
}

/* `n` rows, `n_vecs` vectors of each stream. The last steps ask for where the streams go
 * on: so many panels further as there are streams. */
static inline __attribute__((always_inline)) void few_rows(const slm_cpu_strip *on,
                                                           const streams *from,
                                                           size_t n, size_t n_streams,
                                                           size_t n_vecs, int half)
{
    const size_t cols = n_vecs * LANES, ahead = half ? 2 * AHEAD : AHEAD;
    const size_t last = on->inner > ahead ? on->inner - ahead : 0;
    const size_t begin = half ? last / 2 * 2 : last;
    const size_t further = cols == SLM_CPU_WIDTH ? (n_streams - 1) * from->apart : 0;
    walk at;

#pragma GCC unroll 8
    for (size_t s = 0; s < n_streams; s++) at.row[s] = from->first + s * from->apart;
    at.x = on->x;
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 8
        for (size_t s = 0; s < n_streams; s++)
#pragma GCC unroll 8
            for (size_t j = 0; j < n_vecs; j++)
                at.to[i].of[s][j] =
                    on->add ? vec_load(from->y + i * from->ldy + s * cols + j * LANES)
                            : vec_zero();
    few_steps(on, 0, begin, 0, n, n_streams, n_vecs, half, &at);
    few_steps(on, begin, on->inner, further, n, n_streams, n_vecs, half, &at);
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 8
        for (size_t s = 0; s < n_streams; s++)
#pragma GCC unroll 8
            for (size_t j = 0; j < n_vecs; j++)
                vec_store(from->y + i * from->ldy + s * cols + j * LANES,
                          at.to[i].of[s][j]);
}

typedef void few(const slm_cpu_strip *on, const streams *at);

#define FEW_OF(name, n, n_streams, half)                                               \
    static void name(const slm_cpu_strip *on, const streams *at)                       \
    {                                                                                  \
        few_rows(on, at, n, n_streams, VECS_OF(n), half);                              \
    }
#define FEW(i)                                                                         \
    FEW_OF(few_##i, (i) + 1, 2, 0)                                                     \
    FEW_OF(few_half_##i, (i) + 1, 2, 1)
#define FEW_WIDE(i)                                                                    \
    FEW_OF(few_wide_##i, (i) + 1, MOST_STREAMS, 0)                                     \
    FEW_OF(few_wide_half_##i, (i) + 1, MOST_STREAMS, 1)
#define NAME(i) few_##i,
#define NAME_HALF(i) few_half_##i,
#define NAME_WIDE(i) few_wide_##i,
#define NAME_WIDE_HALF(i) few_wide_half_##i,
#define EACH_ROW(n, X) EACH_ROW_OF(n, X)
#define EACH_ROW_OF(n, X) ROWS_##n(X)

EACH_ROW(FEW_ROWS, FEW)
#if WIDE
EACH_ROW(WIDE, FEW_WIDE)
#endif

/* By rows, from one on; of binary32, of bf16. */
static few *const few_of[2][FEW_ROWS] = {{EACH_ROW(FEW_ROWS, NAME)},
                                         {EACH_ROW(FEW_ROWS, NAME_HALF)}};
#if WIDE
static few *const few_wide_of[2][WIDE] = {{EACH_ROW(WIDE, NAME_WIDE)},
                                          {EACH_ROW(WIDE, NAME_WIDE_HALF)}};
#else
static few *const few_wide_of[2][1];
#endif

/* Columns of y from `first` on, as many as the streams have. */
static void few_columns(const slm_cpu_strip *on, size_t n_streams, size_t bytes,
                        size_t first, float *y, size_t ldy)
{
    const size_t cols = LANES * (size_t)VECS_OF(on->rows);
    const streams at = {(const char *)on->panels + first / SLM_CPU_WIDTH * bytes +
                            first % SLM_CPU_WIDTH * sizeof *y,
                        cols < SLM_CPU_WIDTH ? cols * sizeof *y : bytes, y, ldy};

    if (n_streams > 2)
        few_wide_of[on->half][on->rows - 1](on, &at);
    else
        few_of[on->half][on->rows - 1](on, &at);
}

/* The same where y has `have` of these columns, fewer. */
static void few_edge(const slm_cpu_strip *on, size_t n_streams, size_t bytes,
                     size_t first, size_t have, float *y)
{
    enum { MOST_COLS = MOST_STREAMS * LANES * MOST_VECS };
    float edge[FEW_ROWS * MOST_COLS] __attribute__((aligned(64))) = {0};

    for (size_t i = 0; on->add && i < on->rows; i++)
        memcpy(edge + i * MOST_COLS, y + i * on->ldy, have * sizeof *y);
    few_columns(on, n_streams, bytes, first, edge, MOST_COLS);
    for (size_t i = 0; i < on->rows; i++)
        memcpy(y + i * on->ldy, edge + i * MOST_COLS, have * sizeof *y);
}

/* Up to FEW_ROWS rows. Columns that are left where streams are of two panels and there
 * is no second: the return value, else 0. */
static size_t few_panels(const slm_cpu_strip *on, size_t bytes)
{
    const size_t stream = LANES * (size_t)VECS_OF(on->rows);
    size_t span;

    for (size_t first = 0; first < on->cols; first += span) {
        const size_t left = on->cols - first;
        const size_t n = on->rows <= WIDE && left > 3 * stream ? MOST_STREAMS : 2;
        float *y = on->y + first;

        span = n * stream;
        if (span > SLM_CPU_WIDTH && left <= SLM_CPU_WIDTH) return left;
        if (left < span)
            few_edge(on, n, bytes, first, left, y);
        else
            few_columns(on, n, bytes, first, y, on->ldy);
    }
    return 0;
}
