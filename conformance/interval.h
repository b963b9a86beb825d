/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/interval.h - intervals of computed values, outward; what bounds of
 * activations and of their slopes are made of. */
#ifndef SLM_INTERVAL_H
#define SLM_INTERVAL_H

#include "bounds.h"
#include "outward.h"

static inline double sigma(double x)
{
    if (x >= 0) return 1 / (1 + exp(-x));

    const double e = exp(x);

    return e / (1 + e);
}

static inline bound_interval times(bound_interval a, bound_interval b)
{
    const double p[] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
    bound_interval out = {p[0], p[0]};

    for (int i = 0; i < 4; i++) {
        if (isnan(p[i])) return (bound_interval){-INFINITY, INFINITY};
        out.lo = fmin(out.lo, p[i]);
        out.hi = fmax(out.hi, p[i]);
    }
    return (bound_interval){wider_lo(out.lo), wider_hi(out.hi)};
}

/* Move both ends outward by a relative amount. */
static inline bound_interval stretched(bound_interval a, double rel)
{
    return (bound_interval){wider_lo(a.lo - fabs(a.lo) * rel),
                            wider_hi(a.hi + fabs(a.hi) * rel)};
}

/* tanh(a / beta), monotone, with its relative and absolute function error; a correctly
 * rounded product never leaves [-1, 1]. */
static inline bound_interval capped(const bound_rules *rules, bound_interval a,
                                    double beta)
{
    bound_interval t = {wider_lo(tanh(a.lo / beta)), wider_hi(tanh(a.hi / beta))};

    t = stretched(t, rules->tanh_rel);
    t.lo = fmax(-1, t.lo - rules->tanh_abs);
    t.hi = fmin(1, t.hi + rules->tanh_abs);
    return t;
}

#endif
