/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/blas.cpp - the part of cuBLAS that the backend uses, on OpenBLAS.
 *
 * Column-major on both sides. Products of binary32 or bf16 factors are summed in
 * binary32. Every matrix must lie in one allocation of device memory; leading
 * dimensions are checked; beta = 0 never reads C. What is not here does not link. */
#include "internal.h"

#include <cblas.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <string.h>

namespace emu
{

/* A matrix as BLAS sees it: rows x columns stored, the leading dimension between. */
struct matrix {
    char *at;
    cudaDataType type;
    size_t rows, columns, leading;
    size_t element() const
    {
        return type == CUDA_R_32F ? 4 : 2;
    }
    size_t bytes() const
    {
        return rows && columns ? ((columns - 1) * leading + rows) * element() : 0;
    }
    char *column(size_t j) const
    {
        return at + j * leading * element();
    }
};

struct gemm_job final : job {
    cublasOperation_t transpose_a, transpose_b;
    matrix a, b, c;
    size_t k;
    float alpha, beta;
    gemm_job(const void *pc) : job("gemm", pc)
    {
    }
    void step(uint64_t) const override;
};

static void watch(const matrix &m, bool write)
{
    if (m.leading == m.rows) return watch_bulk(m.at, m.bytes(), write);
    for (size_t j = 0; j < m.columns; j++)
        watch_bulk(m.column(j), m.rows * m.element(), write);
}

/* A packed binary32 copy. */
static std::vector<float> unpack(const matrix &m)
{
    std::vector<float> packed(m.rows * m.columns);

    watch(m, false);
    for (size_t j = 0; j < m.columns; j++) {
        const char *column = m.column(j);

        if (m.type == CUDA_R_32F)
            memcpy(&packed[j * m.rows], column, m.rows * 4);
        else
            for (size_t i = 0; i < m.rows; i++)
                packed[j * m.rows + i] =
                    __bfloat162float(((const __nv_bfloat16 *)column)[i]);
    }
    return packed;
}

static void pack(const matrix &m, const std::vector<float> &packed)
{
    watch(m, true);
    for (size_t j = 0; j < m.columns; j++) {
        char *column = m.column(j);

        if (m.type == CUDA_R_32F)
            memcpy(column, &packed[j * m.rows], m.rows * 4);
        else
            for (size_t i = 0; i < m.rows; i++)
                ((__nv_bfloat16 *)column)[i] = __float2bfloat16(packed[j * m.rows + i]);
    }
}

static CBLAS_TRANSPOSE blas(cublasOperation_t transpose)
{
    return transpose == CUBLAS_OP_N ? CblasNoTrans : CblasTrans;
}

static int at_least_one(size_t n)
{
    return n ? (int)n : 1;
}

void gemm_job::step(uint64_t) const
{
    std::vector<float> result(c.rows * c.columns);

    if (beta != 0.0f) result = unpack(c);
    if (k) {
        const std::vector<float> left = unpack(a), right = unpack(b);

        cblas_sgemm(CblasColMajor, blas(transpose_a), blas(transpose_b), (int)c.rows,
                    (int)c.columns, (int)k, alpha, left.data(), at_least_one(a.rows),
                    right.data(), at_least_one(b.rows), beta, result.data(),
                    at_least_one(c.rows));
    } else {
        for (float &value : result) value = beta == 0.0f ? 0.0f : beta * value;
    }
    pack(c, result);
}

/* The pieces of a call, as cuBLAS names them. */
struct call {
    cublasOperation_t transpose_a, transpose_b;
    int m, n, k;
    float alpha, beta;
    cudaDataType a_type, b_type, c_type;
    int lda, ldb, ldc;
    const void *asked_at;
};

static bool is_known(cudaDataType type)
{
    return type == CUDA_R_32F || type == CUDA_R_16BF;
}

static cublasStatus_t check(const call &of)
{
    const int a_rows = of.transpose_a == CUBLAS_OP_N ? of.m : of.k;
    const int b_rows = of.transpose_b == CUBLAS_OP_N ? of.k : of.n;

    if (of.m < 0 || of.n < 0 || of.k < 0 || of.lda < (a_rows > 1 ? a_rows : 1) ||
        of.ldb < (b_rows > 1 ? b_rows : 1) || of.ldc < (of.m > 1 ? of.m : 1))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_known(of.a_type) || of.a_type != of.b_type || !is_known(of.c_type) ||
        (of.a_type == CUDA_R_32F && of.c_type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static void need_device(const char *name, const matrix &m, const void *pc)
{
    if (!device_holds(m.at, m.bytes()))
        fault("cublas", std::string("matrix ") + name +
                            (is_device(m.at) ? " leaves its allocation, at "
                                             : " is not in device memory, at ") +
                            place(pc));
}

static std::shared_ptr<gemm_job> make_gemm(const call &of, const void *a, const void *b,
                                           void *c)
{
    const bool plain_a = of.transpose_a == CUBLAS_OP_N;
    const bool plain_b = of.transpose_b == CUBLAS_OP_N;
    const size_t m = (size_t)of.m, n = (size_t)of.n, k = (size_t)of.k;
    auto what = std::make_shared<gemm_job>(of.asked_at);

    what->transpose_a = of.transpose_a;
    what->transpose_b = of.transpose_b;
    what->a = {(char *)const_cast<void *>(a), of.a_type, plain_a ? m : k,
               plain_a ? k : m, (size_t)of.lda};
    what->b = {(char *)const_cast<void *>(b), of.b_type, plain_b ? k : n,
               plain_b ? n : k, (size_t)of.ldb};
    what->c = {(char *)c, of.c_type, m, n, (size_t)of.ldc};
    what->k = k;
    what->alpha = of.alpha;
    what->beta = of.beta;
    if (m == 0 || n == 0) return what;
    if (k) need_device("A", what->a, of.asked_at);
    if (k) need_device("B", what->b, of.asked_at);
    need_device("C", what->c, of.asked_at);
    return what;
}

static cublasStatus_t multiply(cublasHandle_t handle, const call &of, const void *a,
                               const void *b, void *c)
{
    if (of.m && of.n) submit(*(cudaStream_t *)handle, make_gemm(of, a, b, c));
    return CUBLAS_STATUS_SUCCESS;
}

/* Does an address suit a batch? cuBLAS documents of 16-bit factors: 16 bytes where k is
 * a multiple of 8, 4 where it is even; of others nothing beyond their element. */
static bool suits_batch(const matrix &m, cudaDataType factors, size_t k)
{
    const size_t wanted = factors == CUDA_R_32F ? 1 : k % 8 == 0 ? 16 : k % 2 ? 1 : 4;
    const size_t align = wanted > m.element() ? wanted : m.element();

    return (uintptr_t)m.at % align == 0;
}

/* Products of one size; the pointers to their matrices are in device memory and are read
 * when the work runs. */
struct batch_job final : job {
    call of;
    size_t count;
    const void *const *a, *const *b;
    void *const *c;
    batch_job(const call &what, size_t n)
        : job("gemm", what.asked_at), of(what), count(n)
    {
    }
    void step(uint64_t) const override
    {
        const size_t bytes = count * sizeof *a;

        if (!device_holds(a, bytes) || !device_holds(b, bytes) ||
            !device_holds(c, bytes))
            fault("cublas",
                  "arrays of pointers must be device memory, at " + place(asked_at));
        watch_bulk(a, bytes, false);
        watch_bulk(b, bytes, false);
        watch_bulk(c, bytes, false);
        for (size_t i = 0; i < count; i++) {
            const auto one = make_gemm(of, a[i], b[i], c[i]);

            for (const matrix *m : {&one->a, &one->b, &one->c})
                if (!suits_batch(*m, of.a_type, (size_t)of.k))
                    fault("cublas",
                          "a pointer of a batch is not aligned, at " + place(asked_at));
            one->step(0);
        }
    }
};

static float scalar(const void *at)
{
    return *(const float *)at;
}

static bool is_summed_in_f32(cublasComputeType_t type)
{
    return type == CUBLAS_COMPUTE_32F || type == CUBLAS_COMPUTE_32F_PEDANTIC;
}

} // namespace emu

using namespace emu;

#define CALLER __builtin_return_address(0)

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    *handle = (cublasHandle_t) new cudaStream_t(nullptr);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    delete (cudaStream_t *)handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    *(cudaStream_t *)handle = stream;
    return CUBLAS_STATUS_SUCCESS;
}

/* Sums are in binary32 whatever the mode forbids. */
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t mode)
{
    const int kind = mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;

    return kind == CUBLAS_DEFAULT_MATH || kind == CUBLAS_PEDANTIC_MATH
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *workspace, size_t bytes)
{
    const entry in;

    return bytes == 0 || device_holds(workspace, bytes) ? CUBLAS_STATUS_SUCCESS
                                                        : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transpose_a,
                            cublasOperation_t transpose_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType a_type,
                            int lda, const void *b, cudaDataType b_type, int ldb,
                            const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t)
{
    const entry in;
    const call of = {transpose_a,   transpose_b,  m,      n,      k,
                     scalar(alpha), scalar(beta), a_type, b_type, c_type,
                     lda,           ldb,          ldc,    CALLER};
    const cublasStatus_t status = check(of);

    if (!is_summed_in_f32(compute)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return status ? status : multiply(handle, of, a, b, c);
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transpose_a,
                                   cublasOperation_t transpose_b, int m, int n, int k,
                                   const void *alpha, const void *const a[],
                                   cudaDataType a_type, int lda, const void *const b[],
                                   cudaDataType b_type, int ldb, const void *beta,
                                   void *const c[], cudaDataType c_type, int ldc,
                                   int count, cublasComputeType_t compute,
                                   cublasGemmAlgo_t)
{
    const entry in;
    const call of = {transpose_a,   transpose_b,  m,      n,      k,
                     scalar(alpha), scalar(beta), a_type, b_type, c_type,
                     lda,           ldb,          ldc,    CALLER};
    const cublasStatus_t status = count < 0 ? CUBLAS_STATUS_INVALID_VALUE : check(of);

    if (!is_summed_in_f32(compute)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (status || !m || !n || !count) return status;

    auto what = std::make_shared<batch_job>(of, (size_t)count);

    what->a = a;
    what->b = b;
    what->c = c;
    submit(*(cudaStream_t *)handle, what);
    return CUBLAS_STATUS_SUCCESS;
}
}
