/* SPDX-License-Identifier: Apache-2.0 */
/* test_judge_stages.c - the verdict on ties, on freedom, and on single stages. */
#include "../undeclared.h"
#include "plain.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* ---- ties and freedom ---- */

/* select given logits, n = 3, k = 1. */
static void open_logits(made_case *made, float *logit, float *bias)
{
    case_begin(made, SLM_OP_select, "paper");
    made->test.config.n_experts = 3;
    made->test.config.top_k = 1;
    made->test.call.n_tokens = 1;
    case_in(made, "logit", logit);
    case_in(made, "bias", bias);
    case_build(made);
}

static judge_state judge_id(made_case *made, int32_t id)
{
    case_i32(made, "ids")[0] = id;
    case_f32(made, "weight")[0] = 1;
    return case_judge(made);
}

static void equal_logits_are_an_exact_tie_for_the_lower_id(void **state)
{
    float logit[] = {-1, 0.3f, 0.3f}, bias[] = {0, 0, 0};
    made_case made;

    (void)state;
    open_logits(&made, logit, bias);
    assert_int_equal(judge_id(&made, 1), JUDGE_PASS);
    assert_int_equal(made.verdict.tie, 1);
    assert_int_equal(judge_id(&made, 2), JUDGE_FAIL);
    assert_int_equal(judge_id(&made, 0), JUDGE_FAIL);
    case_free(&made);
}

static void neighbours_within_the_score_error_are_free(void **state)
{
    float logit[] = {-1, 0.3f, nextafterf(0.3f, 1)}, bias[] = {0, 0, 0};
    made_case made;

    (void)state;
    open_logits(&made, logit, bias);
    assert_int_equal(judge_id(&made, 1), JUDGE_PASS);
    assert_int_equal(made.verdict.free, 1);
    assert_int_equal(judge_id(&made, 2), JUDGE_PASS);
    assert_int_equal(judge_id(&made, 0), JUDGE_FAIL);
    assert_non_null(strstr(made.verdict.want, "before it"));
    case_free(&made);
}

/* route with x = 1: logits are the router's rows, exact in any order. */
static void open_route(made_case *made, float *x, float *w_router, float *bias)
{
    case_begin(made, SLM_OP_route, "paper");
    made->test.config.d_model = 1;
    made->test.config.n_experts = 3;
    made->test.config.top_k = 1;
    made->test.call.n_tokens = 1;
    case_in(made, "x", x);
    case_in(made, "w_router", w_router);
    case_in(made, "bias", bias);
    case_build(made);
}

static void ids_must_follow_the_backends_own_scores(void **state)
{
    float x[] = {1}, w[] = {-1, 0.3f, nextafterf(0.3f, 1)}, bias[] = {0, 0, 0};
    const float s = plain_sigmoid(0.3f);
    made_case made;
    float *score;

    (void)state;
    open_route(&made, x, w, bias);
    score = case_f32(&made, "score");
    score[0] = plain_sigmoid(-1);
    score[1] = s;
    score[2] = nextafterf(s, 1);
    assert_int_equal(judge_id(&made, 2), JUDGE_PASS);
    assert_int_equal(made.verdict.forced, 1);
    assert_int_equal(judge_id(&made, 1), JUDGE_FAIL);
    score[2] = s;
    assert_int_equal(judge_id(&made, 1), JUDGE_PASS);
    assert_int_equal(made.verdict.tie, 1);
    assert_int_equal(judge_id(&made, 2), JUDGE_FAIL);
    score[2] = s * (1 + 0x1p-20f); /* not what the logit gives */
    assert_int_equal(judge_id(&made, 2), JUDGE_FAIL);
    assert_string_equal(made.verdict.stage, "score");
    case_free(&made);
}

static void deep_logits_admit_each_lawful_reading(void **state)
{
    float logit[] = {-100, -101}, bias[] = {0, 0};
    const float readings[][2] = {{0.7310586f, 0.26894143f}, {0.5f, 0.5f}};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_select, "paper");
    made.test.config.n_experts = made.test.config.top_k = 2;
    made.test.call.n_tokens = 1;
    case_in(&made, "logit", logit);
    case_in(&made, "bias", bias);
    case_build(&made);
    case_i32(&made, "ids")[0] = 0;
    case_i32(&made, "ids")[1] = 1;
    for (int i = 0; i < 2; i++) {
        memcpy(case_f32(&made, "weight"), readings[i], sizeof readings[i]);
        assert_int_equal(case_judge(&made), JUDGE_PASS);
    }
    case_f32(&made, "weight")[0] = 0.9f;
    case_f32(&made, "weight")[1] = 0.1f;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    memset(case_f32(&made, "weight"), 0, 8);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_f32(&made, "cutoff")[0] = 0; /* k = n: there is no next expert */
    memcpy(case_f32(&made, "weight"), readings[0], sizeof readings[0]);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_free(&made);
}

/* ---- single stages ---- */

static void open_situ(made_case *made, float *gate_up, size_t f)
{
    case_begin(made, SLM_OP_situ_glu, "paper");
    made->test.config.d_expert = f;
    made->test.call.n_tokens = 1;
    case_in(made, "gate_up", gate_up);
    case_build(made);
}

static void activations_of_edge_values_are_judged(void **state)
{
    float gate_up[] = {2,  -INFINITY, INFINITY, NAN, 1e4f, 1,
                       -3, 1,         3,        1,   1e5f, -INFINITY};
    made_case made;
    float *h;

    (void)state;
    open_situ(&made, gate_up, 6);
    h = case_f32(&made, "h");
    h[0] = plain_situ(2, -3, PLAIN_RIGHT);
    h[1] = 0;
    h[2] = 4 * 25 * tanhf(3.0f / 25);
    h[3] = NAN;
    h[4] = 100;
    h[5] = plain_situ(1, -1e6f, PLAIN_RIGHT);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    h[5] *= 1 + 0x1p-18f;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "h[0,5]");
    h[5] = plain_situ(1, -1e6f, PLAIN_RIGHT);
    h[4] = nextafterf(100, 101);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.want, "magnitude at most 100");
    h[4] = 100;
    h[3] = 0;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    h[3] = NAN;
    h[0] = plain_situ(2, -3, PLAIN_SIGMA_OF_CAPPED);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.clause, "L1");
    case_free(&made);
}

/* situ_glu is SiTU whatever experts the layer has, and so is its limit.           L1 */
static void the_limit_is_that_of_situ_for_all_experts(void **state)
{
    float gate_up[] = {1e4f, 1, 1e5f, 1};
    const slm_expert_kind kinds[] = {SLM_EXPERT_SITU, SLM_EXPERT_SWIGLU,
                                     SLM_EXPERT_RELU, SLM_EXPERT_LINEAR};

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        made_case made;
        float *h;

        open_situ(&made, gate_up, 2);
        made.frame.config.expert = kinds[i];
        h = case_f32(&made, "h");
        h[0] = 100;
        h[1] = plain_situ(1, 1, PLAIN_RIGHT);
        assert_int_equal(case_judge(&made), JUDGE_PASS);
        h[0] = nextafterf(100, 101);
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
        case_free(&made);
    }
}

static void an_answer_that_zeros_would_meet_is_vacuous(void **state)
{
    float gate_up[] = {-3, 0.01f};
    const slm_arithmetic hopeless = {.struct_size = sizeof hopeless,
                                     .accumulator = 0x1p-24,
                                     .sigmoid_ulp = 4,
                                     .tanh_ulp = 4,
                                     .tanh_abs = 0x1p22};
    made_case made;

    (void)state;
    open_situ(&made, gate_up, 1);
    case_f32(&made, "h")[0] = plain_situ(-3, 0.01f, PLAIN_RIGHT);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    assert_int_equal(case_judge_under(&made, &hopeless), JUDGE_VACUOUS);
    case_free(&made);
}

static void the_place_of_eps_shows_on_a_tiny_aggregate(void **state)
{
    float u[] = {0x1p-14f, -0x1p-15f, 0x1.8p-14f, 0}, gamma[] = {1, 2, 0.5f, 1};
    static const plain_fault faults[] = {PLAIN_EPS_OUTSIDE,   PLAIN_EPS_TENFOLD,
                                         PLAIN_EPS_MISSING,   PLAIN_MEAN_OVER_D,
                                         PLAIN_GAMMA_IGNORED, PLAIN_NO_NORM};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_rmsnorm, "paper");
    made.test.config.d_latent = 4;
    made.test.call.n_tokens = 1;
    case_in(&made, "u", u);
    case_in(&made, "gamma", gamma);
    case_build(&made);
    plain_rmsnorm(u, gamma, 4, 8, PLAIN_RIGHT, case_f32(&made, "r"));
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        plain_rmsnorm(u, gamma, 4, 8, faults[i], case_f32(&made, "r"));
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
        assert_string_equal(made.verdict.clause, "L2");
    }
    case_free(&made);
}

/* 1.5 2^-8 of r is one and a half roundings of bf16: room for it only where gamma can
 * have been multiplied in the narrow type, and that rounds. */
static void a_narrow_gamma_rounds_unless_it_is_a_power_of_two(void **state)
{
    static const struct {
        float gamma;
        judge_state state;
    } expected[] = {{1, JUDGE_FAIL}, {-4, JUDGE_FAIL}, {3, JUDGE_PASS}};
    float u[] = {3, -1, 2, 5};
    slm_arithmetic coarse = {.struct_size = sizeof coarse, .accumulator = 0x1p-24};

    (void)state;
    coarse.rsqrt_ulp = 4;
    coarse.store[SLM_STAGE_R] = 0x1p-8;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const float one = expected[i].gamma;
        float gamma[] = {one, one, one, one};
        made_case made;

        case_begin(&made, SLM_OP_rmsnorm, "paper");
        made.test.config.d_latent = 4;
        made.test.call.n_tokens = 1;
        case_in(&made, "u", u);
        case_in(&made, "gamma", gamma);
        case_build(&made);
        plain_rmsnorm(u, gamma, 4, 8, PLAIN_RIGHT, case_f32(&made, "r"));
        assert_int_equal(case_judge_under(&made, &coarse), JUDGE_PASS);
        for (size_t j = 0; j < 4; j++) case_f32(&made, "r")[j] *= 1 + 0x1.8p-8f;
        assert_int_equal(case_judge_under(&made, &coarse), expected[i].state);
        case_free(&made);
    }
}

static void permute_is_exact(void **state)
{
    int32_t ids[] = {2, 0, 0, 3, 2, 3};
    static const int64_t counts[] = {2, 0, 2, 2}, offsets[] = {0, 2, 2, 4, 6};
    static const int64_t order[] = {1, 2, 0, 4, 3, 5};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_permute, "paper");
    made.test.config.n_experts = 4;
    made.test.config.top_k = 2;
    made.test.call.n_tokens = 3;
    case_in(&made, "ids", ids);
    case_build(&made);
    memcpy(case_i64(&made, "counts"), counts, sizeof counts);
    memcpy(case_i64(&made, "offsets"), offsets, sizeof offsets);
    memcpy(case_i64(&made, "order"), order, sizeof order);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_i64(&made, "order")[0] = 2; /* the same group, not in order */
    case_i64(&made, "order")[1] = 1;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.place, "order[0]");
    case_free(&made);
}

/* ---- what a declaration would explain ---- */

static const slm_arithmetic declared = {.struct_size = sizeof declared,
                                        .accumulator = 0x1p-24,
                                        .sigmoid_ulp = 4,
                                        .tanh_ulp = 4,
                                        .rsqrt_ulp = 4};

static float bf16_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static void an_activation_kept_in_bf16_is_told_to_declare_it(void **state)
{
    float gate_up[] = {2, 0.3f, -3, 0.7f};
    made_case made;
    float *h;

    (void)state;
    open_situ(&made, gate_up, 2);
    h = case_f32(&made, "h");
    for (int i = 0; i < 2; i++)
        h[i] = bf16_of(plain_situ(gate_up[i], gate_up[2 + i], PLAIN_RIGHT));
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    undeclared_find(&made.test, &made.frame, &declared, &made.verdict);
    assert_string_equal(made.verdict.reason,
                        "would be within its bound with this declared (A1): store of h "
                        "2^-8 (bf16)");
    h[0] *= 1.5f; /* no longer a matter of digits */
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    undeclared_find(&made.test, &made.frame, &declared, &made.verdict);
    assert_string_equal(made.verdict.reason, "");
    case_free(&made);
}

static void weights_kept_in_bf16_may_not_be_declared(void **state)
{
    float score[] = {0.7f, 0.4f, 0.1f}, bias[] = {0, 0, 0};
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_select, "paper");
    made.test.config.n_experts = 3;
    made.test.config.top_k = 2;
    made.test.call.n_tokens = 1;
    case_in(&made, "score", score);
    case_in(&made, "bias", bias);
    case_build(&made);
    case_i32(&made, "ids")[0] = 0;
    case_i32(&made, "ids")[1] = 1;
    case_f32(&made, "cutoff")[0] = 0.1f;
    case_f32(&made, "weight")[0] = bf16_of(0.7f / 1.1f);
    case_f32(&made, "weight")[1] = bf16_of(0.4f / 1.1f);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    undeclared_find(&made.test, &made.frame, &declared, &made.verdict);
    assert_string_equal(
        made.verdict.reason,
        "every weight has the digits of bf16: must be binary32 or better (R1)");
    case_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_logits_are_an_exact_tie_for_the_lower_id),
        cmocka_unit_test(neighbours_within_the_score_error_are_free),
        cmocka_unit_test(ids_must_follow_the_backends_own_scores),
        cmocka_unit_test(deep_logits_admit_each_lawful_reading),
        cmocka_unit_test(activations_of_edge_values_are_judged),
        cmocka_unit_test(the_limit_is_that_of_situ_for_all_experts),
        cmocka_unit_test(an_answer_that_zeros_would_meet_is_vacuous),
        cmocka_unit_test(the_place_of_eps_shows_on_a_tiny_aggregate),
        cmocka_unit_test(a_narrow_gamma_rounds_unless_it_is_a_power_of_two),
        cmocka_unit_test(permute_is_exact),
        cmocka_unit_test(an_activation_kept_in_bf16_is_told_to_declare_it),
        cmocka_unit_test(weights_kept_in_bf16_may_not_be_declared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
