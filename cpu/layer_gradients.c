/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/layer_gradients.c - layer_backward: workspace, the gradients of weights, taps.
 *
 * Clause   G4, G5.  Preconditions are the contract's; none is checked here.
 * Method   one list of outer products, three an expert, then the dense ones, whose
 *          blocks share one pool (ffn_backward.c): idle experts cost their zeros alone.
 * Order    see layer_backward.c. */
#include "layer_backward.h"

enum { DENSE_GRADIENTS = 6 };

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The largest block of any gradient. */
static size_t stage_size(const slm_config *config, size_t f, size_t s)
{
    const size_t d = config->d_model, l = config->d_latent;
    size_t most = slm_cpu_largest_block(d, l);

    most = larger(most, slm_cpu_largest_block(l, d));
    most = larger(most, slm_cpu_largest_block(config->n_experts, d));
    if (config->expert == SLM_EXPERT_LINEAR) {
        most = larger(most, slm_cpu_largest_block(l, l));
        return larger(most, slm_cpu_largest_block(d, d));
    }
    most = larger(most, slm_cpu_largest_block(l, f));
    most = larger(most, slm_cpu_largest_block(f, l));
    most = larger(most, slm_cpu_largest_block(s, d));
    return larger(most, slm_cpu_largest_block(d, s));
}

static void take_rows(slm_cpu_arena *arena, slm_cpu_backward *at,
                      const slm_config *config, size_t rows)
{
    const size_t n = config->n_experts, k = config->top_k;
    const size_t d = config->d_model, l = config->d_latent;

    at->x = slm_cpu_take_f32(arena, rows, d);
    at->dy = slm_cpu_take_f32(arena, rows, d);
    at->dx = slm_cpu_take_f32(arena, rows, d);
    at->ids = slm_cpu_take(arena, rows, k, sizeof *at->ids);
    at->logit = slm_cpu_take_f32(arena, rows, n);
    at->score = slm_cpu_take_f32(arena, rows, n);
    at->weight = slm_cpu_take_f32(arena, rows, k);
    at->dweight = slm_cpu_take_f32(arena, rows, k);
    at->dlogit = slm_cpu_take_f32(arena, rows, n);
    at->scratch = slm_cpu_take(arena, rows, k, sizeof *at->scratch);
    at->z = slm_cpu_take_f32(arena, rows, l);
    at->u = slm_cpu_take_f32(arena, rows, l);
    at->r = slm_cpu_take_f32(arena, rows, l);
    at->dr = slm_cpu_take_f32(arena, rows, l);
    at->du = slm_cpu_take_f32(arena, rows, l);
    at->dz = slm_cpu_take_f32(arena, rows, l);
    at->scale = slm_cpu_take(arena, rows, 1, sizeof *at->scale);
    at->dgamma = slm_cpu_take(arena, 1, l, sizeof *at->dgamma);
}

size_t slm_cpu_lay_out_backward(slm_cpu_backward *at, void *base,
                                const slm_config *config, size_t n_tokens)
{
    slm_cpu_arena arena = {base, 0};
    const size_t rows = slm_cpu_panel_rows(n_tokens), n = config->n_experts;
    const size_t k = config->top_k, l = config->d_latent;
    const int inner = config->expert != SLM_EXPERT_LINEAR;
    const size_t f = inner ? config->d_expert : 0;
    const size_t s = inner ? config->n_shared * config->d_shared : 0;
    const size_t pairs = rows * k;

    take_rows(&arena, at, config, rows);
    at->rows = slm_cpu_take_f32(&arena, pairs, l);
    at->gate_up = slm_cpu_take_f32(&arena, pairs, 2 * f);
    at->h = slm_cpu_take_f32(&arena, pairs, f);
    at->o = slm_cpu_take_f32(&arena, pairs, l);
    at->pdu = slm_cpu_take_f32(&arena, pairs, l);
    at->dh = slm_cpu_take_f32(&arena, pairs, f);
    at->shared_gate_up = slm_cpu_take_f32(&arena, rows, 2 * s);
    at->hs = slm_cpu_take_f32(&arena, rows, s);
    at->dhs = slm_cpu_take_f32(&arena, rows, s);
    slm_cpu_take_groups(&arena, n, rows, k, &at->groups);
    at->gradients =
        slm_cpu_take(&arena, 3 * n + DENSE_GRADIENTS + (inner ? 0 : config->n_shared),
                     1, sizeof *at->gradients);
    at->stage_size = stage_size(config, f, s);
    at->stage = slm_cpu_take_f32(&arena, SLM_CPU_STAGES, at->stage_size);
    return arena.used;
}

size_t slm_cpu_layer_backward_space(const slm_config *config, const slm_call *call)
{
    slm_cpu_backward at;

    return slm_cpu_lay_out_backward(&at, NULL, config, call->n_tokens);
}

/* to = x^T w over `inner` rows, or zeros when there are none. */
static slm_cpu_gradient gradient_of(const slm_cpu_panel *on, const slm_tensor *to,
                                    size_t inner, slm_cpu_matrix x, slm_cpu_matrix w)
{
    const unsigned how = SLM_CPU_OUTER | (on->adds ? SLM_CPU_ADD : 0u);

    return (slm_cpu_gradient){
        {to->shape[0], to->shape[1], inner, x, w, {NULL, 0}, how}, *to, 0};
}

static size_t add_experts(const slm_handle *handle, const slm_cpu_backward *at,
                          const slm_cpu_panel *on, slm_cpu_gradient *list)
{
    const slm_config *config = &handle->config;
    const slm_layer_backward_args *args = on->args;
    const size_t l = config->d_latent, f = config->d_expert;
    size_t used = 0;

    for (size_t e = 0; e < config->n_experts; e++) {
        const size_t begin = (size_t)at->groups.offsets[e];
        const size_t count = (size_t)at->groups.counts[e];
        const slm_cpu_matrix rows = {at->rows + begin * l, l};
        const slm_cpu_matrix pdu = {at->pdu + begin * l, l};

        if (config->expert == SLM_EXPERT_LINEAR) {
            const slm_tensor to = slm_tensor_at(&args->dw_expert, e);

            list[used++] = gradient_of(on, &to, count, pdu, rows);
            continue;
        }

        const slm_tensor to_gate = slm_tensor_at(&args->dw_gate, e);
        const slm_tensor to_up = slm_tensor_at(&args->dw_up, e);
        const slm_tensor to_out = slm_tensor_at(&args->dw_out, e);
        float *gate_up = at->gate_up + begin * 2 * f;

        list[used++] =
            gradient_of(on, &to_gate, count, slm_cpu_first_half(gate_up, f), rows);
        list[used++] =
            gradient_of(on, &to_up, count, slm_cpu_second_half(gate_up, f), rows);
        list[used++] = gradient_of(on, &to_out, count, pdu,
                                   (slm_cpu_matrix){at->h + begin * f, f});
    }
    return used;
}

static size_t add_shared(const slm_handle *handle, const slm_cpu_backward *at,
                         const slm_cpu_panel *on, slm_cpu_gradient *list)
{
    const slm_config *config = &handle->config;
    const slm_layer_backward_args *args = on->args;
    const size_t s = config->n_shared * config->d_shared, rows = on->rows;
    size_t used = 0;

    if (config->n_shared == 0) return 0;
    if (config->expert == SLM_EXPERT_LINEAR) {
        for (size_t j = 0; j < config->n_shared; j++) {
            const slm_tensor to = slm_tensor_at(&args->dw_shared, j);

            list[used++] = gradient_of(on, &to, rows, on->dy, on->x);
        }
        return used;
    }
    if (s == 0) return 0;
    list[used++] = gradient_of(on, &args->dw_shared_gate, rows,
                               slm_cpu_first_half(at->shared_gate_up, s), on->x);
    list[used++] = gradient_of(on, &args->dw_shared_up, rows,
                               slm_cpu_second_half(at->shared_gate_up, s), on->x);
    list[used++] = gradient_of(on, &args->dw_shared_out, rows, on->dy,
                               (slm_cpu_matrix){at->hs, s});
    return used;
}

void slm_cpu_write_gradients(const slm_handle *handle, const slm_cpu_backward *at,
                             const slm_cpu_panel *on)
{
    const size_t n = handle->config.n_experts, l = handle->config.d_latent;
    const slm_layer_backward_args *args = on->args;
    slm_cpu_gradient *list = at->gradients;
    size_t used = add_experts(handle, at, on, list);

    used += add_shared(handle, at, on, list + used);
    list[used++] =
        gradient_of(on, &args->dw_lift, on->rows, on->dy, (slm_cpu_matrix){at->r, l});
    list[used++] =
        gradient_of(on, &args->dw_down, on->rows, (slm_cpu_matrix){at->dz, l}, on->x);
    list[used++] = gradient_of(on, &args->dw_router, on->rows,
                               (slm_cpu_matrix){at->dlogit, n}, on->x);
    slm_cpu_gradients(handle, list, used, at->stage, at->stage_size);
}

void slm_cpu_write_forward(const slm_cpu_backward *at, const slm_cpu_panel *on,
                           const slm_config *config)
{
    const slm_layer_backward_args *args = on->args;
    const size_t n = config->n_experts, k = config->top_k;
    const size_t l = config->d_latent, f = config->d_expert;
    const size_t s = config->n_shared * config->d_shared;
    const int64_t *place = at->groups.place;

    slm_cpu_write(&args->logit, (slm_cpu_matrix){at->logit, n});
    slm_cpu_write(&args->weight, (slm_cpu_matrix){at->weight, k});
    slm_cpu_write(&args->z, (slm_cpu_matrix){at->z, l});
    slm_cpu_write_pairs(&args->gate_up, place, at->gate_up, 2 * f);
    slm_cpu_write_pairs(&args->h, place, at->h, f);
    slm_cpu_write_pairs(&args->o, place, at->o, l);
    slm_cpu_write(&args->u, (slm_cpu_matrix){at->u, l});
    slm_cpu_write(&args->r, (slm_cpu_matrix){at->r, l});
    if (s == 0) return;
    slm_cpu_write(&args->shared_gate_up, slm_cpu_first_half(at->shared_gate_up, s));
    slm_cpu_write(&args->hs, (slm_cpu_matrix){at->hs, s});
    slm_cpu_write(&args->dhs, (slm_cpu_matrix){at->dhs, s});
}

void slm_cpu_write_backward(const slm_cpu_backward *at, const slm_cpu_panel *on,
                            const slm_config *config)
{
    const slm_layer_backward_args *args = on->args;
    const size_t n = config->n_experts, k = config->top_k;
    const size_t l = config->d_latent, f = config->d_expert;
    const size_t s = config->n_shared * config->d_shared;
    const int64_t *place = at->groups.place;

    slm_cpu_write(&args->dr, (slm_cpu_matrix){at->dr, l});
    slm_cpu_write(&args->du, (slm_cpu_matrix){at->du, l});
    slm_cpu_write(&args->dweight, (slm_cpu_matrix){at->dweight, k});
    slm_cpu_write(&args->dlogit, (slm_cpu_matrix){at->dlogit, n});
    slm_cpu_write_pairs(&args->dh, place, at->dh, f);
    slm_cpu_write_pairs(&args->dgate_up, place, at->gate_up, 2 * f);
    slm_cpu_write(&args->dz, (slm_cpu_matrix){at->dz, l});
    if (s)
        slm_cpu_write(&args->dshared_gate_up,
                      slm_cpu_first_half(at->shared_gate_up, s));
}
