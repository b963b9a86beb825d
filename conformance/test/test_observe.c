/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_observe.c - the judge on masks and on the state of a step.
 *                                                                             Q5, Q8 */
#include "case.h"

#include "../testee.h"

#include <ref.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Five tokens of which 1 and 3 are padding, n 2, k 1, b = 0, B 4. */
enum { T = 5, N = 2, B = 4 };

static float score[T * N] = {0.75f, 0.25f, NAN,   NAN,  0.25f,
                             0.5f,  7.0f,  -1.0f, 0.5f, 0.375f};
static float zero_bias[N];
static int32_t mask[T] = {1, 0, 1, 0, 1};

static void set_sizes(made_case *made)
{
    made->test.config.n_experts = N;
    made->test.config.top_k = 1;
    made->test.config.n_bins = B;
    made->test.config.balance = SLM_BALANCE_RELAXED;
    made->test.call.n_tokens = T;
}

/* alpha 1/4, 1/4, 3/8; r of expert 0: -1/2, 0, -1/8, of expert 1: 0, -1/4, 0. i* = 1. */
static void open_exact(made_case *made)
{
    static const double candidate[N] = {-0.125, 0};
    static const float bias[N] = {-0.0625f, 0.0625f};

    case_begin(made, SLM_OP_qb_exact, "paper");
    set_sizes(made);
    case_in(made, "score", score);
    case_in(made, "bias", zero_bias);
    case_in(made, "mask", mask);
    case_build(made);
    memcpy(case_f64(made, "candidate"), candidate, sizeof candidate);
    memcpy(case_f32(made, "new_bias"), bias, sizeof bias);
    case_f32(made, "cutoff")[0] = case_f32(made, "cutoff")[2] = 0.25f;
    case_f32(made, "cutoff")[4] = 0.375f;
}

static void expect(made_case *made, judge_state state, const char *clause,
                   const char *place)
{
    if (case_judge(made) != state)
        fail_msg("%s: %s %s", judge_state_name(made->verdict.state),
                 made->verdict.reason, made->verdict.place);
    if (state == JUDGE_PASS) return;
    assert_string_equal(made->verdict.clause, clause);
    if (place) assert_string_equal(made->verdict.place, place);
}

static void padding_is_no_part_of_the_statistic(void **state)
{
    made_case made;

    (void)state;
    open_exact(&made);
    expect(&made, JUDGE_PASS, "", "");
    case_f64(&made, "candidate")[0] = -0.5; /* the neighbour */
    expect(&made, JUDGE_FAIL, "Q1", "candidate[0]");
    case_f64(&made, "candidate")[0] = -0.125;
    case_f32(&made, "cutoff")[2] = 0.375f;
    expect(&made, JUDGE_FAIL, "Q1", "cutoff[2]");
    case_free(&made);
}

static void the_cutoff_of_padding_must_not_be_written(void **state)
{
    made_case made;

    (void)state;
    open_exact(&made);
    case_f32(&made, "cutoff")[3] = 0;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.clause, "Q5");
    assert_string_equal(made.verdict.stage, "cutoff");
    assert_non_null(strstr(made.verdict.reason, "cutoff[3]"));
    case_free(&made);
}

static void the_cutoff_of_a_counted_token_must_be_written(void **state)
{
    made_case made;

    (void)state;
    open_exact(&made);
    case_f32(&made, "cutoff")[4] = case_f32(&made, "cutoff")[3]; /* poison */
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.clause, "Q1");
    assert_non_null(strstr(made.verdict.reason, "cutoff[4] was never written"));
    case_free(&made);
}

/* Reuse of a frame with the other poison is no other answer; a written element is. */
static void the_digest_does_not_depend_on_what_lies_under_a_mask(void **state)
{
    float kept[T];
    char first[65], second[65];
    double candidate[N];
    float new_bias[N];
    made_case made;

    (void)state;
    open_exact(&made);
    frame_digest(&made.frame, first);
    memcpy(kept, case_f32(&made, "cutoff"), sizeof kept);
    memcpy(candidate, case_f64(&made, "candidate"), sizeof candidate);
    memcpy(new_bias, case_f32(&made, "new_bias"), sizeof new_bias);
    frame_poison(&made.frame, true);
    memcpy(case_f64(&made, "candidate"), candidate, sizeof candidate);
    memcpy(case_f32(&made, "new_bias"), new_bias, sizeof new_bias);
    for (int t = 0; t < T; t += 2) case_f32(&made, "cutoff")[t] = kept[t];
    frame_digest(&made.frame, second);
    assert_string_equal(first, second);
    expect(&made, JUDGE_PASS, "", "");
    case_f32(&made, "cutoff")[1] = 0;
    frame_digest(&made.frame, second);
    assert_string_not_equal(first, second);
    assert_int_equal(frame_first_masked(&made.frame, "cutoff"), 1);
    assert_int_equal(frame_counted(&made.frame), 3);
    case_free(&made);
}

static void without_a_counted_token_the_bias_keeps_its_bits(void **state)
{
    float bias[N] = {-0.0f, 0.5f};
    int32_t none[T] = {0};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_qb_exact, "paper");
    set_sizes(&made);
    case_in(&made, "score", score);
    case_in(&made, "bias", bias);
    case_in(&made, "mask", none);
    case_build(&made);
    memcpy(case_f32(&made, "new_bias"), bias, sizeof bias);
    expect(&made, JUDGE_PASS, "", "");
    case_f32(&made, "new_bias")[0] = 0;
    expect(&made, JUDGE_FAIL, "Q1", "new_bias[0]");
    case_free(&made);
}

/* Column 0 of the counted tokens has a gap of 1e-8 + 2^-50 at its boundary, which
 * binary32 cannot tell from the threshold; the tied row is padding.               Q2 */
static void a_tie_is_looked_for_among_the_counted(void **state)
{
    const slm_error error = {.status = SLM_ERR_TIE, .field = "new_bias"};
    float four[8] = {(float)(0x1p-27 + 1e-8 + 0x1p-50),
                     0x1p-27f,
                     0.5f,
                     0.75f,
                     0.5f,
                     0.75f,
                     NAN,
                     NAN};
    int32_t first_two[4] = {1, 1, 0, 0};
    made_case made;

    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        const slm_arithmetic given = {.struct_size = sizeof given,
                                      .balance = pass ? 0x1p-24 : 0x1p-53};

        case_begin(&made, SLM_OP_qb_exact, "paper");
        set_sizes(&made);
        made.test.config.balance = SLM_BALANCE_STRICT;
        made.test.call.n_tokens = 4;
        case_in(&made, "score", four);
        case_in(&made, "bias", zero_bias);
        case_in(&made, "mask", first_two);
        case_build(&made);
        judge_case(&made.test, &made.frame, SLM_ERR_TIE, &error, &given, false,
                   &made.verdict);
        assert_int_equal(made.verdict.state, pass ? JUDGE_PASS : JUDGE_FAIL);
        case_free(&made);
    }
}

static void loads_are_of_the_counted_tokens(void **state)
{
    int32_t ids[T] = {0, -7, 0, 99, 1};
    static const int64_t load[N] = {2, 1};
    const double metric[4] = {1.0 / 3, 1.0 / 3, 0, 1.0 / 6};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_load_metrics, "paper");
    set_sizes(&made);
    case_in(&made, "ids", ids);
    case_in(&made, "mask", mask);
    case_build(&made);
    memcpy(case_i64(&made, "load"), load, sizeof load);
    memcpy(case_f64(&made, "metric"), metric, sizeof metric);
    expect(&made, JUDGE_PASS, "", "");
    case_f64(&made, "metric")[0] = 2 / 2.5 - 1; /* mean of all five tokens */
    expect(&made, JUDGE_FAIL, "Q7", "metric[0]");
    case_free(&made);
}

/* ---- observe: w = 1/2, edges -1/2, 0, 1/2 ---- */

static const int64_t added[N * B] = {0, 2, 1, 0, 0, 1, 2, 0};

/* The second micro-batch, or what the ticket says, on counts of one token. */
static void open_observe(made_case *made, int64_t *before, int64_t *ticket,
                         int64_t *stamp)
{
    static const int64_t one[N * B] = {1, 0, 0, 0, 0, 0, 0, 1};
    const int64_t checksum = slm_checksum(zero_bias, N);

    memcpy(before, one, sizeof one);
    ticket[SLM_TICKET_VERSION] = stamp[SLM_STAMP_VERSION] = 4;
    ticket[SLM_TICKET_CHECKSUM] = stamp[SLM_STAMP_CHECKSUM] = checksum;
    stamp[SLM_STAMP_MICRO_BATCHES] = stamp[SLM_STAMP_TOKENS] = 1;
    case_begin(made, SLM_OP_qb_observe, "paper");
    set_sizes(made);
    case_in(made, "score", score);
    case_in(made, "bias", zero_bias);
    case_in(made, "ticket", ticket);
    case_in(made, "stamp", stamp);
    case_in(made, "hist", before);
    case_in(made, "mask", mask);
    case_build(made);
}

static void a_counted_micro_batch_is_judged_like_its_histogram(void **state)
{
    int64_t before[N * B], ticket[4] = {[SLM_TICKET_MICRO_BATCH] = 1}, stamp[4];
    made_case made;
    int64_t *hist, *got;

    (void)state;
    open_observe(&made, before, ticket, stamp);
    hist = case_i64(&made, "hist");
    got = case_i64(&made, "stamp");
    for (int i = 0; i < N * B; i++) hist[i] += added[i];
    got[SLM_STAMP_MICRO_BATCHES] = 2;
    got[SLM_STAMP_TOKENS] = 4;
    expect(&made, JUDGE_PASS, "", "");
    for (int i = 0; i < 4; i++) {
        static const char *const place[] = {"stamp[0]", "stamp[1]", "stamp[2]",
                                            "stamp[3]"};

        got[i]++;
        expect(&made, JUDGE_FAIL, "Q8", place[i]);
        got[i]--;
    }
    hist[1]--; /* one r moved to the bin below */
    hist[0]++;
    expect(&made, JUDGE_FAIL, "Q3", "hist[0,0]");
    hist[0]--; /* and lost */
    expect(&made, JUDGE_FAIL, "Q3", "hist[0,1]");
    memcpy(hist, before, sizeof before); /* nothing counted */
    expect(&made, JUDGE_FAIL, "Q3", NULL);
    case_free(&made);
}

static void what_is_not_counted_must_change_nothing(void **state)
{
    static const int64_t tickets[][4] = {{SLM_MODE_TRAINING, 0, 0, 0},
                                         {SLM_MODE_RECOMPUTATION, 0, 0, 1},
                                         {SLM_MODE_EVALUATION, 0, 0, 1}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        int64_t before[N * B], ticket[4], stamp[4];
        made_case made;

        memcpy(ticket, tickets[i], sizeof ticket);
        open_observe(&made, before, ticket, stamp);
        expect(&made, JUDGE_PASS, "", "");
        case_i64(&made, "stamp")[SLM_STAMP_TOKENS]++;
        expect(&made, JUDGE_FAIL, "Q8", "stamp[3]");
        case_i64(&made, "stamp")[SLM_STAMP_TOKENS]--;
        for (int e = 0; e < N * B; e++) case_i64(&made, "hist")[e] += added[e];
        expect(&made, JUDGE_FAIL, "Q8", "hist[0,1]");
        case_free(&made);
    }
}

/* ---- commit ---- */

static void open_commit(made_case *made, float *bias, float *new_bias, int64_t *stamp,
                        int64_t *hist)
{
    stamp[SLM_STAMP_VERSION] = 4;
    stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias, N);
    stamp[SLM_STAMP_MICRO_BATCHES] = stamp[SLM_STAMP_TOKENS] = 3;
    for (int i = 0; i < N * B; i++) hist[i] = i;
    case_begin(made, SLM_OP_qb_commit, "paper");
    set_sizes(made);
    made->test.call.n_tokens = 0;
    case_in(made, "new_bias", new_bias);
    case_in(made, "bias", bias);
    case_in(made, "stamp", stamp);
    case_in(made, "hist", hist);
    case_build(made);
}

static void a_commit_is_judged_to_the_bit(void **state)
{
    float bias[N] = {0.5f, -0.5f}, new_bias[N] = {-0.0f, 0x1p-149f};
    int64_t stamp[4], hist[N * B];
    made_case made;

    (void)state;
    open_commit(&made, bias, new_bias, stamp, hist);
    memcpy(case_f32(&made, "bias"), new_bias, sizeof new_bias);
    case_i64(&made, "stamp")[SLM_STAMP_VERSION] = 5;
    case_i64(&made, "stamp")[SLM_STAMP_CHECKSUM] = slm_checksum(new_bias, N);
    case_i64(&made, "stamp")[SLM_STAMP_MICRO_BATCHES] = 0;
    case_i64(&made, "stamp")[SLM_STAMP_TOKENS] = 0;
    memset(case_i64(&made, "hist"), 0, sizeof hist);
    expect(&made, JUDGE_PASS, "", "");
    case_f32(&made, "bias")[0] = 0;
    expect(&made, JUDGE_FAIL, "Q8", "bias[0]");
    case_f32(&made, "bias")[0] = -0.0f;
    case_f32(&made, "bias")[1] = 0;
    expect(&made, JUDGE_FAIL, "Q8", "bias[1]");
    case_f32(&made, "bias")[1] = 0x1p-149f;
    for (int i = 0; i < 4; i++) {
        case_i64(&made, "stamp")[i]++;
        expect(&made, JUDGE_FAIL, "Q8", NULL);
        assert_string_equal(made.verdict.stage, "stamp");
        case_i64(&made, "stamp")[i]--;
    }
    case_i64(&made, "hist")[7] = 1;
    expect(&made, JUDGE_FAIL, "Q8", "hist[1,3]");
    case_free(&made);
}

/* A refusal leaves every bit of what is input and output. */
static void a_refused_commit_changes_no_bit(void **state)
{
    float bias[N] = {0.0f, -0.5f}, new_bias[N] = {NAN, 0};
    int64_t stamp[4], hist[N * B];
    made_case made;

    (void)state;
    open_commit(&made, bias, new_bias, stamp, hist);
    made.outcome.status = SLM_ERR_NONFINITE;
    strcpy(made.outcome.field, "new_bias");
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "new_bias"),
                     JUDGE_PASS);
    case_f32(&made, "bias")[0] = -0.0f;
    assert_int_equal(case_judge_status(&made, SLM_ERR_NONFINITE, "new_bias"),
                     JUDGE_FAIL);
    assert_non_null(strstr(made.verdict.reason, "wrote to bias"));
    case_free(&made);
}

/* ---- older backends ---- */

static void a_backend_of_abi_1_0_is_not_given_a_mask(void **state)
{
    slm_backend older = *slm_ref_backend();
    slm_testee *testee;
    char reason[256] = "";
    made_case made;

    (void)state;
    older.abi_minor = 0;
    testee = testee_open_table(&older, true);
    assert_non_null(testee);
    open_exact(&made);
    assert_int_equal(testee_offers(testee, &made.test, reason), 0);
    assert_string_equal(reason, "speaks ABI 1.0, which has no mask");
    made.test.n_in--; /* the mask */
    assert_int_equal(testee_offers(testee, &made.test, reason), 1);
    testee_close(testee);
    case_free(&made);

    testee = testee_open_table(slm_ref_backend(), true);
    open_exact(&made);
    assert_int_equal(testee_offers(testee, &made.test, reason), 1);
    testee_close(testee);
    case_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_is_no_part_of_the_statistic),
        cmocka_unit_test(the_cutoff_of_padding_must_not_be_written),
        cmocka_unit_test(the_cutoff_of_a_counted_token_must_be_written),
        cmocka_unit_test(the_digest_does_not_depend_on_what_lies_under_a_mask),
        cmocka_unit_test(without_a_counted_token_the_bias_keeps_its_bits),
        cmocka_unit_test(a_tie_is_looked_for_among_the_counted),
        cmocka_unit_test(loads_are_of_the_counted_tokens),
        cmocka_unit_test(a_counted_micro_batch_is_judged_like_its_histogram),
        cmocka_unit_test(what_is_not_counted_must_change_nothing),
        cmocka_unit_test(a_commit_is_judged_to_the_bit),
        cmocka_unit_test(a_refused_commit_changes_no_bit),
        cmocka_unit_test(a_backend_of_abi_1_0_is_not_given_a_mask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
