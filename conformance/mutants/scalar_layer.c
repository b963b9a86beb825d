/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_layer.c - the whole layer, token by token.         R1-L6 */
#include "scalar_layer.h"

#include <math.h>
#include <string.h>

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t lay_out(scalar_layer *at, void *base, const slm_config *config,
                      size_t n_tokens)
{
    const int inner = config->expert != SLM_EXPERT_LINEAR;
    const size_t n = config->n_experts, k = config->top_k, d = config->d_model;
    const size_t l = config->d_latent, f = inner ? config->d_expert : 0;
    const size_t s = inner ? config->n_shared * config->d_shared : 0;
    const size_t pairs = n_tokens * k;
    scalar_scratch scratch = {base, 0};

    scalar_routing_take(&at->routing, &scratch, config, n_tokens);
    at->counts = scalar_take(&scratch, n, sizeof *at->counts);
    at->offsets = scalar_take(&scratch, n + 1, sizeof *at->offsets);
    at->order = scalar_take(&scratch, pairs, sizeof *at->order);
    at->place = scalar_take(&scratch, pairs, sizeof *at->place);
    at->x = scalar_take(&scratch, d, sizeof(float));
    at->z = scalar_take(&scratch, l, sizeof(float));
    at->z_in = scalar_take(&scratch, l, sizeof(float));
    at->h = scalar_take(&scratch, k * f, sizeof(float));
    at->o = scalar_take(&scratch, k * l, sizeof(float));
    at->u = scalar_take(&scratch, l, sizeof(float));
    at->r = scalar_take(&scratch, l, sizeof(float));
    at->gamma = scalar_take(&scratch, l, sizeof(float));
    at->hs = scalar_take(&scratch, s, sizeof(float));
    at->shared = scalar_take(&scratch, d, sizeof(float));
    at->y = scalar_take(&scratch, d, sizeof(float));
    at->gate = scalar_take(&scratch, larger(f, s), sizeof(float));
    at->copy = scalar_take(&scratch, larger(larger(d, l), larger(f, s)), sizeof(float));
    at->padded = scalar_take(&scratch, larger(d, l), sizeof(float));
    return scratch.used;
}

size_t scalar_layer_space(const slm_config *config, const slm_call *call)
{
    scalar_layer at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

/* x of token t, its z, and what the experts read. */
static int read_token(const slm_handle *handle, scalar_layer *at,
                      const slm_layer_forward_args *args, size_t t)
{
    const size_t d = handle->config.d_model, l = handle->config.d_latent;
    const slm_tensor x = slm_tensor_at(&args->x, t);
    const slm_tensor w_down = wrong(handle, MUTANT_down_transposed)
                                  ? scalar_transposed(&handle->weights.w_down)
                                  : handle->weights.w_down;
    int finite;

    scalar_load(at->x, &x);
    finite = scalar_linear(handle, at->z, &w_down, at->x, at->copy);
    scalar_stage(handle, at->z, l);
    memcpy(at->z_in, at->z, l * sizeof *at->z);
    if (wrong(handle, MUTANT_experts_fed_x)) scalar_pad(at->z_in, l, at->x, d);
    if (wrong(handle, MUTANT_norm_on_latent))
        scalar_normalise(handle, at->z_in, at->z, NULL, l);
    return finite;
}

/* Logits of every token, then routing and places. */
static slm_status route_tokens(slm_handle *handle, scalar_layer *at,
                               const slm_layer_forward_args *args, slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens, n = handle->config.n_experts;
    const size_t d = handle->config.d_model, l = handle->config.d_latent;
    slm_status status;

    scalar_load(at->routing.bias, &args->bias);
    for (size_t t = 0; t < n_tokens; t++) {
        const float *x = at->x;

        read_token(handle, at, args, t);
        if (wrong(handle, MUTANT_router_fed_z)) {
            scalar_pad(at->padded, d, at->z, l);
            x = at->padded;
        }
        scalar_logits(handle, at->routing.logit + t * n, &handle->weights.w_router, x,
                      at->copy);
    }
    status = scalar_choose_rows(handle, &at->routing, n_tokens, 1, SLM_OP_layer_forward,
                                error);
    if (!status) scalar_place_pairs(handle, at, n_tokens);
    return status;
}

/* How many shared experts run. */
static size_t shared_limit(const slm_handle *handle)
{
    if (wrong(handle, MUTANT_shared_first_only)) return 1;
    if (wrong(handle, MUTANT_shared_two_at_most)) return 2;
    return handle->config.n_shared;
}

/* The shared path [d] from x.                                                   L3 */
static int run_shared(const slm_handle *handle, scalar_layer *at)
{
    const slm_config *config = &handle->config;
    const slm_weights *w = &handle->weights;
    const size_t d = config->d_model, fs = config->d_shared;
    const float *x = at->x;
    int finite = 1;

    memset(at->shared, 0, d * sizeof *at->shared);
    if (config->n_shared == 0) return 1;
    if (wrong(handle, MUTANT_shared_fed_z)) {
        scalar_pad(at->padded, d, at->z, config->d_latent);
        x = at->padded;
    }
    if (config->expert == SLM_EXPERT_LINEAR) {
        for (size_t i = 0; i < config->n_shared; i++) {
            const slm_tensor matrix = slm_tensor_at(&w->w_shared, i);

            if (i >= shared_limit(handle)) break;
            finite &= scalar_linear(handle, at->y, &matrix, x, at->copy);
            for (size_t j = 0; j < d; j++) at->shared[j] += at->y[j];
        }
        return finite;
    }
    finite &= scalar_inner(handle, at->hs, at->gate, &w->w_shared_gate, &w->w_shared_up,
                           x, at->copy, 1);
    if (shared_limit(handle) < config->n_shared)
        scalar_pad(at->hs, config->n_shared * fs, at->hs, shared_limit(handle) * fs);
    return finite &
           scalar_linear(handle, at->shared, &w->w_shared_out, at->hs, at->copy);
}

/* r from u.                                                                     L2 */
static int normalise(const slm_handle *handle, scalar_layer *at)
{
    const size_t l = handle->config.d_latent;
    int skip = handle->config.norm == SLM_NORM_NONE;

    if (wrong(handle, MUTANT_norm_always)) skip = 0;
    skip |= wrong(handle, MUTANT_norm_missing) | wrong(handle, MUTANT_norm_per_expert) |
            wrong(handle, MUTANT_norm_on_latent) |
            wrong(handle, MUTANT_norm_after_lift);
    if (!skip)
        return scalar_normalise(handle, at->r, at->u,
                                handle->weights.gamma.rank ? at->gamma : NULL, l);
    memcpy(at->r, at->u, l * sizeof *at->r);
    return 1;
}

/* y = r w_lift^T + the shared path.                                         L3, L6 */
static int finish(const slm_handle *handle, scalar_layer *at, size_t t)
{
    const size_t d = handle->config.d_model;
    const slm_tensor w_lift = wrong(handle, MUTANT_lift_transposed)
                                  ? scalar_transposed(&handle->weights.w_lift)
                                  : handle->weights.w_lift;
    float scale = 1.0f;
    int finite = scalar_linear(handle, at->y, &w_lift, at->r, at->copy);

    if (wrong(handle, MUTANT_norm_after_lift)) {
        memcpy(at->padded, at->y, d * sizeof *at->y);
        scalar_normalise(handle, at->y, at->padded, NULL, d);
    }
    if (wrong(handle, MUTANT_shared_dropped)) scale = 0.0f;
    if (wrong(handle, MUTANT_shared_doubled)) scale = 2.0f;
    if (wrong(handle, MUTANT_shared_averaged) && handle->config.n_shared)
        scale = 1.0f / (float)handle->config.n_shared;
    if (wrong(handle, MUTANT_shared_weighted))
        scale = at->routing.weight[t * handle->config.top_k];
    for (size_t i = 0; i < d; i++) {
        at->y[i] += scale * at->shared[i];
        if (wrong(handle, MUTANT_residual_added)) at->y[i] += at->x[i];
    }
    if (wrong(handle, MUTANT_last_column_wrong) && d > 1) at->y[d - 1] = at->y[d - 2];
    scalar_stage(handle, at->y, d);
    return finite;
}

/* A poisoned row of y; how far it goes for mutants. */
static void poison(const slm_handle *handle, scalar_layer *at, size_t t)
{
    const int drops =
        wrong(handle, MUTANT_nan_dropped_from_y) && at->routing.poisoned[t];

    for (size_t i = 0; i < handle->config.d_model; i++) {
        at->y[i] = NAN;
        if (wrong(handle, MUTANT_nan_hidden)) at->y[i] = 0.0f;
        if (drops && i > 0) at->y[i] = 0.0f;
    }
}

/* [rows, cols] of packed values into a view of rank 2; nothing when it is absent. */
static void write_slots(const slm_tensor *tensor, const float *value)
{
    for (size_t q = 0; tensor->rank && q < tensor->shape[0]; q++) {
        const slm_tensor row = slm_tensor_at(tensor, q);

        scalar_store(&row, value + q * row.shape[0]);
    }
}

/* y, unless the mutant leaves it out, to its row. */
static void write_y(const slm_handle *handle, scalar_layer *at,
                    const slm_layer_forward_args *args, size_t t)
{
    const size_t n_tokens = args->call.n_tokens;
    const int swap = wrong(handle, MUTANT_tokens_swapped) && n_tokens > 1 && t < 2;
    const slm_tensor row = slm_tensor_at(&args->y, swap ? 1 - t : t);

    if (wrong(handle, MUTANT_last_token_unwritten) && t + 1 == n_tokens) return;
    if (wrong(handle, MUTANT_tile_tail_unwritten) && n_tokens < 16 && t >= 8) return;
    if (wrong(handle, MUTANT_output_accumulated)) {
        scalar_load(at->shared, &row);
        for (size_t i = 0; i < row.shape[0]; i++) at->y[i] += at->shared[i];
    }
    scalar_store(&row, at->y);
}

static void write_token(const slm_handle *handle, scalar_layer *at,
                        const slm_layer_forward_args *args, size_t t)
{
    const slm_tensor z = scalar_row(&args->z, t), h = scalar_row(&args->h, t);
    const slm_tensor o = scalar_row(&args->o, t), u = scalar_row(&args->u, t);
    const slm_tensor r = scalar_row(&args->r, t), hs = scalar_row(&args->hs, t);

    scalar_store(&z, at->z);
    write_slots(&h, at->h);
    write_slots(&o, at->o);
    scalar_store(&u, at->u);
    scalar_store(&r, at->r);
    if (handle->config.n_shared) scalar_store(&hs, at->hs);
    write_y(handle, at, args, t);
}

/* The layer of token t, routing done. */
static void run_token(const slm_handle *handle, scalar_layer *at,
                      const slm_layer_forward_args *args, size_t t, int *poisoned)
{
    int finite = read_token(handle, at, args, t);

    finite &= run_shared(handle, at);
    finite &= scalar_run_experts(handle, at, t, args->call.n_tokens);
    scalar_combine(handle, at, t, args->call.n_tokens);
    finite &= normalise(handle, at);
    finite &= finish(handle, at, t);
    if (wrong(handle, MUTANT_layer_clamps_nan)) finite = 1;
    if (at->routing.poisoned[t]) finite = 0;
    *poisoned |= !finite;
    if (wrong(handle, MUTANT_nan_poisons_other_rows)) finite &= !*poisoned;
    if (!finite) poison(handle, at, t);
    write_token(handle, at, args, t);
}

/* Whether the mutant that keys its cache by pointers takes this call for done. */
static int is_cached(slm_handle *handle, const slm_layer_forward_args *args)
{
    const int same = handle->last_x == args->x.data && handle->last_y == args->y.data;

    handle->last_x = args->x.data;
    handle->last_y = args->y.data;
    return same && wrong(handle, MUTANT_cached_by_pointer);
}

/* Refusals that only mutants have, of lawful sizes. */
static slm_status refuse(const slm_handle *handle, slm_error *error)
{
    const slm_config *config = &handle->config;

    if (wrong(handle, MUTANT_shared_required) && config->n_shared == 0)
        return slm_fail(error, SLM_ERR_DOMAIN, "layer_forward", "n_shared", 0,
                        "1 or more");
    if (wrong(handle, MUTANT_latent_wider_refused) &&
        config->d_latent > config->d_model)
        return slm_fail(error, SLM_ERR_DOMAIN, "layer_forward", "d_latent", 0,
                        "at most d_model");
    return SLM_OK;
}

slm_status scalar_layer_forward(slm_handle *handle, const slm_layer_forward_args *args,
                                slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens;
    slm_status status = scalar_begin(handle, SLM_OP_layer_forward, args, error);
    scalar_layer at;
    int poisoned = 0;

    if (!status) status = refuse(handle, error);
    if (status || n_tokens == 0 || is_cached(handle, args)) return status;
    lay_out(&at, args->call.workspace, &handle->config, n_tokens);
    scalar_load(at.gamma, &handle->weights.gamma);
    status = route_tokens(handle, &at, args, error);
    if (status) return status;
    scalar_write_routing(handle, &at.routing, &args->ids, &args->weight, &args->cutoff,
                         &args->logit, &args->score);
    if (handle->first_tokens == 0) handle->first_tokens = n_tokens;
    for (size_t t = 0; t < n_tokens; t++)
        if (!wrong(handle, MUTANT_sized_by_first_call) || t < handle->first_tokens)
            run_token(handle, &at, args, t, &poisoned);
    return SLM_OK;
}
