/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_layer_backward.c - the layer's forward again, at the choice
 * that is given; then its gradients.                                            G3-G5 */
#include "scalar_gradient.h"

#include <string.h>

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void take_forward(scalar_tape *at, scalar_scratch *scratch,
                         const slm_config *config)
{
    const size_t n_tokens = at->n_tokens, k = config->top_k, l = config->d_latent;

    at->x = scalar_take(scratch, n_tokens * config->d_model, sizeof(float));
    at->padded = scalar_take(scratch, n_tokens * config->d_model, sizeof(float));
    at->ids = scalar_take(scratch, n_tokens * k, sizeof *at->ids);
    at->logit = scalar_take(scratch, n_tokens * config->n_experts, sizeof(float));
    at->weight = scalar_take(scratch, n_tokens * k, sizeof(float));
    at->z = scalar_take(scratch, n_tokens * l, sizeof(float));
    at->o = scalar_take(scratch, n_tokens * k * l, sizeof(float));
    at->u = scalar_take(scratch, n_tokens * l, sizeof(float));
    at->r = scalar_take(scratch, n_tokens * l, sizeof(float));
    at->gamma = scalar_take(scratch, l, sizeof(float));
}

static void take_backward(scalar_tape *at, scalar_scratch *scratch,
                          const slm_config *config)
{
    const size_t n_tokens = at->n_tokens, k = config->top_k, l = config->d_latent;
    const size_t n = config->n_experts, d = config->d_model;

    at->dy = scalar_take(scratch, n_tokens * d, sizeof(float));
    at->normal = scalar_take(scratch, n_tokens * l, sizeof(float));
    at->dr = scalar_take(scratch, n_tokens * l, sizeof(float));
    at->du = scalar_take(scratch, n_tokens * l, sizeof(float));
    at->dweight = scalar_take(scratch, n_tokens * k, sizeof(float));
    at->dlogit = scalar_take(scratch, n_tokens * n, sizeof(float));
    at->weighted = scalar_take(scratch, n_tokens * k * l, sizeof(float));
    at->dz = scalar_take(scratch, n_tokens * l, sizeof(float));
    at->dz_first = scalar_take(scratch, n_tokens * l, sizeof(float));
    at->dx = scalar_take(scratch, n_tokens * d, sizeof(float));
    at->dbias = scalar_take(scratch, n, sizeof(float));
}

static size_t lay_out(scalar_tape *at, void *base, const slm_config *config,
                      size_t n_tokens)
{
    const int inner = config->expert != SLM_EXPERT_LINEAR;
    const size_t f = inner ? config->d_expert : 0, pairs = n_tokens * config->top_k;
    const size_t s = inner ? config->n_shared * config->d_shared : 0;
    const size_t widest = larger(larger(config->d_model, config->d_latent),
                                 larger(larger(f, s), config->n_experts));
    scalar_scratch scratch = {base, 0};

    *at = (scalar_tape){.n_tokens = n_tokens};
    take_forward(at, &scratch, config);
    take_backward(at, &scratch, config);
    scalar_gated_take(&at->routed, &scratch, pairs, f);
    scalar_gated_take(&at->shared, &scratch, n_tokens, s);
    at->counts = scalar_take(&scratch, config->n_experts, sizeof *at->counts);
    at->offsets = scalar_take(&scratch, config->n_experts + 1, sizeof *at->offsets);
    at->order = scalar_take(&scratch, pairs, sizeof *at->order);
    at->part = scalar_take(&scratch, widest, sizeof(float));
    at->copy = scalar_take(&scratch, widest, sizeof(float));
    scalar_sum_take(&at->sum, &scratch, n_tokens, widest);
    return scratch.used;
}

size_t scalar_layer_backward_space(const slm_config *config, const slm_call *call)
{
    scalar_tape at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_tensor scalar_expert_matrix(const scalar_tape *at, const slm_tensor *all,
                                size_t pair)
{
    return slm_tensor_at(all, (size_t)at->ids[pair]);
}

scalar_gated scalar_expert_row(const scalar_tape *at, size_t pair)
{
    scalar_gated row = scalar_gated_row(&at->routed, pair);

    row.w_gate = scalar_expert_matrix(at, &at->routed.w_gate, pair);
    row.w_up = scalar_expert_matrix(at, &at->routed.w_up, pair);
    row.w_out = scalar_expert_matrix(at, &at->routed.w_out, pair);
    return row;
}

/* The experts of the highest logits, as a mutant chooses again without the bias. */
static void choose_again(const slm_handle *handle, const float *logit, int32_t *ids)
{
    const size_t n = handle->config.n_experts;

    for (size_t q = 0; q < handle->config.top_k; q++) {
        size_t best = n;

        for (size_t e = 0; e < n; e++) {
            int taken = 0;

            for (size_t p = 0; p < q; p++) taken |= ids[p] == (int32_t)e;
            if (!taken && (best == n || logit[e] > logit[best])) best = e;
        }
        ids[q] = (int32_t)best;
    }
}

/* o of one pair from z. */
static void run_expert(const slm_handle *handle, const scalar_tape *at, size_t pair)
{
    const size_t l = handle->config.d_latent;
    const float *z = at->z + pair / handle->config.top_k * l;
    float *o = at->o + pair * l;

    if (handle->config.expert == SLM_EXPERT_LINEAR) {
        const slm_tensor matrix =
            scalar_expert_matrix(at, &handle->weights.w_expert, pair);

        scalar_linear(handle, o, &matrix, z, at->copy);
    } else {
        const scalar_gated row = scalar_expert_row(at, pair);

        scalar_gated_forward(handle, &row, z, at->copy);
        scalar_linear(handle, o, &row.w_out, row.h, at->copy);
    }
    scalar_stage(handle, o, l);
}

/* u and r of a token from its experts.                                          L2 */
static void aggregate(const slm_handle *handle, const scalar_tape *at, size_t t)
{
    const size_t k = handle->config.top_k, l = handle->config.d_latent;
    float *u = at->u + t * l, *r = at->r + t * l;

    for (size_t i = 0; i < l; i++) u[i] = 0.0f;
    for (size_t j = 0; j < k; j++) {
        const size_t pair =
            t * k + (is(handle, VARIANT_reversed_slots) ? k - 1 - j : j);

        for (size_t i = 0; i < l; i++)
            u[i] = scalar_flush(handle, u[i] + at->weight[pair] * at->o[pair * l + i]);
    }
    scalar_stage(handle, u, l);
    if (handle->config.norm == SLM_NORM_NONE)
        memcpy(r, u, l * sizeof *r);
    else
        scalar_normalise(handle, r, u, handle->weights.gamma.rank ? at->gamma : NULL,
                         l);
}

static void token_forward(const slm_handle *handle, const scalar_tape *at, size_t t)
{
    const slm_config *config = &handle->config;
    const size_t d = config->d_model, l = config->d_latent, k = config->top_k;
    const float *x = at->x + t * d;
    float *logit = at->logit + t * config->n_experts;
    int32_t *ids = at->ids + t * k;
    const scalar_gated shared = scalar_gated_row(&at->shared, t);

    scalar_logits(handle, logit, &handle->weights.w_router, x, at->copy);
    if (wrong(handle, MUTANT_choice_recomputed)) choose_again(handle, logit, ids);
    scalar_weights_of(handle, at->weight + t * k, logit, ids);
    scalar_linear(handle, at->z + t * l, &handle->weights.w_down, x, at->copy);
    scalar_stage(handle, at->z + t * l, l);
    scalar_pad(at->padded + t * d, d, at->z + t * l, l);
    for (size_t q = 0; q < k; q++) run_expert(handle, at, t * k + q);
    aggregate(handle, at, t);
    if (shared.width) scalar_gated_forward(handle, &shared, x, at->copy);
}

/* What a caller sees of the forward and of the gradients of activations. */
static void write_taps(const slm_handle *handle, const scalar_tape *at,
                       const slm_layer_backward_args *args)
{
    scalar_write_tap(handle, &args->logit, at->logit);
    scalar_write_tap(handle, &args->weight, at->weight);
    scalar_write_tap(handle, &args->z, at->z);
    scalar_write_tap(handle, &args->gate_up, at->routed.gate_up);
    scalar_write_tap(handle, &args->h, at->routed.h);
    scalar_write_tap(handle, &args->o, at->o);
    scalar_write_tap(handle, &args->u, at->u);
    scalar_write_tap(handle, &args->r, at->r);
    scalar_write_tap(handle, &args->shared_gate_up, at->shared.gate_up);
    scalar_write_tap(handle, &args->hs, at->shared.h);
    scalar_write_tap(handle, &args->dr, at->dr);
    scalar_write_tap(handle, &args->du, at->du);
    scalar_write_tap(handle, &args->dweight, at->dweight);
    scalar_write_tap(handle, &args->dlogit, at->dlogit);
    scalar_write_tap(handle, &args->dh, at->routed.dh);
    scalar_write_tap(handle, &args->dgate_up,
                     wrong(handle, MUTANT_value_told_as_gradient) && !args->dh.rank
                         ? at->routed.gate_up
                         : at->routed.dgate_up);
    scalar_write_tap(handle, &args->dz, at->dz);
    scalar_write_tap(handle, &args->dhs, at->shared.dh);
    scalar_write_tap(handle, &args->dshared_gate_up, at->shared.dgate_up);
}

/* Exactly 0; a mutant lets the gradient of the logits through.                  G5 */
static void write_dbias(const slm_handle *handle, const scalar_tape *at,
                        const slm_tensor *dbias)
{
    const size_t n = handle->config.n_experts;

    for (size_t e = 0; e < n; e++) {
        at->dbias[e] = 0.0f;
        for (size_t t = 0; wrong(handle, MUTANT_gradient_into_bias) && t < at->n_tokens;
             t++)
            at->dbias[e] += at->dlogit[t * n + e];
    }
    scalar_write_tap(handle, dbias, at->dbias);
}

static void read_inputs(const slm_handle *handle, scalar_tape *at,
                        const slm_layer_backward_args *args)
{
    const slm_weights *w = &handle->weights;
    const size_t pairs = at->n_tokens * handle->config.top_k;

    scalar_read(at->x, &args->x);
    scalar_read(at->dy, &args->dy);
    scalar_load(at->gamma, &w->gamma);
    for (size_t i = 0; i < pairs; i++)
        at->ids[i] = *(const int32_t *)scalar_element(&args->ids, i);
    at->routed.w_gate = w->w_gate;
    at->routed.w_up = w->w_up;
    at->routed.w_out = w->w_out;
    at->shared.w_gate = w->w_shared_gate;
    at->shared.w_up = w->w_shared_up;
    at->shared.w_out = w->w_shared_out;
}

slm_status scalar_layer_backward(slm_handle *handle,
                                 const slm_layer_backward_args *args, slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens;
    const slm_status status = scalar_begin(handle, SLM_OP_layer_backward, args, error);
    const slm_handle own = scalar_backward_handle(handle);
    scalar_tape at;

    if (status || (n_tokens == 0 && wrong(handle, MUTANT_counts_not_written)))
        return status;
    lay_out(&at, args->call.workspace, &own.config, n_tokens);
    read_inputs(&own, &at, args);
    for (size_t t = 0; t < n_tokens; t++) token_forward(&own, &at, t);
    for (size_t t = 0; t < n_tokens; t++) scalar_token_backward(&own, &at, t);
    scalar_group(&own, at.ids, n_tokens, at.counts, at.offsets, at.order);
    scalar_weights_backward(&own, &at, args);
    scalar_write(&args->dx, at.dx);
    write_taps(&own, &at, args);
    write_dbias(&own, &at, &args->dbias);
    return SLM_OK;
}
