/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/ffn_backward.cu - gradients of dense weights, and of the feed-forward network.
 *
 * Clause   G1, G4, G5, L4.  Preconditions are the contract's; none is checked here.
 * Method   the forward is recomputed; then one product a gradient. Results of cuBLAS go
 *          to workspace and are delivered when nothing was refused.
 * Order    dx is the gate's part, then the up part, in binary32.
 * Memory   gate_up becomes dgate_up once its tap has been written. */
#include "layer.h"

slm_status slm_gpu_gradient(const slm_handle *handle, size_t rows, slm_gpu_matrix x,
                            size_t x_cols, slm_gpu_matrix w, size_t w_cols,
                            float *scratch, const slm_tensor *to, cudaStream_t stream)
{
    const slm_gpu_matrix sum = slm_gpu_packed(scratch, SLM_F32, w_cols);
    slm_status status = SLM_OK;

    if (rows == 0)
        cudaMemsetAsync(scratch, 0, x_cols * w_cols * sizeof *scratch, stream);
    else
        status = slm_gpu_multiply(
            handle, {x_cols, w_cols, rows, x, w, sum, SLM_GPU_OUTER}, stream);
    if (status) return status;
    return slm_gpu_deliver(handle, scratch, SLM_F32, w_cols, x_cols, w_cols, to->data,
                           SLM_F32, stream);
}

namespace
{

struct space {
    slm_gpu_matrix gate_up; /* [T, 2 f]  becomes dgate_up            */
    slm_gpu_matrix h;       /* [T, f]                                */
    slm_gpu_matrix dh;      /* [T, f]                                */
    float *dx;              /* [T, d]                                */
    float *scratch;         /* [f, d]    one gradient after another  */
};

size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_gpu_arena arena = {(char *)base, 0};
    const size_t f = config->d_expert, d = config->d_model;
    const size_t size = slm_dtype_size(config->dtype);

    at->gate_up =
        slm_gpu_packed(slm_gpu_take(&arena, rows, 2 * f, size), config->dtype, 2 * f);
    at->h = slm_gpu_packed(slm_gpu_take(&arena, rows, f, size), config->dtype, f);
    at->dh = slm_gpu_packed(slm_gpu_take(&arena, rows, f, size), config->dtype, f);
    at->dx = slm_gpu_take_f32(&arena, rows, d);
    at->scratch = slm_gpu_take_f32(&arena, f, d);
    return arena.used;
}

/* Inputs, as they lie. */
struct operands {
    slm_gpu_matrix x;
    slm_gpu_matrix dy;
    slm_gpu_matrix w_gate;
    slm_gpu_matrix w_up;
    slm_gpu_matrix w_out;
};

enum { OF_X, OF_W_GATE, OF_W_UP, OF_W_OUT, OF_DY };

const slm_gpu_finding findings[] = {
    {SLM_ERR_NONFINITE, "x", "finite"},    {SLM_ERR_NONFINITE, "w_gate", "finite"},
    {SLM_ERR_NONFINITE, "w_up", "finite"}, {SLM_ERR_NONFINITE, "w_out", "finite"},
    {SLM_ERR_NONFINITE, "dy", "finite"},
};

slm_status find(slm_handle *handle, const slm_dense_ffn_backward_args *args,
                cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, d = config->d_model, f = config->d_expert;
    const struct {
        const void *data;
        size_t count;
        unsigned place;
    } list[] = {{args->x.data, rows * d, OF_X},
                {args->w_gate.data, f * d, OF_W_GATE},
                {args->w_up.data, f * d, OF_W_UP},
                {args->w_out.data, d * f, OF_W_OUT},
                {args->dy.data, rows * d, OF_DY}};
    slm_status status = slm_gpu_begin(handle, stream);

    for (const auto &one : list)
        if (!status)
            status = slm_gpu_find_nonfinite(handle, one.data, config->dtype, one.count,
                                            one.place, stream);
    return status;
}

/* gate_up, h and dh, and their taps. */
slm_status recompute(const slm_handle *handle, const slm_dense_ffn_backward_args *args,
                     const operands &in, const space &at, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, d = config->d_model, f = config->d_expert;
    const slm_gpu_matrix gate = at.gate_up, up = slm_gpu_columns(gate, f);
    slm_status status =
        slm_gpu_multiply(handle, {rows, f, d, in.x, in.w_gate, gate, 0}, stream);

    if (!status)
        status = slm_gpu_multiply(handle, {rows, f, d, in.x, in.w_up, up, 0}, stream);
    if (!status)
        status = slm_gpu_activate_rows(config, rows, f, gate, up, at.h, stream);
    if (!status)
        status = slm_gpu_multiply(
            handle, {rows, f, d, in.dy, in.w_out, at.dh, SLM_GPU_BACK}, stream);
    if (!status) status = slm_gpu_tap(handle, at.gate_up, &args->gate_up, stream);
    if (!status) status = slm_gpu_tap(handle, at.h, &args->h, stream);
    if (!status) status = slm_gpu_tap(handle, at.dh, &args->dh, stream);
    return status;
}

/* dgate_up in the place of gate_up, and dx. */
slm_status turn(const slm_handle *handle, const slm_dense_ffn_backward_args *args,
                const operands &in, const space &at, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, d = config->d_model, f = config->d_expert;
    const slm_gpu_matrix gate = at.gate_up, up = slm_gpu_columns(gate, f);
    const slm_gpu_matrix dx = slm_gpu_packed(at.dx, SLM_F32, d);
    const slm_gpu_glu glu = {gate, up, at.dh, gate, up};
    slm_status status = slm_gpu_differentiate_rows(config, rows, f, &glu, NULL, stream);

    if (!status) status = slm_gpu_tap(handle, at.gate_up, &args->dgate_up, stream);
    if (!status)
        status = slm_gpu_multiply(
            handle, {rows, d, f, gate, in.w_gate, dx, SLM_GPU_BACK}, stream);
    if (!status)
        status = slm_gpu_multiply(
            handle, {rows, d, f, up, in.w_up, dx, SLM_GPU_BACK | SLM_GPU_ADD}, stream);
    if (!status) status = slm_gpu_tap(handle, dx, &args->dx, stream);
    return status;
}

slm_status gradients(const slm_handle *handle, const slm_dense_ffn_backward_args *args,
                     const operands &in, const space &at, cudaStream_t stream)
{
    const size_t rows = args->call.n_tokens;
    const size_t d = handle->config.d_model, f = handle->config.d_expert;
    const slm_gpu_matrix dgate = at.gate_up, dup = slm_gpu_columns(dgate, f);
    slm_status status = slm_gpu_gradient(handle, rows, dgate, f, in.x, d, at.scratch,
                                         &args->dw_gate, stream);

    if (!status)
        status = slm_gpu_gradient(handle, rows, dup, f, in.x, d, at.scratch,
                                  &args->dw_up, stream);
    if (!status)
        status = slm_gpu_gradient(handle, rows, in.dy, d, at.h, f, at.scratch,
                                  &args->dw_out, stream);
    return status;
}

slm_status run(slm_handle *handle, const slm_dense_ffn_backward_args *args,
               cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, d = config->d_model, f = config->d_expert;
    const slm_dtype dtype = config->dtype;
    const operands in = {slm_gpu_packed(args->x.data, dtype, d),
                         slm_gpu_packed(args->dy.data, dtype, d),
                         slm_gpu_packed(args->w_gate.data, dtype, d),
                         slm_gpu_packed(args->w_up.data, dtype, d),
                         slm_gpu_packed(args->w_out.data, dtype, f)};
    slm_status status = find(handle, args, stream);
    space at;

    lay_out(&at, args->call.workspace, config, rows);
    if (!status && rows) status = recompute(handle, args, in, at, stream);
    if (!status && rows) status = turn(handle, args, in, at, stream);
    if (!status) status = gradients(handle, args, in, at, stream);
    return status;
}

} // namespace

size_t slm_gpu_dense_ffn_backward_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status slm_gpu_dense_ffn_backward(slm_handle *handle,
                                      const slm_dense_ffn_backward_args *args,
                                      slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const slm_status status = run(handle, args, stream);

    if (status) return slm_gpu_failed(SLM_OP_dense_ffn_backward, status, error);
    return slm_gpu_conclude(handle, SLM_OP_dense_ffn_backward, findings, stream, error);
}
