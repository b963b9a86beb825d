/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native_products.c - products by packed weights, with what is done to them before
 * they leave the cache: the activation, and the rounding of what is stored in bf16. */
#include "cut.h"
#include "native.h"

enum {
    ACTIVATION_ROWS = 192, /* of a tile of gate and up                     */
    MOST_ASKED = 2048,     /* bytes, while a row of it is activated        */
    FEW = 16,              /* rows whose gate and up are read at once, ... */
    TOGETHER = 2           /* ... so many panels of each                   */
};

static const slm_cpu_level *level_of(const slm_handle *handle)
{
    return handle->native->level;
}

/* Columns from panel `first` of a part on. */
static slm_cpu_strip strip_of(const slm_cpu_panels *w, size_t part, size_t first,
                              size_t cols, size_t rows, slm_cpu_acts x)
{
    return (slm_cpu_strip){.rows = rows,
                           .inner = w->inner,
                           .cols = cols,
                           .x = x.f32,
                           .x16 = x.bf16,
                           .ldx = x.ld,
                           .panels = slm_cpu_panel_at(w, part, first),
                           .half = w->half};
}

void slm_cpu_product(const slm_handle *handle, const slm_cpu_panels *w, size_t part,
                     range of, size_t rows, slm_cpu_acts x, slm_cpu_matrix y, int add)
{
    slm_cpu_strip strip =
        strip_of(w, part, of.first / SLM_CPU_WIDTH, of.end - of.first, rows, x);

    strip.y = y.data;
    strip.ldy = y.ld;
    strip.add = add;
    level_of(handle)->multiply(&strip);
}

/* Columns [of.first, of.end) of y, which begins with them, by way of sums. */
static void narrowed_tile(const slm_handle *handle, slm_cpu_strip strip, size_t left,
                          slm_cpu_acts y)
{
    float sums[SLM_CPU_ACROSS * SLM_CPU_STORED] __attribute__((aligned(64)));

    strip.follows = left > strip.cols ? (left - strip.cols) / SLM_CPU_WIDTH *
                                            slm_cpu_strip_bytes(strip.inner, strip.half)
                                      : 0;
    strip.y = sums;
    strip.ldy = SLM_CPU_STORED;
    level_of(handle)->multiply(&strip);
    slm_cpu_store_rows(handle, strip.rows, strip.cols,
                       (slm_cpu_matrix){sums, SLM_CPU_STORED}, y);
}

void slm_cpu_stored_product(const slm_handle *handle, const slm_cpu_panels *w,
                            size_t part, range of, size_t rows, slm_cpu_acts x,
                            slm_cpu_acts y)
{
    const size_t blocks = slm_cpu_ceil_div(rows, SLM_CPU_ACROSS);

    if (y.f32) {
        const slm_cpu_matrix to = {y.f32, y.ld};

        slm_cpu_product(handle, w, part, of, rows, x, to, 0);
        slm_cpu_store_rows(handle, rows, of.end - of.first, to, y);
        return;
    }
    for (size_t i = 0; i < blocks; i++) {
        const range r = part_of(rows, 1, blocks, i);

        for (size_t col = of.first; col < of.end; col += SLM_CPU_STORED) {
            const size_t left = of.end - col;

            narrowed_tile(handle,
                          strip_of(w, part, col / SLM_CPU_WIDTH,
                                   left < SLM_CPU_STORED ? left : SLM_CPU_STORED,
                                   r.end - r.first, slm_cpu_acts_at(x, r.first, 0)),
                          left, slm_cpu_acts_at(y, r.first, col - of.first));
        }
    }
}

/* ---- gate, up and the activation ---- */

/* Gate and up sums of one panel each, [rows, 32] both. The panel of up may have been
 * asked for. */
static void gate_and_up(const slm_handle *handle, slm_cpu_strip strip, int paired,
                        int up_is_asked, float *gate, float *up)
{
    const slm_cpu_level *level = level_of(handle);
    const size_t bytes = slm_cpu_strip_bytes(strip.inner, strip.half);
    const size_t follows = strip.follows;

    strip.ldy = SLM_CPU_WIDTH;
    if (paired) {
        strip.y = gate;
        strip.follows = up_is_asked ? 0 : bytes + follows;
        level->multiply(&strip);
        strip.follows = follows;
        strip.asked = 1;
        strip.panels = (const char *)strip.panels + bytes;
    }
    strip.y = up;
    level->multiply(&strip);
}

/* Columns of h, as they are stored, from tiles of gate and up; gate's, at `sums`, may be
 * overwritten. */
static void activate_tile(const slm_handle *handle, size_t cols,
                          const slm_cpu_gates *of, float *sums, slm_cpu_acts h)
{
    const slm_config *config = &handle->config;
    const int whole = config->expert == SLM_EXPERT_SITU && cols == SLM_CPU_WIDTH;
    const slm_cpu_matrix from = {sums, SLM_CPU_WIDTH};

    if (whole && h.bf16) {
        handle->kernels->situ_rows_half(of, h.bf16, h.ld);
        return;
    }
    if (whole && config->dtype == SLM_F32) {
        handle->kernels->situ_rows(of, h.f32, h.ld);
        return;
    }
    slm_cpu_activate(handle, of->rows * SLM_CPU_WIDTH, of->gate, of->up, sums);
    slm_cpu_store_rows(handle, of->rows, cols, from, h);
    for (size_t i = 0; h.f32 && i < of->rows; i++)
        slm_cpu_copy_row(h.f32 + i * h.ld, slm_cpu_row(from, i), cols, sizeof *sums);
}

static slm_cpu_gates gates_of(const slm_handle *handle, size_t rows, const float *gate,
                              const float *up)
{
    return (slm_cpu_gates){.rows = rows,
                           .gate = gate,
                           .up = up,
                           .beta_gate = handle->config.beta_gate,
                           .beta_up = handle->config.beta_up};
}

/* Columns [of.first, of.end) of h = act(x w^T), at most ACTIVATION_ROWS rows: panel by
 * panel, gate and up side by side. What is read next is asked for by the tiles, or, of
 * bf16, whose tiles of a short inner index are over too soon, by the activation. */
static void activated_tile(const slm_handle *handle, const slm_cpu_panels *w,
                           size_t part, range of, size_t rows, slm_cpu_acts x,
                           slm_cpu_acts h)
{
    const size_t panels = w->paired ? 2 : 1, bytes = panels * slm_cpu_panel_bytes(w);
    const int asks = w->half && h.bf16 && handle->config.expert == SLM_EXPERT_SITU &&
                     bytes <= rows * MOST_ASKED;
    float gate[ACTIVATION_ROWS * SLM_CPU_WIDTH] __attribute__((aligned(64)));
    float up[ACTIVATION_ROWS * SLM_CPU_WIDTH] __attribute__((aligned(64)));

    for (size_t col = of.first; col < of.end; col += SLM_CPU_WIDTH) {
        const size_t left = of.end - col, next = left > SLM_CPU_WIDTH ? bytes : 0;
        slm_cpu_strip strip =
            strip_of(w, part, col / SLM_CPU_WIDTH * panels, SLM_CPU_WIDTH, rows, x);
        slm_cpu_gates tile = gates_of(handle, rows, gate, up);

        strip.asked = col > of.first;
        strip.follows = asks ? 0 : next;
        gate_and_up(handle, strip, w->paired, asks && strip.asked, gate, up);
        tile.ahead = (const char *)strip.panels + bytes;
        tile.bytes = asks ? next : 0;
        activate_tile(handle, left < SLM_CPU_WIDTH ? left : SLM_CPU_WIDTH, &tile, gate,
                      slm_cpu_acts_at(h, 0, col - of.first));
    }
}

/* The same of at most FEW rows: several panels at once, which are streams of weights. */
static void activated_few(const slm_handle *handle, const slm_cpu_panels *w,
                          size_t part, range of, size_t rows, slm_cpu_acts x,
                          slm_cpu_acts h)
{
    const size_t each = w->paired ? 2 : 1, apart = each * SLM_CPU_WIDTH;
    float sums[FEW * TOGETHER * 2 * SLM_CPU_WIDTH] __attribute__((aligned(64)));
    float gate[FEW * SLM_CPU_WIDTH] __attribute__((aligned(64)));
    float up[FEW * SLM_CPU_WIDTH] __attribute__((aligned(64)));
    const slm_cpu_gates tile = gates_of(handle, rows, gate, up);

    for (size_t first = of.first; first < of.end; first += TOGETHER * SLM_CPU_WIDTH) {
        const size_t left = slm_cpu_ceil_div(of.end - first, SLM_CPU_WIDTH);
        const size_t n = left < TOGETHER ? left : TOGETHER;
        slm_cpu_strip strip =
            strip_of(w, part, first / SLM_CPU_WIDTH * each, n * apart, rows, x);

        strip.asked = first > of.first;
        strip.follows = (left - n < n ? left - n : n) * each * slm_cpu_panel_bytes(w);
        strip.y = sums;
        strip.ldy = TOGETHER * 2 * SLM_CPU_WIDTH;
        level_of(handle)->multiply(&strip);
        for (size_t p = 0; p < n; p++) {
            const size_t col = first + p * SLM_CPU_WIDTH;
            const size_t cols =
                of.end - col < SLM_CPU_WIDTH ? of.end - col : SLM_CPU_WIDTH;
            const float *from = sums + p * apart;

            for (size_t i = 0; i < rows; i++, from += strip.ldy) {
                memcpy(gate + i * SLM_CPU_WIDTH, from, sizeof(float[SLM_CPU_WIDTH]));
                memcpy(up + i * SLM_CPU_WIDTH, from + apart - SLM_CPU_WIDTH,
                       sizeof(float[SLM_CPU_WIDTH]));
            }
            activate_tile(handle, cols, &tile, gate,
                          slm_cpu_acts_at(h, 0, col - of.first));
        }
    }
}

void slm_cpu_activated(const slm_handle *handle, const slm_cpu_panels *w, size_t part,
                       range of, size_t rows, slm_cpu_acts x, slm_cpu_acts h)
{
    const size_t n = slm_cpu_ceil_div(rows, ACTIVATION_ROWS);

    if (rows <= FEW) {
        activated_few(handle, w, part, of, rows, x, h);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const range r = part_of(rows, 1, n, i);

        activated_tile(handle, w, part, of, r.end - r.first,
                       slm_cpu_acts_at(x, r.first, 0), slm_cpu_acts_at(h, r.first, 0));
    }
}
