/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/permute.cu - grouping of (token, slot) pairs by expert: a counting sort.      L5
 *
 * The pairs are cut into chunks. `table` [chunks, n] holds the pairs of each chunk and
 * expert, then how many pairs of the expert lie in chunks before; so every chunk can be
 * placed by itself, in order. Integers only: the same result for any schedule. */
#include "element.cuh"
#include "kernels.h"

enum { CHUNK = 256, ALL = -1 };

/* One warp counts one chunk.
 *
 *   launch   grid chunks, block 32, shared n int
 *   table    [chunks, n] out */
__global__ void __launch_bounds__(32)
    permute_count(const int32_t *ids, int pairs, int n, int *table)
{
    SLM_SHARED_DYNAMIC(int, count);
    int *row = table + (size_t)blockIdx.x * (size_t)n;
    const int lane = (int)threadIdx.x;
    const int begin = (int)blockIdx.x * CHUNK;
    const int end = pairs - begin < CHUNK ? pairs : begin + CHUNK;

    for (int e = lane; e < n; e += 32) count[e] = 0;
    __syncthreads();
    for (int i = begin + lane; i < end; i += 32) atomicAdd(&count[ids[i]], 1);
    __syncthreads();
    for (int e = lane; e < n; e += 32) row[e] = count[e];
}

/* One thread sums one expert over the chunks, in order.
 *
 *   launch   grid ceil(n / 128), block 128
 *   table    [chunks, n] in: pairs of the chunk; out: pairs of the chunks before
 *   counts   [n] out */
__global__ void __launch_bounds__(128)
    permute_chunks(int chunks, int n, int *table, int64_t *counts)
{
    const int e = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    int before = 0;

    if (e >= n) return;
    for (int c = 0; c < chunks; c++) {
        const size_t at = (size_t)c * (size_t)n + (size_t)e;
        const int here = table[at];

        table[at] = before;
        before += here;
    }
    counts[e] = before;
}

/* One warp adds up the experts: offsets[e] = sum of counts before e.
 *
 *   launch   grid 1, block 32
 *   counts   [n]; offsets [n + 1] out */
__global__ void __launch_bounds__(32)
    permute_offsets(int n, const int64_t *counts, int64_t *offsets)
{
    const int lane = (int)threadIdx.x;
    int64_t carry = 0;

    for (int first = 0; first < n; first += 32) {
        const int e = first + lane;
        const int64_t own = e < n ? counts[e] : 0;
        int64_t sum = own;

        for (int d = 1; d < 32; d *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, (unsigned)d);

            if (lane >= d) sum += other;
        }
        if (e < n) offsets[e] = carry + sum - own;
        carry += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) offsets[n] = carry;
}

/* One warp places one chunk, 32 pairs at a time: a pair goes behind those of its expert
 * in chunks before, in this chunk before, and in lanes before.
 *
 *   launch   grid chunks, block 32, shared n int
 *   order    [pairs] out */
__global__ void __launch_bounds__(32)
    permute_place(const int32_t *ids, int pairs, int n, const int *table,
                  const int64_t *offsets, int64_t *order)
{
    SLM_SHARED_DYNAMIC(int, taken);
    const int *row = table + (size_t)blockIdx.x * (size_t)n;
    const int lane = (int)threadIdx.x;
    const int begin = (int)blockIdx.x * CHUNK;
    const int end = pairs - begin < CHUNK ? pairs : begin + CHUNK;

    for (int e = lane; e < n; e += 32) taken[e] = row[e];
    for (int first = begin; first < end; first += 32) {
        const int i = first + lane;
        const int e =
            i < end ? ids[i] : ALL; /* lanes behind the end match each other */
        const unsigned same = __match_any_sync(0xffffffffu, e);
        const int rank = __popc(same & ((1u << lane) - 1));
        int place = 0;

        __syncwarp();
        if (i < end) place = taken[e] + rank;
        __syncwarp();
        if (i < end && rank == 0) taken[e] = place + __popc(same);
        if (i < end) order[offsets[e] + place] = i;
    }
}

static size_t chunks_of(size_t pairs)
{
    return (pairs + CHUNK - 1) / CHUNK;
}

extern "C" size_t slm_gpu_group_space(size_t pairs, size_t n)
{
    return chunks_of(pairs) * n * sizeof(int);
}

/* 48 KiB is what a kernel may have without asking; 227 KiB what there is. */
static cudaError_t ask_for_shared(size_t bytes)
{
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaError_t error = cudaSuccess;

    if (bytes <= 48 << 10) return cudaSuccess;
    error = cudaFuncSetAttribute((const void *)permute_count, most, (int)bytes);
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute((const void *)permute_place, most, (int)bytes);
}

extern "C" slm_status slm_gpu_group(size_t pairs, size_t n, const int32_t *ids,
                                    int64_t *counts, int64_t *offsets, int64_t *order,
                                    void *workspace, cudaStream_t stream)
{
    const size_t shared = n * sizeof(int), chunks = chunks_of(pairs);
    int *table = (int *)workspace;

    if (pairs > INT32_MAX - CHUNK || shared > 227 << 10) return SLM_ERR_UNSUPPORTED;
    if (ask_for_shared(shared) != cudaSuccess) return SLM_ERR_INTERNAL;
    if (chunks)
        SLM_LAUNCH_SHARED(permute_count, (unsigned)chunks, 32, shared, stream, ids,
                          (int)pairs, (int)n, table);
    SLM_LAUNCH(permute_chunks, (unsigned)((n + 127) / 128), 128, stream, (int)chunks,
               (int)n, table, counts);
    SLM_LAUNCH(permute_offsets, 1, 32, stream, (int)n, counts, offsets);
    if (chunks)
        SLM_LAUNCH_SHARED(permute_place, (unsigned)chunks, 32, shared, stream, ids,
                          (int)pairs, (int)n, table, offsets, order);
    return cudaGetLastError() == cudaSuccess ? SLM_OK : SLM_ERR_INTERNAL;
}

extern "C" size_t slm_gpu_permute_space(const slm_config *config, const slm_call *call)
{
    return slm_gpu_group_space(call->n_tokens * config->top_k, config->n_experts);
}

extern "C" slm_status slm_gpu_permute(slm_handle *handle, const slm_permute_args *args,
                                      slm_error *error)
{
    const slm_config *config = &handle->config;
    const slm_status status =
        slm_gpu_group(args->call.n_tokens * config->top_k, config->n_experts,
                      (const int32_t *)args->ids.data, (int64_t *)args->counts.data,
                      (int64_t *)args->offsets.data, (int64_t *)args->order.data,
                      args->call.workspace, slm_gpu_stream(&args->call));

    return status ? slm_gpu_failed(SLM_OP_permute, status, error) : SLM_OK;
}
