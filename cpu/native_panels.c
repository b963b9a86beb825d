/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native_panels.c - products x w^T of the common functions by packed weights.
 *
 * The functions that `cpu` shares with `cpu-blas` name a weight by its matrix. Where
 * the handle has packed that matrix, the panels are read instead: they need no
 * transposition, and by gemm.h the bits are the same, but for tiles of bf16. Where the
 * matrix is the binary32 copy of one of bf16, so are the elements of x: layer_backward
 * multiplies these weights by what was given or stored in bf16 alone. */
#include "native.h"

/* A weight in both forms. */
typedef struct both {
    slm_cpu_matrix matrix;
    ptrdiff_t step; /* of parts, in elements of the matrix */
    const slm_cpu_panels *panels;
    size_t second; /* 1: of a pair, the up part           */
} both;

/* 1, the part and the first column where `data` is a row of the weight. */
static int find_row(const both *w, const float *data, size_t *part, size_t *col)
{
    const uintptr_t from = (uintptr_t)w->matrix.data, at = (uintptr_t)data;
    const size_t size = w->panels->cols * w->matrix.ld;
    size_t offset;

    if (!w->matrix.data || !w->panels->data || at < from) return 0;
    offset = (at - from) / sizeof *data;
    *part = 0;
    if (w->panels->parts > 1) {
        if (w->step < (ptrdiff_t)size) return 0;
        *part = offset / (size_t)w->step;
        offset %= (size_t)w->step;
    }
    *col = offset / w->matrix.ld;
    return *part < w->panels->parts && offset < size && offset % w->matrix.ld == 0;
}

static void multiply(const slm_cpu_level *level, const both *w, size_t part, size_t col,
                     const slm_cpu_linear *of)
{
    const size_t apart = w->panels->paired ? 2 : 1;
    const size_t first = col / SLM_CPU_WIDTH;
    slm_cpu_strip strip = {.rows = of->rows,
                           .inner = of->inner,
                           .x = of->x.data,
                           .ldx = of->x.ld,
                           .ldy = of->y.ld,
                           .half = w->panels->half,
                           .add = (of->how & SLM_CPU_ADD) != 0};

    for (size_t j = 0; j < of->cols; j += strip.cols) {
        const size_t panel = (first + j / SLM_CPU_WIDTH) * apart + w->second;

        strip.cols = of->cols - j;
        if (apart > 1 && strip.cols > SLM_CPU_WIDTH) strip.cols = SLM_CPU_WIDTH;
        strip.panels = slm_cpu_panel_at(w->panels, part, panel);
        strip.y = of->y.data + j;
        level->multiply(&strip);
    }
}

int slm_cpu_by_panels(const slm_handle *handle, const slm_cpu_linear *of)
{
    const slm_cpu_weights *from = &handle->weights;
    const slm_cpu_packed *to = &handle->native->packed;
    const both list[] = {
        {from->router, 0, &to->router, 0},
        {from->down, 0, &to->down, 0},
        {from->gate, from->gate_step, &to->in, 0},
        {from->up, from->up_step, &to->in, (size_t)to->in.paired},
        {from->expert, from->expert_step, &to->in, 0},
        {from->out, from->out_step, &to->out, 0},
        {from->lift, 0, &to->lift, 0},
        {from->shared_gate, 0, &to->shared_in, 0},
        {from->shared_up, 0, &to->shared_in, (size_t)to->shared_in.paired},
        {from->shared_out, 0, &to->shared_out, 0},
        {from->shared, from->shared_step, &to->shared, 0},
    };

    if ((of->how & (SLM_CPU_BACK | SLM_CPU_OUTER)) || to->ready) return 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const both *w = &list[i];
        size_t part, col;

        if (of->inner != w->panels->inner || of->w.ld != w->matrix.ld ||
            !find_row(w, of->w.data, &part, &col) || col % SLM_CPU_WIDTH != 0 ||
            col + of->cols > w->panels->cols)
            continue;
        multiply(handle->native->level, w, part, col, of);
        return 1;
    }
    return 0;
}
