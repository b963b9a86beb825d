/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_blas.c - the backend `cpu-blas`: what no vector can see.
 *
 * One result for any threads, strides and old bytes of the workspace; exact workspace;
 * no token; poisoned rows; refusals; the table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

/* ---- the same bits however it is called ---- */

static void each_operation_has_one_result(cpu_layout how, int threads, int old_byte)
{
    static const size_t tokens[] = {1, 2, 40, 300};
    slm_config config = cpu_tiny();

    for (int op = 0; op < SLM_OP_COUNT; op++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            static int64_t hist[11 * 50];
            static int32_t mask[300];
            const cpu_given list[] = {{op == SLM_OP_qb_hist_solve ? "hist" : "-", hist},
                                      {"mask", mask},
                                      {NULL, NULL}};
            cpu_outcome one, other;

            memset(hist, 0, sizeof hist);
            cpu_histogram(hist, tokens[i]);
            for (size_t t = 0; t < tokens[i]; t++) mask[t] = t % 5 != 2;
            one = cpu_run((slm_op)op, &config, tokens[i], list, CPU_PACKED, 1, 0);
            other =
                cpu_run((slm_op)op, &config, tokens[i], list, how, threads, old_byte);
            assert_int_equal(one.status, SLM_OK);
            cpu_same_bits(&one, &other);
            cpu_release(&one);
            cpu_release(&other);
        }
}

static void bits_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    each_operation_has_one_result(CPU_PACKED, 2, 0);
    each_operation_has_one_result(CPU_PACKED, 3, 0);
}

static void bits_do_not_depend_on_old_bytes_of_the_workspace(void **state)
{
    (void)state;
    each_operation_has_one_result(CPU_PACKED, 1, 0xff);
}

static void strided_and_misaligned_tensors_give_the_bits_of_packed_ones(void **state)
{
    (void)state;
    for (int how = CPU_SHIFTED; how < CPU_LAYOUTS; how++)
        each_operation_has_one_result((cpu_layout)how, 2, 0xff);
}

static void layer_of_every_kind_has_one_result(void **state)
{
    (void)state;
    for (int kind = 0; kind < SLM_EXPERT_KINDS; kind++)
        for (int how = CPU_PACKED; how < CPU_LAYOUTS; how++) {
            slm_config config = cpu_tiny();
            cpu_outcome one, other;

            config.expert = (slm_expert_kind)kind;
            one = cpu_run(SLM_OP_layer_forward, &config, 33, NULL, CPU_PACKED, 1, 0);
            other = cpu_run(SLM_OP_layer_forward, &config, 33, NULL, (cpu_layout)how, 3,
                            0xff);
            assert_int_equal(one.status, SLM_OK);
            cpu_same_bits(&one, &other);
            cpu_release(&one);
            cpu_release(&other);
        }
}

/* Widths and tokens that are cut into several blocks, the last ones odd. */
static void a_layer_of_many_blocks_has_one_result(void **state)
{
    slm_config config = cpu_tiny();

    (void)state;
    config.d_model = 701;
    config.d_latent = 333;
    config.n_experts = 3;
    config.top_k = 2;
    for (size_t tokens = 1; tokens < 700; tokens = tokens * 5 + 17)
        for (int threads = 2; threads <= 3; threads++) {
            cpu_outcome one, other;

            one =
                cpu_run(SLM_OP_layer_forward, &config, tokens, NULL, CPU_PACKED, 1, 0);
            other = cpu_run(SLM_OP_layer_forward, &config, tokens, NULL, CPU_SHIFTED,
                            threads, 0xff);
            assert_int_equal(one.status, SLM_OK);
            cpu_same_bits(&one, &other);
            cpu_release(&one);
            cpu_release(&other);
        }
}

/* Every output has a row of each token, so the smaller batch's are where the other's
 * begin. Sizes on both sides of what the layer takes as one block. */
static void a_token_has_the_same_bits_in_any_batch(void **state)
{
    static const size_t tokens[] = {1, 5, 13, 30, 150};
    const int has_half = (cpu_table()->flags & SLM_BATCH_INVARIANT) != 0;
    slm_config config = cpu_tiny();

    (void)state;
    config.d_model = 701;
    config.d_latent = 333;
    for (int half = 0; has_half && half <= 1; half++) {
        cpu_outcome all;

        config.dtype = half ? SLM_BF16 : SLM_F32;
        all = cpu_run_plain(SLM_OP_layer_forward, &config, 400, NULL);
        assert_int_equal(all.status, SLM_OK);
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            cpu_outcome some =
                cpu_run_plain(SLM_OP_layer_forward, &config, tokens[i], NULL);

            for (size_t j = 0; j < some.n; j++)
                assert_memory_equal(some.bytes[j], all.bytes[j], some.size[j]);
            cpu_release(&some);
        }
        cpu_release(&all);
    }
}

static void no_token_succeeds_without_data(void **state)
{
    const slm_backend *backend = cpu_table();
    const slm_config config = cpu_tiny();

    (void)state;
    for (int op = 0; op < SLM_OP_COUNT; op++) {
        cpu_frame made;
        slm_handle *handle;
        char workspace[1 << 16] __attribute__((aligned(64)));

        cpu_frame_make(&made, (slm_op)op, &config, 0, NULL, CPU_PACKED);
        for (size_t i = 0; i < made.info->n_fields; i++) {
            slm_tensor *tensor = cpu_field(&made, &made.info->fields[i]);

            if (tensor->rank && slm_tensor_count(tensor) == 0) tensor->data = NULL;
        }
        if (op == SLM_OP_qb_hist_solve) {
            slm_tensor *hist = cpu_field(&made, &made.info->fields[0]);

            memset(hist->data, 0, slm_tensor_count(hist) * sizeof(int64_t));
        }
        assert_int_equal(backend->open(&config, &handle, NULL), SLM_OK);
        assert_int_equal(backend->prepare(handle, &made.weights, NULL), SLM_OK);
        assert_true(backend->workspace(handle, (slm_op)op, &made.args.call) <=
                    sizeof workspace);
        made.args.call.workspace = workspace;
        made.args.call.workspace_size = sizeof workspace;
        assert_int_equal(slm_check((slm_op)op, &config, &made.args, NULL), SLM_OK);
        assert_int_equal(cpu_invoke(handle, (slm_op)op, &made.args, NULL), SLM_OK);
        backend->close(handle);
        for (size_t i = 0; i < made.n_memory; i++) free(made.memory[i]);
    }
}

/* Rows of words, bit for bit. */
static int same_row(const cpu_outcome *a, const cpu_outcome *b, const char *name,
                    size_t row, size_t width)
{
    return memcmp((char *)cpu_output(a, name) + row * width * 4,
                  (char *)cpu_output(b, name) + row * width * 4, width * 4) == 0;
}

/* The layer may group tokens otherwise when one is poisoned, so GEMM may round
 * otherwise. */
static int near_row(const cpu_outcome *a, const cpu_outcome *b, const char *name,
                    size_t row, size_t width)
{
    const float *one = (float *)cpu_output(a, name) + row * width;
    const float *other = (float *)cpu_output(b, name) + row * width;
    int near = 1;

    for (size_t i = 0; i < width; i++) near &= fabsf(one[i] - other[i]) <= 1e-5f;
    return near;
}

static void assert_row_all_nan(const cpu_outcome *out, const char *name, size_t row,
                               size_t width)
{
    for (size_t i = 0; i < width; i++)
        assert_true(isnan(((float *)cpu_output(out, name))[row * width + i]));
}

enum { POISON_T = 40, POISON_ROW = 17, POISON_D = 300 };

/* One NaN in a row of x; outcomes without it and with it. */
static void poison(slm_op op, const slm_config *config, cpu_outcome *clean,
                   cpu_outcome *out)
{
    static float x[POISON_T * POISON_D];
    const size_t d = config->d_model;
    const cpu_given list[] = {{"x", x}, {NULL, NULL}};

    for (size_t i = 0; i < POISON_T * d; i++) x[i] = cpu_noise("x", i);
    *clean = cpu_run_plain(op, config, POISON_T, list);
    x[POISON_ROW * d + 5] = NAN;
    *out = cpu_run_plain(op, config, POISON_T, list);
    assert_int_equal(out->status, SLM_OK);
}

static void a_poisoned_row_of_the_router_leaves_other_rows_alone(void **state)
{
    static const slm_op ops[] = {SLM_OP_layer_forward, SLM_OP_route};
    const slm_config config = cpu_tiny();
    const size_t k = config.top_k;

    (void)state;
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
        cpu_outcome clean, out;
        const int32_t *bad;

        poison(ops[o], &config, &clean, &out);
        for (size_t t = 0; t < POISON_T; t++)
            assert_true(t == POISON_ROW || (same_row(&clean, &out, "ids", t, k) &&
                                            same_row(&clean, &out, "weight", t, k)));
        bad = (int32_t *)cpu_output(&out, "ids") + POISON_ROW * k;
        for (size_t q = 0; q < k; q++) {
            assert_in_range(bad[q], 0, config.n_experts - 1);
            for (size_t p = 0; p < q; p++) assert_int_not_equal(bad[p], bad[q]);
        }
        cpu_release(&clean);
        cpu_release(&out);
    }
}

/* A narrow row, and one that several tasks write. */
static void a_poisoned_row_makes_its_y_nan_and_no_other(void **state)
{
    static const slm_op ops[] = {SLM_OP_layer_forward, SLM_OP_dense_ffn};
    const size_t widths[] = {cpu_tiny().d_model, POISON_D};

    (void)state;
    for (size_t o = 0; o < 4; o++) {
        const size_t d = widths[o / 2];
        slm_config config = cpu_tiny();
        cpu_outcome clean, out;

        config.d_model = d;
        poison(ops[o % 2], &config, &clean, &out);
        for (size_t t = 0; t < POISON_T; t++)
            if (t != POISON_ROW) assert_true(near_row(&clean, &out, "y", t, d));
        assert_row_all_nan(&out, "y", POISON_ROW, d);
        cpu_release(&clean);
        cpu_release(&out);
    }
}

/* Real `i` of an array of that type. */
static double real_of(slm_dtype type, const void *values, size_t i)
{
    uint32_t bits;
    float value;

    if (type != SLM_BF16) return ((const float *)values)[i];
    bits = (uint32_t)((const uint16_t *)values)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put_real(slm_dtype type, void *values, size_t i, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if (type == SLM_BF16)
        ((uint16_t *)values)[i] = (uint16_t)(bits >> 16);
    else
        ((float *)values)[i] = value;
}

/* y of a row is NaN, all of it, or nothing of it. */
static void assert_nan_or_not(const slm_config *config, const cpu_outcome *out,
                              size_t row, int nan)
{
    const void *y = cpu_output(out, "y");

    for (size_t i = 0; i < config->d_model; i++)
        assert_int_equal(isnan(real_of(config->dtype, y, row * config->d_model + i)),
                         nan);
}

/* Widths of one, so that the limits of sigmoid and tanh are an answer that looks right:
 * an infinite weight of the router, then -infinity in a row of x. */
static void infinite_logits_poison_what_they_are_of(void **state)
{
    enum { ROWS = 250 };
    static const size_t tokens[] = {1, 20, ROWS};
    const int has_half = (cpu_table()->flags & SLM_BATCH_INVARIANT) != 0;
    slm_config config = cpu_tiny();

    (void)state;
    config.d_model = config.d_latent = config.d_expert = config.top_k = 1;
    config.n_experts = 2;
    config.n_shared = 0;
    for (int half = 0; half <= has_half; half++)
        for (size_t n = 0; n < sizeof tokens / sizeof *tokens; n++) {
            float x[ROWS], router[2];
            const cpu_given list[] = {{"x", x}, {"w_router", router}, {NULL, NULL}};
            const size_t middle = tokens[n] / 2;
            cpu_outcome out;

            config.dtype = half ? SLM_BF16 : SLM_F32;
            for (size_t i = 0; i < ROWS; i++) put_real(config.dtype, x, i, 1.0f);
            put_real(config.dtype, router, 0, -INFINITY);
            put_real(config.dtype, router, 1, 1.0f);
            out = cpu_run_plain(SLM_OP_layer_forward, &config, tokens[n], list);
            assert_int_equal(out.status, SLM_OK);
            for (size_t t = 0; t < tokens[n]; t++)
                assert_nan_or_not(&config, &out, t, 1);
            cpu_release(&out);
            put_real(config.dtype, router, 0, 0.5f);
            put_real(config.dtype, x, middle, -INFINITY);
            out = cpu_run_plain(SLM_OP_layer_forward, &config, tokens[n], list);
            assert_int_equal(out.status, SLM_OK);
            for (size_t t = 0; t < tokens[n]; t++)
                assert_nan_or_not(&config, &out, t, t == middle);
            cpu_release(&out);
        }
}

static void a_nan_score_poisons_its_row_of_select_alone(void **state)
{
    const slm_config config = cpu_tiny();
    const size_t n = config.n_experts, k = config.top_k;
    float score[3 * 11];
    const cpu_given list[] = {{"score", score}, {NULL, NULL}};
    cpu_outcome clean, out;

    (void)state;
    for (size_t i = 0; i < 3 * n; i++) score[i] = 0.5f + 0.5f * cpu_noise("s", i);
    clean = cpu_run_plain(SLM_OP_select, &config, 3, list);
    score[n + 10] = NAN;
    out = cpu_run_plain(SLM_OP_select, &config, 3, list);
    for (size_t t = 0; t < 3; t += 2)
        assert_true(same_row(&clean, &out, "ids", t, k) &&
                    same_row(&clean, &out, "weight", t, k) &&
                    same_row(&clean, &out, "cutoff", t, 1));
    for (size_t q = 0; q < k; q++)
        assert_int_equal(((int32_t *)cpu_output(&out, "ids"))[k + q], q);
    cpu_release(&clean);
    cpu_release(&out);
}

static void an_infinity_makes_its_row_of_rmsnorm_nan_and_no_other(void **state)
{
    const slm_config config = cpu_tiny();
    const size_t l = config.d_latent;
    float u[3 * 19], *r;
    const cpu_given list[] = {{"u", u}, {NULL, NULL}};
    cpu_outcome out;

    (void)state;
    for (size_t i = 0; i < 3 * l; i++) u[i] = i / l == 2 ? 1e-20f : 3e19f;
    u[l + 3] = -INFINITY;
    out = cpu_run_plain(SLM_OP_rmsnorm, &config, 3, list);
    r = cpu_output(&out, "r");
    for (size_t i = 0; i < l; i++) {
        const float gamma = cpu_noise("gamma", i);

        assert_true(fabsf(r[i] - gamma) <= 1e-7f);
        assert_true(isnan(r[l + i]));
        assert_true(fabs((double)r[2 * l + i] - (double)gamma * 1e-17) <= 1e-24);
    }
    cpu_release(&out);
}

static void a_bias_that_is_not_finite_is_refused_before_any_output(void **state)
{
    static const slm_op ops[] = {SLM_OP_layer_forward, SLM_OP_route, SLM_OP_select,
                                 SLM_OP_qb_exact, SLM_OP_qb_hist_solve};
    const slm_config config = cpu_tiny();
    float bias[11] = {0.0f};
    static int64_t hist[11 * 50];
    const cpu_given list[] = {{"bias", bias}, {"hist", hist}, {NULL, NULL}};

    (void)state;
    cpu_histogram(hist, 9);
    bias[4] = INFINITY;
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
        cpu_outcome out = cpu_run_plain(ops[o], &config, 9, list);

        assert_int_equal(out.status, SLM_ERR_NONFINITE);
        assert_string_equal(out.error.field, "bias");
        assert_int_equal(out.error.index, 4);
        for (size_t i = 0; i < out.n; i++)
            for (size_t b = 0; b < out.size[i]; b++)
                assert_int_equal(out.bytes[i][b], CPU_UNTOUCHED);
        cpu_release(&out);
    }
}

/* ---- the table ---- */

static void bf16_is_refused_with_a_reason_where_elements_have_a_type(void **state)
{
    const slm_backend *backend = cpu_table();
    slm_config config = cpu_tiny();
    char reason[64] = "";

    (void)state;
    config.dtype = SLM_BF16;
    if (strcmp(backend->name, "cpu-blas") == 0) { /* `cpu` takes it */
        assert_false(backend->supports(&config, SLM_OP_layer_backward, 1, reason,
                                       sizeof reason));
        assert_non_null(strstr(reason, "binary32"));
    }
    assert_true(backend->supports(&config, SLM_OP_qb_exact, 1, reason, sizeof reason));
}

static void a_wanted_core_is_another_than_the_picked_one(void **state)
{
    const char *wanted = slm_cpu_blas_wanted_core();

    (void)state;
    assert_non_null(slm_cpu_blas_core());
    if (wanted) assert_string_not_equal(wanted, slm_cpu_blas_core());
    if (strcmp(slm_cpu_blas_core(), "SkylakeX") == 0) assert_null(wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(bits_do_not_depend_on_old_bytes_of_the_workspace),
        cmocka_unit_test(strided_and_misaligned_tensors_give_the_bits_of_packed_ones),
        cmocka_unit_test(layer_of_every_kind_has_one_result),
        cmocka_unit_test(a_layer_of_many_blocks_has_one_result),
        cmocka_unit_test(a_token_has_the_same_bits_in_any_batch),
        cmocka_unit_test(no_token_succeeds_without_data),
        cmocka_unit_test(a_poisoned_row_of_the_router_leaves_other_rows_alone),
        cmocka_unit_test(a_poisoned_row_makes_its_y_nan_and_no_other),
        cmocka_unit_test(infinite_logits_poison_what_they_are_of),
        cmocka_unit_test(a_nan_score_poisons_its_row_of_select_alone),
        cmocka_unit_test(an_infinity_makes_its_row_of_rmsnorm_nan_and_no_other),
        cmocka_unit_test(a_bias_that_is_not_finite_is_refused_before_any_output),
        cmocka_unit_test(bf16_is_refused_with_a_reason_where_elements_have_a_type),
        cmocka_unit_test(a_wanted_core_is_another_than_the_picked_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
