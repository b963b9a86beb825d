/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/topk.h - what selection and balancing do row by row: a table for each
 * instruction set. All give the same bits: no sum is taken in another order. */
#ifndef SLM_CPU_TOPK_H
#define SLM_CPU_TOPK_H

#include "internal.h"

enum {
    SLM_CPU_LANES = 16, /* most rows of a call of choose, most columns of pivots    */
    SLM_CPU_KEPT = 33,  /* most experts that choose finds of a row                  */
    SLM_CPU_STRIP = 16, /* columns whose bins lie together                            */
    SLM_CPU_PIECE = 64, /* most columns of a call of bins                             */
    SLM_CPU_BEYOND = 4  /* elements that a list of columns needs beyond its last    */
};

/* What choose leaves of a row. */
typedef enum slm_cpu_found {
    SLM_FOUND,      /* its best experts                                           */
    SLM_FOUND_NOT,  /* nothing: too many are kept or too many equal the last      */
    SLM_FOUND_WRONG /* nothing: a score is NaN or infinite                        */
} slm_cpu_found;

/* Rows to choose from, and the best `keep` of each. */
typedef struct slm_cpu_chooser {
    const float *score[SLM_CPU_LANES]; /* [n] each                                    */
    const float *ahead[SLM_CPU_LANES]; /* [n] each: a row that is read later, or NULL */
    const float *bias;                 /* [n]                                         */
    size_t rows;                       /* at most the table's lanes                   */
    size_t n;
    size_t keep; /* 1 .. n                                                            */
    /* Out: best first, then key of the last, never -0. */
    int32_t ids[SLM_CPU_LANES][SLM_CPU_KEPT];
    float last[SLM_CPU_LANES];
    slm_cpu_found found[SLM_CPU_LANES];
} slm_cpu_chooser;

/* A sample of rows, and the r = RN32(alpha - score) of some columns of it. */
typedef struct slm_cpu_sample {
    const float *const *score; /* [rows] of [n]                                       */
    const float *alpha;        /* [rows]                                              */
    size_t rows;
    int32_t *strip; /* scratch [rows, lanes]                                          */
} slm_cpu_sample;

/* Where a bin is looked for in binary32: position (alpha - score - low) per_width. */
typedef struct slm_cpu_scale {
    float low;
    float per_width;
    float count; /* of the bins                                                       */
    float doubt; /* a position nearer to an integer leaves the bin open; below 1/2    */
} slm_cpu_scale;

typedef struct slm_cpu_topk {
    size_t lanes;
    /* R2, for the rows of a chooser. */
    void (*choose)(slm_cpu_chooser *at);
    /* Columns of a row with RN32(alpha - score) <= most, ascending; how many. `at` has
     * n + SLM_CPU_BEYOND elements. */
    size_t (*below)(float alpha, const float *score, const float *most, size_t n,
                    uint32_t *at);
    /* most [cols] of `cols` columns from `first` on, at most the lanes: the least value
     * that `rank` of the sample's r are not above. 1 <= rank <= rows. */
    void (*pivots)(const slm_cpu_sample *from, size_t first, size_t cols, size_t rank,
                   float *most);
    /* Bins of at most SLM_CPU_PIECE columns of a row by binary32; bit j of the result
     * is set where that leaves the bin of column j open. Strips of SLM_CPU_STRIP bins
     * lie `step` elements apart. At most 65535 bins. */
    uint64_t (*bins)(const slm_cpu_scale *scale, float alpha, const float *score,
                     size_t n, uint16_t *bin, size_t step);
} slm_cpu_topk;

/* topk_plain.c and its likes; NULL where the compiler did not make it. */
const slm_cpu_topk *slm_cpu_topk_plain(void);
const slm_cpu_topk *slm_cpu_topk_avx2(void);
const slm_cpu_topk *slm_cpu_topk_avx512(void);

/* select.c: the table for an instruction set, or the best one below that is there. */
const slm_cpu_topk *slm_cpu_topk_of(slm_cpu_isa isa);

#endif
