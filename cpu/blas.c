/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/blas.c - the backend `cpu-blas`: its table, and GEMM by OpenBLAS.
 *
 * OpenBLAS runs on the calling thread alone; OpenMP shares the blocks. A second level
 * of threads inside GEMM would cost more than it brings at these sizes, and would make
 * the bits depend on the number of threads. */
#include <cblas.h>
#include <limits.h>
#include <stdio.h>

#include "cpu.h"
#include "topk.h"

/* One row is a matrix-vector product: GEMM would first copy all of w. y is zeroed here
 * since not every release stores, rather than multiplies, when beta is 0. */
static void gemv(const slm_cpu_linear *product)
{
    const int back = (product->how & SLM_CPU_BACK) != 0;
    const size_t rows = back ? product->inner : product->cols; /* of w */
    const size_t cols = back ? product->cols : product->inner;
    float *y = product->y.data;

    if (!(product->how & SLM_CPU_ADD)) memset(y, 0, product->cols * sizeof *y);
    cblas_sgemv(CblasRowMajor, back ? CblasTrans : CblasNoTrans, (blasint)rows,
                (blasint)cols, 1.0f, product->w.data, (blasint)product->w.ld,
                product->x.data, 1, 1.0f, y, 1);
}

static void gemm(const slm_cpu_linear *product)
{
    const unsigned outer = product->how & SLM_CPU_OUTER;
    const unsigned back = product->how & SLM_CPU_BACK;

    if (product->rows == 1 && !outer) {
        gemv(product);
        return;
    }
    cblas_sgemm(CblasRowMajor, outer ? CblasTrans : CblasNoTrans,
                outer || back ? CblasNoTrans : CblasTrans, (blasint)product->rows,
                (blasint)product->cols, (blasint)product->inner, 1.0f, product->x.data,
                (blasint)product->x.ld, product->w.data, (blasint)product->w.ld,
                product->how & SLM_CPU_ADD ? 1.0f : 0.0f, product->y.data,
                (blasint)product->y.ld);
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

    if (!slm_op_describe(op)) return refuse(reason, reason_size, "unknown operation");
    if (config->dtype != SLM_F32 && uses_element_type(op))
        return refuse(reason, reason_size, "binary32 only: its GEMM is SGEMM");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > INT_MAX)
            return refuse(reason, reason_size, "a size beyond OpenBLAS's integers");
    if (__builtin_mul_overflow(config->n_shared, config->d_shared, &width) ||
        width > INT_MAX)
        return refuse(reason, reason_size, "shared experts beyond OpenBLAS's integers");
    /* Rows of [gate | up], and a product that sums over the tokens. */
    if ((op == SLM_OP_dense_ffn_backward || op == SLM_OP_layer_backward) &&
        (width > INT_MAX / 2 || config->d_expert > INT_MAX / 2 || n_tokens > INT_MAX))
        return refuse(reason, reason_size, "gradients beyond OpenBLAS's integers");
    return 1;
}

static slm_status open_handle(const slm_config *config, slm_handle **handle,
                              slm_error *error)
{
    slm_handle *made = slm_cpu_new_handle(config, error);

    if (!made) return SLM_ERR_MEMORY;
    made->gemm = gemm;
    made->kernels = slm_cpu_kernels_of(slm_cpu_best_isa());
    made->slopes = slm_cpu_slopes_of(slm_cpu_best_isa());
    made->topk = slm_cpu_topk_of(slm_cpu_best_isa());
    openblas_set_num_threads(1);
    *handle = made;
    return SLM_OK;
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
        .close = slm_cpu_close,
        .prepare = slm_cpu_refer_to_weights,
        .workspace = slm_cpu_workspace,
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
