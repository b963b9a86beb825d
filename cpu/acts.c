/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/acts.c - activations between products: taken, stored, read from tensors and
 * written to them.
 *
 * Rounding to bf16 is to the nearest, ties to even, once. */
#include "native.h"

int slm_cpu_keeps_half(const slm_handle *handle)
{
    return handle->config.dtype == SLM_BF16 && handle->native->level->takes_half;
}

slm_cpu_acts slm_cpu_take_acts(slm_cpu_arena *arena, const slm_handle *handle,
                               size_t rows, size_t cols)
{
    if (slm_cpu_keeps_half(handle))
        return (slm_cpu_acts){NULL, slm_cpu_take(arena, rows, cols, sizeof(uint16_t)),
                              cols};
    return (slm_cpu_acts){slm_cpu_take_f32(arena, rows, cols), NULL, cols};
}

void slm_cpu_store(const slm_handle *handle, size_t count, float *from, uint16_t *to)
{
    const slm_cpu_level *level = handle->native->level;

    if (handle->config.dtype != SLM_BF16) return;
    if (to)
        level->narrow(count, from, to);
    else
        level->round_half(count, from);
}

void slm_cpu_store_rows(const slm_handle *handle, size_t rows, size_t cols,
                        slm_cpu_matrix y, slm_cpu_acts to)
{
    if (handle->config.dtype != SLM_BF16) return;
    for (size_t i = 0; i < rows; i++)
        slm_cpu_store(handle, cols, slm_cpu_row(y, i),
                      to.bf16 ? to.bf16 + i * to.ld : NULL);
}

void slm_cpu_gather_acts(const slm_cpu_groups *groups, size_t k, size_t begin,
                         size_t end, slm_cpu_acts tokens, slm_cpu_acts rows)
{
    if (rows.bf16)
        slm_cpu_gather(groups, k, begin, end, rows.ld * sizeof *rows.bf16, tokens.bf16,
                       rows.bf16);
    else
        slm_cpu_gather(groups, k, begin, end, rows.ld * sizeof *rows.f32, tokens.f32,
                       rows.f32);
}

/* ---- tensors ---- */

static uint16_t *half_at(const slm_tensor *tensor, size_t i, size_t j)
{
    return (uint16_t *)tensor->data + slm_cpu_at(tensor, i, j);
}

static void copy_row(const slm_tensor *to, size_t i, size_t cols, const uint16_t *from)
{
    if (to->stride[1] == 1)
        memcpy(half_at(to, i, 0), from, cols * sizeof *from);
    else
        for (size_t j = 0; j < cols; j++) *half_at(to, i, j) = from[j];
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
    if (copy.f32)
        slm_cpu_real_read_rows(tensor, copy.f32);
    else
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < cols; j++)
                copy.bf16[i * copy.ld + j] = *half_at(tensor, i, j);
    return copy;
}

void slm_cpu_write_acts(const slm_tensor *to, slm_cpu_acts from)
{
    if (from.f32) {
        slm_cpu_real_write_rows(to, (slm_cpu_matrix){from.f32, from.ld});
        return;
    }
    if (to->rank == 0) return;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < to->shape[0]; i++)
        copy_row(to, i, to->shape[1], from.bf16 + i * from.ld);
}

void slm_cpu_write_act_pairs(const slm_tensor *tap, const int64_t *place,
                             slm_cpu_acts sorted)
{
    if (sorted.f32) {
        slm_cpu_real_write_pairs(tap, place, sorted.f32, sorted.ld);
        return;
    }
    if (tap->rank == 0) return;
    for (size_t t = 0; t < tap->shape[0]; t++) {
        const slm_tensor slots = slm_tensor_at(tap, t);

        for (size_t q = 0; q < slots.shape[0]; q++)
            copy_row(&slots, q, sorted.ld,
                     sorted.bf16 + (size_t)place[t * slots.shape[0] + q] * sorted.ld);
    }
}
