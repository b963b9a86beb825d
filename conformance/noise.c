/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/noise.c - parts of the layer in binary64, disturbed as a declared
 * arithmetic may disturb them. */
#include "noise.h"

#include <ref.h>

#include <math.h>
#include <string.h>

static const double U32 = 0x1p-24;

/* Deviations of a value: as far as one run of it is put, and as it may lie from a bend. */
static const double FAR_AWAY = 3, WITHIN_REACH = 4;

/* splitmix64 */
double noise_uniform(noise_source *noise)
{
    uint64_t w = noise->state += 0x9e3779b97f4a7c15u;

    w = (w ^ w >> 30) * 0xbf58476d1ce4e5b9u;
    w = (w ^ w >> 27) * 0x94d049bb133111ebu;
    w ^= w >> 31;
    return (double)(w >> 11) * 0x1p-52 - 1;
}

double noise_underflow(noise_source *noise)
{
    return (noise->rules->eta + noise->rules->phi) * noise_uniform(noise);
}

double *noise_runs(size_t width)
{
    return flint_calloc(RUNS * (width ? width : 1), sizeof(double));
}

double *noise_spread(const double *values, size_t width)
{
    double *out = noise_runs(width);

    for (size_t s = 0; s < RUNS; s++)
        memcpy(out + s * width, values, width * sizeof *out);
    return out;
}

double noise_coarse(const noise_source *noise, slm_stage stage)
{
    const double v = bound_stored(noise->rules, stage, noise->dtype);

    return v > U32 ? v : 0;
}

double noise_coarse_gradient(const noise_source *noise)
{
    const double v = bound_stored_gradient(noise->rules, noise->dtype);

    return v > U32 ? v : 0;
}

double noise_store(noise_source *noise, double value, double v)
{
    double step;

    if (v <= 0 || value == 0 || !isfinite(value)) return value;
    step = ldexp(2 * v, ilogb(value) < -126 ? -126 : ilogb(value));
    return floor(value / step + 0.5 + 0.5 * noise_uniform(noise)) * step;
}

void noise_store_all(noise_source *noise, double *values, size_t width, double v)
{
    for (size_t i = width; v > 0 && i < RUNS * width; i++)
        values[i] = noise_store(noise, values[i], v);
}

/* Roundings to nearest wander like sqrt(K); coarser accumulators may truncate, which
 * drifts like K. Shortened factors may be truncated as well: their whole error
 * counts. */
double noise_amplitude(const bound_rules *rules, double terms, double gauge)
{
    const double u = fmax(rules->u, 0x1p-48);
    const double steps = u > U32 ? terms + 1 : sqrt(terms + 1);
    const double lost = u > U32 ? terms : sqrt(terms);

    return (u * steps + rules->input * (2 + rules->input)) * gauge +
           lost * (bound_least(rules, u) + 2 * rules->phi);
}

/* Whether every run has the values of the first. */
static int all_same(const double *x, size_t width)
{
    for (size_t s = 1; s < RUNS; s++)
        if (memcmp(x, x + s * width, width * sizeof *x) != 0) return 0;
    return 1;
}

enum { AT_ONCE = 5 }; /* sums that are carried side by side; divides RUNS */

/* sum[s] = row x[s, :] of `runs` runs, each in order. */
static void sums_of(const double *row, const double *x, size_t cols, size_t runs,
                    double *sum)
{
    for (size_t s = 0; s < runs; s += AT_ONCE) {
        const size_t n = runs - s < AT_ONCE ? runs - s : AT_ONCE;
        double one[AT_ONCE] = {0};

        for (size_t j = 0; j < cols; j++)
            for (size_t i = 0; i < n; i++) one[i] += row[j] * x[(s + i) * cols + j];
        memcpy(sum + s, one, n * sizeof *sum);
    }
}

void noise_linear(noise_source *noise, double *out, const slm_tensor *w,
                  const double *x)
{
    const size_t rows = w->shape[0], cols = w->shape[1];
    const int same = all_same(x, cols);
    double *row = flint_calloc(cols, sizeof *row);

    for (size_t i = 0; i < rows; i++) {
        const slm_tensor view = slm_tensor_at(w, i);
        double gauge = 0, terms = 0, amplitude, sum[RUNS];

        for (size_t j = 0; j < cols; j++) {
            row[j] = slm_ref_get(&view, j);
            gauge += fabs(row[j] * x[j]);
            terms += row[j] * x[j] != 0;
        }
        amplitude = noise_amplitude(noise->rules, terms, gauge);
        sums_of(row, x, cols, same ? 1 : RUNS, sum);
        for (size_t s = 0; s < RUNS; s++) {
            out[s * rows + i] += sum[same ? 0 : s];
            if (s > 0) out[s * rows + i] += amplitude * noise_uniform(noise);
        }
    }
    flint_free(row);
}

void noise_transposed(noise_source *noise, double *out, const slm_tensor *w,
                      const double *x)
{
    const size_t rows = w->shape[0], cols = w->shape[1];
    const size_t runs = all_same(x, rows) ? 1 : RUNS;
    double *row = flint_calloc(cols, sizeof *row);
    double *gauge = flint_calloc(cols, sizeof *gauge);
    double *terms = flint_calloc(cols, sizeof *terms);
    double *sum = noise_runs(cols);

    for (size_t i = 0; i < rows; i++) {
        const slm_tensor view = slm_tensor_at(w, i);

        for (size_t j = 0; j < cols; j++) {
            row[j] = slm_ref_get(&view, j);
            gauge[j] += fabs(row[j] * x[i]);
            terms[j] += row[j] * x[i] != 0;
        }
        for (size_t s = 0; s < runs; s++) {
            const double factor = x[s * rows + i];

            for (size_t j = 0; j < cols; j++) sum[s * cols + j] += row[j] * factor;
        }
    }
    for (size_t j = 0; j < cols; j++) {
        const double amplitude = noise_amplitude(noise->rules, terms[j], gauge[j]);

        for (size_t s = 0; s < RUNS; s++) {
            out[s * cols + j] += sum[(s < runs ? s : 0) * cols + j];
            if (s > 0) out[s * cols + j] += amplitude * noise_uniform(noise);
        }
    }
    flint_free(sum);
    flint_free(terms);
    flint_free(gauge);
    flint_free(row);
}

/* Where a value is not known to within the width of a bend, what is made of it is in no
 * proportion to its deviation: it may jump, or grow by powers of e, and a few samples may
 * all miss where it is. So of each such element one run is put as far towards the bend as
 * it may well be, and one on the bend if that may be. The bend is at 0, `wide` to each
 * side, and steeper to the right. */
static void meet_bend(noise_source *noise, double *x, size_t width, double wide)
{
    for (size_t i = 0; i < width; i++) {
        double squares = 0, deviation;
        size_t s;

        for (s = 1; s < RUNS; s++)
            squares += (x[s * width + i] - x[i]) * (x[s * width + i] - x[i]);
        deviation = sqrt(squares / NOISE_SAMPLES);
        if (!(deviation > wide / 2)) continue;
        s = (size_t)((1 + noise_uniform(noise)) / 2 * NOISE_SAMPLES) % NOISE_SAMPLES;
        x[(1 + s) * width + i] = x[i] - copysign(FAR_AWAY * deviation, x[i]);
        s = (s + NOISE_SAMPLES / 2) % NOISE_SAMPLES;
        if (wide > 0 && fabs(x[i]) < WITHIN_REACH * deviation)
            x[(1 + s) * width + i] = wide;
    }
}

/* What an activation bends: SiTU its gate, softly, and its up; SwiGLU its gate; ReLU up. */
static void meet_bends(noise_source *noise, double *gate, double *up, size_t width)
{
    const slm_config *config = noise->config;

    switch (config->expert) {
    case SLM_EXPERT_SWIGLU:
        meet_bend(noise, gate, width, 1);
        break;
    case SLM_EXPERT_RELU:
        meet_bend(noise, up, width, 0);
        break;
    default:
        meet_bend(noise, gate, width, config->beta_gate / 2);
        meet_bend(noise, up, width, config->beta_up / 2);
    }
}

void noise_inner(noise_source *noise, double *gate, double *up,
                 const slm_tensor *w_gate, const slm_tensor *w_up, const double *x,
                 slm_stage stage)
{
    const size_t rows = w_up->shape[0];
    const double v = noise_coarse(noise, stage);

    if (w_gate) noise_linear(noise, gate, w_gate, x);
    noise_linear(noise, up, w_up, x);
    noise_store_all(noise, gate, rows, v);
    noise_store_all(noise, up, rows, v);
    meet_bends(noise, gate, up, rows);
}

double noise_sigma(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

double noise_tanh(noise_source *noise, double x, double beta, int disturbed)
{
    const bound_rules *rules = noise->rules;
    double t = tanh(x / beta);

    if (disturbed)
        t = t * (1 + rules->tanh_rel * noise_uniform(noise)) +
            rules->tanh_abs * noise_uniform(noise);
    return t;
}

/* Underflow in one factor is magnified by the others, as in bound_activation(). */
double noise_activation(noise_source *noise, double a, double b, int disturbed)
{
    const slm_config *config = noise->config;
    const double b1 = config->beta_gate, b2 = config->beta_up;
    const double rel = disturbed ? noise->rules->sigmoid + 6 * U32 : 0;
    double least = disturbed ? noise_underflow(noise) : 0;

    if (config->expert == SLM_EXPERT_RELU) return fmax(0, b);
    if (config->expert == SLM_EXPERT_SWIGLU) {
        least *= fabs(a) + fabs(b) + 1;
        return a * noise_sigma(a) * b * (1 + rel * noise_uniform(noise)) + least;
    }
    least *= b1 + b2 + 1;
    return b1 * noise_tanh(noise, a, b1, disturbed) * noise_sigma(a) * b2 *
               noise_tanh(noise, b, b2, disturbed) * (1 + rel * noise_uniform(noise)) +
           least;
}

/* Its argument is within 2 e, and its condition number 2 |x| tanh |x|. */
static double noise_sech2(noise_source *noise, double a, double beta, int disturbed)
{
    const double x = fabs(a / beta), q = exp(-2 * x);
    const double rel =
        2 * noise->rules->sigmoid + 4 * U32 + (isinf(x) ? 0 : 4 * x * tanh(x) * U32);

    return 4 * q / ((1 + q) * (1 + q)) *
           (1 + (disturbed ? rel * noise_uniform(noise) : 0));
}

/* tanh and sigma enter as in noise_activation(); sech^2 and sigma(-a) keep their relative
 * accuracy. Each of the two terms of da is disturbed alone, for they cancel. */
void noise_slopes(noise_source *noise, double a, double b, double dh, int disturbed,
                  double *da, double *db)
{
    const bound_rules *rules = noise->rules;
    const double b1 = noise->config->beta_gate, b2 = noise->config->beta_up;
    const double s = noise_sigma(a), rest = noise_sigma(-a);
    const double each = disturbed ? rules->sigmoid : 0;
    const double roundings = disturbed ? 4 * U32 : 0; /* of twelve, as they wander */
    double least = disturbed ? noise_underflow(noise) : 0;
    double first, second, up, gate, up_slope;

    if (noise->config->expert == SLM_EXPERT_SWIGLU) {
        least *= (1 + fabs(dh)) * (1 + fabs(a)) * (1 + fabs(b));
        first = dh * b * s * (1 + (each + roundings) * noise_uniform(noise));
        second =
            dh * b * a * s * rest * (1 + (2 * each + roundings) * noise_uniform(noise));
        *da = first + second + (dh != 0 && b != 0 ? least : 0);
        *db = dh * a * s * (1 + (each + roundings) * noise_uniform(noise)) +
              (dh != 0 && a != 0 ? least : 0);
        return;
    }
    least *= (1 + fabs(dh)) * (1 + b1) * (1 + b2);
    up = dh * b2 * noise_tanh(noise, b, b2, disturbed);
    gate = b1 * noise_tanh(noise, a, b1, disturbed) * s;
    first = s * noise_sech2(noise, a, b1, disturbed);
    second = gate * rest;
    up_slope = noise_sech2(noise, b, b2, disturbed);
    *da = up * (first * (1 + (each + roundings) * noise_uniform(noise)) +
                second * (1 + (2 * each + roundings) * noise_uniform(noise))) +
          (up != 0 ? least : 0);
    *db = dh * gate * up_slope * (1 + (each + roundings) * noise_uniform(noise)) +
          (dh != 0 && a != 0 ? least : 0);
}

void noise_combine(noise_source *noise, double *u, const double *p, const double *o,
                   size_t k, size_t l)
{
    const double each = fmax(noise->rules->u, U32);

    for (size_t s = 0; s < RUNS; s++)
        for (size_t i = 0; i < l; i++) {
            double sum = 0, gauge = 0;

            for (size_t q = 0; q < k; q++) {
                const double term = p[s * k + q] * o[(s * k + q) * l + i];

                sum += term;
                gauge += fabs(term);
            }
            if (s > 0)
                sum += sqrt((double)k + 1) *
                       (each * gauge * noise_uniform(noise) + noise_underflow(noise));
            u[s * l + i] = sum;
        }
    noise_store_all(noise, u, l, noise_coarse(noise, SLM_STAGE_U));
}

double noise_scale(noise_source *noise, const double *u, size_t l, int disturbed)
{
    const bound_rules *rules = noise->rules;
    const double rel = 0.5 * rules->u * sqrt((double)l) + 4 * U32 + rules->rsqrt;
    double sum = 0;

    for (size_t i = 0; i < l; i++) sum += u[i] * u[i];
    return (1 + (disturbed ? rel * noise_uniform(noise) : 0)) /
           sqrt(sum / (double)l + noise->config->eps);
}

void noise_normalise(noise_source *noise, double *u, const slm_tensor *gamma, size_t l)
{
    const double v = noise_coarse(noise, SLM_STAGE_R);

    for (size_t s = 0; s < RUNS; s++) {
        double *row = u + s * l;
        const double scale = noise_scale(noise, row, l, s > 0);

        for (size_t i = 0; i < l; i++) {
            row[i] *= scale;
            if (s > 0)
                row[i] = noise_store(noise,
                                     row[i] * (1 + U32 * noise_uniform(noise)) +
                                         noise_underflow(noise),
                                     v);
            if (gamma->rank) row[i] *= slm_ref_get(gamma, i);
            if (s > 0) row[i] = noise_store(noise, row[i], v);
        }
    }
}

void noise_measure(const double *runs, size_t width, double *value, double *deviation)
{
    memcpy(value, runs, width * sizeof *value);
    for (size_t i = 0; i < width; i++) {
        double squares = 0;

        for (size_t s = 1; s < RUNS; s++) {
            const double off = runs[s * width + i] - runs[i];

            squares += off * off;
        }
        deviation[i] = sqrt(squares / NOISE_SAMPLES);
    }
}
