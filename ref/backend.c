/* SPDX-License-Identifier: Apache-2.0 */
/* ref/backend.c - the reference behind the table of a backend. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static slm_status open_handle(const slm_config *config, slm_handle **handle,
                              slm_error *error)
{
    const size_t theirs = config->struct_size, ours = sizeof *config;
    slm_handle *fresh = calloc(1, sizeof *fresh);

    if (!fresh)
        return slm_fail(error, SLM_ERR_MEMORY, "open", "handle", 0,
                        "memory for a handle");
    memcpy(&fresh->config, config, theirs < ours ? theirs : ours);
    fresh->config.struct_size = ours;
    *handle = fresh;
    return SLM_OK;
}

static slm_status prepare(slm_handle *handle, const slm_weights *weights,
                          slm_error *error)
{
    const size_t theirs = weights->struct_size, ours = sizeof *weights;

    (void)error;
    memset(&handle->weights, 0, ours);
    memcpy(&handle->weights, weights, theirs < ours ? theirs : ours);
    handle->weights.struct_size = ours;
    return SLM_OK;
}

static void close_handle(slm_handle *handle)
{
    free(handle);
}

static int supports(const slm_config *config, slm_op op, size_t n_tokens, char *reason,
                    size_t reason_size)
{
    (void)n_tokens;
    if (op != SLM_OP_dense_ffn || config->expert != SLM_EXPERT_LINEAR) return 1;
    snprintf(reason, reason_size, "dense_ffn has no linear form");
    return 0;
}

/* Every zero means exact. */
static const slm_arithmetic arithmetic = {.struct_size = sizeof arithmetic};

#define SLM_OP_ENTRY(name, level, purpose) .name = slm_ref_op_##name,
static const slm_ops ops = {.struct_size = sizeof ops, SLM_OPS(SLM_OP_ENTRY)};
#undef SLM_OP_ENTRY

static const slm_backend backend = {
    .struct_size = sizeof backend,
    .abi_major = SLM_ABI_MAJOR,
    .abi_minor = SLM_ABI_MINOR,
    .name = "ref",
    .version = "0.1.0",
    .flags = SLM_DETERMINISTIC | SLM_BATCH_INVARIANT | SLM_STRIDED,
    .levels = SLM_LEVEL_INFER | SLM_LEVEL_TRAIN | SLM_LEVEL_DIST,
    .arithmetic = &arithmetic,
    .ops = &ops,
    .supports = supports,
    .open = open_handle,
    .close = close_handle,
    .prepare = prepare,
};

const slm_backend *slm_ref_backend(void)
{
    return &backend;
}
