/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref_select.c - the reference's choice of experts and its weights, on numbers that
 * people worked out. */
#include "ref_call.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST = 8 };

/* One token: ids, golden weights and the cutoff, which is 77 when untouched. */
typedef struct choice {
    int32_t ids[MOST];
    double weight[MOST];
    float cutoff;
} choice;

static choice choose(const char *profile, size_t n, size_t k, const float *score,
                     const float *logit, const float *bias)
{
    slm_handle *handle = open_profile(profile, n, k, 0, 0, 0);
    slm_select_args args = {.call = {.struct_size = sizeof args, .n_tokens = 1}};
    choice out = {.cutoff = 77};

    if (score) args.score = view(score, SLM_F32, 2, 1, n, 0);
    if (logit) args.logit = view(logit, SLM_F32, 2, 1, n, 0);
    args.bias = view(bias, SLM_F32, 1, n, 0, 0);
    args.ids = view(out.ids, SLM_I32, 2, 1, k, 0);
    args.weight = view(out.weight, SLM_F64, 2, 1, k, 0);
    args.cutoff = view(&out.cutoff, SLM_F32, 1, 1, 0, 0);
    assert_int_equal(slm_ref_backend()->ops->select(handle, &args, NULL), SLM_OK);
    close_handle(handle);
    return out;
}

/* a / (a + b), rounded once. */
static double share(float a, float b)
{
    double out;
    arb_t ball, sum;
    fmpq_t ratio, term;

    arb_init(ball);
    arb_init(sum);
    fmpq_init(ratio);
    fmpq_init(term);
    arb_set_d(ball, (double)a);
    arf_get_fmpq(ratio, arb_midref(ball));
    arb_set_d(sum, (double)b);
    arf_get_fmpq(term, arb_midref(sum));
    fmpq_add(term, term, ratio);
    fmpq_div(ratio, ratio, term);
    out = slm_ref_f64_q(ratio);
    fmpq_clear(term);
    fmpq_clear(ratio);
    arb_clear(sum);
    arb_clear(ball);
    return out;
}

static void the_chapter_mixes_45_and_55_percent(void **state)
{
    (void)state;
    const float raw[] = {.90f, .80f, .65f, .20f}, bias[] = {-.40f, 0, .25f, 0};
    const choice got = choose("paper", 4, 2, raw, NULL, bias);

    assert_int_equal(got.ids[0], 2);
    assert_int_equal(got.ids[1], 1);
    assert_int_equal(bits_f64(got.weight[0]), bits_f64(share(.65f, .80f)));
    assert_int_equal(bits_f64(got.weight[1]), bits_f64(share(.80f, .65f)));
    assert_true(fabs(got.weight[0] - 65.0 / 145) < 1e-7);
    assert_true(fabs(got.weight[1] - 80.0 / 145) < 1e-7);
    assert_int_equal(bits_f32(got.cutoff), bits_f32(.90f - .40f));
}

static void the_note_mixes_ninths(void **state)
{
    (void)state;
    const float raw[] = {.9f, .8f, .1f}, bias[] = {-1, 0, 2};
    const choice got = choose("paper", 3, 2, raw, NULL, bias);

    assert_int_equal(got.ids[0], 2);
    assert_int_equal(got.ids[1], 1);
    assert_true(fabs(got.weight[0] - 1.0 / 9) < 1e-7);
    assert_true(fabs(got.weight[1] - 8.0 / 9) < 1e-7);
}

static void equal_keys_go_to_the_lower_id_and_minus_zero_is_zero(void **state)
{
    (void)state;
    const float raw[] = {0, .5f, 0, .5f}, bias[] = {-0.0f, 0, 0, 0};
    const choice got = choose("paper", 4, 3, raw, NULL, bias);

    assert_int_equal(got.ids[0], 1);
    assert_int_equal(got.ids[1], 3);
    assert_int_equal(got.ids[2], 0);
    assert_int_equal(bits_f32(got.cutoff), 0);
    assert_int_equal(bits_f64(got.weight[2]), 0);
}

static void zero_scores_share_equally_in_the_paper_and_vanish_in_the_release(void **s)
{
    (void)s;
    const float raw[] = {0, 0, 0}, bias[] = {0, 0, 0};
    choice got = choose("paper", 3, 3, raw, NULL, bias);

    for (int q = 0; q < 3; q++)
        assert_int_equal(bits_f64(got.weight[q]), bits_f64(1.0 / 3));
    got = choose("release", 3, 3, raw, NULL, bias);
    for (int q = 0; q < 3; q++) assert_int_equal(bits_f64(got.weight[q]), 0);
}

static void one_expert_weighs_one_in_the_paper_and_its_score_in_the_release(void **s)
{
    (void)s;
    const float raw[] = {.25f, .5f}, bias[] = {0, 0};

    assert_int_equal(bits_f64(choose("paper", 2, 1, raw, NULL, bias).weight[0]),
                     bits_f64(1));
    assert_int_equal(bits_f64(choose("release", 2, 1, raw, NULL, bias).weight[0]),
                     bits_f64(.5));
}

/* .25 / (.75 + 1e-20) is 1/3 within binary64, but 1e-20 beside scores of 2^-66 is not
 * small: 2^-66 = 1.355e-20. */
static void the_release_adds_a_decimal_1e20th(void **state)
{
    (void)state;
    const float raw[] = {0x1p-66f, 0x1p-66f}, bias[] = {0, 0};
    const choice got = choose("release", 2, 2, raw, NULL, bias);

    assert_true(fabs(got.weight[0] - 0x1p-66 / (0x1p-65 + 1e-20)) < 1e-15);
    assert_true(got.weight[0] < .37);
}

static void logits_weigh_by_real_sigmoids_far_below_binary32(void **state)
{
    (void)state;
    const float deep[] = {-200, -201, -300}, bias[] = {0, 0, 0};
    const choice got = choose("paper", 3, 2, NULL, deep, bias);

    assert_true(fabs(got.weight[0] - 1 / (1 + exp(-1.0))) < 1e-15);
    assert_true(fabs(got.weight[1] - 1 / (1 + exp(1.0))) < 1e-15);
    assert_int_equal(bits_f32(got.cutoff), 0);
}

static void infinite_and_huge_logits_have_limits(void **state)
{
    (void)state;
    const float one[] = {INFINITY, -INFINITY, 0}, bias[] = {0, 0, 0};
    choice got = choose("paper", 3, 2, NULL, one, bias);

    assert_int_equal(got.ids[0], 0);
    assert_int_equal(got.ids[1], 2);
    assert_int_equal(bits_f64(got.weight[0]), bits_f64(2.0 / 3));
    assert_int_equal(bits_f32(got.cutoff), 0);

    const float none[] = {-INFINITY, -INFINITY, -INFINITY};
    got = choose("paper", 3, 2, NULL, none, bias);
    assert_int_equal(bits_f64(got.weight[1]), bits_f64(.5));

    const float huge[] = {-1e38f, -2e38f, 3e38f};
    got = choose("paper", 3, 3, NULL, huge, bias);
    assert_int_equal(got.ids[0], 2);
    assert_int_equal(bits_f64(got.weight[0]), bits_f64(1));
    assert_int_equal(bits_f64(got.weight[1]), 0);
}

static void softmax_gives_minus_infinity_nothing(void **state)
{
    (void)state;
    const slm_config config = {.score = SLM_SCORE_SOFTMAX, .n_experts = 3};
    arb_ptr logit = _arb_vec_init(3), score = _arb_vec_init(3);

    arb_set_si(logit, 2);
    arb_neg_inf(logit + 1);
    arb_set_si(logit + 2, 2);
    slm_ref_scores(score, logit, &config, SLM_REF_JUDGE);
    assert_true(arb_is_zero(score + 1));
    for (int i = 0; i < 3; i += 2) {
        assert_true(arb_is_exact(score + i));
        assert_true(arf_cmp_d(arb_midref(score + i), 0.5) == 0);
    }
    _arb_vec_clear(score, 3);
    _arb_vec_clear(logit, 3);
}

static void all_experts_chosen_leave_the_cutoff_untouched(void **state)
{
    (void)state;
    const float raw[] = {.5f, .25f}, bias[] = {0, 0};

    assert_int_equal(bits_f32(choose("paper", 2, 2, raw, NULL, bias).cutoff),
                     bits_f32(77));
    assert_int_equal(bits_f32(choose("paper", 2, 1, raw, NULL, bias).cutoff),
                     bits_f32(.25f));
}

static void a_nan_logit_is_refused_with_its_index_and_nothing_is_written(void **state)
{
    (void)state;
    const float logit[] = {1, 2, 3, 4, NAN, NAN}, bias[] = {0, 0, 0};
    slm_handle *handle = open_profile("paper", 3, 1, 0, 0, 0);
    int32_t ids[] = {-7, -7};
    float weight[] = {77, 77};
    slm_select_args args = {.call = {.struct_size = sizeof args, .n_tokens = 2},
                            .logit = view(logit, SLM_F32, 2, 2, 3, 0),
                            .bias = view(bias, SLM_F32, 1, 3, 0, 0),
                            .ids = view(ids, SLM_I32, 2, 2, 1, 0),
                            .weight = view(weight, SLM_F32, 2, 2, 1, 0)};
    slm_error error;

    assert_int_equal(slm_ref_backend()->ops->select(handle, &args, &error),
                     SLM_ERR_NONFINITE);
    assert_string_equal(error.field, "logit");
    assert_int_equal(error.index, 4);
    assert_int_equal(ids[0], -7);
    assert_int_equal(bits_f32(weight[0]), bits_f32(77));
    close_handle(handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chapter_mixes_45_and_55_percent),
        cmocka_unit_test(the_note_mixes_ninths),
        cmocka_unit_test(equal_keys_go_to_the_lower_id_and_minus_zero_is_zero),
        cmocka_unit_test(
            zero_scores_share_equally_in_the_paper_and_vanish_in_the_release),
        cmocka_unit_test(
            one_expert_weighs_one_in_the_paper_and_its_score_in_the_release),
        cmocka_unit_test(the_release_adds_a_decimal_1e20th),
        cmocka_unit_test(logits_weigh_by_real_sigmoids_far_below_binary32),
        cmocka_unit_test(infinite_and_huge_logits_have_limits),
        cmocka_unit_test(softmax_gives_minus_infinity_nothing),
        cmocka_unit_test(all_experts_chosen_leave_the_cutoff_untouched),
        cmocka_unit_test(a_nan_logit_is_refused_with_its_index_and_nothing_is_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
