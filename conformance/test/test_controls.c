/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_controls.c - a case that an answer without knowledge would pass
 * is found out, and no other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <mutants/mutants.h>
#include <testee.h>

#include <math.h>
#include <string.h>

#include "plain.h"

static void controls_are(const judge_verdict *verdict, judge_null zeros,
                         judge_null constant, judge_null rotated, judge_null dropped)
{
    assert_int_equal(verdict->controls[JUDGE_ZEROS], zeros);
    assert_int_equal(verdict->controls[JUDGE_CONSTANT], constant);
    assert_int_equal(verdict->controls[JUDGE_ROTATED], rotated);
    assert_int_equal(verdict->controls[JUDGE_DROPPED], dropped);
}

/* ---- rmsnorm, l = 2: two rows whose elements are within a third of each other ---- */

static const slm_arithmetic honest = {.struct_size = sizeof honest,
                                      .accumulator = 0x1p-24,
                                      .sigmoid_ulp = 4,
                                      .tanh_ulp = 4,
                                      .rsqrt_ulp = 4};

/* What is stored may be off by so much of itself. */
static slm_arithmetic storing(double v)
{
    slm_arithmetic arithmetic = honest;

    for (int i = 0; i < SLM_STAGE_COUNT; i++) arithmetic.store[i] = v;
    return arithmetic;
}

static void open_norm(made_case *made, float *u, size_t tokens)
{
    case_begin(made, SLM_OP_rmsnorm, "paper");
    made->test.config.d_latent = 2;
    made->test.call.n_tokens = tokens;
    case_in(made, "u", u);
    case_build(made);
    for (size_t t = 0; t < tokens; t++)
        plain_rmsnorm(u + 2 * t, (const float[]){1, 1}, 2, 4, PLAIN_RIGHT,
                      case_f32(made, "r") + 2 * t);
}

static void every_null_answer_to_a_good_case_fails_and_is_gone(void **state)
{
    float u[] = {3, 4, 4, 3}, before[4];
    made_case made;

    (void)state;
    open_norm(&made, u, 2);
    memcpy(before, case_f32(&made, "r"), sizeof before);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    controls_are(&made.verdict, JUDGE_NULL_FAILS, JUDGE_NULL_FAILS, JUDGE_NULL_FAILS,
                 JUDGE_NULL_NONE);
    assert_memory_equal(before, case_f32(&made, "r"), sizeof before);
    case_free(&made);
}

/* r = (.849, 1.131) and the other way round. */
static void a_case_that_another_row_would_pass_is_vacuous(void **state)
{
    const slm_arithmetic rough = storing(0.4);
    float u[] = {3, 4, 4, 3};
    made_case made;

    (void)state;
    open_norm(&made, u, 2);
    assert_int_equal(case_judge_under(&made, &rough), JUDGE_VACUOUS);
    assert_int_equal(made.verdict.controls[JUDGE_ZEROS], JUDGE_NULL_FAILS);
    assert_int_equal(made.verdict.controls[JUDGE_ROTATED], JUDGE_NULL_PASSES);
    assert_string_equal(made.verdict.clause, "A4");
    case_free(&made);
}

static void a_case_that_zeros_would_pass_is_vacuous(void **state)
{
    const slm_arithmetic hopeless = storing(1);
    float u[] = {3, 4};
    made_case made;

    (void)state;
    open_norm(&made, u, 1);
    assert_int_equal(case_judge_under(&made, &hopeless), JUDGE_VACUOUS);
    assert_int_equal(made.verdict.controls[JUDGE_ZEROS], JUDGE_NULL_PASSES);
    assert_string_equal(made.verdict.reason, "an answer of zeros would pass as well");
    case_free(&made);
}

static void a_null_answer_that_is_right_does_not_count(void **state)
{
    float equal[] = {3, 3, 3, 3}, zero[] = {0, 0, 0, 0};
    made_case made;

    (void)state;
    open_norm(&made, equal, 2);
    case_f32(&made, "r")[2] = nextafterf(case_f32(&made, "r")[2], 2);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    controls_are(&made.verdict, JUDGE_NULL_FAILS, JUDGE_NULL_SAME, JUDGE_NULL_SAME,
                 JUDGE_NULL_NONE);
    case_free(&made);
    open_norm(&made, zero, 2);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    controls_are(&made.verdict, JUDGE_NULL_SAME, JUDGE_NULL_SAME, JUDGE_NULL_SAME,
                 JUDGE_NULL_NONE);
    case_free(&made);
}

static void a_failure_and_a_refusal_have_no_controls(void **state)
{
    float u[] = {3, 4};
    made_case made;

    (void)state;
    open_norm(&made, u, 1);
    case_f32(&made, "r")[0] = 1;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    controls_are(&made.verdict, JUDGE_NULL_NONE, JUDGE_NULL_NONE, JUDGE_NULL_NONE,
                 JUDGE_NULL_NONE);
    frame_poison(&made.frame, false);
    made.outcome = (vec_outcome){.status = SLM_ERR_NONFINITE};
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "u"), JUDGE_PASS);
    controls_are(&made.verdict, JUDGE_NULL_NONE, JUDGE_NULL_NONE, JUDGE_NULL_NONE,
                 JUDGE_NULL_NONE);
    case_free(&made);
}

/* ---- routing: select, n = 3, k = 2 ---- */

static void open_choice(made_case *made, float *score, size_t tokens)
{
    static float bias[] = {0, 0, 0};

    case_begin(made, SLM_OP_select, "paper");
    made->test.config.n_experts = 3;
    made->test.config.top_k = 2;
    made->test.call.n_tokens = tokens;
    case_in(made, "score", score);
    case_in(made, "bias", bias);
    case_build(made);
}

static void choose(made_case *made, size_t t, int32_t first, int32_t second,
                   float weight)
{
    case_i32(made, "ids")[2 * t] = first;
    case_i32(made, "ids")[2 * t + 1] = second;
    case_f32(made, "weight")[2 * t] = weight;
    case_f32(made, "weight")[2 * t + 1] = 1 - weight;
}

static void a_constant_choice_and_another_tokens_fail(void **state)
{
    float score[] = {0.25f, 0.5f, 0.5f, 0.75f, 0, 0.25f};
    made_case made;

    (void)state;
    open_choice(&made, score, 2);
    choose(&made, 0, 1, 2, 0.5f);
    choose(&made, 1, 0, 2, 0.75f);
    case_f32(&made, "cutoff")[0] = 0.25f;
    case_f32(&made, "cutoff")[1] = 0;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    controls_are(&made.verdict, JUDGE_NULL_FAILS, JUDGE_NULL_FAILS, JUDGE_NULL_FAILS,
                 JUDGE_NULL_NONE);
    case_free(&made);
}

/* The sound token's answer is experts 0 and 1 at a half each. */
static void poisoned_tokens_say_nothing(void **state)
{
    float score[] = {0.5f, 0.5f, 0.25f, 0.5f, NAN, 0.25f};
    made_case made;

    (void)state;
    open_choice(&made, score, 2);
    choose(&made, 0, 0, 1, 0.5f);
    choose(&made, 1, 2, 0, 0.875f);
    case_f32(&made, "cutoff")[0] = 0.25f;
    case_f32(&made, "cutoff")[1] = 0;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    controls_are(&made.verdict, JUDGE_NULL_FAILS, JUDGE_NULL_SAME, JUDGE_NULL_FAILS,
                 JUDGE_NULL_NONE);
    case_free(&made);
}

static void a_null_answer_that_the_file_wants_is_right(void **state)
{
    float u[] = {3, 4};
    double right[2], none[] = {0, 0};
    vec_tensor other;
    vec_outcome outcomes[2];
    made_case made;

    (void)state;
    open_norm(&made, u, 1);
    for (int i = 0; i < 2; i++) right[i] = (double)case_f32(&made, "r")[i];
    case_out(&made, "r", right);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    assert_int_equal(made.verdict.controls[JUDGE_ZEROS], JUDGE_NULL_FAILS);
    other = made.out[0];
    other.values = none;
    outcomes[0] = outcomes[1] = made.outcome;
    outcomes[1].out = &other;
    made.test.outcomes = outcomes;
    made.test.n_outcomes = 2;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    assert_int_equal(made.verdict.controls[JUDGE_ZEROS], JUDGE_NULL_SAME);
    case_free(&made);
}

/* Biases of 2^100 leave binary64 no digits for new biases of a quarter; the candidate
 * that was written still shows an answer of zeros, and its absence shows nothing. */
static void a_candidate_belongs_to_the_new_bias(void **state)
{
    float score[] = {0.5f, 0.25f, 0.75f};
    float bias[] = {0x1.fffffep+127f, 0x1p+100f, -0x1.fffffep+127f};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_qb_exact, "paper");
    made.test.config.n_experts = 3;
    made.test.config.top_k = 1;
    made.test.config.balance = SLM_BALANCE_RELAXED;
    made.test.call.n_tokens = 1;
    case_in(&made, "score", score);
    case_in(&made, "bias", bias);
    case_build(&made);
    case_f32(&made, "new_bias")[0] = 0;
    case_f32(&made, "new_bias")[1] = 0.25f;
    case_f32(&made, "new_bias")[2] = -0.25f;
    assert_int_equal(case_judge(&made), JUDGE_VACUOUS);
    for (int j = 0; j < 3; j++) case_f64(&made, "candidate")[j] = 0x1p+100;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    controls_are(&made.verdict, JUDGE_NULL_FAILS, JUDGE_NULL_SAME, JUDGE_NULL_SAME,
                 JUDGE_NULL_NONE);
    case_free(&made);
}

/* ---- the layer, and every vector ---- */

static int load_vectors(void **state)
{
    vec_error error;

    *state = vec_load(SLM_VECTORS_DIR, &error);
    return *state == NULL;
}

static int free_vectors(void **state)
{
    vec_free(*state);
    return 0;
}

static judge_state judge_right(const vec_case *test, const slm_arithmetic *arithmetic,
                               judge_verdict *verdict)
{
    const slm_backend *table = slm_variant_find("sequential");
    slm_testee *testee = testee_open_table(table, true);
    char reason[256], before[65], after[65];
    testee_reply reply;
    call_frame frame;

    memset(verdict, 0, sizeof *verdict);
    verdict->state = JUDGE_SKIP;
    assert_non_null(testee);
    if (testee_offers(testee, test, reason)) {
        assert_true(testee_frame(testee, test, NULL, &frame, reply.why));
        testee_run(testee, &frame, &reply);
        frame_digest(&frame, before);
        judge_case(test, &frame, reply.status, &reply.error,
                   arithmetic ? arithmetic : table->arithmetic, false, verdict);
        frame_digest(&frame, after);
        assert_string_equal(before, after);
        frame_free(&frame);
    }
    testee_close(testee);
    return verdict->state;
}

/* With taps y is judged on r, within what is stored of y alone. */
static void a_layer_without_its_last_expert_fails_unless_nothing_could(void **state)
{
    const vec_set *set = *state;
    const slm_arithmetic hopeless = storing(4);
    judge_verdict verdict;
    size_t n = 0;

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++) {
            const vec_case *test = &set->families[i].cases[j];

            if (strcmp(set->families[i].name, "layer/profiles") != 0) continue;
            assert_int_equal(judge_right(test, NULL, &verdict), JUDGE_PASS);
            assert_int_equal(verdict.controls[JUDGE_DROPPED], JUDGE_NULL_FAILS);
            assert_int_equal(judge_right(test, &hopeless, &verdict), JUDGE_VACUOUS);
            assert_int_equal(verdict.controls[JUDGE_DROPPED], JUDGE_NULL_PASSES);
            n++;
        }
    assert_true(n >= 4);
}

/* Most cases tell, and outputs are always set back. */
static void zeros_fail_wherever_a_result_is_not_zero(void **state)
{
    const vec_set *set = *state;
    size_t failing = 0, same = 0;

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++) {
            const vec_case *test = &set->families[i].cases[j];
            judge_verdict verdict;

            if (test->tier > VEC_QUICK) continue;
            judge_right(test, NULL, &verdict);
            failing += verdict.controls[JUDGE_ZEROS] == JUDGE_NULL_FAILS;
            same += verdict.controls[JUDGE_ZEROS] == JUDGE_NULL_SAME;
        }
    assert_true(failing >= 300);
    assert_true(same > 0 && same < failing / 10);
}

static void names_are_words(void **state)
{
    (void)state;
    assert_string_equal(judge_control_name(JUDGE_ROTATED), "rotated");
    assert_string_equal(judge_null_name(JUDGE_NULL_FAILS), "fails");
    assert_string_equal(judge_control_name(JUDGE_CONTROLS), "unknown control");
    assert_string_equal(judge_null_name((judge_null)99), "unknown outcome");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_null_answer_to_a_good_case_fails_and_is_gone),
        cmocka_unit_test(a_case_that_another_row_would_pass_is_vacuous),
        cmocka_unit_test(a_case_that_zeros_would_pass_is_vacuous),
        cmocka_unit_test(a_null_answer_that_is_right_does_not_count),
        cmocka_unit_test(a_failure_and_a_refusal_have_no_controls),
        cmocka_unit_test(a_constant_choice_and_another_tokens_fail),
        cmocka_unit_test(poisoned_tokens_say_nothing),
        cmocka_unit_test(a_null_answer_that_the_file_wants_is_right),
        cmocka_unit_test(a_candidate_belongs_to_the_new_bias),
        cmocka_unit_test(a_layer_without_its_last_expert_fails_unless_nothing_could),
        cmocka_unit_test(zeros_fail_wherever_a_result_is_not_zero),
        cmocka_unit_test(names_are_words),
    };

    return cmocka_run_group_tests(tests, load_vectors, free_vectors) != 0;
}
