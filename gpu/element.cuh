/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/element.cuh - elements in binary32 and bf16, and when a kernel has nothing to do. */
#ifndef SLM_GPU_ELEMENT_CUH
#define SLM_GPU_ELEMENT_CUH

#include "device.h"
#include "gpu.h"

__device__ inline float slm_gpu_load(const float *at)
{
    return *at;
}

__device__ inline float slm_gpu_load(const __nv_bfloat16 *at)
{
    return __bfloat162float(*at);
}

__device__ inline void slm_gpu_store(float *at, float value)
{
    *at = value;
}

__device__ inline void slm_gpu_store(__nv_bfloat16 *at, float value)
{
    *at = __float2bfloat16_rn(value);
}

/* Element i of either type. The branch is the same for a whole grid. */
__device__ inline float slm_gpu_load_as(const void *data, slm_dtype dtype, size_t i)
{
    return dtype == SLM_BF16 ? slm_gpu_load((const __nv_bfloat16 *)data + i)
                             : slm_gpu_load((const float *)data + i);
}

__device__ inline void slm_gpu_store_as(void *data, slm_dtype dtype, size_t i,
                                        float value)
{
    if (dtype == SLM_BF16)
        slm_gpu_store((__nv_bfloat16 *)data + i, value);
    else
        slm_gpu_store((float *)data + i, value);
}

/* Refused, or nothing to do. Uniform over the grid: the words are written by earlier
 * work of the stream only. NULL: go on. */
__device__ inline bool slm_gpu_stopped(const slm_gpu_state *state)
{
    return state && (state->verdict != SLM_GPU_FINE || state->idle);
}

__device__ inline unsigned long long slm_gpu_found(unsigned place, size_t index)
{
    return (unsigned long long)place << SLM_GPU_PLACE_SHIFT | index;
}

static inline slm_status slm_gpu_launched(void)
{
    return cudaGetLastError() == cudaSuccess ? SLM_OK : SLM_ERR_INTERNAL;
}

/* Blocks for `count` items, `each` a block: 0 and SLM_ERR_UNSUPPORTED beyond a grid. */
static inline unsigned slm_gpu_blocks(size_t count, size_t each)
{
    const size_t blocks = count / each + (count % each != 0);

    return blocks > INT32_MAX ? 0 : (unsigned)blocks;
}

/* Threads of a block that goes through rows of that width. */
static inline unsigned slm_gpu_threads(size_t width)
{
    return width > 224 ? 256u : (unsigned)((width + 31) / 32 * 32);
}

/* Does an int hold `size`, and `more` beyond it? */
static inline bool slm_gpu_fits(size_t size, size_t more = 0)
{
    return size <= INT32_MAX - more;
}

#endif
