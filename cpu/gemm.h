/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm.h - products of the backend `cpu`: packed weights, and a table for each
 * instruction set.
 *
 * Whatever the shape, the cut and the thread, an element of a product is one chain of
 * additions over the inner index, ascending, that begins at 0 or, where products are
 * added, at what y holds. So its bits depend on the instruction set alone: FMA or not.
 * Tiles of bf16 add 32 products at a time, in their own order: gemm_amx.h. */
#ifndef SLM_CPU_GEMM_H
#define SLM_CPU_GEMM_H

#include "internal.h"

enum {
    SLM_CPU_WIDTH = 32,  /* columns of a panel                                  */
    SLM_CPU_STEP = 32,   /* of the inner index: a panel of bf16 has whole ones   */
    SLM_CPU_ACROSS = 192 /* most rows of a block: they share a read of a panel  */
};

/* A weight [cols, inner] in panels of 32 columns, the last one filled with zeros.
 *
 *   binary32  [panels][inner][32]
 *   bf16      [panels][inner / 32, up][16][32][2]: the two of a pair lie together, as
 *             AMX tiles and the kernels for few rows both read them; the last 32 of the
 *             inner index are filled with zeros, too */
typedef struct slm_cpu_panels {
    char *data; /* of part 0; NULL where there is no such weight */
    size_t at;  /* the same, bytes from the beginning of all     */
    size_t cols;
    size_t inner;
    size_t step;  /* bytes of a part: all panels of one expert     */
    size_t parts; /* 1, or the experts                             */
    int half;     /* bf16                                          */
    int paired;   /* panel 2j is gate's j, panel 2j + 1 is up's j; cols counts gate's */
} slm_cpu_panels;

/* y = x w^T, or y += x w^T, for panels that lie one after another. */
typedef struct slm_cpu_strip {
    size_t rows;
    size_t inner;
    size_t cols; /* of y: up to 32 a panel, the last panel may have fewer */
    const float *x;
    const uint16_t *x16; /* instead, of bf16, at a level that takes_half */
    size_t ldx;
    const void *panels;
    size_t follows; /* bytes beyond these panels that this thread reads next */
    int asked;      /* the first panel has been asked for, as what follows   */
    float *y;
    size_t ldy;
    int half;
    int add;
} slm_cpu_strip;

/* Up to a panel's row of elements of `size`, a constant. So is the size of a whole one:
 * of another GCC makes `rep movs`, which took 12 % of a backward pass. */
static inline void slm_cpu_copy_row(void *to, const void *from, size_t cols,
                                    size_t size)
{
    if (cols == SLM_CPU_WIDTH)
        memcpy(to, from, SLM_CPU_WIDTH * size);
    else
        memcpy(to, from, cols * size);
}

/* What an instruction set offers. */
typedef struct slm_cpu_level {
    const char *name;
    slm_cpu_isa isa;
    slm_cpu_gemm *gemm;
    void (*multiply)(const slm_cpu_strip *strip);
    void (*round_half)(size_t count, float *values); /* to bf16, and back */
    /* Rows to bf16, `ld` elements from row to row. */
    void (*narrow)(size_t rows, size_t cols, slm_cpu_matrix from, uint16_t *to,
                   size_t ld);
    int takes_half; /* x of bf16, where the weights are   */
    int flushes;    /* what is below 2^-126 may become 0  */
} slm_cpu_level;

/* gemm_plain.c and its likes; NULL where the compiler did not make it. */
const slm_cpu_level *slm_cpu_level_plain(void);
const slm_cpu_level *slm_cpu_level_avx2(void);
const slm_cpu_level *slm_cpu_level_avx512(void);
const slm_cpu_level *slm_cpu_level_amx(void);
const slm_cpu_level *slm_cpu_level_amx_model(void);

/* dispatch.c: the level that SLM_CPU_LEVEL names, or the best of this CPU, never the
 * model; NULL, and the error says why, when it is unknown or this CPU has it not. */
const slm_cpu_level *slm_cpu_find_level(slm_error *error);

/* Weights of a handle of `cpu`: pack.c. */
typedef struct slm_cpu_packed {
    slm_cpu_panels router;
    slm_cpu_panels down;
    slm_cpu_panels in; /* of the experts: gate and up paired, up alone, or the one */
    slm_cpu_panels out;
    slm_cpu_panels lift;
    slm_cpu_panels shared_in; /* gate and up paired, or up alone */
    slm_cpu_panels shared_out;
    slm_cpu_panels shared;
    float *gamma; /* [l], or NULL */
    slm_weights from;
    unsigned char
        *ready; /* [n] where experts are packed when first chosen, else NULL */
    void *memory;
    size_t bytes;
} slm_cpu_packed;

/* Pack all weights, or, where the experts would take more than a quarter of the
 * machine's memory, all but the experts. Frees what was packed before. */
slm_status slm_cpu_pack_weights(slm_cpu_packed *packed, const slm_config *config,
                                const slm_weights *weights, slm_error *error);

/* Address space of zeros, whose pages cost nothing before they are used; NULL without.
 * munmap() frees it. */
void *slm_cpu_reserve(size_t bytes);

/* Pack one expert if that has not been done. Not from two threads at once. */
void slm_cpu_pack_expert(slm_cpu_packed *packed, size_t expert);
void slm_cpu_free_packed(slm_cpu_packed *packed);

/* Panels of all columns; bytes of one panel; where a panel of a part begins. */
static inline size_t slm_cpu_n_panels(const slm_cpu_panels *w)
{
    return slm_cpu_ceil_div(w->cols, SLM_CPU_WIDTH) * (w->paired ? 2 : 1);
}

static inline size_t slm_cpu_strip_bytes(size_t inner, int half)
{
    const size_t whole = slm_cpu_ceil_div(inner, SLM_CPU_STEP) * SLM_CPU_STEP;

    return (half ? whole / 2 : inner) * SLM_CPU_WIDTH * 4;
}

static inline size_t slm_cpu_panel_bytes(const slm_cpu_panels *w)
{
    return slm_cpu_strip_bytes(w->inner, w->half);
}

static inline const void *slm_cpu_panel_at(const slm_cpu_panels *w, size_t part,
                                           size_t panel)
{
    return w->data + part * w->step + panel * slm_cpu_panel_bytes(w);
}

/* ---- rows become columns ---- */

typedef float slm_cpu_four __attribute__((vector_size(16)));

static inline slm_cpu_four slm_cpu_load_four(const float *from)
{
    slm_cpu_four v;

    memcpy(&v, from, sizeof v);
    return v;
}

/* to[k][j] = from[j][k] for 4 rows of 4. */
static inline void slm_cpu_transpose_four(const float *from, size_t ld, float *to)
{
    const slm_cpu_four a = slm_cpu_load_four(from), b = slm_cpu_load_four(from + ld);
    const slm_cpu_four c = slm_cpu_load_four(from + 2 * ld);
    const slm_cpu_four d = slm_cpu_load_four(from + 3 * ld);
    const slm_cpu_four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const slm_cpu_four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const slm_cpu_four ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const slm_cpu_four cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const slm_cpu_four out[] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5),
                                __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
                                __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5),
                                __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7)};

    for (size_t k = 0; k < 4; k++) memcpy(to + k * SLM_CPU_WIDTH, &out[k], sizeof *out);
}

/* A panel from `cols` rows of `depth` contiguous elements; other columns are zeros. */
static inline void slm_cpu_transpose(const float *from, size_t ld, size_t cols,
                                     size_t depth, float *to)
{
    enum { STEPS = 16 }; /* a line of the cache */
    const size_t whole = cols / 4 * 4;

    for (size_t first = 0; first < depth; first += STEPS) {
        const size_t end = depth - first < STEPS ? depth : first + STEPS;
        size_t k;

        for (size_t j = 0; j < whole; j += 4)
            for (k = first; k + 4 <= end; k += 4)
                slm_cpu_transpose_four(from + j * ld + k, ld,
                                       to + k * SLM_CPU_WIDTH + j);
        for (k = first; k < end; k++) {
            const size_t done = k < first + (end - first) / 4 * 4 ? whole : 0;

            for (size_t j = done; j < SLM_CPU_WIDTH; j++)
                to[k * SLM_CPU_WIDTH + j] = j < cols ? from[j * ld + k] : 0.0f;
        }
    }
}

#endif
