/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/envelope_forward.c - one token's forward pass with noise, for the backward
 * pass that follows it.                                                        R3, L1-L6 */
#include "envelope_token.h"

#include <ref.h>

#include <math.h>
#include <string.h>

static const double U32 = 0x1p-24;

void envelope_settle(envelope_token *at, flow_field field, double *runs)
{
    flow *e = at->e;
    const size_t width = flow_width(e, field), slice = flow_slice(e, field);
    const double *shown = e->shown[field] ? e->shown[field] + at->t * width : NULL;

    noise_measure(runs, width, e->value[field] + at->t * width,
                  e->deviation[field] + at->t * width);
    for (size_t i = 0; i + slice <= width && slice > 1; i += slice)
        envelope_lift(e->deviation[field] + at->t * width + i, slice);
    if (shown) {
        flint_free(runs);
        runs = noise_spread(shown, width);
    }
    if (e->kept[field])
        memcpy(e->kept[field] + at->t * RUNS * width, runs,
               RUNS * width * sizeof *runs);
    at->runs[field] = runs;
}

double *envelope_part(const double *runs, size_t k, size_t width, size_t q)
{
    double *part = noise_runs(width);

    for (size_t s = 0; s < RUNS; s++)
        memcpy(part + s * width, runs + (s * k + q) * width, width * sizeof *part);
    return part;
}

void envelope_put(double *runs, size_t k, size_t width, size_t q, double *part)
{
    for (size_t s = 0; s < RUNS; s++)
        memcpy(runs + (s * k + q) * width, part + s * width, width * sizeof *part);
    flint_free(part);
}

slm_tensor flow_row(const slm_tensor *matrix, size_t row)
{
    slm_tensor view = *matrix;

    view.data = (char *)view.data +
                (ptrdiff_t)row * view.stride[0] * (ptrdiff_t)slm_dtype_size(view.dtype);
    view.shape[0] = 1;
    return view;
}

static void run_logits(envelope_token *at)
{
    double *logit = noise_runs(at->k);

    for (size_t q = 0; q < at->k; q++) {
        const slm_tensor w = flow_row(&at->e->weights->w_router, (size_t)at->ids[q]);
        double *one = noise_runs(1);

        noise_linear(&at->noise, one, &w, at->runs[FLOW_X]);
        envelope_put(logit, at->k, 1, q, one);
    }
    envelope_settle(at, FLOW_LOGIT, logit);
}

/* A score below 2^-126 may have become 0.                                          R2 */
static double disturbed_score(noise_source *noise, double score, double rel)
{
    if (score < 0x1p-126) return score * (1 + noise_uniform(noise)) / 2;
    return score * (1 + rel * noise_uniform(noise)) + noise_underflow(noise);
}

/* Where binary32 loses the ratio, any weight is lawful.                           R3 */
static void run_weights(envelope_token *at)
{
    const slm_config *config = at->e->config;
    const int release = config->weighting == SLM_WEIGHT_RELEASE;
    const size_t k = at->k;
    const double rel = at->noise.rules->sigmoid + sqrt((double)k + 4) * U32;
    double *p = noise_runs(k);

    for (size_t s = 0; s < RUNS; s++) {
        const double *logit = at->runs[FLOW_LOGIT] + s * k;
        double sum = release && k > 1 ? 1e-20 : 0, least = 1;

        for (size_t q = 0; q < k; q++) {
            double score = noise_sigma(logit[q]);

            least = fmin(least, score);
            if (s > 0) score = disturbed_score(&at->noise, score, rel);
            p[s * k + q] = score;
            sum += score;
        }
        for (size_t q = 0; q < k && !(release && k == 1); q++) {
            p[s * k + q] /= sum;
            if (s > 0 && (least < 0x1p-126 || sum < 0x1p-100))
                p[s * k + q] = 0.5 + 0.5 * noise_uniform(&at->noise);
        }
    }
    envelope_settle(at, FLOW_WEIGHT, p);
}

static void run_z(envelope_token *at)
{
    double *z = noise_runs(at->l);

    noise_linear(&at->noise, z, &at->e->weights->w_down, at->runs[FLOW_X]);
    noise_store_all(&at->noise, z, at->l, noise_coarse(&at->noise, SLM_STAGE_Z));
    envelope_settle(at, FLOW_Z, z);
}

/* [RUNS, 2 width] of gate and up. */
static double *gates(envelope_token *at, const slm_tensor *gate, const slm_tensor *up,
                     const double *x, slm_stage stage)
{
    const size_t width = up->shape[0];
    double *a = noise_runs(width), *b = noise_runs(width);
    double *both = noise_runs(2 * width);

    noise_inner(&at->noise, a, b, gate, up, x, stage);
    envelope_put(both, 2, width, 0, a);
    envelope_put(both, 2, width, 1, b);
    return both;
}

/* h [RUNS, n, width] of [RUNS, n, 2 width]. */
static double *activations(envelope_token *at, const double *both, size_t n,
                           size_t width, slm_stage stage)
{
    double *h = noise_runs(n * width);

    for (size_t s = 0; s < RUNS; s++)
        for (size_t i = 0; i < n * width; i++) {
            const double *a = both + (s * n + i / width) * 2 * width + i % width;

            h[s * n * width + i] = noise_activation(&at->noise, a[0], a[width], s > 0);
        }
    noise_store_all(&at->noise, h, n * width, noise_coarse(&at->noise, stage));
    return h;
}

static void run_experts(envelope_token *at)
{
    const slm_weights *weights = at->e->weights;
    const size_t k = at->k, l = at->l, f = at->f;
    const int linear = flow_is_linear(at->e);
    double *both = noise_runs(k * 2 * f), *o = noise_runs(k * l);

    for (size_t q = 0; q < k && !linear; q++) {
        const slm_tensor gate = slm_tensor_at(&weights->w_gate, (size_t)at->ids[q]);
        const slm_tensor up = slm_tensor_at(&weights->w_up, (size_t)at->ids[q]);

        envelope_put(both, k, 2 * f, q,
                     gates(at, &gate, &up, at->runs[FLOW_Z], SLM_STAGE_H));
    }
    if (linear) {
        flint_free(both);
    } else {
        envelope_settle(at, FLOW_GATE_UP, both);
        envelope_settle(at, FLOW_H,
                        activations(at, at->runs[FLOW_GATE_UP], k, f, SLM_STAGE_H));
    }
    for (size_t q = 0; q < k; q++) {
        const slm_tensor w = slm_tensor_at(
            linear ? &weights->w_expert : &weights->w_out, (size_t)at->ids[q]);
        double *from = linear ? envelope_part(at->runs[FLOW_Z], 1, l, 0)
                              : envelope_part(at->runs[FLOW_H], k, f, q);
        double *one = noise_runs(l);

        noise_linear(&at->noise, one, &w, from);
        noise_store_all(&at->noise, one, l, noise_coarse(&at->noise, SLM_STAGE_O));
        envelope_put(o, k, l, q, one);
        flint_free(from);
    }
    at->own_o = envelope_part(o, 1, k * l, 0);
    envelope_settle(at, FLOW_O, o);
}

static void run_aggregate(envelope_token *at)
{
    const size_t l = at->l;
    double *u = noise_runs(l), *r;

    noise_combine(&at->noise, u, at->runs[FLOW_WEIGHT], at->runs[FLOW_O], at->k, l);
    envelope_settle(at, FLOW_U, u);
    r = envelope_part(at->runs[FLOW_U], 1, l, 0);
    if (at->e->config->norm == SLM_NORM_RMS)
        noise_normalise(&at->noise, r, &at->e->weights->gamma, l);
    else
        noise_store_all(&at->noise, r, l, noise_coarse(&at->noise, SLM_STAGE_R));
    envelope_settle(at, FLOW_R, r);
}

static void run_shared(envelope_token *at)
{
    const slm_weights *weights = at->e->weights;

    if (at->fs == 0) return;
    envelope_settle(at, FLOW_SHARED_GATE_UP,
                    gates(at, &weights->w_shared_gate, &weights->w_shared_up,
                          at->runs[FLOW_X], SLM_STAGE_HS));
    envelope_settle(
        at, FLOW_HS,
        activations(at, at->runs[FLOW_SHARED_GATE_UP], 1, at->fs, SLM_STAGE_HS));
}

void envelope_forward(envelope_token *at)
{
    if (at->e->routed) {
        run_logits(at);
        run_weights(at);
        run_z(at);
        run_experts(at);
        run_aggregate(at);
    }
    run_shared(at);
}
