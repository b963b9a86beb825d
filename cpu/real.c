/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/real.c - tensors of either element type as rows of binary32.
 *
 * Rounding to bf16 is to the nearest, ties to even, once. */
#include "native.h"

static float real_at(const slm_tensor *tensor, size_t i, size_t j)
{
    const ptrdiff_t at = slm_cpu_at(tensor, i, j);

    return tensor->dtype == SLM_BF16 ? slm_cpu_of_bf16(((uint16_t *)tensor->data)[at])
                                     : ((float *)tensor->data)[at];
}

static void put_real(const slm_tensor *tensor, size_t i, size_t j, float value)
{
    const ptrdiff_t at = slm_cpu_at(tensor, i, j);

    if (tensor->dtype == SLM_BF16)
        ((uint16_t *)tensor->data)[at] = slm_cpu_to_bf16(value);
    else
        ((float *)tensor->data)[at] = value;
}

static void read_row(const slm_tensor *tensor, size_t i, size_t cols, float *to)
{
    const ptrdiff_t at = slm_cpu_at(tensor, i, 0);

    if (tensor->dtype == SLM_BF16 && tensor->stride[1] == 1) {
        const uint16_t *from = (const uint16_t *)tensor->data + at;

#pragma omp simd
        for (size_t j = 0; j < cols; j++) to[j] = slm_cpu_of_bf16(from[j]);
    } else {
        for (size_t j = 0; j < cols; j++) to[j] = real_at(tensor, i, j);
    }
}

static void write_row(const slm_tensor *tensor, size_t i, size_t cols,
                      const float *from)
{
    const ptrdiff_t at = slm_cpu_at(tensor, i, 0);

    if (tensor->dtype == SLM_BF16 && tensor->stride[1] == 1) {
        uint16_t *to = (uint16_t *)tensor->data + at;

#pragma omp simd
        for (size_t j = 0; j < cols; j++) to[j] = slm_cpu_to_bf16(from[j]);
    } else {
        for (size_t j = 0; j < cols; j++) put_real(tensor, i, j, from[j]);
    }
}

void slm_cpu_real_read_rows(const slm_tensor *tensor, float *copy)
{
    const size_t rows = tensor->shape[0], cols = tensor->shape[1];

#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) read_row(tensor, i, cols, copy + i * cols);
}

void slm_cpu_real_write_rows(const slm_tensor *to, slm_cpu_matrix from)
{
    if (to->rank == 0) return;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < to->shape[0]; i++)
        write_row(to, i, to->shape[1], slm_cpu_row(from, i));
}

void slm_cpu_real_write_pairs(const slm_tensor *tap, const int64_t *place,
                              const float *sorted, size_t width)
{
    if (tap->rank == 0) return;
    for (size_t t = 0; t < tap->shape[0]; t++) {
        const slm_tensor slots = slm_tensor_at(tap, t);

        for (size_t q = 0; q < slots.shape[0]; q++)
            write_row(&slots, q, width,
                      sorted + (size_t)place[t * slots.shape[0] + q] * width);
    }
}
