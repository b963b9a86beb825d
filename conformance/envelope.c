/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/envelope.c - where y can lie when the stages before it were not
 * tapped. */
#include "envelope.h"

#include <ref.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Run 0 is undisturbed, the others are samples. Arrays are [RUNS, width]. */
enum { RUNS = 1 + ENVELOPE_SAMPLES };

static const double U32 = 0x1p-24;

typedef struct noise_source {
    const envelope *e;
    uint64_t state;
} noise_source;

/* Uniform in [-1, 1] (splitmix64). */
static double uniform(noise_source *noise)
{
    uint64_t w = noise->state += 0x9e3779b97f4a7c15u;

    w = (w ^ w >> 30) * 0xbf58476d1ce4e5b9u;
    w = (w ^ w >> 27) * 0x94d049bb133111ebu;
    w ^= w >> 31;
    return (double)(w >> 11) * 0x1p-52 - 1;
}

static double *runs_of(size_t width)
{
    return flint_calloc(RUNS * (width ? width : 1), sizeof(double));
}

/* The same starting values for every run. */
static double *spread_out(const double *values, size_t width)
{
    double *out = runs_of(width);

    for (size_t s = 0; s < RUNS; s++)
        memcpy(out + s * width, values, width * sizeof *out);
    return out;
}

/* Random rounding to a neighbour on the grid of roundoff v: its mean is the value. */
static double store(noise_source *noise, double value, double v)
{
    double step;

    if (v <= 0 || value == 0 || !isfinite(value)) return value;
    step = ldexp(2 * v, ilogb(value) < -126 ? -126 : ilogb(value));
    return floor(value / step + 0.5 + 0.5 * uniform(noise)) * step;
}

/* How far one dot product of K terms moves. Roundings to nearest wander like sqrt(K);
 * coarser accumulators may truncate, which drifts like K. Shortened factors may be
 * truncated as well: their whole error counts. */
static double amplitude(const bound_rules *rules, double terms, double gauge)
{
    const double u = fmax(rules->u, 0x1p-48);
    const double steps = u > U32 ? terms + 1 : sqrt(terms + 1);

    return (u * steps + rules->input * (2 + rules->input)) * gauge +
           sqrt(terms) * (rules->eta + 2 * rules->phi);
}

/* out[s, i] += w[i, :] x[s, :], disturbed in every run but the first. w is [rows,
 * cols]. */
static void linear(noise_source *noise, double *out, const slm_tensor *w,
                   const double *x)
{
    const size_t rows = w->shape[0], cols = w->shape[1];
    double *row = flint_calloc(cols, sizeof *row);

    for (size_t i = 0; i < rows; i++) {
        const slm_tensor view = slm_tensor_at(w, i);
        double gauge = 0, terms = 0;

        for (size_t j = 0; j < cols; j++) {
            row[j] = slm_ref_get(&view, j);
            gauge += fabs(row[j] * x[j]);
            terms += row[j] * x[j] != 0;
        }
        for (size_t s = 0; s < RUNS; s++) {
            double sum = 0;

            for (size_t j = 0; j < cols; j++) sum += row[j] * x[s * cols + j];
            if (s > 0) sum += amplitude(noise->e->rules, terms, gauge) * uniform(noise);
            out[s * rows + i] += sum;
        }
    }
    flint_free(row);
}

/* v of a stage in these runs: a store in binary32 is the last rounding of its sum. */
static double coarse(const envelope *e, slm_stage stage)
{
    const double v = bound_stored(e->rules, stage, e->dtype);

    return v > U32 ? v : 0;
}

static void store_all(noise_source *noise, double *values, size_t width, double v)
{
    for (size_t i = width; i < RUNS * width; i++)
        values[i] = store(noise, values[i], v);
}

static double sigma(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double capped(noise_source *noise, double x, double beta, int disturbed)
{
    const bound_rules *rules = noise->e->rules;
    double t = tanh(x / beta);

    if (disturbed)
        t = t * (1 + rules->tanh_rel * uniform(noise)) +
            rules->tanh_abs * uniform(noise);
    return beta * t;
}

/* What products that underflow may lose. */
static double underflow(noise_source *noise)
{
    return (noise->e->rules->eta + noise->e->rules->phi) * uniform(noise);
}

/* Underflow in one factor is magnified by the others, as in bound_activation(). */
static double activation(noise_source *noise, double a, double b, int disturbed)
{
    const slm_config *config = noise->e->config;
    const double rel = disturbed ? noise->e->rules->sigmoid + 6 * U32 : 0;
    double least = disturbed ? underflow(noise) : 0;

    if (config->expert == SLM_EXPERT_RELU) return fmax(0, b);
    if (config->expert == SLM_EXPERT_SWIGLU) {
        least *= fabs(a) + fabs(b) + 1;
        return a * sigma(a) * b * (1 + rel * uniform(noise)) + least;
    }
    least *= config->beta_gate + config->beta_up + 1;
    return capped(noise, a, config->beta_gate, disturbed) * sigma(a) *
               capped(noise, b, config->beta_up, disturbed) *
               (1 + rel * uniform(noise)) +
           least;
}

/* h[s, :] of x[s, :] under gate and up; malloc'ed. */
static double *inner(noise_source *noise, const slm_tensor *w_gate,
                     const slm_tensor *w_up, const double *x, slm_stage stage)
{
    const size_t rows = w_up->shape[0];
    const double v = coarse(noise->e, stage);
    double *gate = runs_of(rows), *h = runs_of(rows);

    if (w_gate) linear(noise, gate, w_gate, x);
    linear(noise, h, w_up, x);
    store_all(noise, gate, rows, v);
    store_all(noise, h, rows, v);
    for (size_t i = 0; i < RUNS * rows; i++)
        h[i] = activation(noise, gate[i], h[i], i >= rows);
    store_all(noise, h, rows, v);
    flint_free(gate);
    return h;
}

/* o[s, l] of the expert in slot q; malloc'ed. */
static double *expert(noise_source *noise, const double *z, size_t q)
{
    const envelope *e = noise->e;
    const size_t l = e->config->d_latent, f = e->config->d_expert;
    const size_t id = (size_t)e->ids[q];
    double *o, *h;

    if (e->o) return spread_out(e->o + q * l, l);
    o = runs_of(l);
    if (e->config->expert == SLM_EXPERT_LINEAR) {
        const slm_tensor w = slm_tensor_at(&e->weights->w_expert, id);

        linear(noise, o, &w, z);
    } else {
        const int gated = e->config->expert != SLM_EXPERT_RELU;
        const slm_tensor out = slm_tensor_at(&e->weights->w_out, id);

        if (e->h) {
            h = spread_out(e->h + q * f, f);
        } else {
            const slm_tensor up = slm_tensor_at(&e->weights->w_up, id);
            const slm_tensor gate =
                gated ? slm_tensor_at(&e->weights->w_gate, id) : (slm_tensor){0};

            h = inner(noise, gated ? &gate : NULL, &up, z, SLM_STAGE_H);
        }
        linear(noise, o, &out, h);
        flint_free(h);
    }
    store_all(noise, o, l, coarse(e, SLM_STAGE_O));
    return o;
}

/* u[s, l]: the weighted sum in slot order; malloc'ed. */
static double *combine(noise_source *noise, const double *z)
{
    const envelope *e = noise->e;
    const size_t l = e->config->d_latent, k = e->config->top_k;
    double *u = runs_of(l), *gauge = runs_of(l);

    for (size_t q = 0; q < k; q++) {
        double *o = expert(noise, z, q);

        for (size_t i = 0; i < RUNS * l; i++) {
            u[i] += e->weight[q] * o[i];
            gauge[i] += fabs(e->weight[q] * o[i]);
        }
        flint_free(o);
    }
    for (size_t i = l; i < RUNS * l; i++)
        u[i] += sqrt((double)k + 1) *
                (fmax(e->rules->u, U32) * gauge[i] * uniform(noise) + underflow(noise));
    store_all(noise, u, l, coarse(e, SLM_STAGE_U));
    flint_free(gauge);
    return u;
}

/* u[s, l] becomes r[s, l]. */
static void normalise(noise_source *noise, double *u)
{
    const envelope *e = noise->e;
    const size_t l = e->config->d_latent;
    const slm_tensor *gamma = &e->weights->gamma;
    const double v = coarse(e, SLM_STAGE_R);
    const double rel = 0.5 * e->rules->u * sqrt((double)l) + 4 * U32 + e->rules->rsqrt;

    for (size_t s = 0; s < RUNS; s++) {
        double *row = u + s * l;
        double sum = 0, scale;

        for (size_t i = 0; i < l; i++) sum += row[i] * row[i];
        scale = 1 / sqrt(sum / (double)l + e->config->eps);
        if (s > 0) scale *= 1 + rel * uniform(noise);
        for (size_t i = 0; i < l; i++) {
            row[i] *= scale;
            if (s > 0)
                row[i] = store(
                    noise, row[i] * (1 + U32 * uniform(noise)) + underflow(noise), v);
            if (gamma->rank) row[i] *= slm_ref_get(gamma, i);
            if (s > 0) row[i] = store(noise, row[i], v);
        }
    }
}

/* The shared experts' part of y[s, d].                                            L3 */
static void add_shared(noise_source *noise, const double *x, double *y)
{
    const envelope *e = noise->e;
    const slm_weights *weights = e->weights;
    const int gated = weights->w_shared_gate.rank != 0;
    double *hs;

    if (e->config->n_shared == 0) return;
    if (e->config->expert == SLM_EXPERT_LINEAR) {
        for (size_t j = 0; j < e->config->n_shared; j++) {
            const slm_tensor w = slm_tensor_at(&weights->w_shared, j);

            linear(noise, y, &w, x);
        }
        return;
    }
    hs = e->hs ? spread_out(e->hs, weights->w_shared_up.shape[0])
               : inner(noise, gated ? &weights->w_shared_gate : NULL,
                       &weights->w_shared_up, x, SLM_STAGE_HS);
    linear(noise, y, &weights->w_shared_out, hs);
    flint_free(hs);
}

/* y[s, d] of every run; malloc'ed. A coarse store rounds both addends, too. */
static double *run_all(noise_source *noise)
{
    const envelope *e = noise->e;
    const size_t d = e->config->d_model, l = e->config->d_latent;
    const double v = coarse(e, SLM_STAGE_Y);
    double *x = spread_out(e->x, d);
    double *z = e->z ? spread_out(e->z, l) : runs_of(l);
    double *y = runs_of(d), *shared = runs_of(d);
    double *u;

    if (!e->z) {
        linear(noise, z, &e->weights->w_down, x);
        store_all(noise, z, l, coarse(e, SLM_STAGE_Z));
    }
    u = combine(noise, z);
    if (e->config->norm == SLM_NORM_RMS) normalise(noise, u);
    linear(noise, y, &e->weights->w_lift, u);
    add_shared(noise, x, shared);
    store_all(noise, y, d, v);
    store_all(noise, shared, d, v);
    for (size_t i = 0; i < RUNS * d; i++) y[i] += shared[i];
    flint_free(u);
    flint_free(shared);
    flint_free(z);
    flint_free(x);
    return y;
}

void envelope_run(const envelope *e, double *y, double *deviation)
{
    const size_t d = e->config->d_model;
    noise_source source = {e, e->seed};
    double *all = run_all(&source);
    double pooled = 0;

    memcpy(y, all, d * sizeof *y);
    for (size_t i = 0; i < d; i++) {
        double squares = 0;

        for (size_t s = 1; s < RUNS; s++) {
            const double off = all[s * d + i] - y[i];

            squares += off * off;
        }
        pooled += squares;
        deviation[i] = sqrt(squares / ENVELOPE_SAMPLES);
    }
    pooled = sqrt(pooled / ENVELOPE_SAMPLES / (double)d);
    for (size_t i = 0; i < d; i++) deviation[i] = fmax(deviation[i], pooled);
    flint_free(all);
}
