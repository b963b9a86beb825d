/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/eight.cuh - eight neighbouring elements of a row at once.
 *
 * Kernels that stream give each thread eight elements: 16 bytes an access where the
 * address allows it, else one element after another. Which it is changes no bit. */
#ifndef SLM_GPU_EIGHT_CUH
#define SLM_GPU_EIGHT_CUH

#include "element.cuh"

enum { SLM_GPU_EIGHT = 8 };

/* 16 bytes of elements of any type, one access. */
struct __attribute__((aligned(16), may_alias)) slm_gpu_words {
    unsigned x, y, z, w;
};

__device__ inline bool slm_gpu_is_whole(const void *at, int left)
{
    return left >= SLM_GPU_EIGHT && (uintptr_t)at % sizeof(slm_gpu_words) == 0;
}

/* Four of binary32. */
__device__ inline void slm_gpu_unpack(slm_gpu_words words, float *to)
{
    to[0] = __uint_as_float(words.x);
    to[1] = __uint_as_float(words.y);
    to[2] = __uint_as_float(words.z);
    to[3] = __uint_as_float(words.w);
}

/* Eight of bf16, which is the upper half of a binary32. */
__device__ inline void slm_gpu_unpack_halves(slm_gpu_words words, float *to)
{
    const unsigned word[] = {words.x, words.y, words.z, words.w};

    SLM_UNROLL
    for (int i = 0; i < SLM_GPU_EIGHT / 2; i++) {
        to[2 * i] = __uint_as_float(word[i] << 16);
        to[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
    }
}

__device__ inline void slm_gpu_load_words(const float *at, float (&to)[SLM_GPU_EIGHT])
{
    slm_gpu_unpack(*(const slm_gpu_words *)at, to);
    slm_gpu_unpack(*(const slm_gpu_words *)(at + 4), to + 4);
}

__device__ inline void slm_gpu_load_words(const __nv_bfloat16 *at,
                                          float (&to)[SLM_GPU_EIGHT])
{
    slm_gpu_unpack_halves(*(const slm_gpu_words *)at, to);
}

__device__ inline void slm_gpu_store_words(float *at,
                                           const float (&from)[SLM_GPU_EIGHT])
{
    SLM_UNROLL
    for (int i = 0; i < SLM_GPU_EIGHT; i += 4)
        *(slm_gpu_words *)(at + i) = {
            __float_as_uint(from[i]), __float_as_uint(from[i + 1]),
            __float_as_uint(from[i + 2]), __float_as_uint(from[i + 3])};
}

__device__ inline unsigned slm_gpu_two_halves(float low, float high)
{
    return (unsigned)__bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           (unsigned)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}

__device__ inline void slm_gpu_store_words(__nv_bfloat16 *at,
                                           const float (&from)[SLM_GPU_EIGHT])
{
    *(slm_gpu_words *)at = {
        slm_gpu_two_halves(from[0], from[1]), slm_gpu_two_halves(from[2], from[3]),
        slm_gpu_two_halves(from[4], from[5]), slm_gpu_two_halves(from[6], from[7])};
}

/* Elements at .. at + 7, of which `left` are there; zeros for the others. */
template <class E>
__device__ inline void slm_gpu_load_eight(const E *at, int left,
                                          float (&to)[SLM_GPU_EIGHT])
{
    if (slm_gpu_is_whole(at, left)) {
        slm_gpu_load_words(at, to);
        return;
    }
    SLM_UNROLL
    for (int i = 0; i < SLM_GPU_EIGHT; i++)
        to[i] = i < left ? slm_gpu_load(at + i) : 0.0f;
}

template <class E>
__device__ inline void slm_gpu_store_eight(E *at, int left,
                                           const float (&from)[SLM_GPU_EIGHT])
{
    if (slm_gpu_is_whole(at, left)) {
        slm_gpu_store_words(at, from);
        return;
    }
    SLM_UNROLL
    for (int i = 0; i < SLM_GPU_EIGHT; i++)
        if (i < left) slm_gpu_store(at + i, from[i]);
}

/* Of either type. The branch is the same for a whole grid. */
__device__ inline void slm_gpu_load_eight_as(const void *data, slm_dtype dtype,
                                             size_t at, int left,
                                             float (&to)[SLM_GPU_EIGHT])
{
    if (dtype == SLM_BF16)
        slm_gpu_load_eight((const __nv_bfloat16 *)data + at, left, to);
    else
        slm_gpu_load_eight((const float *)data + at, left, to);
}

__device__ inline void slm_gpu_store_eight_as(void *data, slm_dtype dtype, size_t at,
                                              int left,
                                              const float (&from)[SLM_GPU_EIGHT])
{
    if (dtype == SLM_BF16)
        slm_gpu_store_eight((__nv_bfloat16 *)data + at, left, from);
    else
        slm_gpu_store_eight((float *)data + at, left, from);
}

/* Threads of a block that goes through rows of that width, eight elements a thread. */
static inline unsigned slm_gpu_threads_of_eight(size_t width)
{
    return slm_gpu_threads((width + SLM_GPU_EIGHT - 1) / SLM_GPU_EIGHT);
}

#endif
