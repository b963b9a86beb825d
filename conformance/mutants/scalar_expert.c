/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_expert.c - the chosen experts, and their sum.  L2, L5, L6 */
#include "scalar_layer.h"

#include <math.h>
#include <string.h>

void scalar_place_pairs(const slm_handle *handle, scalar_layer *at, size_t n_tokens)
{
    const size_t pairs = n_tokens * handle->config.top_k;
    slm_handle right = *handle;

    right.mutant = MUTANT_NONE;
    scalar_group(&right, at->routing.ids, n_tokens, at->counts, at->offsets, at->order);
    for (size_t i = 0; i < pairs; i++) at->place[at->order[i]] = (int64_t)i;
}

/* Pairs an expert gets when all get the same, rounded up. */
static size_t equal_load(const slm_handle *handle, size_t n_tokens)
{
    const size_t n = handle->config.n_experts;

    return (n_tokens * handle->config.top_k + n - 1) / n;
}

/* The expert whose weights pair (t, q) is computed with. */
static size_t expert_of(const slm_handle *handle, const scalar_layer *at, size_t t,
                        size_t q, size_t n_tokens)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    const size_t row = wrong(handle, MUTANT_tile_of_first_row) ? t - t % 8 : t;
    const size_t e = scalar_expert_id(handle, at->routing.ids[row * k + q]);

    if (wrong(handle, MUTANT_wrong_expert_weights)) return (e + 1) % n;
    if (wrong(handle, MUTANT_last_expert_off_by_one) && e > 0 && e == n - 1)
        return e - 1;
    if (wrong(handle, MUTANT_empty_expert_corrupts_next) && e > 0 &&
        at->counts[e - 1] == 0)
        return e - 1;
    if (wrong(handle, MUTANT_assumes_balanced_load))
        return (size_t)at->place[t * k + q] / equal_load(handle, n_tokens);
    return e;
}

/* Gate or up matrix of an expert: [f, l]. */
static slm_tensor inner_matrix(const slm_handle *handle, const slm_tensor *all,
                               size_t expert, int up)
{
    const size_t f = handle->config.d_expert, l = handle->config.d_latent;
    const size_t shape[] = {f, l};

    if (all->rank == 0) return *all;
    if (!handle->packed) return slm_tensor_at(all, expert);
    return slm_tensor_packed(handle->packed + (2 * expert + (size_t)up) * f * l,
                             SLM_F32, 2, shape);
}

/* h [f] and o [l] of one expert. */
static int run_expert(const slm_handle *handle, const scalar_layer *at, size_t e,
                      float *h, float *o)
{
    const slm_weights *w = &handle->weights;
    int finite;

    if (handle->config.expert == SLM_EXPERT_LINEAR) {
        const slm_tensor matrix = slm_tensor_at(&w->w_expert, e);

        finite = scalar_linear(handle, o, &matrix, at->z_in, at->copy);
    } else {
        const size_t gate_of = wrong(handle, MUTANT_gate_of_first_expert) ? 0 : e;
        const slm_tensor gate = inner_matrix(handle, &w->w_gate, gate_of, 0);
        const slm_tensor up = inner_matrix(handle, &w->w_up, e, 1);
        slm_tensor out = slm_tensor_at(&w->w_out, e);

        if (wrong(handle, MUTANT_out_transposed)) out = scalar_transposed(&out);
        finite = scalar_inner(handle, h, at->gate, &gate, &up, at->z_in, at->copy, 0);
        finite &= scalar_linear(handle, o, &out, h, at->copy);
    }
    scalar_stage(handle, o, handle->config.d_latent);
    return finite;
}

/* What mutants do to the output of one slot. */
static void disturb(const slm_handle *handle, const scalar_layer *at, float *o)
{
    const size_t l = handle->config.d_latent;

    if (wrong(handle, MUTANT_norm_per_expert)) {
        scalar_normalise(handle, at->padded, o,
                         handle->weights.gamma.rank ? at->gamma : NULL, l);
        memcpy(o, at->padded, l * sizeof *o);
    }
    for (size_t i = 0; wrong(handle, MUTANT_rounding_point_undeclared) && i < l; i++)
        o[i] = scalar_bf16(o[i]);
}

int scalar_run_experts(const slm_handle *handle, scalar_layer *at, size_t t,
                       size_t n_tokens)
{
    const size_t k = handle->config.top_k, l = handle->config.d_latent;
    const size_t f =
        handle->config.expert == SLM_EXPERT_LINEAR ? 0 : handle->config.d_expert;
    int finite = 1;

    for (size_t q = 0; q < k; q++) {
        float *o = at->o + q * l;

        if (wrong(handle, MUTANT_weight_on_input))
            for (size_t i = 0; i < l; i++)
                at->z_in[i] = at->z[i] * at->routing.weight[t * k + q];
        finite &= run_expert(handle, at, expert_of(handle, at, t, q, n_tokens),
                             at->h + q * f, o);
        disturb(handle, at, o);
    }
    return finite;
}

/* The factor of o in slot q. */
static float slot_weight(const slm_handle *handle, const scalar_layer *at, size_t t,
                         size_t q, size_t n_tokens)
{
    const size_t k = handle->config.top_k, pair = t * k + q;
    const size_t e = scalar_expert_id(handle, at->routing.ids[pair]);
    const size_t behind = (size_t)(at->place[pair] - at->offsets[e]);
    const float p = at->routing.weight[pair];

    if (wrong(handle, MUTANT_combine_unweighted)) return 1.0f;
    if (wrong(handle, MUTANT_weight_on_input)) return 1.0f;
    if (wrong(handle, MUTANT_weight_applied_twice)) return p * p;
    if (wrong(handle, MUTANT_capacity_drops) && behind >= equal_load(handle, n_tokens))
        return 0.0f;
    if (wrong(handle, MUTANT_last_slot_dropped) && q > 0 && q == k - 1) return 0.0f;
    return p;
}

/* 0 times the output of every expert that the token did not choose; h, o of slot 0 are
 * used up. */
static void add_unchosen(const slm_handle *handle, scalar_layer *at, size_t t)
{
    const size_t k = handle->config.top_k, l = handle->config.d_latent;

    for (size_t e = 0; e < handle->config.n_experts; e++) {
        int chosen = 0;

        for (size_t q = 0; q < k; q++)
            chosen |= at->routing.ids[t * k + q] == (int32_t)e;
        if (chosen) continue;
        run_expert(handle, at, e, at->h, at->o);
        for (size_t i = 0; i < l; i++) at->u[i] += 0.0f * at->o[i];
    }
}

void scalar_combine(const slm_handle *handle, scalar_layer *at, size_t t,
                    size_t n_tokens)
{
    const size_t k = handle->config.top_k, l = handle->config.d_latent;
    const int in_bf16 = wrong(handle, MUTANT_combine_in_bf16) ||
                        (wrong(handle, MUTANT_bf16_combine_for_bf16) &&
                         handle->config.dtype == SLM_BF16);

    for (size_t i = 0; i < l; i++)
        if (wrong(handle, MUTANT_cleared_by_product) && t > 0)
            at->u[i] *= 0.0f;
        else if (!wrong(handle, MUTANT_stale_workspace))
            at->u[i] = 0.0f;
    for (size_t j = 0; j < k; j++) {
        const size_t q = is(handle, VARIANT_reversed_slots) ? k - 1 - j : j;
        const float p = slot_weight(handle, at, t, q, n_tokens);

        for (size_t i = 0; i < l; i++) {
            at->u[i] += p * at->o[q * l + i];
            if (in_bf16) at->u[i] = scalar_bf16(at->u[i]);
            at->u[i] = scalar_flush(handle, at->u[i]);
        }
    }
    if (wrong(handle, MUTANT_runs_every_expert)) add_unchosen(handle, at, t);
    for (size_t i = 0; wrong(handle, MUTANT_aggregate_flushed) && i < l; i++)
        if (fabsf(at->u[i]) < 0x1p-14f) at->u[i] = 0.0f;
    scalar_stage(handle, at->u, l);
}
