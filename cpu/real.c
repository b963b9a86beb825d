/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/real.c - tensors of either element type as rows of activations.
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
                      slm_cpu_acts from)
{
    const int is_half = tensor->dtype == SLM_BF16 && tensor->stride[1] == 1;
    uint16_t *to = (uint16_t *)tensor->data + (is_half ? slm_cpu_at(tensor, i, 0) : 0);

    if (is_half && from.bf16) {
        memcpy(to, from.bf16, cols * sizeof *to);
    } else if (is_half) {
#pragma omp simd
        for (size_t j = 0; j < cols; j++) to[j] = slm_cpu_to_bf16(from.f32[j]);
    } else {
        for (size_t j = 0; j < cols; j++)
            put_real(tensor, i, j,
                     from.bf16 ? slm_cpu_of_bf16(from.bf16[j]) : from.f32[j]);
    }
}

int slm_cpu_is_acts(const slm_tensor *tensor, const slm_handle *handle,
                    slm_cpu_acts *acts)
{
    slm_cpu_matrix matrix;

    if (tensor->dtype == SLM_BF16 && !slm_cpu_keeps_half(handle)) return 0;
    if (!slm_cpu_is_matrix(tensor, &matrix)) return 0;
    *acts = tensor->dtype == SLM_BF16 ? (slm_cpu_acts){NULL, tensor->data, matrix.ld}
                                      : (slm_cpu_acts){matrix.data, NULL, matrix.ld};
    return 1;
}

slm_cpu_acts slm_cpu_read_acts(const slm_tensor *tensor, const slm_handle *handle,
                               slm_cpu_acts copy)
{
    const size_t rows = tensor->shape[0], cols = tensor->shape[1];
    slm_cpu_acts acts;

    if (slm_cpu_is_acts(tensor, handle, &acts)) return acts;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) {
        const uint16_t *from = tensor->data;

        if (copy.f32) read_row(tensor, i, cols, copy.f32 + i * copy.ld);
        for (size_t j = 0; copy.bf16 && j < cols; j++)
            copy.bf16[i * copy.ld + j] = from[slm_cpu_at(tensor, i, j)];
    }
    return copy;
}

void slm_cpu_write_acts(const slm_tensor *to, slm_cpu_acts from)
{
    if (to->rank == 0) return;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < to->shape[0]; i++)
        write_row(to, i, to->shape[1], slm_cpu_acts_at(from, i, 0));
}

void slm_cpu_write_act_pairs(const slm_tensor *tap, const int64_t *place,
                             slm_cpu_acts sorted)
{
    if (tap->rank == 0) return;
    for (size_t t = 0; t < tap->shape[0]; t++) {
        const slm_tensor slots = slm_tensor_at(tap, t);

        for (size_t q = 0; q < slots.shape[0]; q++)
            write_row(
                &slots, q, sorted.ld,
                slm_cpu_acts_at(sorted, (size_t)place[t * slots.shape[0] + q], 0));
    }
}
