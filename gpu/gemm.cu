/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/gemm.cu - products: dense, and of all experts in one batch.
 *
 * cuBLAS's, except those of few rows (gemm_rows.cu). A batch has chunks of one size
 * (layer.h), so that counts stay on the device.
 *
 * Graphs   NVIDIA documents that cuBLAS calls can be captured, scalars in host memory by
 *          value; that cublasSetStream() returns to the handle's own workspace; that a
 *          captured call may allocate by memory nodes of its graph instead. So nothing
 *          need outlive a capture. But a graph with such nodes can neither be a child
 *          of another nor be launched from the device. And that equal bits on several
 *          streams need a cuBLAS handle each, which is why the side stream has one. */
#include "element.cuh"
#include "layer.h"

namespace
{

const float ZERO = 0.0f, ONE = 1.0f;

cudaDataType type_of(slm_gpu_matrix matrix)
{
    return matrix.dtype == SLM_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

slm_status status_of(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return SLM_OK;
    case CUBLAS_STATUS_ALLOC_FAILED:
        return SLM_ERR_MEMORY;
    default:
        return SLM_ERR_INTERNAL;
    }
}

} // namespace

slm_status slm_gpu_open_blas(cublasHandle_t *blas)
{
    const cublasMath_t mode =
        (cublasMath_t)(CUBLAS_DEFAULT_MATH |
                       CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    const slm_status status = status_of(cublasCreate(blas));

    return status ? status : status_of(cublasSetMathMode(*blas, mode));
}

/* gemm_rows.cu or cuBLAS? By arithmetic, not measured: from the memory of an H200 a
 * multiprocessor gets some 9 bf16 weights a clock and can do 128 operations meanwhile.
 * To unpack them and four rows of x and to multiply takes about 70, with eight rows all:
 * up to four rows the weights' bytes are what a product costs; beyond, tensor cores
 * pay. */
static bool is_few(size_t rows)
{
    return rows <= SLM_GPU_FEW_ROWS;
}

static cublasHandle_t blas_on(const slm_handle *handle, cudaStream_t stream)
{
    const cublasHandle_t blas =
        stream == handle->side ? handle->side_blas : handle->blas;

    return cublasSetStream(blas, stream) == CUBLAS_STATUS_SUCCESS ? blas : NULL;
}

/* cuBLAS is column-major: y^T [cols, rows] = w x^T. */
static slm_status multiply(const slm_handle *handle, const slm_gpu_linear *product,
                           cudaStream_t stream)
{
    const slm_gpu_matrix &x = product->x, &w = product->w, &y = product->y;
    const bool outer = product->how & SLM_GPU_OUTER;
    const bool plain_w = outer || (product->how & SLM_GPU_BACK);
    const cublasHandle_t blas = blas_on(handle, stream);

    if (!slm_gpu_fits(product->rows) || !slm_gpu_fits(product->cols) ||
        !slm_gpu_fits(product->inner) || !slm_gpu_fits(x.ld) || !slm_gpu_fits(w.ld) ||
        !slm_gpu_fits(y.ld))
        return SLM_ERR_UNSUPPORTED;
    if (!blas) return SLM_ERR_INTERNAL;
    return status_of(cublasGemmEx(
        blas, plain_w ? CUBLAS_OP_N : CUBLAS_OP_T, outer ? CUBLAS_OP_T : CUBLAS_OP_N,
        (int)product->cols, (int)product->rows, (int)product->inner, &ONE, w.data,
        type_of(w), (int)w.ld, x.data, type_of(x), (int)x.ld,
        product->how & SLM_GPU_ADD ? &ONE : &ZERO, y.data, type_of(y), (int)y.ld,
        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

slm_status slm_gpu_product(const slm_handle *handle, const slm_gpu_linear *product,
                           cudaStream_t stream)
{
    if (product->rows == 0 || product->cols == 0) return SLM_OK;
    if (is_few(product->rows) && !(product->how & SLM_GPU_OUTER) &&
        slm_gpu_is_wide(product->cols, product->inner, product->how, product->x,
                        product->w))
        return slm_gpu_few_rows(product, stream);
    return multiply(handle, product, stream);
}

/* Where the chunks' weights, rows and results lie.
 *
 *   launch    grid ceil(chunks / 128), block 128
 *   w         byte 0 of expert 0, the next is `w_step` bytes on; x, y: so the chunks
 *   of_w, of_x, of_y  [chunks] out */
__global__ void __launch_bounds__(128)
    gemm_pointers(int chunks, const int32_t *expert, char *w, size_t w_step, char *x,
                  size_t x_step, char *y, size_t y_step, void **of_w, void **of_x,
                  void **of_y)
{
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (c >= chunks) return;
    of_w[c] = w + (size_t)expert[c] * w_step;
    of_x[c] = x + (size_t)c * x_step;
    of_y[c] = y + (size_t)c * y_step;
}

static void point(const slm_gpu_groups *at, size_t weight_size, size_t index,
                  const slm_gpu_expert_linear *one, cudaStream_t stream)
{
    const size_t element = slm_dtype_size(one->x.dtype), part = 2 * at->chunks;
    void **of_w = at->pointers + index * at->chunks;

    SLM_LAUNCH(gemm_pointers, (unsigned)((at->chunks + 127) / 128), 128, stream,
               (int)at->chunks, at->expert, (char *)const_cast<void *>(one->w),
               weight_size * element, (char *)one->x.data,
               at->chunk * one->x.ld * element, (char *)one->y.data,
               at->chunk * one->y.ld * element, of_w, of_w + part, of_w + 2 * part);
}

/* Addresses as cuBLAS wants them in bf16: of 16 bytes where k % 8 is 0, of 4 where k is
 * even. So they are: the first weights are of 16 (pack.cu), and the rows of experts. */
static slm_status multiply_batch(cublasHandle_t blas, const slm_gpu_groups *at,
                                 size_t cols, size_t inner, bool back, slm_gpu_matrix x,
                                 slm_gpu_matrix y, size_t n_list)
{
    const size_t part = 2 * at->chunks;

    return status_of(cublasGemmBatchedEx(
        blas, back ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, (int)cols, (int)at->chunk,
        (int)inner, &ONE, at->pointers, type_of(x), (int)(back ? cols : inner),
        at->pointers + part, type_of(x), (int)x.ld, &ZERO, at->pointers + 2 * part,
        type_of(y), (int)y.ld, (int)(n_list * at->chunks), CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT));
}

slm_status slm_gpu_expert_products(const slm_handle *handle, const slm_gpu_groups *at,
                                   size_t cols, size_t inner, unsigned how,
                                   const slm_gpu_expert_linear *list, size_t n_list,
                                   cudaStream_t stream)
{
    const slm_gpu_matrix &x = list->x, &y = list->y;

    if (at->chunks == 0 || cols == 0) return SLM_OK;
    if (is_few(at->chunk))
        return slm_gpu_few_expert_rows(at, cols, inner, how, list, n_list, stream);
    if (!slm_gpu_fits(cols) || !slm_gpu_fits(inner) || !slm_gpu_fits(x.ld) ||
        !slm_gpu_fits(y.ld) || !slm_gpu_fits(2 * at->chunks))
        return SLM_ERR_UNSUPPORTED;

    const cublasHandle_t blas = blas_on(handle, stream);

    if (!blas) return SLM_ERR_INTERNAL;
    for (size_t i = 0; i < n_list; i++) point(at, cols * inner, i, &list[i], stream);
    if (cudaGetLastError() != cudaSuccess) return SLM_ERR_INTERNAL;
    return multiply_batch(blas, at, cols, inner, how & SLM_GPU_BACK, x, y, n_list);
}
