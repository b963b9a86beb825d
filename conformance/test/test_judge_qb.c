/* SPDX-License-Identifier: Apache-2.0 */
/* test_judge_qb.c - the judge on balancing: order statistic, histogram, sign step. */
#include "case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Clause Q1's example: m 8, n 4, k 1, b = 0, in 64ths. */
static float example_score[32] = {56, 44, 19, 11, 43, 28, 14, 40, 20, 11, 18,
                                  6,  51, 29, 21, 16, 41, 49, 7,  48, 45, 54,
                                  35, 28, 45, 56, 14, 37, 43, 39, 57, 17};
static float zero_bias[4];
enum { M = 8, N = 4, B = 4 };

static void set_sizes(made_case *made, size_t m)
{
    made->test.config.n_experts = N;
    made->test.config.top_k = 1;
    made->test.config.n_bins = B;
    made->test.call.n_tokens = m;
}

static float *scores(void)
{
    static float score[32];

    for (int i = 0; i < 32; i++) score[i] = example_score[i] / 64;
    return score;
}

static void open_exact(made_case *made)
{
    static const float bias[] = {-6, -4, 5, 5},
                       cutoff[] = {44, 40, 18, 29, 48, 45, 45, 43};
    static const double candidate[] = {-3, -1, 8, 8};

    case_begin(made, SLM_OP_qb_exact, "paper");
    set_sizes(made, M);
    case_in(made, "score", scores());
    case_in(made, "bias", zero_bias);
    case_build(made);
    for (int j = 0; j < N; j++) case_f32(made, "new_bias")[j] = bias[j] / 64;
    for (int j = 0; j < N; j++) case_f64(made, "candidate")[j] = candidate[j] / 64;
    for (int i = 0; i < M; i++) case_f32(made, "cutoff")[i] = cutoff[i] / 64;
}

static void the_order_statistic_is_judged_to_half_an_ulp(void **state)
{
    made_case made;
    float *bias;

    (void)state;
    open_exact(&made);
    bias = case_f32(&made, "new_bias");
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    bias[0] = nextafterf(bias[0], 0);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "new_bias[0]");
    assert_string_equal(made.verdict.clause, "Q1");
    case_free(&made);
}

static void a_bias_that_is_not_centred_fails(void **state)
{
    made_case made;

    (void)state;
    open_exact(&made);
    for (int j = 0; j < N; j++)
        case_f32(&made, "new_bias")[j] = (float)case_f64(&made, "candidate")[j];
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.stage, "new_bias");
    case_free(&made);
}

static void the_neighbouring_order_statistic_fails(void **state)
{
    made_case made;

    (void)state;
    open_exact(&made);
    case_f64(&made, "candidate")[0] = -12.0 / 64; /* the q-th instead of the (q+1)-th */
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.stage, "candidate");
    case_free(&made);
}

static judge_state answer(made_case *made, slm_status status, double balance)
{
    const slm_arithmetic given = {.struct_size = sizeof given, .balance = balance};
    const slm_error error = {.status = status, .field = "new_bias"};

    judge_case(&made->test, &made->frame, status, &error, &given, false,
               &made->verdict);
    return made->verdict.state;
}

/* Column 0 of r is -gap, 0, and the note's threshold 1e-8. What binary32 makes of a gap
 * within its own roundoff is its own affair, either way.                          Q2 */
static void a_tie_is_free_within_the_declared_roundoff_alone(void **state)
{
    static const struct {
        double off; /* of the gap from the threshold */
        slm_status wanted;
        judge_state narrow; /* of the other outcome in binary32 */
    } expected[] = {{0x1p-50, SLM_OK, JUDGE_PASS},
                    {0x1p-40, SLM_OK, JUDGE_FAIL},
                    {-0x1p-50, SLM_ERR_TIE, JUDGE_PASS},
                    {-0x1p-40, SLM_ERR_TIE, JUDGE_FAIL}};

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const slm_status other = expected[i].wanted == SLM_OK ? SLM_ERR_TIE : SLM_OK;
        float score[] = {(float)(0x1p-27 + 1e-8 + expected[i].off), 0x1p-27f, 0.5f,
                         0.75f};
        made_case made;

        case_begin(&made, SLM_OP_qb_exact, "paper");
        set_sizes(&made, 2);
        made.test.config.n_experts = 2;
        case_in(&made, "score", score);
        case_in(&made, "bias", zero_bias);
        case_build(&made);
        made.outcome.status = expected[i].wanted;
        assert_int_equal((double)score[0] - 0x1p-27 > 1e-8, expected[i].off > 0);
        if (other == SLM_OK) { /* candidates are column 0's and column 1's upper 0 */
            for (size_t j = 0; j < 2; j++) case_f32(&made, "new_bias")[j] = 0;
            for (size_t j = 0; j < 2; j++) case_f64(&made, "candidate")[j] = 0;
        }
        assert_int_equal(answer(&made, other, 0x1p-53), JUDGE_FAIL);
        assert_int_equal(answer(&made, other, 0x1p-24), expected[i].narrow);
        case_free(&made);
    }
}

static void without_tokens_the_bias_keeps_its_bits(void **state)
{
    float bias[] = {-0.0f, 1, 0x1p-149f, -2};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_qb_exact, "paper");
    set_sizes(&made, 0);
    case_in(&made, "score", scores());
    case_in(&made, "bias", bias);
    case_build(&made);
    memcpy(case_f32(&made, "new_bias"), bias, sizeof bias);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_f32(&made, "new_bias")[0] = 0;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_free(&made);
}

/* Clause Q3's example on counts that were 1 everywhere; row 1 has r on the edge 0. */
static const int64_t example_hist[] = {0, 4, 4, 0, 0, 3, 5, 0, 0, 1, 6, 1, 0, 0, 7, 1};

static void open_hist(made_case *made, int64_t *before)
{
    for (int i = 0; i < N * B; i++) before[i] = 1;
    case_begin(made, SLM_OP_qb_hist_accumulate, "paper");
    set_sizes(made, M);
    case_in(made, "score", scores());
    case_in(made, "bias", zero_bias);
    case_in(made, "hist", before);
    case_build(made);
    for (int i = 0; i < N * B; i++) case_i64(made, "hist")[i] = 1 + example_hist[i];
}

static void counts_are_added_to_the_given_ones(void **state)
{
    int64_t before[N * B];
    made_case made;

    (void)state;
    open_hist(&made, before);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    for (int i = 0; i < N * B; i++) case_i64(&made, "hist")[i] = example_hist[i];
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.clause, "Q3");
    case_free(&made);
}

static void a_lost_or_misplaced_count_fails(void **state)
{
    int64_t before[N * B];
    made_case made;

    (void)state;
    open_hist(&made, before);
    case_i64(&made, "hist")[1]--;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "hist[0,1]");
    case_i64(&made, "hist")[0]++; /* moved to the bin below */
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_i64(&made, "hist")[0]--;
    case_i64(&made, "hist")[1]++;
    case_i64(&made, "hist")[3]++; /* one count more than tokens */
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_free(&made);
}

/* r = 0 is an edge when b = 0: it belongs to the bin above, for any arithmetic. A value
 * next to an edge may go either way in binary32, and not in binary64. */
static void an_edge_is_decided_and_its_neighbourhood_depends_on_arithmetic(void **state)
{
    const slm_arithmetic single = {.struct_size = sizeof single, .balance = 0x1p-24};
    float score[] = {0.5f, 0.25f, 0.25f, 0.25f}; /* alpha 1/4: r = -1/4, 0, 0, 0 */
    float near[] = {0.5f, 0.25f, 0.25f - 0x1p-25f, 0.25f}; /* r[2] = 2^-25 */
    int64_t before[N * B] = {0};
    static const int64_t right[] = {0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0};
    static const int64_t below[] = {0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0};
    made_case made;

    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        case_begin(&made, SLM_OP_qb_hist_accumulate, "paper");
        set_sizes(&made, 1);
        case_in(&made, "score", pass ? near : score);
        case_in(&made, "bias", zero_bias);
        case_in(&made, "hist", before);
        case_build(&made);
        memcpy(case_i64(&made, "hist"), right, sizeof right);
        assert_int_equal(case_judge(&made), JUDGE_PASS);
        assert_int_equal(case_judge_under(&made, &single), JUDGE_PASS);
        memcpy(case_i64(&made, "hist"), below, sizeof below);
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
        assert_int_equal(case_judge_under(&made, &single),
                         pass ? JUDGE_PASS : JUDGE_FAIL);
        case_free(&made);
    }
}

static void solve_is_judged_on_its_counts(void **state)
{
    int64_t hist[N * B];
    static const double candidate[] = {-1.0 / 4, -1.0 / 6, 1.0 / 12, 1.0 / 7};
    made_case made;
    double mean = 0;

    (void)state;
    memcpy(hist, example_hist, sizeof hist);
    case_begin(&made, SLM_OP_qb_hist_solve, "paper");
    set_sizes(&made, M);
    case_in(&made, "hist", hist);
    case_in(&made, "bias", zero_bias);
    case_build(&made);
    for (int j = 0; j < N; j++) mean += candidate[j] / N;
    for (int j = 0; j < N; j++) {
        case_f64(&made, "candidate")[j] = candidate[j];
        case_f32(&made, "new_bias")[j] = (float)(candidate[j] - mean);
    }
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_f64(&made, "candidate")[1] = -1.0 / 6 + 0x1p-40;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.clause, "Q3");
    case_f64(&made, "candidate")[1] = -1.0 / 6;
    case_f32(&made, "new_bias")[3] += 0x1p-22f;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_free(&made);
}

static void merging_is_exact_beyond_binary64(void **state)
{
    int64_t parts[2 * N * B] = {[0] = INT64_C(1) << 53, [N * B] = 1};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_qb_hist_merge, "paper");
    set_sizes(&made, 0);
    made.test.call.n_parts = 2;
    case_in(&made, "parts", parts);
    case_build(&made);
    memset(case_i64(&made, "hist"), 0, N * B * 8);
    case_i64(&made, "hist")[0] = (INT64_C(1) << 53) + 1;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_i64(&made, "hist")[0]--;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.got, "9007199254740992");
    case_free(&made);
}

static void the_sign_step_is_exact(void **state)
{
    float bias[] = {0, 0, 0, -0.0f};
    int64_t load[] = {4, 3, 3, 2};
    static const float step = 0x1p-10f;
    made_case made;
    float *new_bias;

    (void)state;
    load[1] = 5;
    load[2] = 1;
    load[3] = 2; /* mean 3 */
    case_begin(&made, SLM_OP_sign_step, "paper");
    set_sizes(&made, 0);
    case_in(&made, "bias", bias);
    case_in(&made, "load", load);
    case_build(&made);
    new_bias = case_f32(&made, "new_bias");
    new_bias[0] = new_bias[1] = -step;
    new_bias[2] = new_bias[3] = step;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    new_bias[2] = nextafterf(step, 1);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    new_bias[2] = -step;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.clause, "Q6");
    case_free(&made);
}

static void metrics_are_judged_to_binary64(void **state)
{
    int32_t ids[] = {0, 0, 0, 0, 1, 1, 1, 2};
    static const int64_t load[] = {4, 3, 1, 0};
    const double metric[] = {1, sqrt(10.0) / 4, 1, 0.375};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_load_metrics, "paper");
    set_sizes(&made, M);
    case_in(&made, "ids", ids);
    case_build(&made);
    memcpy(case_i64(&made, "load"), load, sizeof load);
    memcpy(case_f64(&made, "metric"), metric, sizeof metric);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_f64(&made, "metric")[1] = sqrt(10.0 / 3) / 2; /* n - 1 in place of n */
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_f64(&made, "metric")[1] = metric[1];
    case_f64(&made, "metric")[2] = nextafter(1, 2);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "metric[2]");
    case_free(&made);
}

static void a_result_where_ref_refuses_is_an_error_of_the_vector(void **state)
{
    float *score = scores();
    made_case made;

    (void)state;
    score[5] = NAN;
    case_begin(&made, SLM_OP_qb_exact, "paper");
    set_sizes(&made, M);
    case_in(&made, "score", score);
    case_in(&made, "bias", zero_bias);
    case_build(&made);
    for (int j = 0; j < N; j++) case_f32(&made, "new_bias")[j] = 0;
    assert_int_equal(case_judge(&made), JUDGE_ERROR);
    assert_string_equal(
        made.verdict.reason,
        "the vector wants a result, and ref refuses: SLM_ERR_NONFINITE, score");
    case_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_statistic_is_judged_to_half_an_ulp),
        cmocka_unit_test(a_bias_that_is_not_centred_fails),
        cmocka_unit_test(the_neighbouring_order_statistic_fails),
        cmocka_unit_test(a_tie_is_free_within_the_declared_roundoff_alone),
        cmocka_unit_test(without_tokens_the_bias_keeps_its_bits),
        cmocka_unit_test(counts_are_added_to_the_given_ones),
        cmocka_unit_test(a_lost_or_misplaced_count_fails),
        cmocka_unit_test(
            an_edge_is_decided_and_its_neighbourhood_depends_on_arithmetic),
        cmocka_unit_test(solve_is_judged_on_its_counts),
        cmocka_unit_test(merging_is_exact_beyond_binary64),
        cmocka_unit_test(the_sign_step_is_exact),
        cmocka_unit_test(metrics_are_judged_to_binary64),
        cmocka_unit_test(a_result_where_ref_refuses_is_an_error_of_the_vector),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
