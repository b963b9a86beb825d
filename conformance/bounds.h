/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bounds.h - how far rounding can take each stage from the real number.
 *
 * Worst-case bounds under the arithmetic that a backend declares, one function a stage.
 * Letters: u roundoff of one addition, v roundoff of a stored value, eta half of the
 * smallest binary32 subnormal, phi the largest value that may be flushed to zero, K the
 * number of terms of a sum, G its gauge: the sum of absolute values. Bounds are doubles
 * that are never smaller than what they stand for: each result is enlarged by 2^-40 of
 * itself, which pays for the double roundings on the way. INFINITY: nothing is
 * known. */
#ifndef SLM_BOUNDS_H
#define SLM_BOUNDS_H

#include <slm/backend.h>

/* The declared arithmetic, every member relative or absolute as a plain number. */
typedef struct bound_rules {
    double u;       /* accumulator                                          */
    double input;   /* relative rounding of factors                         */
    double eta;     /* 2^-150                                               */
    double phi;     /* 2^-126, or 0 when subnormals are kept                */
    double sigmoid; /* relative error of sigma, at least one rounding       */
    double tanh_rel;
    double tanh_abs;
    double rsqrt;
    double balance;                /* u of the balancing arithmetic         */
    double store[SLM_STAGE_COUNT]; /* v beyond the element type; never for
                                      logit, score and weight            R1 */
    double store_gradient;         /* v of gradients of activations; never for
                                      dlogit and dweight                 G3 */
    double store_weight_gradient;
} bound_rules;

/* Rules from a backend's table. NULL stands for plain binary32: u = 2^-24, functions
 * good to 4 u. A shorter struct_size leaves what is missing at 0. */
bound_rules bound_declared(const slm_arithmetic *arithmetic);

/* Roundoff of an element type: 2^-24, 2^-8, 2^-53; 0 for integers. */
double bound_roundoff(slm_dtype dtype);

/* v of a stage that is stored in an element type: the larger of both roundings. */
double bound_stored(const bound_rules *rules, slm_stage stage, slm_dtype dtype);

/* The same of a gradient of activations, and v of a gradient of weights: those are
 * binary32 whatever the element type. */
double bound_stored_gradient(const bound_rules *rules, slm_dtype dtype);
double bound_stored_weight_gradient(const bound_rules *rules);

/* Half of the smallest step of a store with roundoff v: eta, or v 2^-126 when that is
 * more. */
double bound_least(const bound_rules *rules, double v);

/* A value that is `error` away from `value` (absolute) is stored with roundoff v. */
double bound_store(const bound_rules *rules, double value, double error, double v);

typedef struct bound_interval {
    double lo;
    double hi;
} bound_interval;

/* [value - radius, value + radius], outward. */
bound_interval bound_around(double value, double radius);

/* Largest distance of a point of the interval from `value`. */
double bound_reach(bound_interval interval, double value);

/* ---- dot products ---- */

/* What is known of a sum of products sum_j w[j] x[j]. */
typedef struct bound_dot {
    double gauge;   /* >= sum |w| |x|                                       */
    double spread;  /* >= sum |w| dx, dx the radius of an uncertain x       */
    double flushed; /* >= what flushed factors can lose                     */
    size_t terms;   /* products that are not 0                              */
    int grid;       /* every product is a multiple of 2^grid                */
    int digits;     /* widest significand of a factor                       */
} bound_dot;

bound_dot bound_dot_none(void);

/* Add n products to a sum. dx NULL: x is exact. */
void bound_dot_add(bound_dot *dot, const bound_rules *rules, const double *w,
                   const double *x, const double *dx, size_t n);

/* The sum of two sums. */
void bound_dot_join(bound_dot *dot, const bound_dot *other);

/* Error of the sum before it is stored, in any order of summation, spread included. */
double bound_dot_error(const bound_dot *dot, const bound_rules *rules);

/* ---- routing ---- */

/* Where the computed score can lie when the logit lies in an interval; `real` asks for
 * the relative error alone, without underflow. */
bound_interval bound_score(const bound_rules *rules, bound_interval logit, int real);

/* Where the computed softmax scores of a row can lie; d is the largest radius of a
 * logit in the row and s the real score. */
bound_interval bound_softmax(const bound_rules *rules, double s, double d, size_t n,
                             int real);

/* Error of p = s / (sum of k scores), from the computed scores. `release`: with the
 * added constant. */
double bound_weight(const bound_rules *rules, double p, size_t k, int release);

/* Interval of slot q's weight when each chosen score lies in an interval. */
bound_interval bound_weight_interval(const bound_rules *rules,
                                     const bound_interval *score, size_t k, size_t q,
                                     int release);

/* Deviation of a row's sum from 1. */
double bound_weight_sum(size_t k);

/* ---- layer ---- */

/* Interval of the activation of (a, b) computed from values in intervals. */
bound_interval bound_activation(const bound_rules *rules, const slm_config *config,
                                bound_interval a, bound_interval b);

/* Largest magnitude that a computed activation may have when it is stored with roundoff
 * v: the product of the betas for SiTU-GLU, else INFINITY.                      L1 */
double bound_activation_limit(const slm_config *config, double v);

/* Error of u_i = sum over k slots of p o. gauge = sum p (|o| + error of o), error =
 * sum p (error of o). */
double bound_combine(const bound_rules *rules, double u, double gauge, double error,
                     size_t k, double v);

/* Relative error of r = gamma u / sqrt(mean(u^2) + eps) over `terms` non-zero u, before
 * r is stored. */
double bound_rmsnorm(const bound_rules *rules, double eps, size_t terms);

/* What uncertain u adds to r_i: e_i is the radius of u_i, e2 the 2-norm of all radii,
 * rho = sqrt(mean(u^2) + eps). */
double bound_rmsnorm_spread(double u, double e, double e2, double rho, double eps,
                            size_t width);

/* ---- backward ---- */

/* Where da = dh G'(a) U(b) and db = dh G(a) U'(b) can lie, before they are stored. a, b
 * and dh are what the computation saw; kinds situ and swiglu.                     G1 */
bound_interval bound_gate_slope(const bound_rules *rules, const slm_config *config,
                                double a, double b, double dh);
bound_interval bound_up_slope(const bound_rules *rules, const slm_config *config,
                              double a, double b, double dh);

/* One row of a RMSNorm that is differentiated: R = sqrt(mean(u^2) + eps), n = u / R,
 * g = gamma dr.                                                                   G2 */
typedef struct bound_norm_row {
    double root;  /* R                                                      */
    double rel;   /* relative error of 1 / R: bound_rmsnorm()               */
    double mean;  /* >= mean |g n|                                          */
    size_t terms; /* products g n that are not 0                           */
    size_t width;
} bound_norm_row;

/* Error of du_i = (g_i - n_i mean(g n)) / R before it is stored. */
double bound_norm_slope(const bound_rules *rules, const bound_norm_row *row, double g,
                        double n);

/* Error of n_i, or of dr_i n_i / dr_i, as a factor of dgamma. */
double bound_norm_factor(const bound_rules *rules, const bound_norm_row *row, double n);

/* Intervals p [k] of the computed weights from exact logits [k] of the chosen, and of
 * their scores [k]. Where binary32 loses the ratio (R3) a weight may be anything from 0
 * to 1. */
void bound_choice_weights(const bound_rules *rules, const double *logit, size_t k,
                          int release, bound_interval *score, bound_interval *p);

/* Where dlogit of slot q can lie: p (1 - s) (dp - sum p dp), `alone` (release, k = 1)
 * s (1 - s) dp. p and dp [k].                                                     G3 */
bound_interval bound_choice_slope(const bound_rules *rules, const bound_interval *p,
                                  const double *dp, size_t k, size_t q, double logit,
                                  int alone);

/* ---- balancing ---- */

/* Error of a candidate bias in balancing arithmetic. */
double bound_candidate(const bound_rules *rules, double candidate, double largest);

/* Error of a centred new bias of exact value x: half an ulp of binary32 and the error
 * of the arithmetic. largest = max |candidate| + max |alpha| + 1. */
double bound_new_bias(const bound_rules *rules, double x, size_t n, double largest);

/* How far the edge of a bin and a required bias can move against each other. */
double bound_hist_edge(const bound_rules *rules, double lo, double hi);

/* Error of a load metric; peak = max load / mean load. */
double bound_metric(const bound_rules *rules, double value, double peak, size_t n);

#endif
