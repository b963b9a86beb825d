/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/qb_sift.h - the lower ends of the columns of r = alpha - s. */
#ifndef SLM_CPU_QB_SIFT_H
#define SLM_CPU_QB_SIFT_H

#include "balance.h"

enum { SLM_CPU_SLABS = 16 };

/* What a slab of rows kept, row by row. */
typedef struct slm_cpu_kept {
    uint32_t *column;
    float *score;
    uint32_t *per_column; /* [n]: counts, then where the next of a column goes */
    size_t used;
    int full;  /* there was no room for all                                    */
    int wrong; /* a score is NaN or infinite                                   */
} slm_cpu_kept;

/* Both halves of an r that was kept. */
typedef struct slm_cpu_halves {
    float alpha;
    float score;
} slm_cpu_halves;

/* Workspace; start and sorted are also the result. */
typedef struct slm_cpu_sieve {
    size_t *sampled;             /* [sample] rows                                  */
    float *sampled_alpha;        /* [sample]                                       */
    const float **sampled_score; /* [sample]                                       */
    int32_t *strips;             /* [sample, n and a strip]                        */
    float *pivot;                /* [n]                                            */
    size_t *row_end;             /* [T]     of the kept of its slab                */
    size_t *start;               /* [n + 1] of the kept of a column                */
    slm_cpu_halves *sorted;      /* [slabs, room]  the kept, by column             */
    slm_cpu_kept slab[SLM_CPU_SLABS]; /* room each                                   */
    size_t slabs;
    size_t room; /* 0: sifting is not worth it */
} slm_cpu_sieve;

void slm_cpu_take_sieve(slm_cpu_arena *arena, const slm_config *config, size_t rows,
                        slm_cpu_sieve *at);

/* All cutoffs of the batch; and where *sifted becomes 1, of every column j a lower end
 * of the order of exact r, sorted[start[j]] .. sorted[start[j + 1] - 1], in any order.
 * It nearly always has more than `nth` elements. Returns not 0 when a score is NaN or
 * infinite.                                                                      Q1 */
int slm_cpu_sift(const slm_handle *handle, const slm_cpu_batch *batch, size_t nth,
                 slm_cpu_sieve *at, int *sifted);

#endif
