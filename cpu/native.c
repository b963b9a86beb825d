/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native.c - the backend `cpu`: its table and its handle. Its products are its own,
 * by the best instruction set of this CPU or the one that SLM_CPU_LEVEL names. */
#include <stdio.h>
#include <stdlib.h>

#include "cpu.h"
#include "native.h"
#include "topk.h"

static int refuse(char *reason, size_t size, const char *why)
{
    if (size) snprintf(reason, size, "%s", why);
    return 0;
}

/* Operations of the element type: in bf16 between copies. */
#define SLM_CPU_EITHER(X)                                                              \
    X(route)                                                                           \
    X(situ_glu)                                                                        \
    X(dense_ffn)                                                                       \
    X(rmsnorm)                                                                         \
    X(situ_glu_backward)                                                               \
    X(rmsnorm_backward)                                                                \
    X(dense_ffn_backward)

#define SLM_CPU_DEFINE(name)                                                           \
    static slm_status inner_##name(slm_handle *handle, const void *args,               \
                                   slm_error *error)                                   \
    {                                                                                  \
        return slm_cpu_##name(handle, args, error);                                    \
    }                                                                                  \
                                                                                       \
    static slm_status native_##name(slm_handle *handle, const slm_##name##_args *args, \
                                    slm_error *error)                                  \
    {                                                                                  \
        return handle->config.dtype == SLM_F32                                         \
                   ? slm_cpu_##name(handle, args, error)                               \
                   : slm_cpu_widened(handle, SLM_OP_##name, args, inner_##name,        \
                                     error);                                           \
    }
SLM_CPU_EITHER(SLM_CPU_DEFINE)
#undef SLM_CPU_DEFINE

static slm_status inner_layer_backward(slm_handle *handle, const void *args,
                                       slm_error *error)
{
    return slm_cpu_layer_backward(handle, args, error);
}

/* The weights are widened as well: what the layer has in common, and the experts that
 * these tokens chose, each once. */
static slm_status native_layer_backward(slm_handle *handle,
                                        const slm_layer_backward_args *args,
                                        slm_error *error)
{
    slm_status status;

    if (handle->config.dtype == SLM_F32)
        return slm_cpu_layer_backward(handle, args, error);
    status = slm_cpu_widen_weights(handle, &args->ids, error);
    return status ? status
                  : slm_cpu_widened(handle, SLM_OP_layer_backward, args,
                                    inner_layer_backward, error);
}

static int is_widened(slm_op op)
{
    if (op == SLM_OP_layer_backward) return 1;
#define SLM_CPU_CASE(name)                                                             \
    case SLM_OP_##name:                                                                \
        return 1;
    switch (op) {
        SLM_CPU_EITHER(SLM_CPU_CASE)
    default:
        return 0;
    }
#undef SLM_CPU_CASE
}

static int supports(const slm_config *config, slm_op op, size_t n_tokens, char *reason,
                    size_t reason_size)
{
    slm_error error;

    (void)config;
    (void)n_tokens;
    if (!slm_cpu_find_level(&error)) { /* a typing mistake must not run anything */
        if (reason_size)
            snprintf(reason, reason_size, "SLM_CPU_LEVEL: %s", error.expected);
        return 0;
    }
    if (!slm_op_describe(op)) return refuse(reason, reason_size, "unknown operation");
    return 1;
}

static void close_handle(slm_handle *handle)
{
    if (!handle) return;
    slm_cpu_free_packed(&handle->native->packed);
    slm_cpu_free_wide(handle);
    free(handle->native);
    slm_cpu_close(handle);
}

static slm_status open_handle(const slm_config *config, slm_handle **handle,
                              slm_error *error)
{
    const slm_cpu_level *level = slm_cpu_find_level(error);
    slm_handle *made;

    if (!level) return SLM_ERR_UNSUPPORTED;
    made = slm_cpu_new_handle(config, error);
    if (!made) return SLM_ERR_MEMORY;
    made->native = calloc(1, sizeof *made->native);
    if (!made->native) {
        slm_cpu_close(made);
        return slm_fail(error, SLM_ERR_MEMORY, "open", "handle", 0, "%zu bytes",
                        sizeof *made->native);
    }
    made->native->level = level;
    made->gemm = level->gemm;
    made->by_panels = slm_cpu_by_panels;
    made->kernels = slm_cpu_kernels_of(level->isa);
    made->slopes = slm_cpu_slopes_of(level->isa);
    made->topk = slm_cpu_topk_of(level->isa);
    *handle = made;
    return SLM_OK;
}

/* Packed for layer_forward; the backward pass reads binary32 weights as they lie, and
 * widens others when it first needs them. */
static slm_status prepare(slm_handle *handle, const slm_weights *weights,
                          slm_error *error)
{
    slm_cpu_free_wide(handle);
    slm_cpu_look_at_router(handle, weights);
    if (handle->config.dtype == SLM_F32) {
        const slm_status status = slm_cpu_refer_to_weights(handle, weights, error);

        if (status) return status;
    }
    return slm_cpu_pack_weights(&handle->native->packed, &handle->config, weights,
                                error);
}

static size_t workspace(slm_handle *handle, slm_op op, const slm_call *call)
{
    if (op == SLM_OP_layer_forward) return slm_cpu_native_layer_space(handle, call);
    if (handle->config.dtype == SLM_F32 || !is_widened(op))
        return slm_cpu_workspace(handle, op, call);

    const size_t copies = slm_cpu_widened_space(&handle->config, op, call);
    const size_t inner = slm_cpu_workspace(handle, op, call);

    return copies > SIZE_MAX - inner ? SIZE_MAX : copies + inner;
}

/* As cpu-blas, whose functions of single elements these are; tiles of bf16 flush. */
#define SLM_CPU_ARITHMETIC(flushes)                                                    \
    {                                                                                  \
        .struct_size = sizeof(slm_arithmetic), .accumulator = 0x1p-24,                 \
        .sigmoid_ulp = 3.5, .tanh_ulp = 3.5, .rsqrt_ulp = 0x1p-20, .balance = 0x1p-53, \
        .flushes_subnormals = flushes                                                  \
    }

#define SLM_CPU_TABLE(declared)                                                        \
    {                                                                                  \
        .struct_size = sizeof(slm_backend), .abi_major = SLM_ABI_MAJOR,                \
        .abi_minor = SLM_ABI_MINOR, .name = "cpu", .version = "0.1",                   \
        .flags = SLM_DETERMINISTIC | SLM_BATCH_INVARIANT | SLM_STRIDED,                \
        .levels = SLM_LEVEL_INFER | SLM_LEVEL_TRAIN | SLM_LEVEL_DIST,                  \
        .arithmetic = declared, .ops = &ops, .supports = supports,                     \
        .open = open_handle, .close = close_handle, .prepare = prepare,                \
        .workspace = workspace                                                         \
    }

const slm_backend *slm_cpu_backend(void)
{
    static const slm_ops ops = {
        .struct_size = sizeof ops,
        .route = native_route,
        .select = slm_cpu_select,
        .permute = slm_cpu_permute,
        .situ_glu = native_situ_glu,
        .dense_ffn = native_dense_ffn,
        .rmsnorm = native_rmsnorm,
        .layer_forward = slm_cpu_native_layer_forward,
        .qb_exact = slm_cpu_qb_exact,
        .qb_hist_accumulate = slm_cpu_qb_hist_accumulate,
        .qb_hist_merge = slm_cpu_qb_hist_merge,
        .qb_hist_solve = slm_cpu_qb_hist_solve,
        .sign_step = slm_cpu_sign_step,
        .load_metrics = slm_cpu_load_metrics,
        .situ_glu_backward = native_situ_glu_backward,
        .rmsnorm_backward = native_rmsnorm_backward,
        .select_backward = slm_cpu_select_backward,
        .dense_ffn_backward = native_dense_ffn_backward,
        .layer_backward = native_layer_backward,
        .qb_observe = slm_cpu_qb_observe,
        .qb_commit = slm_cpu_qb_commit,
    };
    static const slm_arithmetic arithmetic[] = {SLM_CPU_ARITHMETIC(0),
                                                SLM_CPU_ARITHMETIC(1)};
    static const slm_backend backends[] = {SLM_CPU_TABLE(&arithmetic[0]),
                                           SLM_CPU_TABLE(&arithmetic[1])};
    slm_error ignored;
    const slm_cpu_level *level = slm_cpu_find_level(&ignored);

    return &backends[level && level->flushes];
}
