/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/backend.cu - the table: the handle, device memory, what is supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "gpu.h"
#include "kernels.h"

namespace
{

enum { GROUPED_EXPERTS = (227 << 10) / sizeof(int) }; /* permute.cu counts in shared */

int refuse(char *reason, size_t size, const char *why)
{
    if (size) snprintf(reason, size, "%s", why);
    return 0;
}

/* Bytes of the layer's weights; SIZE_MAX when they do not fit in 64 bits. */
size_t weight_bytes(const slm_config *config)
{
    const slm_call none = {};
    size_t n_fields, total = 0;
    const slm_field *fields = slm_weight_fields(&n_fields);

    for (size_t i = 0; i < n_fields; i++) {
        size_t bytes = slm_dtype_size(slm_field_dtype(&fields[i], config));

        if (!slm_field_applies(&fields[i], config)) continue;
        for (const char *letter = fields[i].dims; *letter; letter++) {
            size_t size;

            if (!slm_dim(config, &none, *letter, &size) ||
                __builtin_mul_overflow(bytes, size, &bytes))
                return SIZE_MAX;
        }
        if (__builtin_add_overflow(total, bytes, &total)) return SIZE_MAX;
    }
    return total;
}

/* Weights, their gradients and copies must find room beside the activations. */
int has_room(const slm_config *config, char *reason, size_t size)
{
    const size_t bytes = weight_bytes(config);
    cudaDeviceProp properties;

    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess)
        return refuse(reason, size, "the device does not say how much memory it has");
    if (bytes <= properties.totalGlobalMem / 4) return 1;
    if (size)
        snprintf(reason, size,
                 "%zu MiB of weights; a quarter of the device's %zu MiB "
                 "is the limit",
                 bytes >> 20, properties.totalGlobalMem >> 20);
    return 0;
}

int supports(const slm_config *config, slm_op op, size_t n_tokens, char *reason,
             size_t reason_size)
{
    const size_t sizes[] = {config->d_model,  config->d_latent, config->n_experts,
                            config->top_k,    config->d_expert, config->n_shared,
                            config->d_shared, config->n_bins,   n_tokens};
    const size_t n_sizes = sizeof sizes / sizeof *sizes;
    const slm_op_info *info = slm_op_describe(op);
    const bool routes =
        op == SLM_OP_route || op == SLM_OP_select || (info && info->prepared);
    size_t product;

    if (!info) return refuse(reason, reason_size, "unknown operation");
    /* A solve has no tokens, only their number, which comes last here. */
    for (size_t i = op == SLM_OP_qb_hist_solve; i < n_sizes; i++)
        if (sizes[n_sizes - 1 - i] > INT32_MAX / 2)
            return refuse(reason, reason_size, "a size of 2^30 or more");
    if (routes && config->score != SLM_SCORE_SIGMOID)
        return refuse(reason, reason_size,
                      "softmax scores are a control: sigmoid only");
    if (op != SLM_OP_permute && !info->prepared) return 1;
    if (config->n_experts > GROUPED_EXPERTS)
        return refuse(reason, reason_size, "more than 58112 experts to group by");
    if (__builtin_mul_overflow(n_tokens, config->top_k, &product) ||
        product > INT32_MAX / 2)
        return refuse(reason, reason_size, "2^30 or more (token, slot) pairs");
    if (info->prepared && config->expert != SLM_EXPERT_LINEAR &&
        (__builtin_mul_overflow(config->n_shared, config->d_shared, &product) ||
         product > INT32_MAX / 2)) /* gate and up lie side by side */
        return refuse(reason, reason_size, "2^30 or more columns of shared experts");
    return info->prepared ? has_room(config, reason, reason_size) : 1;
}

void close_handle(slm_handle *handle)
{
    if (!handle) return;
    if (handle->blas) cublasDestroy(handle->blas);
    if (handle->side_blas) cublasDestroy(handle->side_blas);
    if (handle->fork) cudaEventDestroy(handle->fork);
    if (handle->join) cudaEventDestroy(handle->join);
    if (handle->side) cudaStreamDestroy(handle->side);
    cudaFree(handle->packed);
    cudaFree(handle->state);
    cudaFreeHost(handle->host_seen);
    free(handle);
}

cudaError_t equip(slm_handle *handle)
{
    const unsigned plain = cudaEventDisableTiming;
    cudaError_t error = cudaMalloc((void **)&handle->state, sizeof *handle->state);

    if (!error)
        error = cudaMallocHost((void **)&handle->host_seen, sizeof *handle->host_seen);
    if (!error) error = cudaStreamCreateWithFlags(&handle->side, cudaStreamNonBlocking);
    if (!error) error = cudaEventCreateWithFlags(&handle->fork, plain);
    if (!error) error = cudaEventCreateWithFlags(&handle->join, plain);
    return error;
}

slm_status open_handle(const slm_config *config, slm_handle **handle, slm_error *error)
{
    slm_handle *made = (slm_handle *)calloc(1, sizeof *made);
    const size_t size = config->struct_size < sizeof made->config ? config->struct_size
                                                                  : sizeof made->config;
    cudaError_t failed;

    if (!made)
        return slm_fail(error, SLM_ERR_MEMORY, "open", "handle", 0, "%zu bytes",
                        sizeof *made);
    memcpy(&made->config, config, size);
    failed = equip(made);
    if (!failed &&
        (slm_gpu_open_blas(&made->blas) || slm_gpu_open_blas(&made->side_blas)))
        failed = cudaErrorInitializationError;
    if (!failed) {
        *handle = made;
        return SLM_OK;
    }
    close_handle(made);
    return slm_fail(
        error, failed == cudaErrorMemoryAllocation ? SLM_ERR_MEMORY : SLM_ERR_INTERNAL,
        "open", "handle", 0, "a device with streams and cuBLAS: %s",
        cudaGetErrorString(failed));
}

slm_status prepare(slm_handle *handle, const slm_weights *weights, slm_error *error)
{
    const size_t size = weights->struct_size < sizeof handle->weights
                            ? weights->struct_size
                            : sizeof handle->weights;

    cudaFree(handle->packed);
    handle->packed = NULL;
    memset(&handle->weights, 0, sizeof handle->weights);
    memcpy(&handle->weights, weights, size);
    return slm_gpu_pack(handle, error);
}

size_t workspace(slm_handle *handle, slm_op op, const slm_call *call)
{
    switch (op) {
#define SPACE(name, level, purpose)                                                    \
    case SLM_OP_##name:                                                                \
        return slm_gpu_##name##_space(&handle->config, call);
        SLM_OPS(SPACE)
#undef SPACE
    default:
        return 0;
    }
}

void *alloc_memory(size_t bytes)
{
    void *memory = NULL;

    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError(); /* told by NULL */
    return NULL;
}

void free_memory(void *memory)
{
    cudaFree(memory);
}

int copy_memory(void *to, const void *from, size_t bytes)
{
    return cudaMemcpy(to, from, bytes, cudaMemcpyDefault) != cudaSuccess;
}

int wait_for(void *stream)
{
    return (stream ? cudaStreamSynchronize((cudaStream_t)stream)
                   : cudaDeviceSynchronize()) != cudaSuccess;
}

} // namespace

const slm_backend *slm_gpu_backend(void)
{
    /* Tensor cores may truncate; binary32 products round to nearest, which is less.
     * sigmoid: exponential.cuh; 1/sqrt is binary64 inside. */
    static const slm_arithmetic arithmetic = []() {
        slm_arithmetic a = {};

        a.struct_size = sizeof a;
        a.accumulator = 0x1p-23;
        a.sigmoid_ulp = 3.5;
        a.tanh_ulp = 3.5;
        a.rsqrt_ulp = 0x1p-20;
        a.balance = 0x1p-53;
        return a;
    }();
#define MEMBER(name, level, purpose) slm_gpu_##name,
    static const slm_ops ops = {sizeof ops, SLM_OPS(MEMBER)};
#undef MEMBER
    static const slm_backend backend = []() {
        slm_backend b = {};

        b.struct_size = sizeof b;
        b.abi_major = SLM_ABI_MAJOR;
        b.abi_minor = SLM_ABI_MINOR;
        b.name = SLM_DEVICE_NAME;
        b.version = "0.1 (" SLM_DEVICE_ABOUT ")";
        b.flags = SLM_DETERMINISTIC;
        b.levels = SLM_LEVEL_INFER | SLM_LEVEL_TRAIN | SLM_LEVEL_DIST;
        b.arithmetic = &arithmetic;
        b.ops = &ops;
        b.supports = supports;
        b.open = open_handle;
        b.close = close_handle;
        b.prepare = prepare;
        b.workspace = workspace;
        b.alloc = alloc_memory;
        b.free = free_memory;
        b.copy = copy_memory;
        b.sync = wait_for;
        return b;
    }();

    return &backend;
}

extern "C" SLM_EXPORT const slm_backend *slm_backend_get(uint32_t host_major)
{
    return host_major == SLM_ABI_MAJOR ? slm_gpu_backend() : NULL;
}

/* What stands in for a device, or NULL: such a run is never certifiable. */
extern "C" SLM_EXPORT const char *slm_backend_emulated(void)
{
    return strcmp(SLM_DEVICE_NAME, "gpu") == 0 ? NULL : SLM_DEVICE_ABOUT;
}

/* Why it cannot run on this machine, or NULL. Initialises CUDA. */
extern "C" SLM_EXPORT const char *slm_gpu_missing(void)
{
    static char why[160];
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);

    if (error == cudaSuccess && devices > 0) return NULL;
    snprintf(why, sizeof why, "no CUDA device: %s",
             error ? cudaGetErrorString(error) : "the driver shows none");
    return why;
}
