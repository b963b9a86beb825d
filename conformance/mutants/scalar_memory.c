/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_memory.c - scratch memory, rows and elements of views. */
#include "scalar.h"

#include <string.h>

enum { ALIGNMENT = 64 };

void *scalar_take(scalar_scratch *scratch, size_t count, size_t size)
{
    void *const piece = scratch->base ? scratch->base + scratch->used : NULL;
    const size_t bytes = count * size;

    scratch->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return piece;
}

void *scalar_element(const slm_tensor *tensor, size_t index)
{
    ptrdiff_t at = 0;

    for (uint32_t i = tensor->rank; i-- > 0; index /= tensor->shape[i])
        at += (ptrdiff_t)(index % tensor->shape[i]) * tensor->stride[i];
    return (char *)tensor->data + at * (ptrdiff_t)slm_dtype_size(tensor->dtype);
}

slm_tensor scalar_row(const slm_tensor *tensor, size_t index)
{
    return tensor->rank ? slm_tensor_at(tensor, index) : *tensor;
}

void scalar_load(float *out, const slm_tensor *row)
{
    const char *element = row->data;
    ptrdiff_t step;

    if (row->rank == 0) return;
    step = row->stride[0] * (ptrdiff_t)slm_dtype_size(row->dtype);
    for (size_t i = 0; i < row->shape[0]; i++, element += step) {
        if (row->dtype == SLM_BF16) {
            uint16_t upper;
            uint32_t bits;

            memcpy(&upper, element, sizeof upper);
            bits = (uint32_t)upper << 16;
            memcpy(&out[i], &bits, sizeof bits);
        } else {
            memcpy(&out[i], element, sizeof *out);
        }
    }
}

void scalar_store(const slm_tensor *row, const float *in)
{
    if (row->rank == 0) return;
    for (size_t i = 0; i < row->shape[0]; i++) {
        void *element = scalar_element(row, i);

        if (row->dtype == SLM_BF16) {
            const float rounded = scalar_bf16(in[i]);
            uint32_t bits;
            uint16_t upper;

            memcpy(&bits, &rounded, sizeof bits);
            upper = (uint16_t)(bits >> 16);
            memcpy(element, &upper, sizeof upper);
        } else {
            memcpy(element, &in[i], sizeof *in);
        }
    }
}

const float *scalar_view(float *copy, const slm_tensor *row)
{
    if (row->dtype == SLM_F32 && (row->stride[0] == 1 || row->shape[0] == 1))
        return row->data;
    scalar_load(copy, row);
    return copy;
}

void scalar_pad(float *out, size_t n, const float *in, size_t given)
{
    for (size_t i = 0; i < n; i++) out[i] = i < given ? in[i] : 0.0f;
}

int scalar_counts(const slm_handle *handle, const slm_tensor *mask, size_t token)
{
    if (!mask || wrong(handle, MUTANT_mask_ignored)) return 1;
    return (*(const int32_t *)scalar_element(mask, token) != 0) !=
           wrong(handle, MUTANT_mask_inverted);
}

slm_tensor scalar_transposed(const slm_tensor *matrix)
{
    const size_t rows = matrix->shape[0], cols = matrix->shape[1];
    slm_tensor other = *matrix;

    if (matrix->stride[1] != 1 || matrix->stride[0] != (ptrdiff_t)cols) return other;
    other.stride[0] = 1;
    other.stride[1] = (ptrdiff_t)rows;
    return other;
}
