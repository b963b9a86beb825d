/* SPDX-License-Identifier: Apache-2.0 */
/* spec/domain.c - which values are lawful: DOMAIN and NONFINITE.                    X1
 *
 * Sizes and parameters of the configuration come first, in its order, then tensors in
 * the order of the arguments; within a tensor the lowest index. Only members that the
 * operation uses are looked at, and only host memory. */
#include "contract.h"

#include <math.h>
#include <string.h>

/* Element at a row-major index. */
static const void *element(const slm_tensor *tensor, size_t index)
{
    ptrdiff_t offset = 0;

    for (uint32_t i = tensor->rank; i-- > 0;) {
        offset += (ptrdiff_t)(index % tensor->shape[i]) * tensor->stride[i];
        index /= tensor->shape[i];
    }
    return (const char *)tensor->data +
           offset * (ptrdiff_t)slm_dtype_size(tensor->dtype);
}

/* Elements that can be looked at. */
static size_t visible(const slm_tensor *tensor)
{
    return tensor->rank && tensor->space == SLM_HOST ? slm_tensor_count(tensor) : 0;
}

/* First element that the test refuses, and its index; NULL when there is none. */
static const void *first_where(const slm_tensor *tensor, int (*refused)(const void *),
                               size_t *index)
{
    const size_t count = visible(tensor);
    const uint32_t last = tensor->rank - 1;
    const size_t width = count ? tensor->shape[last] : 1;

    for (size_t row = 0; row < count; row += width) {
        const char *value = element(tensor, row);
        const ptrdiff_t step =
            tensor->stride[last] * (ptrdiff_t)slm_dtype_size(tensor->dtype);

        for (size_t i = 0; i < width; i++) {
            if (refused(value + (ptrdiff_t)i * step)) {
                *index = row + i;
                return value + (ptrdiff_t)i * step;
            }
        }
    }
    return NULL;
}

static int outside_unit(const void *value)
{
    const float score = *(const float *)value;

    return score < 0 || score > 1;
}

static int not_finite(const void *value)
{
    return !isfinite(*(const float *)value);
}

static int negative(const void *value)
{
    return *(const int64_t *)value < 0;
}

/* Whether a size of that letter appears in a field that the configuration uses. */
static int uses(const door *at, char part)
{
    for (size_t i = 0; i < at->n_fields; i++) {
        if (slm_door_applies(at, &at->fields[i]) <= 0) continue;
        for (const char *dim = at->fields[i].dims; *dim; dim++)
            if (strchr(slm_door_parts(*dim), part)) return 1;
    }
    return 0;
}

/* Whether elements of the configuration's dtype appear. */
static int uses_dtype(const door *at)
{
    for (size_t i = 0; i < at->n_fields; i++)
        if (at->fields[i].kind == SLM_KIND_REAL &&
            slm_door_applies(at, &at->fields[i]) > 0)
            return 1;
    return 0;
}

static slm_status bad_member(const door *at, const char *field, const char *expected,
                             size_t got)
{
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, field, 0, "%s; got %zu",
                    expected, got);
}

/* 1 <= k <= n. Balancing needs a (k+1)-th key: k < n.                         R5, Q2 */
static slm_status check_top_k(const door *at)
{
    const size_t k = at->config->top_k;
    const size_t n = at->config->n_experts;
    const int balances = at->op == SLM_OP_qb_exact ||
                         at->op == SLM_OP_qb_hist_accumulate ||
                         at->op == SLM_OP_qb_hist_solve;

    if (!balances && !uses(at, 'k')) return SLM_OK;
    if (k >= 1 && k <= n - (size_t)balances) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "top_k", 0,
                    "1 <= k %s n, n is %zu; got %zu", balances ? "<" : "<=", n, k);
}

static slm_status check_sizes(const door *at)
{
    const slm_config *config = at->config;
    slm_status status;

    if (uses(at, 'd') && config->d_model < 1)
        return bad_member(at, "d_model", "1 <= d", config->d_model);
    if (uses(at, 'l') && config->d_latent < 1)
        return bad_member(at, "d_latent", "1 <= l", config->d_latent);
    if (uses(at, 'n') && (config->n_experts < 1 || config->n_experts > INT32_MAX))
        return bad_member(at, "n_experts", "1 <= n <= 2147483647", config->n_experts);
    status = check_top_k(at);
    if (status) return status;
    if (uses(at, 'f') && config->d_expert < 1)
        return bad_member(at, "d_expert", "1 <= f", config->d_expert);
    if (uses(at, 'F') && config->n_shared > 0 && config->d_shared < 1)
        return bad_member(at, "d_shared", "1 <= fs", config->d_shared);
    if (uses(at, 'B') && config->n_bins < 1)
        return bad_member(at, "n_bins", "1 <= B", config->n_bins);
    return SLM_OK;
}

/* Members that name one of a few choices. */
static slm_status check_choices(const door *at)
{
    const slm_config *config = at->config;
    const int layer = at->op == SLM_OP_layer_forward;
    const int routes = layer || at->op == SLM_OP_route || at->op == SLM_OP_select;
    const int weights = at->op == SLM_OP_COUNT;
    const int dense = at->op == SLM_OP_dense_ffn;
    const unsigned expert = config->expert;

    if (uses_dtype(at) && config->dtype != SLM_F32 && config->dtype != SLM_BF16)
        return bad_member(at, "dtype", "SLM_F32 or SLM_BF16", config->dtype);
    if (routes && (unsigned)config->score > SLM_SCORE_SOFTMAX)
        return bad_member(at, "score", "a score function", config->score);
    if (routes && (unsigned)config->weighting > SLM_WEIGHT_RELEASE)
        return bad_member(at, "weighting", "a weighting", config->weighting);
    if ((layer || weights || dense) && expert >= SLM_EXPERT_KINDS)
        return bad_member(at, "expert", "a kind of expert", expert);
    if (dense && expert == SLM_EXPERT_LINEAR)
        return bad_member(at, "expert", "a kind with an inner width", expert);
    if ((layer || weights || at->op == SLM_OP_rmsnorm) &&
        (unsigned)config->norm > SLM_NORM_NONE)
        return bad_member(at, "norm", "a norm", config->norm);
    if (at->op != SLM_OP_qb_exact) return SLM_OK;
    if ((unsigned)config->balance > SLM_BALANCE_RELAXED)
        return bad_member(at, "balance", "strict or relaxed", config->balance);
    if (config->balance == SLM_BALANCE_STRICT &&
        (unsigned)config->tie_test > SLM_TIE_EQUAL)
        return bad_member(at, "tie_test", "a tie test", config->tie_test);
    return SLM_OK;
}

static slm_status check_positive(const door *at, const char *field, double value)
{
    if (value > 0 && value < (double)INFINITY) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, field, 0,
                    "positive and finite; got %g", value);
}

static slm_status check_parameters(const door *at)
{
    const slm_config *config = at->config;
    const int layer = at->op == SLM_OP_layer_forward;
    const int normalises = layer || at->op == SLM_OP_rmsnorm;
    const int activates = layer || at->op == SLM_OP_dense_ffn;
    slm_status status = SLM_OK;

    if (normalises && config->norm == SLM_NORM_RMS)
        status = check_positive(at, "eps", config->eps);
    if (at->op == SLM_OP_situ_glu || (activates && config->expert == SLM_EXPERT_SITU)) {
        if (!status) status = check_positive(at, "beta_gate", config->beta_gate);
        if (!status) status = check_positive(at, "beta_up", config->beta_up);
    }
    if (at->op != SLM_OP_sign_step) return status;
    status = check_positive(at, "rate", config->rate);
    if (!status && (double)(float)config->rate != config->rate)
        status = slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "rate", 0,
                          "a binary32 value; got %a", config->rate);
    return status;
}

static slm_status check_scores(const door *at, const slm_tensor *score)
{
    size_t index;
    const float *bad = first_where(score, outside_unit, &index);

    if (!bad) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "score", index,
                    "a score in [0, 1]; got %g", (double)*bad);
}

static slm_status check_counts(const door *at, const char *field,
                               const slm_tensor *counts)
{
    size_t index;
    const int64_t *bad = first_where(counts, negative, &index);

    if (!bad) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, field, index,
                    "not negative; got %lld", (long long)*bad);
}

/* Each id in 0..n-1, and once a row.  Of a repeat the later element is reported. */
static slm_status check_ids(const door *at, const slm_tensor *ids)
{
    const size_t count = visible(ids);
    const size_t k = at->config->top_k;
    const size_t n = at->config->n_experts;

    for (size_t i = 0; i < count; i++) {
        const int32_t id = *(const int32_t *)element(ids, i);

        if (id < 0 || (size_t)id >= n)
            return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "ids", i,
                            "0 <= id < n, n is %zu; got %d", n, (int)id);
        for (size_t j = i - i % k; j < i; j++)
            if (*(const int32_t *)element(ids, j) == id)
                return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "ids", i,
                                "ids distinct within a token; got %d twice", (int)id);
    }
    return SLM_OK;
}

/* Counts of a histogram row by row: none negative, and the row's sum is n_tokens
 * (solve), or still fits in an int64 when n_tokens more are counted (accumulate). A
 * wrong sum is reported at the row's first element.                               Q3 */
static slm_status check_histogram(const door *at, const slm_tensor *hist)
{
    const size_t count = visible(hist);
    const size_t bins = at->config->n_bins;
    const size_t tokens = at->call->n_tokens;
    const int solves = at->op == SLM_OP_qb_hist_solve;
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        const int64_t value = *(const int64_t *)element(hist, i);
        const size_t first = i - i % bins;

        if (i == first) sum = 0;
        if (value < 0)
            return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "hist", i,
                            "not negative; got %lld", (long long)value);
        if (__builtin_add_overflow(sum, (uint64_t)value, &sum))
            return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "hist", first,
                            "a row sum that fits in 64 bits");
        if (i != first + bins - 1) continue;
        if (solves && sum != tokens)
            return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "hist", first,
                            "a row that sums to n_tokens %zu; got %llu", tokens,
                            (unsigned long long)sum);
        if (!solves && sum > INT64_MAX - tokens) /* scores fit: tokens < 2^61 */
            return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "hist", first,
                            "row sum + n_tokens <= 2^63 - 1; got %llu + %zu",
                            (unsigned long long)sum, tokens);
    }
    return SLM_OK;
}

/* Counts of the parts: none negative, each sum over the parts fits in an int64. A sum
 * that does not is reported at the element that takes it too far, of several at the
 * lowest.                                                                         C1 */
static slm_status check_parts(const door *at, const slm_tensor *parts)
{
    const slm_status status = check_counts(at, "parts", parts);
    const size_t n_parts = visible(parts) ? at->call->n_parts : 0;
    const size_t each = n_parts ? visible(parts) / n_parts : 0;
    size_t lowest = SIZE_MAX;

    for (size_t i = 0; i < each && !status; i++) {
        int64_t sum = 0;

        for (size_t part = 0; part < n_parts; part++) {
            const size_t index = part * each + i;

            if (index >= lowest) break;
            if (__builtin_add_overflow(sum, *(const int64_t *)element(parts, index),
                                       &sum))
                lowest = index;
        }
    }
    if (lowest == SIZE_MAX) return status;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "parts", lowest,
                    "a sum over the parts <= 2^63 - 1");
}

static slm_status check_values(const door *at)
{
    switch (at->op) {
    case SLM_OP_select:
        return check_scores(at, &((const slm_select_args *)at->args)->score);
    case SLM_OP_permute:
        return check_ids(at, &((const slm_permute_args *)at->args)->ids);
    case SLM_OP_load_metrics:
        return check_ids(at, &((const slm_load_metrics_args *)at->args)->ids);
    case SLM_OP_qb_exact:
        return check_scores(at, &((const slm_qb_exact_args *)at->args)->score);
    case SLM_OP_qb_hist_accumulate: {
        const slm_qb_hist_accumulate_args *args = at->args;
        const slm_status status = check_scores(at, &args->score);

        return status ? status : check_histogram(at, &args->hist);
    }
    case SLM_OP_qb_hist_merge:
        return check_parts(at, &((const slm_qb_hist_merge_args *)at->args)->parts);
    case SLM_OP_qb_hist_solve:
        return check_histogram(at, &((const slm_qb_hist_solve_args *)at->args)->hist);
    case SLM_OP_sign_step:
        return check_counts(at, "load", &((const slm_sign_step_args *)at->args)->load);
    default:
        return SLM_OK;
    }
}

slm_status slm_door_domain(const door *at)
{
    slm_status status = check_sizes(at);

    if (!status) status = check_choices(at);
    if (!status) status = check_parameters(at);
    if (!status) status = check_values(at);
    return status;
}

slm_status slm_check_finite(slm_op op, const slm_config *config, const void *args,
                            slm_error *error)
{
    const slm_op_info *info = slm_op_describe(op);
    const int balances = op == SLM_OP_qb_exact || op == SLM_OP_qb_hist_accumulate;
    door at;

    if (!info || !config || !args)
        return slm_fail(error, SLM_ERR_SHAPE, info ? info->name : "", "", 0,
                        "an operation, a configuration and arguments");
    at =
        (door){op, info->name, info->fields, info->n_fields, config, args, args, error};
    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];
        const float *bad;
        size_t index;

        if (strcmp(field->name, "bias") != 0 &&
            !(balances && strcmp(field->name, "score") == 0))
            continue;
        bad = first_where(slm_door_tensor(&at, field), not_finite, &index);
        if (bad)
            return slm_fail(error, SLM_ERR_NONFINITE, info->name, field->name, index,
                            "finite; got %g", (double)*bad);
    }
    return SLM_OK;
}
