/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/check.cu - what inputs hold that a clause refuses, found without the host. X1, Q5 */
#include "element.cuh"

namespace
{

enum { THREADS = 256 };
const size_t MOST_BLOCKS = 1024;

__device__ inline bool is_wrong(float value, int finite)
{
    return finite ? !isfinite(value) : value != value;
}

/* The lowest index of a NaN (finite: or an infinity) of the rows that the mask counts
 * enters the verdict.
 *
 *   launch    grid any, block 256; threads stride over the elements
 *   data      [rows, width]; mask [rows] or NULL
 *   order     none: a minimum */
template <class Element>
__global__ void __launch_bounds__(THREADS)
    check_elements(const Element *data, const int32_t *mask, size_t rows, size_t width,
                   int finite, unsigned place, slm_gpu_state *state)
{
    const size_t step = (size_t)gridDim.x * THREADS, count = rows * width;

    if (state->idle) return;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        if (mask && mask[i / width] == 0) continue;
        if (!is_wrong(slm_gpu_load(data + i), finite)) continue;
        atomicMin(&state->verdict, slm_gpu_found(place, i));
        break; /* later ones of this thread are higher */
    }
}

/* state->counted = tokens that the mask counts.
 *
 *   launch    grid 1, block 256 */
__global__ void __launch_bounds__(THREADS)
    check_mask(const int32_t *mask, size_t rows, slm_gpu_state *state)
{
    SLM_SHARED(unsigned long long, total, [1]);
    unsigned long long own = 0;

    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    for (size_t t = threadIdx.x; t < rows; t += THREADS) own += !mask || mask[t] != 0;
    atomicAdd(&total[0], own);
    __syncthreads();
    if (threadIdx.x == 0) state->counted = total[0];
}

/* Copy rows to packed rows unless refused or idle.
 *
 *   launch    grid any, block 256; threads stride over the elements
 *   from      [rows, cols], `ld` apart; to [rows, cols] */
template <class From, class To>
__global__ void __launch_bounds__(THREADS)
    check_deliver(const From *from, size_t ld, size_t rows, size_t cols, To *to,
                  const slm_gpu_state *state)
{
    const size_t step = (size_t)gridDim.x * THREADS, count = rows * cols;

    if (slm_gpu_stopped(state)) return;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step)
        to[i] = (To)from[i / cols * ld + i % cols];
}

/* One thread. */
__global__ void __launch_bounds__(32) check_settle(slm_gpu_state *state)
{
    if (threadIdx.x == 0 && state->pending < state->verdict)
        state->verdict = state->pending;
}

unsigned grid_for(size_t count)
{
    const size_t blocks = count / THREADS + 1;

    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

slm_status find(slm_handle *handle, const void *data, slm_dtype dtype,
                const int32_t *mask, size_t rows, size_t width, int finite,
                unsigned place, cudaStream_t stream)
{
    if (!data || rows == 0 || width == 0) return SLM_OK;
    if (dtype == SLM_BF16)
        SLM_LAUNCH((check_elements<__nv_bfloat16>), grid_for(rows * width), THREADS,
                   stream, (const __nv_bfloat16 *)data, mask, rows, width, finite,
                   place, handle->state);
    else
        SLM_LAUNCH((check_elements<float>), grid_for(rows * width), THREADS, stream,
                   (const float *)data, mask, rows, width, finite, place,
                   handle->state);
    return slm_gpu_launched();
}

template <class From, class To>
slm_status deliver(const slm_handle *handle, const void *from, size_t ld, size_t rows,
                   size_t cols, void *to, cudaStream_t stream)
{
    SLM_LAUNCH((check_deliver<From, To>), grid_for(rows * cols), THREADS, stream,
               (const From *)from, ld, rows, cols, (To *)to, handle->state);
    return slm_gpu_launched();
}

bool captures(cudaStream_t stream)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

} // namespace

extern "C" slm_status slm_gpu_begin(slm_handle *handle, cudaStream_t stream)
{
    slm_gpu_state *state = handle->state;
    const size_t found = offsetof(slm_gpu_state, counted);

    cudaMemsetAsync(state, 0xff, found, stream);
    cudaMemsetAsync(&state->counted, 0, sizeof *state - found, stream);
    return slm_gpu_launched();
}

extern "C" slm_status slm_gpu_find_nonfinite(slm_handle *handle, const void *data,
                                             slm_dtype dtype, size_t count,
                                             unsigned place, cudaStream_t stream)
{
    return find(handle, data, dtype, NULL, 1, count, 1, place, stream);
}

extern "C" slm_status slm_gpu_find_nan(slm_handle *handle, const void *data,
                                       slm_dtype dtype, size_t count, unsigned place,
                                       cudaStream_t stream)
{
    return find(handle, data, dtype, NULL, 1, count, 0, place, stream);
}

extern "C" slm_status
slm_gpu_find_nonfinite_rows(slm_handle *handle, const float *score, const int32_t *mask,
                            size_t rows, size_t n, unsigned place, cudaStream_t stream)
{
    return find(handle, score, SLM_F32, mask, rows, n, 1, place, stream);
}

extern "C" slm_status slm_gpu_count_mask(slm_handle *handle, const int32_t *mask,
                                         size_t rows, cudaStream_t stream)
{
    SLM_LAUNCH(check_mask, 1, THREADS, stream, mask, rows, handle->state);
    return slm_gpu_launched();
}

extern "C" slm_status slm_gpu_settle(slm_handle *handle, cudaStream_t stream)
{
    SLM_LAUNCH(check_settle, 1, 32, stream, handle->state);
    return slm_gpu_launched();
}

extern "C" slm_status slm_gpu_deliver(const slm_handle *handle, const void *from,
                                      slm_dtype from_dtype, size_t ld, size_t rows,
                                      size_t cols, void *to, slm_dtype to_dtype,
                                      cudaStream_t stream)
{
    if (!to || rows == 0 || cols == 0) return SLM_OK;
    if (from_dtype == SLM_F32 && to_dtype == SLM_BF16)
        return deliver<float, __nv_bfloat16>(handle, from, ld, rows, cols, to, stream);
    if (from_dtype == SLM_BF16 && to_dtype == SLM_F32)
        return deliver<__nv_bfloat16, float>(handle, from, ld, rows, cols, to, stream);
    if (from_dtype != to_dtype) return SLM_ERR_INTERNAL;
    switch (slm_dtype_size(from_dtype)) {
    case 2:
        return deliver<uint16_t, uint16_t>(handle, from, ld, rows, cols, to, stream);
    case 4:
        return deliver<uint32_t, uint32_t>(handle, from, ld, rows, cols, to, stream);
    default:
        return deliver<uint64_t, uint64_t>(handle, from, ld, rows, cols, to, stream);
    }
}

extern "C" slm_status slm_gpu_failed(slm_op op, slm_status status, slm_error *error)
{
    return slm_fail(error, status, slm_op_describe(op)->name, "", 0,
                    "a device that does its work; %s",
                    cudaGetErrorString(cudaGetLastError()));
}

extern "C" slm_status slm_gpu_conclude(slm_handle *handle, slm_op op,
                                       const slm_gpu_finding *table,
                                       cudaStream_t stream, slm_error *error)
{
    if (captures(stream)) return SLM_OK;
    cudaMemcpyAsync(handle->host_seen, handle->state, sizeof *handle->host_seen,
                    cudaMemcpyDeviceToHost, stream);
    if (cudaStreamSynchronize(stream) != cudaSuccess)
        return slm_gpu_failed(op, SLM_ERR_INTERNAL, error);

    const unsigned long long verdict = handle->host_seen->verdict;
    const slm_gpu_finding *found = &table[verdict >> SLM_GPU_PLACE_SHIFT];
    const size_t index = verdict & ((1ull << SLM_GPU_PLACE_SHIFT) - 1);

    if (verdict == SLM_GPU_FINE) return SLM_OK;
    return slm_fail(error, found->status, slm_op_describe(op)->name, found->field,
                    index, "%s", found->expected);
}
