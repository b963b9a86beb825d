/* SPDX-License-Identifier: Apache-2.0 */
/* spec/values.c - which values a tensor may hold: DOMAIN.                           X1
 *
 * Tensors in the order of the arguments; within a tensor the lowest index. Only host
 * memory is looked at. */
#include "contract.h"

static int outside_unit(const void *value)
{
    const float score = *(const float *)value;

    return score < 0 || score > 1;
}

static int negative(const void *value)
{
    return *(const int64_t *)value < 0;
}

static int not_a_bit(const void *value)
{
    return *(const int32_t *)value != 0 && *(const int32_t *)value != 1;
}

static slm_status check_scores(const door *at, const slm_tensor *score,
                               const slm_tensor *mask)
{
    size_t index;
    const float *bad = slm_door_first(score, mask, outside_unit, &index);

    if (!bad) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "score", index,
                    "a score in [0, 1]; got %g", (double)*bad);
}

static slm_status check_counts(const door *at, const char *field,
                               const slm_tensor *counts)
{
    size_t index;
    const int64_t *bad = slm_door_first(counts, NULL, negative, &index);

    if (!bad) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, field, index,
                    "not negative; got %lld", (long long)*bad);
}

static slm_status check_mask(const door *at, const slm_tensor *mask)
{
    size_t index;
    const int32_t *bad = mask ? slm_door_first(mask, NULL, not_a_bit, &index) : NULL;

    if (!bad) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "mask", index,
                    "0 (left out) or 1 (counted); got %d", (int)*bad);
}

/* Each id in 0..n-1, and once a row.  Of a repeat the later element is reported. */
static slm_status check_ids(const door *at, const slm_tensor *ids,
                            const slm_tensor *mask)
{
    const size_t count = slm_door_visible(ids);
    const size_t k = at->config->top_k;
    const size_t n = at->config->n_experts;

    for (size_t i = 0; i < count; i++) {
        const int32_t id = *(const int32_t *)slm_door_element(ids, i);

        if (!slm_door_counts(mask, i / k)) continue;
        if (id < 0 || (size_t)id >= n)
            return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "ids", i,
                            "0 <= id < n, n is %zu; got %d", n, (int)id);
        for (size_t j = i - i % k; j < i; j++)
            if (*(const int32_t *)slm_door_element(ids, j) == id)
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
    const size_t count = slm_door_visible(hist);
    const size_t bins = at->config->n_bins;
    const int adds = at->op != SLM_OP_qb_hist_solve;
    const size_t tokens = adds ? slm_door_counted(at) : 0;
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        const int64_t value = *(const int64_t *)slm_door_element(hist, i);
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
    const size_t n_parts = slm_door_visible(parts) ? at->call->n_parts : 0;
    const size_t each = n_parts ? slm_door_visible(parts) / n_parts : 0;
    size_t lowest = SIZE_MAX;

    for (size_t i = 0; i < each && !status; i++) {
        int64_t sum = 0;

        for (size_t part = 0; part < n_parts; part++) {
            const size_t index = part * each + i;

            if (index >= lowest) break;
            if (__builtin_add_overflow(
                    sum, *(const int64_t *)slm_door_element(parts, index), &sum))
                lowest = index;
        }
    }
    if (lowest == SIZE_MAX) return status;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "parts", lowest,
                    "a sum over the parts <= 2^63 - 1");
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
            values[part] = *(const float *)slm_door_element(bias, done);
        rest = slm_checksum_more(rest, values, part * sizeof *values);
    }
    return slm_checksum_end(rest);
}

/* The stamp by itself: of the bias in force, and it can be counted up. Q8 */
static slm_status check_stamp(const door *at, const slm_tensor *stamp,
                              const slm_tensor *bias)
{
    int64_t value[4];

    if (!slm_door_visible(stamp)) return SLM_OK;
    for (size_t i = 0; i < 4; i++) value[i] = slm_door_integer(stamp, i);
    if (value[SLM_STAMP_VERSION] < 0 || value[SLM_STAMP_VERSION] == INT64_MAX)
        return bad_integer(at, "stamp", SLM_STAMP_VERSION, "a version in 0 .. 2^63 - 2",
                           value[SLM_STAMP_VERSION]);
    if (slm_door_visible(bias) && value[SLM_STAMP_CHECKSUM] != checksum_of(bias))
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
    const int64_t version = slm_door_integer(ticket, SLM_TICKET_VERSION);
    const int64_t checksum = slm_door_integer(ticket, SLM_TICKET_CHECKSUM);
    const int64_t micro_batch = slm_door_integer(ticket, SLM_TICKET_MICRO_BATCH);

    if (version != slm_door_integer(stamp, SLM_STAMP_VERSION))
        return bad_integer(at, "ticket", SLM_TICKET_VERSION,
                           "the version of the bias in force (stamp)", version);
    if (checksum != slm_door_integer(stamp, SLM_STAMP_CHECKSUM))
        return bad_integer(at, "ticket", SLM_TICKET_CHECKSUM,
                           "the checksum of the bias in force (stamp)", checksum);
    if (micro_batch < 0 ||
        micro_batch > slm_door_integer(stamp, SLM_STAMP_MICRO_BATCHES))
        return bad_integer(at, "ticket", SLM_TICKET_MICRO_BATCH,
                           "a micro-batch seen before, or the next (stamp)",
                           micro_batch);
    return SLM_OK;
}

/* Outside training nothing but the mode is looked at.                             Q8 */
static slm_status check_observation(const door *at)
{
    const slm_qb_observe_args *args = at->args;
    const slm_tensor *mask = slm_door_mask(at);
    const int sees_stamp = slm_door_visible(&args->stamp) > 0;
    slm_status status;
    uint64_t tokens = 0;
    int64_t mode;

    if (!slm_door_visible(&args->ticket)) return SLM_OK;
    mode = slm_door_integer(&args->ticket, SLM_TICKET_MODE);
    if (mode > SLM_MODE_TRAINING && mode < SLM_MODE_COUNT) return SLM_OK;
    status = check_scores(at, &args->score, mask);
    if (!status && mode != SLM_MODE_TRAINING)
        status =
            bad_integer(at, "ticket", SLM_TICKET_MODE, "an slm_mode, 0 .. 2", mode);
    if (!status) status = check_stamp(at, &args->stamp, &args->bias);
    if (!status && sees_stamp) {
        status = check_ticket(at, &args->ticket, &args->stamp);
        tokens = (uint64_t)slm_door_integer(&args->stamp, SLM_STAMP_TOKENS);
    }
    if (!status)
        status = check_histogram(at, &args->hist, sees_stamp ? &tokens : NULL,
                                 "stamp's tokens");
    return status ? status : check_mask(at, mask);
}

slm_status slm_door_values(const door *at)
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

        status = check_ids(at, &args->ids, slm_door_mask(at));
        return status ? status : check_mask(at, slm_door_mask(at));
    }
    case SLM_OP_qb_exact: {
        const slm_qb_exact_args *args = at->args;

        status = check_scores(at, &args->score, slm_door_mask(at));
        return status ? status : check_mask(at, slm_door_mask(at));
    }
    case SLM_OP_qb_hist_accumulate: {
        const slm_qb_hist_accumulate_args *args = at->args;

        status = check_scores(at, &args->score, slm_door_mask(at));
        if (!status) status = check_histogram(at, &args->hist, NULL, "");
        return status ? status : check_mask(at, slm_door_mask(at));
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
