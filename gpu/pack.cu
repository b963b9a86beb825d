/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/pack.cu - the layer's weights as its products want them, made once by prepare().
 *
 * Router and down are stacked, so that one product reads x once. In bf16 the router's
 * weights are kept in binary32, too: gradients of logits are binary32, and cuBLAS
 * multiplies factors of one dtype only. Experts' weights are the caller's, unless they
 * are not aligned as cuBLAS's batches want: 16 bytes. */
#include "layer.h"

namespace
{

enum { BATCH_ALIGN = 16 };

bool is_aligned(const void *data)
{
    return (uintptr_t)data % BATCH_ALIGN == 0;
}

/* Copies in handle->packed; data NULL where the caller's is used. */
struct copies {
    char *first;
    float *router;
    char *gate;
    char *up;
    char *out;
    char *expert;
};

char *take_unaligned(slm_gpu_arena *arena, const slm_tensor *weight)
{
    const size_t size = slm_dtype_size(weight->dtype);

    if (weight->rank == 0 || is_aligned(weight->data)) return NULL;
    return (char *)slm_gpu_take(arena, slm_tensor_count(weight), 1, size);
}

size_t lay_out(copies *at, const slm_handle *handle, void *base)
{
    slm_gpu_arena arena = {(char *)base, 0};
    const slm_config *config = &handle->config;
    const slm_weights *w = &handle->weights;
    const size_t n = config->n_experts, d = config->d_model, l = config->d_latent;

    at->first = (char *)slm_gpu_take(&arena, n + l, d, slm_dtype_size(config->dtype));
    at->router = config->dtype == SLM_BF16 ? slm_gpu_take_f32(&arena, n, d) : NULL;
    at->gate = take_unaligned(&arena, &w->w_gate);
    at->up = take_unaligned(&arena, &w->w_up);
    at->out = take_unaligned(&arena, &w->w_out);
    at->expert = take_unaligned(&arena, &w->w_expert);
    return arena.used;
}

cudaError_t copy(void *to, const slm_tensor *from)
{
    if (!to || from->rank == 0) return cudaSuccess;
    return cudaMemcpyAsync(to, from->data,
                           slm_tensor_count(from) * slm_dtype_size(from->dtype),
                           cudaMemcpyDeviceToDevice, NULL);
}

slm_status fill(const copies &at, const slm_handle *handle)
{
    const slm_config *config = &handle->config;
    const slm_weights *w = &handle->weights;
    const size_t n = config->n_experts, d = config->d_model;
    const size_t size = slm_dtype_size(config->dtype);

    if (copy(at.first, &w->w_router) != cudaSuccess ||
        copy(at.first + n * d * size, &w->w_down) != cudaSuccess ||
        copy(at.gate, &w->w_gate) != cudaSuccess ||
        copy(at.up, &w->w_up) != cudaSuccess ||
        copy(at.out, &w->w_out) != cudaSuccess ||
        copy(at.expert, &w->w_expert) != cudaSuccess)
        return SLM_ERR_INTERNAL;
    if (config->dtype != SLM_BF16) return SLM_OK;
    return slm_gpu_convert(n, d, slm_gpu_packed(at.first, SLM_BF16, d),
                           slm_gpu_packed(at.router, SLM_F32, d), NULL);
}

} // namespace

slm_status slm_gpu_pack(slm_handle *handle, slm_error *error)
{
    copies at;
    const size_t bytes = lay_out(&at, handle, NULL);
    slm_status status;

    cudaFree(handle->packed);
    handle->packed = NULL;
    if (cudaMalloc(&handle->packed, bytes) != cudaSuccess) {
        handle->packed = NULL;
        return slm_fail(error, SLM_ERR_MEMORY, "prepare", "w_router", 0, "%zu bytes",
                        bytes);
    }
    lay_out(&at, handle, handle->packed);
    status = fill(at, handle);
    if (!status && cudaStreamSynchronize(NULL) != cudaSuccess)
        status = SLM_ERR_INTERNAL;
    if (status)
        slm_fail(error, status, "prepare", "", 0, "a device that does its work");
    return status;
}

slm_gpu_layer_weights slm_gpu_weights_of(const slm_handle *handle)
{
    const slm_config *config = &handle->config;
    const slm_weights *w = &handle->weights;
    const size_t n = config->n_experts, d = config->d_model;
    copies at;

    lay_out(&at, handle, handle->packed);

    const slm_gpu_matrix first = slm_gpu_packed(at.first, config->dtype, d);

    return {first,
            at.router ? slm_gpu_packed(at.router, SLM_F32, d) : first,
            slm_gpu_columns(first, n * d),
            at.gate ? at.gate : w->w_gate.data,
            at.up ? at.up : w->w_up.data,
            at.out ? at.out : w->w_out.data,
            at.expert ? at.expert : w->w_expert.data};
}
