/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_fill.h - a tensor's values as a call's memory holds them. */
#ifndef SLM_VECTOR_FILL_H
#define SLM_VECTOR_FILL_H

#include "vector.h"

/* Elements first .. first + n - 1 as `dtype`, the tensor's own or, of binary32, bf16 (cut
 * off: recipes and files have no more bits), to out [n]. Large recipes are made by one
 * thread a CPU. */
void vec_fill(const vec_tensor *tensor, slm_dtype dtype, size_t first, size_t n,
              void *out);

#endif
