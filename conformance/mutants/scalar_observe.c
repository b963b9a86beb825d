/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_observe.c - the state of a balancing step.             Q8 */
#include "scalar.h"

#include <string.h>

/* Balancing mutants of other operations are right here. */
static slm_handle own_handle(const slm_handle *handle)
{
    slm_handle own = *handle;

    if (own.mutant < MUTANT_mask_ignored || own.mutant > MUTANT_minus_zero_lost)
        own.mutant = MUTANT_NONE;
    return own;
}

static int64_t *integer(const slm_tensor *tensor, size_t index)
{
    return scalar_element(tensor, index);
}

/* Wraps: outside training, where only mutants count, nothing has been checked. */
static void raise_by(const slm_tensor *tensor, size_t index, int64_t count)
{
    int64_t *at = integer(tensor, index);

    *at = (int64_t)((uint64_t)*at + (uint64_t)count);
}

/* Memory of one call. */
typedef struct space {
    scalar_hist hist;
    float *bias;     /* [n] in force      */
    float *proposed; /* [n] by the counts so far */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config)
{
    const size_t n = config->n_experts;
    scalar_scratch scratch = {base, 0};

    scalar_hist_take(&at->hist, &scratch, config);
    at->bias = scalar_take(&scratch, n, sizeof *at->bias);
    at->proposed = scalar_take(&scratch, n, sizeof *at->proposed);
    return scratch.used;
}

size_t scalar_observe_space(const slm_config *config)
{
    space at;

    return lay_out(&at, NULL, config);
}

/* Whether this micro-batch is counted. */
static int is_counted(const slm_handle *handle, const slm_qb_observe_args *args)
{
    const int64_t mode = *integer(&args->ticket, SLM_TICKET_MODE);
    const int64_t batch = *integer(&args->ticket, SLM_TICKET_MICRO_BATCH);
    const int64_t seen = *integer(&args->stamp, SLM_STAMP_MICRO_BATCHES);

    if (mode == SLM_MODE_RECOMPUTATION)
        return wrong(handle, MUTANT_recompute_counted_twice);
    if (mode == SLM_MODE_EVALUATION) return wrong(handle, MUTANT_evaluation_counted);
    return batch == seen || wrong(handle, MUTANT_replay_counted_twice);
}

/* What the counts so far propose, for mutants that use it before the commit. */
static void propose(const slm_handle *handle, space *at,
                    const slm_qb_observe_args *args)
{
    const size_t shape[] = {handle->config.n_experts};
    const slm_tensor out = slm_tensor_packed(at->proposed, SLM_F32, 1, shape);
    const slm_tensor none = {.rank = 0};
    const int64_t tokens = *integer(&args->stamp, SLM_STAMP_TOKENS);

    memcpy(at->proposed, at->bias, shape[0] * sizeof *at->bias);
    if (tokens <= 0 || !(wrong(handle, MUTANT_range_from_new_bias) ||
                         wrong(handle, MUTANT_bias_applied_at_observe)))
        return;
    scalar_hist_solve(handle, &at->hist, &args->hist, (size_t)tokens);
    scalar_centre(handle, at->hist.candidate, at->bias, &out, &none);
}

slm_status scalar_qb_observe(slm_handle *handle, const slm_qb_observe_args *args,
                             slm_error *error)
{
    const size_t n = handle->config.n_experts, n_tokens = args->call.n_tokens;
    const slm_status status = scalar_begin(handle, SLM_OP_qb_observe, args, error);
    const slm_handle own = own_handle(handle);
    const float *ends;
    int64_t counted;
    space at;

    if (status || !is_counted(&own, args)) return status;
    lay_out(&at, args->call.workspace, &own.config);
    scalar_load(at.bias, &args->bias);
    memcpy(at.hist.cutoff.bias, at.bias, n * sizeof *at.bias);
    propose(&own, &at, args);
    ends = wrong(&own, MUTANT_range_from_new_bias) ? at.proposed : at.bias;
    if (wrong(&own, MUTANT_bias_applied_at_observe))
        memcpy(at.hist.cutoff.bias, at.proposed, n * sizeof *at.bias);
    counted = scalar_hist_count(&own, &at.hist, ends, n_tokens, &args->score,
                                slm_given(&args->call, &args->mask), &args->hist);
    if (wrong(&own, MUTANT_tokens_not_counted)) counted = 0;
    if (wrong(&own, MUTANT_tokens_count_masked)) counted = (int64_t)n_tokens;
    raise_by(&args->stamp, SLM_STAMP_TOKENS, counted);
    if (!wrong(&own, MUTANT_micro_batches_not_counted))
        raise_by(&args->stamp, SLM_STAMP_MICRO_BATCHES, 1);
    return SLM_OK;
}

static int64_t checksum_of(const slm_handle *handle, const slm_tensor *bias)
{
    const size_t n = handle->config.n_experts;
    uint64_t rest = UINT64_MAX;
    int64_t pattern;

    for (size_t i = 0; i < n * sizeof(float); i++) {
        const unsigned char *value = scalar_element(bias, i / sizeof(float));

        rest ^= value[i % sizeof(float)];
        for (int bit = 0; bit < 8; bit++)
            rest = rest >> 1 ^ (rest & 1 ? 0xc96c5795d7870f42u : 0);
    }
    if (!wrong(handle, MUTANT_checksum_not_inverted)) rest = ~rest;
    memcpy(&pattern, &rest, sizeof pattern);
    return pattern;
}

static void move_bias(const slm_handle *handle, const slm_qb_commit_args *args)
{
    for (size_t j = 0; j < handle->config.n_experts; j++) {
        float b;

        memcpy(&b, scalar_element(&args->new_bias, j), sizeof b);
        if (wrong(handle, MUTANT_minus_zero_lost)) b += 0.0f;
        if (wrong(handle, MUTANT_commit_adds))
            b += *(const float *)scalar_element(&args->bias, j);
        memcpy(scalar_element(&args->bias, j), &b, sizeof b);
    }
}

slm_status scalar_qb_commit(slm_handle *handle, const slm_qb_commit_args *args,
                            slm_error *error)
{
    const slm_status status = scalar_begin(handle, SLM_OP_qb_commit, args, error);
    const slm_handle own = own_handle(handle);
    const size_t counts = slm_tensor_count(&args->hist);
    int64_t old;

    if (status) return status;
    old = checksum_of(&own, &args->bias);
    move_bias(&own, args);
    *integer(&args->stamp, SLM_STAMP_CHECKSUM) =
        wrong(&own, MUTANT_checksum_of_old_bias) ? old : checksum_of(&own, &args->bias);
    if (!wrong(&own, MUTANT_commit_keeps_version))
        raise_by(&args->stamp, SLM_STAMP_VERSION, 1);
    if (!wrong(&own, MUTANT_commit_keeps_micro_batches))
        *integer(&args->stamp, SLM_STAMP_MICRO_BATCHES) = 0;
    if (!wrong(&own, MUTANT_commit_keeps_tokens))
        *integer(&args->stamp, SLM_STAMP_TOKENS) = 0;
    for (size_t i = 0; !wrong(&own, MUTANT_commit_keeps_histogram) && i < counts; i++)
        *integer(&args->hist, i) = 0;
    return SLM_OK;
}
