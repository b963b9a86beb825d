/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/envelope_flow.c - the values of a backward pass as arrays, and the envelope
 * of the sums over its tokens. */
#include "envelope_token.h"

#include <ref.h>

#include <math.h>
#include <string.h>

int flow_is_linear(const flow *e)
{
    return e->config->expert == SLM_EXPERT_LINEAR;
}

size_t flow_width(const flow *e, flow_field field)
{
    const slm_config *config = e->config;
    const size_t fs = flow_is_linear(e) ? 0 : config->n_shared * config->d_shared;
    const size_t k = e->routed ? config->top_k : 0;
    const size_t l = e->routed ? config->d_latent : 0;
    const size_t f = flow_is_linear(e) ? 0 : config->d_expert;

    switch (field) {
    case FLOW_X:
    case FLOW_DY:
    case FLOW_DX:
        return config->d_model;
    case FLOW_LOGIT:
    case FLOW_WEIGHT:
    case FLOW_DWEIGHT:
    case FLOW_DLOGIT:
        return k;
    case FLOW_Z:
    case FLOW_U:
    case FLOW_R:
    case FLOW_DR:
    case FLOW_DU:
    case FLOW_DZ:
        return l;
    case FLOW_O:
        return k * l;
    case FLOW_GATE_UP:
    case FLOW_DGATE_UP:
        return k * 2 * f;
    case FLOW_H:
    case FLOW_DH:
        return k * f;
    case FLOW_SHARED_GATE_UP:
    case FLOW_DSHARED_GATE_UP:
        return 2 * fs;
    case FLOW_HS:
    case FLOW_DHS:
        return fs;
    default:
        return 0;
    }
}

size_t flow_slice(const flow *e, flow_field field)
{
    switch (field) {
    case FLOW_O:
        return e->config->d_latent;
    case FLOW_GATE_UP:
    case FLOW_DGATE_UP:
    case FLOW_H:
    case FLOW_DH:
        return e->config->d_expert;
    case FLOW_SHARED_GATE_UP:
    case FLOW_DSHARED_GATE_UP:
        return flow_width(e, FLOW_HS);
    case FLOW_LOGIT:
    case FLOW_WEIGHT:
    case FLOW_DWEIGHT:
    case FLOW_DLOGIT:
        return 1; /* numbers of their own, no vector */
    default:
        return flow_width(e, field);
    }
}

void envelope_lift(double *deviation, size_t width)
{
    double pooled = 0;

    for (size_t i = 0; i < width; i++) pooled += deviation[i] * deviation[i];
    pooled = sqrt(pooled / (double)width) * ENVELOPE_FLOOR;
    for (size_t i = 0; i < width; i++) deviation[i] = fmax(deviation[i], pooled);
}

/* ---- gradients of weights ---- */

/* A factor's values for token t in run s. */
static const double *runs_at(const flow *e, flow_field field, size_t t, size_t s)
{
    const size_t width = flow_width(e, field);

    if (e->shown[field]) return e->shown[field] + t * width;
    return e->kept[field] + (t * RUNS + s) * width;
}

const double *flow_factor(const flow *e, flow_field field, size_t t)
{
    return runs_at(e, field, t, 0);
}

static void finish_row(const double *sum, size_t cols, double *deviation)
{
    double *value = flint_calloc(cols, sizeof *value);

    noise_measure(sum, cols, value, deviation);
    envelope_lift(deviation, cols);
    flint_free(value);
}

/* sum[s, j] += left right[j] of token t, slot q. */
static void add_product(const flow *e, const flow_product *product, size_t t, size_t q,
                        size_t i, double *sum)
{
    for (size_t s = 0; s < RUNS; s++) {
        const double *right =
            runs_at(e, product->right, t, s) + q * product->right_step;
        double left = runs_at(e, product->left, t,
                              s)[product->left_at + q * product->left_step + i];

        if (product->weighted) left *= runs_at(e, FLOW_WEIGHT, t, s)[q];
        if (left == 0) continue;
        for (size_t j = 0; j < product->cols; j++)
            sum[s * product->cols + j] += left * right[j];
    }
}

void envelope_product_row(const flow *e, const flow_product *product, size_t expert,
                          size_t i, double *deviation)
{
    const size_t k = product->of_expert ? e->config->top_k : 1;
    double *sum = noise_runs(product->cols);

    for (size_t t = 0; t < e->n_tokens; t++)
        for (size_t q = 0; q < k; q++)
            if (!product->of_expert || e->ids[t * k + q] == (int32_t)expert)
                add_product(e, product, t, q, i, sum);
    finish_row(sum, product->cols, deviation);
    flint_free(sum);
}

void envelope_dgamma(const flow *e, double *deviation)
{
    const size_t l = e->config->d_latent;
    double *sum = noise_runs(l);

    for (size_t t = 0; t < e->n_tokens; t++) {
        noise_source noise = {e->rules, e->config, e->dtype, ~(uint64_t)t};

        for (size_t s = 0; s < RUNS; s++) {
            const double *u = runs_at(e, FLOW_U, t, s), *dr = runs_at(e, FLOW_DR, t, s);
            const double scale = noise_scale(&noise, u, l, s > 0);

            for (size_t i = 0; i < l; i++) sum[s * l + i] += dr[i] * u[i] * scale;
        }
    }
    finish_row(sum, l, deviation);
    flint_free(sum);
}
