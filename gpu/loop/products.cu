/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/loop/products.cu - the products of experts as one writes them first: a loop.
 *
 * The peer `gpu-loop` of a bench: the backend gpu with this file in the place of its own
 * products of experts. The host waits for the counts, then asks cuBLAS for one product
 * an expert. Rows of experts are packed (chunks of one row), so that nothing is
 * multiplied, copied or activated that is not asked for. */
#include <limits.h>
#include <stdlib.h>

#include "../kernels.h"
#include "../layer.h"

namespace
{

const float ZERO = 0.0f, ONE = 1.0f;

cudaDataType type_of(slm_gpu_matrix matrix)
{
    return matrix.dtype == SLM_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

char *row(slm_gpu_matrix of, int64_t index)
{
    return (char *)of.data + (size_t)index * of.ld * slm_dtype_size(of.dtype);
}

/* The first row of each expert and the end, to host [n + 1]. The host waits here. */
slm_status fetch(const slm_gpu_groups *at, int64_t *host, cudaStream_t stream)
{
    cudaError_t error = cudaMemcpyAsync(host, at->offsets, (at->n + 1) * sizeof *host,
                                        cudaMemcpyDeviceToHost, stream);

    if (!error) error = cudaStreamSynchronize(stream);
    return error ? SLM_ERR_INTERNAL : SLM_OK;
}

} // namespace

/* Workspace as gather.cu lays it out, with chunks of one row and no pointers. */
void slm_gpu_take_groups(slm_gpu_arena *arena, size_t n, size_t rows, size_t k,
                         slm_gpu_groups *at)
{
    const size_t pairs = rows * k;

    *at = {};
    at->n = n;
    at->pairs = pairs;
    at->chunk = 1;
    at->chunks = pairs;
    at->counts = (int64_t *)slm_gpu_take(arena, n, 1, 8);
    at->offsets = (int64_t *)slm_gpu_take(arena, n + 1, 1, 8);
    at->order = (int64_t *)slm_gpu_take(arena, rows, k, 8);
    at->first = (int64_t *)slm_gpu_take(arena, n + 1, 1, 8);
    at->place = (int64_t *)slm_gpu_take(arena, rows, k, 8);
    at->pair = (int64_t *)slm_gpu_take(arena, rows, k, 8);
    at->expert = (int32_t *)slm_gpu_take(arena, rows, k, 4);
    at->space = slm_gpu_take(arena, slm_gpu_group_space(pairs, n), 1, 1);
}

slm_status slm_gpu_expert_products(const slm_handle *handle, const slm_gpu_groups *at,
                                   size_t cols, size_t inner, unsigned how,
                                   const slm_gpu_expert_linear *list, size_t n_list,
                                   cudaStream_t stream)
{
    const bool back = how & SLM_GPU_BACK;
    const size_t element = slm_dtype_size(list->x.dtype);
    const cublasHandle_t blas =
        stream == handle->side ? handle->side_blas : handle->blas;
    int64_t *first = (int64_t *)malloc((at->n + 1) * sizeof *first);
    slm_status status = first ? fetch(at, first, stream) : SLM_ERR_MEMORY;
    cublasStatus_t asked = cublasSetStream(blas, stream);

    for (size_t e = 0; !status && !asked && e < at->n; e++) {
        const int rows = (int)(first[e + 1] - first[e]);

        for (size_t i = 0; rows && !asked && i < n_list; i++) {
            const slm_gpu_expert_linear &one = list[i];

            asked = cublasGemmEx(
                blas, back ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, (int)cols, rows,
                (int)inner, &ONE, (const char *)one.w + e * cols * inner * element,
                type_of(one.x), (int)(back ? cols : inner), row(one.x, first[e]),
                type_of(one.x), (int)one.x.ld, &ZERO, row(one.y, first[e]),
                type_of(one.y), (int)one.y.ld, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        }
    }
    free(first);
    if (!status && asked) status = SLM_ERR_INTERNAL;
    return status;
}

/* The table of the backend gpu under the peer's name. */
extern "C" SLM_EXPORT const slm_backend *slm_backend_get(uint32_t host_major)
{
    static const slm_backend backend = []() {
        slm_backend b = *slm_gpu_backend();

        b.name = "gpu-loop";
        return b;
    }();

    return host_major == SLM_ABI_MAJOR ? &backend : NULL;
}
