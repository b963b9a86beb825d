/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/test_layer.c - pieces of the layer against plain loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../layer.h"
#include "../control.h"
#include "experts.h"

enum { SEEDS = 4 };

/* ---- rows of experts ---- */

static void check_groups(size_t rows, size_t n, size_t k)
{
    uint32_t state = (uint32_t)(rows + n);
    int32_t *ids = choices(rows, n, k, &state);
    const grouped made = make_groups(rows, n, k, ids);
    const slm_gpu_groups *at = &made.at;
    const size_t all = slm_gpu_expert_rows(at);
    int64_t *first = download(at->first, (n + 1) * sizeof *first);
    int64_t *place = download(at->place, at->pairs * sizeof *place);
    int64_t *pair = download(at->pair, all * sizeof *pair);
    int32_t *expert = download(at->expert, at->chunks * sizeof *expert);
    size_t held = 0;

    assert_true(first[n] <= (int64_t)at->chunks);
    for (size_t i = 0; i < at->pairs; i++) {
        assert_true(place[i] >= 0 && place[i] < (int64_t)all);
        assert_int_equal(pair[place[i]], i);
        assert_int_equal(expert[place[i] / (int64_t)at->chunk], ids[i]);
    }
    for (size_t row = 0; row < all; row++) {
        held += pair[row] >= 0;
        if (row % at->chunk && pair[row] >= 0) assert_true(pair[row] > pair[row - 1]);
    }
    assert_int_equal(held, at->pairs);
    drop_groups(&made);
    free(ids);
    free(first);
    free(place);
    free(pair);
    free(expert);
}

static void rows_of_experts_hold_every_pair_once(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        slm_emu_seed(seed);
        check_groups(1, 1, 1);
        check_groups(1, 33, 5);  /* chunks of one row  */
        check_groups(50, 4, 2);  /* of sixteen         */
        check_groups(300, 2, 1); /* of 128: the most   */
        check_groups(7, 3, 3);
    }
}

/* ---- gradients of experts ---- */

static void check_gradients(size_t rows, size_t n, size_t k, size_t a_cols,
                            size_t b_cols, slm_dtype dtype)
{
    uint32_t state = (uint32_t)(rows + a_cols);
    int32_t *ids = choices(rows, n, k, &state);
    const grouped made = make_groups(rows, n, k, ids);
    const size_t all = slm_gpu_expert_rows(&made.at), size = n * a_cols * b_cols;
    float *a = rows_with_holes(&made.at, a_cols, &state);
    float *b = rows_with_holes(&made.at, b_cols, &state);
    int64_t *place = download(made.at.place, made.at.pairs * sizeof *place);
    const slm_gpu_matrix on_a = upload_rows(a, all, a_cols, dtype);
    const slm_gpu_matrix on_b = upload_rows(b, all, b_cols, dtype);
    float *dw = device(size * sizeof *dw), *got;
    double *want = calloc(size, sizeof *want);

    for (size_t i = 0; i < made.at.pairs; i++)
        for (size_t row = 0; row < a_cols; row++)
            for (size_t col = 0; col < b_cols; col++)
                want[((size_t)ids[i] * a_cols + row) * b_cols + col] +=
                    (double)a[(size_t)place[i] * a_cols + row] *
                    (double)b[(size_t)place[i] * b_cols + col];
    assert_int_equal(
        slm_gpu_expert_gradients(&made.at, on_a, a_cols, on_b, b_cols, dw, NULL, NULL),
        SLM_OK);
    got = download(dw, size * sizeof *got);
    /* Multiples of 2^-14 below 2^9: every sum is exact. */
    for (size_t i = 0; i < size; i++) assert_true((double)got[i] == want[i]);
    drop_groups(&made);
    cudaFree(on_a.data);
    cudaFree(on_b.data);
    cudaFree(dw);
    free(ids);
    free(a);
    free(b);
    free(place);
    free(got);
    free(want);
}

static void gradients_of_experts_agree_with_a_loop(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 2; seed++) {
        slm_emu_seed(seed);
        check_gradients(40, 5, 2, 65, 130, SLM_F32);
        check_gradients(9, 3, 1, 64, 16, SLM_BF16);
        check_gradients(3, 7, 2, 1, 1, SLM_F32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_experts_hold_every_pair_once),
        cmocka_unit_test(gradients_of_experts_agree_with_a_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
