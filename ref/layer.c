/* SPDX-License-Identifier: Apache-2.0 */
/* ref/layer.c - the whole layer, one token at a time.                   R1-R5, L1-L5
 *
 *   z = x W_down^T                     o_q = expert e_q of z, q a slot
 *   u = sum_q p_q o_q                  r = RMSNorm(u)
 *   y = r W_lift^T + shared experts of x
 *
 * No stage is rounded; only the choice sees binary32 numbers. Weights of experts that
 * no token chose are not read. */
#include "internal.h"

void slm_ref_combine(arb_ptr u, arb_ptr gauge, arb_srcptr p, arb_srcptr o, size_t k,
                     size_t width, slong prec)
{
    arb_t weight, size;

    arb_init(weight);
    arb_init(size);
    for (size_t i = 0; i < width; i++) {
        slm_ref_dot(u + i, p, 1, o + i, (slong)width, (slong)k, prec);
        if (!gauge) continue;
        arb_zero(gauge + i);
        for (size_t q = 0; q < k; q++) {
            arb_abs(weight, p + q);
            arb_abs(size, o + q * width + i);
            arb_addmul(gauge + i, weight, size, prec);
        }
    }
    arb_clear(size);
    arb_clear(weight);
}

/* The balls of one token. */
typedef struct layer_work {
    const slm_config *config;
    const slm_weights *weights;
    const slm_layer_forward_args *args;
    size_t d, l, k, f, fs; /* fs: of all shared experts together */
    slm_ref_routing routing;
    fmpq_t eps;
    arb_ptr gamma; /* [l], NULL: ones */
    arb_ptr x;     /* [d]             */
    arb_ptr z;     /* [l]             */
    arb_ptr gate;  /* [max(f, fs)]    */
    arb_ptr h;     /* [k, f]          */
    arb_ptr o;     /* [k, l]          */
    arb_ptr u;     /* [l]             */
    arb_ptr r;     /* [l]             */
    arb_ptr hs;    /* [fs]            */
    arb_ptr y;     /* [d]             */
    arb_ptr part;  /* [d] one addend of y */
} layer_work;

static slm_status nonfinite(slm_error *error, const char *stage, size_t index)
{
    return slm_fail(error, SLM_ERR_NONFINITE, "layer_forward", stage, index,
                    "finite: the weights of this stage must be");
}

/* Row `token` of a stage must be real numbers. */
static slm_status check_real(arb_srcptr row, size_t width, const char *stage,
                             size_t token, slm_error *error)
{
    const size_t bad = slm_ref_first_unreal(row, width);

    return bad < width ? nonfinite(error, stage, token * width + bad) : SLM_OK;
}

/* o_q = E(z) of the expert in slot q. */
static slm_status run_expert(layer_work *work, size_t token, size_t q, slong prec,
                             slm_error *error)
{
    const slm_weights *weights = work->weights;
    const size_t e = (size_t)work->routing.ids[q];
    const size_t slot = token * work->k + q;
    arb_ptr h = work->h + q * work->f;
    arb_ptr o = work->o + q * work->l;
    size_t index;

    if (work->config->expert == SLM_EXPERT_LINEAR) {
        const slm_tensor w_expert = slm_tensor_at(&weights->w_expert, e);

        slm_ref_linear(o, NULL, &w_expert, work->z, prec);
    } else {
        const int gated = work->config->expert != SLM_EXPERT_RELU;
        const slm_tensor w_gate =
            gated ? slm_tensor_at(&weights->w_gate, e) : (slm_tensor){0};
        const slm_tensor w_up = slm_tensor_at(&weights->w_up, e);
        const slm_tensor w_out = slm_tensor_at(&weights->w_out, e);

        if (!slm_ref_inner(h, work->gate, &w_gate, &w_up, work->z, work->config, &index,
                           prec))
            return nonfinite(error, "h", slot * work->f + index);
        slm_ref_linear(o, NULL, &w_out, h, prec);
    }
    return check_real(o, work->l, "o", slot, error);
}

/* y += the shared experts of x: full width, unweighted.                            L3 */
static slm_status add_shared(layer_work *work, size_t token, slong prec,
                             slm_error *error)
{
    const slm_config *config = work->config;
    const slm_weights *weights = work->weights;
    const slong d = (slong)work->d;
    size_t index;

    if (config->expert == SLM_EXPERT_LINEAR) {
        for (size_t j = 0; j < config->n_shared; j++) {
            const slm_tensor w_shared = slm_tensor_at(&weights->w_shared, j);

            slm_ref_linear(work->part, NULL, &w_shared, work->x, prec);
            _arb_vec_add(work->y, work->y, work->part, d, prec);
        }
    } else if (work->fs > 0) {
        if (!slm_ref_inner(work->hs, work->gate, &weights->w_shared_gate,
                           &weights->w_shared_up, work->x, config, &index, prec))
            return nonfinite(error, "hs", token * work->fs + index);
        slm_ref_linear(work->part, NULL, &weights->w_shared_out, work->hs, prec);
        _arb_vec_add(work->y, work->y, work->part, d, prec);
    }
    return check_real(work->y, work->d, "y", token, error);
}

static void put_taps(const layer_work *work, size_t token, slm_ref_draft *draft)
{
    slm_ref_put(draft, "z", token, work->z);
    slm_ref_put(draft, "h", token, work->h);
    slm_ref_put(draft, "o", token, work->o);
    slm_ref_put(draft, "u", token, work->u);
    slm_ref_put(draft, "r", token, work->r);
    slm_ref_put(draft, "hs", token, work->hs);
    slm_ref_put(draft, "y", token, work->y);
}

/* From the chosen experts to r. */
static slm_status run_routed(layer_work *work, size_t token, slong prec,
                             slm_ref_draft *draft, slm_error *error)
{
    slm_status status;

    slm_ref_linear(work->z, NULL, &work->weights->w_down, work->x, prec);
    status = check_real(work->z, work->l, "z", token, error);
    if (status != SLM_OK) return status;
    slm_ref_progress(draft, token, 2);
    for (size_t q = 0; q < work->k; q++) {
        status = run_expert(work, token, q, prec, error);
        if (status != SLM_OK) return status;
        slm_ref_progress(draft, token, 3 + q);
    }
    slm_ref_combine(work->u, NULL, work->routing.weight, work->o, work->k, work->l,
                    prec);
    if (work->config->norm == SLM_NORM_RMS)
        slm_ref_rmsnorm(work->r, work->u, work->gamma, work->l, work->eps, prec);
    else
        _arb_vec_set(work->r, work->u, (slong)work->l);
    return SLM_OK;
}

static slm_status layer_row(void *user, size_t token, slong prec, slm_ref_draft *draft,
                            slm_error *error)
{
    layer_work *work = user;
    const slm_tensor x = slm_tensor_at(&work->args->x, token);
    slm_status status;

    slm_ref_load(work->x, &x);
    status =
        slm_ref_route_token(&work->routing, work->x, &work->weights->w_router,
                            &work->args->bias, work->config, token, prec, draft, error);
    if (status != SLM_OK || draft->unproved_field) return status;
    slm_ref_progress(draft, token, 1);
    status = run_routed(work, token, prec, draft, error);
    if (status != SLM_OK) return status;
    if (slm_ref_first_unreal(work->r, work->l) < work->l) {
        slm_ref_unproved(draft, "r", token * work->l); /* M may still be negative */
        return SLM_OK;
    }
    slm_ref_linear(work->y, NULL, &work->weights->w_lift, work->r, prec);
    status = add_shared(work, token, prec, error);
    if (status != SLM_OK) return status;
    put_taps(work, token, draft);
    return SLM_OK;
}

static void open_balls(layer_work *work)
{
    const size_t wide = work->f > work->fs ? work->f : work->fs;

    fmpq_init(work->eps);
    slm_ref_decimal(work->eps, work->config->eps);
    if (work->config->norm == SLM_NORM_RMS && work->weights->gamma.rank) {
        work->gamma = _arb_vec_init((slong)work->l);
        slm_ref_load(work->gamma, &work->weights->gamma);
    }
    work->x = _arb_vec_init((slong)work->d);
    work->z = _arb_vec_init((slong)work->l);
    work->gate = _arb_vec_init((slong)wide);
    work->h = _arb_vec_init((slong)(work->k * work->f));
    work->o = _arb_vec_init((slong)(work->k * work->l));
    work->u = _arb_vec_init((slong)work->l);
    work->r = _arb_vec_init((slong)work->l);
    work->hs = _arb_vec_init((slong)work->fs);
    work->y = _arb_vec_init((slong)work->d);
    work->part = _arb_vec_init((slong)work->d);
}

static void close_balls(layer_work *work)
{
    const size_t wide = work->f > work->fs ? work->f : work->fs;

    _arb_vec_clear(work->part, (slong)work->d);
    _arb_vec_clear(work->y, (slong)work->d);
    _arb_vec_clear(work->hs, (slong)work->fs);
    _arb_vec_clear(work->r, (slong)work->l);
    _arb_vec_clear(work->u, (slong)work->l);
    _arb_vec_clear(work->o, (slong)(work->k * work->l));
    _arb_vec_clear(work->h, (slong)(work->k * work->f));
    _arb_vec_clear(work->gate, (slong)wide);
    _arb_vec_clear(work->z, (slong)work->l);
    _arb_vec_clear(work->x, (slong)work->d);
    if (work->gamma) _arb_vec_clear(work->gamma, (slong)work->l);
    fmpq_clear(work->eps);
}

slm_status slm_ref_layer_finite(const slm_handle *handle, slm_op op, const void *args,
                                slm_error *error)
{
    const slm_tensor *gamma = &handle->weights.gamma;
    const slm_call *call = args;
    const slm_status status = slm_check_finite(op, &handle->config, args, error);
    size_t bad;

    if (status || call->n_tokens == 0 || handle->config.norm != SLM_NORM_RMS ||
        gamma->rank == 0)
        return status;
    bad = slm_ref_first_nonfinite(gamma);
    if (bad == slm_tensor_count(gamma)) return SLM_OK;
    return slm_fail(error, SLM_ERR_NONFINITE, slm_op_describe(op)->name, "gamma", bad,
                    "finite");
}

slm_status slm_ref_op_layer_forward(slm_handle *handle,
                                    const slm_layer_forward_args *args,
                                    slm_error *error)
{
    const slm_config *config = &handle->config;
    const int linear = config->expert == SLM_EXPERT_LINEAR;
    layer_work work = {.config = config,
                       .weights = &handle->weights,
                       .args = args,
                       .d = config->d_model,
                       .l = config->d_latent,
                       .k = config->top_k,
                       .f = linear ? 0 : config->d_expert,
                       .fs = linear ? 0 : config->n_shared * config->d_shared};
    slm_ref_draft draft;
    slm_status status = slm_ref_layer_finite(handle, SLM_OP_layer_forward, args, error);

    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_layer_forward, args, error);
    if (status != SLM_OK) return status;
    draft.steps = work.k + 3; /* router, w_down, the slots, the rest */
    status = slm_ref_routing_open(&work.routing, config, "layer_forward", error);
    if (status == SLM_OK) {
        open_balls(&work);
        status = slm_ref_each_token(&draft, layer_row, &work, error);
        close_balls(&work);
        slm_ref_routing_close(&work.routing);
    }
    slm_ref_draft_close(&draft);
    return status;
}
