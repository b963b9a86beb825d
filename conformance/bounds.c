/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bounds.c - how far rounding can take each stage from the real number. */
#include "bounds.h"
#include "outward.h"

#include <stdint.h>
#include <string.h>

bound_rules bound_declared(const slm_arithmetic *arithmetic)
{
    slm_arithmetic given = {
        .accumulator = U32, .sigmoid_ulp = 4, .tanh_ulp = 4, .rsqrt_ulp = 4};
    bound_rules rules = {.eta = 0x1p-150};

    if (arithmetic) {
        const size_t size = arithmetic->struct_size < sizeof given
                                ? arithmetic->struct_size
                                : sizeof given;

        memset(&given, 0, sizeof given);
        memcpy(&given, arithmetic, size);
    }
    rules.u = given.accumulator;
    rules.input = given.input;
    rules.phi = given.flushes_subnormals ? 0x1p-126 : 0;
    rules.sigmoid = fmax(given.sigmoid_ulp, 1) * U32;
    rules.tanh_rel = given.tanh_ulp * U32;
    rules.tanh_abs = given.tanh_abs * U32;
    rules.rsqrt = given.rsqrt_ulp * U32;
    rules.balance = given.balance > 0 ? given.balance : 0x1p-53;
    memcpy(rules.store, given.store, sizeof rules.store);
    rules.store[SLM_STAGE_LOGIT] = 0;
    rules.store[SLM_STAGE_SCORE] = 0;
    rules.store[SLM_STAGE_WEIGHT] = 0;
    rules.store_gradient = given.store_gradient;
    rules.store_weight_gradient = given.store_weight_gradient;
    return rules;
}

double bound_roundoff(slm_dtype dtype)
{
    switch (dtype) {
    case SLM_F32:
        return U32;
    case SLM_BF16:
        return 0x1p-8;
    case SLM_F64:
        return 0x1p-53;
    default:
        return 0;
    }
}

double bound_stored(const bound_rules *rules, slm_stage stage, slm_dtype dtype)
{
    return fmax(rules->store[stage], bound_roundoff(dtype));
}

double bound_stored_gradient(const bound_rules *rules, slm_dtype dtype)
{
    return fmax(rules->store_gradient, bound_roundoff(dtype));
}

double bound_stored_weight_gradient(const bound_rules *rules)
{
    return fmax(rules->store_weight_gradient, U32);
}

/* Exponent of the lowest set bit of a finite x != 0, a product of two binary32 or
 * coarser. */
static int lowest_bit(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, 8);

    const int exponent = (int)(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & 0xfffffffffffffu;

    if (exponent == 0) return -1074 + __builtin_ctzll(fraction);
    return exponent - 1075 + __builtin_ctzll(fraction | 0x10000000000000u);
}

/* Binary digits from the first to the last set bit of x. */
static int digits_of(double x)
{
    return x == 0 ? 0 : ilogb(x) - lowest_bit(x) + 1;
}

/* An exact value that the storage holds is stored exactly. */
static int is_held(const bound_rules *rules, double value, double v)
{
    if (value == 0) return 1;
    return isfinite(value) && fabs(value) >= rules->phi && lowest_bit(value) >= -149 &&
           fabs(value) < 0x1p128 &&
           (v == 0 ||
            (digits_of(value) <= -log2(v) && lowest_bit(value) >= -125 + log2(v)));
}

double bound_least(const bound_rules *rules, double v)
{
    return fmax(rules->eta, v * 0x1p-126);
}

/* The stored number is at most |value| + error in magnitude; rounding it moves it by v
 * of that, by half a subnormal step, or (when flushed) by phi. Below 2^-126 the step no
 * longer shrinks: half of it is v 2^-126, 2^-134 in bf16 and eta in binary32. */
double bound_store(const bound_rules *rules, double value, double error, double v)
{
    if (error == 0 && is_held(rules, value, v)) return 0;
    return outward(error + v * (fabs(value) + error) + bound_least(rules, v) +
                   rules->phi);
}

bound_interval bound_around(double value, double radius)
{
    return (bound_interval){wider_lo(value - radius) - radius * 0x1p-40,
                            wider_hi(value + radius) + radius * 0x1p-40};
}

double bound_reach(bound_interval interval, double value)
{
    return outward(fmax(interval.hi - value, value - interval.lo)) +
           0x1p-50 * fabs(value);
}

/* ---- dot products ---- */

/* The smallest `grid`: a sum without terms is 0 and exact on any grid. */
enum { COARSE = 1 << 20 };

bound_dot bound_dot_none(void)
{
    return (bound_dot){.grid = COARSE};
}

void bound_dot_add(bound_dot *dot, const bound_rules *rules, const double *w,
                   const double *x, const double *dx, size_t n)
{
    double gauge = 0, spread = 0, flushed = 0;

    for (size_t j = 0; j < n; j++) {
        const double product = fabs(w[j] * x[j]);

        if (dx && w[j] != 0) spread += fabs(w[j]) * dx[j];
        if (product == 0) continue;
        dot->terms++;
        gauge += product;
        if (rules->phi > 0 && fabs(x[j]) < rules->phi)
            flushed += fabs(w[j]) * rules->phi;
        if (rules->phi > 0 && fabs(w[j]) < rules->phi)
            flushed += fabs(x[j]) * rules->phi;

        const int grid = isfinite(product) ? lowest_bit(product) : -1074;

        if (grid < dot->grid) dot->grid = grid;
        if (rules->input > 0) {
            const int digits = (int)fmax(digits_of(w[j]), digits_of(x[j]));

            if (digits > dot->digits) dot->digits = digits;
        }
    }
    dot->gauge += outward(gauge);
    dot->spread += outward(spread);
    dot->flushed += outward(flushed);
}

void bound_dot_join(bound_dot *dot, const bound_dot *other)
{
    dot->gauge += other->gauge;
    dot->spread += other->spread;
    dot->flushed += other->flushed;
    dot->terms += other->terms;
    if (other->grid < dot->grid) dot->grid = other->grid;
    if (other->digits > dot->digits) dot->digits = other->digits;
}

/* No addition rounds, in any order: every partial sum is a multiple of 2^grid no larger
 * than G, and G / 2^grid <= 1 / u. Products neither underflow nor are flushed, factors
 * are not shortened. This makes ties of integer-valued inputs exact ties. */
static int is_exact(const bound_dot *dot, const bound_rules *rules)
{
    const int floor_exponent = rules->phi > 0 ? -126 : -149;

    if (dot->terms == 0) return 1;
    if (dot->grid < floor_exponent || dot->flushed > 0) return 0;
    if (rules->input > 0 && dot->digits > -log2(rules->input)) return 0;
    return dot->gauge * fmax(rules->u, 0x1p-53) <= ldexp(1, dot->grid);
}

/* E(K) = K u G + t (2 + t) (1 + K u) G + K (least + 2 phi) + flushed factors, least =
 * max(eta, u 2^-126): an accumulator that truncates loses a whole subnormal step.
 *
 * K = non-zero terms + 1 roundings at most meet any one product, in whatever order the
 * terms are added; K u instead of K u / (1 - K u) holds for every order and any K under
 * round to nearest (Jeannerod and Rump). t is the rounding of each factor. */
double bound_dot_error(const bound_dot *dot, const bound_rules *rules)
{
    const double k = (double)dot->terms + 1;
    const double reach = dot->gauge + dot->spread;
    const double t = rules->input;

    if (!isfinite(reach)) return INFINITY;
    if (dot->spread == 0 && is_exact(dot, rules)) return 0;
    return outward(dot->spread + k * rules->u * reach +
                   t * (2 + t) * (1 + k * rules->u) * reach +
                   k * (bound_least(rules, rules->u) + 2 * rules->phi) + dot->flushed);
}
