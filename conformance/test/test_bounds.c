/* SPDX-License-Identifier: Apache-2.0 */
/* test_bounds.c - the bounds hold for right arithmetic and are not slack. */
#include "../bounds.h"
#include "../seeded.h"
#include "plain.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static bound_rules binary32(void)
{
    return bound_declared(NULL);
}

static bound_dot dot_of(const bound_rules *rules, const double *w, const double *x,
                        size_t n)
{
    bound_dot dot = bound_dot_none();

    bound_dot_add(&dot, rules, w, x, NULL, n);
    return dot;
}

static void a_table_of_an_older_host_leaves_the_rest_at_zero(void **state)
{
    slm_arithmetic given;
    bound_rules rules;

    (void)state;
    memset(&given, 0xff, sizeof given);
    given.struct_size = offsetof(slm_arithmetic, input);
    given.accumulator = 0x1p-23;
    rules = bound_declared(&given);
    assert_true(rules.u == 0x1p-23);
    assert_true(rules.input == 0 && rules.phi == 0 && rules.tanh_rel == 0);
    assert_true(rules.sigmoid == 0x1p-24);
    assert_true(rules.balance == 0x1p-53);
}

static void router_values_may_not_be_declared_coarse(void **state)
{
    slm_arithmetic given = {.struct_size = sizeof given};
    bound_rules rules;

    (void)state;
    for (int i = 0; i < SLM_STAGE_COUNT; i++) given.store[i] = 0x1p-8;
    rules = bound_declared(&given);
    assert_true(bound_stored(&rules, SLM_STAGE_LOGIT, SLM_F32) == 0x1p-24);
    assert_true(bound_stored(&rules, SLM_STAGE_SCORE, SLM_F32) == 0x1p-24);
    assert_true(bound_stored(&rules, SLM_STAGE_WEIGHT, SLM_F32) == 0x1p-24);
    assert_true(bound_stored(&rules, SLM_STAGE_Z, SLM_F32) == 0x1p-8);
}

static void dot_bound_is_k_u_gauge(void **state)
{
    const bound_rules rules = binary32();
    const double third = (double)(1.0f / 3);
    const double w[] = {third, -third, 0, third}, x[] = {1, 1, 5, 1};
    const bound_dot dot = dot_of(&rules, w, x, 4);
    const double want = 4 * 0x1p-24 * 3 * third;

    (void)state;
    assert_int_equal(dot.terms, 3);
    /* all three are multiples of one ulp of a third and their sum needs two bits
     * more */
    assert_true(bound_dot_error(&dot, &rules) >= want);
    assert_true(bound_dot_error(&dot, &rules) < want * (1 + 0x1p-30));
}

static void sums_of_small_integers_have_no_error(void **state)
{
    const bound_rules rules = binary32();
    const double w[] = {3, -5, 7}, x[] = {0.5, 0.25, 2};
    const double large[] = {0x1p23, 0x1p23, 1}, ones[] = {1, 1, 1};
    bound_dot dot = dot_of(&rules, w, x, 3);

    (void)state;
    assert_true(bound_dot_error(&dot, &rules) == 0);
    assert_true(bound_store(&rules, 14.25, 0, 0x1p-24) == 0);
    assert_true(bound_store(&rules, 14.25, 0, 0x1p-8) == 0);
    assert_true(bound_store(&rules, 1 + 0x1p-9, 0, 0x1p-8) > 0x1p-8);
    dot = dot_of(&rules, large, ones, 3); /* 2^24 + 1 does not fit */
    assert_true(bound_dot_error(&dot, &rules) > 0);
}

static void shortened_factors_are_exact_only_when_short(void **state)
{
    slm_arithmetic tf32 = {
        .struct_size = sizeof tf32, .accumulator = 0x1p-23, .input = 0x1p-11};
    const bound_rules rules = bound_declared(&tf32);
    const double w[] = {1 + 0x1p-10}, longer[] = {1 + 0x1p-11}, x[] = {1};
    bound_dot dot = dot_of(&rules, w, x, 1);

    (void)state;
    assert_true(bound_dot_error(&dot, &rules) == 0);
    dot = dot_of(&rules, longer, x, 1);
    assert_true(bound_dot_error(&dot, &rules) > 0x1p-10);
    assert_true(bound_dot_error(&dot, &rules) < 0x1.01p-10);
}

static void flushed_factors_count(void **state)
{
    slm_arithmetic ftz = {
        .struct_size = sizeof ftz, .accumulator = 0x1p-24, .flushes_subnormals = 1};
    const bound_rules keeps = binary32(), flushes = bound_declared(&ftz);
    const double w[] = {0x1p-130}, x[] = {0x1p100};
    const bound_dot kept = dot_of(&keeps, w, x, 1), flushed = dot_of(&flushes, w, x, 1);

    (void)state;
    assert_true(bound_dot_error(&kept, &keeps) == 0);
    assert_true(bound_dot_error(&flushed, &flushes) >= 0x1p-26);
}

/* Below 2^-126 an accumulator that truncates loses a whole step where one that rounds to
 * nearest loses half of it. */
static void a_truncating_accumulator_loses_whole_subnormal_steps(void **state)
{
    slm_arithmetic truncates = {.struct_size = sizeof truncates,
                                .accumulator = 0x1p-23};
    const bound_rules nearest = binary32(), coarse = bound_declared(&truncates);
    const double w[] = {0x1.000002p-70, 0x1.000006p-70, 0x1.00000ap-70};
    const double x[] = {0x1.000002p-70, 0x1.000006p-70, 0x1.00000ap-70};
    const bound_dot a = dot_of(&nearest, w, x, 3), b = dot_of(&coarse, w, x, 3);
    const double near = bound_dot_error(&a, &nearest);
    const double far = bound_dot_error(&b, &coarse);

    (void)state;
    assert_true(near >= 4 * 0x1p-150 && near < 4.1 * 0x1p-150);
    assert_true(far >= 4 * 0x1p-149 && far < 4.1 * 0x1p-149);
    assert_true(bound_combine(&coarse, 0x1p-140, 0x1p-140, 0, 3, 0x1p-24) >
                bound_combine(&nearest, 0x1p-140, 0x1p-140, 0, 3, 0x1p-24) +
                    3.9 * 0x1p-150);
}

/* Binary32 dot products of seeded values in four orders, against exact binary64
 * sums. */
static void right_sums_stay_within_the_bound(void **state)
{
    enum { N = 96, ROWS = 200 };
    const bound_rules rules = binary32();
    double worst = 0;

    (void)state;
    for (int row = 0; row < ROWS; row++) {
        float w[N], x[N];
        double dw[N], dx[N], exact = 0;
        bound_dot dot;

        for (int i = 0; i < N; i++) {
            w[i] = seeded_value(1, "w", (uint64_t)(row * N + i), 23, 0x1p-23, 0);
            x[i] = seeded_value(1, "x", (uint64_t)(row * N + i), 23, 0x1p-23, 0);
            dw[i] = (double)w[i];
            dx[i] = (double)x[i];
            exact += dw[i] * dx[i];
        }
        dot = dot_of(&rules, dw, dx, N);
        for (int order = 0; order < PLAIN_ORDERS; order++) {
            const double got = (double)plain_dot((plain_order)order, w, x, N);
            const double used = fabs(got - exact) / bound_dot_error(&dot, &rules);

            if (!(used <= worst)) worst = used;
        }
    }
    assert_true(worst <= 1);
    assert_true(worst > 0.005); /* a bound 200 times smaller would not hold */
}

static void score_intervals_hold_a_naive_sigmoid(void **state)
{
    const bound_rules rules = binary32();

    (void)state;
    for (int i = -120 * 8; i <= 120 * 8; i++) {
        const float logit = (float)i / 8;
        const double s = (double)plain_sigmoid(logit);
        const bound_interval range =
            bound_score(&rules, bound_around((double)logit, 0), 0);

        assert_true(range.lo <= s && s <= range.hi);
        assert_true(range.lo >= 0 && range.hi <= 1);
        /* four units wide on either side, no more */
        if (logit > -80) assert_true(range.hi - range.lo < 8.1 * 0x1p-24 * range.hi);
    }
}

static void a_sigmoid_by_way_of_tanh_is_outside(void **state)
{
    const bound_rules rules = binary32();
    const float logit = -12;
    const double s = (double)(0.5f + 0.5f * tanhf(logit / 2));
    const bound_interval range = bound_score(&rules, bound_around(-12, 0), 0);

    (void)state;
    assert_false(range.lo <= s && s <= range.hi);
}

static void activations_hold_in_binary32(void **state)
{
    const bound_rules rules = binary32();
    slm_config config;

    (void)state;
    slm_config_profile("paper", &config);
    for (int i = -200; i <= 200; i++) {
        for (int j = -7; j <= 7; j++) {
            const float a = (float)i * 0.37f, b = (float)(j * j * j) * 0.41f;
            const double h = (double)plain_situ(a, b, PLAIN_RIGHT);
            const bound_interval range =
                bound_activation(&rules, &config, bound_around((double)a, 0),
                                 bound_around((double)b, 0));

            assert_true(range.lo <= h && h <= range.hi);
            assert_true(fabs(h) <= bound_activation_limit(&config, 0x1p-24));
        }
    }
}

static void the_error_of_a_small_gate_stays_relative(void **state)
{
    const bound_rules rules = binary32();
    slm_arithmetic coarse = {.struct_size = sizeof coarse,
                             .accumulator = 0x1p-24,
                             .sigmoid_ulp = 4,
                             .tanh_ulp = 4,
                             .tanh_abs = 4};
    const bound_rules absolute = bound_declared(&coarse);
    const float a = 1e-4f;
    const float tanh_by_exp = 1 - 2 / (1 + expf(2 * (a / 4)));
    const double h =
        (double)(4 * tanh_by_exp * plain_sigmoid(a) * (25 * tanhf(1.0f / 25)));
    const bound_interval at = bound_around((double)a, 0), one = bound_around(1, 0);
    slm_config config;
    bound_interval range;

    (void)state;
    slm_config_profile("paper", &config);
    range = bound_activation(&rules, &config, at, one);
    assert_false(range.lo <= h && h <= range.hi);
    range = bound_activation(&absolute, &config, at, one);
    assert_true(range.lo <= h && h <= range.hi);
}

static void weights_in_an_interval_contain_the_ratio(void **state)
{
    const bound_rules rules = binary32();
    const bound_interval scores[] = {{0.5, 0.5}, {0.25, 0.25}};
    const bound_interval p = bound_weight_interval(&rules, scores, 2, 0, 0);
    const bound_interval nothing[] = {{0, 0}, {0, 0}};

    (void)state;
    assert_true(p.lo <= 2.0 / 3 && 2.0 / 3 <= p.hi);
    assert_true(p.hi - p.lo < 9 * 0x1p-24);
    assert_true(bound_weight_interval(&rules, nothing, 2, 0, 0).hi >= 1);
    assert_true(bound_weight_sum(2) >= 5 * 0x1p-24);
    assert_true(bound_weight_sum(2) < 5.01 * 0x1p-24);
}

/* o = (1 + 2^-9, -1), p = 1/2 each, o stored in bfloat16: u becomes 0, really 2^-10. */
static void rounding_before_a_cancelling_sum_is_allowed_for(void **state)
{
    const bound_rules rules = binary32();
    const double v = 0x1p-8;
    const double error = 0.5 * bound_store(&rules, 1 + 0x1p-9, 0, v);
    const double gauge = 0.5 * (1 + 0x1p-9) + 0.5 + error;

    (void)state;
    assert_true(bound_combine(&rules, 0x1p-10, gauge, error, 2, v) >= 0x1p-10);
    assert_true(bound_combine(&rules, 0x1p-10, gauge, 0, 2, v) < 0x1p-10);
}

static void rmsnorm_bound_is_relative_and_grows_with_width(void **state)
{
    const bound_rules rules = binary32();
    const double narrow = bound_rmsnorm(&rules, 1e-6, 4);
    const double wide = bound_rmsnorm(&rules, 1e-6, 4000);

    (void)state;
    assert_true(narrow > 9 * 0x1p-24 && narrow < 11 * 0x1p-24);
    assert_true(wide > 2000 * 0x1p-24 && wide < 2020 * 0x1p-24);
    assert_true(isinf(bound_rmsnorm(&rules, 1e-6, (size_t)1 << 25)));
}

static void half_an_ulp_bounds_a_new_bias(void **state)
{
    const bound_rules rules = binary32();

    (void)state;
    assert_true(bound_new_bias(&rules, 0.75, 4, 2) >= 0x1p-25);
    assert_true(bound_new_bias(&rules, 0.75, 4, 2) < 0x1.0001p-25);
    assert_true(bound_new_bias(&rules, 1.5, 4, 2) >= 0x1p-24);
    assert_true(bound_new_bias(&rules, 0, 4, 2) >= 0x1p-150);
}

static void histogram_edges_move_with_the_balance_roundoff(void **state)
{
    slm_arithmetic single = {.struct_size = sizeof single, .balance = 0x1p-24};
    const bound_rules wide = binary32(), narrow = bound_declared(&single);

    (void)state;
    assert_true(bound_hist_edge(&wide, -1, 1) >= 14 * 0x1p-53);
    assert_true(bound_hist_edge(&wide, -1, 1) < 14.01 * 0x1p-53);
    assert_true(bound_hist_edge(&narrow, -1, 1) >= 14 * 0x1p-24);
}

/* 4 x 25.1: bf16 holds 100 and 100.5 and nothing between. */
static void a_coarse_store_may_lift_the_cap_of_an_activation(void **state)
{
    slm_config config;

    (void)state;
    slm_config_profile("paper", &config);
    assert_true(bound_activation_limit(&config, 0x1p-8) == 100);
    config.beta_up = 25.1;
    assert_true(bound_activation_limit(&config, 0x1p-24) < 100.5);
    assert_true(bound_activation_limit(&config, 0x1p-8) >= 100.5);
    assert_true(bound_activation_limit(&config, 0x1p-8) < 101);
}

/* The least positive bf16 is 2^-133: 0x1.8p-135 becomes 0, 0x1.8p-134 becomes 2^-133. */
static void subnormals_of_a_coarse_store_have_coarse_steps(void **state)
{
    const bound_rules rules = binary32();

    (void)state;
    assert_true(bound_store(&rules, 0x1.8p-135, 0, 0x1p-8) >= 0x1.8p-135);
    assert_true(bound_store(&rules, 0x1.8p-134, 0, 0x1p-8) >= 0x1p-135);
    assert_true(bound_store(&rules, 0x1.8p-134, 0, 0x1p-8) < 0x1.1p-134);
    assert_true(bound_store(&rules, 0x1.8p-133, 0, 0x1p-8) > 0);
    assert_true(bound_store(&rules, 0x1p-133, 0, 0x1p-8) == 0);
    assert_true(bound_store(&rules, 0x1p-140, 0, 0x1p-24) == 0);
    assert_true(bound_store(&rules, 0x1.8p-149, 0, 0x1p-24) < 0x1.1p-150);
}

static void a_roundoff_is_that_of_the_element_type(void **state)
{
    (void)state;
    assert_true(bound_roundoff(SLM_F64) == DBL_EPSILON / 2);
    assert_true(bound_roundoff(SLM_F32) == (double)FLT_EPSILON / 2);
    assert_true(bound_roundoff(SLM_BF16) == 0x1p-8);
    assert_true(bound_roundoff(SLM_I32) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_of_an_older_host_leaves_the_rest_at_zero),
        cmocka_unit_test(router_values_may_not_be_declared_coarse),
        cmocka_unit_test(dot_bound_is_k_u_gauge),
        cmocka_unit_test(sums_of_small_integers_have_no_error),
        cmocka_unit_test(shortened_factors_are_exact_only_when_short),
        cmocka_unit_test(flushed_factors_count),
        cmocka_unit_test(a_truncating_accumulator_loses_whole_subnormal_steps),
        cmocka_unit_test(right_sums_stay_within_the_bound),
        cmocka_unit_test(score_intervals_hold_a_naive_sigmoid),
        cmocka_unit_test(a_sigmoid_by_way_of_tanh_is_outside),
        cmocka_unit_test(activations_hold_in_binary32),
        cmocka_unit_test(the_error_of_a_small_gate_stays_relative),
        cmocka_unit_test(weights_in_an_interval_contain_the_ratio),
        cmocka_unit_test(rounding_before_a_cancelling_sum_is_allowed_for),
        cmocka_unit_test(rmsnorm_bound_is_relative_and_grows_with_width),
        cmocka_unit_test(half_an_ulp_bounds_a_new_bias),
        cmocka_unit_test(histogram_edges_move_with_the_balance_roundoff),
        cmocka_unit_test(a_coarse_store_may_lift_the_cap_of_an_activation),
        cmocka_unit_test(subnormals_of_a_coarse_store_have_coarse_steps),
        cmocka_unit_test(a_roundoff_is_that_of_the_element_type),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
