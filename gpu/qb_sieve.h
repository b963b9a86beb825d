/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/qb_sieve.h - one pass over many rows in the place of a radix pass a digit.
 *
 * A sample of the rows says between which two values of r each column's element i* very
 * likely lies. One pass over all rows counts what is below them and keeps what is
 * between; the element is then found among the kept. No answer depends on the sample: a
 * column whose element is not among the kept, or of which too many were, is not done and
 * goes through all the passes. */
#ifndef SLM_GPU_QB_SIEVE_H
#define SLM_GPU_QB_SIEVE_H

#include "qb_select.cuh"

/* Pieces of workspace. */
struct slm_gpu_qb_sieve {
    float *bracket;   /* [n, 2] least and largest r that are kept, as binary32 */
    unsigned *below;  /* [n] elements below them                               */
    unsigned *inside; /* [n] elements between them                             */
    unsigned *done;   /* [n] 1: the candidate is written                       */
    float2 *kept;     /* [n, capacity] alpha and score, in no order            */
    size_t capacity;  /* 0: too few rows, no sieve                             */
    size_t stride;    /* a row of so many is in the sample                     */
};

/* The sieve of a call, from the arena. */
void slm_gpu_qb_lay_sieve(slm_gpu_arena *arena, const slm_config *config, size_t rows,
                          slm_gpu_qb_sieve *sieve);

/* Candidates [n, 2] of all columns that are done; a tie of one enters state->pending. */
slm_status slm_gpu_qb_pass_sieve(const slm_gpu_qb_batch *of,
                                 const slm_gpu_qb_sieve *sieve, double *candidate,
                                 slm_gpu_state *state, cudaStream_t stream);

#endif
