/* SPDX-License-Identifier: Apache-2.0 */
/* ref/select.c - scores, the choice of experts, their weights.                  R1-R4
 *
 * s score, b bias, p weight; e an expert's id, q a slot. The choice is made on binary32
 * keys; the weights come from real scores, before any rounding. */
#include "internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* e^l over its sum, in the form e^(l - peak): limits at infinite logits included. */
static void softmax(arb_ptr score, arb_srcptr logit, size_t n, slong prec)
{
    size_t peak = 0;
    arb_t top, sum;

    arb_init(top);
    arb_init(sum);
    for (size_t e = 1; e < n; e++)
        if (arf_cmp(arb_midref(logit + e), arb_midref(logit + peak)) > 0) peak = e;
    arb_set(top, logit + peak);
    for (size_t e = 0; e < n; e++) {
        if (e == peak || (arb_is_exact(top) && arb_equal(logit + e, top))) {
            arb_one(score + e);
        } else {
            arb_sub(score + e, logit + e, top, prec);
            if (arf_is_neg_inf(arb_midref(score + e)))
                arb_zero(score + e);
            else
                arb_exp(score + e, score + e, prec);
        }
        arb_add(sum, sum, score + e, prec);
    }
    for (size_t e = 0; e < n; e++) arb_div(score + e, score + e, sum, prec);
    arb_clear(sum);
    arb_clear(top);
}

void slm_ref_scores(arb_ptr score, arb_srcptr logit, const slm_config *config,
                    slong prec)
{
    if (config->score == SLM_SCORE_SOFTMAX) {
        softmax(score, logit, config->n_experts, prec);
        return;
    }
    for (size_t e = 0; e < config->n_experts; e++)
        slm_ref_sigmoid(score + e, logit + e, prec);
}

/* Whether expert e comes after `last` in the order: key descending, id ascending. */
static int comes_after(const float *key, size_t e, size_t last)
{
    return key[e] < key[last] || (key[e] == key[last] && e > last);
}

void slm_ref_choose(int32_t *ids, float *cutoff, const float *key, size_t n, size_t k)
{
    size_t last = n; /* nobody yet */

    for (size_t q = 0; q <= k && q < n; q++) {
        size_t best = n;

        for (size_t e = 0; e < n; e++) {
            if (last < n && !comes_after(key, e, last)) continue;
            if (best == n || key[e] > key[best]) best = e;
        }
        if (q < k)
            ids[q] = (int32_t)best;
        else
            *cutoff = key[best];
        last = best;
    }
}

int slm_ref_all_equal(arb_srcptr value, const int32_t *ids, size_t k)
{
    for (size_t q = 0; q < k; q++) {
        if (!arb_is_exact(value + ids[q])) return 0;
        if (!arb_equal(value + ids[q], value + ids[0])) return 0;
    }
    return 1;
}

/* p = 1 / k. */
static void equal_shares(arb_ptr weight, size_t k, slong prec)
{
    for (size_t q = 0; q < k; q++) {
        arb_one(weight + q);
        arb_div_ui(weight + q, weight + q, k, prec);
    }
}

void slm_ref_mixture(arb_ptr weight, arb_srcptr score, const int32_t *ids,
                     const slm_config *config, slong prec)
{
    const size_t k = config->top_k;
    const int release = config->weighting == SLM_WEIGHT_RELEASE;
    arb_t sum, guard;

    if (!release && (k == 1 || slm_ref_all_equal(score, ids, k))) {
        equal_shares(weight, k, prec); /* exact where it can be; holds for 0/0 too */
        return;
    }
    arb_init(sum);
    arb_init(guard);
    for (size_t q = 0; q < k; q++) arb_add(sum, sum, score + ids[q], prec);
    if (release) {
        arb_set_ui(guard, 10);
        arb_pow_ui(guard, guard, 20, prec);
        arb_inv(guard, guard, prec);
        arb_add(sum, sum, guard, prec); /* + 1e-20 */
    }
    for (size_t q = 0; q < k; q++) {
        if (release && k == 1)
            arb_set(weight + q, score + ids[q]);
        else
            arb_div(weight + q, score + ids[q], sum, prec);
    }
    arb_clear(guard);
    arb_clear(sum);
}

/* From real scores [n]. logit NULL: the scores were given; else exact equal logits give
 * equal scores, whatever the balls of these say. */
static void weigh(arb_ptr weight, arb_srcptr logit, arb_srcptr score,
                  const int32_t *ids, const slm_config *config, slong prec)
{
    if (logit && config->weighting == SLM_WEIGHT_RATIO &&
        slm_ref_all_equal(logit, ids, config->top_k))
        equal_shares(weight, config->top_k, prec);
    else
        slm_ref_mixture(weight, score, ids, config, prec);
}

void slm_ref_weights_of_logits(arb_ptr weight, arb_ptr score, arb_srcptr logit,
                               const int32_t *ids, const slm_config *config, slong prec)
{
    for (size_t q = 0; q < config->top_k; q++)
        slm_ref_sigmoid(score + ids[q], logit + ids[q], prec);
    weigh(weight, logit, score, ids, config, prec);
}

slm_status slm_ref_routing_open(slm_ref_routing *routing, const slm_config *config,
                                const char *op, slm_error *error)
{
    const size_t n = config->n_experts, k = config->top_k;

    *routing = (slm_ref_routing){.n = n, .k = k};
    routing->score = calloc(n, sizeof *routing->score);
    routing->key = calloc(n, sizeof *routing->key);
    routing->ids = calloc(k, sizeof *routing->ids);
    routing->logit = _arb_vec_init((slong)n);
    routing->real = _arb_vec_init((slong)n);
    routing->weight = _arb_vec_init((slong)k);
    if (routing->score && routing->key && routing->ids) return SLM_OK;
    slm_ref_routing_close(routing);
    return slm_fail(error, SLM_ERR_MEMORY, op, "score", 0, "memory for a row");
}

void slm_ref_routing_close(slm_ref_routing *routing)
{
    _arb_vec_clear(routing->weight, (slong)routing->k);
    _arb_vec_clear(routing->real, (slong)routing->n);
    _arb_vec_clear(routing->logit, (slong)routing->n);
    free(routing->ids);
    free(routing->key);
    free(routing->score);
}

/* From binary32 and real scores to ids, cutoff and weights. */
static void settle(slm_ref_routing *routing, const slm_tensor *bias,
                   const slm_config *config, int from_logits, size_t token, slong prec,
                   slm_ref_draft *draft)
{
    float cutoff;

    for (size_t e = 0; e < routing->n; e++)
        routing->key[e] = slm_ref_key(routing->score[e], (float)slm_ref_get(bias, e));
    slm_ref_choose(routing->ids, &cutoff, routing->key, routing->n, routing->k);
    weigh(routing->weight, from_logits ? routing->logit : NULL, routing->real,
          routing->ids, config, prec);
    slm_ref_put_i32(draft, "ids", token, routing->ids);
    slm_ref_put(draft, "weight", token, routing->weight);
    if (routing->k < routing->n) slm_ref_put_f32(draft, "cutoff", token, &cutoff);
}

/* The same from real logits, which may be infinite. */
static void decide(slm_ref_routing *routing, const slm_tensor *bias,
                   const slm_config *config, size_t token, slong prec,
                   slm_ref_draft *draft)
{
    slm_ref_scores(routing->real, routing->logit, config, prec);
    for (size_t e = 0; e < routing->n; e++)
        if (!slm_ref_f32(&routing->score[e], routing->real + e))
            slm_ref_unproved(draft, "score", token * routing->n + e);
    if (draft->unproved_field) return;
    slm_ref_put_f32(draft, "score", token, routing->score);
    settle(routing, bias, config, 1, token, prec, draft);
}

slm_status slm_ref_route_token(slm_ref_routing *routing, arb_srcptr x,
                               const slm_tensor *w_router, const slm_tensor *bias,
                               const slm_config *config, size_t token, slong prec,
                               slm_ref_draft *draft, slm_error *error)
{
    const size_t n = routing->n;

    slm_ref_linear(routing->logit, NULL, w_router, x, prec);
    const size_t bad = slm_ref_first_unreal(routing->logit, n);
    if (bad < n)
        return slm_fail(error, SLM_ERR_NONFINITE, draft->info->name, "logit",
                        token * n + bad, "finite: x and w_router must be");
    slm_ref_put(draft, "logit", token, routing->logit);
    decide(routing, bias, config, token, prec, draft);
    return SLM_OK;
}

typedef struct route_work {
    const slm_config *config;
    const slm_route_args *args;
    slm_ref_routing routing;
    arb_ptr x; /* [d] */
} route_work;

static slm_status route_row(void *user, size_t token, slong prec, slm_ref_draft *draft,
                            slm_error *error)
{
    route_work *work = user;
    const slm_route_args *args = work->args;
    const slm_tensor x = slm_tensor_at(&args->x, token);

    slm_ref_load(work->x, &x);
    return slm_ref_route_token(&work->routing, work->x, &args->w_router, &args->bias,
                               work->config, token, prec, draft, error);
}

slm_status slm_ref_op_route(slm_handle *handle, const slm_route_args *args,
                            slm_error *error)
{
    const slong d = (slong)handle->config.d_model;
    route_work work = {.config = &handle->config, .args = args};
    slm_ref_draft draft;
    slm_status status = slm_check_finite(SLM_OP_route, &handle->config, args, error);

    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_route, args, error);
    if (status != SLM_OK) return status;
    status = slm_ref_routing_open(&work.routing, work.config, "route", error);
    if (status == SLM_OK) {
        work.x = _arb_vec_init(d);
        status = slm_ref_each_token(&draft, route_row, &work, error);
        _arb_vec_clear(work.x, d);
        slm_ref_routing_close(&work.routing);
    }
    slm_ref_draft_close(&draft);
    return status;
}

typedef struct select_work {
    const slm_config *config;
    const slm_select_args *args;
    slm_ref_routing routing;
} select_work;

static slm_status select_row(void *user, size_t token, slong prec, slm_ref_draft *draft,
                             slm_error *error)
{
    select_work *work = user;
    slm_ref_routing *routing = &work->routing;
    const int from_logits = work->args->logit.rank != 0;
    const slm_tensor row =
        slm_tensor_at(from_logits ? &work->args->logit : &work->args->score, token);

    for (size_t e = 0; e < routing->n; e++)
        if (isnan(slm_ref_get(&row, e)))
            return slm_fail(error, SLM_ERR_NONFINITE, "select",
                            from_logits ? "logit" : "score", token * routing->n + e,
                            "a number");
    if (from_logits) {
        slm_ref_load(routing->logit, &row);
        decide(routing, &work->args->bias, work->config, token, prec, draft);
        return SLM_OK;
    }
    slm_ref_load(routing->real, &row);
    for (size_t e = 0; e < routing->n; e++)
        routing->score[e] = (float)slm_ref_get(&row, e);
    settle(routing, &work->args->bias, work->config, 0, token, prec, draft);
    return SLM_OK;
}

slm_status slm_ref_op_select(slm_handle *handle, const slm_select_args *args,
                             slm_error *error)
{
    select_work work = {.config = &handle->config, .args = args};
    slm_ref_draft draft;
    slm_status status = slm_check_finite(SLM_OP_select, &handle->config, args, error);

    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_select, args, error);
    if (status != SLM_OK) return status;
    status = slm_ref_routing_open(&work.routing, work.config, "select", error);
    if (status == SLM_OK) {
        status = slm_ref_each_token(&draft, select_row, &work, error);
        slm_ref_routing_close(&work.routing);
    }
    slm_ref_draft_close(&draft);
    return status;
}
