/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref.c - the reference's small operations on numbers that people worked out. */
#include "ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_f32(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint64_t bits_f64(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static slm_tensor view(const void *data, slm_dtype dtype, uint32_t rank, size_t a,
                       size_t b)
{
    const size_t shape[] = {a, b};

    return slm_tensor_packed((void *)(uintptr_t)data, dtype, rank, shape);
}

static slm_handle *open_profile(const char *profile, size_t n, size_t k, size_t l,
                                size_t f, double eps)
{
    slm_config config;
    slm_handle *handle = NULL;

    assert_true(slm_config_profile(profile, &config));
    config.n_experts = n;
    config.top_k = k;
    config.d_latent = l;
    config.d_expert = f;
    if (eps > 0) config.eps = eps;
    assert_int_equal(slm_ref_backend()->open(&config, &handle, NULL), SLM_OK);
    return handle;
}

static void close_handle(slm_handle *handle)
{
    slm_ref_backend()->close(handle);
}

enum { MOST = 8 };

/* One token: ids, golden weights and the cutoff, which is 77 when untouched. */
typedef struct choice {
    int32_t ids[MOST];
    double weight[MOST];
    float cutoff;
} choice;

static choice choose(const char *profile, size_t n, size_t k, const float *score,
                     const float *logit, const float *bias)
{
    slm_handle *handle = open_profile(profile, n, k, 0, 0, 0);
    slm_select_args args = {.call = {.struct_size = sizeof args, .n_tokens = 1}};
    choice out = {.cutoff = 77};

    if (score) args.score = view(score, SLM_F32, 2, 1, n);
    if (logit) args.logit = view(logit, SLM_F32, 2, 1, n);
    args.bias = view(bias, SLM_F32, 1, n, 0);
    args.ids = view(out.ids, SLM_I32, 2, 1, k);
    args.weight = view(out.weight, SLM_F64, 2, 1, k);
    args.cutoff = view(&out.cutoff, SLM_F32, 1, 1, 0);
    assert_int_equal(slm_ref_backend()->ops->select(handle, &args, NULL), SLM_OK);
    close_handle(handle);
    return out;
}

/* a / (a + b), rounded once. */
static double share(float a, float b)
{
    double out;
    arb_t ball, sum;
    fmpq_t ratio, term;

    arb_init(ball);
    arb_init(sum);
    fmpq_init(ratio);
    fmpq_init(term);
    arb_set_d(ball, (double)a);
    arf_get_fmpq(ratio, arb_midref(ball));
    arb_set_d(sum, (double)b);
    arf_get_fmpq(term, arb_midref(sum));
    fmpq_add(term, term, ratio);
    fmpq_div(ratio, ratio, term);
    out = slm_ref_f64_q(ratio);
    fmpq_clear(term);
    fmpq_clear(ratio);
    arb_clear(sum);
    arb_clear(ball);
    return out;
}

static void the_chapter_mixes_45_and_55_percent(void **state)
{
    (void)state;
    const float raw[] = {.90f, .80f, .65f, .20f}, bias[] = {-.40f, 0, .25f, 0};
    const choice got = choose("paper", 4, 2, raw, NULL, bias);

    assert_int_equal(got.ids[0], 2);
    assert_int_equal(got.ids[1], 1);
    assert_int_equal(bits_f64(got.weight[0]), bits_f64(share(.65f, .80f)));
    assert_int_equal(bits_f64(got.weight[1]), bits_f64(share(.80f, .65f)));
    assert_true(fabs(got.weight[0] - 65.0 / 145) < 1e-7);
    assert_true(fabs(got.weight[1] - 80.0 / 145) < 1e-7);
    assert_int_equal(bits_f32(got.cutoff), bits_f32(.90f - .40f));
}

static void the_note_mixes_ninths(void **state)
{
    (void)state;
    const float raw[] = {.9f, .8f, .1f}, bias[] = {-1, 0, 2};
    const choice got = choose("paper", 3, 2, raw, NULL, bias);

    assert_int_equal(got.ids[0], 2);
    assert_int_equal(got.ids[1], 1);
    assert_true(fabs(got.weight[0] - 1.0 / 9) < 1e-7);
    assert_true(fabs(got.weight[1] - 8.0 / 9) < 1e-7);
}

static void equal_keys_go_to_the_lower_id_and_minus_zero_is_zero(void **state)
{
    (void)state;
    const float raw[] = {0, .5f, 0, .5f}, bias[] = {-0.0f, 0, 0, 0};
    const choice got = choose("paper", 4, 3, raw, NULL, bias);

    assert_int_equal(got.ids[0], 1);
    assert_int_equal(got.ids[1], 3);
    assert_int_equal(got.ids[2], 0);
    assert_int_equal(bits_f32(got.cutoff), 0);
    assert_int_equal(bits_f64(got.weight[2]), 0);
}

static void zero_scores_share_equally_in_the_paper_and_vanish_in_the_release(void **s)
{
    (void)s;
    const float raw[] = {0, 0, 0}, bias[] = {0, 0, 0};
    choice got = choose("paper", 3, 3, raw, NULL, bias);

    for (int q = 0; q < 3; q++)
        assert_int_equal(bits_f64(got.weight[q]), bits_f64(1.0 / 3));
    got = choose("release", 3, 3, raw, NULL, bias);
    for (int q = 0; q < 3; q++) assert_int_equal(bits_f64(got.weight[q]), 0);
}

static void one_expert_weighs_one_in_the_paper_and_its_score_in_the_release(void **s)
{
    (void)s;
    const float raw[] = {.25f, .5f}, bias[] = {0, 0};

    assert_int_equal(bits_f64(choose("paper", 2, 1, raw, NULL, bias).weight[0]),
                     bits_f64(1));
    assert_int_equal(bits_f64(choose("release", 2, 1, raw, NULL, bias).weight[0]),
                     bits_f64(.5));
}

/* .25 / (.75 + 1e-20) is 1/3 within binary64, but 1e-20 beside scores of 2^-66 is not
 * small: 2^-66 = 1.355e-20. */
static void the_release_adds_a_decimal_1e20th(void **state)
{
    (void)state;
    const float raw[] = {0x1p-66f, 0x1p-66f}, bias[] = {0, 0};
    const choice got = choose("release", 2, 2, raw, NULL, bias);

    assert_true(fabs(got.weight[0] - 0x1p-66 / (0x1p-65 + 1e-20)) < 1e-15);
    assert_true(got.weight[0] < .37);
}

static void logits_weigh_by_real_sigmoids_far_below_binary32(void **state)
{
    (void)state;
    const float deep[] = {-200, -201, -300}, bias[] = {0, 0, 0};
    const choice got = choose("paper", 3, 2, NULL, deep, bias);

    assert_true(fabs(got.weight[0] - 1 / (1 + exp(-1.0))) < 1e-15);
    assert_true(fabs(got.weight[1] - 1 / (1 + exp(1.0))) < 1e-15);
    assert_int_equal(bits_f32(got.cutoff), 0);
}

static void infinite_and_huge_logits_have_limits(void **state)
{
    (void)state;
    const float one[] = {INFINITY, -INFINITY, 0}, bias[] = {0, 0, 0};
    choice got = choose("paper", 3, 2, NULL, one, bias);

    assert_int_equal(got.ids[0], 0);
    assert_int_equal(got.ids[1], 2);
    assert_int_equal(bits_f64(got.weight[0]), bits_f64(2.0 / 3));
    assert_int_equal(bits_f32(got.cutoff), 0);

    const float none[] = {-INFINITY, -INFINITY, -INFINITY};
    got = choose("paper", 3, 2, NULL, none, bias);
    assert_int_equal(bits_f64(got.weight[1]), bits_f64(.5));

    const float huge[] = {-1e38f, -2e38f, 3e38f};
    got = choose("paper", 3, 3, NULL, huge, bias);
    assert_int_equal(got.ids[0], 2);
    assert_int_equal(bits_f64(got.weight[0]), bits_f64(1));
    assert_int_equal(bits_f64(got.weight[1]), 0);
}

static void softmax_gives_minus_infinity_nothing(void **state)
{
    (void)state;
    const slm_config config = {.score = SLM_SCORE_SOFTMAX, .n_experts = 3};
    arb_ptr logit = _arb_vec_init(3), score = _arb_vec_init(3);

    arb_set_si(logit, 2);
    arb_neg_inf(logit + 1);
    arb_set_si(logit + 2, 2);
    slm_ref_scores(score, logit, &config, SLM_REF_JUDGE);
    assert_true(arb_is_zero(score + 1));
    for (int i = 0; i < 3; i += 2) {
        assert_true(arb_is_exact(score + i));
        assert_true(arf_cmp_d(arb_midref(score + i), 0.5) == 0);
    }
    _arb_vec_clear(score, 3);
    _arb_vec_clear(logit, 3);
}

static void all_experts_chosen_leave_the_cutoff_untouched(void **state)
{
    (void)state;
    const float raw[] = {.5f, .25f}, bias[] = {0, 0};

    assert_int_equal(bits_f32(choose("paper", 2, 2, raw, NULL, bias).cutoff),
                     bits_f32(77));
    assert_int_equal(bits_f32(choose("paper", 2, 1, raw, NULL, bias).cutoff),
                     bits_f32(.25f));
}

static void a_nan_logit_is_refused_with_its_index_and_nothing_is_written(void **state)
{
    (void)state;
    const float logit[] = {1, 2, 3, 4, NAN, NAN}, bias[] = {0, 0, 0};
    slm_handle *handle = open_profile("paper", 3, 1, 0, 0, 0);
    int32_t ids[] = {-7, -7};
    float weight[] = {77, 77};
    slm_select_args args = {.call = {.struct_size = sizeof args, .n_tokens = 2},
                            .logit = view(logit, SLM_F32, 2, 2, 3),
                            .bias = view(bias, SLM_F32, 1, 3, 0),
                            .ids = view(ids, SLM_I32, 2, 2, 1),
                            .weight = view(weight, SLM_F32, 2, 2, 1)};
    slm_error error;

    assert_int_equal(slm_ref_backend()->ops->select(handle, &args, &error),
                     SLM_ERR_NONFINITE);
    assert_string_equal(error.field, "logit");
    assert_int_equal(error.index, 4);
    assert_int_equal(ids[0], -7);
    assert_int_equal(bits_f32(weight[0]), bits_f32(77));
    close_handle(handle);
}

static void no_tokens_succeed_with_null_data(void **state)
{
    (void)state;
    const float bias[] = {0, 0, 0};
    slm_handle *handle = open_profile("paper", 3, 2, 4, 2, 0);
    slm_select_args args = {.call = {.struct_size = sizeof args},
                            .logit = view(NULL, SLM_F32, 2, 0, 3),
                            .bias = view(bias, SLM_F32, 1, 3, 0),
                            .ids = view(NULL, SLM_I32, 2, 0, 2),
                            .weight = view(NULL, SLM_F32, 2, 0, 2)};
    slm_rmsnorm_args norm = {.call = {.struct_size = sizeof norm},
                             .u = view(NULL, SLM_F32, 2, 0, 4),
                             .r = view(NULL, SLM_F32, 2, 0, 4)};
    int64_t load[] = {-1, -1, -1};
    double metric[] = {9, 9, 9, 9};
    slm_load_metrics_args metrics = {.call = {.struct_size = sizeof metrics},
                                     .ids = view(NULL, SLM_I32, 2, 0, 2),
                                     .load = view(load, SLM_I64, 1, 3, 0),
                                     .metric = view(metric, SLM_F64, 1, 4, 0)};

    assert_int_equal(slm_ref_backend()->ops->select(handle, &args, NULL), SLM_OK);
    assert_int_equal(slm_ref_backend()->ops->rmsnorm(handle, &norm, NULL), SLM_OK);
    assert_int_equal(slm_ref_backend()->ops->load_metrics(handle, &metrics, NULL),
                     SLM_OK);
    assert_int_equal(load[2], 0);
    assert_int_equal(bits_f64(metric[2]), bits_f64(3));
    assert_int_equal(bits_f64(metric[3]), 0);
    close_handle(handle);
}

/* h of one (a, b), golden. */
static double situ(float a, float b)
{
    const float gate_up[] = {a, b};
    double h = 77;
    slm_handle *handle = open_profile("paper", 0, 0, 0, 1, 0);
    slm_situ_glu_args args = {.call = {.struct_size = sizeof args, .n_tokens = 1},
                              .gate_up = view(gate_up, SLM_F32, 2, 1, 2),
                              .h = view(&h, SLM_F64, 2, 1, 1)};

    assert_int_equal(slm_ref_backend()->ops->situ_glu(handle, &args, NULL), SLM_OK);
    close_handle(handle);
    return h;
}

static void situ_has_its_published_values(void **state)
{
    (void)state;
    const struct {
        float a, b;
        double h;
    } known[] = {{1, 1, .71581782807484051},    {-1, 1, -.26333466257272792},
                 {4, 25, 56.959319511084338},   {-4, 25, -1.0432463275130519},
                 {2, -3, -4.8610665512498681},  {10, 100, 98.590781553864232},
                 {100, 100, 99.93292997390671}, {.5f, .25f, .07740210626268236}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(fabs(situ(known[i].a, known[i].b) - known[i].h) <=
                    4e-16 * fabs(known[i].h));
    assert_true(fabs(situ(1e-3f, 1e-3f) - 5.0024998929e-7) < 1e-13);
    assert_int_equal(bits_f64(situ(0, 5)), 0);
    assert_int_equal(bits_f64(situ(5, -0.0f)), 0);
}

static void situ_never_passes_one_hundred(void **state)
{
    (void)state;
    assert_int_equal(bits_f64(situ(1e4f, 1e5f)), bits_f64(100));
    assert_int_equal(bits_f64(situ(3e38f, -3e38f)), bits_f64(-100));
    assert_int_equal(bits_f64(situ(INFINITY, INFINITY)), bits_f64(100));
    assert_true(situ(60, 300) < 100);
}

static void situ_has_limits_at_infinity_and_keeps_nan(void **state)
{
    (void)state;
    assert_int_equal(bits_f64(situ(-INFINITY, 3)), 0);
    assert_int_equal(bits_f64(situ(-INFINITY, -INFINITY)), 0);
    assert_true(fabs(situ(INFINITY, 1) - 100 * tanh(1 / 25.0)) < 1e-14);
    assert_true(fabs(situ(1, -INFINITY) + 100 * tanh(.25) / (1 + exp(-1.0))) < 1e-13);
    assert_true(isnan(situ(NAN, 1)));
    assert_true(isnan(situ(1, NAN)));
    assert_true(isnan(situ(-INFINITY, NAN)));
    assert_int_equal(bits_f64(situ(-3e38f, 1)), 0);
}

/* r of one row of four, in the element type asked for. */
static void norm(const float *u, const float *gamma, double eps, slm_dtype dtype,
                 void *r)
{
    slm_handle *handle = open_profile("paper", 0, 0, 4, 0, eps);
    slm_rmsnorm_args args = {.call = {.struct_size = sizeof args, .n_tokens = 1},
                             .u = view(u, SLM_F32, 2, 1, 4),
                             .r = view(r, dtype, 2, 1, 4)};

    if (gamma) args.gamma = view(gamma, SLM_F32, 1, 4, 0);
    assert_int_equal(slm_ref_backend()->ops->rmsnorm(handle, &args, NULL), SLM_OK);
    close_handle(handle);
}

static void rmsnorm_decides_the_midpoint_that_no_precision_decides(void **state)
{
    (void)state;
    const float u[] = {30.75f, 5.25f, 1.75f, .5f};
    const float gamma[] = {2134629, 1, 1, 1};
    float single[4];
    double wide[4];

    norm(u, gamma, 1e-6, SLM_F32, single);
    assert_int_equal(bits_f32(single[0]), bits_f32(4201219)); /* 4201218.75, to even */
    norm(u, gamma, 1e-6, SLM_F64, wide);
    assert_int_equal(bits_f64(wide[0]), bits_f64(4201218.75));
    norm(u, gamma, 0x1.0c6f7a0b5ed8ep-20, SLM_F32, single); /* next after 1e-6 */
    assert_int_equal(bits_f32(single[0]), bits_f32(4201218.5f));
}

static void rmsnorm_of_zero_is_zero_and_gamma_defaults_to_ones(void **state)
{
    (void)state;
    const float zero[] = {0, 0, 0, 0}, ones[] = {1, 1, 1, 1}, u[] = {1, 2, 3, -4};
    double r[4], same[4];

    norm(zero, NULL, 0, SLM_F64, r);
    for (int i = 0; i < 4; i++) assert_int_equal(bits_f64(r[i]), 0);
    norm(u, NULL, 0, SLM_F64, r);
    norm(u, ones, 0, SLM_F64, same);
    assert_memory_equal(r, same, sizeof r);
    assert_true(fabs(r[3] + 4 / sqrt(7.5 + 1e-6)) < 1e-15);
}

static void permute_keeps_pairs_in_order_within_an_expert(void **state)
{
    (void)state;
    const int32_t ids[] = {2, 0, 0, 3, 3, 2};
    const int64_t want_counts[] = {2, 0, 2, 2}, want_offsets[] = {0, 2, 2, 4, 6};
    const int64_t want_order[] = {1, 2, 0, 5, 3, 4};
    int64_t counts[4], offsets[5], order[6];
    slm_handle *handle = open_profile("paper", 4, 2, 0, 0, 0);
    slm_permute_args args = {.call = {.struct_size = sizeof args, .n_tokens = 3},
                             .ids = view(ids, SLM_I32, 2, 3, 2),
                             .counts = view(counts, SLM_I64, 1, 4, 0),
                             .offsets = view(offsets, SLM_I64, 1, 5, 0),
                             .order = view(order, SLM_I64, 1, 6, 0)};

    assert_int_equal(slm_ref_backend()->ops->permute(handle, &args, NULL), SLM_OK);
    assert_memory_equal(counts, want_counts, sizeof counts);
    assert_memory_equal(offsets, want_offsets, sizeof offsets);
    assert_memory_equal(order, want_order, sizeof order);
    close_handle(handle);
}

static void load_metrics_measure_4310(void **state)
{
    (void)state;
    const int32_t ids[] = {0, 0, 0, 0, 1, 1, 1, 2};
    const int64_t want[] = {4, 3, 1, 0};
    int64_t load[4];
    double metric[4];
    slm_handle *handle = open_profile("paper", 4, 1, 0, 0, 0);
    slm_load_metrics_args args = {.call = {.struct_size = sizeof args, .n_tokens = 8},
                                  .ids = view(ids, SLM_I32, 2, 8, 1),
                                  .load = view(load, SLM_I64, 1, 4, 0),
                                  .metric = view(metric, SLM_F64, 1, 4, 0)};

    assert_int_equal(slm_ref_backend()->ops->load_metrics(handle, &args, NULL), SLM_OK);
    assert_memory_equal(load, want, sizeof load);
    assert_int_equal(bits_f64(metric[0]), bits_f64(1));
    assert_int_equal(bits_f64(metric[1]), bits_f64(sqrt(10.0) / 4));
    assert_int_equal(bits_f64(metric[2]), bits_f64(1));
    assert_int_equal(bits_f64(metric[3]), bits_f64(6.0 / 16));
    close_handle(handle);
}

static void a_gamma_that_is_not_finite_is_refused(void **state)
{
    (void)state;
    const float u[] = {1, 2, 3, 4}, gamma[] = {1, 1, INFINITY, 1};
    double r[] = {77, 77, 77, 77};
    slm_handle *handle = open_profile("paper", 0, 0, 4, 0, 0);
    const slm_rmsnorm_args args = {.call = {.struct_size = sizeof args, .n_tokens = 1},
                                   .u = view(u, SLM_F32, 2, 1, 4),
                                   .gamma = view(gamma, SLM_F32, 1, 4, 0),
                                   .r = view(r, SLM_F64, 2, 1, 4)};
    slm_error error;

    assert_int_equal(slm_ref_backend()->ops->rmsnorm(handle, &args, &error),
                     SLM_ERR_NONFINITE);
    assert_string_equal(error.field, "gamma");
    assert_int_equal(error.index, 2);
    assert_int_equal(bits_f64(r[0]), bits_f64(77));
    close_handle(handle);
}

static void a_network_of_linear_experts_is_not_offered(void **state)
{
    (void)state;
    const slm_backend *ref = slm_ref_backend();
    const slm_dense_ffn_args args = {.call = {.struct_size = sizeof args}};
    slm_config config;
    slm_handle *handle = NULL;
    slm_error error;
    char reason[64];

    assert_true(slm_config_profile("linear", &config));
    assert_int_equal(ref->supports(&config, SLM_OP_dense_ffn, 1, reason, sizeof reason),
                     0);
    assert_string_equal(reason, "dense_ffn has no linear form");
    assert_int_equal(
        ref->supports(&config, SLM_OP_layer_forward, 1, reason, sizeof reason), 1);
    assert_int_equal(ref->open(&config, &handle, NULL), SLM_OK);
    assert_int_equal(ref->ops->dense_ffn(handle, &args, &error), SLM_ERR_UNSUPPORTED);
    assert_string_equal(error.field, "expert");
    ref->close(handle);
}

/* A ball on both sides of 0 goes to one that holds all of max(0, b). */
static void relu_of_a_ball_holds_its_limits(void **state)
{
    (void)state;
    slm_config config = {.expert = SLM_EXPERT_RELU};
    arb_t b, out;

    arb_init(b);
    arb_init(out);
    arb_set_si(b, 1);
    arb_add_error_2exp_si(b, 1);
    slm_ref_activation(out, b, b, &config, SLM_REF_JUDGE);
    assert_true(arb_contains_si(out, 0) && arb_contains_si(out, 3));
    assert_false(arb_contains_si(out, -2));
    arb_clear(out);
    arb_clear(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chapter_mixes_45_and_55_percent),
        cmocka_unit_test(the_note_mixes_ninths),
        cmocka_unit_test(equal_keys_go_to_the_lower_id_and_minus_zero_is_zero),
        cmocka_unit_test(
            zero_scores_share_equally_in_the_paper_and_vanish_in_the_release),
        cmocka_unit_test(
            one_expert_weighs_one_in_the_paper_and_its_score_in_the_release),
        cmocka_unit_test(the_release_adds_a_decimal_1e20th),
        cmocka_unit_test(logits_weigh_by_real_sigmoids_far_below_binary32),
        cmocka_unit_test(infinite_and_huge_logits_have_limits),
        cmocka_unit_test(softmax_gives_minus_infinity_nothing),
        cmocka_unit_test(all_experts_chosen_leave_the_cutoff_untouched),
        cmocka_unit_test(a_nan_logit_is_refused_with_its_index_and_nothing_is_written),
        cmocka_unit_test(no_tokens_succeed_with_null_data),
        cmocka_unit_test(situ_has_its_published_values),
        cmocka_unit_test(situ_never_passes_one_hundred),
        cmocka_unit_test(situ_has_limits_at_infinity_and_keeps_nan),
        cmocka_unit_test(rmsnorm_decides_the_midpoint_that_no_precision_decides),
        cmocka_unit_test(rmsnorm_of_zero_is_zero_and_gamma_defaults_to_ones),
        cmocka_unit_test(permute_keeps_pairs_in_order_within_an_expert),
        cmocka_unit_test(load_metrics_measure_4310),
        cmocka_unit_test(a_gamma_that_is_not_finite_is_refused),
        cmocka_unit_test(a_network_of_linear_experts_is_not_offered),
        cmocka_unit_test(relu_of_a_ball_holds_its_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
