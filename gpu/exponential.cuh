/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/exponential.cuh - e^x and sigmoid in binary32 with relative accuracy.
 *
 * Method   e^x = 2^n (1 + p), x <= 0, where p = e^r - 1 keeps its relative accuracy near
 *          0; 2^n, which may underflow, is multiplied last. Plain products and sums, no
 *          libm, no fused operation: the same bits on a device and in the emulator.
 * Error    sigmoid: below 3.5 units of 2^-24, relative; a subnormal result has one more
 *          rounding. */
#ifndef SLM_GPU_EXPONENTIAL_CUH
#define SLM_GPU_EXPONENTIAL_CUH

#include "device.h"

struct slm_gpu_exponential {
    float p; /* e^x = 2^n (1 + p), |p| < 0.42 */
    int n;
};

/* 2^n for -126 <= n <= 127. */
__device__ inline float slm_gpu_power_of_two(int n)
{
    return __uint_as_float((unsigned)(n + 127) << 23);
}

/* Precondition: -200 < x <= 0, or NaN: then p is NaN and n is 0. */
__device__ inline slm_gpu_exponential slm_gpu_reduce(float x)
{
    const float round_shift = 0x1.8p+23f; /* v + it - it rounds v to an integer */
    const float shifted = x * 0x1.715476p+0f + round_shift; /* log2(e) */
    const float whole = shifted - round_shift;
    const float r = (x - whole * 0x1.62e4p-1f) - whole * 0x1.7f7d1cp-20f; /* ln 2 */
    const int n = (int)(__float_as_uint(shifted) - 0x4b400000u);
    float q = 0x1.a032d8p-13f;

    q = q * r + 0x1.6d7298p-10f;
    q = q * r + 0x1.11118ap-7f;
    q = q * r + 0x1.5554b0p-5f;
    q = q * r + 0x1.555554p-3f;
    q = q * r + 0.5f;
    return {r + r * r * q, x <= 0.0f ? n : 0};
}

/* 1 / (1 + e^-a); 0 and 1 at the infinities. */
__device__ inline float slm_gpu_sigmoid(float a)
{
    const float magnitude = fabsf(a);
    const slm_gpu_exponential e =
        slm_gpu_reduce(magnitude > 130.0f ? -130.0f : -magnitude);
    const float one = slm_gpu_power_of_two(e.n / 2);
    const float two = slm_gpu_power_of_two(e.n - e.n / 2);
    const float mantissa = 1.0f + e.p;
    const float whole = 1.0f + mantissa * one * two;

    return a < 0.0f ? mantissa / whole * one * two : 1.0f / whole;
}

/* log sigmoid(x) in binary64: exact for x below about -745, where e^x is 0. */
__device__ inline double slm_gpu_log_sigmoid(double x)
{
    return x < 0.0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

#endif
