/* SPDX-License-Identifier: Apache-2.0 */
/* test_judge.c - the verdict: what conforms passes, what does not is refused. */
#include "plain.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* select, T = 1, n = 3, k = 2: scores 7/8, 3/4, 1/4, biases -1, 0, 1. */
static float thirds_score[] = {0.875f, 0.75f, 0.25f};
static float thirds_bias[] = {-1, 0, 1};
static int32_t thirds_ids[] = {2, 1};
static double thirds_weight[] = {0.25, 0.75};

static void open_thirds(made_case *made)
{
    case_begin(made, SLM_OP_select, "paper");
    made->test.config.n_experts = 3;
    made->test.config.top_k = 2;
    made->test.call.n_tokens = 1;
    case_in(made, "score", thirds_score);
    case_in(made, "bias", thirds_bias);
    case_out(made, "ids", thirds_ids);
    case_out(made, "weight", thirds_weight);
    case_build(made);
}

static void answer_thirds(made_case *made)
{
    case_i32(made, "ids")[0] = 2;
    case_i32(made, "ids")[1] = 1;
    case_f32(made, "weight")[0] = 0.25f;
    case_f32(made, "weight")[1] = 0.75f;
    case_f32(made, "cutoff")[0] = -0.125f;
}

static void a_right_choice_passes(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    answer_thirds(&made);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    assert_int_equal(made.verdict.forced, 1);
    assert_string_equal(made.verdict.stages[0].name, "ids");
    assert_int_equal(case_judge_exactly(&made), JUDGE_PASS);
    case_free(&made);
}

static void nothing_written_fails(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.reason, "ids[0,0] was never written");
    answer_thirds(&made);
    memset(case_f32(&made, "weight") + 1, 0xff, 4); /* NaN, though not the poison */
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "weight[0,1]");
    assert_string_equal(made.verdict.got, "nan");
    assert_true(isinf(made.verdict.multiple));
    case_free(&made);
}

static void the_bias_may_not_leak_into_weights(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    answer_thirds(&made);
    case_f32(&made, "weight")[0] = 1.25f / 2;
    case_f32(&made, "weight")[1] = 0.75f / 2;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.clause, "R3");
    assert_string_equal(made.verdict.stage, "weight");
    assert_true(made.verdict.multiple > 1e5);
    case_free(&made);
}

static void swapped_weights_fail(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    answer_thirds(&made);
    case_f32(&made, "weight")[0] = 0.75f;
    case_f32(&made, "weight")[1] = 0.25f;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "weight[0,0]");
    case_free(&made);
}

/* The bound of a quarter among two is 4 units of 2^-26 and a little. */
static void the_weight_bound_is_tight_on_both_sides(void **state)
{
    made_case made;
    float *weight;

    (void)state;
    open_thirds(&made);
    answer_thirds(&made);
    weight = case_f32(&made, "weight");
    weight[0] = 0.25f + 0x1p-24f;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    assert_true(made.verdict.stages[made.verdict.n_stages - 1].used > 0.99);
    weight[0] = nextafterf(weight[0], 1);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    weight[0] = 0.25f - 0x1p-24f;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    weight[0] = nextafterf(weight[0], 0);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_free(&made);
}

static void a_row_of_weights_must_sum_to_one(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    answer_thirds(&made);
    case_f32(&made, "weight")[0] = 0.25f + 0x1p-24f;
    case_f32(&made, "weight")[1] = 0.75f + 0x1.8p-23f;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_f32(&made, "weight")[0] = 0.25f - 0x1p-10f;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_free(&made);
}

static void a_forced_token_admits_no_other_expert_and_no_other_order(void **state)
{
    static const int32_t wrong[][2] = {{1, 2}, {2, 0}, {0, 1}, {2, 2}, {2, 3}, {-1, 1}};
    made_case made;

    (void)state;
    open_thirds(&made);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        answer_thirds(&made);
        memcpy(case_i32(&made, "ids"), wrong[i], sizeof wrong[i]);
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
        assert_string_equal(made.verdict.stage, "ids");
        assert_string_equal(made.verdict.clause, "R2");
        assert_true(made.verdict.multiple == 0);
    }
    case_free(&made);
}

static void the_cutoff_must_be_the_next_key(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    answer_thirds(&made);
    case_f32(&made, "cutoff")[0] = nextafterf(-0.125f, 0);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.stage, "cutoff");
    case_free(&made);
}

static void a_changed_input_fails(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    answer_thirds(&made);
    case_f32(&made, "bias")[2] = 1.5f;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.reason, "changed its input bias");
    case_free(&made);
}

static void an_error_where_a_result_is_due_fails(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    assert_int_equal(case_judge_status(&made, SLM_ERR_DOMAIN, "top_k"), JUDGE_FAIL);
    assert_non_null(strstr(made.verdict.reason, "SLM_ERR_DOMAIN (top_k"));
    assert_int_equal(case_judge_status(&made, SLM_ERR_UNSUPPORTED, ""), JUDGE_FAIL);
    assert_non_null(strstr(made.verdict.reason, "supports()"));
    case_free(&made);
}

static void a_refusal_needs_its_status_its_field_and_clean_outputs(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    made.outcome = (vec_outcome){.status = SLM_ERR_NONFINITE, .field = "bias"};
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "bias"), JUDGE_PASS);
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "score"), JUDGE_FAIL);
    assert_int_equal(case_judge_status(&made, SLM_ERR_DOMAIN, "bias"), JUDGE_FAIL);
    assert_int_equal(case_judge_status(&made, SLM_OK, ""), JUDGE_FAIL);
    case_f32(&made, "weight")[1] = 0;
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "bias"), JUDGE_FAIL);
    assert_non_null(strstr(made.verdict.reason, "untouched"));
    case_free(&made);
}

static void a_refusal_names_the_element_where_the_file_names_one(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made); /* the error that is shown to the judge names element 0 */
    made.outcome = (vec_outcome){
        .status = SLM_ERR_NONFINITE, .field = "bias", .has_index = true, .index = 2};
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "bias"), JUDGE_FAIL);
    assert_non_null(strstr(made.verdict.reason, "element 0 of bias, must name 2"));
    made.outcome.index = 0;
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "bias"), JUDGE_PASS);
    made.outcome.index = 2;
    made.outcome.has_index = false;
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "bias"), JUDGE_PASS);
    case_free(&made);
}

static void one_of_several_outcomes_is_enough(void **state)
{
    vec_outcome outcomes[2] = {{.status = SLM_ERR_NONFINITE, .field = "score"},
                               {.status = SLM_OK}};
    made_case made;

    (void)state;
    open_thirds(&made);
    outcomes[1].out = made.out;
    outcomes[1].n_out = made.outcome.n_out;
    made.test.outcomes = outcomes;
    made.test.n_outcomes = 2;
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "score"), JUDGE_PASS);
    answer_thirds(&made);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_i32(&made, "ids")[0] = 0;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.stage, "ids"); /* of the outcome that was meant */
    case_free(&made);
}

static void exact_mode_wants_golden_bits(void **state)
{
    made_case made;

    (void)state;
    open_thirds(&made);
    answer_thirds(&made);
    case_f32(&made, "weight")[0] = 0.25f + 0x1p-25f;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    assert_int_equal(case_judge_exactly(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "weight[0,0]");
    case_free(&made);
}

static void exact_mode_passes_over_any_and_wants_nan_for_nan(void **state)
{
    float gate_up[] = {0, 0, NAN, 1, 1, 1};
    double golden[] = {0, 7, NAN};
    unsigned char any[] = {0, 1, 0};
    made_case made;
    float *h;

    (void)state;
    case_begin(&made, SLM_OP_situ_glu, "paper");
    made.test.config.d_expert = 3;
    made.test.call.n_tokens = 1;
    case_in(&made, "gate_up", gate_up);
    case_out(&made, "h", golden);
    made.out[0].any = any;
    case_build(&made);
    h = case_f32(&made, "h");
    h[0] = -0.0f;
    h[1] = 123;
    h[2] = -NAN;
    assert_int_equal(case_judge_exactly(&made), JUDGE_PASS);
    assert_int_equal(made.verdict.stages[0].checked, 2);
    h[2] = 0;
    assert_int_equal(case_judge_exactly(&made), JUDGE_FAIL);
    h[2] = NAN;
    h[0] = 0x1p-149f;
    assert_int_equal(case_judge_exactly(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "h[0,0]");
    case_free(&made);
}

static void a_nan_of_the_file_is_wanted_though_ref_has_a_number(void **state)
{
    float u[] = {3, 4};
    double golden[] = {NAN, 4 / sqrt(12.5 + 1e-6)};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_rmsnorm, "paper");
    made.test.config.d_latent = 2;
    made.test.call.n_tokens = 1;
    case_in(&made, "u", u);
    case_out(&made, "r", golden);
    case_build(&made);
    plain_rmsnorm(u, (const float[]){1, 1}, 2, 4, PLAIN_RIGHT, case_f32(&made, "r"));
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "r[0,0]");
    assert_string_equal(made.verdict.want, "nan");
    case_f32(&made, "r")[0] = NAN;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_free(&made);
}

/* Of a token that no rule routes, ids must be written and nothing else. */
static void a_poisoned_token_may_leave_its_weights_unwritten(void **state)
{
    float score[] = {0.875f, NAN, 0.25f, 0.875f, 0.75f, 0.25f};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_select, "paper");
    made.test.config.n_experts = 3;
    made.test.config.top_k = 2;
    made.test.call.n_tokens = 2;
    case_in(&made, "score", score);
    case_in(&made, "bias", thirds_bias);
    case_build(&made);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.reason, "ids[0,0] was never written");
    memcpy(case_i32(&made, "ids"), (int32_t[]){2, 0, 2, 1}, 4 * sizeof(int32_t));
    case_f32(&made, "weight")[2] = 0.25f;
    case_f32(&made, "weight")[3] = 0.75f;
    case_f32(&made, "cutoff")[1] = -0.125f;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    memset(case_f32(&made, "weight"), 0, 2 * sizeof(float));
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_free(&made);
}

static void a_case_of_which_nothing_is_bounded_is_vacuous(void **state)
{
    static const slm_arithmetic wild = {.struct_size = sizeof wild, .accumulator = 1};
    float u[] = {3, 4};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_rmsnorm, "paper");
    made.test.config.d_latent = 2;
    made.test.call.n_tokens = 1;
    case_in(&made, "u", u);
    case_build(&made);
    plain_rmsnorm(u, (const float[]){1, 1}, 2, 4, PLAIN_RIGHT, case_f32(&made, "r"));
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    assert_int_equal(case_judge_under(&made, &wild), JUDGE_VACUOUS);
    assert_string_equal(made.verdict.clause, "A4");
    assert_string_equal(made.verdict.reason,
                        "no element could be judged under the declared arithmetic");
    case_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_choice_passes),
        cmocka_unit_test(nothing_written_fails),
        cmocka_unit_test(the_bias_may_not_leak_into_weights),
        cmocka_unit_test(swapped_weights_fail),
        cmocka_unit_test(the_weight_bound_is_tight_on_both_sides),
        cmocka_unit_test(a_row_of_weights_must_sum_to_one),
        cmocka_unit_test(a_forced_token_admits_no_other_expert_and_no_other_order),
        cmocka_unit_test(the_cutoff_must_be_the_next_key),
        cmocka_unit_test(a_changed_input_fails),
        cmocka_unit_test(an_error_where_a_result_is_due_fails),
        cmocka_unit_test(a_refusal_needs_its_status_its_field_and_clean_outputs),
        cmocka_unit_test(a_refusal_names_the_element_where_the_file_names_one),
        cmocka_unit_test(one_of_several_outcomes_is_enough),
        cmocka_unit_test(exact_mode_wants_golden_bits),
        cmocka_unit_test(exact_mode_passes_over_any_and_wants_nan_for_nan),
        cmocka_unit_test(a_nan_of_the_file_is_wanted_though_ref_has_a_number),
        cmocka_unit_test(a_poisoned_token_may_leave_its_weights_unwritten),
        cmocka_unit_test(a_case_of_which_nothing_is_bounded_is_vacuous),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
