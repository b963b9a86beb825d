/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/subjects.h - small right kernels that test_emu.c launches. */
#ifndef SLM_GPU_EMU_SUBJECTS_H
#define SLM_GPU_EMU_SUBJECTS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One warp; out [WARP_ANSWERS, 32]: what each lane got from each operation. */
enum {
    ANSWER_INDEX,
    ANSWER_XOR,
    ANSWER_UP,
    ANSWER_DOWN,
    ANSWER_BALLOT,
    ANSWER_MATCH,
    ANSWER_ADD,
    ANSWER_MIN,
    ANSWER_HALVES, /* sums of lanes 0-15 and of lanes 16-31, masks apart */
    ANSWER_ANY_ALL,
    WARP_ANSWERS
};
void subject_warp(const int *in, int *out, cudaStream_t stream);

/* out[i] = in[i] + add, one block of n <= 1024 threads. */
void subject_add(int n, int add, const int *in, int *out, cudaStream_t stream);

/* Each of `blocks` blocks draws a ticket: out[block] = its turn. */
void subject_tickets(int blocks, int *counter, int *out, cudaStream_t stream);

/* out[0] = the sum of 0..n-1, through n ints of dynamic shared memory. */
void subject_shared(int n, int *out, cudaStream_t stream);
cudaError_t subject_allow_shared(size_t bytes);

/* By one warp on tensor cores: out [8, 16, 16] = 2 a b, made as a b + a b, for a and b
 * [16, 16] in bf16. Of the product's number bit 0 says that a lies by columns, bit 1
 * that b does, bit 2 that out does. */
enum { PRODUCTS = 8 };
void subject_products(const void *a, const void *b, float *out, cudaStream_t stream);

/* A block of that many threads, which does nothing. */
void subject_threads(unsigned threads, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
