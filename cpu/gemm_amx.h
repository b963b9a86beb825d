/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_amx.h - products of bf16 by tiles: x of 16 rows by 32 of the inner index,
 * half a panel's columns by as much, sums of 16 by 16.
 *
 * Included once by gemm_amx.c and gemm_amx_model.c, which say in OTHER() what level
 * does all else. x is binary32, each element of it a bf16: here it is laid into tiles.
 *
 * Method   up to 192 rows: a stretch of x's inner index becomes tiles that the second
 *          cache holds, and each panel meets all of them, 32 rows at a time. Up to 16
 *          rows: tiles of just that height, and two panels are streamed side by side,
 *          each weight read once. Tiles for one row, too: no other instruction would
 *          give a token the same bits alone as in a batch, and memory is what it waits
 *          for.
 * Order    c = y, or 0; then for each 32 of the inner index, ascending, c plus their
 *          sum: a chain of the even ones plus a chain of the odd ones (tiles_model.h).
 *          The last 32 are filled with zeros.
 * Small    an x, a weight, a product or a sum below 2^-126 is taken for 0: the backend
 *          says so (native.c).
 * Tiles    belong to one call: configured at its beginning, released at its end. */
#include "tiles.h"

enum {
    HIGH = SLM_TILE_ROWS,
    STEP = SLM_CPU_STEP,         /* of the inner index                  */
    HALF = SLM_CPU_WIDTH / 2,    /* columns of a tile                   */
    LAID = HIGH * STEP,          /* elements of a tile of x             */
    ROOM = SLM_CPU_ACROSS * 512, /* most elements of x laid at once   */
    TILE_OF_PANEL = STEP / 2 * SLM_CPU_WIDTH * 4, /* bytes: both halves */
    AHEAD = 4 /* steps of a panel that is streamed   */
};

/* A few rows of y by one or two panels. */
typedef struct area {
    slm_tiles *tiles;
    const uint16_t *x;     /* [steps][16][32]                          */
    const uint16_t *below; /* the same of the next 16 rows, or NULL    */
    const char *panel;
    const char *beside; /* the next panel, or NULL                  */
    size_t steps;
    size_t rows; /* of y                                     */
    size_t cols;
    float *y;
    size_t ldy;
    int add;
} area;

/* ---- x in tiles ---- */

/* The upper half of each: exact, for what is a bf16. */
static void lay_row(const float *from, size_t depth, size_t steps, uint16_t *to)
{
    uint32_t bits[STEP];

    for (size_t s = 0; s < steps; s++, to += LAID) {
        const size_t left = depth - s * STEP, count = left < STEP ? left : STEP;

        memcpy(bits, from + s * STEP, count * sizeof *bits);
        memset(bits + count, 0, (STEP - count) * sizeof *bits);
#pragma omp simd
        for (size_t k = 0; k < STEP; k++) to[k] = (uint16_t)(bits[k] >> 16);
    }
}

/* [tiles of rows][steps][16][32]; rows beyond the last are zeros where `high` is 16. */
static void lay(const float *x, size_t ldx, size_t rows, size_t high, size_t depth,
                size_t steps, uint16_t *to)
{
    for (size_t i = 0; i < slm_cpu_ceil_div(rows, high) * high; i++) {
        uint16_t *at = to + i / HIGH * steps * LAID + i % HIGH * STEP;

        if (i < rows)
            lay_row(x + i * ldx, depth, steps, at);
        else
            for (size_t s = 0; s < steps; s++)
                memset(at + s * LAID, 0, STEP * sizeof *at);
    }
}

/* ---- kernels: sums in tiles 0 to 3, x in 4 and 5, weights in the others ---- */

/* Panels are read with the distance of their rows, of 32 pairs. */
enum { PAIRS = SLM_CPU_WIDTH * 4, LAID_ROW = STEP * 2 };

static void begin(const area *on, const float *y, size_t ld)
{
    const float *second = on->beside ? y + 2 * HALF : y + HIGH * ld;
    const int both = on->beside || on->below;

    if (!on->add) {
        slm_tiles_zero(on->tiles, 0);
        slm_tiles_zero(on->tiles, 1);
        slm_tiles_zero(on->tiles, 2);
        slm_tiles_zero(on->tiles, 3);
        return;
    }
    slm_tiles_load(on->tiles, 0, y, ld * sizeof *y);
    slm_tiles_load(on->tiles, 1, y + HALF, ld * sizeof *y);
    if (!both) return;
    slm_tiles_load(on->tiles, 2, second, ld * sizeof *y);
    slm_tiles_load(on->tiles, 3, second + HALF, ld * sizeof *y);
}

static void end(const area *on, float *y, size_t ld)
{
    float *second = on->beside ? y + 2 * HALF : y + HIGH * ld;
    const int both = on->beside || on->below;

    slm_tiles_store(on->tiles, 0, y, ld * sizeof *y);
    slm_tiles_store(on->tiles, 1, y + HALF, ld * sizeof *y);
    if (!both) return;
    slm_tiles_store(on->tiles, 2, second, ld * sizeof *y);
    slm_tiles_store(on->tiles, 3, second + HALF, ld * sizeof *y);
}

/* 16 rows by the first panel; its weights stay in 6 and 7. */
static inline void first_sums(const area *on, size_t s)
{
    const char *w = on->panel + s * TILE_OF_PANEL;

    slm_tiles_load(on->tiles, 4, on->x + s * LAID, LAID_ROW);
    slm_tiles_load(on->tiles, 6, w, PAIRS);
    slm_tiles_dot(on->tiles, 0, 4, 6);
    slm_tiles_load(on->tiles, 7, w + PAIRS / 2, PAIRS);
    slm_tiles_dot(on->tiles, 1, 4, 7);
}

/* Up to 16 rows of one panel. */
static void one_by_two(const area *on)
{
    for (size_t s = 0; s < on->steps; s++) first_sums(on, s);
}

/* What lies further on in a panel that is streamed. */
static void fetch(const char *w)
{
    for (size_t i = 0; i < TILE_OF_PANEL; i += 64)
        __builtin_prefetch(w + AHEAD * TILE_OF_PANEL + i);
}

/* Up to 16 rows of two panels. */
static void one_by_four(const area *on)
{
    for (size_t s = 0; s < on->steps; s++) {
        const char *far = on->beside + s * TILE_OF_PANEL;

        fetch(on->panel + s * TILE_OF_PANEL);
        fetch(far);
        first_sums(on, s);
        slm_tiles_load(on->tiles, 5, far, PAIRS);
        slm_tiles_dot(on->tiles, 2, 4, 5);
        slm_tiles_load(on->tiles, 6, far + PAIRS / 2, PAIRS);
        slm_tiles_dot(on->tiles, 3, 4, 6);
    }
}

/* 32 rows of one panel. */
static void two_by_two(const area *on)
{
    for (size_t s = 0; s < on->steps; s++) {
        first_sums(on, s);
        slm_tiles_load(on->tiles, 5, on->below + s * LAID, LAID_ROW);
        slm_tiles_dot(on->tiles, 2, 5, 6);
        slm_tiles_dot(on->tiles, 3, 5, 7);
    }
}

static void sum(const area *on, float *y, size_t ld)
{
    begin(on, y, ld);
    if (on->beside)
        one_by_four(on);
    else if (on->below)
        two_by_two(on);
    else
        one_by_two(on);
    end(on, y, ld);
}

/* Straight to y where it has all rows and columns of the tiles, each `high` rows. */
static void run_area(const area *on, size_t high)
{
    enum { MOST = 2 * HIGH * 2 * HALF };
    const size_t wide = on->beside ? 4 * HALF : 2 * HALF;
    const size_t rows = on->below ? 2 * high : high;
    float edge[MOST] __attribute__((aligned(64)));

    if (on->rows == rows && on->cols == wide) {
        sum(on, on->y, on->ldy);
        return;
    }
    memset(edge, 0, sizeof edge);
    for (size_t i = 0; on->add && i < on->rows; i++)
        memcpy(edge + i * wide, on->y + i * on->ldy, on->cols * sizeof *edge);
    sum(on, edge, wide);
    for (size_t i = 0; i < on->rows; i++)
        memcpy(on->y + i * on->ldy, edge + i * wide, on->cols * sizeof *edge);
}

/* ---- a stretch of the inner index ---- */

/* Up to 16 rows: two panels at a time. */
static void few_rows(area on, const slm_cpu_strip *of, size_t bytes)
{
    const char *panel = on.panel;

    for (size_t col = 0; col < of->cols; col += on.cols, panel += 2 * bytes) {
        const size_t left = of->cols - col;

        on.cols = left < 2 * SLM_CPU_WIDTH ? left : 2 * SLM_CPU_WIDTH;
        on.panel = panel;
        on.beside = left > SLM_CPU_WIDTH ? panel + bytes : NULL;
        on.y = of->y + col;
        run_area(&on, of->rows);
    }
}

static void many_rows(area on, const slm_cpu_strip *of, size_t bytes)
{
    const uint16_t *x = on.x;
    const size_t apart = on.steps * LAID; /* of tiles of x */

    for (size_t col = 0; col < of->cols; col += SLM_CPU_WIDTH, on.panel += bytes) {
        const size_t left = of->cols - col;

        on.cols = left < SLM_CPU_WIDTH ? left : SLM_CPU_WIDTH;
        for (size_t row = 0; row < of->rows; row += on.rows) {
            on.rows = of->rows - row < 2 * HIGH ? of->rows - row : 2 * HIGH;
            on.x = x + row / HIGH * apart;
            on.below = on.rows > HIGH ? on.x + apart : NULL;
            on.y = of->y + row * of->ldy + col;
            run_area(&on, HIGH);
        }
    }
}

/* Up to SLM_CPU_ACROSS rows. */
static void block(slm_tiles *tiles, const slm_cpu_strip *of, uint16_t *laid)
{
    const size_t bytes = slm_cpu_strip_bytes(of->inner, 1);
    const size_t high = of->rows < HIGH ? of->rows : HIGH;
    const size_t most = ROOM / (slm_cpu_ceil_div(of->rows, HIGH) * LAID) * STEP;

    for (size_t k = 0; k < of->inner; k += most) {
        const size_t depth = of->inner - k < most ? of->inner - k : most;
        const area on = {.tiles = tiles,
                         .x = laid,
                         .panel = (const char *)of->panels + k / STEP * TILE_OF_PANEL,
                         .steps = slm_cpu_ceil_div(depth, STEP),
                         .rows = of->rows,
                         .ldy = of->ldy,
                         .add = of->add || k > 0};

        lay(of->x + k, of->ldx, of->rows, high, depth, on.steps, laid);
        if (of->rows <= HIGH)
            few_rows(on, of, bytes);
        else
            many_rows(on, of, bytes);
    }
}

/* Sums and the first tile of x are `high` rows; weights are 16 of pairs. */
static void configure(slm_tiles *tiles, size_t high)
{
    slm_tile_config config = {.palette = 1};

    for (size_t i = 0; i < SLM_TILE_COUNT; i++) {
        config.colsb[i] = SLM_TILE_BYTES;
        config.rows[i] = i < 5 ? (uint8_t)high : SLM_TILE_ROWS;
    }
    slm_tiles_configure(tiles, &config);
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

static void multiply(const slm_cpu_strip *on)
{
    uint16_t laid[ROOM] __attribute__((aligned(64)));
    slm_tiles tiles;
    const size_t n = slm_cpu_ceil_div(on->rows, SLM_CPU_ACROSS);

    if (!on->half) {
        OTHER()->multiply(on);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const size_t first = on->rows * i / n, end_of = on->rows * (i + 1) / n;
        slm_cpu_strip part = *on;

        part.rows = end_of - first;
        part.x += first * on->ldx;
        part.y += first * on->ldy;
        configure(&tiles, part.rows < HIGH ? part.rows : HIGH);
        block(&tiles, &part, laid);
        slm_tiles_release(&tiles);
    }
}
