/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/outward.h - binary64 arithmetic that errs on the safe side. */
#ifndef SLM_OUTWARD_H
#define SLM_OUTWARD_H

#include <math.h>

#ifdef __FAST_MATH__
#error "the bounds are proofs: build them without -ffast-math"
#endif

/* Roundoff of binary32. Its own functions and single operations round with it, whatever
 * the accumulator of long sums is. */
#define U32 0x1p-24

/* x >= 0, enlarged so that fewer than 2^12 double roundings cannot make it too
 * small. */
static inline double outward(double x)
{
    return x * (1 + 0x1p-40);
}

static inline double wider_lo(double x)
{
    return isinf(x) ? x : x - fabs(x) * 0x1p-40;
}

static inline double wider_hi(double x)
{
    return isinf(x) ? x : x + fabs(x) * 0x1p-40;
}

#endif
