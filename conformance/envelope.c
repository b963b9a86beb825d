/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/envelope.c - where y can lie when the stages before it were not
 * tapped. */
#include "envelope.h"
#include "noise.h"

#include <ref.h>

#include <math.h>
#include <string.h>

/* h[s, :] of x[s, :] under gate and up; malloc'ed. */
static double *inner(noise_source *noise, const slm_tensor *w_gate,
                     const slm_tensor *w_up, const double *x, slm_stage stage)
{
    const size_t rows = w_up->shape[0];
    double *gate = noise_runs(rows), *h = noise_runs(rows);

    noise_inner(noise, gate, h, w_gate, w_up, x, stage);
    for (size_t i = 0; i < RUNS * rows; i++)
        h[i] = noise_activation(noise, gate[i], h[i], i >= rows);
    noise_store_all(noise, h, rows, noise_coarse(noise, stage));
    flint_free(gate);
    return h;
}

/* o[s, l] of the expert in slot q; malloc'ed. */
static double *expert(noise_source *noise, const envelope *e, const double *z, size_t q)
{
    const size_t l = e->config->d_latent, f = e->config->d_expert;
    const size_t id = (size_t)e->ids[q];
    double *o, *h;

    if (e->o) return noise_spread(e->o + q * l, l);
    o = noise_runs(l);
    if (e->config->expert == SLM_EXPERT_LINEAR) {
        const slm_tensor w = slm_tensor_at(&e->weights->w_expert, id);

        noise_linear(noise, o, &w, z);
    } else {
        const int gated = e->config->expert != SLM_EXPERT_RELU;
        const slm_tensor out = slm_tensor_at(&e->weights->w_out, id);

        if (e->h) {
            h = noise_spread(e->h + q * f, f);
        } else {
            const slm_tensor up = slm_tensor_at(&e->weights->w_up, id);
            const slm_tensor gate =
                gated ? slm_tensor_at(&e->weights->w_gate, id) : (slm_tensor){0};

            h = inner(noise, gated ? &gate : NULL, &up, z, SLM_STAGE_H);
        }
        noise_linear(noise, o, &out, h);
        flint_free(h);
    }
    noise_store_all(noise, o, l, noise_coarse(noise, SLM_STAGE_O));
    return o;
}

/* u[s, l]: the weighted sum in slot order; malloc'ed. */
static double *combine(noise_source *noise, const envelope *e, const double *z)
{
    const size_t l = e->config->d_latent, k = e->config->top_k;
    double *u = noise_runs(l), *p = noise_spread(e->weight, k),
           *all = noise_runs(k * l);

    for (size_t q = 0; q < k; q++) {
        double *o = expert(noise, e, z, q);

        for (size_t s = 0; s < RUNS; s++)
            memcpy(all + (s * k + q) * l, o + s * l, l * sizeof *all);
        flint_free(o);
    }
    noise_combine(noise, u, p, all, k, l);
    flint_free(all);
    flint_free(p);
    return u;
}

/* The shared experts' part of y[s, d].                                            L3 */
static void add_shared(noise_source *noise, const envelope *e, const double *x,
                       double *y)
{
    const slm_weights *weights = e->weights;
    const int gated = weights->w_shared_gate.rank != 0;
    double *hs;

    if (e->config->n_shared == 0) return;
    if (e->config->expert == SLM_EXPERT_LINEAR) {
        for (size_t j = 0; j < e->config->n_shared; j++) {
            const slm_tensor w = slm_tensor_at(&weights->w_shared, j);

            noise_linear(noise, y, &w, x);
        }
        return;
    }
    hs = e->hs ? noise_spread(e->hs, weights->w_shared_up.shape[0])
               : inner(noise, gated ? &weights->w_shared_gate : NULL,
                       &weights->w_shared_up, x, SLM_STAGE_HS);
    noise_linear(noise, y, &weights->w_shared_out, hs);
    flint_free(hs);
}

/* y[s, d] of every run; malloc'ed. A coarse store rounds both addends, too. */
static double *run_all(noise_source *noise, const envelope *e)
{
    const size_t d = e->config->d_model, l = e->config->d_latent;
    const double v = noise_coarse(noise, SLM_STAGE_Y);
    double *x = noise_spread(e->x, d);
    double *z = e->z ? noise_spread(e->z, l) : noise_runs(l);
    double *y = noise_runs(d), *shared = noise_runs(d);
    double *u;

    if (!e->z) {
        noise_linear(noise, z, &e->weights->w_down, x);
        noise_store_all(noise, z, l, noise_coarse(noise, SLM_STAGE_Z));
    }
    u = combine(noise, e, z);
    if (e->config->norm == SLM_NORM_RMS)
        noise_normalise(noise, u, &e->weights->gamma, l);
    noise_linear(noise, y, &e->weights->w_lift, u);
    add_shared(noise, e, x, shared);
    noise_store_all(noise, y, d, v);
    noise_store_all(noise, shared, d, v);
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
    noise_source source = {e->rules, e->config, e->dtype, e->seed};
    double *all = run_all(&source, e);
    double pooled = 0;

    noise_measure(all, d, y, deviation);
    for (size_t i = 0; i < d; i++) pooled += deviation[i] * deviation[i];
    pooled = sqrt(pooled / (double)d);
    for (size_t i = 0; i < d; i++) deviation[i] = fmax(deviation[i], pooled);
    flint_free(all);
}
