/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_handle.c - open, prepare, workspace. */
#include "scalar.h"

#include <stdlib.h>
#include <string.h>

static slm_status no_memory(slm_error *error, const char *op)
{
    return slm_fail(error, SLM_ERR_MEMORY, op, "", 0, "memory");
}

slm_status scalar_open(const slm_config *config, scalar_variant variant,
                       scalar_mutant mutant, slm_handle **handle, slm_error *error)
{
    slm_handle *made = calloc(1, sizeof *made);

    if (!made) return no_memory(error, "open");
    made->config = *config;
    made->variant = variant;
    made->mutant = mutant;
    scalar_shared_open(made);
    if (mutant == MUTANT_first_bias_kept && config->n_experts) {
        made->first_bias = calloc(config->n_experts, sizeof *made->first_bias);
        if (!made->first_bias) {
            scalar_close(made);
            return no_memory(error, "open");
        }
    }
    *handle = made;
    return SLM_OK;
}

void scalar_close(slm_handle *handle)
{
    if (!handle) return;
    scalar_shared_close(handle);
    free(handle->packed);
    free(handle->first_bias);
    free(handle);
}

/* Gate and up matrices of each expert one after the other: [n, 2, f, l]. */
static slm_status pack(slm_handle *handle, slm_error *error)
{
    const slm_config *config = &handle->config;
    const slm_tensor *halves[] = {&handle->weights.w_gate, &handle->weights.w_up};
    const size_t n = config->n_experts, f = config->d_expert, l = config->d_latent;
    size_t rows;
    float *packed;

    if (halves[0]->rank == 0) return SLM_OK;
    if (__builtin_mul_overflow(2 * n, f, &rows)) return no_memory(error, "prepare");
    packed = realloc(handle->packed, rows * l * sizeof *packed);
    if (!packed) return no_memory(error, "prepare");
    handle->packed = packed;
    for (size_t row = 0; row < rows; row++) {
        const slm_tensor expert = slm_tensor_at(halves[row / f % 2], row / f / 2);
        const slm_tensor from = slm_tensor_at(&expert, row % f);

        scalar_load(packed + row * l, &from);
    }
    return SLM_OK;
}

slm_status scalar_prepare(slm_handle *handle, const slm_weights *weights,
                          slm_error *error)
{
    slm_status status = SLM_OK;

    if (is(handle, VARIANT_own_door))
        status = slm_check_weights(&handle->config, weights, error);
    handle->has_bad_weights = status != SLM_OK;
    if (status) return scalar_report(handle, status, error);
    handle->weights = *weights;
    scalar_shared_prepare(handle);
    return is(handle, VARIANT_packed_gate_up) ? pack(handle, error) : SLM_OK;
}

slm_status scalar_report(const slm_handle *handle, slm_status status, slm_error *error)
{
    if (status && error && wrong(handle, MUTANT_index_not_reported)) error->index = 0;
    if (wrong(handle, MUTANT_refusal_missing) || handle->overlooks) return SLM_OK;
    return status;
}

size_t scalar_workspace(slm_handle *handle, slm_op op, const slm_call *call)
{
    const slm_config *config = &handle->config;

    switch (op) {
    case SLM_OP_route:
        return scalar_route_space(config, call);
    case SLM_OP_select:
        return scalar_select_space(config, call);
    case SLM_OP_permute:
        return scalar_permute_space(config, call);
    case SLM_OP_situ_glu:
        return scalar_situ_space(config);
    case SLM_OP_dense_ffn:
        return scalar_ffn_space(config);
    case SLM_OP_rmsnorm:
        return scalar_rmsnorm_space(config);
    case SLM_OP_layer_forward:
        return scalar_layer_space(config, call);
    case SLM_OP_qb_exact:
        return scalar_qb_space(config, call);
    case SLM_OP_qb_hist_accumulate:
    case SLM_OP_qb_hist_solve:
        return scalar_hist_space(config);
    case SLM_OP_situ_glu_backward:
        return scalar_situ_backward_space(config);
    case SLM_OP_rmsnorm_backward:
        return scalar_rmsnorm_backward_space(config, call);
    case SLM_OP_select_backward:
        return scalar_select_backward_space(config);
    case SLM_OP_dense_ffn_backward:
        return scalar_ffn_backward_space(config, call);
    case SLM_OP_layer_backward:
        return scalar_layer_backward_space(config, call);
    case SLM_OP_qb_observe:
        return scalar_observe_space(config);
    default:
        return 0;
    }
}
