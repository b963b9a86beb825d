/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref.c - the reference's small operations on numbers that people worked out. */
#include "ref_call.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void no_tokens_succeed_with_null_data(void **state)
{
    (void)state;
    const float bias[] = {0, 0, 0};
    slm_handle *handle = open_profile("paper", 3, 2, 4, 2, 0);
    slm_select_args args = {.call = {.struct_size = sizeof args},
                            .logit = view(NULL, SLM_F32, 2, 0, 3, 0),
                            .bias = view(bias, SLM_F32, 1, 3, 0, 0),
                            .ids = view(NULL, SLM_I32, 2, 0, 2, 0),
                            .weight = view(NULL, SLM_F32, 2, 0, 2, 0)};
    slm_rmsnorm_args norm = {.call = {.struct_size = sizeof norm},
                             .u = view(NULL, SLM_F32, 2, 0, 4, 0),
                             .r = view(NULL, SLM_F32, 2, 0, 4, 0)};
    int64_t load[] = {-1, -1, -1};
    double metric[] = {9, 9, 9, 9};
    slm_load_metrics_args metrics = {.call = {.struct_size = sizeof metrics},
                                     .ids = view(NULL, SLM_I32, 2, 0, 2, 0),
                                     .load = view(load, SLM_I64, 1, 3, 0, 0),
                                     .metric = view(metric, SLM_F64, 1, 4, 0, 0)};

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
                              .gate_up = view(gate_up, SLM_F32, 2, 1, 2, 0),
                              .h = view(&h, SLM_F64, 2, 1, 1, 0)};

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
                             .u = view(u, SLM_F32, 2, 1, 4, 0),
                             .r = view(r, dtype, 2, 1, 4, 0)};

    if (gamma) args.gamma = view(gamma, SLM_F32, 1, 4, 0, 0);
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
                             .ids = view(ids, SLM_I32, 2, 3, 2, 0),
                             .counts = view(counts, SLM_I64, 1, 4, 0, 0),
                             .offsets = view(offsets, SLM_I64, 1, 5, 0, 0),
                             .order = view(order, SLM_I64, 1, 6, 0, 0)};

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
                                  .ids = view(ids, SLM_I32, 2, 8, 1, 0),
                                  .load = view(load, SLM_I64, 1, 4, 0, 0),
                                  .metric = view(metric, SLM_F64, 1, 4, 0, 0)};

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
                                   .u = view(u, SLM_F32, 2, 1, 4, 0),
                                   .gamma = view(gamma, SLM_F32, 1, 4, 0, 0),
                                   .r = view(r, SLM_F64, 2, 1, 4, 0)};
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
