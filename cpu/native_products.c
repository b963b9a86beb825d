/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native_products.c - products by packed weights, with what is done to them before
 * they leave the cache: the activation, and the rounding of what is stored in bf16. */
#include "cut.h"
#include "native.h"

enum {
    ACTIVATION_ROWS = 96, /* of a tile of gate and up              */
    FEW = 16,             /* rows whose gate and up are read at once */
    BOTH = 2 * SLM_CPU_WIDTH
};

static const slm_cpu_level *level_of(const slm_handle *handle)
{
    return handle->native->level;
}

void slm_cpu_round_rows(const slm_handle *handle, size_t rows, size_t cols, float *y,
                        size_t ldy)
{
    if (handle->config.dtype != SLM_BF16) return;
    for (size_t i = 0; i < rows; i++) level_of(handle)->round_half(cols, y + i * ldy);
}

void slm_cpu_product(const slm_handle *handle, const slm_cpu_panels *w, size_t part,
                     range of, size_t rows, slm_cpu_matrix x, slm_cpu_matrix y, int add)
{
    level_of(handle)->multiply(&(slm_cpu_strip){
        .rows = rows,
        .inner = w->inner,
        .cols = of.end - of.first,
        .x = x.data,
        .ldx = x.ld,
        .panels = slm_cpu_panel_at(w, part, of.first / SLM_CPU_WIDTH),
        .y = y.data + of.first,
        .ldy = y.ld,
        .half = w->half,
        .add = add,
    });
}

/* ---- gate, up and the activation ---- */

/* Gate and up sums of one panel each, [rows, 32] both. */
static void gate_and_up(const slm_handle *handle, slm_cpu_strip strip, int paired,
                        float *gate, float *up)
{
    const slm_cpu_level *level = level_of(handle);
    float both[FEW * BOTH] __attribute__((aligned(64)));

    strip.ldy = SLM_CPU_WIDTH;
    if (!paired) {
        strip.y = up;
        level->multiply(&strip);
        return;
    }
    if (strip.rows > FEW) {
        strip.y = gate;
        level->multiply(&strip);
        strip.y = up;
        strip.panels =
            (const char *)strip.panels + slm_cpu_strip_bytes(strip.inner, strip.half);
        level->multiply(&strip);
        return;
    }
    strip.y = both; /* few rows: more sums at once than one panel has */
    strip.ldy = strip.cols = BOTH;
    level->multiply(&strip);
    for (size_t i = 0; i < strip.rows; i++) {
        memcpy(gate + i * SLM_CPU_WIDTH, both + i * BOTH, sizeof(float[SLM_CPU_WIDTH]));
        memcpy(up + i * SLM_CPU_WIDTH, both + i * BOTH + SLM_CPU_WIDTH,
               sizeof(float[SLM_CPU_WIDTH]));
    }
}

/* Columns [of.first, of.end) of h = act(x w^T), at most ACTIVATION_ROWS rows: panel by
 * panel, gate and up side by side. */
static void activated_tile(const slm_handle *handle, const slm_cpu_panels *w,
                           size_t part, range of, size_t rows, slm_cpu_matrix x,
                           slm_cpu_matrix h)
{
    float gate[ACTIVATION_ROWS * SLM_CPU_WIDTH] __attribute__((aligned(64)));
    float up[ACTIVATION_ROWS * SLM_CPU_WIDTH] __attribute__((aligned(64)));

    for (size_t col = of.first; col < of.end; col += SLM_CPU_WIDTH) {
        const size_t cols = of.end - col < SLM_CPU_WIDTH ? of.end - col : SLM_CPU_WIDTH;
        const slm_cpu_strip strip = {
            .rows = rows,
            .inner = w->inner,
            .cols = SLM_CPU_WIDTH,
            .x = x.data,
            .ldx = x.ld,
            .panels =
                slm_cpu_panel_at(w, part, col / SLM_CPU_WIDTH * (w->paired ? 2 : 1)),
            .half = w->half};

        gate_and_up(handle, strip, w->paired, gate, up);
        slm_cpu_activate(handle, rows * SLM_CPU_WIDTH, gate, up, gate);
        for (size_t i = 0; i < rows; i++)
            slm_cpu_copy_row(slm_cpu_row(h, i) + col, gate + i * SLM_CPU_WIDTH, cols);
    }
}

/* The same for several pairs of panels at once: x, which a level of tiles lays out anew
 * for each product, is read once for all of them. */
static void activated_group(const slm_handle *handle, const slm_cpu_panels *w,
                            size_t part, range of, size_t rows, slm_cpu_matrix x,
                            slm_cpu_matrix h)
{
    enum { MOST = SLM_CPU_AMX_GROUP * BOTH };
    const size_t step = level_of(handle)->group * SLM_CPU_WIDTH;
    float sums[ACTIVATION_ROWS * MOST] __attribute__((aligned(64)));

    for (size_t col = of.first; col < of.end; col += step) {
        const size_t left = of.end - col, cols = left < step ? left : step;
        const size_t panels = 2 * slm_cpu_ceil_div(cols, SLM_CPU_WIDTH);

        level_of(handle)->multiply(&(slm_cpu_strip){
            .rows = rows,
            .inner = w->inner,
            .cols = panels * SLM_CPU_WIDTH,
            .x = x.data,
            .ldx = x.ld,
            .panels = slm_cpu_panel_at(w, part, col / SLM_CPU_WIDTH * 2),
            .y = sums,
            .ldy = MOST,
            .half = w->half});
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < cols; j += SLM_CPU_WIDTH) {
                float *gate = sums + i * MOST + 2 * j;
                const size_t have = cols - j < SLM_CPU_WIDTH ? cols - j : SLM_CPU_WIDTH;

                slm_cpu_activate(handle, have, gate, gate + SLM_CPU_WIDTH,
                                 slm_cpu_row(h, i) + col + j);
            }
    }
}

void slm_cpu_activated(const slm_handle *handle, const slm_cpu_panels *w, size_t part,
                       range of, size_t rows, slm_cpu_matrix x, slm_cpu_matrix h)
{
    const size_t n = slm_cpu_ceil_div(rows, ACTIVATION_ROWS);
    const int grouped = w->half && w->paired && level_of(handle)->group > 1;

    for (size_t i = 0; i < n; i++) {
        const range r = part_of(rows, 1, n, i);
        const size_t count = r.end - r.first;
        const slm_cpu_matrix from = {slm_cpu_row(x, r.first), x.ld};
        const slm_cpu_matrix to = {slm_cpu_row(h, r.first), h.ld};

        if (grouped)
            activated_group(handle, w, part, of, count, from, to);
        else
            activated_tile(handle, w, part, of, count, from, to);
        slm_cpu_round_rows(handle, count, of.end - of.first, to.data + of.first, to.ld);
    }
}
