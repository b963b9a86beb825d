/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/subjects.cu - small right kernels that test_emu.c launches. */
#include "../../device.h"
#include "subjects.h"

#define FULL 0xffffffffu

__global__ void warp_answers(const int *in, int *out)
{
    const int lane = (int)threadIdx.x;
    const int v = in[lane];
    const unsigned mine = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    int sum = v;

    out[ANSWER_INDEX * 32 + lane] = __shfl_sync(FULL, v, 3, 8);
    out[ANSWER_XOR * 32 + lane] = __shfl_xor_sync(FULL, v, 5);
    out[ANSWER_UP * 32 + lane] = __shfl_up_sync(FULL, v, 2, 16);
    out[ANSWER_DOWN * 32 + lane] = __shfl_down_sync(FULL, v, 3);
    out[ANSWER_BALLOT * 32 + lane] = (int)__ballot_sync(FULL, v > 10);
    out[ANSWER_MATCH * 32 + lane] = (int)__match_any_sync(FULL, v);
    out[ANSWER_ADD * 32 + lane] = __reduce_add_sync(FULL, v);
    out[ANSWER_MIN * 32 + lane] = __reduce_min_sync(FULL, v);
    for (int d = 8; d > 0; d /= 2) sum += __shfl_xor_sync(mine, sum, d);
    out[ANSWER_HALVES * 32 + lane] = sum;

    const int any = __any_sync(mine, v > 10);
    const int all = __all_sync(mine, v > 10);

    out[ANSWER_ANY_ALL * 32 + lane] = 2 * any + all;
}

extern "C" void subject_warp(const int *in, int *out, cudaStream_t stream)
{
    SLM_LAUNCH(warp_answers, 1, 32, stream, in, out);
}

__global__ void add_to(int n, int add, const int *in, int *out)
{
    const int i = (int)threadIdx.x;

    if (i < n) out[i] = in[i] + add;
}

extern "C" void subject_add(int n, int add, const int *in, int *out,
                            cudaStream_t stream)
{
    SLM_LAUNCH(add_to, 1, (unsigned)(n + 31) / 32 * 32, stream, n, add, in, out);
}

__global__ void draw_ticket(int *counter, int *out)
{
    if (threadIdx.x == 0) out[blockIdx.x] = atomicAdd(counter, 1);
}

extern "C" void subject_tickets(int blocks, int *counter, int *out, cudaStream_t stream)
{
    SLM_LAUNCH(draw_ticket, (unsigned)blocks, 32, stream, counter, out);
}

__global__ void sum_shared(int n, int *out)
{
    SLM_SHARED_DYNAMIC(int, number);
    int sum = 0;

    for (int i = (int)threadIdx.x; i < n; i += 64) number[i] = i;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 0; i < n; i++) sum += number[i];
    out[0] = sum;
}

extern "C" void subject_shared(int n, int *out, cudaStream_t stream)
{
    SLM_LAUNCH_SHARED(sum_shared, 1, 64, (size_t)n * sizeof(int), stream, n, out);
}

extern "C" cudaError_t subject_allow_shared(size_t bytes)
{
    return cudaFuncSetAttribute((const void *)sum_shared,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)bytes);
}

namespace wmma = nvcuda::wmma;

/* Products that differ in bit 2 of their number. */
template <class A, class B>
__device__ void products(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *out)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, A> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, B> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;

    wmma::fill_fragment(sums, 0.0f);
    wmma::load_matrix_sync(left, a, 16);
    wmma::load_matrix_sync(right, b, 16);
    wmma::mma_sync(sums, left, right, sums);
    wmma::mma_sync(sums, left, right, sums);
    wmma::store_matrix_sync(out, sums, 16, wmma::mem_row_major);
    wmma::store_matrix_sync(out + 4 * 256, sums, 16, wmma::mem_col_major);
}

__global__ void all_products(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *out)
{
    products<wmma::row_major, wmma::row_major>(a, b, out);
    products<wmma::col_major, wmma::row_major>(a, b, out + 256);
    products<wmma::row_major, wmma::col_major>(a, b, out + 2 * 256);
    products<wmma::col_major, wmma::col_major>(a, b, out + 3 * 256);
}

extern "C" void subject_products(const void *a, const void *b, float *out,
                                 cudaStream_t stream)
{
    SLM_LAUNCH(all_products, 1, 32, stream, (const __nv_bfloat16 *)a,
               (const __nv_bfloat16 *)b, out);
}

__global__ void nothing(int)
{
}

extern "C" void subject_threads(unsigned threads, cudaStream_t stream)
{
    SLM_LAUNCH(nothing, 1, threads, stream, 0);
}
