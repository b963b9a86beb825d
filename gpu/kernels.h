/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/kernels.h - the launchers: what the host side of the backend calls.
 *
 * Pointers are device memory, work is queued on `stream` and the call returns at once.
 * SLM_ERR_UNSUPPORTED: sizes beyond what the kernel takes; SLM_ERR_INTERNAL: the launch
 * failed. Sizes count elements. */
#ifndef SLM_GPU_KERNELS_H
#define SLM_GPU_KERNELS_H

#include <cuda_runtime_api.h>
#include <slm/slm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* r = gamma u / sqrt(mean(u^2) + eps), row by row; r may be u.                    L2
 *   u, r [rows, width], gamma [width] or NULL for ones; eps > 0 */
slm_status slm_gpu_rmsnorm_rows(size_t rows, size_t width, const float *u,
                                const float *gamma, double eps, float *r,
                                cudaStream_t stream);

/* Group pairs by expert, each group in ascending order.                           L5
 *   ids [pairs] in 0..n-1; counts [n], offsets [n + 1], order [pairs] out
 *   workspace of slm_gpu_group_space() bytes */
slm_status slm_gpu_group(size_t pairs, size_t n, const int32_t *ids, int64_t *counts,
                         int64_t *offsets, int64_t *order, void *workspace,
                         cudaStream_t stream);
size_t slm_gpu_group_space(size_t pairs, size_t n);

#ifdef __cplusplus
}
#endif
#endif
