/* SPDX-License-Identifier: Apache-2.0 */
/* ref/observe.c - the state of a balancing step: observe, commit.               Q4, Q8
 *
 * That the ticket and the stamp belong to the bias in force was checked at the door. */
#include "balance.h"

#include <stdlib.h>

/* slm_checksum() of a bias that may have strides; 0 without memory. */
static int checksum_of(int64_t *checksum, const slm_tensor *bias, size_t n)
{
    float *values = malloc(n * sizeof *values);

    if (!values) return 0;
    for (size_t j = 0; j < n; j++) values[j] = (float)slm_ref_get(bias, j);
    *checksum = slm_checksum(values, n);
    free(values);
    return 1;
}

/* Only in training, and only the micro-batch that is next: one that was observed before
 * is counted already. */
static int is_to_be_counted(const slm_qb_observe_args *args)
{
    return *slm_ref_count(&args->ticket, SLM_TICKET_MODE) == SLM_MODE_TRAINING &&
           *slm_ref_count(&args->ticket, SLM_TICKET_MICRO_BATCH) ==
               *slm_ref_count(&args->stamp, SLM_STAMP_MICRO_BATCHES);
}

slm_status slm_ref_op_qb_observe(slm_handle *handle, const slm_qb_observe_args *args,
                                 slm_error *error)
{
    const slm_config *config = &handle->config;
    slm_status status = slm_check_finite(SLM_OP_qb_observe, config, args, error);
    slm_ref_tokens tokens;

    if (status || !is_to_be_counted(args)) return status;
    status = slm_ref_tokens_open(&tokens, &args->call, &args->mask);
    if (!status) {
        status =
            slm_ref_accumulate(config, &args->score, &args->bias, &args->hist, &tokens);
        slm_ref_tokens_close(&tokens);
    }
    if (status)
        return slm_fail(error, status, "qb_observe", "", 0, "memory for %zu tokens",
                        args->call.n_tokens);
    ++*slm_ref_count(&args->stamp, SLM_STAMP_MICRO_BATCHES);
    *slm_ref_count(&args->stamp, SLM_STAMP_TOKENS) += (int64_t)tokens.m;
    return SLM_OK;
}

slm_status slm_ref_op_qb_commit(slm_handle *handle, const slm_qb_commit_args *args,
                                slm_error *error)
{
    const size_t n = handle->config.n_experts;
    const size_t counts = n * handle->config.n_bins;
    const slm_status status =
        slm_check_finite(SLM_OP_qb_commit, &handle->config, args, error);
    int64_t checksum;

    if (status) return status;
    if (!checksum_of(&checksum, &args->new_bias, n))
        return slm_fail(error, SLM_ERR_MEMORY, "qb_commit", "", 0,
                        "memory for %zu experts", n);
    for (size_t j = 0; j < n; j++)
        slm_ref_set(&args->bias, j, slm_ref_get(&args->new_bias, j));
    for (size_t i = 0; i < counts; i++) *slm_ref_count(&args->hist, i) = 0;
    ++*slm_ref_count(&args->stamp, SLM_STAMP_VERSION);
    *slm_ref_count(&args->stamp, SLM_STAMP_CHECKSUM) = checksum;
    *slm_ref_count(&args->stamp, SLM_STAMP_MICRO_BATCHES) = 0;
    *slm_ref_count(&args->stamp, SLM_STAMP_TOKENS) = 0;
    return SLM_OK;
}
