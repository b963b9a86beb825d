/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_amx.h - products of bf16 by tiles: x of 16 rows by 32 of the inner index,
 * half a panel's columns by as much, sums of 16 by 16.
 *
 * Included once by gemm_amx.c and gemm_amx_model.c, which say in OTHER() what level
 * does all else.
 *
 * Method   x in bf16 is read as it lies. Where it is binary32, each element of it a
 *          bf16, or its inner index ends within a tile, a stretch of it is narrowed
 *          first, filled with zeros. Each panel meets up to 192 rows, 32 at a time; what
 *          remains has tiles of just its height. Tiles for one row, too: no other
 *          instruction would give a token the same bits alone as in a batch, and memory
 *          is what it waits for. Up to 16 rows ask for what lies ahead of it; of more
 *          each area of 32 asks for a part of what is read next.
 * Order    c = y, or 0; then for each 32 of the inner index, ascending, c plus their
 *          sum: a chain of the even ones plus a chain of the odd ones (tiles_model.h).
 *          The last 32 are filled with zeros.
 * Small    an x, a weight, a product or a sum below 2^-126 is taken for 0: the backend
 *          says so (native.c).
 * Tiles    belong to one call: configured at its beginning, released at its end. */
#include "tiles.h"

enum {
    HIGH = SLM_TILE_ROWS,
    STEP = SLM_CPU_STEP,                          /* of the inner index             */
    HALF = SLM_CPU_WIDTH / 2,                     /* columns of a tile              */
    DEPTH = 10 * STEP,                            /* whose x and panel are close by */
    NARROW = DEPTH + STEP,                        /* elements from row to row       */
    TILE_OF_PANEL = STEP / 2 * SLM_CPU_WIDTH * 4, /* bytes: both halves             */
    PANEL_ROW = SLM_CPU_WIDTH * 4,                /* bytes: 32 pairs                */
    AHEAD = 4 * TILE_OF_PANEL                     /* bytes                          */
};

/* Up to 32 rows of y by one panel. */
typedef struct area {
    slm_tiles *tiles;
    const uint16_t *x; /* element (i, k) at x[i ldx + k] */
    size_t ldx;
    const char *panel;
    const char *end;  /* of what is to be asked for: beyond lies what others read */
    const char *then; /* what is read after the last panel, or NULL               */
    const char *next; /* what is after this one, so far on that each area asks ... */
    size_t share;     /* ... for a part of so many bytes for each step             */
    size_t steps;
    size_t rows;
    size_t cols;
    float *y;
    size_t ldy;
    int add;
} area;

/* ---- kernels: sums in tiles 0 to 3, x in 4 and 5, weights in 6 and 7 ---- */

static void begin(const area *on, const float *y, size_t ld)
{
    const float *below = y + HIGH * ld;
    const int both = on->rows > HIGH;

    if (on->add) {
        slm_tiles_load(on->tiles, 0, y, ld * sizeof *y);
        slm_tiles_load(on->tiles, 1, y + HALF, ld * sizeof *y);
    } else {
        slm_tiles_zero(on->tiles, 0);
        slm_tiles_zero(on->tiles, 1);
    }
    if (both && on->add) {
        slm_tiles_load(on->tiles, 2, below, ld * sizeof *y);
        slm_tiles_load(on->tiles, 3, below + HALF, ld * sizeof *y);
    } else if (both) {
        slm_tiles_zero(on->tiles, 2);
        slm_tiles_zero(on->tiles, 3);
    }
}

static void end(const area *on, float *y, size_t ld)
{
    float *below = y + HIGH * ld;

    slm_tiles_store(on->tiles, 0, y, ld * sizeof *y);
    slm_tiles_store(on->tiles, 1, y + HALF, ld * sizeof *y);
    if (on->rows <= HIGH) return;
    slm_tiles_store(on->tiles, 2, below, ld * sizeof *y);
    slm_tiles_store(on->tiles, 3, below + HALF, ld * sizeof *y);
}

/* Half of a step, further on. */
static inline __attribute__((always_inline)) void fetch(const char *w)
{
#pragma GCC unroll 16
    for (size_t i = 0; i < TILE_OF_PANEL / 2; i += 64)
        __builtin_prefetch(w + AHEAD + i);
}

/* Up to 16 rows; the weights stay in 6 and 7. */
static inline __attribute__((always_inline)) void upper_sums(const area *on, size_t s,
                                                             const char *w, int far)
{
    slm_tiles_load(on->tiles, 4, on->x + s * STEP, on->ldx * sizeof *on->x);
    if (far) fetch(w);
    slm_tiles_load(on->tiles, 6, w, PANEL_ROW);
    slm_tiles_dot(on->tiles, 0, 4, 6);
    if (far) fetch(w + TILE_OF_PANEL / 2);
    slm_tiles_load(on->tiles, 7, w + PANEL_ROW / 2, PANEL_ROW);
    slm_tiles_dot(on->tiles, 1, 4, 7);
}

static void upper(const area *on)
{
    const char *w = on->panel;

    for (size_t s = 0; s < on->steps; s++, w += TILE_OF_PANEL)
        upper_sums(on, s, w, on->end - w > AHEAD);
}

static void upper_and_lower(const area *on)
{
    const uint16_t *below = on->x + HIGH * on->ldx;
    const char *w = on->panel, *next = on->next;

    for (size_t s = 0; s < on->steps; s++, w += TILE_OF_PANEL, next += TILE_OF_PANEL) {
        upper_sums(on, s, w, 0);
        for (size_t i = 0; i < on->share; i += 64) __builtin_prefetch(next + i, 0, 2);
        slm_tiles_load(on->tiles, 5, below + s * STEP, on->ldx * sizeof *below);
        slm_tiles_dot(on->tiles, 2, 5, 6);
        slm_tiles_dot(on->tiles, 3, 5, 7);
    }
}

static void sum(const area *on, float *y, size_t ld)
{
    begin(on, y, ld);
    if (on->rows > HIGH)
        upper_and_lower(on);
    else
        upper(on);
    end(on, y, ld);
}

/* Straight to y where it has all columns of the tiles. */
static void run_area(const area *on)
{
    float edge[2 * HIGH * SLM_CPU_WIDTH] __attribute__((aligned(64)));

    if (on->cols == SLM_CPU_WIDTH) {
        sum(on, on->y, on->ldy);
        return;
    }
    memset(edge, 0, sizeof edge);
    for (size_t i = 0; on->add && i < on->rows; i++)
        memcpy(edge + i * SLM_CPU_WIDTH, on->y + i * on->ldy, on->cols * sizeof *edge);
    sum(on, edge, SLM_CPU_WIDTH);
    for (size_t i = 0; i < on->rows; i++)
        memcpy(on->y + i * on->ldy, edge + i * SLM_CPU_WIDTH, on->cols * sizeof *edge);
}

/* ---- a stretch of the inner index ---- */

/* Sums and x of `up` rows and `low` more, weights of 16 rows of pairs. Constants: built
 * on the stack byte by byte, LDTILECFG would wait for the bytes. */
#define SIZES(up, low)                                                                 \
    {                                                                                  \
        .palette = 1, .rows = {up, up, low, low, up, low, HIGH, HIGH}, .colsb = {      \
            SLM_TILE_BYTES,                                                            \
            SLM_TILE_BYTES,                                                            \
            (low) ? SLM_TILE_BYTES : 0,                                                \
            (low) ? SLM_TILE_BYTES : 0,                                                \
            SLM_TILE_BYTES,                                                            \
            (low) ? SLM_TILE_BYTES : 0,                                                \
            SLM_TILE_BYTES,                                                            \
            SLM_TILE_BYTES                                                             \
        }                                                                              \
    }
#define UP(n) SIZES(n, 0)
#define LOW(n) SIZES(HIGH, n)
#define FOUR(X, n) X(n + 1), X(n + 2), X(n + 3), X(n + 4)
#define SIXTEEN(X) FOUR(X, 0), FOUR(X, 4), FOUR(X, 8), FOUR(X, 12)

static const slm_tile_config config_of[2 * HIGH] = {SIXTEEN(UP), SIXTEEN(LOW)};

/* Rows [first, first + rows) of all panels, 32 at a time, or fewer. */
static void rows_of_panels(area on, const slm_cpu_strip *of, size_t first, size_t rows)
{
    const size_t bytes = slm_cpu_strip_bytes(of->inner, 1);
    const uint16_t *x = on.x;

    on.end = of->panels; /* rows before these have asked for all */
    if (first == 0)
        on.end += slm_cpu_ceil_div(of->cols, SLM_CPU_WIDTH) * bytes + of->follows;
    on.rows = rows < 2 * HIGH ? rows : 2 * HIGH;
    slm_tiles_configure(on.tiles, &config_of[on.rows - 1]);
    for (size_t col = 0; col < of->cols; col += SLM_CPU_WIDTH, on.panel += bytes) {
        const size_t left = of->cols - col;

        on.cols = left < SLM_CPU_WIDTH ? left : SLM_CPU_WIDTH;
        on.next = left > SLM_CPU_WIDTH ? on.panel + bytes : on.then;
        on.share = first == 0 && on.next
                       ? slm_cpu_ceil_div(TILE_OF_PANEL / 64, rows / on.rows) * 64
                       : 0;
        for (size_t row = first; row < first + rows; row += on.rows) {
            on.x = x + row * on.ldx;
            on.y = of->y + row * of->ldy + col;
            run_area(&on);
            on.next += on.share;
        }
    }
}

static void stretch(area on, const slm_cpu_strip *of)
{
    const size_t rest = of->rows % (2 * HIGH), whole = of->rows - rest;

    if (whole) rows_of_panels(on, of, 0, whole);
    if (rest) rows_of_panels(on, of, whole, rest);
}

/* The upper half of each: exact, for what is a bf16. */
static void narrow_row(const float *from, size_t depth, uint16_t *to)
{
#pragma omp simd
    for (size_t k = 0; k < depth; k++) {
        uint32_t bits;

        memcpy(&bits, from + k, sizeof bits);
        to[k] = (uint16_t)(bits >> 16);
    }
}

/* [rows][NARROW], the last 32 of `depth` filled with zeros. */
static void narrow_rows(const slm_cpu_strip *of, size_t first, size_t depth,
                        uint16_t *to)
{
    const size_t filled = slm_cpu_ceil_div(depth, STEP) * STEP;

    for (size_t i = 0; i < of->rows; i++, to += NARROW) {
        if (of->x16)
            memcpy(to, of->x16 + i * of->ldx + first, depth * sizeof *to);
        else
            narrow_row(of->x + i * of->ldx + first, depth, to);
        memset(to + depth, 0, (filled - depth) * sizeof *to);
    }
}

/* Apart from stretch(): only this needs the memory. */
static __attribute__((noinline)) void narrow_stretch(area on, const slm_cpu_strip *of,
                                                     size_t first, size_t depth)
{
    uint16_t rows[SLM_CPU_ACROSS * NARROW] __attribute__((aligned(64)));

    narrow_rows(of, first, depth, rows);
    on.x = rows;
    on.ldx = NARROW;
    stretch(on, of);
}

/* Steps of the inner index that are taken through all rows at once, whole tiles: for
 * many rows so few that a panel's stay in the first cache beside those of 32 rows. */
static size_t depth_of(const slm_cpu_strip *of)
{
    const size_t steps = slm_cpu_ceil_div(of->inner, STEP);
    const int once = of->x16 && of->rows <= 2 * HIGH;
    const size_t cuts = once ? 1 : slm_cpu_ceil_div(of->inner, DEPTH);

    return slm_cpu_ceil_div(steps, cuts) * STEP;
}

/* What is read after the last panel's steps up to k: more of the first one, or what the
 * next call begins with. */
static const char *after(const slm_cpu_strip *of, size_t k)
{
    const size_t panels = slm_cpu_ceil_div(of->cols, SLM_CPU_WIDTH);
    const char *first = of->panels;

    if (k < of->inner) return first + k / STEP * TILE_OF_PANEL;
    return of->follows ? first + panels * slm_cpu_strip_bytes(of->inner, 1) : NULL;
}

/* Up to SLM_CPU_ACROSS rows. */
static void block(slm_tiles *tiles, const slm_cpu_strip *of)
{
    const size_t most = depth_of(of);
    size_t depth;

    for (size_t k = 0; k < of->inner; k += depth) {
        const size_t left = of->inner - k;
        /* what ends within a tile comes last, by itself */
        const size_t whole = of->x16 && left > STEP ? left / STEP * STEP : left;

        depth = whole < most ? whole : most;

        area on = {.tiles = tiles,
                   .ldx = of->ldx,
                   .panel = (const char *)of->panels + k / STEP * TILE_OF_PANEL,
                   .then = after(of, k + depth),
                   .steps = slm_cpu_ceil_div(depth, STEP),
                   .ldy = of->ldy,
                   .add = of->add || k > 0};

        if (of->x16 && depth % STEP == 0) {
            on.x = of->x16 + k;
            stretch(on, of);
        } else
            narrow_stretch(on, of, k, depth);
    }
}

/* What is not of bf16 is the other level's. */
static void gemm(const slm_cpu_linear *of)
{
    OTHER()->gemm(of);
}

static void round_half(size_t count, float *values)
{
    OTHER()->round_half(count, values);
}

static void narrow(size_t rows, size_t cols, slm_cpu_matrix from, uint16_t *to,
                   size_t ld)
{
    OTHER()->narrow(rows, cols, from, to, ld);
}

static void multiply(const slm_cpu_strip *on)
{
    const size_t n = slm_cpu_ceil_div(on->rows, SLM_CPU_ACROSS);
    slm_tiles tiles;

    if (!on->half) {
        OTHER()->multiply(on);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const size_t first = on->rows * i / n, last = on->rows * (i + 1) / n;
        slm_cpu_strip part = *on;

        part.rows = last - first;
        if (on->x16)
            part.x16 += first * on->ldx;
        else
            part.x += first * on->ldx;
        part.y += first * on->ldy;
        block(&tiles, &part);
    }
    slm_tiles_release(&tiles);
}
