/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/situ.cuh - SiTU-GLU and the control activations of one pair of numbers.
 *
 * Clause   L1, L4, G1.
 * Method   forward: binary32, one quotient of products; tanh t = -m / (2 + m) with m =
 *          e^-2t - 1 from slm_gpu_reduce(), so small t stays relative. Gradients:
 *          binary64, rounded once; sech^2 v = 4 t / (2 + m)^2 with t = e^-2v and m =
 *          t - 1; sigma(a), sigma(-a) from e^-|a|: nothing is 1 minus a rounded value.
 * Error    relative, in units of 2^-24: sigmoid and tanh below 3.5, SiTU-GLU below 10;
 *          a subnormal result has one more rounding.
 * Bound    |h| <= beta_gate beta_up. */
#ifndef SLM_GPU_SITU_CUH
#define SLM_GPU_SITU_CUH

#include <float.h>

#include "exponential.cuh"
#include "gpu.h"

/* What a launch carries of a configuration. */
struct slm_gpu_softcap {
    float beta;
    float two_over_beta;
    float linear; /* below it beta tanh(v / beta) = v within 2^-27 */
    double wide_beta;
    double wide_two_over_beta;
};

struct slm_gpu_activation {
    slm_expert_kind kind;
    slm_gpu_softcap gate;
    slm_gpu_softcap up;
    float bound; /* the largest binary32 within beta_gate beta_up */
};

static inline slm_gpu_softcap slm_gpu_softcap_of(double beta)
{
    return {(float)beta, (float)(2.0 / beta), (float)(beta * 0x1p-13), beta,
            fmin(2.0 / beta, DBL_MAX)};
}

static inline slm_gpu_activation slm_gpu_activation_of(const slm_config *config)
{
    const double product = config->beta_gate * config->beta_up;
    const float nearest = (float)product;

    return {config->expert, slm_gpu_softcap_of(config->beta_gate),
            slm_gpu_softcap_of(config->beta_up),
            (double)nearest > product ? nextafterf(nearest, 0.0f) : nearest};
}

/* beta tanh(v / beta) = num / den, v >= 0. */
struct slm_gpu_fraction {
    float num;
    float den;
};

__device__ inline slm_gpu_fraction slm_gpu_cap(float v, const slm_gpu_softcap &c)
{
    const float twice = v * c.two_over_beta;
    const slm_gpu_exponential e = slm_gpu_reduce(twice > 40.0f ? -40.0f : -twice);
    const float scale = slm_gpu_power_of_two(e.n);
    const float m = scale * e.p + (scale - 1.0f);

    if (v < c.linear) return {v, 1.0f};
    return {c.beta * -m, 2.0f + m};
}

__device__ inline float slm_gpu_situ(float a, float b, const slm_gpu_activation &act)
{
    const slm_gpu_fraction g = slm_gpu_cap(fabsf(a), act.gate);
    const slm_gpu_fraction u = slm_gpu_cap(fabsf(b), act.up);
    const float magnitude = fabsf(a);
    const slm_gpu_exponential e =
        slm_gpu_reduce(magnitude > 130.0f ? -130.0f : -magnitude);
    const float one = slm_gpu_power_of_two(e.n / 2); /* their product may underflow */
    const float two = slm_gpu_power_of_two(e.n - e.n / 2);
    const float mantissa = 1.0f + e.p;
    const float den = g.den * u.den * (1.0f + mantissa * one * two);
    float h = g.num * u.num;

    if (a < 0.0f)
        h = h * mantissa / den * one * two;
    else
        h = h / den;
    if (h > act.bound) h = act.bound;
    return signbit(a) != signbit(b) ? -h : h;
}

/* a sigmoid(a) b in binary64: no product of two factors can leave its range early. */
__device__ inline float slm_gpu_swiglu(float a, float b)
{
    const double wide = (double)a;
    const double e = exp(-fabs(wide));

    if (wide == -(double)INFINITY) return isnan(b) ? b : 0.0f;
    return (float)(wide * ((wide < 0.0 ? e : 1.0) / (1.0 + e)) * (double)b);
}

/* h from gate a and up b; relu looks at b alone. */
__device__ inline float slm_gpu_activate(float a, float b,
                                         const slm_gpu_activation &act)
{
    if (act.kind == SLM_EXPERT_RELU) return b < 0.0f ? 0.0f : b;
    if (act.kind == SLM_EXPERT_SWIGLU) return slm_gpu_swiglu(a, b);
    return slm_gpu_situ(a, b, act);
}

/* beta tanh(v / beta) and sech^2(v / beta), v >= 0. */
struct slm_gpu_capped {
    double value;
    double slope;
};

__device__ inline slm_gpu_capped slm_gpu_wide_cap(double v, const slm_gpu_softcap &c)
{
    const double twice = v * c.wide_two_over_beta;
    const double m = expm1(-twice), den = 2.0 + m;
    const double value =
        v < c.wide_beta * 0x1p-28 ? v : c.wide_beta * -m / den; /* the same in 2^-55 */

    return {value, 4.0 * exp(-twice) / (den * den)};
}

struct slm_gpu_slopes {
    float da;
    float db;
};

__device__ inline slm_gpu_slopes slm_gpu_situ_slopes(double a, double b, double dh,
                                                     const slm_gpu_activation &act)
{
    const slm_gpu_capped g = slm_gpu_wide_cap(fabs(a), act.gate);
    const slm_gpu_capped u = slm_gpu_wide_cap(fabs(b), act.up);
    const double e = exp(-fabs(a));
    const double sigma = (a < 0.0 ? e : 1.0) / (1.0 + e);
    const double other = (a < 0.0 ? 1.0 : e) / (1.0 + e); /* sigma(-a) */
    const double gate = copysign(g.value, a), up = copysign(u.value, b);

    return {(float)(dh * up * (sigma * (g.slope + gate * other))),
            (float)(dh * (gate * sigma) * u.slope)};
}

/* An infinite gate counts as the largest number: its sigma is then 0 or 1. */
__device__ inline slm_gpu_slopes slm_gpu_swiglu_slopes(double given, double b,
                                                       double dh)
{
    const double a = copysign(fmin(fabs(given), (double)FLT_MAX), given);
    const double e = exp(-fabs(a));
    const double sigma = (a < 0.0 ? e : 1.0) / (1.0 + e);
    const double other = (a < 0.0 ? 1.0 : e) / (1.0 + e);

    return {(float)(dh * b * (sigma * (1.0 + a * other))), (float)(dh * (a * sigma))};
}

#endif
