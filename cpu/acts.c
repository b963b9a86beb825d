/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/acts.c - activations between products: taken, stored, gathered.
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
    slm_cpu_store_rows(handle, 1, count, (slm_cpu_matrix){from, count},
                       (slm_cpu_acts){NULL, to, count});
}

void slm_cpu_store_rows(const slm_handle *handle, size_t rows, size_t cols,
                        slm_cpu_matrix y, slm_cpu_acts to)
{
    const slm_cpu_level *level = handle->native->level;

    if (handle->config.dtype != SLM_BF16) return;
    if (to.bf16) {
        level->narrow(rows, cols, y, to.bf16, to.ld);
        return;
    }
    for (size_t i = 0; i < rows; i++) level->round_half(cols, slm_cpu_row(y, i));
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
