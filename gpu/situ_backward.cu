/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/situ_backward.cu - gradients of SiTU-GLU and SwiGLU. */
#include "element.cuh"
#include "layer.h"
#include "situ.cuh"

/* da and db from a, b and dh, a row a block.                                   G1, L4
 *
 *   launch    grid rows, block 32 .. 256; no shared memory
 *   gate, up  [rows, width], `ld` apart; dh [rows, width], `dh_ld` apart
 *   dgate, dup [rows, width], `d_ld` apart; may be gate and up, or dh
 *   state     nothing is written when it says no; NULL: always */
template <class E>
__global__ void __launch_bounds__(256)
    situ_slopes(const E *gate, const E *up, size_t ld, const E *dh, size_t dh_ld,
                slm_gpu_activation act, int width, E *dgate, E *dup, size_t d_ld,
                const slm_gpu_state *state)
{
    const size_t from = blockIdx.x * ld, to = blockIdx.x * d_ld;
    const E *of = dh + blockIdx.x * dh_ld;

    if (slm_gpu_stopped(state)) return;
    for (int i = (int)threadIdx.x; i < width; i += (int)blockDim.x) {
        const double a = (double)slm_gpu_load(gate + from + i);
        const double b = (double)slm_gpu_load(up + from + i);
        const double d = (double)slm_gpu_load(of + i);
        const slm_gpu_slopes slopes = act.kind == SLM_EXPERT_SWIGLU
                                          ? slm_gpu_swiglu_slopes(a, b, d)
                                          : slm_gpu_situ_slopes(a, b, d, act);

        slm_gpu_store(dgate + to + i, slopes.da);
        slm_gpu_store(dup + to + i, slopes.db);
    }
}

slm_status slm_gpu_differentiate_rows(const slm_config *config, size_t rows,
                                      size_t width, const slm_gpu_glu *at,
                                      const slm_gpu_state *state, cudaStream_t stream)
{
    const slm_gpu_activation act = slm_gpu_activation_of(config);
    const unsigned blocks = slm_gpu_blocks(rows, 1), threads = slm_gpu_threads(width);

    if (rows == 0 || width == 0) return SLM_OK;
    if (!blocks || width > INT32_MAX - 256) return SLM_ERR_UNSUPPORTED;
    if (at->dh.dtype == SLM_BF16)
        SLM_LAUNCH(situ_slopes<__nv_bfloat16>, blocks, threads, stream, at->gate.data,
                   at->up.data, at->gate.ld, at->dh.data, at->dh.ld, act, (int)width,
                   at->dgate.data, at->dup.data, at->dgate.ld, state);
    else
        SLM_LAUNCH(situ_slopes<float>, blocks, threads, stream, at->gate.data,
                   at->up.data, at->gate.ld, at->dh.data, at->dh.ld, act, (int)width,
                   at->dgate.data, at->dup.data, at->dgate.ld, state);
    return slm_gpu_launched();
}

enum { OF_GATE_UP, OF_DH };

static const slm_gpu_finding findings[] = {
    {SLM_ERR_NONFINITE, "gate_up", "not NaN"},
    {SLM_ERR_NONFINITE, "dh", "finite"},
};

static slm_gpu_glu glu_of(const slm_config *config,
                          const slm_situ_glu_backward_args *args)
{
    const size_t width = config->d_expert;
    const slm_gpu_matrix gate = {args->gate_up.data, config->dtype, 2 * width};
    const slm_gpu_matrix dgate = {args->dgate_up.data, config->dtype, 2 * width};

    return {gate, slm_gpu_columns(gate, width),
            slm_gpu_packed(args->dh.data, config->dtype, width), dgate,
            slm_gpu_columns(dgate, width)};
}

slm_status slm_gpu_situ_glu_backward(slm_handle *handle,
                                     const slm_situ_glu_backward_args *args,
                                     slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, width = config->d_expert;
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const slm_gpu_glu at = glu_of(config, args);
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status) /* infinities have their limits */
        status = slm_gpu_find_nan(handle, args->gate_up.data, config->dtype,
                                  rows * 2 * width, OF_GATE_UP, stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->dh.data, config->dtype,
                                        rows * width, OF_DH, stream);
    if (!status)
        status =
            slm_gpu_differentiate_rows(config, rows, width, &at, handle->state, stream);
    if (status) return slm_gpu_failed(SLM_OP_situ_glu_backward, status, error);
    return slm_gpu_conclude(handle, SLM_OP_situ_glu_backward, findings, stream, error);
}

size_t slm_gpu_situ_glu_backward_space(const slm_config *config, const slm_call *call)
{
    (void)config;
    (void)call;
    return 0;
}
