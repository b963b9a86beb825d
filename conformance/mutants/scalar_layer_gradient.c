/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_layer_gradient.c - the layer's gradients.          G4, G5 */
#include "scalar_gradient.h"

#include <string.h>

static void clear(float *value, size_t n)
{
    memset(value, 0, n * sizeof *value);
}

static int is_linear(const slm_handle *handle)
{
    return handle->config.expert == SLM_EXPERT_LINEAR;
}

/* du from dr. */
static void aggregate(const slm_handle *handle, const scalar_tape *at, size_t t)
{
    const size_t l = handle->config.d_latent;
    const float *gamma = handle->weights.gamma.rank ? at->gamma : NULL;
    float *dr = at->dr + t * l, *du = at->du + t * l;

    clear(dr, l);
    scalar_add_product(handle, dr, &handle->weights.w_lift,
                       at->dy + t * handle->config.d_model, at->part, at->copy);
    scalar_gradient_stage(handle, dr, l);
    if (handle->config.norm == SLM_NORM_NONE)
        memcpy(du, dr, l * sizeof *du);
    else
        scalar_norm_backward(handle, du, at->normal + t * l, at->u + t * l, gamma, dr);
}

/* The weight that the gradient of a pair's output carries. */
static float factor_of(const slm_handle *handle, const scalar_tape *at, size_t pair)
{
    const float p = at->weight[pair];

    if (wrong(handle, MUTANT_expert_gradient_unweighted)) return 1.0f;
    return wrong(handle, MUTANT_expert_weighted_twice) ? p * p : p;
}

/* dh and dgate_up of a pair; with a variant dweight from them. */
static void expert_backward(const slm_handle *handle, const scalar_tape *at,
                            size_t pair)
{
    const size_t l = handle->config.d_latent;
    const float *du = at->du + pair / handle->config.top_k * l;
    const scalar_gated row = scalar_expert_row(at, pair);

    clear(row.dh, row.width);
    scalar_add_product(handle, row.dh, &row.w_out, du, at->part, at->copy);
    if (is(handle, VARIANT_dweight_from_h))
        at->dweight[pair] = scalar_dot(handle, row.dh, row.h, row.width);
    for (size_t i = 0; i < row.width; i++) row.dh[i] *= factor_of(handle, at, pair);
    scalar_gradient_stage(handle, row.dh, row.width);
    scalar_gated_backward(handle, &row);
}

/* dz of one pair is added to `dz`. */
static void add_latent(const slm_handle *handle, const scalar_tape *at, size_t pair,
                       float *dz)
{
    if (is_linear(handle)) {
        const slm_tensor matrix =
            scalar_expert_matrix(at, &handle->weights.w_expert, pair);

        scalar_add_product(handle, dz, &matrix,
                           at->weighted + pair * handle->config.d_latent, at->part,
                           at->copy);
    } else {
        const scalar_gated row = scalar_expert_row(at, pair);

        scalar_gated_add_input(handle, dz, &row, at->part, at->copy);
    }
}

/* dweight, the gradient of o and, behind it, that of the expert. */
static void pair_backward(const slm_handle *handle, const scalar_tape *at, size_t pair)
{
    const size_t l = handle->config.d_latent, t = pair / handle->config.top_k;
    const float *du = at->du + t * l;
    const float *by = wrong(handle, MUTANT_dweight_from_dr) ? at->dr + t * l : du;
    const float p = factor_of(handle, at, pair);

    at->dweight[pair] = scalar_dot(handle, by, at->o + pair * l, l);
    for (size_t i = 0; i < l; i++)
        at->weighted[pair * l + i] =
            wrong(handle, MUTANT_out_gradient_unweighted) ? du[i] : p * du[i];
    if (!is_linear(handle)) expert_backward(handle, at, pair);
    at->dweight[pair] = scalar_flush(handle, at->dweight[pair]);
}

/* 0 times the first row of every expert that the token did not choose. */
static void add_unchosen(const slm_handle *handle, const scalar_tape *at, size_t t,
                         float *dz)
{
    const size_t k = handle->config.top_k, l = handle->config.d_latent;
    const slm_tensor *all =
        is_linear(handle) ? &handle->weights.w_expert : &handle->weights.w_gate;

    for (size_t e = 0; e < handle->config.n_experts; e++) {
        const slm_tensor matrix = slm_tensor_at(all, e),
                         row = slm_tensor_at(&matrix, 0);
        int chosen = 0;

        for (size_t q = 0; q < k; q++) chosen |= at->ids[t * k + q] == (int32_t)e;
        if (chosen) continue;
        scalar_load(at->part, &row);
        for (size_t i = 0; i < l; i++) dz[i] += 0.0f * at->part[i];
    }
}

/* dz of a token over its slots. */
static void latent_backward(const slm_handle *handle, const scalar_tape *at, size_t t)
{
    const size_t k = handle->config.top_k, l = handle->config.d_latent;
    float *dz = at->dz + t * l, *first = at->dz_first + t * l;

    clear(dz, l);
    clear(first, l);
    if (wrong(handle, MUTANT_down_gradient_first_slot_only))
        add_latent(handle, at, t * k, first);
    for (size_t j = 0; j < k; j++) {
        const size_t q = is(handle, VARIANT_reversed_slots) ? k - 1 - j : j;

        if (wrong(handle, MUTANT_slot_gradients_overwritten)) clear(dz, l);
        add_latent(handle, at, t * k + q, dz);
    }
    if (wrong(handle, MUTANT_idle_weights_in_dz)) add_unchosen(handle, at, t, dz);
    scalar_gradient_stage(handle, dz, l);
    scalar_gradient_stage(handle, first, l);
}

/* dhs and its gate and up. */
static void shared_backward(const slm_handle *handle, const scalar_tape *at, size_t t)
{
    const scalar_gated row = scalar_gated_row(&at->shared, t);

    if (row.width == 0) return;
    clear(row.dh, row.width);
    scalar_add_product(handle, row.dh, &row.w_out, at->dy + t * handle->config.d_model,
                       at->part, at->copy);
    for (size_t i = 0; i < row.width; i++)
        if (wrong(handle, MUTANT_shared_gradient_weighted))
            row.dh[i] *= at->weight[t * handle->config.top_k];
    scalar_gradient_stage(handle, row.dh, row.width);
    scalar_gated_backward(handle, &row);
}

/* The shared experts' part is added to dx. */
static void add_shared(const slm_handle *handle, const scalar_tape *at, size_t t,
                       float *dx)
{
    const size_t d = handle->config.d_model;
    const scalar_gated row = scalar_gated_row(&at->shared, t);

    if (handle->config.n_shared == 0) return;
    if (wrong(handle, MUTANT_shared_path_missing_in_dx)) return;
    if (wrong(handle, MUTANT_dx_overwritten_by_shared)) clear(dx, d);
    if (row.width) scalar_gated_add_input(handle, dx, &row, at->part, at->copy);
    for (size_t i = 0; is_linear(handle) && i < handle->config.n_shared; i++) {
        const slm_tensor matrix = slm_tensor_at(&handle->weights.w_shared, i);

        scalar_add_product(handle, dx, &matrix, at->dy + t * d, at->part, at->copy);
    }
}

void scalar_token_backward(const slm_handle *handle, const scalar_tape *at, size_t t)
{
    const slm_config *config = &handle->config;
    const size_t n = config->n_experts, k = config->top_k, d = config->d_model;
    float *dx = at->dx + t * d, *dlogit = at->dlogit + t * n;

    aggregate(handle, at, t);
    for (size_t q = 0; q < k; q++) pair_backward(handle, at, t * k + q);
    scalar_weight_backward(handle, dlogit, at->logit + t * n, at->ids + t * k,
                           at->weight + t * k, at->dweight + t * k);
    latent_backward(handle, at, t);
    shared_backward(handle, at, t);
    clear(dx, d);
    scalar_add_product(handle, dx, &handle->weights.w_down,
                       at->dz + t * config->d_latent, at->part, at->copy);
    if (!wrong(handle, MUTANT_router_path_missing_in_dx))
        scalar_add_product(handle, dx, &handle->weights.w_router, dlogit, at->part,
                           at->copy);
    add_shared(handle, at, t, dx);
    scalar_gradient_stage(handle, dx, d);
}

/* The slices of expert e. */
static void expert_weights(const slm_handle *handle, const scalar_tape *at, size_t e,
                           const slm_layer_backward_args *args)
{
    const size_t k = handle->config.top_k, l = handle->config.d_latent;
    const scalar_factor z = {at->z, l, k}, weighted = {at->weighted, l, 1};
    scalar_sum sum = at->sum;

    sum.order = at->order + at->offsets[e];
    sum.n = (size_t)at->counts[e];
    sum.is_expert = 1;
    if (sum.n == 0 && wrong(handle, MUTANT_idle_experts_unwritten)) return;
    if (e >= 256 && wrong(handle, MUTANT_gradient_of_256_experts)) sum.n = 0;
    if (is_linear(handle)) {
        const slm_tensor out = slm_tensor_at(&args->dw_expert, e);

        scalar_outer(handle, &sum, &out, weighted, z);
    } else {
        const slm_tensor gate = slm_tensor_at(&args->dw_gate, e);
        const slm_tensor up = slm_tensor_at(&args->dw_up, e);
        const slm_tensor out = slm_tensor_at(&args->dw_out, e);

        scalar_gated_outer(handle, &sum, &at->routed, z, weighted, &gate, &up, &out);
    }
}

static void shared_weights(const slm_handle *handle, const scalar_tape *at,
                           const slm_layer_backward_args *args)
{
    const size_t d = handle->config.d_model;
    const scalar_factor x = {at->x, d, 1}, dy = {at->dy, d, 1};

    if (handle->config.n_shared == 0) return;
    if (!is_linear(handle))
        scalar_gated_outer(handle, &at->sum, &at->shared, x, dy, &args->dw_shared_gate,
                           &args->dw_shared_up, &args->dw_shared_out);
    for (size_t i = 0; is_linear(handle) && i < handle->config.n_shared; i++) {
        const slm_tensor out = slm_tensor_at(&args->dw_shared, i);

        scalar_outer(handle, &at->sum, &out, dy, x);
    }
}

void scalar_weights_backward(const slm_handle *handle, const scalar_tape *at,
                             const slm_layer_backward_args *args)
{
    const size_t d = handle->config.d_model, l = handle->config.d_latent;
    const scalar_factor x = {at->x, d, 1}, dy = {at->dy, d, 1};
    const scalar_factor dlogit = {at->dlogit, handle->config.n_experts, 1};
    scalar_factor r = {at->r, l, 1}, dz = {at->dz, l, 1}, routed = x;

    if (wrong(handle, MUTANT_lift_gradient_from_u)) r.value = at->u;
    if (wrong(handle, MUTANT_down_gradient_first_slot_only)) dz.value = at->dz_first;
    if (wrong(handle, MUTANT_router_gradient_from_z)) routed.value = at->padded;
    scalar_outer(handle, &at->sum, &args->dw_lift, dy, r);
    scalar_outer(handle, &at->sum, &args->dw_down, dz, x);
    scalar_outer(handle, &at->sum, &args->dw_router, dlogit, routed);
    for (size_t e = 0; e < handle->config.n_experts; e++)
        expert_weights(handle, at, e, args);
    shared_weights(handle, at, args);
    if (handle->config.norm == SLM_NORM_RMS &&
        (handle->weights.gamma.rank ||
         !wrong(handle, MUTANT_gamma_gradient_needs_gamma)))
        scalar_gamma_backward(handle, &at->sum, &args->dgamma, at->dr, at->normal,
                              at->u, at->r);
}
