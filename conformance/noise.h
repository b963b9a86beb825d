/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/noise.h - parts of the layer in binary64, run many times with the noise of
 * a declared arithmetic; what the envelopes are made of.
 *
 * Run 0 is undisturbed, the others are samples. Arrays are [RUNS, width]. */
#ifndef SLM_NOISE_H
#define SLM_NOISE_H

#include "bounds.h"

enum { NOISE_SAMPLES = 24, RUNS = 1 + NOISE_SAMPLES };

typedef struct noise_source {
    const bound_rules *rules;
    const slm_config *config;
    slm_dtype dtype; /* that stages are stored in */
    uint64_t state;
} noise_source;

/* Uniform in [-1, 1]. */
double noise_uniform(noise_source *noise);

/* What an operation that underflows may lose. */
double noise_underflow(noise_source *noise);

/* [RUNS, width] of zeros, or of the same values in every run. Release with
 * flint_free(). */
double *noise_runs(size_t width);
double *noise_spread(const double *values, size_t width);

/* v of a stage, and of a gradient of activations, in these runs: 0 where it is binary32,
 * whose store is the last rounding of its sum. */
double noise_coarse(const noise_source *noise, slm_stage stage);
double noise_coarse_gradient(const noise_source *noise);

/* A value rounded at random to a neighbour on the grid of roundoff v: its mean is the
 * value. And all values of every run but the first. */
double noise_store(noise_source *noise, double value, double v);
void noise_store_all(noise_source *noise, double *values, size_t width, double v);

/* How far one dot product of K terms moves. */
double noise_amplitude(const bound_rules *rules, double terms, double gauge);

/* out[s, i] += w[i, :] x[s, :], disturbed in every run but the first. w is [rows,
 * cols]. */
void noise_linear(noise_source *noise, double *out, const slm_tensor *w,
                  const double *x);

/* out[s, j] += w[:, j] x[s, :], likewise. */
void noise_transposed(noise_source *noise, double *out, const slm_tensor *w,
                      const double *x);

/* gate[s, :] and up[s, :], stored as `stage`, of x[s, :]; a NULL w_gate leaves gate. */
void noise_inner(noise_source *noise, double *gate, double *up,
                 const slm_tensor *w_gate, const slm_tensor *w_up, const double *x,
                 slm_stage stage);

double noise_sigma(double x);

/* tanh(x / beta) with its declared errors when `disturbed`. */
double noise_tanh(noise_source *noise, double x, double beta, int disturbed);

/* The configuration's activation, its h not stored. */
double noise_activation(noise_source *noise, double a, double b, int disturbed);

/* da = dh G'(a) U(b) and db = dh G(a) U'(b), not stored.                          G1 */
void noise_slopes(noise_source *noise, double a, double b, double dh, int disturbed,
                  double *da, double *db);

/* u[s, l] of the weights p[s, k] and outputs o[s, k, l], stored. */
void noise_combine(noise_source *noise, double *u, const double *p, const double *o,
                   size_t k, size_t l);

/* 1 / sqrt(mean(u^2) + eps) of one row. */
double noise_scale(noise_source *noise, const double *u, size_t l, int disturbed);

/* u[s, l] becomes r[s, l], stored; gamma of rank 0 means ones. */
void noise_normalise(noise_source *noise, double *u, const slm_tensor *gamma, size_t l);

/* value[width] of the undisturbed run and deviation[width], the standard deviation of
 * each element's samples from it. */
void noise_measure(const double *runs, size_t width, double *value, double *deviation);

#endif
