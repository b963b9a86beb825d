/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/blas.c - the backend `cpu-blas`: its table, its handle, and GEMM by OpenBLAS.
 *
 * OpenBLAS runs on the calling thread alone; OpenMP shares the blocks. A second level
 * of threads inside GEMM would cost more than it brings at these sizes, and would make
 * the bits depend on the number of threads. */
#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "cpu.h"
#include "internal.h"

/* One row is a matrix-vector product: GEMM would first copy all of w. y is zeroed here
 * since not every release stores, rather than multiplies, when beta is 0. */
static void gemv(const slm_cpu_linear *product)
{
    float *y = product->y.data;

    if (!product->add) memset(y, 0, product->cols * sizeof *y);
    cblas_sgemv(CblasRowMajor, CblasNoTrans, (blasint)product->cols,
                (blasint)product->inner, 1.0f, product->w.data, (blasint)product->w.ld,
                product->x.data, 1, 1.0f, y, 1);
}

static void gemm(const slm_cpu_linear *product)
{
    if (product->rows == 1) {
        gemv(product);
        return;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)product->rows,
                (blasint)product->cols, (blasint)product->inner, 1.0f, product->x.data,
                (blasint)product->x.ld, product->w.data, (blasint)product->w.ld,
                product->add ? 1.0f : 0.0f, product->y.data, (blasint)product->y.ld);
}

static int refuse(char *reason, size_t size, const char *why)
{
    if (size) snprintf(reason, size, "%s", why);
    return 0;
}

static int uses_element_type(slm_op op)
{
    const slm_op_info *info = slm_op_describe(op);

    for (size_t i = 0; i < info->n_fields; i++)
        if (info->fields[i].kind == SLM_KIND_REAL) return 1;
    return 0;
}

static int supports(const slm_config *config, slm_op op, size_t n_tokens, char *reason,
                    size_t reason_size)
{
    const size_t sizes[] = {config->d_model,  config->d_latent, config->n_experts,
                            config->top_k,    config->d_expert, config->n_shared,
                            config->d_shared, config->n_bins};
    size_t width;

    (void)n_tokens;
    if (!slm_op_describe(op)) return refuse(reason, reason_size, "unknown operation");
    if (config->dtype != SLM_F32 && uses_element_type(op))
        return refuse(reason, reason_size, "binary32 only: its GEMM is SGEMM");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > INT_MAX)
            return refuse(reason, reason_size, "a size beyond OpenBLAS's integers");
    if (__builtin_mul_overflow(config->n_shared, config->d_shared, &width) ||
        width > INT_MAX)
        return refuse(reason, reason_size, "shared experts beyond OpenBLAS's integers");
    return 1;
}

static slm_status open_handle(const slm_config *config, slm_handle **handle,
                              slm_error *error)
{
    slm_handle *made = calloc(1, sizeof *made);
    const size_t size = config->struct_size < sizeof made->config ? config->struct_size
                                                                  : sizeof made->config;

    if (!made)
        return slm_fail(error, SLM_ERR_MEMORY, "open", "handle", 0, "%zu bytes",
                        sizeof *made);
    memcpy(&made->config, config, size);
    made->gemm = gemm;
    made->kernels = slm_cpu_pick_kernels();
    openblas_set_num_threads(1);
    *handle = made;
    return SLM_OK;
}

static void drop_copies(slm_handle *handle)
{
    for (size_t i = 0; i < SLM_CPU_WEIGHTS; i++) {
        free(handle->packed[i]);
        handle->packed[i] = NULL;
    }
}

static void close_handle(slm_handle *handle)
{
    if (!handle) return;
    drop_copies(handle);
    free(handle);
}

/* 1 and the matrix of the first part of a weight of rank 3, with the distance of the
 * parts; or of a weight of lower rank. Looks at no element: weights may be sparse. */
static int refer(const slm_tensor *weight, slm_cpu_matrix *matrix, ptrdiff_t *step)
{
    if (weight->rank < 3) return slm_cpu_is_matrix(weight, matrix);

    const slm_tensor part = slm_tensor_at(weight, 0);

    *step = weight->stride[0];
    return slm_cpu_is_matrix(&part, matrix);
}

/* A packed copy of a weight that GEMM cannot read as it lies; NULL without memory. */
static float *copy_of(const slm_tensor *weight)
{
    const size_t parts = weight->rank < 3 ? 1 : weight->shape[0];
    const size_t each = slm_tensor_count(weight) / parts;
    float *copy = malloc(parts * each * sizeof *copy);

    if (!copy) return NULL;
    for (size_t p = 0; p < parts; p++) {
        const slm_tensor part = weight->rank < 3 ? *weight : slm_tensor_at(weight, p);

        slm_cpu_pack(copy + p * each, &part);
    }
    return copy;
}

static slm_status take_weight(const slm_tensor *weight, const char *name, float **copy,
                              slm_cpu_matrix *matrix, ptrdiff_t *step, slm_error *error)
{
    size_t each;

    if (weight->rank == 0 || slm_tensor_count(weight) == 0) return SLM_OK;
    if (refer(weight, matrix, step)) return SLM_OK;
    *copy = copy_of(weight);
    if (!*copy)
        return slm_fail(error, SLM_ERR_MEMORY, "prepare", name, 0, "%zu elements",
                        slm_tensor_count(weight));
    *matrix = (slm_cpu_matrix){*copy, weight->shape[weight->rank - 1]};
    each = slm_tensor_count(weight) / (weight->rank < 3 ? 1 : weight->shape[0]);
    *step = (ptrdiff_t)each;
    return SLM_OK;
}

static slm_status prepare(slm_handle *handle, const slm_weights *weights,
                          slm_error *error)
{
    slm_cpu_weights *to = &handle->weights;
    ptrdiff_t none;
    const struct {
        const char *name;
        const slm_tensor *weight;
        slm_cpu_matrix *matrix;
        ptrdiff_t *step;
    } list[SLM_CPU_WEIGHTS] = {
        {"w_router", &weights->w_router, &to->router, &none},
        {"w_down", &weights->w_down, &to->down, &none},
        {"w_gate", &weights->w_gate, &to->gate, &to->gate_step},
        {"w_up", &weights->w_up, &to->up, &to->up_step},
        {"w_out", &weights->w_out, &to->out, &to->out_step},
        {"w_expert", &weights->w_expert, &to->expert, &to->expert_step},
        {"gamma", &weights->gamma, &to->gamma, &none},
        {"w_lift", &weights->w_lift, &to->lift, &none},
        {"w_shared_gate", &weights->w_shared_gate, &to->shared_gate, &none},
        {"w_shared_up", &weights->w_shared_up, &to->shared_up, &none},
        {"w_shared_out", &weights->w_shared_out, &to->shared_out, &none},
        {"w_shared", &weights->w_shared, &to->shared, &to->shared_step},
    };

    drop_copies(handle);
    memset(to, 0, sizeof *to);
    for (size_t i = 0; i < SLM_CPU_WEIGHTS; i++) {
        const slm_status status =
            take_weight(list[i].weight, list[i].name, &handle->packed[i],
                        list[i].matrix, list[i].step, error);

        if (status) return status;
    }
    return SLM_OK;
}

static size_t workspace(slm_handle *handle, slm_op op, const slm_call *call)
{
    const slm_config *config = &handle->config;

    switch (op) {
    case SLM_OP_route:
        return slm_cpu_route_space(config, call);
    case SLM_OP_select:
        return slm_cpu_select_space(config, call);
    case SLM_OP_permute:
        return slm_cpu_permute_space(config, call);
    case SLM_OP_dense_ffn:
        return slm_cpu_dense_ffn_space(config, call);
    case SLM_OP_rmsnorm:
        return slm_cpu_rmsnorm_space(config, call);
    case SLM_OP_layer_forward:
        return slm_cpu_layer_forward_space(config, call);
    case SLM_OP_qb_exact:
        return slm_cpu_qb_exact_space(config, call);
    case SLM_OP_qb_hist_accumulate:
        return slm_cpu_qb_hist_accumulate_space(config, call);
    case SLM_OP_qb_hist_solve:
        return slm_cpu_qb_hist_solve_space(config, call);
    default:
        return 0;
    }
}

const slm_backend *slm_cpu_blas_backend(void)
{
    /* sigmoid and tanh: cpu/situ.c; 1/sqrt is binary64 inside, its error is nil beside
     * the rounding of r, which the clause counts apart. */
    static const slm_arithmetic arithmetic = {.struct_size = sizeof arithmetic,
                                              .accumulator = 0x1p-24,
                                              .sigmoid_ulp = 3.5,
                                              .tanh_ulp = 3.5,
                                              .rsqrt_ulp = 0x1p-20,
                                              .balance = 0x1p-53};
#define SLM_CPU_MEMBER(name, level, purpose) .name = slm_cpu_##name,
    static const slm_ops ops = {.struct_size = sizeof ops, SLM_OPS(SLM_CPU_MEMBER)};
#undef SLM_CPU_MEMBER
    static const slm_backend backend = {
        .struct_size = sizeof backend,
        .abi_major = SLM_ABI_MAJOR,
        .abi_minor = SLM_ABI_MINOR,
        .name = "cpu-blas",
        .version = "0.1",
        .flags = SLM_DETERMINISTIC | SLM_STRIDED,
        .levels = SLM_LEVEL_INFER | SLM_LEVEL_TRAIN | SLM_LEVEL_DIST,
        .arithmetic = &arithmetic,
        .ops = &ops,
        .supports = supports,
        .open = open_handle,
        .close = close_handle,
        .prepare = prepare,
        .workspace = workspace,
    };

    return &backend;
}

const char *slm_cpu_blas_core(void)
{
    return openblas_get_corename();
}

const char *slm_cpu_blas_wanted_core(void)
{
#if defined(__x86_64__)
    static const char *const good[] = {"Haswell", "Zen", "SkylakeX", "Cooperlake",
                                       "SapphireRapids"};
    const char *core = slm_cpu_blas_core();

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (strcmp(core, good[i]) == 0) return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}
