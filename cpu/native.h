/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native.h - what a handle of the backend `cpu` has beyond the common part. */
#ifndef SLM_CPU_NATIVE_H
#define SLM_CPU_NATIVE_H

#include "gemm.h"

struct slm_cpu_native {
    const slm_cpu_level *level;
    slm_cpu_packed packed;
};

/* widen.c: run `inner`, which takes the operation's arguments in binary32, on bf16. */
typedef slm_status slm_cpu_inner(slm_handle *handle, const void *args,
                                 slm_error *error);
slm_status slm_cpu_widened(slm_handle *handle, slm_op op, const void *args,
                           slm_cpu_inner *inner, slm_error *error);
size_t slm_cpu_widened_space(const slm_config *config, slm_op op, const slm_call *call);

/* native_panels.c: slm_handle.by_panels. */
int slm_cpu_by_panels(const slm_handle *handle, const slm_cpu_linear *product);

/* real.c: tensors of the configuration's element type. As rows of binary32: the view
 * itself, or a copy of it in `copy`; from rows; a tap [T, k, width] from sorted pairs. An
 * absent tensor is left alone. */
slm_cpu_matrix slm_cpu_real_read_rows(const slm_tensor *tensor, float *copy);
void slm_cpu_real_write_rows(const slm_tensor *to, slm_cpu_matrix from);
void slm_cpu_real_write_pairs(const slm_tensor *tap, const int64_t *place,
                              const float *sorted, size_t width);

/* native_layer.c */
slm_status slm_cpu_native_layer_forward(slm_handle *handle,
                                        const slm_layer_forward_args *args,
                                        slm_error *error);
size_t slm_cpu_native_layer_space(const slm_config *config, const slm_call *call);

#endif
