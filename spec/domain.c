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

/* The mask of a balancing operation, or NULL. */
static const slm_tensor *mask_of(const door *at)
{
    for (size_t i = 0; i < at->n_fields; i++) {
        const slm_tensor *tensor = slm_door_tensor(at, &at->fields[i]);

        if (strcmp(at->fields[i].name, "mask") == 0)
            return tensor->rank ? tensor : NULL;
    }
    return NULL;
}

/* Whether the statistic counts token t: nothing is asked of one that it leaves out, nor
 * of any where the mask lies out of sight.                                        Q5 */
static int is_counted(const slm_tensor *mask, size_t t)
{
    return !mask || (visible(mask) && *(const int32_t *)element(mask, t) != 0);
}

/* How many tokens the statistic counts, as far as can be seen. */
static size_t counted_tokens(const door *at)
{
    const slm_tensor *mask = mask_of(at);
    size_t n = 0;

    if (!mask || !visible(mask)) return at->call->n_tokens;
    for (size_t t = 0; t < at->call->n_tokens; t++) n += (size_t)is_counted(mask, t);
    return n;
}

/* First element that the test refuses, and its index; NULL when there is none. `mask`
 * may be NULL; else rows of the tensor are tokens. */
static const void *first_where(const slm_tensor *tensor, const slm_tensor *mask,
                               int (*refused)(const void *), size_t *index)
{
    const size_t count = visible(tensor);
    const uint32_t last = tensor->rank - 1;
    const size_t width = count ? tensor->shape[last] : 1;

    for (size_t row = 0; row < count; row += width) {
        const char *value = element(tensor, row);
        const ptrdiff_t step =
            tensor->stride[last] * (ptrdiff_t)slm_dtype_size(tensor->dtype);

        if (!is_counted(mask, row / width)) continue;
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

/* A bf16 is the upper half of a binary32. */
static int not_finite_bf16(const void *value)
{
    return (*(const uint16_t *)value & 0x7f80) == 0x7f80;
}

static int not_number(const void *value)
{
    return isnan(*(const float *)value);
}

static int not_number_bf16(const void *value)
{
    return (*(const uint16_t *)value & 0x7fff) > 0x7f80;
}

static int negative(const void *value)
{
    return *(const int64_t *)value < 0;
}

static int not_a_bit(const void *value)
{
    return *(const int32_t *)value != 0 && *(const int32_t *)value != 1;
}

static int is_backward(slm_op op)
{
    return op == SLM_OP_situ_glu_backward || op == SLM_OP_rmsnorm_backward ||
           op == SLM_OP_select_backward || op == SLM_OP_dense_ffn_backward ||
           op == SLM_OP_layer_backward;
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
                         at->op == SLM_OP_qb_hist_solve || at->op == SLM_OP_qb_observe;

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
    const int backward = is_backward(at->op);
    const int layer = at->op == SLM_OP_layer_forward || at->op == SLM_OP_layer_backward;
    const int routes = layer || at->op == SLM_OP_route || at->op == SLM_OP_select ||
                       at->op == SLM_OP_select_backward;
    const int weights = at->op == SLM_OP_COUNT;
    const int dense = at->op == SLM_OP_dense_ffn || at->op == SLM_OP_dense_ffn_backward;
    const int normalises =
        layer || at->op == SLM_OP_rmsnorm || at->op == SLM_OP_rmsnorm_backward;
    const unsigned expert = config->expert;

    if (uses_dtype(at) && config->dtype != SLM_F32 && config->dtype != SLM_BF16)
        return bad_member(at, "dtype", "SLM_F32 or SLM_BF16", config->dtype);
    if (routes && (unsigned)config->score > SLM_SCORE_SOFTMAX)
        return bad_member(at, "score", "a score function", config->score);
    if (routes && backward && config->score != SLM_SCORE_SIGMOID)
        return bad_member(at, "score", "sigmoid: the softmax control has no backward",
                          config->score);
    if (routes && (unsigned)config->weighting > SLM_WEIGHT_RELEASE)
        return bad_member(at, "weighting", "a weighting", config->weighting);
    if ((layer || weights || dense) && expert >= SLM_EXPERT_KINDS)
        return bad_member(at, "expert", "a kind of expert", expert);
    if (dense && expert == SLM_EXPERT_LINEAR)
        return bad_member(at, "expert", "a kind with an inner width", expert);
    if ((layer || dense) && backward && expert == SLM_EXPERT_RELU)
        return bad_member(at, "expert", "a gated or linear kind: relu has no backward",
                          expert);
    if ((normalises || weights) && (unsigned)config->norm > SLM_NORM_NONE)
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
    const int layer = at->op == SLM_OP_layer_forward || at->op == SLM_OP_layer_backward;
    const int normalises =
        layer || at->op == SLM_OP_rmsnorm || at->op == SLM_OP_rmsnorm_backward;
    const int activates =
        layer || at->op == SLM_OP_dense_ffn || at->op == SLM_OP_dense_ffn_backward;
    const int situ = at->op == SLM_OP_situ_glu || at->op == SLM_OP_situ_glu_backward;
    slm_status status = SLM_OK;

    if (normalises && config->norm == SLM_NORM_RMS)
        status = check_positive(at, "eps", config->eps);
    if (situ || (activates && config->expert == SLM_EXPERT_SITU)) {
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

static slm_status check_scores(const door *at, const slm_tensor *score,
                               const slm_tensor *mask)
{
    size_t index;
    const float *bad = first_where(score, mask, outside_unit, &index);

    if (!bad) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "score", index,
                    "a score in [0, 1]; got %g", (double)*bad);
}

static slm_status check_counts(const door *at, const char *field,
                               const slm_tensor *counts)
{
    size_t index;
    const int64_t *bad = first_where(counts, NULL, negative, &index);

    if (!bad) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, field, index,
                    "not negative; got %lld", (long long)*bad);
}

static slm_status check_mask(const door *at, const slm_tensor *mask)
{
    size_t index;
    const int32_t *bad = mask ? first_where(mask, NULL, not_a_bit, &index) : NULL;

    if (!bad) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "mask", index,
                    "0 (left out) or 1 (counted); got %d", (int)*bad);
}

/* Each id in 0..n-1, and once a row.  Of a repeat the later element is reported. */
static slm_status check_ids(const door *at, const slm_tensor *ids,
                            const slm_tensor *mask)
{
    const size_t count = visible(ids);
    const size_t k = at->config->top_k;
    const size_t n = at->config->n_experts;

    for (size_t i = 0; i < count; i++) {
        const int32_t id = *(const int32_t *)element(ids, i);

        if (!is_counted(mask, i / k)) continue;
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

/* Counts of a histogram row by row: none negative, and the row's sum is *wanted (named
 * for people; NULL: any). It still fits in an int64 when the batch is counted, too,
 * where it is to be. A wrong sum is reported at the row's first element.
 *                                                                             Q3, Q8 */
static slm_status check_histogram(const door *at, const slm_tensor *hist,
                                  const uint64_t *wanted, const char *named)
{
    const size_t count = visible(hist);
    const size_t bins = at->config->n_bins;
    const int adds = at->op != SLM_OP_qb_hist_solve;
    const size_t tokens = adds ? counted_tokens(at) : 0;
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
        if (wanted && sum != *wanted)
            return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "hist", first,
                            "a row that sums to %s %llu; got %llu", named,
                            (unsigned long long)*wanted, (unsigned long long)sum);
        if (adds && sum > INT64_MAX - tokens) /* scores fit: tokens < 2^61 */
            return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "hist", first,
                            "row sum + tokens <= 2^63 - 1; got %llu + %zu",
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

static int64_t integer(const slm_tensor *tensor, size_t index)
{
    return *(const int64_t *)element(tensor, index);
}

static slm_status bad_integer(const door *at, const char *field, size_t index,
                              const char *expected, int64_t got)
{
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, field, index, "%s; got %lld",
                    expected, (long long)got);
}

static int64_t checksum_of(const slm_tensor *bias)
{
    float values[256];
    uint64_t rest = SLM_CHECKSUM_BEGIN;
    const size_t n = slm_tensor_count(bias);

    for (size_t done = 0; done < n;) {
        size_t part = 0;

        for (; part < 256 && done < n; part++, done++)
            values[part] = *(const float *)element(bias, done);
        rest = slm_checksum_more(rest, values, part * sizeof *values);
    }
    return slm_checksum_end(rest);
}

/* The stamp by itself: of the bias in force, and it can be counted up. Q8 */
static slm_status check_stamp(const door *at, const slm_tensor *stamp,
                              const slm_tensor *bias)
{
    int64_t value[4];

    if (!visible(stamp)) return SLM_OK;
    for (size_t i = 0; i < 4; i++) value[i] = integer(stamp, i);
    if (value[SLM_STAMP_VERSION] < 0 || value[SLM_STAMP_VERSION] == INT64_MAX)
        return bad_integer(at, "stamp", SLM_STAMP_VERSION, "a version in 0 .. 2^63 - 2",
                           value[SLM_STAMP_VERSION]);
    if (visible(bias) && value[SLM_STAMP_CHECKSUM] != checksum_of(bias))
        return bad_integer(at, "stamp", SLM_STAMP_CHECKSUM, "the checksum of bias",
                           value[SLM_STAMP_CHECKSUM]);
    if (value[SLM_STAMP_MICRO_BATCHES] < 0 ||
        value[SLM_STAMP_MICRO_BATCHES] == INT64_MAX)
        return bad_integer(at, "stamp", SLM_STAMP_MICRO_BATCHES,
                           "a number in 0 .. 2^63 - 2", value[SLM_STAMP_MICRO_BATCHES]);
    if (value[SLM_STAMP_TOKENS] < 0)
        return bad_integer(at, "stamp", SLM_STAMP_TOKENS, "not negative",
                           value[SLM_STAMP_TOKENS]);
    return SLM_OK;
}

/* The batch was routed with the bias in force, and no micro-batch before it is missing.
 * Against a stamp that is wrong itself a ticket says nothing.                 Q4, Q8 */
static slm_status check_ticket(const door *at, const slm_tensor *ticket,
                               const slm_tensor *stamp)
{
    const int64_t version = integer(ticket, SLM_TICKET_VERSION);
    const int64_t checksum = integer(ticket, SLM_TICKET_CHECKSUM);
    const int64_t micro_batch = integer(ticket, SLM_TICKET_MICRO_BATCH);

    if (version != integer(stamp, SLM_STAMP_VERSION))
        return bad_integer(at, "ticket", SLM_TICKET_VERSION,
                           "the version of the bias in force (stamp)", version);
    if (checksum != integer(stamp, SLM_STAMP_CHECKSUM))
        return bad_integer(at, "ticket", SLM_TICKET_CHECKSUM,
                           "the checksum of the bias in force (stamp)", checksum);
    if (micro_batch < 0 || micro_batch > integer(stamp, SLM_STAMP_MICRO_BATCHES))
        return bad_integer(at, "ticket", SLM_TICKET_MICRO_BATCH,
                           "a micro-batch seen before, or the next (stamp)",
                           micro_batch);
    return SLM_OK;
}

/* Outside training nothing but the mode is looked at.                             Q8 */
static slm_status check_observation(const door *at)
{
    const slm_qb_observe_args *args = at->args;
    const slm_tensor *mask = mask_of(at);
    const int sees_stamp = visible(&args->stamp) > 0;
    slm_status status;
    uint64_t tokens = 0;
    int64_t mode;

    if (!visible(&args->ticket)) return SLM_OK;
    mode = integer(&args->ticket, SLM_TICKET_MODE);
    if (mode > SLM_MODE_TRAINING && mode < SLM_MODE_COUNT) return SLM_OK;
    status = check_scores(at, &args->score, mask);
    if (!status && mode != SLM_MODE_TRAINING)
        status =
            bad_integer(at, "ticket", SLM_TICKET_MODE, "an slm_mode, 0 .. 2", mode);
    if (!status) status = check_stamp(at, &args->stamp, &args->bias);
    if (!status && sees_stamp) {
        status = check_ticket(at, &args->ticket, &args->stamp);
        tokens = (uint64_t)integer(&args->stamp, SLM_STAMP_TOKENS);
    }
    if (!status)
        status = check_histogram(at, &args->hist, sees_stamp ? &tokens : NULL,
                                 "stamp's tokens");
    return status ? status : check_mask(at, mask);
}

static slm_status check_values(const door *at)
{
    const uint64_t n_tokens = at->call->n_tokens;
    slm_status status;

    switch (at->op) {
    case SLM_OP_select:
        return check_scores(at, &((const slm_select_args *)at->args)->score, NULL);
    case SLM_OP_select_backward:
        return check_ids(at, &((const slm_select_backward_args *)at->args)->ids, NULL);
    case SLM_OP_layer_backward:
        return check_ids(at, &((const slm_layer_backward_args *)at->args)->ids, NULL);
    case SLM_OP_permute:
        return check_ids(at, &((const slm_permute_args *)at->args)->ids, NULL);
    case SLM_OP_load_metrics: {
        const slm_load_metrics_args *args = at->args;

        status = check_ids(at, &args->ids, mask_of(at));
        return status ? status : check_mask(at, mask_of(at));
    }
    case SLM_OP_qb_exact: {
        const slm_qb_exact_args *args = at->args;

        status = check_scores(at, &args->score, mask_of(at));
        return status ? status : check_mask(at, mask_of(at));
    }
    case SLM_OP_qb_hist_accumulate: {
        const slm_qb_hist_accumulate_args *args = at->args;

        status = check_scores(at, &args->score, mask_of(at));
        if (!status) status = check_histogram(at, &args->hist, NULL, "");
        return status ? status : check_mask(at, mask_of(at));
    }
    case SLM_OP_qb_observe:
        return check_observation(at);
    case SLM_OP_qb_commit: {
        const slm_qb_commit_args *args = at->args;

        return check_stamp(at, &args->stamp, &args->bias);
    }
    case SLM_OP_qb_hist_merge:
        return check_parts(at, &((const slm_qb_hist_merge_args *)at->args)->parts);
    case SLM_OP_qb_hist_solve:
        return check_histogram(at, &((const slm_qb_hist_solve_args *)at->args)->hist,
                               &n_tokens, "n_tokens");
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

/* What the clause wants of an input's elements: 0 nothing, 1 numbers (infinity is a
 * limit), 2 finite numbers. */
static int wanted_of(const door *at, const slm_field *field)
{
    const int real = field->kind == SLM_KIND_REAL || field->kind == SLM_KIND_F32;
    const int balances = at->op == SLM_OP_qb_exact ||
                         at->op == SLM_OP_qb_hist_accumulate ||
                         at->op == SLM_OP_qb_observe;

    if (is_backward(at->op)) {
        if (!real || (field->role != SLM_ROLE_IN && field->role != SLM_ROLE_OPTIONAL))
            return 0;
        return at->op == SLM_OP_situ_glu_backward && strcmp(field->name, "gate_up") == 0
                   ? 1
                   : 2;
    }
    if (strcmp(field->name, "bias") == 0 ||
        (at->op == SLM_OP_qb_commit && strcmp(field->name, "new_bias") == 0))
        return 2;
    return balances && strcmp(field->name, "score") == 0 ? 2 : 0;
}

static slm_status check_finite_field(const door *at, const slm_field *field)
{
    static int (*const refused[2][2])(const void *) = {{not_number, not_number_bf16},
                                                       {not_finite, not_finite_bf16}};
    const slm_tensor *tensor = slm_door_tensor(at, field);
    const int wanted = wanted_of(at, field);
    const int half = tensor->dtype == SLM_BF16;
    size_t index;
    const void *bad;

    if (!wanted) return SLM_OK;
    bad = first_where(tensor, field->dims[0] == 'T' ? mask_of(at) : NULL,
                      refused[wanted - 1][half], &index);
    if (!bad) return SLM_OK;
    if (half)
        return slm_fail(at->error, SLM_ERR_NONFINITE, at->name, field->name, index,
                        "%s; got the bf16 0x%04x", wanted == 1 ? "no NaN" : "finite",
                        (unsigned)*(const uint16_t *)bad);
    return slm_fail(at->error, SLM_ERR_NONFINITE, at->name, field->name, index,
                    "%s; got %g", wanted == 1 ? "no NaN" : "finite",
                    (double)*(const float *)bad);
}

slm_status slm_check_finite(slm_op op, const slm_config *config, const void *args,
                            slm_error *error)
{
    const slm_op_info *info = slm_op_describe(op);
    slm_status status = SLM_OK;
    door at;

    if (!info || !config || !args)
        return slm_fail(error, SLM_ERR_SHAPE, info ? info->name : "", "", 0,
                        "an operation, a configuration and arguments");
    at = (door){op,     info->name, info->fields, slm_door_fields(info, args),
                config, args,       args,         error};
    if (op == SLM_OP_qb_observe) {
        const slm_tensor *ticket = &((const slm_qb_observe_args *)args)->ticket;

        if (!visible(ticket) || integer(ticket, SLM_TICKET_MODE) != SLM_MODE_TRAINING)
            return SLM_OK;
    }
    for (size_t i = 0; i < at.n_fields && !status; i++)
        status = check_finite_field(&at, &at.fields[i]);
    return status;
}
