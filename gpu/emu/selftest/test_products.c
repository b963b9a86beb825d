/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/test_products.c - cuBLAS and tensor cores against plain loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cublas_v2.h>
#include <string.h>
#include "../control.h"
#include "on_device.h"
#include "subjects.h"

static void download(void *to, const void *from, size_t bytes)
{
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}

/* Small integers, so that sums are exact in binary32 and in bf16 factors. */
static uint16_t half_of(float value)
{
    uint32_t word;

    memcpy(&word, &value, sizeof word);
    return (uint16_t)(word >> 16);
}

static void fill(float *value, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++)
        value[i] = (float)((int)(i * 7 + (size_t)seed) % 9 - 4);
}

/* Of a part of matrices that have more rows and columns. */
enum { M = 5, COLS = 6, K = 7, LEADING = 8 };
static const float two = 2.0f, three = 3.0f;

/* c = 2 a b + 3 c */
static cublasStatus_t multiply(cublasHandle_t handle, int transpose_a, int transpose_b,
                               const float *a, int a_leading, const float *b, float *c)
{
    return cublasGemmEx(handle, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                        transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, M, COLS, K, &two, a,
                        CUDA_R_32F, a_leading, b, CUDA_R_32F, LEADING, &three, c,
                        CUDA_R_32F, LEADING, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

static void a_product_agrees_with_a_loop(void **state)
{
    enum { SIZE = LEADING * LEADING };
    float a[SIZE], b[SIZE], c[SIZE], got[SIZE];
    cublasHandle_t handle;

    (void)state;
    fill(a, SIZE, 1);
    fill(b, SIZE, 5);
    fill(c, SIZE, 3);

    float *da = upload(a, sizeof a), *db = upload(b, sizeof b);

    assert_int_equal(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    for (int which = 0; which < 4; which++) {
        const int ta = which & 1, tb = which >> 1;
        float *dc = upload(c, sizeof c);

        assert_int_equal(multiply(handle, ta, tb, da, LEADING, db, dc),
                         CUBLAS_STATUS_SUCCESS);
        download(got, dc, sizeof got);
        for (int j = 0; j < LEADING; j++)
            for (int i = 0; i < LEADING; i++) {
                float want = c[j * LEADING + i];

                if (i < M && j < COLS) want *= three;
                for (int q = 0; q < K && i < M && j < COLS; q++)
                    want += two * (ta ? a[i * LEADING + q] : a[q * LEADING + i]) *
                            (tb ? b[q * LEADING + j] : b[j * LEADING + q]);
                assert_true(got[j * LEADING + i] == want);
            }
        cudaFree(dc);
    }
    assert_int_equal(multiply(handle, 0, 0, da, M - 1, db, da),
                     CUBLAS_STATUS_INVALID_VALUE);
    cublasDestroy(handle);
    cudaFree(da);
    cudaFree(db);
}

/* The arrays of pointers are device memory; two products share a factor; new memory holds
 * NaN, which beta = 0 leaves unread. */
static void a_batch_by_pointers_agrees_with_a_loop(void **state)
{
    enum { BATCH = 3, D = 4, SIZE = BATCH * D * D };
    const int of_a[BATCH] = {2, 0, 2};
    const float one = 1.0f, zero = 0.0f;
    float w[SIZE], x[SIZE], got[SIZE];
    uint16_t w16[SIZE], x16[SIZE];
    const void *a[BATCH], *b[BATCH];
    void *c[BATCH];
    cublasHandle_t handle;

    (void)state;
    fill(w, SIZE, 2);
    fill(x, SIZE, 6);
    for (int i = 0; i < SIZE; i++) {
        w16[i] = half_of(w[i]);
        x16[i] = half_of(x[i]);
    }

    uint16_t *dw = upload(w16, sizeof w16), *dx = upload(x16, sizeof x16);
    float *dy = device(sizeof got);

    for (int i = 0; i < BATCH; i++) {
        a[i] = dw + of_a[i] * D * D;
        b[i] = dx + i * D * D;
        c[i] = dy + i * D * D;
    }

    void *da = upload(a, sizeof a), *db = upload(b, sizeof b),
         *dc = upload(c, sizeof c);

    cublasCreate(&handle);
    assert_int_equal(cublasGemmBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, D, D, D,
                                         &one, (const void *const *)da, CUDA_R_16BF, D,
                                         (const void *const *)db, CUDA_R_16BF, D, &zero,
                                         (void *const *)dc, CUDA_R_32F, D, BATCH,
                                         CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                     CUBLAS_STATUS_SUCCESS);
    download(got, dy, sizeof got);
    for (int at = 0; at < SIZE; at++) {
        const float *left = w + of_a[at / (D * D)] * D * D + at % D;
        float want = 0.0f;

        for (int q = 0; q < D; q++) want += left[q * D] * x[at / D * D + q];
        assert_true(got[at] == want);
    }
    cublasDestroy(handle);
    cudaFree(da);
    cudaFree(db);
    cudaFree(dc);
    cudaFree(dw);
    cudaFree(dx);
    cudaFree(dy);
}

/* Element of a matrix of 16 x 16, by rows or by columns. */
static float at16(const float *m, int row, int col, int by_columns)
{
    return by_columns ? m[col * 16 + row] : m[row * 16 + col];
}

static void a_warp_multiplies_tiles_in_every_layout(void **state)
{
    enum { SIZE = 256 };
    float a[SIZE], b[SIZE], got[PRODUCTS * SIZE];
    uint16_t a16[SIZE], b16[SIZE];

    (void)state;
    fill(a, SIZE, 2);
    fill(b, SIZE, 5);
    b[17] = 0x1p-9f; /* a sum that must keep its last bits */
    for (int i = 0; i < SIZE; i++) a16[i] = half_of(a[i]);
    for (int i = 0; i < SIZE; i++) b16[i] = half_of(b[i]);

    void *da = upload(a16, sizeof a16), *db = upload(b16, sizeof b16);
    float *out = device(sizeof got);

    for (unsigned seed = 0; seed < 4; seed++) {
        slm_emu_seed(seed);
        subject_products(da, db, out, NULL);
        download(got, out, sizeof got);
        for (int i = 0; i < PRODUCTS * SIZE; i++) {
            const int how = i / SIZE, row = i / 16 % 16, col = i % 16;
            float want = 0.0f;

            for (int k = 0; k < 16; k++)
                want += 2.0f * at16(a, row, k, how & 1) * at16(b, k, col, how >> 1 & 1);
            assert_true(at16(got + how * SIZE, row, col, how >> 2) == want);
        }
    }
    cudaFree(da);
    cudaFree(db);
    cudaFree(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_agrees_with_a_loop),
        cmocka_unit_test(a_batch_by_pointers_agrees_with_a_loop),
        cmocka_unit_test(a_warp_multiplies_tiles_in_every_layout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
