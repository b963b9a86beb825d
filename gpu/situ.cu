/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/situ.cu - SiTU-GLU and the control activations, forward. */
#include "element.cuh"
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

    for (int i = (int)threadIdx.x; i < width; i += (int)blockDim.x) {
        const float a = gated ? slm_gpu_load(gate + from + i) : 0.0f;

        slm_gpu_store(h + to + i,
                      slm_gpu_activate(a, slm_gpu_load(up + from + i), act));
    }
}

slm_status slm_gpu_activate_rows(const slm_config *config, size_t rows, size_t width,
                                 slm_gpu_matrix gate, slm_gpu_matrix up,
                                 slm_gpu_matrix h, cudaStream_t stream)
{
    const slm_gpu_activation act = slm_gpu_activation_of(config);
    const unsigned blocks = slm_gpu_blocks(rows, 1), threads = slm_gpu_threads(width);

    if (rows == 0 || width == 0) return SLM_OK;
    if (!blocks || width > INT32_MAX - 256) return SLM_ERR_UNSUPPORTED;
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
