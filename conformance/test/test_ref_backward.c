/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref_backward.c - the reference's single backward operations on values known
 * without it: by hand, by limits, by MPFR in other formulas.                  G1-G5 */
#include "internal.h"
#include "ref_call.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* ---- situ_glu_backward ---- */

/* T pairs of width 1. */
static slm_situ_glu_backward_args situ_args(const float *gate_up, const float *dh,
                                            double *dgate_up, size_t n_tokens)
{
    poison(dgate_up, n_tokens * 2 * sizeof *dgate_up);
    return (slm_situ_glu_backward_args){
        .call = {.struct_size = sizeof(slm_situ_glu_backward_args),
                 .n_tokens = n_tokens},
        .gate_up = view(gate_up, SLM_F32, 2, n_tokens, 2, 0),
        .dh = view(dh, SLM_F32, 2, n_tokens, 1, 0),
        .dgate_up = view(dgate_up, SLM_F64, 2, n_tokens, 2, 0)};
}

static slm_status situ(const char *profile, const slm_situ_glu_backward_args *args,
                       slm_error *error)
{
    const slm_config config = config_of(profile);
    slm_handle *handle = open_ref(&config);
    const slm_status status =
        slm_ref_backend()->ops->situ_glu_backward(handle, args, error);

    slm_ref_backend()->close(handle);
    return status;
}

static void situ_at_infinities_has_the_limits(void **state)
{
    (void)state;
    const float inf = INFINITY;
    const float gate_up[] = {0, 0,   0,    inf, 0,   -inf, inf, 0,   -inf,
                             1, inf, -inf, inf, 1e4, -inf, inf, inf, 0x1p-140f};
    const float dh[] = {3, 3, 3, 3, 3, 3, 3, 3, 3};
    const double want[] = {0, 0, 37.5, 0, -37.5, 0, 0, 12, 0,
                           0, 0, 0,    0, 0,     0, 0, 0,  12};
    double got[18];
    const slm_situ_glu_backward_args args = situ_args(gate_up, dh, got, 9);

    assert_int_equal(situ("paper", &args, NULL), SLM_OK);
    same_bits(got, want, 18);
    poison(got, sizeof got);
    assert_int_equal(situ("vanilla", &args, NULL), SLM_OK); /* SiTU all the same */
    same_bits(got, want, 18);
}

static void situ_keeps_all_digits_in_saturation(void **state)
{
    (void)state;
    const float gate_up[] = {40,    300,   0.5f,  -0.75f,   -40,  3,    2,     -2000,
                             -1.3f, 1,     -1.2f, 1,        1200, 5000, -1200, 7,
                             60,    -9000, 1e-6f, 0x1p-30f, 1400, 2};
    const float dh[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    double got[22], want[22];
    const slm_situ_glu_backward_args args = situ_args(gate_up, dh, got, 11);

    assert_int_equal(situ("paper", &args, NULL), SLM_OK);
    for (size_t i = 0; i < 22; i += 2)
        situ_in_mpfr(&want[i], &want[i + 1], (double)gate_up[i],
                     (double)gate_up[i + 1]);
    same_bits(got, want, 22);
    assert_true(got[1] > 1e-10 && got[1] < 1.6e-9); /* db at (40, 300): 16 e^-24 */
    assert_true(got[0] > 0 && got[0] < 1e-6);
    assert_true(got[12] > 0 && got[12] < 1e-258); /* da at a = 1200: 100 e^-600 */
    assert_true(got[8] < 0 && got[10] > 0);       /* the zero of G' lies between */
}

static void situ_survives_the_largest_arguments(void **state)
{
    (void)state;
    const float gate_up[] = {FLT_MAX, FLT_MAX,  -FLT_MAX,  -FLT_MAX,
                             FLT_MAX, 0x1p-40f, 0x1p-149f, FLT_MAX};
    const float dh[] = {FLT_MAX, FLT_MAX, 1, 8};
    const double want[] = {0, 0, 0, 0, 0, 4, 100, 0};
    double got[8];
    const slm_situ_glu_backward_args args = situ_args(gate_up, dh, got, 4);

    assert_int_equal(situ("paper", &args, NULL), SLM_OK);
    same_bits(got, want, 8);
}

static void situ_refuses_what_is_no_number_and_writes_nothing(void **state)
{
    (void)state;
    float gate_up[] = {1, 2, 3, NAN}, dh[] = {1, 1};
    double got[4];
    slm_error error;
    const slm_situ_glu_backward_args args = situ_args(gate_up, dh, got, 2);

    assert_int_equal(situ("paper", &args, &error), SLM_ERR_NONFINITE);
    assert_string_equal(error.field, "gate_up");
    assert_int_equal(error.index, 3);
    gate_up[3] = 4;
    dh[1] = INFINITY;
    assert_int_equal(situ("paper", &args, &error), SLM_ERR_NONFINITE);
    assert_string_equal(error.field, "dh");
    assert_int_equal(error.index, 1);
    assert_true(is_poison(got, sizeof got));
}

/* ---- rmsnorm_backward ---- */

static slm_rmsnorm_backward_args norm_args(const float *u, const float *gamma,
                                           const float *dr, size_t n_tokens,
                                           size_t width)
{
    return (slm_rmsnorm_backward_args){
        .call = {.struct_size = sizeof(slm_rmsnorm_backward_args),
                 .n_tokens = n_tokens},
        .u = view(u, SLM_F32, 2, n_tokens, width, 0),
        .gamma = gamma ? view(gamma, SLM_F32, 1, width, 0, 0) : (slm_tensor){0},
        .dr = view(dr, SLM_F32, 2, n_tokens, width, 0)};
}

static slm_status norm(slm_rmsnorm_backward_args *args, double eps, slm_dtype dtype,
                       void *du, void *dgamma, slm_error *error)
{
    slm_config config = config_of("paper");
    const size_t width = args->u.shape[1];
    slm_handle *handle;
    slm_status status;

    config.d_latent = width;
    config.eps = eps;
    args->du = view(du, dtype, 2, args->call.n_tokens, width, 0);
    args->dgamma = view(dgamma, dtype, 1, width, 0, 0);
    handle = open_ref(&config);
    status = slm_ref_backend()->ops->rmsnorm_backward(handle, args, error);
    slm_ref_backend()->close(handle);
    return status;
}

/* u = (3, 1), eps 4: M = 9, R = 3. Of g = (9, 18): mean(g u) / M = 2.5, so
 * du = (9 - 7.5, 18 - 2.5) / 3. */
static void norm_by_hand(void **state)
{
    (void)state;
    const float u[] = {3, 1, 3, 1}, gamma[] = {1, 2}, dr[] = {9, 9, 3, -6};
    /* second token: g = (3, -12), mean(g u) / M = -1/6: du = (3.5, -71/6) / 3 */
    const double want_du[] = {0.5, 15.5 / 3, 3.5 / 3, -71.0 / 18};
    const double want_dgamma[] = {9 + 3, 3 - 2};
    double du[4], dgamma[2];
    slm_rmsnorm_backward_args args = norm_args(u, gamma, dr, 2, 2);

    assert_int_equal(norm(&args, 4, SLM_F64, du, dgamma, NULL), SLM_OK);
    same_bits(du, want_du, 4);
    same_bits(dgamma, want_dgamma, 2);
}

static void norm_at_zero_divides_by_the_root_of_eps(void **state)
{
    (void)state;
    const float u[] = {0, 0}, dr[] = {3, -0x1p-100f};
    const double want[] = {6, -0x1p-99}, nil[] = {0, 0};
    double du[2], dgamma[2];
    slm_rmsnorm_backward_args args = norm_args(u, NULL, dr, 1, 2);

    assert_int_equal(norm(&args, 0.25, SLM_F64, du, dgamma, NULL), SLM_OK);
    same_bits(du, want, 2);
    same_bits(dgamma, nil, 2);
}

/* g = (3, 11) at u = (3, 1), eps 5: g_0 = u_0 mean(g u) / M, whatever root 10 is. */
static void norm_proves_its_zeros(void **state)
{
    (void)state;
    const float u[] = {3, 1, 3, 1}, dr[] = {3, 11, -3, -11};
    const double nil[] = {0, 0};
    double du[4], dgamma[2];
    slm_rmsnorm_backward_args args = norm_args(u, NULL, dr, 2, 2);

    assert_int_equal(norm(&args, 5, SLM_F64, du, dgamma, NULL), SLM_OK);
    same_bits(&du[0], nil, 1);
    same_bits(&du[2], nil, 1);
    assert_true(du[1] > 3 && du[1] == -du[3]);
    same_bits(dgamma, nil, 2); /* the tokens cancel */
}

/* M = 15.624^2 = (1953 / 125)^2. */
static void norm_decides_midpoints(void **state)
{
    (void)state;
    const float u[] = {30.75f, 5.25f, 1.75f, 0.5f}, dr[] = {2134629, 0, 0, 0};
    const float gamma[] = {1953, 11439, 1, 1}, across[] = {134219, -134219, 0, 0};
    float du[4], dgamma[4];
    slm_rmsnorm_backward_args args = norm_args(u, NULL, dr, 1, 4);

    assert_int_equal(norm(&args, 1e-6, SLM_F32, du, dgamma, NULL), SLM_OK);
    assert_true(dgamma[0] == 4201219);        /* 4201218.75 */
    args = norm_args(u, gamma, across, 1, 4); /* g u sums to 0: du = g / R */
    assert_int_equal(norm(&args, 1e-6, SLM_F32, du, dgamma, NULL), SLM_OK);
    assert_true(du[0] == 16777376); /* 16777375 */
}

static void norm_of_no_tokens_writes_zeros(void **state)
{
    (void)state;
    const double nil[] = {0, 0};
    double dgamma[] = {7, 7};
    slm_rmsnorm_backward_args args = norm_args(NULL, NULL, NULL, 0, 2);

    assert_int_equal(norm(&args, 1, SLM_F64, NULL, dgamma, NULL), SLM_OK);
    same_bits(dgamma, nil, 2);
}

static void norm_refuses_infinities_and_writes_nothing(void **state)
{
    (void)state;
    float u[] = {1, 2}, gamma[] = {1, 1}, dr[] = {1, 1};
    float *const at[] = {u, gamma, dr};
    const char *const names[] = {"u", "gamma", "dr"};
    double out[4];
    slm_error error;

    for (size_t i = 0; i < 3; i++) {
        slm_rmsnorm_backward_args args = norm_args(u, gamma, dr, 1, 2);

        poison(out, sizeof out);
        at[i][1] = -INFINITY;
        assert_int_equal(norm(&args, 1, SLM_F64, out, out + 2, &error),
                         SLM_ERR_NONFINITE);
        assert_string_equal(error.field, names[i]);
        assert_int_equal(error.index, 1);
        assert_true(is_poison(out, sizeof out));
        at[i][1] = 1;
    }
}

/* ---- select_backward ---- */

/* One row of n = 3. */
static void logits_back(double *dlogit, const char *profile, const float *logit,
                        const int32_t *ids, size_t k, const float *dweight)
{
    slm_config config = config_of(profile);
    const slm_select_backward_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = 1},
        .logit = view(logit, SLM_F32, 2, 1, 3, 0),
        .ids = view(ids, SLM_I32, 2, 1, k, 0),
        .dweight = view(dweight, SLM_F32, 2, 1, k, 0),
        .dlogit = view(dlogit, SLM_F64, 2, 1, 3, 0)};
    slm_handle *handle;

    config.top_k = k;
    handle = open_ref(&config);
    poison(dlogit, 3 * sizeof *dlogit);
    assert_int_equal(slm_ref_backend()->ops->select_backward(handle, &args, NULL),
                     SLM_OK);
    slm_ref_backend()->close(handle);
}

/* Logits 0: p = 1/2, 1 - s = 1/2; dp = (3, 1): D = (1, -1). */
static void logits_by_hand(void **state)
{
    (void)state;
    const float zeros[] = {0, 5, 0}, dp[] = {3, 1}, one[] = {6};
    const int32_t ids[] = {2, 0}, first[] = {0};
    const double want[] = {-0.25, 0, 0.25}, want_one[] = {1.5, 0, 0};
    double got[3];

    logits_back(got, "paper", zeros, ids, 2, dp);
    same_bits(got, want, 3);
    logits_back(got, "release", zeros, first, 1, one);
    same_bits(got, want_one, 3);
}

/* Logits (0, 1, 0), p by 1/2 and e/(1 + e); and far below, where p is e/(1 + e). */
static void logits_in_doubles(void **state)
{
    (void)state;
    const float near[] = {0, 1, 0}, far[] = {-1000, -1001, 3}, dp[] = {-2, 5};
    const int32_t ids[] = {1, 0}, deep[] = {0, 1};
    const double s = M_E / (1 + M_E), p = s / (s + 0.5);
    const double even[] = {M_E / (1 + M_E), 1 / (1 + M_E)};
    double got[3];

    logits_back(got, "paper", near, ids, 2, dp);
    assert_true(fabs(got[1] - p * (1 - s) * (1 - p) * -7) < 1e-15);
    assert_true(fabs(got[0] - (1 - p) * 0.5 * p * 7) < 1e-15);
    assert_true(got[2] == 0);
    logits_back(got, "paper", far, deep, 2, dp);
    assert_true(fabs(got[0] + 7 * even[0] * even[1]) < 1e-14);
    assert_true(fabs(got[1] - 7 * even[0] * even[1]) < 1e-14);
}

/* Equal logits, dp = (1, 2, 3): the middle one is 0 at once, not at 2048 bits. */
static void logits_have_exact_zeros_in_the_judge_s_balls(void **state)
{
    (void)state;
    const slm_config config = config_of("paper");
    slm_config three = config;
    const int32_t ids[] = {1, 2, 0};
    arb_ptr logit = _arb_vec_init(3), dlogit = _arb_vec_init(3), dp = _arb_vec_init(3);

    three.top_k = 3;
    for (slong i = 0; i < 3; i++) {
        arb_set_d(logit + i, 0.7);
        arb_set_si(dp + i, i + 1);
    }
    slm_ref_mixture_backward(dlogit, logit, ids, dp, &three, SLM_REF_JUDGE);
    assert_true(arb_is_zero(dlogit + 2) && arb_is_negative(dlogit + 1));
    arb_set_d(logit, -3);
    arb_set_si(dp + 1, 1);
    slm_ref_mixture_backward(dlogit, logit, ids, dp, &config, SLM_REF_JUDGE);
    assert_true(_arb_vec_is_zero(dlogit, 3));
    _arb_vec_clear(dp, 3);
    _arb_vec_clear(dlogit, 3);
    _arb_vec_clear(logit, 3);
}

static void logits_have_exact_zeros(void **state)
{
    (void)state;
    const float spread[] = {0.25f, -3, 40}, even[] = {0.7f, 0.7f, 0.7f};
    const float same[] = {0.1f, 0.1f, 0.1f}, steps[] = {1, 2, 3};
    const int32_t ids[] = {1, 2, 0};
    const double nil[] = {0, 0, 0};
    double got[3];

    logits_back(got, "paper", spread, ids, 1, steps);
    same_bits(got, nil, 3);
    logits_back(got, "paper", spread, ids, 2, same);
    same_bits(got, nil, 3);
    logits_back(got, "paper", spread, ids, 3, same);
    same_bits(got, nil, 3);
    logits_back(got, "paper", even, ids, 3, steps);
    same_bits(&got[2], nil, 1);
    assert_true(got[1] < 0 && got[0] == -got[1]);
}

/* With release sum p is not 1: equal dp leave dp 1e-20 / (sum + 1e-20). */
static void the_release_keeps_what_its_guard_takes(void **state)
{
    (void)state;
    const float zeros[] = {0, 0, 0}, ones[] = {1, 1};
    const int32_t ids[] = {0, 1};
    const double want[] = {2.5e-21, 2.5e-21, 0};
    double got[3];

    logits_back(got, "release", zeros, ids, 2, ones);
    same_bits(got, want, 3);
}

static void the_transposed_product_and_its_gauge(void **state)
{
    (void)state;
    const float w[] = {1, -2, 3, -4, 5, -6};
    const slm_tensor matrix = view(w, SLM_F32, 2, 2, 3, 0);
    arb_ptr x = _arb_vec_init(2), y = _arb_vec_init(3), gauge = _arb_vec_init(3);

    arb_set_si(x, -1);
    arb_set_si(x + 1, 2);
    slm_ref_linear_transposed(y, gauge, &matrix, x, SLM_REF_CAP);
    assert_true(arb_equal_si(y, -9) && arb_equal_si(y + 1, 12));
    assert_true(arb_equal_si(y + 2, -15) && arb_equal_si(gauge, 9));
    assert_true(arb_equal_si(gauge + 1, 12) && arb_equal_si(gauge + 2, 15));
    _arb_vec_clear(gauge, 3);
    _arb_vec_clear(y, 3);
    _arb_vec_clear(x, 2);
}

/* ---- what the judge asks for ---- */

static void balls_of_64_bits_keep_50_in_saturation(void **state)
{
    (void)state;
    const slm_config config = config_of("paper"), release = config_of("release");
    const double far[] = {40, -40, 90, -90, 300, -3000, 1e6, -0x1p-40};
    const int32_t ids[] = {2, 0};
    arb_ptr logit = _arb_vec_init(3), dlogit = _arb_vec_init(3), dp = _arb_vec_init(2);
    arb_t a, out;

    arb_init(a);
    arb_init(out);
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        arb_set_d(a, far[i]);
        slm_ref_gate(out, a, &config, SLM_REF_JUDGE);
        assert_true(arb_rel_accuracy_bits(out) >= 50);
        slm_ref_gate_slope(out, a, &config, SLM_REF_JUDGE);
        assert_true(arb_rel_accuracy_bits(out) >= 50);
        slm_ref_up(out, a, &config, SLM_REF_JUDGE);
        assert_true(arb_rel_accuracy_bits(out) >= 50);
        slm_ref_up_slope(out, a, &config, SLM_REF_JUDGE);
        assert_true(arb_rel_accuracy_bits(out) >= 50);
        arb_set_d(logit, far[i]);
        arb_set_d(logit + 2, far[i] / 2);
        arb_set_d(dp, 3);
        arb_set_d(dp + 1, -2);
        slm_ref_mixture_backward(dlogit, logit, ids, dp, &config, SLM_REF_JUDGE);
        assert_true(arb_rel_accuracy_bits(dlogit) >= 50);
        assert_true(arb_rel_accuracy_bits(dlogit + 2) >= 50);
        assert_true(arb_is_zero(dlogit + 1));
        arb_set_d(dp + 1, 3); /* D = 3e-20 / (sum + 1e-20) */
        slm_ref_mixture_backward(dlogit, logit, ids, dp, &release, SLM_REF_JUDGE);
        assert_true(arb_rel_accuracy_bits(dlogit) >= 50);
    }
    arb_clear(out);
    arb_clear(a);
    _arb_vec_clear(dp, 2);
    _arb_vec_clear(dlogit, 3);
    _arb_vec_clear(logit, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(situ_at_infinities_has_the_limits),
        cmocka_unit_test(situ_keeps_all_digits_in_saturation),
        cmocka_unit_test(situ_survives_the_largest_arguments),
        cmocka_unit_test(situ_refuses_what_is_no_number_and_writes_nothing),
        cmocka_unit_test(norm_by_hand),
        cmocka_unit_test(norm_at_zero_divides_by_the_root_of_eps),
        cmocka_unit_test(norm_proves_its_zeros),
        cmocka_unit_test(norm_decides_midpoints),
        cmocka_unit_test(norm_of_no_tokens_writes_zeros),
        cmocka_unit_test(norm_refuses_infinities_and_writes_nothing),
        cmocka_unit_test(logits_by_hand),
        cmocka_unit_test(logits_in_doubles),
        cmocka_unit_test(logits_have_exact_zeros),
        cmocka_unit_test(logits_have_exact_zeros_in_the_judge_s_balls),
        cmocka_unit_test(the_release_keeps_what_its_guard_takes),
        cmocka_unit_test(balls_of_64_bits_keep_50_in_saturation),
        cmocka_unit_test(the_transposed_product_and_its_gauge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
