/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/test_rows.c - products of few rows against plain loops. */
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

enum { SEEDS = 8 };

/* A product of each expert, or with n = 0 a dense one. */
typedef struct shape {
    size_t rows; /* tokens */
    size_t n;
    size_t k;
    size_t cols;
    size_t inner;
    unsigned how;
    slm_dtype dtype;   /* of x and w                                   */
    slm_dtype y_dtype; /*                                              */
    size_t shift;      /* elements that w lies off an aligned address  */
    size_t more;       /* elements between rows of x and of y          */
} shape;

static float *reals(size_t count, uint32_t *state)
{
    float *made = malloc(count * sizeof *made);

    for (size_t i = 0; i < count; i++) made[i] = real(state);
    return made;
}

/* Row `row` of x w^T or x w, in binary64: exact for real() and up to 1024 terms, and a
 * binary32. */
static double element(const shape *of, const float *x, const float *w, size_t col)
{
    const int back = of->how & SLM_GPU_BACK;
    double sum = 0.0;

    for (size_t i = 0; i < of->inner; i++)
        sum +=
            (double)x[i] * (double)w[back ? i * of->cols + col : col * of->inner + i];
    return sum;
}

/* What y must hold as it will be read back: binary32, rounded to its dtype. */
static float *as_stored(float *want, size_t count, slm_dtype dtype)
{
    const slm_gpu_matrix there = upload_rows(want, count, 1, dtype);
    const slm_gpu_matrix wide = {device(count * 4 + 1), SLM_F32, 1};
    float *got;

    if (dtype == SLM_F32) {
        cudaFree(there.data);
        cudaFree(wide.data);
        return want;
    }
    assert_int_equal(slm_gpu_convert(count, 1, there, wide, NULL), SLM_OK);
    got = download(wide.data, count * sizeof *got);
    cudaFree(there.data);
    cudaFree(wide.data);
    free(want);
    return got;
}

/* [rows, ld] of any dtype as binary32 [rows, cols]. */
static float *read_rows(slm_gpu_matrix from, size_t rows, size_t cols)
{
    const slm_gpu_matrix wide = {device(rows * cols * 4 + 1), SLM_F32, cols};
    float *got;

    if (from.dtype == SLM_F32)
        for (size_t row = 0; row < rows; row++)
            cudaMemcpy((float *)wide.data + row * cols,
                       (float *)from.data + row * from.ld, cols * 4,
                       cudaMemcpyDeviceToDevice);
    else
        assert_int_equal(slm_gpu_convert(rows, cols, from, wide, NULL), SLM_OK);
    got = download(wide.data, rows * cols * sizeof *got);
    cudaFree(wide.data);
    return got;
}

static slm_gpu_matrix shifted(const float *w, size_t count, const shape *of)
{
    float *all = calloc(count + of->shift, sizeof *all);
    slm_gpu_matrix made;

    memcpy(all + of->shift, w, count * sizeof *w);
    made = upload_rows(all, count + of->shift, 1, of->dtype);
    free(all);
    return made;
}

static slm_gpu_matrix empty(size_t rows, size_t ld, slm_dtype dtype)
{
    const size_t bytes = rows * ld * slm_dtype_size(dtype);
    const slm_gpu_matrix made = {device(bytes), dtype, ld};

    cudaMemset(made.data, 0xff, bytes);
    return made;
}

/* Two products of all experts; rows of x without a pair hold NaN, those of y zeros. */
static void check_expert_products(const shape *of)
{
    enum { LIST = 2 };
    uint32_t state = (uint32_t)(of->rows + of->cols);
    int32_t *ids = choices(of->rows, of->n, of->k, &state);
    const grouped made = make_groups(of->rows, of->n, of->k, ids);
    const size_t all = slm_gpu_expert_rows(&made.at), ld = of->inner + of->more;
    const size_t size = of->cols * of->inner, y_size = all * of->cols;
    float *x = rows_with_holes(&made.at, ld, &state), *w[LIST], *want[LIST];
    int64_t *pair = download(made.at.pair, all * sizeof *pair);
    const slm_gpu_matrix on_x = upload_rows(x, all, ld, of->dtype);
    slm_gpu_expert_linear list[LIST];
    slm_gpu_matrix on_w[LIST];
    const slm_handle handle = {0};

    assert_true(made.at.chunk <= SLM_GPU_FEW_ROWS);
    for (size_t i = 0; i < LIST; i++) {
        w[i] = reals(of->n * size, &state);
        want[i] = calloc(y_size + 1, sizeof **want);
        on_w[i] = shifted(w[i], of->n * size, of);
        list[i].x = on_x;
        list[i].w = (char *)on_w[i].data + of->shift * slm_dtype_size(of->dtype);
        list[i].y = empty(all, of->cols + of->more, of->y_dtype);
        for (size_t at = 0; at < y_size; at++) {
            const size_t row = at / of->cols;

            if (pair[row] >= 0)
                want[i][at] =
                    (float)element(of, x + row * ld,
                                   w[i] + (size_t)ids[pair[row]] * size, at % of->cols);
        }
        want[i] = as_stored(want[i], y_size, of->y_dtype);
    }
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        slm_emu_seed(seed);
        assert_int_equal(slm_gpu_expert_products(&handle, &made.at, of->cols, of->inner,
                                                 of->how, list, LIST, NULL),
                         SLM_OK);
        for (size_t i = 0; i < LIST; i++) {
            float *got = read_rows(list[i].y, all, of->cols);

            assert_memory_equal(got, want[i], y_size * sizeof *got);
            cudaMemset(list[i].y.data, 0xff,
                       all * list[i].y.ld * slm_dtype_size(of->y_dtype));
            free(got);
        }
    }
    for (size_t i = 0; i < LIST; i++) {
        cudaFree(on_w[i].data);
        cudaFree(list[i].y.data);
        free(w[i]);
        free(want[i]);
    }
    cudaFree(on_x.data);
    drop_groups(&made);
    free(ids);
    free(x);
    free(pair);
}

static void products_of_experts_with_few_rows_agree_with_a_loop(void **state)
{
    const shape list[] = {
        {1, 5, 3, 40, 24, 0, SLM_F32, SLM_F32, 0, 0},    /* chunks of one row      */
        {1, 5, 3, 40, 24, 0, SLM_BF16, SLM_BF16, 0, 8},  /*                        */
        {5, 4, 1, 17, 1000, 0, SLM_BF16, SLM_F32, 0, 8}, /* several of an expert   */
        {9, 6, 2, 33, 15, 0, SLM_BF16, SLM_BF16, 0, 1},  /* two rows; odd sizes    */
        {40, 7, 1, 31, 516, 0, SLM_F32, SLM_F32, 0, 4},  /* four                   */
        {40, 7, 1, 16, 64, 0, SLM_BF16, SLM_BF16, 1, 0}, /* weights off their line */
        {40, 7, 1, 16, 64, 0, SLM_F32, SLM_F32, 0, 3},   /* an odd pitch           */
        {1, 5, 3, 72, 40, SLM_GPU_BACK, SLM_BF16, SLM_BF16, 0, 0},
        {9, 6, 2, 129, 70, SLM_GPU_BACK, SLM_F32, SLM_F32, 0, 1},
        {40, 7, 1, 68, 300, SLM_GPU_BACK, SLM_F32, SLM_F32, 0, 0},
        {40, 7, 1, 40, 33, SLM_GPU_BACK, SLM_BF16, SLM_F32, 3, 5},
        {40, 7, 1, 8, 1, SLM_GPU_BACK, SLM_BF16, SLM_F32, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_expert_products(&list[i]);
}

/* y starts as 3 everywhere, so that ADD shows. */
static void check_dense_product(const shape *of)
{
    uint32_t state = (uint32_t)(of->rows + of->inner);
    const size_t ld = of->inner + of->more, y_ld = of->cols + of->more;
    const size_t y_size = of->rows * of->cols;
    float *x = reals(of->rows * ld, &state), *w = reals(of->cols * of->inner, &state);
    float *three = malloc(of->rows * y_ld * sizeof *three), *got;
    float *want = malloc(y_size * sizeof *want);
    const slm_gpu_matrix on_w = shifted(w, of->cols * of->inner, of);
    const size_t w_ld = of->how & SLM_GPU_BACK ? of->cols : of->inner;
    const slm_gpu_matrix w_at = {
        (char *)on_w.data + of->shift * slm_dtype_size(of->dtype), of->dtype, w_ld};
    slm_gpu_linear product = {of->rows, of->cols, of->inner, {0}, w_at, {0}, of->how};
    slm_handle handle = {0};

    for (size_t i = 0; i < of->rows * y_ld; i++) three[i] = 3.0f;
    for (size_t i = 0; i < y_size; i++)
        want[i] = (float)(element(of, x + i / of->cols * ld, w, i % of->cols) +
                          (of->how & SLM_GPU_ADD ? 3.0 : 0.0));
    want = as_stored(want, y_size, of->y_dtype);
    product.x = upload_rows(x, of->rows, ld, of->dtype);
    assert_int_equal(slm_gpu_open_blas(&handle.blas), SLM_OK);
    handle.side_blas = handle.blas; /* the side stream is NULL, too */
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        slm_emu_seed(seed);
        product.y = upload_rows(three, of->rows, y_ld, of->y_dtype);
        assert_int_equal(slm_gpu_product(&handle, &product, NULL), SLM_OK);
        got = read_rows(product.y, of->rows, of->cols);
        assert_memory_equal(got, want, y_size * sizeof *got);
        cudaFree(product.y.data);
        free(got);
    }
    cublasDestroy(handle.blas);
    cudaFree(product.x.data);
    cudaFree(on_w.data);
    free(x);
    free(w);
    free(three);
    free(want);
}

static void dense_products_of_few_rows_agree_with_a_loop(void **state)
{
    const unsigned hows[] = {0, SLM_GPU_ADD, SLM_GPU_BACK, SLM_GPU_BACK | SLM_GPU_ADD};

    (void)state;
    for (size_t rows = 1; rows <= SLM_GPU_FEW_ROWS + 1; rows++)
        for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
            const shape list[] = {
                {rows, 0, 0, 40, 264, hows[i], SLM_F32, SLM_F32, 0, 0},
                {rows, 0, 0, 72, 136, hows[i], SLM_BF16, SLM_F32, 0, 8},
                {rows, 0, 0, 19, 21, hows[i], SLM_BF16, SLM_BF16, 0, 0},
                {rows, 0, 0, 16, 16, hows[i], SLM_F32, SLM_F32, 1, 2},
            };

            for (size_t j = 0; j < sizeof list / sizeof *list; j++)
                check_dense_product(&list[j]);
        }
}

/* Values whose sums round: a row has its bits whoever is beside it. */
static void check_alone(unsigned how, slm_dtype dtype)
{
    enum { COLS = 80, INNER = 808 };
    uint32_t state = 5;
    float *x = malloc(4 * INNER * sizeof *x), *w = malloc(COLS * INNER * sizeof *w);

    for (size_t i = 0; i < 4 * INNER; i++)
        x[i] = ldexpf((float)draw(&state), -(int)(draw(&state) % 32));
    for (size_t i = 0; i < COLS * INNER; i++)
        w[i] = ldexpf((float)draw(&state) - 0x1p23f, -20);

    const slm_gpu_matrix on_x = upload_rows(x, 4, INNER, dtype);
    const slm_gpu_matrix on_w = upload_rows(w, COLS * INNER, 1, dtype);
    const slm_gpu_matrix y = empty(4, COLS, SLM_F32), one = empty(1, COLS, SLM_F32);
    slm_gpu_linear product = {4, COLS, INNER, on_x, on_w, y, how};

    product.w.ld = how & SLM_GPU_BACK ? COLS : INNER;
    for (product.rows = 2; product.rows <= 4; product.rows++) {
        assert_int_equal(slm_gpu_few_rows(&product, NULL), SLM_OK);

        float *all = read_rows(y, product.rows, COLS);

        for (size_t row = 0; row < product.rows; row++) {
            slm_gpu_linear own = product;

            own.rows = 1;
            own.x.data = (char *)on_x.data + row * INNER * slm_dtype_size(dtype);
            own.y = one;
            assert_int_equal(slm_gpu_few_rows(&own, NULL), SLM_OK);

            float *got = read_rows(one, 1, COLS);

            assert_memory_equal(got, all + row * COLS, COLS * sizeof *got);
            free(got);
        }
        free(all);
    }
    cudaFree(on_x.data);
    cudaFree(on_w.data);
    cudaFree(y.data);
    cudaFree(one.data);
    free(x);
    free(w);
}

static void a_row_of_a_product_has_the_same_bits_beside_others(void **state)
{
    (void)state;
    check_alone(0, SLM_F32);
    check_alone(0, SLM_BF16);
    check_alone(SLM_GPU_BACK, SLM_F32);
    check_alone(SLM_GPU_BACK, SLM_BF16);
}

#ifdef EMU_WATCHED
/* Of 40 pairs one expert has all, so that chunks of four lie idle. */
static void weights_are_read_once_for_four_rows_and_not_for_idle_chunks(void **state)
{
    enum { ROWS = 40, N = 10, COLS = 32, INNER = 64, ITEMS = ROWS / 4 };
    const char *kernel = "(gemm_rows_dot<E, Y, WIDE>)";
    const int32_t ids[ROWS] = {0};
    const grouped made = make_groups(ROWS, N, 1, ids);
    const size_t all = slm_gpu_expert_rows(&made.at);
    float *x = calloc(all * INNER, sizeof *x), *w = calloc(N * COLS * INNER, sizeof *w);
    const slm_gpu_matrix on_x = upload_rows(x, all, INNER, SLM_F32);
    const slm_gpu_matrix on_w = upload_rows(w, N * COLS * INNER, 1, SLM_F32);
    const slm_gpu_matrix y = empty(all, COLS, SLM_F32);
    const slm_gpu_expert_linear one = {on_x, on_w.data, y};
    const size_t of_w = ITEMS * COLS * INNER * 4, of_x = ROWS * INNER * 4 * COLS / 2;
    const size_t of_words = made.at.chunks * (COLS / 16) * 256 * 36;
    uint64_t before, loaded, stored_before, stored;
    const slm_handle handle = {0};

    (void)state;
    assert_true(made.at.chunk == 4 && made.at.chunks > ITEMS);
    slm_emu_bytes(kernel, &before, &stored_before);
    assert_int_equal(
        slm_gpu_expert_products(&handle, &made.at, COLS, INNER, 0, &one, 1, NULL),
        SLM_OK);
    cudaDeviceSynchronize();
    slm_emu_bytes(kernel, &loaded, &stored);
    assert_in_range(loaded - before, of_w + of_x, of_w + of_x + of_words);
    assert_int_equal(stored - stored_before, all * COLS * 4);
    drop_groups(&made);
    cudaFree(on_x.data);
    cudaFree(on_w.data);
    cudaFree(y.data);
    free(x);
    free(w);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_experts_with_few_rows_agree_with_a_loop),
        cmocka_unit_test(dense_products_of_few_rows_agree_with_a_loop),
        cmocka_unit_test(a_row_of_a_product_has_the_same_bits_beside_others),
#ifdef EMU_WATCHED
        cmocka_unit_test(weights_are_read_once_for_four_rows_and_not_for_idle_chunks),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
