/* SPDX-License-Identifier: Apache-2.0 */
/* test_bounds_backward.c - the bounds of gradients hold for right binary32 arithmetic, are
 * not slack, and leave the known faults outside. */
#include "../bounds.h"
#include "../seeded.h"
#include "plain.h"

#include <ref.h>

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

static slm_config paper(void)
{
    slm_config config;

    slm_config_profile("paper", &config);
    return config;
}

/* ---- declarations ---- */

static void an_older_declaration_stores_gradients_as_they_are(void **state)
{
    slm_arithmetic given;
    bound_rules rules;

    (void)state;
    memset(&given, 0, sizeof given);
    given.struct_size = offsetof(slm_arithmetic, store_gradient);
    given.store_gradient = given.store_weight_gradient = 0.5;
    rules = bound_declared(&given);
    assert_true(bound_stored_gradient(&rules, SLM_F32) == 0x1p-24);
    assert_true(bound_stored_gradient(&rules, SLM_BF16) == 0x1p-8);
    assert_true(bound_stored_weight_gradient(&rules) == 0x1p-24);
    given.struct_size = sizeof given;
    rules = bound_declared(&given);
    assert_true(bound_stored_gradient(&rules, SLM_BF16) == 0.5);
    assert_true(bound_stored_weight_gradient(&rules) == 0.5);
}

/* ---- slopes ---- */

static float sech2(float x)
{
    const float q = expf(-2 * fabsf(x));

    return 4 * q / ((1 + q) * (1 + q));
}

static float gate_slope(float a, float b, float dh, float (*cap_slope)(float))
{
    const float s = plain_sigmoid(a), gate = 4 * tanhf(a / 4);

    return dh * (25 * tanhf(b / 25)) *
           (s * cap_slope(a / 4) + gate * s * plain_sigmoid(-a));
}

static float up_slope(float a, float b, float dh, float (*cap_slope)(float))
{
    return dh * (4 * tanhf(a / 4)) * plain_sigmoid(a) * cap_slope(b / 25);
}

static float one_minus_tanh2(float x)
{
    return 1 - tanhf(x) * tanhf(x);
}

static int is_in(bound_interval range, double value)
{
    return range.lo <= value && value <= range.hi;
}

/* Distance from the real number over that of the nearer end. */
static double used(bound_interval range, double got, double want)
{
    if (got == want) return 0;
    return got > want ? (got - want) / (range.hi - want)
                      : (want - got) / (want - range.lo);
}

static void slopes_hold_in_binary32(void **state)
{
    enum { DRAWS = 20000 };
    const bound_rules rules = binary32();
    const slm_config config = paper();
    double worst_gate = 0, worst_up = 0;
    arb_t a, b, dh, da, db;

    (void)state;
    arb_init(a);
    arb_init(b);
    arb_init(dh);
    arb_init(da);
    arb_init(db);
    for (uint64_t i = 0; i < DRAWS; i++) {
        const float scale = i % 3 == 0 ? 4 : i % 3 == 1 ? 40 : 0.01f;
        const float x = scale * seeded_value(3, "a", i, 20, 0x1p-20, 0);
        const float y = 6 * scale * seeded_value(3, "b", i, 20, 0x1p-20, 0);
        const float z = seeded_value(3, "dh", i, 20, 0x1p-20, 0);
        const bound_interval gate =
            bound_gate_slope(&rules, &config, (double)x, (double)y, (double)z);
        const bound_interval up =
            bound_up_slope(&rules, &config, (double)x, (double)y, (double)z);
        const double got_gate = (double)gate_slope(x, y, z, sech2);
        const double got_up = (double)up_slope(x, y, z, sech2);

        arb_set_d(a, (double)x);
        arb_set_d(b, (double)y);
        arb_set_d(dh, (double)z);
        slm_ref_situ_glu_backward(da, db, a, b, dh, &config, 64);
        if (!is_in(gate, got_gate) || !is_in(up, got_up))
            fail_msg("a %a b %a: %a not in %a .. %a, or %a not in %a .. %a", (double)x,
                     (double)y, got_gate, gate.lo, gate.hi, got_up, up.lo, up.hi);
        worst_gate = fmax(
            worst_gate, used(gate, got_gate, arf_get_d(arb_midref(da), ARF_RND_NEAR)));
        worst_up =
            fmax(worst_up, used(up, got_up, arf_get_d(arb_midref(db), ARF_RND_NEAR)));
    }
    assert_true(worst_gate > 0.05 && worst_gate <= 1);
    assert_true(worst_up > 0.05 && worst_up <= 1);
    arb_clear(db);
    arb_clear(da);
    arb_clear(dh);
    arb_clear(b);
    arb_clear(a);
}

/* sech^2 stays relative: 1 - tanh^2 leaves the bound long before it is 0, on both sides
 * of 0; and in the gate's half, which at a = 40 consists of it. */
static void one_minus_tanh_squared_is_outside(void **state)
{
    static const float ups[] = {100, 150, 250, -400};
    const bound_rules rules = binary32();
    const slm_config config = paper();
    bound_interval gate;

    (void)state;
    for (int i = 0; i < 4; i++) {
        const bound_interval up = bound_up_slope(&rules, &config, 1, (double)ups[i], 1);
        const float right = up_slope(1, ups[i], 1, sech2);
        const float wrong = up_slope(1, ups[i], 1, one_minus_tanh2);

        assert_true(is_in(up, (double)right));
        assert_false(is_in(up, (double)wrong));
    }
    gate = bound_gate_slope(&rules, &config, 40, 3, 1);
    assert_true(is_in(gate, (double)gate_slope(40, 3, 1, sech2)));
    assert_false(is_in(gate, (double)gate_slope(40, 3, 1, one_minus_tanh2)));
}

/* sigma(-a) stays relative, too. The slope of the cap hides it under K3's beta; with a
 * wide cap it is all that is left. */
static void one_minus_sigma_is_outside(void **state)
{
    const bound_rules rules = binary32();
    slm_config config = paper();
    const float a = -15, s = plain_sigmoid(a), one = plain_sigmoid(15);
    bound_interval range;

    (void)state;
    config.expert = SLM_EXPERT_SWIGLU;
    range = bound_gate_slope(&rules, &config, -15, 3, 1);
    assert_true(is_in(range, (double)(3 * (s + a * s * plain_sigmoid(-a)))));
    range = bound_gate_slope(&rules, &config, 15, 3, 0x1p10);
    assert_true(
        is_in(range, (double)(0x1p10f * (3 * (one + 15 * one * plain_sigmoid(-15))))));
    range = bound_choice_slope(&rules, &(bound_interval){1, 1}, (const double[]){1}, 1,
                               0, 15, 1);
    assert_true(is_in(range, (double)plain_sigmoid(-15)));
    assert_false(is_in(range, (double)(1 - one)));
}

static void slopes_of_zero_and_infinity_are_exact(void **state)
{
    const bound_rules rules = binary32();
    const slm_config config = paper();
    const struct {
        double a, b, dh;
        int gate_is_zero, up_is_zero;
    } at[] = {{1, 0, 1, 1, 0},        {0, 1, 1, 0, 1},         {1, 1, 0, 1, 1},
              {INFINITY, 1, 1, 1, 0}, {-INFINITY, 1, 1, 1, 1}, {1, INFINITY, 1, 0, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        const bound_interval da =
            bound_gate_slope(&rules, &config, at[i].a, at[i].b, at[i].dh);
        const bound_interval db =
            bound_up_slope(&rules, &config, at[i].a, at[i].b, at[i].dh);

        if ((da.lo == 0 && da.hi == 0) != at[i].gate_is_zero ||
            (db.lo == 0 && db.hi == 0) != at[i].up_is_zero)
            fail_msg("case %zu: da %a .. %a, db %a .. %a", i, da.lo, da.hi, db.lo,
                     db.hi);
    }
}

/* At (0, b) da = dh / 2 U(b) and only one of the two terms is there: the allowance is
 * that of its factors. */
static void the_bound_of_a_slope_is_that_of_its_factors(void **state)
{
    const bound_rules rules = binary32();
    const slm_config config = paper();
    const bound_interval da = bound_gate_slope(&rules, &config, 0, 1, 1);
    const double want = 0.5 * 25 * tanh(1.0 / 25);
    /* sigma 4, sech^2 2 * 4 + 4, tanh 4, roundings 12 */
    const double most = (4 + 12 + 4 + 12) * 0x1p-24 * want;

    (void)state;
    assert_true(da.hi - want >= 0.999 * most && da.hi - want <= 1.001 * most);
    assert_true(want - da.lo >= 0.999 * most && want - da.lo <= 1.001 * most);
}

/* ---- RMSNorm ---- */

enum { WIDTH = 24 };

/* du of one row; `slip` leaves the projection out. */
static void norm_slope(const float *u, const float *g, int slip, float *du)
{
    float sum = 0, mean = 0, scale;

    for (int i = 0; i < WIDTH; i++) sum += u[i] * u[i];
    scale = 1 / sqrtf(sum / WIDTH + 1e-6f);
    for (int i = 0; i < WIDTH; i++) mean += g[i] * (u[i] * scale);
    mean /= WIDTH;
    for (int i = 0; i < WIDTH; i++)
        du[i] = (g[i] - (slip ? 0 : u[i] * scale * mean)) * scale;
}

/* Largest multiple of its bound in a row. */
static double norm_used(const float *u, const float *g, int slip)
{
    const bound_rules rules = binary32();
    bound_norm_row row = {.width = WIDTH, .terms = WIDTH};
    double sum = 0, mean = 0, worst = 0;
    float du[WIDTH];

    norm_slope(u, g, slip, du);
    for (int i = 0; i < WIDTH; i++) sum += (double)u[i] * (double)u[i];
    row.root = sqrt(sum / WIDTH + 1e-6);
    row.rel = bound_rmsnorm(&rules, 1e-6, WIDTH);
    for (int i = 0; i < WIDTH; i++) {
        const double term = (double)g[i] * (double)u[i] / row.root / WIDTH;

        mean += term;
        row.mean += fabs(term);
    }
    for (int i = 0; i < WIDTH; i++) {
        const double n = (double)u[i] / row.root;
        const double want = ((double)g[i] - n * mean) / row.root;

        worst = fmax(worst, fabs((double)du[i] - want) /
                                bound_norm_slope(&rules, &row, (double)g[i], n));
    }
    return worst;
}

static void slopes_of_the_norm_hold_in_binary32(void **state)
{
    enum { ROWS = 2000 };
    double worst = 0;
    int found = 0;

    (void)state;
    for (uint64_t t = 0; t < ROWS; t++) {
        const double scale = t % 2 ? 1 : 0x1p-12;
        float u[WIDTH], g[WIDTH];

        seeded_values(5, "u", t * WIDTH, WIDTH, 20, 0x1p-20 * scale, 0, u);
        seeded_values(5, "g", t * WIDTH, WIDTH, 20, 0x1p-20, 0, g);
        worst = fmax(worst, norm_used(u, g, 0));
        found += norm_used(u, g, 1) > 100;
    }
    assert_true(found > 0.98 * ROWS); /* a mean of 0 has no projection to leave out */
    assert_true(worst > 0.01 && worst <= 1);
}

/* ---- weights ---- */

enum { K = 3 };

/* dlogit of slot q, the normaliser's term left out when `slip`. */
static float choice_slope(const float *logit, const float *dp, int q, int slip)
{
    float s[K], sum = 0, mean = 0;

    for (int i = 0; i < K; i++) sum += s[i] = plain_sigmoid(logit[i]);
    for (int i = 0; i < K; i++) mean += s[i] / sum * dp[i];
    return s[q] / sum * plain_sigmoid(-logit[q]) * (dp[q] - (slip ? 0 : mean));
}

static bound_interval choice_range(const float *logit, const float *dp, size_t q)
{
    const bound_rules rules = binary32();
    bound_interval score[K], p[K];
    double l[K], d[K];

    for (int i = 0; i < K; i++) {
        l[i] = (double)logit[i];
        d[i] = (double)dp[i];
    }
    bound_choice_weights(&rules, l, K, 0, score, p);
    return bound_choice_slope(&rules, p, d, K, q, l[q], 0);
}

static void slopes_of_weights_hold_in_binary32(void **state)
{
    enum { ROWS = 5000 };
    double worst = 0;

    (void)state;
    for (uint64_t t = 0; t < ROWS; t++) {
        const double scale = t % 2 ? 0x1p-18 : 0x1p-15;
        float logit[K], dp[K];

        seeded_values(6, "logit", t * K, K, 20, scale, 0, logit);
        seeded_values(6, "dp", t * K, K, 20, 0x1p-20, 0, dp);
        for (int q = 0; q < K; q++) {
            const bound_interval range = choice_range(logit, dp, (size_t)q);
            const double middle = 0.5 * (range.lo + range.hi);
            const double got = (double)choice_slope(logit, dp, q, 0);

            assert_true(is_in(range, got));
            worst = fmax(worst, fabs(got - middle) / (0.5 * (range.hi - range.lo)));
        }
    }
    assert_true(worst > 0.01);
}

static void a_missing_normaliser_is_outside(void **state)
{
    const float logit[] = {0.5f, -1, 2}, dp[] = {1, -0.5f, 0.25f};

    (void)state;
    for (int q = 0; q < K; q++) {
        const bound_interval range = choice_range(logit, dp, (size_t)q);

        assert_true(is_in(range, (double)choice_slope(logit, dp, q, 0)));
        assert_false(is_in(range, (double)choice_slope(logit, dp, q, 1)));
    }
}

/* 1 - s of a score that rounds to 1 is 0; sigmoid(-20) is not. */
static void one_minus_a_rounded_score_is_outside(void **state)
{
    const float logit[] = {20, 19, 0}, dp[] = {1, -1, 0.5f};
    const bound_interval range = choice_range(logit, dp, 0);

    (void)state;
    assert_true(is_in(range, (double)choice_slope(logit, dp, 0, 0)));
    assert_false(is_in(range, 0));
}

/* Where binary32 loses the ratio (R3) any weight is lawful, and no more than that. */
static void deep_logits_leave_the_ratio_open(void **state)
{
    const float deep[] = {-100, -101, -100}, dp[] = {1, -1, 0};
    const bound_rules rules = binary32();
    const double logit[] = {-100, -101, -100}, shallow[] = {-60, -61, -60};
    bound_interval score[K], p[K], range = choice_range(deep, dp, 0);

    (void)state;
    bound_choice_weights(&rules, logit, K, 0, score, p);
    assert_true(p[0].lo == 0 && p[0].hi >= 1);
    bound_choice_weights(&rules, shallow, K, 0, score, p);
    assert_true(p[0].hi - p[0].lo < 0x1p-19);
    assert_true(range.hi < 2.01 && range.lo >= -0x1p-18);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_older_declaration_stores_gradients_as_they_are),
        cmocka_unit_test(slopes_hold_in_binary32),
        cmocka_unit_test(one_minus_tanh_squared_is_outside),
        cmocka_unit_test(one_minus_sigma_is_outside),
        cmocka_unit_test(slopes_of_zero_and_infinity_are_exact),
        cmocka_unit_test(the_bound_of_a_slope_is_that_of_its_factors),
        cmocka_unit_test(slopes_of_the_norm_hold_in_binary32),
        cmocka_unit_test(slopes_of_weights_hold_in_binary32),
        cmocka_unit_test(a_missing_normaliser_is_outside),
        cmocka_unit_test(one_minus_a_rounded_score_is_outside),
        cmocka_unit_test(deep_logits_leave_the_ratio_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
