/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/gather.cu - rows of experts: where each pair goes, and the copies there and back.
 *
 * Integers and copies only: the same result for any schedule. */
#include "eight.cuh"
#include "kernels.h"
#include "layer.h"

/* Rows of a chunk: about as many as an expert has on average, so that there are at most
 * twice as many rows as pairs, or n more; a power of two. */
static size_t chunk_of(size_t n, size_t pairs)
{
    enum { MOST = 128 };
    size_t chunk = 1;

    while (chunk < MOST && chunk * 2 <= pairs / n) chunk *= 2;
    return chunk;
}

void slm_gpu_take_groups(slm_gpu_arena *arena, size_t n, size_t rows, size_t k,
                         slm_gpu_groups *at)
{
    const size_t pairs = rows * k, used = pairs < n ? pairs : n;

    at->n = n;
    at->pairs = pairs;
    at->chunk = chunk_of(n, pairs);
    /* Each used expert wastes at most chunk - 1 rows. */
    at->chunks = (pairs + used * (at->chunk - 1)) / at->chunk;
    at->counts = (int64_t *)slm_gpu_take(arena, n, 1, 8);
    at->offsets = (int64_t *)slm_gpu_take(arena, n + 1, 1, 8);
    at->order = (int64_t *)slm_gpu_take(arena, rows, k, 8);
    at->first = (int64_t *)slm_gpu_take(arena, n + 1, 1, 8);
    at->place = (int64_t *)slm_gpu_take(arena, rows, k, 8);
    at->pair = (int64_t *)slm_gpu_take(arena, at->chunks, at->chunk, 8);
    at->expert = (int32_t *)slm_gpu_take(arena, at->chunks, 1, 4);
    at->pointers = (void **)slm_gpu_take(arena, 6, at->chunks, sizeof(void *));
    at->space = slm_gpu_take(arena, slm_gpu_group_space(pairs, n), 1, 1);
}

/* One warp adds up the chunks: first[e] = chunks of the experts before e.
 *
 *   launch   grid 1, block 32
 *   counts   [n]; first [n + 1] out */
__global__ void __launch_bounds__(32)
    gather_first(int n, int chunk, const int64_t *counts, int64_t *first)
{
    const int lane = (int)threadIdx.x;
    int64_t carry = 0;

    for (int begin = 0; begin < n; begin += 32) {
        const int e = begin + lane;
        const int64_t own = e < n ? (counts[e] + chunk - 1) / chunk : 0;
        int64_t sum = own;

        for (int d = 1; d < 32; d *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, (unsigned)d);

            if (lane >= d) sum += other;
        }
        if (e < n) first[e] = carry + sum - own;
        carry += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) first[n] = carry;
}

/* The expert of each chunk; 0 for those that none needs.
 *
 *   launch   grid ceil(chunks / 128), block 128
 *   first    [n + 1], ascending; expert [chunks] out */
__global__ void __launch_bounds__(128)
    gather_experts(int chunks, int n, const int64_t *first, int32_t *expert)
{
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    int low = 0, high = n; /* first[low] <= c < first[high], where c is needed */

    if (c >= chunks) return;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;

        if (first[middle] <= c)
            low = middle;
        else
            high = middle;
    }
    expert[c] = c < first[n] ? low : 0;
}

/* The row of each pair, and back.
 *
 *   launch   grid ceil(pairs / 128), block 128
 *   order    [pairs] sorted position to pair; offsets [n + 1], first [n + 1]
 *   place    [pairs] out; pair [rows of experts] out, holds -1 before */
__global__ void __launch_bounds__(128)
    gather_places(size_t pairs, int chunk, const int32_t *ids, const int64_t *order,
                  const int64_t *offsets, const int64_t *first, int64_t *place,
                  int64_t *pair)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= pairs) return;

    const int64_t of = order[i];
    const int e = ids[of];
    const int64_t row = first[e] * chunk + ((int64_t)i - offsets[e]);

    place[of] = row;
    pair[row] = of;
}

slm_status slm_gpu_make_groups(const slm_gpu_groups *at, const int32_t *ids,
                               cudaStream_t stream)
{
    const int chunk = (int)at->chunk, n = (int)at->n, chunks = (int)at->chunks;
    const slm_status status = slm_gpu_group(at->pairs, at->n, ids, at->counts,
                                            at->offsets, at->order, at->space, stream);

    if (status) return status;
    if (slm_gpu_expert_rows(at) > INT32_MAX) return SLM_ERR_UNSUPPORTED;
    SLM_LAUNCH(gather_first, 1, 32, stream, n, chunk, at->counts, at->first);
    if (at->pairs == 0) return slm_gpu_launched();
    cudaMemsetAsync(at->pair, 0xff, slm_gpu_expert_rows(at) * sizeof *at->pair, stream);
    SLM_LAUNCH(gather_experts, slm_gpu_blocks(at->chunks, 128), 128, stream, chunks, n,
               at->first, at->expert);
    SLM_LAUNCH(gather_places, slm_gpu_blocks(at->pairs, 128), 128, stream, at->pairs,
               chunk, ids, at->order, at->offsets, at->first, at->place, at->pair);
    return slm_gpu_launched();
}

/* A block fills one row of experts from the row of its token; zeros without a pair.
 *
 *   launch   grid rows of experts, block 32 .. 256
 *   pair     [rows of experts]; its token is pair / k
 *   from     [T, width], `ld` apart; to [rows of experts, width], `to_ld` apart */
template <class E>
__global__ void __launch_bounds__(256)
    gather_rows(const int64_t *pair, int k, int width, const E *from, size_t ld, E *to,
                size_t to_ld)
{
    const int64_t own = pair[blockIdx.x];
    const E *row = from + (size_t)(own < 0 ? 0 : own / k) * ld;
    E *target = to + blockIdx.x * to_ld;
    const int step = (int)blockDim.x * SLM_GPU_EIGHT;

    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += step) {
        float eight[SLM_GPU_EIGHT] = {};

        if (own >= 0) slm_gpu_load_eight(row + i, width - i, eight);
        slm_gpu_store_eight(target + i, width - i, eight);
    }
}

slm_status slm_gpu_gather(const slm_gpu_groups *at, size_t k, size_t width,
                          slm_gpu_matrix from, slm_gpu_matrix to, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)slm_gpu_expert_rows(at);
    const unsigned threads = slm_gpu_threads_of_eight(width);

    if (blocks == 0) return SLM_OK;
    if (width > INT32_MAX - 2048) return SLM_ERR_UNSUPPORTED;
    if (from.dtype == SLM_BF16)
        SLM_LAUNCH(gather_rows<__nv_bfloat16>, blocks, threads, stream, at->pair,
                   (int)k, (int)width, from.data, from.ld, to.data, to.ld);
    else
        SLM_LAUNCH(gather_rows<float>, blocks, threads, stream, at->pair, (int)k,
                   (int)width, from.data, from.ld, to.data, to.ld);
    return slm_gpu_launched();
}

/* A block copies one pair's row out, unless the verdict says no.
 *
 *   launch   grid pairs, block 32 .. 256
 *   place    [pairs]; from [rows of experts, width], `ld` apart
 *   to       [pairs, width], `to_ld` apart */
template <class E>
__global__ void __launch_bounds__(256)
    gather_deliver(const int64_t *place, int width, const E *from, size_t ld, E *to,
                   size_t to_ld, const slm_gpu_state *state)
{
    const E *row = from + (size_t)place[blockIdx.x] * ld;
    E *target = to + blockIdx.x * to_ld;
    const int step = (int)blockDim.x * SLM_GPU_EIGHT;

    if (slm_gpu_stopped(state)) return;
    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += step) {
        float eight[SLM_GPU_EIGHT];

        slm_gpu_load_eight(row + i, width - i, eight);
        slm_gpu_store_eight(target + i, width - i, eight);
    }
}

slm_status slm_gpu_deliver_pairs(const slm_handle *handle, const slm_gpu_groups *at,
                                 size_t width, slm_gpu_matrix from, void *to, size_t ld,
                                 cudaStream_t stream)
{
    const unsigned blocks = slm_gpu_blocks(at->pairs, 1);
    const unsigned threads = slm_gpu_threads_of_eight(width);

    if (!to || at->pairs == 0) return SLM_OK;
    if (!blocks || width > INT32_MAX - 2048) return SLM_ERR_UNSUPPORTED;
    if (from.dtype == SLM_BF16)
        SLM_LAUNCH(gather_deliver<__nv_bfloat16>, blocks, threads, stream, at->place,
                   (int)width, from.data, from.ld, to, ld, handle->state);
    else
        SLM_LAUNCH(gather_deliver<float>, blocks, threads, stream, at->place,
                   (int)width, from.data, from.ld, to, ld, handle->state);
    return slm_gpu_launched();
}

/* A block converts one row.
 *
 *   launch   grid rows, block 32 .. 256
 *   from, to [rows, cols], `ld`, `to_ld` apart */
template <class From, class To>
__global__ void __launch_bounds__(256)
    gather_convert(int cols, const From *from, size_t ld, To *to, size_t to_ld)
{
    const From *row = from + blockIdx.x * ld;
    To *target = to + blockIdx.x * to_ld;
    const int step = (int)blockDim.x * SLM_GPU_EIGHT;

    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < cols; i += step) {
        float eight[SLM_GPU_EIGHT];

        slm_gpu_load_eight(row + i, cols - i, eight);
        slm_gpu_store_eight(target + i, cols - i, eight);
    }
}

slm_status slm_gpu_convert(size_t rows, size_t cols, slm_gpu_matrix from,
                           slm_gpu_matrix to, cudaStream_t stream)
{
    const unsigned blocks = slm_gpu_blocks(rows, 1),
                   threads = slm_gpu_threads_of_eight(cols);

    if (rows == 0) return SLM_OK;
    if (!blocks || cols > INT32_MAX - 2048) return SLM_ERR_UNSUPPORTED;
    if (from.dtype == SLM_BF16)
        SLM_LAUNCH((gather_convert<__nv_bfloat16, float>), blocks, threads, stream,
                   (int)cols, from.data, from.ld, to.data, to.ld);
    else
        SLM_LAUNCH((gather_convert<float, __nv_bfloat16>), blocks, threads, stream,
                   (int)cols, from.data, from.ld, to.data, to.ld);
    return slm_gpu_launched();
}
