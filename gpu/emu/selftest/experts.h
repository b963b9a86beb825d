/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/experts.h - rows of experts and matrices on the device, for tests.
 * Include cmocka.h and layer.h first. */
#ifndef SLM_SELFTEST_EXPERTS_H
#define SLM_SELFTEST_EXPERTS_H

#include <math.h>
#include <stdlib.h>
#include "on_device.h"

static inline void *download(const void *from, size_t bytes)
{
    void *memory = malloc(bytes + 1);

    assert_int_equal(cudaMemcpy(memory, from, bytes, cudaMemcpyDeviceToHost),
                     cudaSuccess);
    return memory;
}

/* -1 .. 1, a multiple of 2^-7: bf16 holds it. */
static inline float real(uint32_t *state)
{
    return ldexpf((float)(draw(state) % 257) - 128.0f, -7);
}

/* `k` distinct ids a row; a hot expert has most tokens. */
static inline int32_t *choices(size_t rows, size_t n, size_t k, uint32_t *state)
{
    int32_t *ids = malloc((rows * k + 1) * sizeof *ids);

    for (size_t t = 0; t < rows; t++) {
        const size_t first = draw(state) % 4 ? 0 : draw(state) % n;

        for (size_t q = 0; q < k; q++) ids[t * k + q] = (int32_t)((first + q) % n);
    }
    return ids;
}

typedef struct grouped {
    slm_gpu_groups at;
    int32_t *ids; /* device */
    void *memory;
} grouped;

static inline grouped make_groups(size_t rows, size_t n, size_t k, const int32_t *ids)
{
    grouped made;
    slm_gpu_arena arena = {NULL, 0};

    slm_gpu_take_groups(&arena, n, rows, k, &made.at);
    made.memory = device(arena.used);
    arena = (slm_gpu_arena){made.memory, 0};
    slm_gpu_take_groups(&arena, n, rows, k, &made.at);
    made.ids = upload(ids, rows * k * sizeof *ids);
    assert_int_equal(slm_gpu_make_groups(&made.at, made.ids, NULL), SLM_OK);
    return made;
}

static inline void drop_groups(const grouped *made)
{
    cudaFree(made->memory);
    cudaFree(made->ids);
}

/* [rows of experts, width] with NaN where no pair is: nothing may look there. */
static inline float *rows_with_holes(const slm_gpu_groups *at, size_t width,
                                     uint32_t *state)
{
    const size_t all = slm_gpu_expert_rows(at);
    int64_t *pair = download(at->pair, all * sizeof *pair);
    float *made = malloc(all * width * sizeof *made);

    for (size_t i = 0; i < all * width; i++)
        made[i] = pair[i / width] < 0 ? NAN : real(state);
    free(pair);
    return made;
}

static inline slm_gpu_matrix upload_rows(const float *from, size_t rows, size_t width,
                                         slm_dtype dtype)
{
    const slm_gpu_matrix wide = {upload(from, rows * width * sizeof *from), SLM_F32,
                                 width};
    const slm_gpu_matrix narrow = {dtype == SLM_BF16 ? device(rows * width * 2) : NULL,
                                   SLM_BF16, width};

    if (dtype == SLM_F32) return wide;
    assert_int_equal(slm_gpu_convert(rows, width, wide, narrow, NULL), SLM_OK);
    cudaDeviceSynchronize();
    cudaFree(wide.data);
    return narrow;
}

#endif
