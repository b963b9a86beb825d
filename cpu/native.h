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

/* Activations that products read: rows of binary32, or, in bf16 at a level that takes
 * them, of bf16. The other is NULL. */
typedef struct slm_cpu_acts {
    float *f32;
    uint16_t *bf16;
    size_t ld; /* elements from row to row */
} slm_cpu_acts;

static inline slm_cpu_acts slm_cpu_acts_at(slm_cpu_acts acts, size_t row, size_t col)
{
    const size_t at = row * acts.ld + col;

    if (acts.f32)
        acts.f32 += at;
    else
        acts.bf16 += at;
    return acts;
}

/* acts.c. 1 where this handle's activations are of bf16; a part of the workspace. */
int slm_cpu_keeps_half(const slm_handle *handle);
slm_cpu_acts slm_cpu_take_acts(slm_cpu_arena *arena, const slm_handle *handle,
                               size_t rows, size_t cols);

/* A row as a handle of bf16 stores it: to `to`, or, where that is NULL, in place; of
 * binary32 nothing is done. */
void slm_cpu_store(const slm_handle *handle, size_t count, float *from, uint16_t *to);

/* slm_cpu_gather() of packed rows. */
void slm_cpu_gather_acts(const slm_cpu_groups *groups, size_t k, size_t begin,
                         size_t end, slm_cpu_acts tokens, slm_cpu_acts rows);

/* real.c. Tensors of the configuration's element type. Whether the view can be read and
 * written where it is; the view itself, or a copy of it in `copy`, packed; from rows; a
 * tap [T, k, width] from packed sorted pairs. An absent tensor is left alone. */
int slm_cpu_is_acts(const slm_tensor *tensor, const slm_handle *handle,
                    slm_cpu_acts *acts);
slm_cpu_acts slm_cpu_read_acts(const slm_tensor *tensor, const slm_handle *handle,
                               slm_cpu_acts copy);
void slm_cpu_write_acts(const slm_tensor *to, slm_cpu_acts from);
void slm_cpu_write_act_pairs(const slm_tensor *tap, const int64_t *place,
                             slm_cpu_acts sorted);

/* native_products.c. Columns [of.first, of.end), from a whole panel on, of one part of
 * a weight; x has `rows` rows from its first column on, y and h begin at column
 * of.first. y = x w^T, or y += with add; the same stored; h = act(x w^T), stored. L1, L3 */
enum { SLM_CPU_STORED = 4 * SLM_CPU_WIDTH };

/* Rows of y [rows, cols] as the handle stores them: to `to`, or, where that is binary32,
 * in place. */
void slm_cpu_store_rows(const slm_handle *handle, size_t rows, size_t cols,
                        slm_cpu_matrix y, slm_cpu_acts to);
void slm_cpu_product(const slm_handle *handle, const slm_cpu_panels *w, size_t part,
                     range of, size_t rows, slm_cpu_acts x, slm_cpu_matrix y, int add);
void slm_cpu_stored_product(const slm_handle *handle, const slm_cpu_panels *w,
                            size_t part, range of, size_t rows, slm_cpu_acts x,
                            slm_cpu_acts y);
void slm_cpu_activated(const slm_handle *handle, const slm_cpu_panels *w, size_t part,
                       range of, size_t rows, slm_cpu_acts x, slm_cpu_acts h);

/* native_layer.c */
slm_status slm_cpu_native_layer_forward(slm_handle *handle,
                                        const slm_layer_forward_args *args,
                                        slm_error *error);
size_t slm_cpu_native_layer_space(const slm_handle *handle, const slm_call *call);

#endif
