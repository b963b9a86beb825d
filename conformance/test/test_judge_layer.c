/* SPDX-License-Identifier: Apache-2.0 */
/* test_judge_layer.c - the judge on whole layers: right ones pass in every order of
 * summation, each known fault is found, with taps and without. */
#include "../seeded.h"
#include "plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { D = 24, L = 16, N = 12, K = 3, F = 20, S = 2, FS = 8, T = 6 };

/* Inputs of one scale; every value has few digits, as a vector's recipe makes them. */
typedef struct inputs {
    float x[T * D], bias[N], w_router[N * D], w_down[L * D];
    float w_gate[N * F * L], w_up[N * F * L], w_out[N * L * F];
    float gamma[L], w_lift[D * L];
    float w_shared_gate[S * FS * D], w_shared_up[S * FS * D], w_shared_out[D * S * FS];
} inputs;

static void fill(float *out, size_t n, const char *name, double scale, double add)
{
    for (size_t i = 0; i < n; i++) out[i] = seeded_value(7, name, i, 7, scale, add);
}

/* scale multiplies the experts' inner matrices, out the last one. */
static inputs *make_inputs(double scale, double out)
{
    inputs *in = calloc(1, sizeof *in);

    if (!in) abort();
    fill(in->x, T * D, "x", 0x1p-6, 0);
    fill(in->bias, N, "bias", 0x1p-10, 0);
    fill(in->w_router, N * D, "w_router", 0x1p-8, 0);
    fill(in->w_down, L * D, "w_down", 0x1p-8 * scale, 0);
    fill(in->w_gate, N * F * L, "w_gate", 0x1p-8, 0);
    fill(in->w_up, N * F * L, "w_up", 0x1p-8, 0);
    fill(in->w_out, N * L * F, "w_out", 0x1p-8 * out, 0);
    fill(in->gamma, L, "gamma", 0x1p-10, 1);
    fill(in->w_lift, D * L, "w_lift", 0x1p-8, 0);
    fill(in->w_shared_gate, S * FS * D, "w_shared_gate", 0x1p-8, 0);
    fill(in->w_shared_up, S * FS * D, "w_shared_up", 0x1p-8, 0);
    fill(in->w_shared_out, D * S * FS, "w_shared_out", 0x1p-8, 0);
    return in;
}

static void open_layer(made_case *made, inputs *in)
{
    slm_config *config;

    case_begin(made, SLM_OP_layer_forward, "paper");
    config = &made->test.config;
    config->d_model = D;
    config->d_latent = L;
    config->n_experts = N;
    config->top_k = K;
    config->d_expert = F;
    config->n_shared = S;
    config->d_shared = FS;
    made->test.call.n_tokens = T;
    case_in(made, "x", in->x);
    case_in(made, "bias", in->bias);
    case_in(made, "w_router", in->w_router);
    case_in(made, "w_down", in->w_down);
    case_in(made, "w_gate", in->w_gate);
    case_in(made, "w_up", in->w_up);
    case_in(made, "w_out", in->w_out);
    case_in(made, "gamma", in->gamma);
    case_in(made, "w_lift", in->w_lift);
    case_in(made, "w_shared_gate", in->w_shared_gate);
    case_in(made, "w_shared_up", in->w_shared_up);
    case_in(made, "w_shared_out", in->w_shared_out);
    case_build(made);
}

/* Unit, saturating, tiny aggregate. */
static const struct {
    double scale;
    double out;
} scales[] = {{1, 1}, {32, 1}, {0x1p-3, 0x1p-8}};

enum { SCALES = sizeof scales / sizeof *scales };

static void right_layers_pass_in_every_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < SCALES; i++) {
        inputs *in = make_inputs(scales[i].scale, scales[i].out);
        made_case made;

        open_layer(&made, in);
        for (int order = 0; order < PLAIN_ORDERS; order++) {
            for (int taps = 0; taps < 2; taps++) {
                plain_layer(&made, (plain_order)order, PLAIN_RIGHT, taps);
                if (case_judge(&made) != JUDGE_PASS)
                    fail_msg("scale %zu order %d taps %d: %s %s got %s want %s %s", i,
                             order, taps, made.verdict.clause, made.verdict.place,
                             made.verdict.got, made.verdict.want, made.verdict.reason);
                assert_int_equal(
                    made.verdict.forced + made.verdict.free + made.verdict.tie, T);
            }
        }
        case_free(&made);
        free(in);
    }
}

/* Whether some scale shows the fault. */
static int is_found(plain_fault fault, int taps)
{
    int found = 0;

    for (size_t i = 0; i < SCALES; i++) {
        inputs *in = make_inputs(scales[i].scale, scales[i].out);
        made_case made;

        open_layer(&made, in);
        plain_layer(&made, PLAIN_FORWARD, fault, taps);
        found |= case_judge(&made) == JUDGE_FAIL;
        case_free(&made);
        free(in);
    }
    return found;
}

static void every_fault_is_found_with_taps(void **state)
{
    (void)state;
    for (int fault = 1; fault < PLAIN_FAULTS; fault++)
        if (!is_found((plain_fault)fault, 1))
            fail_msg("survives: %s", plain_fault_name((plain_fault)fault));
}

static void every_fault_is_found_without_taps(void **state)
{
    (void)state;
    for (int fault = 1; fault < PLAIN_FAULTS; fault++)
        if (!is_found((plain_fault)fault, 0))
            fail_msg("survives: %s", plain_fault_name((plain_fault)fault));
}

/* The fault's own stage is named, not a later one that it spoils. */
static void the_guilty_stage_is_named(void **state)
{
    static const struct {
        plain_fault fault;
        size_t scale;
        const char *stage;
        const char *clause;
    } expected[] = {{PLAIN_BIAS_IN_WEIGHT, 0, "weight", "R3"},
                    {PLAIN_BIAS_IGNORED, 0, "ids", "R2"},
                    {PLAIN_SCORES_BF16, 0, "score", "R2"},
                    {PLAIN_SIGMA_OF_CAPPED, 1, "h", "L1"},
                    {PLAIN_BETAS_SWAPPED, 1, "h", "L1"},
                    {PLAIN_LAST_EXPERT_DROPPED, 0, "u", "L2"},
                    {PLAIN_EPS_OUTSIDE, 2, "r", "L2"},
                    {PLAIN_SHARED_FED_Z, 0, "hs", "L3"},
                    {PLAIN_SHARED_DROPPED, 0, "y", "L6"},
                    {PLAIN_BF16_SUMS, 0, "logit", "R1"}};

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        inputs *in =
            make_inputs(scales[expected[i].scale].scale, scales[expected[i].scale].out);
        made_case made;

        open_layer(&made, in);
        plain_layer(&made, PLAIN_FORWARD, expected[i].fault, 1);
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
        assert_string_equal(made.verdict.stage, expected[i].stage);
        assert_string_equal(made.verdict.clause, expected[i].clause);
        assert_true(made.verdict.place[0] && made.verdict.got[0] &&
                    made.verdict.want[0]);
        case_free(&made);
        free(in);
    }
}

/* One element of one tap, off by a thousand units of its last place. */
static void one_wrong_element_of_any_tap_fails(void **state)
{
    static const char *const taps[] = {"logit", "score", "weight", "z",  "h",
                                       "o",     "u",     "r",      "hs", "y"};
    inputs *in = make_inputs(1, 1);
    made_case made;

    (void)state;
    open_layer(&made, in);
    for (size_t i = 0; i < sizeof taps / sizeof *taps; i++) {
        plain_layer(&made, PLAIN_LANES, PLAIN_RIGHT, 1);
        const size_t last = slm_tensor_count(frame_tensor(&made.frame, taps[i])) - 1;

        case_f32(&made, taps[i])[last] *= 1 + 0x1p-12f;
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
        assert_string_equal(made.verdict.stage, taps[i]);
        plain_layer(&made, PLAIN_LANES, PLAIN_RIGHT, 1);
        case_f32(&made, taps[i])[last] = NAN;
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
        assert_string_equal(made.verdict.stage, taps[i]);
    }
    case_free(&made);
    free(in);
}

/* Bounds a hundred times smaller refuse a right layer: they are not slack. */
static void a_hundredth_of_the_bounds_raises_alarm(void **state)
{
    const slm_arithmetic sharp = {.struct_size = sizeof sharp,
                                  .accumulator = 0x1p-24 / 100,
                                  .sigmoid_ulp = 0.04,
                                  .tanh_ulp = 0.04,
                                  .rsqrt_ulp = 0.04};
    inputs *in = make_inputs(1, 1);
    made_case made;

    (void)state;
    open_layer(&made, in);
    plain_layer(&made, PLAIN_FORWARD, PLAIN_RIGHT, 1);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    assert_int_equal(case_judge_under(&made, &sharp), JUDGE_FAIL);
    case_free(&made);
    free(in);
}

static void coarse_stores_pass_only_when_declared(void **state)
{
    slm_arithmetic coarse = {.struct_size = sizeof coarse,
                             .accumulator = 0x1p-24,
                             .sigmoid_ulp = 4,
                             .tanh_ulp = 4,
                             .rsqrt_ulp = 4};

    (void)state;
    for (int i = 0; i < SLM_STAGE_COUNT; i++) coarse.store[i] = 0x1p-8;
    for (size_t i = 0; i < SCALES; i++) {
        inputs *in = make_inputs(scales[i].scale, scales[i].out);
        made_case made;

        open_layer(&made, in);
        for (int taps = 0; taps < 2; taps++) {
            plain_layer(&made, PLAIN_FMA, PLAIN_STORES_BF16, taps);
            assert_int_equal(case_judge(&made), JUDGE_FAIL);
            assert_int_equal(case_judge_under(&made, &coarse), JUDGE_PASS);
            plain_layer(&made, PLAIN_FMA, PLAIN_SHARED_DROPPED, taps);
            assert_int_equal(case_judge_under(&made, &coarse), JUDGE_FAIL);
            plain_layer(&made, PLAIN_FMA, PLAIN_LAST_EXPERT_DROPPED, taps);
            assert_int_equal(case_judge_under(&made, &coarse), JUDGE_FAIL);
        }
        plain_layer(&made, PLAIN_FMA, PLAIN_SCORES_BF16, 1);
        assert_int_equal(case_judge_under(&made, &coarse), JUDGE_FAIL);
        assert_string_equal(made.verdict.stage, "score");
        case_free(&made);
        free(in);
    }
}

static void missing_taps_one_by_one_still_pass(void **state)
{
    static const char *const taps[] = {"cutoff", "logit", "score", "z", "h",
                                       "o",      "u",     "r",     "hs"};
    inputs *in = make_inputs(1, 1);
    made_case made, bare;

    (void)state;
    open_layer(&made, in);
    open_layer(&bare, in); /* stays poisoned */
    for (size_t i = 0; i < sizeof taps / sizeof *taps; i++) {
        plain_layer(&made, PLAIN_BACKWARD, PLAIN_RIGHT, 1);
        const size_t bytes = 4 * slm_tensor_count(frame_tensor(&made.frame, taps[i]));

        memcpy(case_f32(&made, taps[i]), case_f32(&bare, taps[i]), bytes);
        if (case_judge(&made) != JUDGE_PASS)
            fail_msg("without %s: %s got %s want %s %s", taps[i], made.verdict.place,
                     made.verdict.got, made.verdict.want, made.verdict.reason);
        /* half a tap is no tap */
        if (bytes > 4) memset(case_f32(&made, taps[i]), 0, 4);
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
    }
    case_free(&bare);
    case_free(&made);
    free(in);
}

static void a_poisoned_token_needs_nan_in_all_of_y(void **state)
{
    inputs *in = make_inputs(1, 1);
    made_case made;

    (void)state;
    in->x[D + 3] = NAN;
    open_layer(&made, in);
    plain_layer(&made, PLAIN_FORWARD, PLAIN_RIGHT, 0);
    for (int q = 0; q < K; q++) case_i32(&made, "ids")[K + q] = q;
    for (int i = 0; i < D; i++) case_f32(&made, "y")[D + i] = NAN;
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_f32(&made, "y")[D + D - 1] = 0;
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.clause, "R4");
    case_f32(&made, "y")[D + D - 1] = NAN;
    case_i32(&made, "ids")[K] = case_i32(&made, "ids")[K + 1];
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.stage, "ids");
    case_free(&made);
    free(in);
}

/* Whatever a backend leaves behind, the judge answers. */
static void any_bits_are_judged_and_refused(void **state)
{
    static const char *const outputs[] = {
        "cutoff", "logit", "score", "weight", "z", "h", "o", "u", "r", "hs", "y"};
    static const float odd[] = {NAN,   INFINITY,  -INFINITY, 0,
                                -0.0f, 0x1p-149f, 0x1p127f};
    enum { OUTPUTS = sizeof outputs / sizeof *outputs, ODD = sizeof odd / sizeof *odd };
    inputs *in = make_inputs(1, 1);
    made_case made;

    (void)state;
    open_layer(&made, in);
    for (uint64_t i = 0; i < OUTPUTS * ODD; i++) {
        const char *field = outputs[i % OUTPUTS];
        const size_t count = slm_tensor_count(frame_tensor(&made.frame, field));

        plain_layer(&made, PLAIN_FORWARD, PLAIN_RIGHT, 1);
        for (size_t j = 0; j < count; j++) case_f32(&made, field)[j] = odd[i / OUTPUTS];
        assert_int_equal(case_judge(&made), JUDGE_FAIL);
    }
    case_free(&made);
    free(in);
}

/* A weight that is no number: the stages before it are judged, what it spoils is the
 * file's to decide.                                                               R4 */
static void weights_that_are_no_numbers_do_not_stop_the_judge(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    enum { WEIGHTS = 8 };

    (void)state;
    for (int i = 0; i < WEIGHTS * 3; i++) {
        inputs *in = make_inputs(1, 1);
        float *const weights[WEIGHTS] = {in->w_down,      in->w_gate, in->w_up,
                                         in->w_out,       in->gamma,  in->w_shared_gate,
                                         in->w_shared_up, in->w_lift};
        made_case made;

        weights[i % WEIGHTS][0] = odd[i / WEIGHTS];
        open_layer(&made, in);
        for (int taps = 0; taps < 2; taps++) {
            plain_layer(&made, PLAIN_FORWARD, PLAIN_RIGHT, taps);
            assert_int_equal(case_judge(&made), JUDGE_PASS);
            case_f32(&made, "weight")[0] *= 1.001f;
            assert_int_equal(case_judge(&made), JUDGE_FAIL);
        }
        case_free(&made);
        free(in);
    }
}

/* A token's row of y and of the taps after its choice, as of a backend that gave it up. */
static void give_up(made_case *made, size_t t)
{
    static const char *const fields[] = {"y", "z", "h", "o", "u", "r", "hs"};

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const slm_tensor *tensor = frame_tensor(&made->frame, fields[i]);
        const size_t width = slm_tensor_count(tensor) / T;

        for (size_t j = 0; j < width; j++)
            case_f32(made, fields[i])[t * width + j] = NAN;
    }
}

/* A row may be given up when a weight that it uses is no number, and no other.    R4 */
static void a_row_is_given_up_for_its_own_weights_alone(void **state)
{
    inputs *in = make_inputs(1, 1);
    made_case made;
    size_t expert, user = T, other = T;

    (void)state;
    open_layer(&made, in);
    plain_layer(&made, PLAIN_FORWARD, PLAIN_RIGHT, 1);
    expert = (size_t)case_i32(&made, "ids")[0];
    for (size_t t = 0; t < T; t++) {
        const int32_t *ids = case_i32(&made, "ids") + t * K;
        int has = 0;

        for (int q = 0; q < K; q++) has |= (size_t)ids[q] == expert;
        *(has ? &user : &other) = t;
    }
    assert_true(user < T && other < T);
    give_up(&made, user);
    assert_int_equal(case_judge(&made), JUDGE_FAIL); /* every weight is a number */
    case_free(&made);

    in->w_gate[expert * F * L + 1] = NAN;
    open_layer(&made, in);
    plain_layer(&made, PLAIN_FORWARD, PLAIN_RIGHT, 1);
    give_up(&made, user);
    assert_int_equal(case_judge(&made), JUDGE_PASS);
    case_f32(&made, "y")[user * D + 1] = 0; /* what is left of a NaN's row */
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    case_f32(&made, "y")[user * D + 1] = NAN;
    give_up(&made, other);
    assert_int_equal(case_judge(&made), JUDGE_FAIL);
    assert_string_equal(made.verdict.stage, "z");
    case_free(&made);
    free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_layers_pass_in_every_order),
        cmocka_unit_test(every_fault_is_found_with_taps),
        cmocka_unit_test(every_fault_is_found_without_taps),
        cmocka_unit_test(the_guilty_stage_is_named),
        cmocka_unit_test(one_wrong_element_of_any_tap_fails),
        cmocka_unit_test(a_hundredth_of_the_bounds_raises_alarm),
        cmocka_unit_test(coarse_stores_pass_only_when_declared),
        cmocka_unit_test(missing_taps_one_by_one_still_pass),
        cmocka_unit_test(a_poisoned_token_needs_nan_in_all_of_y),
        cmocka_unit_test(any_bits_are_judged_and_refused),
        cmocka_unit_test(weights_that_are_no_numbers_do_not_stop_the_judge),
        cmocka_unit_test(a_row_is_given_up_for_its_own_weights_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
