/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/pair.cuh - unevaluated sums hi + lo with hi = RN64(hi + lo): about 106 bits.
 *
 * Additions and products are within 2^-102 of the larger operand or the result. */
#ifndef SLM_GPU_PAIR_CUH
#define SLM_GPU_PAIR_CUH

#include "device.h"

struct slm_gpu_pair {
    double hi;
    double lo;
};

/* Exact a + b. */
__device__ inline slm_gpu_pair slm_gpu_two_sum(double a, double b)
{
    const double sum = a + b;
    const double part = sum - a;

    return {sum, (a - (sum - part)) + (b - part)};
}

/* Exact a b, above 2^-960 or so. */
__device__ inline slm_gpu_pair slm_gpu_two_product(double a, double b)
{
    const double product = a * b;

    return {product, fma(a, b, -product)};
}

__device__ inline slm_gpu_pair slm_gpu_pair_add(slm_gpu_pair a, slm_gpu_pair b)
{
    const slm_gpu_pair high = slm_gpu_two_sum(a.hi, b.hi);
    const slm_gpu_pair low = slm_gpu_two_sum(a.lo, b.lo);
    const slm_gpu_pair sum = slm_gpu_two_sum(high.hi, high.lo + low.hi);

    return slm_gpu_two_sum(sum.hi, sum.lo + low.lo);
}

__device__ inline slm_gpu_pair slm_gpu_pair_times(slm_gpu_pair a, double b)
{
    const slm_gpu_pair product = slm_gpu_two_product(a.hi, b);

    return slm_gpu_two_sum(product.hi, product.lo + a.lo * b);
}

__device__ inline slm_gpu_pair slm_gpu_pair_over(slm_gpu_pair a, double b)
{
    const double quotient = a.hi / b;
    const double rest = fma(-quotient, b, a.hi) + a.lo;

    return slm_gpu_two_sum(quotient, rest / b);
}

/* The binary32 nearest to a pair. The last bit of hi is made sticky first (round to
 * odd), so that the second rounding cannot spoil the first. */
__device__ inline float slm_gpu_round_once(slm_gpu_pair value)
{
    long long bits = __double_as_longlong(value.hi);

    if (value.lo != 0.0 && !(bits & 1))
        bits += (value.lo > 0.0) == (value.hi > 0.0) ? 1 : -1;
    return (float)__longlong_as_double(bits);
}

/* Sign, -1, 0 or 1, of the exact sum of N doubles, which are overwritten: Shewchuk's
 * expansion; its parts do not overlap and grow, so the last that is not zero has the
 * sign of the sum. */
template <int N> __device__ inline int slm_gpu_sign_of_sum(double (&term)[N])
{
    int sign = 0;

    SLM_UNROLL
    for (int i = 0; i < N; i++) {
        double carry = term[i];

        SLM_UNROLL
        for (int j = 0; j < i; j++) {
            const slm_gpu_pair sum = slm_gpu_two_sum(carry, term[j]);

            term[j] = sum.lo;
            carry = sum.hi;
        }
        term[i] = carry;
    }
    SLM_UNROLL
    for (int i = 0; i < N; i++)
        if (term[i] != 0.0) sign = term[i] > 0.0 ? 1 : -1;
    return sign;
}

/* Bits whose unsigned order is that of the values; -0 becomes +0. No NaN. */
__device__ inline unsigned long long slm_gpu_ordered(double value)
{
    const unsigned long long bits =
        (unsigned long long)__double_as_longlong(value + 0.0);

    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

__device__ inline double slm_gpu_unordered(unsigned long long word)
{
    return __longlong_as_double((long long)(word >> 63 ? word & ~(1ull << 63) : ~word));
}

/* The same of binary32; 0 is no value's. */
__device__ inline unsigned slm_gpu_ordered(float value)
{
    const unsigned bits = __float_as_uint(value + 0.0f);

    return bits >> 31 ? ~bits : bits | 1u << 31;
}

__device__ inline float slm_gpu_unordered(unsigned word)
{
    return __uint_as_float(word >> 31 ? word & ~(1u << 31) : ~word);
}

#endif
