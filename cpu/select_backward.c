/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/select_backward.c - gradient of the logits through the weights of the chosen.
 *
 * Clause   G3, G5.  Preconditions are the contract's; none is checked here.
 * Method   binary64 from the logits, rounded once: dlogit = p (1 - s) (dp - sum p dp).
 *          The largest chosen log s is divided out first, so p keeps its digits where
 *          every s has underflowed; 1 - s is sigma(-logit).
 * Order    the sum goes in slot order; rows are independent.
 * Aliasing none. */
#include "internal.h"

/* log sigma(x): exact for x below about -745, where e^x is 0. */
static double log_sigmoid(double x)
{
    return x < 0.0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

static double sigmoid(double x)
{
    const double e = exp(-fabs(x));

    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* p [k] of the real sigmoids of the chosen logits.                               R3 */
static void weights(const slm_config *config, const float *logit, const int32_t *ids,
                    double *p)
{
    const size_t k = config->top_k;
    const int release = config->weighting == SLM_WEIGHT_RELEASE;
    double top = -INFINITY, sum = 0.0;

    for (size_t q = 0; q < k; q++) {
        p[q] = log_sigmoid((double)logit[ids[q]]);
        top = fmax(top, p[q]);
    }
    if (release) top = 0.0;
    for (size_t q = 0; q < k; q++) {
        p[q] = exp(p[q] - top);
        sum += p[q];
    }
    if (release) sum = k > 1 ? sum + 1e-20 : 1.0;
    for (size_t q = 0; q < k; q++) p[q] /= sum;
}

void slm_cpu_select_backward_row(const slm_config *config, const float *logit,
                                 const int32_t *ids, const float *dweight,
                                 double *scratch, float *dlogit)
{
    const size_t k = config->top_k;
    const int alone = k == 1 && config->weighting == SLM_WEIGHT_RELEASE;
    double mean = 0.0;

    weights(config, logit, ids, scratch);
    for (size_t q = 0; q < k; q++) mean += scratch[q] * (double)dweight[q];
    memset(dlogit, 0, config->n_experts * sizeof *dlogit);
    for (size_t q = 0; q < k; q++) {
        const double slope = scratch[q] * sigmoid(-(double)logit[ids[q]]);
        const double dp = (double)dweight[q];

        dlogit[ids[q]] = (float)(slope * (alone ? dp : dp - mean));
    }
}

typedef struct space {
    float *logit;    /* [T, n]  only when it cannot be read where it is     */
    float *dweight;  /* [T, k]  the same                                    */
    float *dlogit;   /* [T, n]  only when it cannot be written where it is  */
    int32_t *ids;    /* [T, k]                                              */
    double *scratch; /* [T, k]                                              */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};
    const size_t n = config->n_experts, k = config->top_k;

    at->logit = slm_cpu_take_f32(&arena, rows, n);
    at->dweight = slm_cpu_take_f32(&arena, rows, k);
    at->dlogit = slm_cpu_take_f32(&arena, rows, n);
    at->ids = slm_cpu_take(&arena, rows, k, sizeof *at->ids);
    at->scratch = slm_cpu_take(&arena, rows, k, sizeof *at->scratch);
    return arena.used;
}

size_t slm_cpu_select_backward_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status slm_cpu_select_backward(slm_handle *handle,
                                   const slm_select_backward_args *args,
                                   slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, n = config->n_experts, k = config->top_k;
    const slm_status status =
        slm_check_finite(SLM_OP_select_backward, config, args, error);
    slm_cpu_matrix logit, dweight, dlogit;
    space at;

    if (status || rows == 0) return status;
    lay_out(&at, args->call.workspace, config, rows);
    logit = slm_cpu_read(&args->logit, at.logit);
    dweight = slm_cpu_read(&args->dweight, at.dweight);

    const int direct = slm_cpu_is_matrix(&args->dlogit, &dlogit);

    if (!direct) dlogit = (slm_cpu_matrix){at.dlogit, n};
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++) {
        int32_t *ids = at.ids + t * k;

        for (size_t q = 0; q < k; q++) ids[q] = *slm_cpu_i32(&args->ids, t, q);
        slm_cpu_select_backward_row(config, slm_cpu_row(logit, t), ids,
                                    slm_cpu_row(dweight, t), at.scratch + t * k,
                                    slm_cpu_row(dlogit, t));
    }
    if (!direct) slm_cpu_write(&args->dlogit, dlogit);
    return SLM_OK;
}
