/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_weight_backward.c - gradient through the weights.     G3 */
#include "scalar_gradient.h"

#include <math.h>

static double log_sigmoid(double a)
{
    return a < 0.0 ? a - log1p(exp(a)) : -log1p(exp(-a));
}

/* The weight of slot q from the logits, in binary64 also where scores underflow. */
static double real_weight(const slm_handle *handle, const float *logit,
                          const int32_t *ids, size_t q)
{
    const size_t k = handle->config.top_k;
    const int release = handle->config.weighting == SLM_WEIGHT_RELEASE;
    double top = -INFINITY, sum = 0.0;

    if (release && k == 1) return exp(log_sigmoid((double)logit[ids[q]]));
    for (size_t i = 0; i < k; i++) top = fmax(top, log_sigmoid((double)logit[ids[i]]));
    for (size_t i = 0; i < k; i++) sum += exp(log_sigmoid((double)logit[ids[i]]) - top);
    if (release && !wrong(handle, MUTANT_gradient_without_release_eps))
        sum += 1e-20 * exp(-top);
    return exp(log_sigmoid((double)logit[ids[q]]) - top) / sum;
}

void scalar_weights_of(const slm_handle *handle, float *weight, const float *logit,
                       const int32_t *ids)
{
    for (size_t q = 0; q < handle->config.top_k; q++)
        weight[q] = scalar_flush(handle, (float)real_weight(handle, logit, ids, q));
}

/* 1 - s of a logit. */
static float rest_of(const slm_handle *handle, float logit, float weight)
{
    if (wrong(handle, MUTANT_sigmoid_slope_missing)) return 1.0f;
    if (wrong(handle, MUTANT_slope_from_weight)) return 1.0f - weight;
    if (wrong(handle, MUTANT_slope_from_rounded_score))
        return 1.0f - scalar_sigmoid(handle, logit);
    if (wrong_in(handle, SLM_OP_select_backward, MUTANT_logit_slope_cut_off) &&
        logit > 32.0f)
        return 0.0f;
    return scalar_sigmoid(handle, -logit);
}

/* sum of p dp, which normalising takes off every dp. */
static float normaliser_term(const slm_handle *handle, const float *logit,
                             const int32_t *ids, const float *weight,
                             const float *dweight)
{
    const size_t k = handle->config.top_k;
    const int release = handle->config.weighting == SLM_WEIGHT_RELEASE;
    double sum = 0.0;

    if (wrong(handle, MUTANT_normaliser_term_missing)) return 0.0f;
    if (k == 1 &&
        wrong_in(handle, SLM_OP_select_backward, MUTANT_k_one_release_without_gradient))
        return dweight[0];
    if (k == 1) return release ? 0.0f : dweight[0];
    if (!is(handle, VARIANT_weights_from_logits))
        return scalar_dot(handle, weight, dweight, k);
    for (size_t q = 0; q < k; q++)
        sum += real_weight(handle, logit, ids, q) * (double)dweight[q];
    return (float)sum;
}

/* The gradient that the unchosen get when weights are those of all experts. */
static void spread(const slm_handle *handle, float *dlogit, const float *logit,
                   const int32_t *ids, float term)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    float sum = 0.0f;

    for (size_t q = 0; q < k; q++) sum += scalar_sigmoid(handle, logit[ids[q]]);
    for (size_t e = 0; e < n; e++) {
        const float s = scalar_sigmoid(handle, logit[e]);

        dlogit[e] = -s / sum * scalar_sigmoid(handle, -logit[e]) * term;
    }
}

void scalar_weight_backward(const slm_handle *handle, float *dlogit, const float *logit,
                            const int32_t *ids, const float *weight,
                            const float *dweight)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    const float term = normaliser_term(handle, logit, ids, weight, dweight);

    for (size_t e = 0; e < n; e++) dlogit[e] = 0.0f;
    if (wrong(handle, MUTANT_router_detached)) return;
    if (wrong(handle, MUTANT_gradient_to_unchosen))
        spread(handle, dlogit, logit, ids, term);
    for (size_t q = 0; q < k; q++) {
        const size_t e = (size_t)ids[q];
        float p = weight[q];

        if (is(handle, VARIANT_weights_from_logits))
            p = (float)real_weight(handle, logit, ids, q);
        dlogit[e] = p * rest_of(handle, logit[e], p) * (dweight[q] - term);
        if (k == 1 && wrong(handle, MUTANT_k_one_gradient))
            dlogit[e] = scalar_sigmoid(handle, logit[e]) *
                        scalar_sigmoid(handle, -logit[e]) * dweight[q];
    }
    for (size_t e = 0; e < n; e++) {
        dlogit[e] = scalar_flush(handle, dlogit[e]);
        if (wrong_in(handle, SLM_OP_select_backward, MUTANT_gradient_of_512_experts) &&
            e >= 512)
            dlogit[e] = 0.0f;
    }
}

/* Memory of one token. */
typedef struct space {
    float *logit, *dlogit;   /* [n] */
    float *weight, *dweight; /* [k] */
    int32_t *ids;            /* [k] */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config)
{
    const size_t n = config->n_experts, k = config->top_k;
    scalar_scratch scratch = {base, 0};

    at->logit = scalar_take(&scratch, n, sizeof *at->logit);
    at->dlogit = scalar_take(&scratch, n, sizeof *at->dlogit);
    at->weight = scalar_take(&scratch, k, sizeof *at->weight);
    at->dweight = scalar_take(&scratch, k, sizeof *at->dweight);
    at->ids = scalar_take(&scratch, k, sizeof *at->ids);
    return scratch.used;
}

size_t scalar_select_backward_space(const slm_config *config)
{
    space at;

    return lay_out(&at, NULL, config);
}

slm_status scalar_select_backward(slm_handle *handle,
                                  const slm_select_backward_args *args,
                                  slm_error *error)
{
    const slm_status status = scalar_begin(handle, SLM_OP_select_backward, args, error);
    const slm_handle own = scalar_backward_handle(handle);
    space at;

    if (status) return status;
    lay_out(&at, args->call.workspace, &own.config);
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        const slm_tensor logit = slm_tensor_at(&args->logit, t);
        const slm_tensor ids = slm_tensor_at(&args->ids, t);
        const slm_tensor dweight = slm_tensor_at(&args->dweight, t);
        const slm_tensor out = slm_tensor_at(&args->dlogit, t);

        scalar_load(at.logit, &logit);
        scalar_load(at.dweight, &dweight);
        for (size_t q = 0; q < own.config.top_k; q++)
            at.ids[q] = *(const int32_t *)scalar_element(&ids, q);
        scalar_weights_of(&own, at.weight, at.logit, at.ids);
        scalar_weight_backward(&own, at.dlogit, at.logit, at.ids, at.weight,
                               at.dweight);
        scalar_store(&out, at.dlogit);
    }
    return SLM_OK;
}
