/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native.h - what a handle of the backend `cpu` has beyond the common part. */
#ifndef SLM_CPU_NATIVE_H
#define SLM_CPU_NATIVE_H

#include "cut.h"
#include "gemm.h"
#include "phases.h"

/* Weights of bf16 as binary32, for layer_backward: widen_weights.c. */
typedef struct slm_cpu_wide {
    float *memory; /* NULL until they are first needed */
    size_t bytes;
    unsigned char *done; /* [n] experts that are there */
} slm_cpu_wide;

struct slm_cpu_native {
    const slm_cpu_level *level;
    slm_cpu_packed packed;
    slm_cpu_wide wide;
    slm_cpu_account account;
};

/* Let handle->weights name binary32 copies of the prepared bf16 weights; of the experts
 * those in `ids` [T, k], which are valid, are read. They are kept until the next
 * prepare(): what is there is not widened again. Fails with MEMORY. */
slm_status slm_cpu_widen_weights(slm_handle *handle, const slm_tensor *ids,
                                 slm_error *error);

/* After that handle->weights names no copy. */
void slm_cpu_free_wide(slm_handle *handle);

/* widen.c: run `inner`, which takes the operation's arguments in binary32, on bf16. */
typedef slm_status slm_cpu_inner(slm_handle *handle, const void *args,
                                 slm_error *error);
slm_status slm_cpu_widened(slm_handle *handle, slm_op op, const void *args,
                           slm_cpu_inner *inner, slm_error *error);
size_t slm_cpu_widened_space(const slm_config *config, slm_op op, const slm_call *call);

/* native_panels.c: slm_handle.by_panels. */
int slm_cpu_by_panels(const slm_handle *handle, const slm_cpu_linear *product);

/* real.c: tensors of the configuration's element type. As rows of binary32: the view
 * itself, or a copy of it in `copy`; from rows; a tap [T, k, width] from sorted pairs.
 * An absent tensor is left alone. */
slm_cpu_matrix slm_cpu_real_read_rows(const slm_tensor *tensor, float *copy);
void slm_cpu_real_write_rows(const slm_tensor *to, slm_cpu_matrix from);
void slm_cpu_real_write_pairs(const slm_tensor *tap, const int64_t *place,
                              const float *sorted, size_t width);

/* native_products.c. Columns [of.first, of.end), from a whole panel on, of one part of
 * a weight; y and h are column 0, x and they have `rows` rows. y = x w^T, or y += with
 * add; h = act(x w^T), rounded if the handle is of bf16, where each x is one. L1, L3 */
void slm_cpu_product(const slm_handle *handle, const slm_cpu_panels *w, size_t part,
                     range of, size_t rows, slm_cpu_matrix x, slm_cpu_matrix y,
                     int add);
void slm_cpu_activated(const slm_handle *handle, const slm_cpu_panels *w, size_t part,
                       range of, size_t rows, slm_cpu_matrix x, slm_cpu_matrix h);

/* Rows of y [rows, cols] as a handle of bf16 stores them; else nothing is done. */
void slm_cpu_round_rows(const slm_handle *handle, size_t rows, size_t cols, float *y,
                        size_t ldy);

/* native_layer.c */
slm_status slm_cpu_native_layer_forward(slm_handle *handle,
                                        const slm_layer_forward_args *args,
                                        slm_error *error);
size_t slm_cpu_native_layer_space(const slm_config *config, const slm_call *call);

#endif
