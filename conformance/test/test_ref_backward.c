/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref_backward.c - the reference's backward operations on values known without it:
 * by hand, by limits, by MPFR in other formulas.                              G1-G5 */
#include "internal.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <mpfr.h>

#include <cmocka.h>

static slm_tensor view(const void *data, slm_dtype dtype, uint32_t rank, size_t a,
                       size_t b, size_t c)
{
    const size_t shape[] = {a, b, c};

    return slm_tensor_packed((void *)(uintptr_t)data, dtype, rank, shape);
}

static slm_config config_of(const char *profile)
{
    slm_config config;

    assert_true(slm_config_profile(profile, &config));
    config.d_model = 2;
    config.d_latent = 2;
    config.n_experts = 3;
    config.top_k = 2;
    config.d_expert = 1;
    return config;
}

static slm_handle *open_ref(const slm_config *config)
{
    slm_handle *handle = NULL;

    assert_int_equal(slm_ref_backend()->open(config, &handle, NULL), SLM_OK);
    return handle;
}

static void same_bits(const double *got, const double *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("element %zu: %a, wanted %a", i, got[i], want[i]);
}

static void poison(void *memory, size_t size)
{
    memset(memory, 0x5a, size);
}

static int is_poison(const void *memory, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)memory)[i] != 0x5a) return 0;
    return 1;
}

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

/* da and db at dh = 1 in MPFR, with 1 - tanh^2 and 1 - sigma at bits enough. */
static void situ_in_mpfr(double *da, double *db, double a, double b)
{
    mpfr_t cap, slope, sigma, rest, up, up_slope;

    mpfr_inits2(9000, cap, slope, sigma, rest, up, up_slope, (mpfr_ptr)0);
    mpfr_set_d(sigma, -a, MPFR_RNDN);
    mpfr_exp(sigma, sigma, MPFR_RNDN);
    mpfr_add_ui(sigma, sigma, 1, MPFR_RNDN);
    mpfr_ui_div(sigma, 1, sigma, MPFR_RNDN);
    mpfr_ui_sub(rest, 1, sigma, MPFR_RNDN);
    mpfr_set_d(cap, a / 4, MPFR_RNDN);
    mpfr_tanh(cap, cap, MPFR_RNDN);
    mpfr_sqr(slope, cap, MPFR_RNDN);
    mpfr_ui_sub(slope, 1, slope, MPFR_RNDN);
    mpfr_mul_ui(cap, cap, 4, MPFR_RNDN);
    mpfr_set_d(up, b, MPFR_RNDN);
    mpfr_div_ui(up, up, 25, MPFR_RNDN);
    mpfr_tanh(up, up, MPFR_RNDN);
    mpfr_sqr(up_slope, up, MPFR_RNDN);
    mpfr_ui_sub(up_slope, 1, up_slope, MPFR_RNDN);
    mpfr_mul_ui(up, up, 25, MPFR_RNDN);
    mpfr_mul(slope, slope, sigma, MPFR_RNDN);
    mpfr_mul(rest, rest, sigma, MPFR_RNDN);
    mpfr_fma(slope, rest, cap, slope, MPFR_RNDN);
    mpfr_mul(slope, slope, up, MPFR_RNDN);
    mpfr_mul(cap, cap, sigma, MPFR_RNDN);
    mpfr_mul(cap, cap, up_slope, MPFR_RNDN);
    *da = mpfr_get_d(slope, MPFR_RNDN) + 0; /* -0 is 0 */
    *db = mpfr_get_d(cap, MPFR_RNDN) + 0;
    mpfr_clears(cap, slope, sigma, rest, up, up_slope, (mpfr_ptr)0);
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

/* ---- dense_ffn_backward ---- */

/* Gradients of T tokens, d 1, f 1. */
typedef struct dense {
    double dx[2];
    double dw[3]; /* gate, up, out */
    double gate_up[4];
    double h[2];
    double dh[2];
    double dgate_up[4];
} dense;

static slm_status dense_run(dense *out, const char *profile, const float *x,
                            const float *w, const float *dy, size_t n_tokens,
                            slm_error *error)
{
    slm_config config = config_of(profile);
    const slm_dense_ffn_backward_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = n_tokens},
        .x = view(x, SLM_F32, 2, n_tokens, 1, 0),
        .w_gate = view(&w[0], SLM_F32, 2, 1, 1, 0),
        .w_up = view(&w[1], SLM_F32, 2, 1, 1, 0),
        .w_out = view(&w[2], SLM_F32, 2, 1, 1, 0),
        .dy = view(dy, SLM_F32, 2, n_tokens, 1, 0),
        .dx = view(out->dx, SLM_F64, 2, n_tokens, 1, 0),
        .dw_gate = view(&out->dw[0], SLM_F64, 2, 1, 1, 0),
        .dw_up = view(&out->dw[1], SLM_F64, 2, 1, 1, 0),
        .dw_out = view(&out->dw[2], SLM_F64, 2, 1, 1, 0),
        .gate_up = view(out->gate_up, SLM_F64, 2, n_tokens, 2, 0),
        .h = view(out->h, SLM_F64, 2, n_tokens, 1, 0),
        .dh = view(out->dh, SLM_F64, 2, n_tokens, 1, 0),
        .dgate_up = view(out->dgate_up, SLM_F64, 2, n_tokens, 2, 0)};
    slm_handle *handle;
    slm_status status;

    config.d_model = 1;
    handle = open_ref(&config);
    poison(out, sizeof *out);
    status = slm_ref_backend()->ops->dense_ffn_backward(handle, &args, error);
    slm_ref_backend()->close(handle);
    return status;
}

/* W_gate = 0, so a = 0, sigma = 1/2, h = 0: all is rational with SwiGLU. */
static void dense_by_hand(void **state)
{
    (void)state;
    const float x[] = {2, 1}, w[] = {0, 3, 7}, dy[] = {5, 5};
    const double sums[] = {0, 6, 0, 3}, dh[] = {35, 35}, nil[] = {0, 0};
    const double dsums[] = {105, 0, 52.5, 0}, dw[] = {262.5, 0, 0};
    dense got;

    assert_int_equal(dense_run(&got, "vanilla", x, w, dy, 2, NULL), SLM_OK);
    same_bits(got.gate_up, sums, 4);
    same_bits(got.h, nil, 2);
    same_bits(got.dh, dh, 2);
    same_bits(got.dgate_up, dsums, 4);
    same_bits(got.dx, nil, 2);
    same_bits(got.dw, dw, 3);
}

/* SiTU with a = b = 0 but for the weights: h = 0; da = dh 25 tanh(b / 25) / 2. */
static void dense_situ_in_doubles(void **state)
{
    (void)state;
    const float x[] = {2}, w[] = {0.5f, -3, 7}, dy[] = {5};
    double da, db;
    dense got;

    situ_in_mpfr(&da, &db, 1, -6);
    assert_int_equal(dense_run(&got, "paper", x, w, dy, 1, NULL), SLM_OK);
    assert_true(fabs(got.dgate_up[0] - 35 * da) < 1e-13);
    assert_true(fabs(got.dgate_up[1] - 35 * db) < 1e-13);
    assert_true(fabs(got.dx[0] - 35 * (0.5 * da - 3 * db)) < 1e-12);
    assert_true(fabs(got.dw[0] - 70 * da) < 1e-12);
    assert_true(fabs(got.dw[1] - 70 * db) < 1e-12);
    assert_true(fabs(got.dw[2] - 5 * got.h[0]) < 1e-12);
}

static void dense_of_no_tokens_writes_zeros_and_refusals_write_nothing(void **state)
{
    (void)state;
    const float w[] = {1, 2, 3}, bad[] = {1, NAN, 1}, one[] = {1};
    const double nil[] = {0, 0, 0};
    dense got;
    slm_error error;

    assert_int_equal(dense_run(&got, "paper", NULL, w, NULL, 0, NULL), SLM_OK);
    same_bits(got.dw, nil, 3);
    assert_int_equal(dense_run(&got, "paper", one, bad, one, 1, &error),
                     SLM_ERR_NONFINITE);
    assert_string_equal(error.field, "w_up");
    assert_true(is_poison(&got, sizeof got));
}

/* ---- layer_backward: linear experts, d 2, l 2, n 3, k 2, S 1 ---- */

typedef struct layer {
    slm_config config;
    float x[4], dy[4];
    int32_t ids[4];
    float w_router[6], w_down[4], w_expert[12], w_lift[4], w_shared[4];
    struct {
        double dx[4], dw_router[6], dw_down[4], dw_expert[12], dgamma[2], dw_lift[4];
        double dw_shared[4], dbias[3], dweight[4], dlogit[6], dz[4];
    } out;
} layer;

static layer layer_of(const char *profile)
{
    layer made = {.config = config_of(profile),
                  .x = {1, -2, 0.5f, 3},
                  .dy = {0.25f, 1, -1.5f, 2},
                  .ids = {2, 0, 0, 2}};

    made.config.n_shared = 1;
    made.config.expert = SLM_EXPERT_LINEAR;
    for (size_t i = 0; i < 6; i++) made.w_router[i] = (float)(i * 5 % 7) / 4 - 0.5f;
    for (size_t i = 0; i < 12; i++) made.w_expert[i] = (float)(i * 7 % 11) / 8 - 0.5f;
    for (size_t i = 0; i < 4; i++) {
        made.w_down[i] = (float)(i * 3 % 5) / 2 - 0.75f;
        made.w_lift[i] = (float)(i * 2 % 5) / 4 - 0.375f;
        made.w_shared[i] = (float)i - 1.25f;
    }
    poison(&made.out, sizeof made.out);
    return made;
}

static slm_layer_backward_args layer_args(layer *m, size_t n_tokens)
{
    const size_t k = m->config.top_k, t = n_tokens;

    return (slm_layer_backward_args){
        .call = {.struct_size = sizeof(slm_layer_backward_args), .n_tokens = t},
        .x = view(m->x, SLM_F32, 2, t, 2, 0),
        .ids = view(m->ids, SLM_I32, 2, t, k, 0),
        .dy = view(m->dy, SLM_F32, 2, t, 2, 0),
        .dx = view(m->out.dx, SLM_F64, 2, t, 2, 0),
        .dw_router = view(m->out.dw_router, SLM_F64, 2, 3, 2, 0),
        .dw_down = view(m->out.dw_down, SLM_F64, 2, 2, 2, 0),
        .dw_expert = view(m->out.dw_expert, SLM_F64, 3, 3, 2, 2),
        .dgamma = m->config.norm == SLM_NORM_RMS
                      ? view(m->out.dgamma, SLM_F64, 1, 2, 0, 0)
                      : (slm_tensor){0},
        .dw_lift = view(m->out.dw_lift, SLM_F64, 2, 2, 2, 0),
        .dw_shared = view(m->out.dw_shared, SLM_F64, 3, 1, 2, 2),
        .dbias = view(m->out.dbias, SLM_F64, 1, 3, 0, 0),
        .dweight = view(m->out.dweight, SLM_F64, 2, t, k, 0),
        .dlogit = view(m->out.dlogit, SLM_F64, 2, t, 3, 0),
        .dz = view(m->out.dz, SLM_F64, 2, t, 2, 0)};
}

static slm_status layer_run(layer *m, const slm_layer_backward_args *args,
                            slm_error *error)
{
    const slm_weights weights = {.struct_size = sizeof weights,
                                 .w_router = view(m->w_router, SLM_F32, 2, 3, 2, 0),
                                 .w_down = view(m->w_down, SLM_F32, 2, 2, 2, 0),
                                 .w_expert = view(m->w_expert, SLM_F32, 3, 3, 2, 2),
                                 .w_lift = view(m->w_lift, SLM_F32, 2, 2, 2, 0),
                                 .w_shared = view(m->w_shared, SLM_F32, 3, 1, 2, 2)};
    slm_handle *handle = open_ref(&m->config);
    slm_status status;

    assert_int_equal(slm_ref_backend()->prepare(handle, &weights, NULL), SLM_OK);
    status = slm_ref_backend()->ops->layer_backward(handle, args, error);
    slm_ref_backend()->close(handle);
    return status;
}

/* p = 1 and no norm: du = dr = dy W_lift, dz = du W_expert, all rational. */
static void a_layer_by_hand(void **state)
{
    (void)state;
    layer m = layer_of("vanilla");
    const double nil[12] = {0};
    slm_layer_backward_args args;

    m.config.top_k = 1;
    m.ids[0] = m.ids[1] = 1;
    memcpy(m.w_lift, (float[]){1, 2, 0, -1}, sizeof m.w_lift);
    memcpy(m.w_expert + 4, (float[]){1, 1, 0, 2}, 4 * sizeof *m.w_expert);
    memcpy(m.w_down, (float[]){1, 0, 3, 1}, sizeof m.w_down);
    memcpy(m.w_shared, (float[]){1, 0, 0, 4}, sizeof m.w_shared);
    memcpy(m.x, (float[]){1, 2, 3, -1}, sizeof m.x);
    memcpy(m.dy, (float[]){1, 1, 2, 0}, sizeof m.dy);
    args = layer_args(&m, 2);
    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    /* du (1, 1), (2, 4); dz (1, 3), (2, 10); z (1, 5), (3, 8); o = u = r (6, 10),
     * (11, 16) */
    same_bits(m.out.dz, (double[]){1, 3, 2, 10}, 4);
    same_bits(m.out.dx, (double[]){10 + 1, 3 + 4, 32 + 2, 10}, 4);
    same_bits(m.out.dweight, (double[]){16, 86}, 2);
    same_bits(m.out.dw_down, (double[]){7, 0, 33, -4}, 4);
    same_bits(m.out.dw_expert, (double[]){0, 0, 0, 0, 7, 21, 13, 37, 0, 0, 0, 0}, 12);
    same_bits(m.out.dw_lift, (double[]){28, 42, 6, 10}, 4);
    same_bits(m.out.dw_shared, (double[]){7, 0, 1, 2}, 4);
    same_bits(m.out.dlogit, nil, 6);
    same_bits(m.out.dw_router, nil, 6);
    same_bits(m.out.dbias, nil, 3);
}

static void a_layer_of_no_tokens_has_zero_gradients(void **state)
{
    (void)state;
    layer m = layer_of("linear");
    const slm_layer_backward_args args = layer_args(&m, 0);
    const double nil[12] = {0};

    m.w_lift[0] = NAN; /* nobody uses it */
    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    same_bits(m.out.dw_router, nil, 6);
    same_bits(m.out.dw_down, nil, 4);
    same_bits(m.out.dw_expert, nil, 12);
    same_bits(m.out.dgamma, nil, 2);
    same_bits(m.out.dw_lift, nil, 4);
    same_bits(m.out.dw_shared, nil, 4);
    same_bits(m.out.dbias, nil, 3);
    assert_true(is_poison(m.out.dx, sizeof m.out.dx));
}

static void nobody_s_expert_may_be_nan_and_has_zero_gradients(void **state)
{
    (void)state;
    layer m = layer_of("linear"), sane = layer_of("linear");
    slm_layer_backward_args args = layer_args(&m, 2);
    const double nil[4] = {0};

    m.w_expert[4] = m.w_expert[7] = NAN; /* expert 1 */
    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    same_bits(m.out.dw_expert + 4, nil, 4);
    same_bits(m.out.dw_router + 2, nil, 2);
    same_bits(m.out.dbias, nil, 3);
    assert_true(m.out.dlogit[1] == 0 && m.out.dlogit[4] == 0);
    assert_true(m.out.dlogit[0] != 0 && m.out.dw_expert[0] != 0);
    args = layer_args(&sane, 2);
    assert_int_equal(layer_run(&sane, &args, NULL), SLM_OK);
    assert_memory_equal(&m.out, &sane.out, sizeof m.out);
}

static void a_layer_refuses_what_is_not_finite_and_names_the_stage(void **state)
{
    (void)state;
    layer m = layer_of("linear");
    const slm_layer_backward_args args = layer_args(&m, 2);
    const struct {
        float *at;
        const char *field;
        size_t index;
    } cases[] = {{&m.x[2], "x", 2},
                 {&m.dy[3], "dy", 3},
                 {&m.w_router[3], "logit", 1},
                 {&m.w_down[2], "z", 1},
                 {&m.w_expert[2], "o", 3},
                 {&m.w_lift[1], "dr", 1},
                 {&m.w_shared[2], "dx", 0}};
    slm_error error;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float before = *cases[i].at;

        *cases[i].at = i % 2 ? NAN : INFINITY;
        assert_int_equal(layer_run(&m, &args, &error), SLM_ERR_NONFINITE);
        assert_string_equal(error.field, cases[i].field);
        assert_int_equal(error.index, cases[i].index);
        assert_true(is_poison(&m.out, sizeof m.out));
        *cases[i].at = before;
    }
    assert_int_equal(layer_run(&m, &args, &error), SLM_OK);
}

/* All sizes 1, gated experts: every weight is used, and one alone is NaN. */
static void a_gated_layer_names_the_stage_of_its_weight(void **state)
{
    (void)state;
    static const char *const fields[] = {"logit", "z",  "h",  "h",  "o",
                                         "gamma", "dr", "hs", "hs", "dhs"};
    enum { WEIGHTS = sizeof fields / sizeof *fields };
    const float x = 1, dy = 1;
    float w[WEIGHTS] = {0};
    double dx = 77;
    int32_t ids = 0;
    const slm_weights weights = {.struct_size = sizeof weights,
                                 .w_router = view(&w[0], SLM_F32, 2, 1, 1, 0),
                                 .w_down = view(&w[1], SLM_F32, 2, 1, 1, 0),
                                 .w_gate = view(&w[2], SLM_F32, 3, 1, 1, 1),
                                 .w_up = view(&w[3], SLM_F32, 3, 1, 1, 1),
                                 .w_out = view(&w[4], SLM_F32, 3, 1, 1, 1),
                                 .gamma = view(&w[5], SLM_F32, 1, 1, 0, 0),
                                 .w_lift = view(&w[6], SLM_F32, 2, 1, 1, 0),
                                 .w_shared_gate = view(&w[7], SLM_F32, 2, 1, 1, 0),
                                 .w_shared_up = view(&w[8], SLM_F32, 2, 1, 1, 0),
                                 .w_shared_out = view(&w[9], SLM_F32, 2, 1, 1, 0)};
    const slm_layer_backward_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = 1},
        .x = view(&x, SLM_F32, 2, 1, 1, 0),
        .ids = view(&ids, SLM_I32, 2, 1, 1, 0),
        .dy = view(&dy, SLM_F32, 2, 1, 1, 0),
        .dx = view(&dx, SLM_F64, 2, 1, 1, 0)};
    slm_config config = config_of("paper");
    slm_error error;

    config.d_model = config.d_latent = config.d_shared = 1;
    config.n_experts = config.top_k = config.n_shared = 1;
    for (size_t i = 0; i <= WEIGHTS; i++) {
        slm_handle *handle = open_ref(&config);
        slm_status status;

        for (size_t j = 0; j < WEIGHTS; j++) w[j] = i == j ? NAN : 1;
        assert_int_equal(slm_ref_backend()->prepare(handle, &weights, NULL), SLM_OK);
        status = slm_ref_backend()->ops->layer_backward(handle, &args, &error);
        slm_ref_backend()->close(handle);
        if (i == WEIGHTS) {
            assert_int_equal(status, SLM_OK);
            assert_true(dx != 77);
        } else {
            assert_int_equal(status, SLM_ERR_NONFINITE);
            assert_string_equal(error.field, fields[i]);
            assert_true(dx == 77);
        }
    }
}

static void nobody_looks(void *watcher, const char *name, size_t index,
                         const arb_t value)
{
    (void)watcher, (void)name, (void)index, (void)value;
}

/* Both elements of z are 2^120 + 2^-30, which 128 bits do not hold, and every expert
 * takes their difference: only more bits tell the mean square from a negative one. */
static void an_aggregate_that_cancels_takes_more_bits(void **state)
{
    (void)state;
    layer m = layer_of("linear");
    slm_layer_backward_args args = layer_args(&m, 1);
    const slm_weights weights = {.struct_size = sizeof weights,
                                 .w_router = view(m.w_router, SLM_F32, 2, 3, 2, 0),
                                 .w_down = view(m.w_down, SLM_F32, 2, 2, 2, 0),
                                 .w_expert = view(m.w_expert, SLM_F32, 3, 3, 2, 2),
                                 .w_lift = view(m.w_lift, SLM_F32, 2, 2, 2, 0),
                                 .w_shared = view(m.w_shared, SLM_F32, 3, 1, 2, 2)};
    const double nil[2] = {0};
    slm_handle *handle;
    slm_error error;

    memcpy(m.x, (float[]){1, 1}, 2 * sizeof *m.x);
    memcpy(m.w_down, (float[]){0x1p120f, 0x1p-30f, 0x1p120f, 0x1p-30f},
           sizeof m.w_down);
    for (size_t i = 0; i < 12; i++) m.w_expert[i] = i % 2 ? -1 : 1;
    args.dgamma.rank = 0;
    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    same_bits(m.out.dweight, nil, 2);

    handle = open_ref(&m.config);
    assert_int_equal(slm_ref_backend()->prepare(handle, &weights, NULL), SLM_OK);
    assert_int_equal(
        slm_ref_watch_layer_backward(handle, &args, 256, nobody_looks, NULL, &error),
        SLM_OK);
    assert_int_equal(slm_ref_watch_layer_backward(handle, &args, SLM_REF_JUDGE,
                                                  nobody_looks, NULL, &error),
                     SLM_ERR_INTERNAL);
    assert_string_equal(error.field, "r");
    assert_string_equal(error.expected, "more than 64 bits");
    slm_ref_backend()->close(handle);
}

/* Equal experts: dp are equal, though no ball says so, and D is 0. */
static void equal_experts_leave_the_router_alone(void **state)
{
    (void)state;
    layer m = layer_of("linear");
    const slm_layer_backward_args args = layer_args(&m, 2);
    const double nil[6] = {0};

    memcpy(m.w_expert + 8, m.w_expert, 4 * sizeof *m.w_expert);
    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    assert_true(m.out.dweight[0] != 0 && m.out.dweight[0] == m.out.dweight[1]);
    same_bits(m.out.dlogit, nil, 6);
    same_bits(m.out.dw_router, nil, 6);
}

/* Without a norm equal experts give a rational dz by transcendental weights: here it is
 * 1 + 2^-53, halfway between two binary64 numbers, and nothing at hand proves it. */
static void a_gradient_that_no_precision_decides_is_an_error(void **state)
{
    (void)state;
    layer m = layer_of("vanilla");
    slm_layer_backward_args args = layer_args(&m, 1);
    slm_error error;

    memcpy(m.w_lift, (float[]){1, 0, 0, 0x1p-53f}, sizeof m.w_lift);
    memcpy(m.w_expert, (float[]){1, 1, 1, 1}, 4 * sizeof *m.w_expert);
    memcpy(m.w_expert + 8, m.w_expert, 4 * sizeof *m.w_expert);
    m.dy[0] = m.dy[1] = 1;
    args.dx.rank = 0; /* it comes before dz and is no better off */
    assert_int_equal(layer_run(&m, &args, &error), SLM_ERR_INTERNAL);
    assert_string_equal(error.field, "dz");
    assert_string_equal(error.expected, "unproved at 4096 bits");
    assert_true(is_poison(&m.out, sizeof m.out));
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

/* ---- views and element types ---- */

static void strided_views_give_the_same_bits(void **state)
{
    (void)state;
    layer m = layer_of("linear"), apart = layer_of("linear");
    slm_layer_backward_args args = layer_args(&m, 2);
    float x[8];
    double dx[10], turned[4];

    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    poison(dx, sizeof dx);
    poison(x, sizeof x);
    args = layer_args(&apart, 2);
    args.x.data = x; /* columns first, every other element */
    args.x.stride[0] = 2;
    args.x.stride[1] = 4;
    for (size_t i = 0; i < 4; i++) x[i / 2 * 2 + i % 2 * 4] = apart.x[i];
    args.dx.data = dx + 9; /* backwards, with gaps */
    args.dx.stride[0] = -6;
    args.dx.stride[1] = -2;
    args.dw_lift.data = turned;
    args.dw_lift.stride[0] = 1;
    args.dw_lift.stride[1] = 2;
    assert_int_equal(layer_run(&apart, &args, NULL), SLM_OK);
    for (size_t i = 0; i < 4; i++) {
        same_bits(&dx[9 - i / 2 * 6 - i % 2 * 2], &m.out.dx[i], 1);
        same_bits(&turned[i % 2 * 2 + i / 2], &m.out.dw_lift[i], 1);
    }
    assert_true(is_poison(&dx[8], sizeof *dx) && is_poison(&dx[4], 2 * sizeof *dx));
    assert_memory_equal(m.out.dw_router, apart.out.dw_router, sizeof m.out.dw_router);
    assert_memory_equal(m.out.dw_expert, apart.out.dw_expert, sizeof m.out.dw_expert);
}

static void element_types_are_the_real_number_rounded_once(void **state)
{
    (void)state;
    layer m = layer_of("linear");
    slm_layer_backward_args args = layer_args(&m, 2);
    float dw_router[6];
    uint16_t dx[4], half;
    arb_t value;

    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    args.dw_router = view(dw_router, SLM_F32, 2, 3, 2, 0);
    args.dx = view(dx, SLM_BF16, 2, 2, 2, 0);
    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    for (size_t i = 0; i < 6; i++)
        assert_true(dw_router[i] == (float)m.out.dw_router[i]);
    arb_init(value);
    for (size_t i = 0; i < 4; i++) {
        arb_set_d(value, m.out.dx[i]);
        assert_true(slm_ref_bf16(&half, value));
        assert_int_equal(dx[i], half);
    }
    arb_clear(value);
}

typedef struct watch {
    size_t done;
    size_t total;
} watch;

static void note_progress(void *user, size_t done, size_t total)
{
    watch *seen = user;

    assert_true(done > seen->done && done <= total);
    *seen = (watch){done, total};
}

static void progress_moves_and_ends_at_its_total(void **state)
{
    (void)state;
    layer m = layer_of("linear");
    slm_layer_backward_args args = layer_args(&m, 2);
    watch seen = {0};

    args.call.progress = note_progress;
    args.call.progress_user = &seen;
    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    assert_true(seen.total >= 6);
    assert_int_equal(seen.done, seen.total);
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
        cmocka_unit_test(dense_by_hand),
        cmocka_unit_test(dense_situ_in_doubles),
        cmocka_unit_test(dense_of_no_tokens_writes_zeros_and_refusals_write_nothing),
        cmocka_unit_test(a_layer_by_hand),
        cmocka_unit_test(a_layer_of_no_tokens_has_zero_gradients),
        cmocka_unit_test(nobody_s_expert_may_be_nan_and_has_zero_gradients),
        cmocka_unit_test(a_layer_refuses_what_is_not_finite_and_names_the_stage),
        cmocka_unit_test(a_gated_layer_names_the_stage_of_its_weight),
        cmocka_unit_test(an_aggregate_that_cancels_takes_more_bits),
        cmocka_unit_test(equal_experts_leave_the_router_alone),
        cmocka_unit_test(a_gradient_that_no_precision_decides_is_an_error),
        cmocka_unit_test(balls_of_64_bits_keep_50_in_saturation),
        cmocka_unit_test(strided_views_give_the_same_bits),
        cmocka_unit_test(element_types_are_the_real_number_rounded_once),
        cmocka_unit_test(progress_moves_and_ends_at_its_total),
        cmocka_unit_test(the_transposed_product_and_its_gauge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
