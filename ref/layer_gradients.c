/* SPDX-License-Identifier: Apache-2.0 */
/* ref/layer_gradients.c - the layer's gradients: all tokens, then the sums over them.
 *
 * The gradient of a weight is a sum over the tokens, or the slots, that used it. What
 * nobody used stays what a draft begins with, 0: gradients of experts that no token
 * chose, and dbias.                                                          G4, G5 */
#include "layer_backward.h"

#include <stdlib.h>

/* The gradients of the weights that every token uses. */
static void put_common(const slm_ref_layer_work *work, slong prec, slm_ref_draft *draft)
{
    const size_t d = work->d, l = work->l, fs = work->fs, n_tokens = work->n_tokens;
    const slm_ref_rows x = {work->x, d, d, NULL}, dy = {work->dy, d, d, NULL};
    const slm_ref_rows r = {work->r, l, l, NULL}, dz = {work->dz, l, l, NULL};
    const slm_ref_rows hs = {work->hs, fs, fs, NULL};
    const slm_ref_rows da = {work->dshared, 2 * fs, fs, NULL};
    const slm_ref_rows db = {work->dshared + fs, 2 * fs, fs, NULL};

    slm_ref_put_outer(draft, "dw_down", 0, &dz, &x, n_tokens, prec);
    slm_ref_put_at(draft, "dgamma", 0, work->dgamma, l);
    slm_ref_put_outer(draft, "dw_lift", 0, &dy, &r, n_tokens, prec);
    slm_ref_put_outer(draft, "dw_shared_gate", 0, &da, &x, n_tokens, prec);
    slm_ref_put_outer(draft, "dw_shared_up", 0, &db, &x, n_tokens, prec);
    slm_ref_put_outer(draft, "dw_shared_out", 0, &dy, &hs, n_tokens, prec);
    for (size_t j = 0; j < work->config->n_shared; j++)
        slm_ref_put_outer(draft, "dw_shared", j * d * d, &dy, &x, n_tokens, prec);
}

/* The gradients of expert e's weights and of its row of w_router: sums over the slots
 * that chose it. */
static void put_expert(slm_ref_layer_work *work, size_t e, slong prec,
                       slm_ref_draft *draft)
{
    const size_t d = work->d, l = work->l, f = work->f;
    const slm_ref_rows x = {work->x, d, d, work->token};
    const slm_ref_rows z = {work->z, l, l, work->token};
    const slm_ref_rows dlogit = {work->dlogit + e, work->n, 1, work->token};
    const slm_ref_rows v = {work->v, l, l, work->slot};
    const slm_ref_rows h = {work->h, f, f, work->slot};
    const slm_ref_rows da = {work->dgate_up, 2 * f, f, work->slot};
    const slm_ref_rows db = {work->dgate_up + f, 2 * f, f, work->slot};
    size_t n_slots = 0;

    for (size_t s = 0; s < work->n_tokens * work->k; s++) {
        if ((size_t)work->ids[s] != e) continue;
        work->slot[n_slots] = s;
        work->token[n_slots++] = s / work->k;
    }
    slm_ref_put_outer(draft, "dw_router", e * d, &dlogit, &x, n_slots, prec);
    slm_ref_put_outer(draft, "dw_gate", e * f * l, &da, &z, n_slots, prec);
    slm_ref_put_outer(draft, "dw_up", e * f * l, &db, &z, n_slots, prec);
    slm_ref_put_outer(draft, "dw_out", e * l * f, &v, &h, n_slots, prec);
    slm_ref_put_outer(draft, "dw_expert", e * l * l, &v, &z, n_slots, prec);
}

static slm_status layer_pass(void *user, slong prec, slm_ref_draft *draft,
                             slm_error *error)
{
    slm_ref_layer_work *work = user;

    _arb_vec_zero(work->dgamma, (slong)work->l);
    for (size_t t = 0; t < work->n_tokens; t++) {
        const slm_status status = slm_ref_layer_token(work, t, prec, draft, error);
        if (status != SLM_OK) return status;
        slm_ref_progress(draft, t, draft->steps);
    }
    put_common(work, prec, draft);
    slm_ref_progress(draft, work->n_tokens, 1);
    for (size_t e = 0; e < work->n; e++) put_expert(work, e, prec, draft);
    return SLM_OK;
}

/* Does the same to every vector of balls, with its length. */
static void each_vector(slm_ref_layer_work *work, void (*act)(arb_ptr *at, slong n))
{
    const size_t many = work->n_tokens, d = work->d, l = work->l, n = work->n;
    const size_t k = work->k, f = work->f, fs = work->fs;
    const struct {
        arb_ptr *at;
        size_t n;
    } vectors[] = {{&work->x, many * d},
                   {&work->dy, many * d},
                   {&work->z, many * l},
                   {&work->h, many * k * f},
                   {&work->r, many * l},
                   {&work->hs, many * fs},
                   {&work->v, many * k * l},
                   {&work->dgate_up, many * k * 2 * f},
                   {&work->dz, many * l},
                   {&work->dlogit, many * n},
                   {&work->dshared, many * 2 * fs},
                   {&work->logit, n},
                   {&work->score, n},
                   {&work->p, k},
                   {&work->gate_up, k * 2 * f},
                   {&work->o, k * l},
                   {&work->u, l},
                   {&work->shared_gate_up, 2 * fs},
                   {&work->dr, l},
                   {&work->du, l},
                   {&work->dp, k},
                   {&work->dh, k * f},
                   {&work->dhs, fs},
                   {&work->dx, d},
                   {&work->part, d > l ? d : l},
                   {&work->term, l},
                   {&work->dgamma, l}};

    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        act(vectors[i].at, (slong)vectors[i].n);
}

static void make_vector(arb_ptr *at, slong n)
{
    *at = _arb_vec_init(n);
}

static void clear_vector(arb_ptr *at, slong n)
{
    _arb_vec_clear(*at, n);
}

static slm_status open_work(slm_ref_layer_work *work, slm_handle *handle,
                            const slm_layer_backward_args *args, slm_error *error)
{
    const slm_config *config = &handle->config;
    const int linear = config->expert == SLM_EXPERT_LINEAR;
    const size_t n_slots = args->call.n_tokens * config->top_k;

    *work = (slm_ref_layer_work){.config = config,
                                 .weights = &handle->weights,
                                 .args = args,
                                 .n_tokens = args->call.n_tokens,
                                 .d = config->d_model,
                                 .l = config->d_latent,
                                 .n = config->n_experts,
                                 .k = config->top_k,
                                 .f = linear ? 0 : config->d_expert,
                                 .fs = linear ? 0 : config->n_shared * config->d_shared,
                                 .ids = calloc(n_slots + 1, sizeof *work->ids),
                                 .slot = calloc(n_slots + 1, sizeof *work->slot),
                                 .token = calloc(n_slots + 1, sizeof *work->token)};
    fmpq_init(work->eps);
    each_vector(work, make_vector);
    if (config->norm == SLM_NORM_RMS && handle->weights.gamma.rank) {
        work->gamma = _arb_vec_init((slong)work->l);
        slm_ref_load(work->gamma, &handle->weights.gamma);
    }
    if (!work->ids || !work->slot || !work->token)
        return slm_fail(error, SLM_ERR_MEMORY, "layer_backward", "ids", 0,
                        "memory for %zu slots", n_slots);
    slm_ref_decimal(work->eps, config->eps);
    for (size_t s = 0; s < n_slots; s++)
        work->ids[s] = (int32_t)slm_ref_get(&args->ids, s);
    return SLM_OK;
}

static void close_work(slm_ref_layer_work *work)
{
    if (work->gamma) _arb_vec_clear(work->gamma, (slong)work->l);
    each_vector(work, clear_vector);
    fmpq_clear(work->eps);
    free(work->token);
    free(work->slot);
    free(work->ids);
}

slm_status slm_ref_op_layer_backward(slm_handle *handle,
                                     const slm_layer_backward_args *args,
                                     slm_error *error)
{
    slm_ref_layer_work work;
    slm_ref_draft draft;
    slm_status status =
        slm_ref_layer_finite(handle, SLM_OP_layer_backward, args, error);

    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_layer_backward, args, error);
    if (status != SLM_OK) return status;
    draft.steps = handle->config.top_k + 1; /* the slots, the rest */
    status = open_work(&work, handle, args, error);
    if (status == SLM_OK) status = slm_ref_whole(&draft, layer_pass, &work, error);
    close_work(&work);
    slm_ref_draft_close(&draft);
    return status;
}

slm_status slm_ref_watch_layer_backward(slm_handle *handle,
                                        const slm_layer_backward_args *args, slong prec,
                                        slm_ref_watch *watch, void *watcher,
                                        slm_error *error)
{
    slm_ref_layer_work work;
    slm_ref_draft draft;
    slm_status status = slm_ref_draft_open(&draft, SLM_OP_layer_backward, args, error);

    if (status != SLM_OK) return status;
    draft.watch = watch;
    draft.watcher = watcher;
    status = open_work(&work, handle, args, error);
    if (status == SLM_OK) status = layer_pass(&work, prec, &draft, error);
    if (status == SLM_OK &&
        slm_ref_first_unreal(work.r, work.n_tokens * work.l) < work.n_tokens * work.l)
        status = slm_fail(error, SLM_ERR_INTERNAL, "layer_backward", "r", 0,
                          "more than %ld bits", (long)prec);
    close_work(&work);
    slm_ref_draft_close(&draft);
    return status;
}
