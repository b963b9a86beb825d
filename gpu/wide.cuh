/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/wide.cuh - 128-bit integers: sums of products of counts. */
#ifndef SLM_GPU_WIDE_CUH
#define SLM_GPU_WIDE_CUH

#include "pair.cuh"

__extension__ typedef __int128 slm_gpu_wide;

/* The sum over a whole warp, in every lane. */
__device__ inline slm_gpu_wide slm_gpu_wide_sum(slm_gpu_wide value)
{
    for (int d = 16; d > 0; d /= 2) {
        const unsigned long long low = (unsigned long long)value;
        const long long high = (long long)(value >> 64);
        const unsigned long long other_low = __shfl_xor_sync(0xffffffffu, low, d);
        const long long other_high = __shfl_xor_sync(0xffffffffu, high, d);

        value += (slm_gpu_wide)other_high << 64 | (slm_gpu_wide)other_low;
    }
    return value;
}

/* The value with up to 106 bits; hi alone is the nearest binary64. */
__device__ inline slm_gpu_pair slm_gpu_wide_pair(slm_gpu_wide value)
{
    const double high = (double)(long long)(value >> 64) * 0x1p+64;
    const unsigned long long low = (unsigned long long)value;
    const double upper = (double)(low >> 32) * 0x1p+32;
    const double lower = (double)(low & 0xffffffffu);

    return slm_gpu_pair_add(slm_gpu_two_sum(high, upper), {lower, 0.0});
}

#endif
