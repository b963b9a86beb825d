/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/real.h - numbers with a radius, as binary32 would compute them.
 *
 * The radius says how far a right binary32 computation may be from the value. A sum of K
 * terms in any order adds K 2^-24 of the sum of its terms' magnitudes, each other
 * operation 2^-24 of its result, a function what a backend declares; radii of the factors
 * go through products and functions by their slopes. binary64's own rounding is 2^-29 of
 * that. */
#ifndef SLM_TEST_REAL_H
#define SLM_TEST_REAL_H

#include <math.h>

#define REAL_U 0x1p-24

/* A number; as a sum that grows, gauge is the magnitude of what was added. */
typedef struct real {
    double value;
    double radius;
    double gauge;
} real;

static inline real exact(double value)
{
    return (real){value, 0.0, 0.0};
}

/* The result of one binary32 operation; `units` of 2^-24 for a function. */
static inline real rounded(double value, double radius, double units)
{
    return (real){value, radius + units * REAL_U * (fabs(value) + radius) + 0x1p-149,
                  0.0};
}

static inline double spread(real a, real b)
{
    return fabs(a.value) * b.radius + fabs(b.value) * a.radius + a.radius * b.radius;
}

static inline real times(real a, real b)
{
    return rounded(a.value * b.value, spread(a, b), 1.0);
}

static inline real plus(real a, real b)
{
    return rounded(a.value + b.value, a.radius + b.radius, 1.0);
}

static inline real negative(real a)
{
    return (real){-a.value, a.radius, 0.0};
}

static inline real inverse(real a)
{
    const double least = fabs(a.value) - a.radius;

    return rounded(1.0 / a.value, a.radius / (fabs(a.value) * least), 1.0);
}

static inline real inverse_root(real a, double units)
{
    const double low = a.value - a.radius;

    return rounded(1.0 / sqrt(a.value), 0.5 * a.radius / (low * sqrt(low)), units);
}

/* Multiplication by a parameter, exact beside the rest. */
static inline real scaled(real a, double factor)
{
    return (real){a.value * factor, a.radius * fabs(factor), 0.0};
}

/* Add a product to a growing sum. */
static inline void feed(real *sum, real a, real b)
{
    sum->value += a.value * b.value;
    sum->radius += spread(a, b);
    sum->gauge += (fabs(a.value) + a.radius) * (fabs(b.value) + b.radius);
}

/* The sum of at most `terms` products, in any order, in binary32. */
static inline real closed(real sum, int terms)
{
    return (real){sum.value,
                  sum.radius + (terms + 1) * REAL_U * sum.gauge + terms * 0x1p-149,
                  0.0};
}

static inline real dot(const real *a, const real *b, int terms)
{
    real sum = exact(0.0);

    for (int i = 0; i < terms; i++) feed(&sum, a[i], b[i]);
    return closed(sum, terms);
}

#endif
