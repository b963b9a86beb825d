/* SPDX-License-Identifier: Apache-2.0 */
/* ref/select_backward.c - the gradient of the logits through the chosen weights.   G3
 *
 *   D_j = dp_j - sum_i p_i dp_i,  dlogit_j = p_j (1 - s_j) D_j,  i and j chosen
 *
 * D_j is summed as dp_j (1 - sum p) + sum_i p_i (dp_j - dp_i): 1 - sum p is 0 with
 * ratio, 1e-20 / (sum s + 1e-20) with release. So equal dp give an exact 0 with ratio,
 * and no digits are lost with release. */
#include "internal.h"

/* 1 - sum p of release: guard / (sum + guard), guard = 10^-20. */
static void missing_share(arb_t out, arb_srcptr score, const int32_t *ids, size_t k,
                          slong prec)
{
    arb_t sum;

    arb_init(sum);
    for (size_t q = 0; q < k; q++) arb_add(sum, sum, score + ids[q], prec);
    arb_set_ui(out, 10);
    arb_pow_ui(out, out, 20, prec);
    arb_mul(sum, sum, out, prec);
    arb_add_ui(sum, sum, 1, prec);
    arb_inv(out, sum, prec);
    arb_clear(sum);
}

/* sum_i p_i (dp_j - dp_i); equal weights stand before the sum, which is then exact. */
static void spread(arb_t out, arb_srcptr weight, int equal, arb_srcptr dweight,
                   size_t j, size_t k, slong prec)
{
    arb_t difference;

    arb_init(difference);
    arb_zero(out);
    for (size_t i = 0; i < k; i++) {
        arb_sub(difference, dweight + j, dweight + i, prec);
        if (equal)
            arb_add(out, out, difference, prec);
        else
            arb_addmul(out, weight + i, difference, prec);
    }
    if (equal) arb_mul(out, out, weight, prec);
    arb_clear(difference);
}

void slm_ref_mixture_backward(arb_ptr dlogit, arb_srcptr logit, const int32_t *ids,
                              arb_srcptr dweight, const slm_config *config, slong prec)
{
    const size_t n = config->n_experts, k = config->top_k;
    const int release = config->weighting == SLM_WEIGHT_RELEASE;
    const int equal = slm_ref_all_equal(logit, ids, k);
    arb_ptr score = _arb_vec_init((slong)n), weight = _arb_vec_init((slong)k);
    arb_t d, missing, rest;

    arb_init(d);
    arb_init(missing);
    arb_init(rest);
    _arb_vec_zero(dlogit, (slong)n);
    slm_ref_weights_of_logits(weight, score, logit, ids, config, prec);
    if (release && k == 1)
        arb_one(missing); /* p = s: no share is taken from others */
    else if (release)
        missing_share(missing, score, ids, k, prec);
    for (size_t j = 0; j < k; j++) {
        arb_neg(rest, logit + ids[j]);
        slm_ref_sigmoid(rest, rest, prec); /* 1 - s, to relative accuracy */
        if (k > 1) spread(d, weight, equal, dweight, j, k, prec);
        arb_addmul(d, dweight + j, missing, prec);
        arb_mul(d, d, rest, prec);
        arb_mul(dlogit + ids[j], d, weight + j, prec);
    }
    arb_clear(rest);
    arb_clear(missing);
    arb_clear(d);
    _arb_vec_clear(weight, (slong)k);
    _arb_vec_clear(score, (slong)n);
}

typedef struct backward_work {
    const slm_config *config;
    const slm_select_backward_args *args;
    slm_ref_routing routing; /* its logit and ids */
    arb_ptr dweight;         /* [k] */
    arb_ptr dlogit;          /* [n] */
} backward_work;

static slm_status backward_row(void *user, size_t token, slong prec,
                               slm_ref_draft *draft, slm_error *error)
{
    backward_work *work = user;
    const size_t k = work->config->top_k;
    const slm_tensor logit = slm_tensor_at(&work->args->logit, token);
    const slm_tensor dweight = slm_tensor_at(&work->args->dweight, token);

    (void)error;
    slm_ref_load(work->routing.logit, &logit);
    slm_ref_load(work->dweight, &dweight);
    for (size_t q = 0; q < k; q++)
        work->routing.ids[q] = (int32_t)slm_ref_get(&work->args->ids, token * k + q);
    slm_ref_mixture_backward(work->dlogit, work->routing.logit, work->routing.ids,
                             work->dweight, work->config, prec);
    slm_ref_put(draft, "dlogit", token, work->dlogit);
    return SLM_OK;
}

slm_status slm_ref_op_select_backward(slm_handle *handle,
                                      const slm_select_backward_args *args,
                                      slm_error *error)
{
    const slong n = (slong)handle->config.n_experts, k = (slong)handle->config.top_k;
    backward_work work = {.config = &handle->config, .args = args};
    slm_ref_draft draft;
    slm_status status =
        slm_check_finite(SLM_OP_select_backward, &handle->config, args, error);

    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_select_backward, args, error);
    if (status != SLM_OK) return status;
    status = slm_ref_routing_open(&work.routing, work.config, "select_backward", error);
    if (status == SLM_OK) {
        work.dweight = _arb_vec_init(k);
        work.dlogit = _arb_vec_init(n);
        status = slm_ref_each_token(&draft, backward_row, &work, error);
        _arb_vec_clear(work.dlogit, n);
        _arb_vec_clear(work.dweight, k);
        slm_ref_routing_close(&work.routing);
    }
    slm_ref_draft_close(&draft);
    return status;
}
