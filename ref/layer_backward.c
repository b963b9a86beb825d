/* SPDX-License-Identifier: Apache-2.0 */
/* ref/layer_backward.c - one token of the layer's gradients, at a given choice. G1, G4
 *
 *   dr = dy W_lift            du = RMSNorm backward of dr     dp_q = <du, o_q>
 *   v_q = p_q du              dh_q = v_q W_out[e_q]           (da, db)_q by G1
 *   dz = sum_q (da_q W_gate[e_q] + db_q W_up[e_q])            dlogit by G3
 *   dx = dz W_down + dlogit W_router + shared experts
 *
 * No stage is rounded. Weights of experts that the token did not choose stay unread. */
#include "layer_backward.h"

/* Row `token` of a stage must be real numbers. */
static slm_status check_real(arb_srcptr row, size_t width, const char *stage,
                             size_t token, slm_error *error)
{
    const size_t bad = slm_ref_first_unreal(row, width);

    if (bad == width) return SLM_OK;
    return slm_fail(error, SLM_ERR_NONFINITE, "layer_backward", stage,
                    token * width + bad, "finite: the weights of this stage must be");
}

static slm_status nonfinite_inner(const char *stage, size_t index, slm_error *error)
{
    return slm_fail(error, SLM_ERR_NONFINITE, "layer_backward", stage, index,
                    "finite: the weights of this stage must be");
}

/* o_q = E(z) of the expert in slot q; gate_up and h on the way. */
static slm_status run_expert(slm_ref_layer_work *work, size_t t, size_t q, slong prec,
                             slm_error *error)
{
    const slm_weights *weights = work->weights;
    const size_t slot = t * work->k + q, e = (size_t)work->ids[slot];
    arb_srcptr z = work->z + t * work->l;
    arb_ptr h = work->h + slot * work->f, o = work->o + q * work->l;
    size_t index;

    if (work->config->expert == SLM_EXPERT_LINEAR) {
        const slm_tensor w_expert = slm_tensor_at(&weights->w_expert, e);

        slm_ref_linear(o, NULL, &w_expert, z, prec);
    } else {
        const slm_tensor w_gate = slm_tensor_at(&weights->w_gate, e);
        const slm_tensor w_up = slm_tensor_at(&weights->w_up, e);
        const slm_tensor w_out = slm_tensor_at(&weights->w_out, e);

        if (!slm_ref_inner_sums(work->gate_up + q * 2 * work->f, h, &w_gate, &w_up, z,
                                work->config, &index, prec))
            return nonfinite_inner("h", slot * work->f + index, error);
        slm_ref_linear(o, NULL, &w_out, h, prec);
    }
    return check_real(o, work->l, "o", slot, error);
}

/* The forward pass at the given choice, up to r and hs. */
static slm_status forward(slm_ref_layer_work *work, size_t t, slong prec,
                          slm_ref_draft *draft, slm_error *error)
{
    const slm_weights *weights = work->weights;
    const int32_t *ids = work->ids + t * work->k;
    arb_srcptr x = work->x + t * work->d;
    arb_ptr z = work->z + t * work->l, r = work->r + t * work->l;
    slm_status status;
    size_t index;

    slm_ref_linear(work->logit, NULL, &weights->w_router, x, prec);
    status = check_real(work->logit, work->n, "logit", t, error);
    if (status != SLM_OK) return status;
    slm_ref_weights_of_logits(work->p, work->score, work->logit, ids, work->config,
                              prec);
    slm_ref_linear(z, NULL, &weights->w_down, x, prec);
    status = check_real(z, work->l, "z", t, error);
    for (size_t q = 0; q < work->k && status == SLM_OK; q++) {
        status = run_expert(work, t, q, prec, error);
        slm_ref_progress(draft, t, 1 + q);
    }
    if (status != SLM_OK) return status;
    slm_ref_combine(work->u, NULL, work->p, work->o, work->k, work->l, prec);
    if (work->config->norm == SLM_NORM_RMS)
        slm_ref_rmsnorm(r, work->u, work->gamma, work->l, work->eps, prec);
    else
        _arb_vec_set(r, work->u, (slong)work->l);
    if (work->fs > 0 &&
        !slm_ref_inner_sums(work->shared_gate_up, work->hs + t * work->fs,
                            &weights->w_shared_gate, &weights->w_shared_up, x,
                            work->config, &index, prec))
        return nonfinite_inner("hs", t * work->fs + index, error);
    return SLM_OK;
}

/* dr and du; dgamma grows by this token's addend. */
static slm_status norm_backward(slm_ref_layer_work *work, size_t t, slong prec,
                                slm_error *error)
{
    const slong l = (slong)work->l;
    slm_status status;

    slm_ref_linear_transposed(work->dr, NULL, &work->weights->w_lift,
                              work->dy + t * work->d, prec);
    status = check_real(work->dr, work->l, "dr", t, error);
    if (status != SLM_OK) return status;
    if (work->config->norm != SLM_NORM_RMS) {
        _arb_vec_set(work->du, work->dr, l);
        return SLM_OK;
    }
    slm_ref_rmsnorm_backward(work->du, work->term, work->u, work->gamma, work->dr,
                             work->l, work->eps, prec);
    _arb_vec_add(work->dgamma, work->dgamma, work->term, l, prec);
    return SLM_OK;
}

/* From du to dp_q, and through the expert in slot q into dz. */
static void expert_backward(slm_ref_layer_work *work, size_t t, size_t q, slong prec)
{
    const slm_weights *weights = work->weights;
    const slong l = (slong)work->l;
    const size_t slot = t * work->k + q, e = (size_t)work->ids[slot];
    arb_ptr v = work->v + slot * work->l, dz = work->dz + t * work->l;
    arb_ptr dh = work->dh + q * work->f;

    slm_ref_dot(work->dp + q, work->du, 1, work->o + q * work->l, 1, l, prec);
    _arb_vec_scalar_mul(v, work->du, l, work->p + q, prec);
    if (work->config->expert == SLM_EXPERT_LINEAR) {
        const slm_tensor w_expert = slm_tensor_at(&weights->w_expert, e);

        slm_ref_linear_transposed(work->part, NULL, &w_expert, v, prec);
        _arb_vec_add(dz, dz, work->part, l, prec);
    } else {
        const slm_tensor w_gate = slm_tensor_at(&weights->w_gate, e);
        const slm_tensor w_up = slm_tensor_at(&weights->w_up, e);
        const slm_tensor w_out = slm_tensor_at(&weights->w_out, e);

        slm_ref_linear_transposed(dh, NULL, &w_out, v, prec);
        slm_ref_inner_backward(dz, work->dgate_up + slot * 2 * work->f, work->part, dh,
                               work->gate_up + q * 2 * work->f, &w_gate, &w_up,
                               work->config, prec);
    }
}

/* dx += gradient through the shared experts. */
static slm_status shared_backward(slm_ref_layer_work *work, size_t t, slong prec,
                                  slm_error *error)
{
    const slm_weights *weights = work->weights;
    const slong d = (slong)work->d;
    arb_srcptr dy = work->dy + t * work->d;
    slm_status status = SLM_OK;

    if (work->config->expert == SLM_EXPERT_LINEAR) {
        for (size_t j = 0; j < work->config->n_shared; j++) {
            const slm_tensor w_shared = slm_tensor_at(&weights->w_shared, j);

            slm_ref_linear_transposed(work->part, NULL, &w_shared, dy, prec);
            _arb_vec_add(work->dx, work->dx, work->part, d, prec);
        }
    } else if (work->fs > 0) {
        slm_ref_linear_transposed(work->dhs, NULL, &weights->w_shared_out, dy, prec);
        status = check_real(work->dhs, work->fs, "dhs", t, error);
        if (status == SLM_OK)
            slm_ref_inner_backward(work->dx, work->dshared + t * 2 * work->fs,
                                   work->part, work->dhs, work->shared_gate_up,
                                   &weights->w_shared_gate, &weights->w_shared_up,
                                   work->config, prec);
    }
    return status;
}

static slm_status backward(slm_ref_layer_work *work, size_t t, slong prec,
                           slm_error *error)
{
    const slm_weights *weights = work->weights;
    const slong d = (slong)work->d;
    arb_ptr dz = work->dz + t * work->l, dlogit = work->dlogit + t * work->n;
    slm_status status = norm_backward(work, t, prec, error);

    if (status != SLM_OK) return status;
    _arb_vec_zero(dz, (slong)work->l);
    for (size_t q = 0; q < work->k; q++) expert_backward(work, t, q, prec);
    slm_ref_mixture_backward(dlogit, work->logit, work->ids + t * work->k, work->dp,
                             work->config, prec);
    slm_ref_linear_transposed(work->dx, NULL, &weights->w_down, dz, prec);
    slm_ref_linear_transposed(work->part, NULL, &weights->w_router, dlogit, prec);
    _arb_vec_add(work->dx, work->dx, work->part, d, prec);
    status = shared_backward(work, t, prec, error);
    if (status != SLM_OK) return status;
    return check_real(work->dx, work->d, "dx", t, error);
}

static void put_token(const slm_ref_layer_work *work, size_t t, slm_ref_draft *draft)
{
    slm_ref_put(draft, "dx", t, work->dx);
    slm_ref_put(draft, "logit", t, work->logit);
    slm_ref_put(draft, "weight", t, work->p);
    slm_ref_put(draft, "z", t, work->z + t * work->l);
    slm_ref_put(draft, "gate_up", t, work->gate_up);
    slm_ref_put(draft, "h", t, work->h + t * work->k * work->f);
    slm_ref_put(draft, "o", t, work->o);
    slm_ref_put(draft, "u", t, work->u);
    slm_ref_put(draft, "r", t, work->r + t * work->l);
    slm_ref_put(draft, "shared_gate_up", t, work->shared_gate_up);
    slm_ref_put(draft, "hs", t, work->hs + t * work->fs);
    slm_ref_put(draft, "dr", t, work->dr);
    slm_ref_put(draft, "du", t, work->du);
    slm_ref_put(draft, "dweight", t, work->dp);
    slm_ref_put(draft, "dlogit", t, work->dlogit + t * work->n);
    slm_ref_put(draft, "dh", t, work->dh);
    slm_ref_put(draft, "dgate_up", t, work->dgate_up + t * work->k * 2 * work->f);
    slm_ref_put(draft, "dz", t, work->dz + t * work->l);
    slm_ref_put(draft, "dhs", t, work->dhs);
    slm_ref_put(draft, "dshared_gate_up", t, work->dshared + t * 2 * work->fs);
}

slm_status slm_ref_layer_token(slm_ref_layer_work *work, size_t t, slong prec,
                               slm_ref_draft *draft, slm_error *error)
{
    const slm_tensor x = slm_tensor_at(&work->args->x, t);
    const slm_tensor dy = slm_tensor_at(&work->args->dy, t);
    slm_status status;

    slm_ref_load(work->x + t * work->d, &x);
    slm_ref_load(work->dy + t * work->d, &dy);
    status = forward(work, t, prec, draft, error);
    if (status != SLM_OK) return status;
    if (slm_ref_first_unreal(work->r + t * work->l, work->l) < work->l) {
        slm_ref_unproved(draft, "r", t * work->l); /* M may still be negative */
        return SLM_OK;
    }
    status = backward(work, t, prec, error);
    if (status == SLM_OK) put_token(work, t, draft);
    return status;
}
