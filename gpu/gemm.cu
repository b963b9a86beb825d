/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/gemm.cu - products: dense, of all experts in one batch, and experts' gradients.
 *
 * Dense products and those of the experts' forward and backward pass are cuBLAS's. A
 * batch has chunks of one size (layer.h), so that counts stay on the device; for few
 * tokens a chunk is one row, and the batch one matrix-vector product a pair.
 *
 * Gradients of experts' weights sum over as many rows as an expert has, which cuBLAS
 * can only be told from the host: they have a kernel of their own. It multiplies with
 * fused operations of binary32, no tensor cores: those need code that the emulator
 * cannot run (a file of its own with a plain kernel beside it, for a device alone). */
#include <limits.h>

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

bool fits(size_t size)
{
    return size <= INT_MAX;
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

static cublasHandle_t blas_on(const slm_handle *handle, cudaStream_t stream)
{
    const cublasHandle_t blas =
        stream == handle->side ? handle->side_blas : handle->blas;

    return cublasSetStream(blas, stream) == CUBLAS_STATUS_SUCCESS ? blas : NULL;
}

/* cuBLAS is column-major: y^T [cols, rows] = w x^T. */
slm_status slm_gpu_product(const slm_handle *handle, const slm_gpu_linear *product,
                           cudaStream_t stream)
{
    const slm_gpu_matrix &x = product->x, &w = product->w, &y = product->y;
    const bool outer = product->how & SLM_GPU_OUTER;
    const bool plain_w = outer || (product->how & SLM_GPU_BACK);
    const cublasHandle_t blas = blas_on(handle, stream);

    if (product->rows == 0 || product->cols == 0) return SLM_OK;
    if (!fits(product->rows) || !fits(product->cols) || !fits(product->inner) ||
        !fits(x.ld) || !fits(w.ld) || !fits(y.ld))
        return SLM_ERR_UNSUPPORTED;
    if (!blas) return SLM_ERR_INTERNAL;
    return status_of(cublasGemmEx(
        blas, plain_w ? CUBLAS_OP_N : CUBLAS_OP_T, outer ? CUBLAS_OP_T : CUBLAS_OP_N,
        (int)product->cols, (int)product->rows, (int)product->inner, &ONE, w.data,
        type_of(w), (int)w.ld, x.data, type_of(x), (int)x.ld,
        product->how & SLM_GPU_ADD ? &ONE : &ZERO, y.data, type_of(y), (int)y.ld,
        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
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

slm_status slm_gpu_expert_products(const slm_handle *handle, const slm_gpu_groups *at,
                                   size_t cols, size_t inner, unsigned how,
                                   const slm_gpu_expert_linear *list, size_t n_list,
                                   cudaStream_t stream)
{
    const slm_gpu_matrix &x = list->x, &y = list->y;
    const bool back = how & SLM_GPU_BACK;
    const size_t w_ld = back ? cols : inner, part = 2 * at->chunks;
    const cublasHandle_t blas = blas_on(handle, stream);

    if (at->chunks == 0) return SLM_OK;
    if (!fits(cols) || !fits(inner) || !fits(x.ld) || !fits(y.ld) || !fits(part))
        return SLM_ERR_UNSUPPORTED;
    if (!blas) return SLM_ERR_INTERNAL;
    for (size_t i = 0; i < n_list; i++) point(at, cols * inner, i, &list[i], stream);
    if (cudaGetLastError() != cudaSuccess) return SLM_ERR_INTERNAL;

    const cublasOperation_t of_w = back ? CUBLAS_OP_N : CUBLAS_OP_T, of_x = CUBLAS_OP_N;
    const int m = (int)cols, n = (int)at->chunk, k = (int)inner;
    const int lda = (int)w_ld, ldb = (int)x.ld, ldc = (int)y.ld;
    const int count = (int)(n_list * at->chunks);

    return status_of(cublasGemmGroupedBatchedEx(
        blas, &of_w, &of_x, &m, &n, &k, &ONE, at->pointers, type_of(x), &lda,
        at->pointers + part, type_of(x), &ldb, &ZERO, at->pointers + 2 * part,
        type_of(y), &ldc, 1, &count, CUBLAS_COMPUTE_32F));
}

enum { TILE = 64, DEPTH = 16, SIDE = 16, EACH = TILE / SIDE };

/* Rows begin .. begin + DEPTH - 1, columns col .. col + TILE - 1 of m; zeros past the
 * ends. */
template <class E>
__device__ inline void load_tile(float (&tile)[DEPTH][TILE], const E *m, size_t ld,
                                 int64_t begin, int64_t end, int col, int cols)
{
    for (int i = (int)threadIdx.x; i < DEPTH * TILE; i += SIDE * SIDE) {
        const int row = i / TILE, at = i % TILE;
        const bool inside = begin + row < end && col + at < cols;

        tile[row][at] =
            inside ? slm_gpu_load(m + (size_t)(begin + row) * ld + col + at) : 0.0f;
    }
}

/* One block makes one tile of 64 x 64 of dw[e] = a^T b over the rows of expert e; a
 * thread has every 16th row and column of it.                                 G4, G5
 *
 *   launch      grid n * tiles_a * tiles_b, block 256
 *   a [rows of experts, a_cols], b [rows of experts, b_cols], `a_ld`, `b_ld` apart
 *   first       [n + 1] first chunk of an expert; counts [n] its rows
 *   dw          [n, a_cols, b_cols] out; zeros where counts is 0
 *   state       nothing is written when it says no; NULL: always
 *   order       one sum an element, in order of the rows */
template <class E>
__global__ void __launch_bounds__(SIDE *SIDE)
    gemm_expert_gradient(const E *a, size_t a_ld, int a_cols, const E *b, size_t b_ld,
                         int b_cols, int tiles_a, int tiles_b, const int64_t *first,
                         const int64_t *counts, int chunk, float *dw,
                         const slm_gpu_state *state)
{
    SLM_SHARED(float, left, [DEPTH][TILE]);
    SLM_SHARED(float, right, [DEPTH][TILE]);
    const unsigned tile = blockIdx.x % (unsigned)(tiles_a * tiles_b);
    const unsigned e = blockIdx.x / (unsigned)(tiles_a * tiles_b);
    const int i0 = (int)(tile / (unsigned)tiles_b) * TILE;
    const int j0 = (int)(tile % (unsigned)tiles_b) * TILE;
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
    float sum[EACH][EACH] = {};

    if (slm_gpu_stopped(state)) return; /* all threads see the same */

    const int64_t begin = first[e] * chunk, end = begin + counts[e];

    for (int64_t row = begin; row < end; row += DEPTH) {
        load_tile(left, a, a_ld, row, end, i0, a_cols);
        load_tile(right, b, b_ld, row, end, j0, b_cols);
        __syncthreads();
        for (int d = 0; d < DEPTH; d++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(left[d][ty + i * SIDE], right[d][tx + j * SIDE],
                                     sum[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const int row = i0 + ty + i * SIDE, col = j0 + tx + j * SIDE;

            if (row < a_cols && col < b_cols)
                dw[((size_t)e * (size_t)a_cols + (size_t)row) * (size_t)b_cols +
                   (size_t)col] = sum[i][j];
        }
}

slm_status slm_gpu_expert_gradients(const slm_gpu_groups *at, slm_gpu_matrix a,
                                    size_t a_cols, slm_gpu_matrix b, size_t b_cols,
                                    float *dw, const slm_gpu_state *state,
                                    cudaStream_t stream)
{
    const size_t tiles_a = (a_cols + TILE - 1) / TILE;
    const size_t tiles_b = (b_cols + TILE - 1) / TILE;

    if (!fits(a_cols + TILE) || !fits(b_cols + TILE) || !fits(tiles_a * tiles_b) ||
        tiles_a * tiles_b > INT_MAX / at->n)
        return SLM_ERR_UNSUPPORTED;

    const unsigned blocks = (unsigned)(at->n * tiles_a * tiles_b);

    if (a.dtype == SLM_BF16)
        SLM_LAUNCH(gemm_expert_gradient<__nv_bfloat16>, blocks, SIDE * SIDE, stream,
                   a.data, a.ld, (int)a_cols, b.data, b.ld, (int)b_cols, (int)tiles_a,
                   (int)tiles_b, at->first, at->counts, (int)at->chunk, dw, state);
    else
        SLM_LAUNCH(gemm_expert_gradient<float>, blocks, SIDE * SIDE, stream, a.data,
                   a.ld, (int)a_cols, b.data, b.ld, (int)b_cols, (int)tiles_a,
                   (int)tiles_b, at->first, at->counts, (int)at->chunk, dw, state);
    return slm_gpu_launched();
}
