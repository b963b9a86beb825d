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
#include "../../gpu.h"
#include "../../kernels.h"
#include "../control.h"
#include "on_device.h"

enum { SEEDS = 8 };

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

/* alpha - s, exact: hi + lo. */
typedef struct exact {
    double hi;
    double lo;
} exact;

static exact minus(float alpha, float score)
{
    const double a = (double)alpha, b = -(double)score, sum = a + b, part = sum - a;
    const exact r = {sum, (a - (sum - part)) + (b - part)};

    return r;
}

static int by_value(const void *a, const void *b)
{
    const exact *x = (const exact *)a, *y = (const exact *)b;

    if (x->hi != y->hi) return x->hi < y->hi ? -1 : 1;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* The row that gpu/qb_sieve.cu samples of each `stride`. */
static size_t sampled_row(size_t i, size_t stride)
{
    return i * stride + (size_t)((uint32_t)i * 2654435761u >> 16) % stride;
}

/* What the scores are like. TINY: r that binary64 holds in two parts only; MISLED: the
 * rows of the sample are unlike the others. */
enum kind { SPREAD, FEW, TINY, MISLED, KINDS };

static float made(enum kind kind, size_t t, size_t e, int sampled, uint32_t *state)
{
    const float any = ldexpf((float)draw(state), -24);

    if (kind == FEW) return floorf(any * 16.0f) / 16.0f;
    if (kind == TINY) return e == 0 ? ldexpf(any, -70) : floorf(any * 32.0f) / 32.0f;
    if (kind == MISLED) return sampled ? any / 4.0f : 0.5f + any / 2.0f;
    return e % 3 == t % 3 ? any : any * any;
}

static void make_batch(enum kind kind, size_t rows, size_t n, float *score,
                       int32_t *mask)
{
    uint32_t state = (uint32_t)(rows + n + (size_t)kind);
    int *sampled = calloc(rows, sizeof *sampled);

    for (size_t i = 0; i < rows / 8; i++) sampled[sampled_row(i, 8)] = 1;
    for (size_t t = 0; t < rows; t++) {
        mask[t] = draw(&state) % 5 != 0;
        for (size_t e = 0; e < n; e++)
            score[t * n + e] = made(kind, t, e, e % 2 && sampled[t], &state);
    }
    free(sampled);
}

static int upwards(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* candidate[n] of rows that the mask counts, bias 0. */
static void solve(size_t rows, size_t n, size_t k, const float *score,
                  const int32_t *mask, double *candidate)
{
    float *row = malloc(n * sizeof *row);
    exact *r = malloc(rows * n * sizeof *r);
    size_t m = 0;

    for (size_t t = 0; t < rows; t++) {
        if (!mask[t]) continue;
        memcpy(row, score + t * n, n * sizeof *row);
        qsort(row, n, sizeof *row, upwards);
        for (size_t e = 0; e < n; e++)
            r[e * rows + m] = minus(row[n - 1 - k], score[t * n + e]);
        m++;
    }
    for (size_t e = 0; e < n; e++) {
        qsort(r + e * rows, m, sizeof *r, by_value);
        candidate[e] = r[e * rows + (k * (m - 1) + n - 1) / n].hi;
    }
    free(row);
    free(r);
}

static slm_tensor of_device(void *data, slm_dtype dtype, uint32_t rank, size_t rows,
                            size_t cols)
{
    const size_t shape[] = {rows, cols};
    slm_tensor tensor = slm_tensor_packed(data, dtype, rank, shape);

    tensor.space = SLM_DEVICE;
    return tensor;
}

static void give_batch(slm_qb_exact_args *args, size_t rows, size_t n,
                       const float *score, const int32_t *mask)
{
    float *bias = calloc(n, sizeof *bias);

    memset(args, 0, sizeof *args);
    args->call.struct_size = sizeof *args;
    args->call.n_tokens = rows;
    args->score = of_device(upload(score, rows * n * 4), SLM_F32, 2, rows, n);
    args->bias = of_device(upload(bias, n * 4), SLM_F32, 1, n, 1);
    args->mask = of_device(upload(mask, rows * 4), SLM_I32, 1, rows, 1);
    args->new_bias = of_device(device(n * 4), SLM_F32, 1, n, 1);
    args->candidate = of_device(device(n * 8), SLM_F64, 1, n, 1);
    free(bias);
}

static void drop_batch(const slm_qb_exact_args *args)
{
    cudaFree(args->score.data);
    cudaFree(args->bias.data);
    cudaFree(args->mask.data);
    cudaFree(args->new_bias.data);
    cudaFree(args->candidate.data);
    cudaFree(args->call.workspace);
}

/* One call a seed, each with the bits of the loop. */
static void check_quantile(enum kind kind, size_t rows, size_t n, size_t k)
{
    const slm_backend *gpu = slm_gpu_backend();
    float *score = malloc(rows * n * sizeof *score);
    int32_t *mask = malloc(rows * sizeof *mask);
    double *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    slm_qb_exact_args args;
    slm_config config;
    slm_handle *handle;

    make_batch(kind, rows, n, score, mask);
    solve(rows, n, k, score, mask, want);
    assert_true(slm_config_profile("paper", &config));
    config.n_experts = n;
    config.top_k = k;
    config.balance = SLM_BALANCE_RELAXED;
    assert_int_equal(gpu->open(&config, &handle, NULL), SLM_OK);
    give_batch(&args, rows, n, score, mask);
    args.call.workspace_size = gpu->workspace(handle, SLM_OP_qb_exact, &args.call);
    args.call.workspace = device(args.call.workspace_size);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        slm_emu_seed(seed);
        assert_int_equal(gpu->ops->qb_exact(handle, &args, NULL), SLM_OK);
        cudaMemcpy(got, args.candidate.data, n * sizeof *got, cudaMemcpyDeviceToHost);
        assert_memory_equal(got, want, n * sizeof *got);
    }
    drop_batch(&args);
    gpu->close(handle);
    free(score);
    free(mask);
    free(want);
    free(got);
}

static void quantiles_have_the_bits_of_a_loop(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        check_quantile((enum kind)kind, 1023, 9, 2); /* a pass for each digit */
        check_quantile((enum kind)kind, 1024, 9, 2); /* one pass              */
    }
    check_quantile(SPREAD, 2100, 70, 5);
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
        cmocka_unit_test(quantiles_have_the_bits_of_a_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
