/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_qb.c - the reference's order statistic and sign step. Q1, Q2 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "balancing.h"

static void same_index(size_t m, size_t n, size_t k, size_t want)
{
    const size_t got = slm_ref_quantile_index(m, n, k);

    if (got != want)
        fail_msg("m %zu n %zu k %zu: want %zu got %zu", m, n, k, want, got);
}

static void the_quantile_index_is_the_integer_formula(void **state)
{
    (void)state;
    same_index(8, 4, 1, 2); /* q = 2: the third smallest */
    same_index(1, 4, 1, 0);
    same_index(1, 1, 1, 0);
    same_index(2, 3, 1, 1); /* q = 2/3 */
    same_index(5, 4, 4, 4); /* k = n: the largest */
    for (size_t n = 1; n <= 12; n++) {
        for (size_t k = 1; k <= n; k++) {
            for (size_t m = 1; m <= 40; m++) {
                same_index(m, n, k, (k * (m - 1) + n - 1) / n);
                if (m * k % n == 0 && k < n) same_index(m, n, k, m * k / n);
            }
        }
    }
    same_index(SIZE_MAX, 1, 1, SIZE_MAX - 1);
    same_index(SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX - 1);
    same_index(SIZE_MAX, SIZE_MAX, 1, 1);
    same_index((size_t)56 << 58, 896, 16, (size_t)1 << 58);
}

/* ceil((m-1) (k/n)), the index of a quantile function that computes in floating point:
 * wrong in binary32 at 169 tokens of K3, in binary64 at 26 of a smaller layer. */
static void the_quantile_index_is_right_where_floating_point_is_not(void **state)
{
    volatile float q32 = 1.0f / 4.0f;
    volatile double q64 = 7.0 / 25.0;

    (void)state;
    q32 *= (float)16777217;
    assert_true(ceilf(q32) == 4194304);
    same_index(16777218, 4, 1, 4194305);
    q32 = 16.0f / 896.0f;
    q32 *= 168;
    assert_true(ceilf(q32) == 4);
    same_index(169, 896, 16, 3);
    q64 *= 25;
    assert_true(ceil(q64) == 8);
    same_index(26, 25, 7, 7);
}

static void loads_4310_become_2222(void **state)
{
    static const float alpha_times_64[] = {44, 40, 18, 29, 48, 45, 45, 43};
    balancing b = balancing_4310();

    (void)state;
    balancing_loads(&b, b.bias, (int64_t[]){4, 3, 1, 0});
    assert_int_equal(balancing_exact(&b), SLM_OK);
    for (size_t i = 0; i < 8; i++) assert_true(b.cutoff[i] == alpha_times_64[i] / 64);
    balancing_gives(&b, (float[]){-6.f / 64, -4.f / 64, 5.f / 64, 5.f / 64},
                    (double[]){-3. / 64, -1. / 64, 8. / 64, 8. / 64});
    balancing_loads(&b, b.new_bias, (int64_t[]){2, 2, 2, 2});
}

static void seed_21_gives_the_note_s_bits(void **state)
{
    balancing b = balancing_seed_21();

    (void)state;
    balancing_loads(&b, b.bias, (int64_t[]){3, 0, 2, 3});
    assert_int_equal(balancing_exact(&b), SLM_OK);
    balancing_gives(
        &b,
        (float[]){-0x1.e2eaecp-5f, 0x1.1602a0p-3f, -0x1.27172cp-5f, -0x1.4e086cp-5f},
        (double[]){-0x1.77a78p-6, 0x1.5fc86cp-3, 0.0, -0x1.378ap-8});
    balancing_loads(&b, b.new_bias, (int64_t[]){2, 2, 2, 2});
}

/* The note's own refusal, ones(4, 2). */
static void equal_scores_tie_in_strict_mode_and_do_not_matter_in_relaxed(void **state)
{
    balancing b = balancing_open(4, 2, 1);

    (void)state;
    for (size_t i = 0; i < 8; i++) b.score[i] = 1;
    balancing_refuses(&b, SLM_ERR_TIE, "new_bias", 0);
    b.config.tie_test = SLM_TIE_EQUAL;
    balancing_refuses(&b, SLM_ERR_TIE, "new_bias", 0);
    b.config.balance = SLM_BALANCE_RELAXED;
    assert_int_equal(balancing_exact(&b), SLM_OK);
    balancing_gives(&b, (float[]){0, 0}, (double[]){0, 0});
}

/* Column 3 of the instance: 0, 0, 8 becomes 0, 0, 0. */
static void a_tie_names_the_lowest_expert_that_has_one(void **state)
{
    balancing b = balancing_4310();

    (void)state;
    b.score[6 * 4 + 3] = 45.0f / 64;
    balancing_refuses(&b, SLM_ERR_TIE, "new_bias", 3);
}

static void a_load_that_is_no_integer_is_refused_in_strict_mode_alone(void **state)
{
    balancing b = balancing_open(5, 4, 1);

    (void)state;
    for (size_t i = 0; i < 20; i++) b.score[i] = 1; /* would be a tie too */
    balancing_refuses(&b, SLM_ERR_TARGET, "n_tokens", 0);
    b.config.top_k = 3;
    balancing_refuses(&b, SLM_ERR_TARGET, "n_tokens", 0);
    b.config.balance = SLM_BALANCE_RELAXED;
    assert_int_equal(balancing_exact(&b), SLM_OK);

    b = balancing_4310();
    b.m = 2;
    b.config.top_k = 2; /* neither m nor k is a multiple of n, m k is */
    assert_int_equal(balancing_exact(&b), SLM_OK);
}

static void a_value_that_is_not_finite_comes_before_target_and_tie(void **state)
{
    balancing b = balancing_open(5, 4, 1);

    (void)state;
    b.score[9] = NAN;
    b.bias[1] = INFINITY;
    balancing_refuses(&b, SLM_ERR_NONFINITE, "score", 9);
    b.score[9] = 0;
    balancing_refuses(&b, SLM_ERR_NONFINITE, "bias", 1);
    b.bias[1] = 0x1.fffffep127f;
    balancing_refuses(&b, SLM_ERR_TARGET, "n_tokens", 0);
}

/* In each test of two tokens and two experts below, the columns of required biases are
 * (r_00, r_10) and (r_01, r_11), and q = 1. */
static balancing two_by_two(float b0, float s00, float s01, float s10, float s11)
{
    balancing b = balancing_open(2, 2, 1);

    memcpy(b.score, ((float[]){s00, s01, s10, s11}), 4 * sizeof(float));
    b.bias[0] = b0;
    return b;
}

static void the_note_s_tie_test_refuses_what_equality_lets_through(void **state)
{
    balancing b = two_by_two(0x1p-27f, 0.75f, 0.875f, 0.0625f, 0.5f);

    (void)state;
    balancing_refuses(&b, SLM_ERR_TIE, "new_bias", 0);
    b.config.tie_test = SLM_TIE_EQUAL;
    assert_int_equal(balancing_exact(&b), SLM_OK);
}

/* Columns (-a, 0) and (0, -1/2): the gap is a, allowed is 1e-8. a = s_00 - s_01 is
 * finer than either: the two cases are 1e-14 of a apart. */
static void the_note_s_absolute_tolerance_is_met_from_both_sides(void **state)
{
    const float above = nextafterf(1e-8f, 1);
    const float rest = (float)((double)above - 1e-8);
    balancing b = two_by_two(0, above, nextafterf(rest, 1), 0.25f, 0.75f);

    (void)state;
    assert_true((double)1e-8f < 1e-8 && rest > 0);
    balancing_refuses(&b, SLM_ERR_TIE, "new_bias", 0);
    b.score[1] = nextafterf(rest, 0);
    assert_int_equal(balancing_exact(&b), SLM_OK);
}

/* Columns (1/2, 1/2 - a) and (-1/4, 0): allowed is 1e-8 + 1e-5 / 2 = 168.1 2^-25. */
static void the_note_s_relative_tolerance_is_met_from_both_sides(void **state)
{
    balancing b = two_by_two(0.5f, 0, 0.75f, 0, 0.5f - 168 * 0x1p-25f);

    (void)state;
    balancing_refuses(&b, SLM_ERR_TIE, "new_bias", 0);
    b.score[3] = 0.5f - 169 * 0x1p-25f;
    assert_int_equal(balancing_exact(&b), SLM_OK);
    balancing_gives(&b, (float[]){0.25f, -0.25f}, (double[]){0.5, 0});
}

/* Columns (1/2 - 2^-100, 1/2) and (-1/4, 0). */
static void differences_too_fine_for_binary64_are_seen(void **state)
{
    balancing b = two_by_two(0.5f, 0x1p-100f, 0.75f, 0, 0.5f);

    (void)state;
    balancing_refuses(&b, SLM_ERR_TIE, "new_bias", 0);
    b.config.tie_test = SLM_TIE_EQUAL;
    assert_int_equal(balancing_exact(&b), SLM_OK);
    b.score[0] = 0;
    balancing_refuses(&b, SLM_ERR_TIE, "new_bias", 0);
}

/* One token, two experts: candidates (s1 - s0, 0), so half an odd 25-bit integer. */
static void the_centred_bias_is_rounded_once_and_ties_go_to_even(void **state)
{
    balancing b = balancing_open(1, 2, 1);

    (void)state;
    b.config.balance = SLM_BALANCE_RELAXED;
    b.score[0] = 1;
    b.score[1] = 0x1p-25f;
    assert_int_equal(balancing_exact(&b), SLM_OK);
    balancing_gives(&b, (float[]){-0.5f, 0.5f}, (double[]){-1 + 0x1p-25, 0});
    b.score[1] = 3 * 0x1p-25f;
    assert_int_equal(balancing_exact(&b), SLM_OK);
    balancing_gives(&b, (float[]){-0.5f + 0x1p-24f, 0.5f - 0x1p-24f},
                    (double[]){-1 + 3 * 0x1p-25, 0});
    b.score[1] = 0x1p-149f; /* seen beyond binary64, and rounded away */
    assert_int_equal(balancing_exact(&b), SLM_OK);
    balancing_gives(&b, (float[]){-0.5f, 0.5f}, (double[]){-1, 0});
}

/* Candidates 0, 1 - 2^-24, 1 - 2^-149, 0: the first result is 2^-151 past a midpoint of
 * binary32, which a binary64 on the way would hide. */
static void the_centred_bias_is_not_rounded_twice(void **state)
{
    balancing b = balancing_open(1, 4, 1);

    (void)state;
    b.config.balance = SLM_BALANCE_RELAXED;
    memcpy(b.score, ((float[]){1, 0x1p-24f, 0x1p-149f, 1}), 4 * sizeof(float));
    assert_int_equal(balancing_exact(&b), SLM_OK);
    balancing_gives(
        &b, (float[]){-0.5f + 0x1p-25f, 0.5f - 0x1p-25f, 0.5f, -0.5f + 0x1p-25f},
        (double[]){0, 1 - 0x1p-24, 1, 0});
}

/* alpha comes from the rounded key: RN32(2^-24 + 1) = 1, so r = 1 - 2^-24. */
static void the_cutoff_is_the_rounded_key(void **state)
{
    balancing b = balancing_open(1, 2, 1);

    (void)state;
    b.config.balance = SLM_BALANCE_RELAXED;
    b.bias[0] = b.bias[1] = 1;
    b.score[0] = 0x1p-24f;
    b.score[1] = 0.5f;
    assert_int_equal(balancing_exact(&b), SLM_OK);
    assert_true(b.cutoff[0] == 1.0f);
    balancing_gives(&b, (float[]){0.25f - 0x1p-25f, -0.25f + 0x1p-25f},
                    (double[]){1 - 0x1p-24, 0.5});
}

static void no_tokens_keep_every_bit_of_the_bias(void **state)
{
    static const float kept[] = {-0.0f, 0x1p-149f, -0x1.fffffep127f, 0.0f};

    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        balancing b = balancing_open(0, 4, 1);

        b.config.balance = (slm_balance)mode;
        memcpy(b.bias, kept, sizeof kept);
        assert_int_equal(balancing_exact(&b), SLM_OK);
        balancing_gives(&b, kept, (double[]){-0.0, 0x1p-149, -0x1.fffffep127, 0.0});
        b.bias[2] = NAN;
        balancing_refuses(&b, SLM_ERR_NONFINITE, "bias", 2);
    }
}

static void the_order_of_the_tokens_does_not_matter(void **state)
{
    balancing b = balancing_seed_21();
    const balancing forward = b;
    float want[4];

    (void)state;
    assert_int_equal(balancing_exact(&b), SLM_OK);
    memcpy(want, b.new_bias, sizeof want);
    for (size_t i = 0; i < 8; i++)
        memcpy(b.score + 4 * i, forward.score + 4 * (7 - i), 4 * sizeof(float));
    memset(b.new_bias, 0, sizeof b.new_bias);
    assert_int_equal(balancing_exact(&b), SLM_OK);
    assert_memory_equal(b.new_bias, want, sizeof want);
}

/* Taps absent, scores by column, outputs backwards. */
static void views_and_absent_taps_are_honoured(void **state)
{
    balancing b = balancing_4310();
    struct slm_handle handle = {.config = b.config};
    float by_column[4][8];
    float backwards[4];
    slm_qb_exact_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = 8},
        .score = {by_column, SLM_F32, SLM_HOST, 2, {8, 4}, {1, 8}},
        .bias = {b.bias, SLM_F32, SLM_HOST, 1, {4}, {1}},
        .new_bias = {backwards + 3, SLM_F32, SLM_HOST, 1, {4}, {-1}}};

    (void)state;
    for (size_t i = 0; i < 32; i++) by_column[i % 4][i / 4] = b.score[i];
    assert_int_equal(slm_check(SLM_OP_qb_exact, &b.config, &args, NULL), SLM_OK);
    assert_int_equal(slm_ref_op_qb_exact(&handle, &args, NULL), SLM_OK);
    for (size_t j = 0; j < 4; j++)
        assert_true(backwards[3 - j] == ((float[]){-6, -4, 5, 5})[j] / 64);
}

static void step(double rate, float *bias, int64_t *load, const float *want)
{
    slm_config config;
    struct slm_handle handle;
    float got[4];
    slm_sign_step_args args = {.call = {.struct_size = sizeof args},
                               .bias = {bias, SLM_F32, SLM_HOST, 1, {4}, {1}},
                               .load = {load, SLM_I64, SLM_HOST, 1, {4}, {1}},
                               .new_bias = {got, SLM_F32, SLM_HOST, 1, {4}, {1}}};

    slm_config_profile("paper", &config);
    config.n_experts = 4;
    config.rate = rate;
    handle = (struct slm_handle){.config = config};
    assert_int_equal(slm_check(SLM_OP_sign_step, &config, &args, NULL), SLM_OK);
    assert_int_equal(slm_ref_op_sign_step(&handle, &args, NULL), SLM_OK);
    assert_memory_equal(got, want, sizeof got);
}

static void the_sign_step_moves_towards_the_mean_load(void **state)
{
    (void)state;
    step(0x1p-10, (float[]){0, 0, 0, 0}, (int64_t[]){4, 3, 1, 0},
         (float[]){-0x1p-10f, -0x1p-10f, 0x1p-10f, 0x1p-10f});
    step(0x1p-10, (float[]){-0.0f, 1, 0x1p-149f, 1}, (int64_t[]){2, 2, 2, 2},
         (float[]){-0.0f, 1, 0x1p-149f, 1}); /* at the mean: the same bits */
    step(0x1p-10, (float[]){0, 0, 0, 0}, (int64_t[]){1, 1, 1, 2},
         (float[]){0x1p-10f, 0x1p-10f, 0x1p-10f, -0x1p-10f}); /* mean 5/4 */
    step(0x1p-24, (float[]){1, 0x1.000002p0f, 1, -0x1p-24f}, (int64_t[]){0, 0, 9, 0},
         (float[]){1, 0x1.000004p0f, 1 - 0x1p-24f, 0.0f}); /* ties to even */
}

static void loads_of_the_sign_step_do_not_overflow_or_round(void **state)
{
    const int64_t most = INT64_MAX;

    (void)state;
    step(0x1p-10, (float[]){0, 0, 0, 0}, (int64_t[]){most, most, most, most},
         (float[]){0, 0, 0, 0});
    step(0x1p-10, (float[]){0, 0, 0, 0}, (int64_t[]){most, most, most, most - 1},
         (float[]){-0x1p-10f, -0x1p-10f, -0x1p-10f, 0x1p-10f});
}

static void the_sign_step_refuses_a_bias_that_is_not_finite(void **state)
{
    float bias[4] = {0, 0, 0, -INFINITY};
    int64_t load[4] = {0};
    float got[4] = {7, 7, 7, 7};
    slm_error error;
    struct slm_handle handle = {.config = {.n_experts = 4, .rate = 1}};
    slm_sign_step_args args = {.bias = {bias, SLM_F32, SLM_HOST, 1, {4}, {1}},
                               .load = {load, SLM_I64, SLM_HOST, 1, {4}, {1}},
                               .new_bias = {got, SLM_F32, SLM_HOST, 1, {4}, {1}}};

    (void)state;
    assert_int_equal(slm_ref_op_sign_step(&handle, &args, &error), SLM_ERR_NONFINITE);
    assert_string_equal(error.field, "bias");
    assert_int_equal(error.index, 3);
    for (size_t j = 0; j < 4; j++) assert_true(got[j] == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_quantile_index_is_the_integer_formula),
        cmocka_unit_test(the_quantile_index_is_right_where_floating_point_is_not),
        cmocka_unit_test(loads_4310_become_2222),
        cmocka_unit_test(seed_21_gives_the_note_s_bits),
        cmocka_unit_test(equal_scores_tie_in_strict_mode_and_do_not_matter_in_relaxed),
        cmocka_unit_test(a_tie_names_the_lowest_expert_that_has_one),
        cmocka_unit_test(a_load_that_is_no_integer_is_refused_in_strict_mode_alone),
        cmocka_unit_test(a_value_that_is_not_finite_comes_before_target_and_tie),
        cmocka_unit_test(the_note_s_tie_test_refuses_what_equality_lets_through),
        cmocka_unit_test(the_note_s_absolute_tolerance_is_met_from_both_sides),
        cmocka_unit_test(the_note_s_relative_tolerance_is_met_from_both_sides),
        cmocka_unit_test(differences_too_fine_for_binary64_are_seen),
        cmocka_unit_test(the_centred_bias_is_rounded_once_and_ties_go_to_even),
        cmocka_unit_test(the_centred_bias_is_not_rounded_twice),
        cmocka_unit_test(the_cutoff_is_the_rounded_key),
        cmocka_unit_test(no_tokens_keep_every_bit_of_the_bias),
        cmocka_unit_test(the_order_of_the_tokens_does_not_matter),
        cmocka_unit_test(views_and_absent_taps_are_honoured),
        cmocka_unit_test(the_sign_step_moves_towards_the_mean_load),
        cmocka_unit_test(loads_of_the_sign_step_do_not_overflow_or_round),
        cmocka_unit_test(the_sign_step_refuses_a_bias_that_is_not_finite),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
