/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_nearest.c - a wrong answer is told which known fault it looks
 * like, and no fault is made up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <hygiene.h>
#include <mutants/mutants.h>
#include <nearest.h>
#include <testee.h>

#include <string.h>

#include "plain.h"

/* select, T = 2, n = 4, k = 2: the keys of both tokens are far from their scores. */
static float leak_score[] = {0.875f, 0.75f, 0.25f, 0.5f, 0.125f, 0.625f, 0.375f, 0.25f};
static float leak_bias[] = {-1, 0, 1, 0.25f};
static const int32_t leak_ids[] = {2, 1, 2, 1};
static const float right_weight[] = {0.25f, 0.75f, 0.375f, 0.625f};

/* What the keys 1.25, 0.75 and 1.375, 0.625 give. */
static const float leaked_weight[] = {0.625f, 0.375f, 0.6875f, 0.3125f};

static void open_leak(made_case *made, const float *weight)
{
    case_begin(made, SLM_OP_select, "paper");
    made->test.config.n_experts = 4;
    made->test.config.top_k = 2;
    made->test.call.n_tokens = 2;
    case_in(made, "score", leak_score);
    case_in(made, "bias", leak_bias);
    case_build(made);
    memcpy(case_i32(made, "ids"), leak_ids, sizeof leak_ids);
    memcpy(case_f32(made, "weight"), weight, sizeof right_weight);
    case_f32(made, "cutoff")[0] = 0.75f;
    case_f32(made, "cutoff")[1] = 0.5f;
}

/* Judge what lies in the frame, which must fail, and ask. */
static const char *ask(made_case *made)
{
    const slm_error error = {.status = SLM_OK};

    assert_int_equal(case_judge(made), JUDGE_FAIL);
    nearest_find(&made->test, &made->frame, SLM_OK, &error, &made->verdict);
    return made->verdict.nearest;
}

static void a_leak_of_the_bias_is_named_though_its_digits_are_its_own(void **state)
{
    made_case made;

    (void)state;
    open_leak(&made, leaked_weight);
    assert_string_equal(ask(&made), "bias-leaks-into-weights");
    for (int i = 0; i < 4; i++) case_f32(&made, "weight")[i] *= 1 + 0x1p-9f;
    assert_string_equal(ask(&made), "bias-leaks-into-weights");
    case_free(&made);
}

static void a_right_answer_and_an_unheard_of_one_get_no_name(void **state)
{
    static const float odd[] = {0.0625f, 0.9375f, 0.96875f, 0.03125f};
    const slm_error error = {.status = SLM_OK};
    made_case made;

    (void)state;
    open_leak(&made, odd);
    assert_string_equal(ask(&made), "");
    memcpy(case_f32(&made, "weight"), right_weight, sizeof right_weight);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    nearest_find(&made.test, &made.frame, SLM_OK, &error, &made.verdict);
    assert_string_equal(made.verdict.nearest, "");
    case_free(&made);
}

/* Most of the way from the right answer to the leak, but not there. */
static void a_fault_that_is_not_clearly_nearer_is_not_named(void **state)
{
    float middle[4];
    made_case made;

    (void)state;
    for (int i = 0; i < 4; i++)
        middle[i] = right_weight[i] + 0.75f * (leaked_weight[i] - right_weight[i]);
    open_leak(&made, middle);
    assert_string_equal(ask(&made), "");
    case_free(&made);
}

static void a_refusal_of_the_lawful_is_named(void **state)
{
    float score[] = {1, 0.5f}, bias[] = {0, 0};
    slm_error error = {.status = SLM_ERR_DOMAIN, .field = "score"};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_select, "paper");
    made.test.config.n_experts = 2;
    made.test.config.top_k = 1;
    made.test.call.n_tokens = 1;
    case_in(&made, "score", score);
    case_in(&made, "bias", bias);
    case_build(&made);
    assert_int_equal(case_judge_status(&made, SLM_ERR_DOMAIN, "score"), JUDGE_FAIL);
    nearest_find(&made.test, &made.frame, SLM_ERR_DOMAIN, &error, &made.verdict);
    assert_string_equal(made.verdict.nearest, "refuses-the-lawful");
    case_free(&made);
}

/* ---- the golden vectors ---- */

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

static const vec_case *find_case(const vec_set *set, const char *id)
{
    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++)
            if (strcmp(set->families[i].cases[j].id, id) == 0)
                return &set->families[i].cases[j];
    fail_msg("no case %s", id);
    return NULL;
}

/* What a table answers: status, error and the bits of its outputs. With `verdict` the
 * answer is judged and, where it fails, named. Returns 0 when it is not given the case. */
static int answer(const slm_backend *table, const vec_case *test, char digest[65],
                  testee_reply *reply, judge_verdict *verdict)
{
    slm_testee *testee = testee_open_table(table, true);
    call_frame frame;
    char reason[256];
    int given;

    assert_non_null(testee);
    given = testee_offers(testee, test, reason);
    if (given) {
        assert_true(testee_frame(testee, test, NULL, &frame, reply->why));
        testee_run(testee, &frame, reply);
        assert_int_equal(reply->outcome, TESTEE_RETURNED);
        frame_digest(&frame, digest);
        if (verdict) {
            judge_answer(test, &frame, reply->status, &reply->error, table->arithmetic,
                         false, verdict);
            if (verdict->state == JUDGE_FAIL)
                nearest_find(test, &frame, reply->status, &reply->error, verdict);
        }
        frame_free(&frame);
    }
    testee_close(testee);
    return given;
}

static int is_promised(const vec_case *test, const char *mutant)
{
    for (size_t i = 0; i < test->n_kills; i++)
        if (strcmp(test->kills[i], mutant) == 0) return 1;
    return 0;
}

/* 1 when the mutant fails the case by an answer, which is then named right. */
static int is_diagnosed(const slm_mutant_info *info, const vec_case *test)
{
    char digest[65], other_digest[65];
    testee_reply reply, other;
    judge_verdict verdict;

    if (test->tier > VEC_QUICK || !is_promised(test, info->name)) return 0;
    if (!answer(info->table, test, digest, &reply, &verdict)) return 0;
    if (verdict.state != JUDGE_FAIL) return 0;
    if (!verdict.nearest[0]) fail_msg("%s on %s has no name", info->name, test->id);
    if (strcmp(verdict.nearest, info->name) == 0) return 1;
    assert_true(
        answer(slm_mutant_find(verdict.nearest), test, other_digest, &other, NULL));
    if (strcmp(digest, other_digest) != 0 || reply.status != other.status)
        fail_msg("%s on %s is called %s", info->name, test->id, verdict.nearest);
    return 1;
}

static void every_mutant_is_named_as_itself_or_as_one_that_answers_alike(void **state)
{
    const vec_set *set = *state;
    size_t named = 0;

    for (size_t m = 0; m < slm_mutant_count(); m++) {
        int found = 0;

        for (size_t i = 0; i < set->n_families && !found; i++)
            for (size_t j = 0; j < set->families[i].n_cases && !found; j++)
                found = is_diagnosed(slm_mutant_info_at(m), &set->families[i].cases[j]);
        named += (size_t)found;
    }
    if (named < 100)
        fail_msg("%zu of %zu mutants are named", named, slm_mutant_count());
}

/* An implementation that shares no line with the mutants and adds in another order,
 * with taps and without. */
static void faults_of_an_independent_layer_are_named(void **state)
{
    static const struct {
        plain_fault fault;
        const char *mutant;
    } faults[] = {
        {PLAIN_BIAS_IN_WEIGHT, "bias-leaks-into-weights"},
        {PLAIN_NOT_NORMALISED, "no-renormalise"},
        {PLAIN_WEIGHTS_SWAPPED, "slots-permuted"},
        {PLAIN_WEIGHTS_EQUAL, "uniform-weights"},
        {PLAIN_LAST_EXPERT_DROPPED, "last-slot-dropped"},
        {PLAIN_SIGMA_OF_CAPPED, "sigma-of-capped-gate"},
        {PLAIN_NO_CAP_ON_UP, "up-cap-missing"},
        {PLAIN_BETAS_SWAPPED, "betas-swapped"},
        {PLAIN_SWIGLU, "swiglu-for-situ"},
        {PLAIN_HARD_CAP, "hard-clamp"},
        {PLAIN_EPS_TENFOLD, "eps-wrong"},
        {PLAIN_EPS_MISSING, "eps-missing"},
        {PLAIN_GAMMA_IGNORED, "gamma-ignored"},
        {PLAIN_MEAN_OVER_D, "mean-over-d"},
        {PLAIN_SHARED_DROPPED, "shared-dropped"},
        {PLAIN_SHARED_FED_Z, "shared-fed-z"},
        {PLAIN_BF16_SUMS, "bf16-accumulate"},
        {PLAIN_ROWS_SWAPPED, "tokens-swapped"},
        {PLAIN_LAST_COLUMN, "last-column-wrong"},
    };
    made_case made = {.test = *find_case(*state, "layer/profiles/paper")};
    char why[256];

    assert_true(frame_build(&made.frame, &made.test, false, 0, -1, why));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (int taps = 0; taps < 2; taps++) {
            frame_poison(&made.frame, false);
            plain_layer(&made, PLAIN_LANES, faults[i].fault, taps);
            if (strcmp(ask(&made), faults[i].mutant) != 0)
                fail_msg("%s %s taps is called '%s'", plain_fault_name(faults[i].fault),
                         taps ? "with" : "without", made.verdict.nearest);
        }
    case_free(&made);
}

/* The first call is right, so only the repetitions tell. */
static void a_fault_of_conduct_is_named_by_the_check_that_it_fails(void **state)
{
    const vec_case *test = find_case(*state, "layer/profiles/paper");
    const slm_backend *table = slm_mutant_find("first-bias-kept");
    slm_testee *testee = testee_open_table(table, true);
    judge_verdict verdict;
    testee_reply reply;
    char digest[65];

    assert_true(answer(table, test, digest, &reply, &verdict));
    assert_int_equal(verdict.state, JUDGE_PASS);
    hygiene_check(testee, test, digest, &verdict);
    assert_int_equal(verdict.state, JUDGE_FAIL);
    nearest_by_conduct(test, &verdict);
    assert_string_equal(verdict.nearest, "first-bias-kept");
    verdict.nearest[0] = '\0';
    snprintf(verdict.reason, sizeof verdict.reason, "something else");
    nearest_by_conduct(test, &verdict);
    assert_string_equal(verdict.nearest, "");
    testee_close(testee);
}

static void names_have_their_sentences(void **state)
{
    (void)state;
    assert_string_equal(nearest_sentence("shared-dropped"), "no shared path");
    assert_string_equal(nearest_sentence("unheard-of"), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leak_of_the_bias_is_named_though_its_digits_are_its_own),
        cmocka_unit_test(a_right_answer_and_an_unheard_of_one_get_no_name),
        cmocka_unit_test(a_fault_that_is_not_clearly_nearer_is_not_named),
        cmocka_unit_test(a_refusal_of_the_lawful_is_named),
        cmocka_unit_test(every_mutant_is_named_as_itself_or_as_one_that_answers_alike),
        cmocka_unit_test(faults_of_an_independent_layer_are_named),
        cmocka_unit_test(a_fault_of_conduct_is_named_by_the_check_that_it_fails),
        cmocka_unit_test(names_have_their_sentences),
    };

    return cmocka_run_group_tests(tests, load_vectors, free_vectors) != 0;
}
