/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_select.c - rows of scores; `select` and `route`.    R1-R4 */
#include "scalar.h"

#include <math.h>
#include <string.h>

void scalar_routing_take(scalar_routing *routing, scalar_scratch *scratch,
                         const slm_config *config, size_t n_tokens)
{
    const size_t n = config->n_experts, k = config->top_k;

    routing->bias = scalar_take(scratch, n, sizeof *routing->bias);
    routing->logit = scalar_take(scratch, n_tokens * n, sizeof *routing->logit);
    routing->score = scalar_take(scratch, n_tokens * n, sizeof *routing->score);
    routing->key = scalar_take(scratch, n, sizeof *routing->key);
    routing->taken = scalar_take(scratch, n, sizeof *routing->taken);
    routing->rank = scalar_take(scratch, k + 1, sizeof *routing->rank);
    routing->ids = scalar_take(scratch, n_tokens * k, sizeof *routing->ids);
    routing->weight = scalar_take(scratch, n_tokens * k, sizeof *routing->weight);
    routing->cutoff = scalar_take(scratch, n_tokens, sizeof *routing->cutoff);
    routing->poisoned = scalar_take(scratch, n_tokens, sizeof *routing->poisoned);
}

void scalar_logits(const slm_handle *handle, float *logit, const slm_tensor *w_router,
                   const float *x, float *copy)
{
    const int square = w_router->shape[0] == w_router->shape[1];
    const int transposed =
        wrong(handle, MUTANT_router_transposed) ||
        (square && wrong_in(handle, SLM_OP_route, MUTANT_square_router_transposed));
    const slm_tensor w = transposed ? scalar_transposed(w_router) : *w_router;

    for (size_t e = 0; e < w.shape[0]; e++) {
        const slm_tensor row = slm_tensor_at(&w, e);

        logit[e] = scalar_dot(handle, scalar_view(copy, &row), x, w.shape[1]);
        if (wrong(handle, MUTANT_logit_in_bf16)) logit[e] = scalar_bf16(logit[e]);
        if (wrong_in(handle, SLM_OP_route, MUTANT_bf16_logits_for_bf16) &&
            handle->config.dtype == SLM_BF16)
            logit[e] = scalar_bf16(logit[e]);
    }
}

/* Without the largest logit taken off first. */
static void overflowing_softmax(float *score, const float *logit, size_t n, int wide)
{
    double sum = 0.0;

    for (size_t e = 0; e < n; e++)
        sum += wide ? exp((double)logit[e]) : (double)expf(logit[e]);
    for (size_t e = 0; e < n; e++)
        score[e] =
            (float)((wide ? exp((double)logit[e]) : (double)expf(logit[e])) / sum);
}

/* An infinite logit that is the largest takes all. */
static void softmax(float *score, const float *logit, size_t n)
{
    float top = logit[0];
    double sum = 0.0;

    for (size_t e = 1; e < n; e++) top = fmaxf(top, logit[e]);
    for (size_t e = 0; e < n; e++)
        sum += logit[e] == top ? 1.0 : exp((double)logit[e] - (double)top);
    for (size_t e = 0; e < n; e++) {
        const double part = logit[e] == top ? 1.0 : exp((double)logit[e] - (double)top);

        score[e] = (float)(part / sum);
    }
}

static void fill_scores(const slm_handle *handle, float *score, const float *logit)
{
    const size_t n = handle->config.n_experts;
    int by_softmax = handle->config.score == SLM_SCORE_SOFTMAX;

    if (wrong(handle, MUTANT_softmax_for_sigmoid)) by_softmax = 1;
    if (wrong(handle, MUTANT_sigmoid_for_softmax)) by_softmax = 0;
    if (by_softmax) {
        if (wrong(handle, MUTANT_exp_overflow))
            overflowing_softmax(score, logit, n, 0);
        else if (wrong(handle, MUTANT_softmax_overflows))
            overflowing_softmax(score, logit, n, 1);
        else
            softmax(score, logit, n);
        for (size_t e = 0; e < n; e++) score[e] = scalar_flush(handle, score[e]);
        return;
    }
    for (size_t e = 0; e < n; e++) score[e] = scalar_sigmoid(handle, logit[e]);
    for (size_t e = n - n % 4; wrong(handle, MUTANT_tail_lanes_other_sigmoid) && e < n;
         e++)
        score[e] = logit[e] > 0.0f ? 0.5f + 0.5f * tanhf(logit[e] / 2.0f)
                                   : 1.0f / (1.0f + expf(-logit[e]));
}

/* Position of the first element that makes the row unusable, or n. */
static size_t first_poison(const slm_handle *handle, const float *row, int finite)
{
    const size_t n = handle->config.n_experts;
    const size_t end = n > 32 && wrong(handle, MUTANT_late_logits_unsearched) ? 32 : n;
    size_t i = 0;

    while (i < end && !isnan(row[i]) && (!finite || !isinf(row[i]))) i++;
    return i < end ? i : n;
}

/* A poisoned row: any distinct ids. */
static void poison_row(const slm_handle *handle, scalar_routing *routing, size_t t)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;

    for (size_t q = 0; q < k; q++) {
        int32_t id = (int32_t)q;

        if (wrong(handle, MUTANT_duplicate_ids_after_exhaustion)) id = 0;
        if (wrong(handle, MUTANT_out_of_range_ids_on_nan)) id = (int32_t)n;
        routing->ids[t * k + q] = id;
        routing->weight[t * k + q] = NAN;
    }
    routing->cutoff[t] = NAN;
    routing->poisoned[t] = 1;
}

static void choose_row(const slm_handle *handle, scalar_routing *routing, size_t t,
                       const float *logit)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    const size_t count = k < n ? k + 1 : k;
    float *score = routing->score + t * n;
    int32_t *ids = routing->ids + t * k;
    size_t next;

    scalar_keys(handle, routing->key, score, logit, routing->bias);
    scalar_choose(handle, routing->rank, count, routing->key, score, routing->taken);
    memcpy(ids, routing->rank, k * sizeof *ids);
    scalar_weigh(handle, routing->weight + t * k, ids, score, routing->key,
                 routing->bias);
    if (k == n) return;
    next = scalar_expert_id(handle, routing->rank[k]);
    if (wrong(handle, MUTANT_cutoff_is_kth_key))
        next = scalar_expert_id(handle, ids[k - 1]);
    routing->cutoff[t] = (float)routing->key[next];
    if (wrong(handle, MUTANT_cutoff_is_raw_score)) routing->cutoff[t] = score[next];
}

/* The first call's bias for ever. */
static void keep_first_bias(slm_handle *handle, float *bias)
{
    const size_t bytes = handle->config.n_experts * sizeof *bias;

    if (handle->has_first_bias)
        memcpy(bias, handle->first_bias, bytes);
    else
        memcpy(handle->first_bias, bias, bytes);
    handle->has_first_bias = 1;
}

/* The sum over the tokens of a slot. */
static void normalise_over_tokens(const slm_handle *handle, scalar_routing *routing,
                                  size_t n_tokens)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;

    for (size_t q = 0; q < k; q++) {
        float sum = 0.0f;

        for (int divide = 0; divide < 2; divide++)
            for (size_t t = 0; t < n_tokens; t++) {
                const size_t e = scalar_expert_id(handle, routing->ids[t * k + q]);
                const float s = routing->score[t * n + e];

                if (divide)
                    routing->weight[t * k + q] = s / sum;
                else
                    sum += s;
            }
    }
}

slm_status scalar_choose_rows(slm_handle *handle, scalar_routing *routing,
                              size_t n_tokens, int has_logits, slm_op op,
                              slm_error *error)
{
    const size_t n = handle->config.n_experts;
    const int finite = op == SLM_OP_select
                           ? wrong(handle, MUTANT_infinite_logit_poisons)
                           : !wrong(handle, MUTANT_infinite_logit_answered);
    int poisoned = 0;

    if (wrong(handle, MUTANT_first_bias_kept)) keep_first_bias(handle, routing->bias);
    for (size_t t = 0; t < n_tokens; t++) {
        float *logit = has_logits ? routing->logit + t * n : NULL;
        float *row = has_logits ? logit : routing->score + t * n;
        const size_t bad = first_poison(handle, row, finite);

        routing->poisoned[t] = 0;
        if (bad < n && is(handle, VARIANT_refuses_nan))
            return slm_fail(error, SLM_ERR_NONFINITE, slm_op_describe(op)->name,
                            has_logits ? "logit" : "score", t * n + bad, "a number");
        for (size_t e = 0; bad < n && wrong(handle, MUTANT_nan_hidden) && e < n; e++)
            if (!isfinite(row[e])) row[e] = 0.0f;
        if (has_logits) fill_scores(handle, routing->score + t * n, logit);
        poisoned |= bad < n;
        if (bad < n && !wrong(handle, MUTANT_nan_hidden))
            poison_row(handle, routing, t);
        else
            choose_row(handle, routing, t, logit);
        if (poisoned && wrong(handle, MUTANT_nan_poisons_other_rows))
            poison_row(handle, routing, t);
    }
    if (wrong(handle, MUTANT_normalised_over_tokens))
        normalise_over_tokens(handle, routing, n_tokens);
    return SLM_OK;
}

/* [T, width] packed values into a view; nothing when it is absent. */
static void write_rows(const slm_tensor *tensor, const float *value)
{
    for (size_t t = 0; tensor->rank && t < tensor->shape[0]; t++) {
        const slm_tensor row = slm_tensor_at(tensor, t);

        scalar_store(&row, value + t * row.shape[0]);
    }
}

void scalar_write_routing(const slm_handle *handle, const scalar_routing *routing,
                          const slm_tensor *ids, const slm_tensor *weight,
                          const slm_tensor *cutoff, const slm_tensor *logit,
                          const slm_tensor *score)
{
    const size_t count = slm_tensor_count(ids);
    const int skips = wrong_in(handle, SLM_OP_route, MUTANT_poisoned_ids_unwritten);

    for (size_t i = 0; i < count; i++)
        if (!skips || !routing->poisoned[i / handle->config.top_k])
            *(int32_t *)scalar_element(ids, i) = routing->ids[i];
    write_rows(weight, routing->weight);
    if (handle->config.top_k < handle->config.n_experts)
        scalar_store(cutoff, routing->cutoff);
    write_rows(logit, routing->logit);
    write_rows(score, wrong(handle, MUTANT_logit_told_as_score) && !logit->rank
                          ? routing->logit
                          : routing->score);
}

size_t scalar_select_space(const slm_config *config, const slm_call *call)
{
    scalar_scratch scratch = {NULL, 0};
    scalar_routing routing;

    scalar_routing_take(&routing, &scratch, config, call->n_tokens);
    return scratch.used;
}

/* Row `index` of scores or logits, taken as a view in one wrong way or another. */
static slm_tensor row_of(const slm_handle *handle, const slm_tensor *tensor,
                         size_t index)
{
    slm_tensor row = slm_tensor_at(tensor, index);

    if (wrong(handle, MUTANT_element_strides_ignored) && row.stride[0] > 0)
        row.stride[0] = 1;
    if (wrong(handle, MUTANT_zero_strides_ignored) && row.stride[0] == 0)
        row.stride[0] = 1;
    if (wrong(handle, MUTANT_row_offset_in_32_bits)) {
        const uint32_t offset = (uint32_t)index * (uint32_t)tensor->stride[0];

        row.data = (char *)tensor->data +
                   (int32_t)offset * (ptrdiff_t)slm_dtype_size(tensor->dtype);
    }
    return row;
}

slm_status scalar_select(slm_handle *handle, const slm_select_args *args,
                         slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens, n = handle->config.n_experts;
    const int has_logits = args->logit.rank != 0;
    scalar_scratch scratch = {args->call.workspace, 0};
    slm_status status = scalar_begin(handle, SLM_OP_select, args, error);
    const slm_tensor none = {.rank = 0};
    scalar_routing routing;

    if (status || n_tokens == 0) return status;
    scalar_routing_take(&routing, &scratch, &handle->config, n_tokens);
    scalar_load(routing.bias, &args->bias);
    for (size_t t = 0; t < n_tokens; t++) {
        const slm_tensor row =
            row_of(handle, has_logits ? &args->logit : &args->score, t);

        scalar_load((has_logits ? routing.logit : routing.score) + t * n, &row);
    }
    status = scalar_choose_rows(handle, &routing, n_tokens, has_logits, SLM_OP_select,
                                error);
    if (!status)
        scalar_write_routing(handle, &routing, &args->ids, &args->weight, &args->cutoff,
                             &none, &none);
    return status;
}

/* A token, and room for a row of w_router. */
static float *take_rows(scalar_scratch *scratch, const slm_config *config)
{
    return scalar_take(scratch, 2 * config->d_model, sizeof(float));
}

size_t scalar_route_space(const slm_config *config, const slm_call *call)
{
    scalar_scratch scratch = {NULL, scalar_select_space(config, call)};

    take_rows(&scratch, config);
    return scratch.used;
}

slm_status scalar_route(slm_handle *handle, const slm_route_args *args,
                        slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens, n = handle->config.n_experts;
    const size_t d = handle->config.d_model;
    scalar_scratch scratch = {args->call.workspace, 0};
    slm_status status = scalar_begin(handle, SLM_OP_route, args, error);
    scalar_routing routing;
    float *x;

    if (status || n_tokens == 0) return status;
    scalar_routing_take(&routing, &scratch, &handle->config, n_tokens);
    x = take_rows(&scratch, &handle->config);
    scalar_load(routing.bias, &args->bias);
    for (size_t t = 0; t < n_tokens; t++) {
        const slm_tensor row = slm_tensor_at(&args->x, t);

        scalar_load(x, &row);
        scalar_logits(handle, routing.logit + t * n, &args->w_router, x, x + d);
    }
    status = scalar_choose_rows(handle, &routing, n_tokens, 1, SLM_OP_route, error);
    if (!status)
        scalar_write_routing(handle, &routing, &args->ids, &args->weight, &args->cutoff,
                             &args->logit, &args->score);
    return status;
}
