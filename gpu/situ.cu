/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/situ.cu - SiTU-GLU and the control activations, forward. */
#include "eight.cuh"
#include "layer.h"
#include "situ.cuh"

/* h = act(gate, up), a row a block.                                           L1, L4
 *
 *   launch   grid rows, block 32 .. 256; no shared memory
 *   gate, up [rows, width], `ld` apart; gate is not read for relu
 *   h        [rows, width], `h_ld` apart; may be gate or up */
template <class E>
__global__ void __launch_bounds__(256)
    situ_rows(const E *gate, const E *up, size_t ld, slm_gpu_activation act, int width,
              E *h, size_t h_ld)
{
    const size_t from = blockIdx.x * ld, to = blockIdx.x * h_ld;
    const bool gated = act.kind != SLM_EXPERT_RELU;

    const int step = (int)blockDim.x * SLM_GPU_EIGHT;

    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += step) {
        float a[SLM_GPU_EIGHT] = {}, b[SLM_GPU_EIGHT];

        if (gated) slm_gpu_load_eight(gate + from + i, width - i, a);
        slm_gpu_load_eight(up + from + i, width - i, b);
        SLM_UNROLL
        for (int j = 0; j < SLM_GPU_EIGHT; j++)
            b[j] = slm_gpu_activate(a[j], b[j], act);
        slm_gpu_store_eight(h + to + i, width - i, b);
    }
}

slm_status slm_gpu_activate_rows(const slm_config *config, size_t rows, size_t width,
                                 slm_gpu_matrix gate, slm_gpu_matrix up,
                                 slm_gpu_matrix h, cudaStream_t stream)
{
    const slm_gpu_activation act = slm_gpu_activation_of(config);
    const unsigned blocks = slm_gpu_blocks(rows, 1);
    const unsigned threads = slm_gpu_threads_of_eight(width);

    if (rows == 0 || width == 0) return SLM_OK;
    if (!blocks || width > INT32_MAX - 2048) return SLM_ERR_UNSUPPORTED;
    if (h.dtype == SLM_BF16)
        SLM_LAUNCH(situ_rows<__nv_bfloat16>, blocks, threads, stream, gate.data,
                   up.data, up.ld, act, (int)width, h.data, h.ld);
    else
        SLM_LAUNCH(situ_rows<float>, blocks, threads, stream, gate.data, up.data, up.ld,
                   act, (int)width, h.data, h.ld);
    return slm_gpu_launched();
}

slm_status slm_gpu_situ_glu(slm_handle *handle, const slm_situ_glu_args *args,
                            slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t width = config->d_expert;
    const slm_gpu_matrix gate = {args->gate_up.data, config->dtype, 2 * width};

    (void)error;
    return slm_gpu_activate_rows(config, args->call.n_tokens, width, gate,
                                 slm_gpu_columns(gate, width),
                                 slm_gpu_packed(args->h.data, config->dtype, width),
                                 slm_gpu_stream(&args->call));
}

size_t slm_gpu_situ_glu_space(const slm_config *config, const slm_call *call)
{
    (void)config;
    (void)call;
    return 0;
}
