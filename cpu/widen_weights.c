/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/widen_weights.c - weights of bf16 as binary32 matrices, for the backward pass.
 *
 * One piece of address space holds all; the experts that a call chose are widened when
 * they are first met, so those that nobody chose cost nothing. */
#include <stdlib.h>
#include <sys/mman.h>

#include "native.h"

static size_t parts_of(const slm_tensor *w)
{
    return w->rank > 2 ? w->shape[0] : 1;
}

static size_t width_of(const slm_tensor *w)
{
    return w->shape[w->rank - 1];
}

/* Elements of a part, in whole lines of the cache. */
static size_t part_size(const slm_tensor *w)
{
    enum { LINE = SLM_CPU_ALIGN / sizeof(float) };

    return slm_cpu_ceil_div(slm_tensor_count(w) / parts_of(w), LINE) * LINE;
}

static void widen_part(const slm_cpu_weight *weight, size_t part)
{
    const slm_tensor *all = weight->from;
    const slm_tensor from = all->rank > 2 ? slm_tensor_at(all, part) : *all;
    const size_t cols = width_of(all), rows = from.rank > 1 ? from.shape[0] : 1;
    float *to = weight->to->data + part * part_size(all);

#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < rows; i++) {
        const uint16_t *row = (const uint16_t *)from.data +
                              (from.rank > 1 ? (ptrdiff_t)i * from.stride[0] : 0);
        const ptrdiff_t step = from.stride[from.rank - 1];

        for (size_t j = 0; j < cols; j++)
            to[i * cols + j] = slm_cpu_of_bf16(row[(ptrdiff_t)j * step]);
    }
}

/* Their places, and all that is not of one expert. */
static slm_status begin(slm_handle *handle, slm_error *error)
{
    slm_cpu_wide *wide = &handle->native->wide;
    size_t used = 0;
    slm_cpu_weight list[SLM_CPU_WEIGHTS];

    slm_cpu_list_weights(handle, &handle->native->packed.from, list);
    for (size_t i = 0; i < SLM_CPU_WEIGHTS; i++)
        if (list[i].from->rank && slm_tensor_count(list[i].from))
            used += parts_of(list[i].from) * part_size(list[i].from);
    wide->bytes = used * sizeof(float);
    wide->memory = slm_cpu_reserve(wide->bytes);
    wide->done = calloc(handle->config.n_experts, 1);
    if (!wide->memory || !wide->done) {
        slm_cpu_free_wide(handle);
        return slm_fail(error, SLM_ERR_MEMORY, "layer_backward", "weights", 0,
                        "%zu bytes", used * sizeof(float));
    }
    used = 0;
    for (size_t i = 0; i < SLM_CPU_WEIGHTS; i++) {
        const slm_tensor *from = list[i].from;

        if (from->rank == 0 || slm_tensor_count(from) == 0) continue;
        *list[i].to = (slm_cpu_matrix){wide->memory + used, width_of(from)};
        if (list[i].step) *list[i].step = (ptrdiff_t)part_size(from);
        used += parts_of(from) * part_size(from);
        for (size_t part = 0; !list[i].of_experts && part < parts_of(from); part++)
            widen_part(&list[i], part);
    }
    return SLM_OK;
}

static void widen_expert(slm_handle *handle, size_t expert)
{
    slm_cpu_weight list[SLM_CPU_WEIGHTS];

    slm_cpu_list_weights(handle, &handle->native->packed.from, list);
    for (size_t i = 0; i < SLM_CPU_WEIGHTS; i++)
        if (list[i].of_experts && list[i].to->data) widen_part(&list[i], expert);
}

slm_status slm_cpu_widen_weights(slm_handle *handle, const slm_tensor *ids,
                                 slm_error *error)
{
    slm_cpu_wide *wide = &handle->native->wide;

    if (!wide->memory) {
        const slm_status status = begin(handle, error);

        if (status) return status;
    }
    for (size_t t = 0; t < ids->shape[0]; t++)
        for (size_t q = 0; q < ids->shape[1]; q++) {
            const size_t expert = (size_t)*slm_cpu_i32(ids, t, q);

            if (wide->done[expert]) continue;
            widen_expert(handle, expert);
            wide->done[expert] = 1;
        }
    return SLM_OK;
}

void slm_cpu_free_wide(slm_handle *handle)
{
    slm_cpu_wide *wide = &handle->native->wide;

    if (wide->memory) {
        munmap(wide->memory, wide->bytes);
        memset(&handle->weights, 0, sizeof handle->weights);
    }
    free(wide->done);
    memset(wide, 0, sizeof *wide);
}
