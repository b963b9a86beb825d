/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/observe.c - the state of a balancing step: observe, commit.
 *
 * Clause   Q4, Q8.  Preconditions are the contract's; none is checked here, not even
 *          that ticket and stamp belong to the bias in force.
 * Method   the counts are those of hist.c; the rest is bookkeeping. */
#include "balance.h"

static int64_t *member(const slm_tensor *tensor, size_t index)
{
    return slm_cpu_i64(tensor, index, 0);
}

slm_status slm_cpu_qb_observe(slm_handle *handle, const slm_qb_observe_args *args,
                              slm_error *error)
{
    const slm_cpu_counting from = {SLM_OP_qb_observe, args,        &args->call,
                                   &args->score,      &args->bias, &args->hist,
                                   &args->mask};
    slm_status status;
    size_t m;

    if (*member(&args->ticket, SLM_TICKET_MODE) != SLM_MODE_TRAINING ||
        *member(&args->ticket, SLM_TICKET_MICRO_BATCH) !=
            *member(&args->stamp, SLM_STAMP_MICRO_BATCHES))
        return slm_check_finite(SLM_OP_qb_observe, &handle->config, args, error);
    status = slm_cpu_accumulate(handle, &from, &m, error);
    if (status) return status;
    *member(&args->stamp, SLM_STAMP_TOKENS) += (int64_t)m;
    ++*member(&args->stamp, SLM_STAMP_MICRO_BATCHES);
    return SLM_OK;
}

size_t slm_cpu_qb_commit_space(const slm_config *config, const slm_call *call)
{
    slm_cpu_arena arena = {NULL, 0};

    (void)call;
    slm_cpu_take_f32(&arena, 1, config->n_experts);
    return arena.used;
}

slm_status slm_cpu_qb_commit(slm_handle *handle, const slm_qb_commit_args *args,
                             slm_error *error)
{
    const size_t n = handle->config.n_experts, bins = handle->config.n_bins;
    const slm_status status =
        slm_check_finite(SLM_OP_qb_commit, &handle->config, args, error);
    float *packed = args->call.workspace;

    if (status) return status;
    slm_cpu_pack(packed, &args->new_bias);
    slm_cpu_write(&args->bias, (slm_cpu_matrix){packed, n});
    for (size_t j = 0; j < n; j++)
        for (size_t t = 0; t < bins; t++) *slm_cpu_i64(&args->hist, j, t) = 0;
    ++*member(&args->stamp, SLM_STAMP_VERSION);
    *member(&args->stamp, SLM_STAMP_CHECKSUM) = slm_checksum(packed, n);
    *member(&args->stamp, SLM_STAMP_MICRO_BATCHES) = 0;
    *member(&args->stamp, SLM_STAMP_TOKENS) = 0;
    return SLM_OK;
}
