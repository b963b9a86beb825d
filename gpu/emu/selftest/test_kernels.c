/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/test_kernels.c - kernels against plain loops, under schedules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels.h"
#include "../control.h"
#include "on_device.h"

enum { SEEDS = 8 };

static uint32_t draw(uint32_t *state)
{
    return (*state = *state * 1664525u + 1013904223u) >> 8;
}

static void normalise(size_t width, const float *u, const float *gamma, double eps,
                      float *r)
{
    double sum = 0.0;

    for (size_t i = 0; i < width; i++) sum += (double)u[i] * (double)u[i];
    for (size_t i = 0; i < width; i++)
        r[i] = (float)((gamma ? (double)gamma[i] : 1.0) *
                       ((double)u[i] / sqrt(sum / (double)width + eps)));
}

static int is_near(float got, float want)
{
    return got == want || nextafterf(got, want) == want;
}

static void check_rmsnorm(size_t rows, size_t width, int with_gamma)
{
    const size_t size = rows * width;
    float *u = malloc(size * sizeof *u), *gamma = malloc(width * sizeof *gamma);
    float *got = malloc(size * sizeof *got), *first = malloc(size * sizeof *first);
    float *want = malloc(width * sizeof *want);
    uint32_t state = (uint32_t)size;

    for (size_t i = 0; i < size; i++) u[i] = ldexpf((float)draw(&state) - 0x1p23f, -24);
    for (size_t i = 0; i < width; i++) gamma[i] = ldexpf((float)draw(&state), -23);

    float *du = upload(u, size * sizeof *u), *dr = device(size * sizeof *u);
    float *dgamma = with_gamma ? upload(gamma, width * sizeof *gamma) : NULL;

    for (unsigned seed = 0; seed < SEEDS; seed++) {
        slm_emu_seed(seed);
        assert_int_equal(slm_gpu_rmsnorm_rows(rows, width, du, dgamma, 1e-6, dr, NULL),
                         SLM_OK);
        cudaMemcpy(seed ? got : first, dr, size * sizeof *u, cudaMemcpyDeviceToHost);
        if (seed) assert_memory_equal(got, first, size * sizeof *u);
    }
    for (size_t row = 0; row < rows; row++) {
        normalise(width, u + row * width, with_gamma ? gamma : NULL, 1e-6, want);
        for (size_t i = 0; i < width; i++)
            assert_true(is_near(first[row * width + i], want[i]));
    }
    cudaFree(du);
    cudaFree(dr);
    cudaFree(dgamma);
    free(u);
    free(gamma);
    free(got);
    free(first);
    free(want);
}

static void rmsnorm_agrees_with_a_loop(void **state)
{
    const size_t widths[] = {1, 31, 32, 33, 100, 320};

    (void)state;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        check_rmsnorm(1, widths[i], 1);
        check_rmsnorm(9, widths[i], 0);
    }
}

static void a_row_with_an_infinity_becomes_nan_alone(void **state)
{
    const float u[2][2] = {{INFINITY, 1.0f}, {3.0f, 4.0f}};
    float got[2][2];
    float *du = upload(u, sizeof u);

    (void)state;
    assert_int_equal(slm_gpu_rmsnorm_rows(2, 2, du, NULL, 1e-6, du, NULL), SLM_OK);
    cudaMemcpy(got, du, sizeof got, cudaMemcpyDeviceToHost);
    assert_true(isnan(got[0][0]) && isnan(got[0][1]));
    assert_true(got[1][0] > 0.84f && got[1][1] < 1.14f);
    cudaFree(du);
}

#ifdef EMU_WATCHED
static void rmsnorm_moves_two_reads_and_one_write(void **state)
{
    const size_t rows = 4, width = 100;
    float *u = calloc(rows * width, sizeof *u);
    float *du = upload(u, rows * width * sizeof *u);
    uint64_t loaded, stored, loaded_before, stored_before;

    (void)state;
    slm_emu_bytes("rmsnorm_rows", &loaded_before, &stored_before);
    slm_gpu_rmsnorm_rows(rows, width, du, NULL, 1e-6, du, NULL);
    cudaDeviceSynchronize();
    slm_emu_bytes("rmsnorm_rows", &loaded, &stored);
    assert_int_equal(stored - stored_before, rows * width * 4);
    assert_in_range(loaded - loaded_before, rows * width * 8, rows * width * 12);
    cudaFree(du);
    free(u);
}
#endif

static void group(size_t pairs, size_t n, const int32_t *ids, int64_t *counts,
                  int64_t *offsets, int64_t *order)
{
    size_t at = 0;

    for (size_t e = 0; e < n; e++) {
        offsets[e] = (int64_t)at;
        for (size_t i = 0; i < pairs; i++)
            if (ids[i] == (int32_t)e) order[at++] = (int64_t)i;
        counts[e] = (int64_t)at - offsets[e];
    }
    offsets[n] = (int64_t)at;
}

static void check_group(size_t pairs, size_t n)
{
    const size_t sizes[3] = {n * 8, (n + 1) * 8, pairs * 8};
    int32_t *ids = malloc(pairs * sizeof *ids + 1);
    int64_t *want[3], *got, *out[3];
    uint32_t state = (uint32_t)(pairs + n);

    for (size_t i = 0; i < pairs; i++)
        ids[i] = (int32_t)(draw(&state) % n * (draw(&state) % 4) / 4);
    for (int i = 0; i < 3; i++) {
        want[i] = malloc(sizes[i] + 1);
        out[i] = device(sizes[i]);
    }
    got = malloc((pairs + n + 1) * 8);
    group(pairs, n, ids, want[0], want[1], want[2]);

    int32_t *dids = upload(ids, pairs * sizeof *ids);
    void *workspace = device(slm_gpu_group_space(pairs, n));

    for (unsigned seed = 0; seed < SEEDS; seed++) {
        slm_emu_seed(seed);
        assert_int_equal(
            slm_gpu_group(pairs, n, dids, out[0], out[1], out[2], workspace, NULL),
            SLM_OK);
        for (int i = 0; i < 3; i++) {
            cudaMemcpy(got, out[i], sizes[i], cudaMemcpyDeviceToHost);
            assert_memory_equal(got, want[i], sizes[i]);
        }
    }
    cudaFree(dids);
    cudaFree(workspace);
    for (int i = 0; i < 3; i++) {
        cudaFree(out[i]);
        free(want[i]);
    }
    free(ids);
    free(got);
}

static void grouping_agrees_with_a_loop(void **state)
{
    (void)state;
    check_group(0, 4);
    check_group(1, 1);
    check_group(255, 4);
    check_group(256, 33);
    check_group(257, 64);
    check_group(1500, 896);
    check_group(40, 13000); /* more shared memory than comes unasked */
}

static void too_many_experts_are_refused(void **state)
{
    (void)state;
    assert_int_equal(slm_gpu_group(1, 60000, NULL, NULL, NULL, NULL, NULL, NULL),
                     SLM_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_agrees_with_a_loop),
        cmocka_unit_test(a_row_with_an_infinity_becomes_nan_alone),
#ifdef EMU_WATCHED
        cmocka_unit_test(rmsnorm_moves_two_reads_and_one_write),
#endif
        cmocka_unit_test(grouping_agrees_with_a_loop),
        cmocka_unit_test(too_many_experts_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
