/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/ffn.cu - the dense feed-forward network.
 *
 * Clause   L1, L3, L4, L6.  Preconditions are the contract's; none is checked here.
 * Rounding gate and up sums, h and y are stored in the configuration's dtype.
 * NaN      a row of x that is not finite gives a row of NaN.                      R4 */
#include "layer.h"

namespace
{

struct space {
    slm_gpu_matrix gate_up; /* [T, 2 f] */
    slm_gpu_matrix h;       /* [T, f]   */
};

size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_gpu_arena arena = {(char *)base, 0};
    const size_t f = config->d_expert, size = slm_dtype_size(config->dtype);

    at->gate_up =
        slm_gpu_packed(slm_gpu_take(&arena, rows, 2 * f, size), config->dtype, 2 * f);
    at->h = slm_gpu_packed(slm_gpu_take(&arena, rows, f, size), config->dtype, f);
    return arena.used;
}

slm_status run(slm_handle *handle, const slm_dense_ffn_args *args, const space &at)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, d = config->d_model, f = config->d_expert;
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const slm_dtype dtype = config->dtype;
    const slm_gpu_matrix x = slm_gpu_packed(args->x.data, dtype, d);
    const slm_gpu_matrix gate = at.gate_up, up = slm_gpu_columns(gate, f);
    slm_status status = SLM_OK;

    if (config->expert != SLM_EXPERT_RELU)
        status = slm_gpu_multiply(
            handle,
            {rows, f, d, x, slm_gpu_packed(args->w_gate.data, dtype, d), gate, 0},
            stream);
    if (!status)
        status = slm_gpu_multiply(
            handle, {rows, f, d, x, slm_gpu_packed(args->w_up.data, dtype, d), up, 0},
            stream);
    if (!status)
        status = slm_gpu_activate_rows(config, rows, f, gate, up, at.h, stream);
    if (!status) status = slm_gpu_poison(rows, d, x, f, at.h, stream);
    if (!status)
        status = slm_gpu_multiply(handle,
                                  {rows, d, f, at.h,
                                   slm_gpu_packed(args->w_out.data, dtype, f),
                                   slm_gpu_packed(args->y.data, dtype, d), 0},
                                  stream);
    return status;
}

} // namespace

size_t slm_gpu_dense_ffn_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status slm_gpu_dense_ffn(slm_handle *handle, const slm_dense_ffn_args *args,
                             slm_error *error)
{
    const size_t rows = args->call.n_tokens;
    slm_status status;
    space at;

    if (rows == 0) return SLM_OK;
    lay_out(&at, args->call.workspace, &handle->config, rows);
    if (args->h.rank) at.h.data = args->h.data;
    status = run(handle, args, at);
    return status ? slm_gpu_failed(SLM_OP_dense_ffn, status, error) : SLM_OK;
}
