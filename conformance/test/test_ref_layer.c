/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref_layer.c - the reference's routing and layer: exact, proved, or refused. */
#include "ref_call.h"
#include "seed_7.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static slm_config seed_config(void)
{
    slm_config config;

    assert_true(slm_config_profile("linear", &config));
    config.d_model = 6;
    config.d_latent = 3;
    config.n_experts = 4;
    config.top_k = 2;
    config.n_shared = 2;
    return config;
}

static slm_weights seed_weights(void)
{
    return (slm_weights){.struct_size = sizeof(slm_weights),
                         .w_router = view(seed_w_router, SLM_F32, 2, 4, 6, 0),
                         .w_down = view(seed_w_down, SLM_F32, 2, 3, 6, 0),
                         .w_expert = view(seed_w_expert, SLM_F32, 3, 4, 3, 3),
                         .w_lift = view(seed_w_lift, SLM_F32, 2, 6, 3, 0),
                         .w_shared = view(seed_w_shared, SLM_F32, 3, 2, 6, 6)};
}

static const float no_bias[4];

/* Outputs of up to five tokens of the seed's sizes, poisoned. */
typedef struct result {
    int32_t ids[10];
    double weight[10];
    double o[30];
    double r[15];
    double y[30];
    float cutoff[5];
} result;

static slm_layer_forward_args layer_args(const float *x, size_t n_tokens,
                                         slm_dtype dtype, result *out)
{
    poison(out, sizeof *out);
    return (slm_layer_forward_args){
        .call = {.struct_size = sizeof(slm_layer_forward_args), .n_tokens = n_tokens},
        .x = view(x, SLM_F32, 2, n_tokens, 6, 0),
        .bias = view(no_bias, SLM_F32, 1, 4, 0, 0),
        .y = view(out->y, dtype, 2, n_tokens, 6, 0),
        .ids = view(out->ids, SLM_I32, 2, n_tokens, 2, 0),
        .weight = view(out->weight, dtype, 2, n_tokens, 2, 0),
        .cutoff = view(out->cutoff, SLM_F32, 1, n_tokens, 0, 0),
        .o = view(out->o, dtype, 3, n_tokens, 2, 3),
        .r = view(out->r, dtype, 2, n_tokens, 3, 0)};
}

static slm_status forward(const slm_config *config, const slm_weights *weights,
                          const slm_layer_forward_args *args, slm_error *error)
{
    const slm_backend *ref = slm_ref_backend();
    slm_handle *handle = NULL;
    slm_status status;

    assert_int_equal(ref->open(config, &handle, NULL), SLM_OK);
    assert_int_equal(ref->prepare(handle, weights, NULL), SLM_OK);
    status = ref->ops->layer_forward(handle, args, error);
    ref->close(handle);
    return status;
}

static void the_note_s_layer_has_its_binary64_values_bit_for_bit(void **state)
{
    (void)state;
    const slm_config config = seed_config();
    const slm_weights weights = seed_weights();
    const int32_t want_ids[] = {2, 3, 3, 2, 1, 0, 2, 0, 2, 3};
    result out;
    const slm_layer_forward_args args = layer_args(seed_x, 5, SLM_F64, &out);

    assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
    assert_memory_equal(out.ids, want_ids, sizeof want_ids);
    assert_memory_equal(out.weight, seed_weight, sizeof seed_weight);
    assert_memory_equal(out.r, seed_r, sizeof seed_r);
    assert_memory_equal(out.y, seed_y, sizeof seed_y);
}

static void a_token_does_not_depend_on_its_batch_nor_on_what_is_tapped(void **state)
{
    (void)state;
    const slm_config config = seed_config();
    const slm_weights weights = seed_weights();
    result out;
    slm_layer_forward_args args = layer_args(seed_x + 12, 1, SLM_F64, &out);

    args.o.rank = args.r.rank = args.cutoff.rank = 0;
    assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
    assert_memory_equal(out.y, seed_y + 12, 6 * sizeof *seed_y);
    poison(out.y, sizeof out.y);
    poison(out.ids, sizeof out.ids);
    poison(out.weight, sizeof out.weight);
    assert_true(is_poison(&out, sizeof out));
}

static void a_nan_row_is_refused_at_its_first_logit_and_nothing_is_written(void **s)
{
    (void)s;
    const slm_config config = seed_config();
    const slm_weights weights = seed_weights();
    const float bad[] = {NAN, INFINITY, -INFINITY};

    for (size_t i = 0; i < 3; i++) {
        float x[30];
        result out;
        slm_error error;
        const slm_layer_forward_args args = layer_args(x, 5, SLM_F64, &out);

        memcpy(x, seed_x, sizeof x);
        x[2 * 6 + 3] = bad[i];
        assert_int_equal(forward(&config, &weights, &args, &error), SLM_ERR_NONFINITE);
        assert_string_equal(error.field, "logit");
        assert_int_equal(error.index, 2 * 4);
        assert_true(is_poison(&out, sizeof out));
    }
}

static void nan_matters_only_in_experts_that_were_chosen(void **state)
{
    (void)state;
    const slm_config config = seed_config();
    slm_weights weights = seed_weights();
    float w_expert[36];
    result out;
    slm_error error;
    const slm_layer_forward_args args = layer_args(seed_x, 1, SLM_F64, &out);

    memcpy(w_expert, seed_w_expert, sizeof w_expert);
    weights.w_expert.data = w_expert;
    w_expert[0] = w_expert[17] = NAN; /* experts 0 and 1; the token takes 2 and 3 */
    assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
    assert_memory_equal(out.y, seed_y, 6 * sizeof *seed_y);
    w_expert[27 + 4] = NAN;
    poison(&out, sizeof out);
    assert_int_equal(forward(&config, &weights, &args, &error), SLM_ERR_NONFINITE);
    assert_string_equal(error.field, "o");
    assert_int_equal(error.index, 4);
    assert_true(is_poison(&out, sizeof out));
}

/* Two experts that agree give a rational u, whatever their weights; here it is halfway
 * between two binary32 numbers, and nothing at hand proves it. */
static void a_value_that_no_precision_decides_is_an_error(void **state)
{
    (void)state;
    const float x[] = {1, 1}, w_router[] = {1, 2, 1, 1}, w_down[] = {1, 0x1p-24f};
    const float w_expert[] = {1, 1}, w_lift[] = {1, 1};
    const slm_weights weights = {.struct_size = sizeof weights,
                                 .w_router = view(w_router, SLM_F32, 2, 2, 2, 0),
                                 .w_down = view(w_down, SLM_F32, 2, 1, 2, 0),
                                 .w_expert = view(w_expert, SLM_F32, 3, 2, 1, 1),
                                 .w_lift = view(w_lift, SLM_F32, 2, 2, 1, 0)};
    slm_config config = seed_config();
    float y[] = {77, 77}, u[] = {77}, weight[2], z[1];
    int32_t ids[2];
    slm_error error;
    slm_layer_forward_args args = {.call = {.struct_size = sizeof args, .n_tokens = 1},
                                   .x = view(x, SLM_F32, 2, 1, 2, 0),
                                   .bias = view(no_bias, SLM_F32, 1, 2, 0, 0),
                                   .y = view(y, SLM_F32, 2, 1, 2, 0),
                                   .ids = view(ids, SLM_I32, 2, 1, 2, 0),
                                   .weight = view(weight, SLM_F32, 2, 1, 2, 0),
                                   .z = view(z, SLM_F32, 2, 1, 1, 0),
                                   .u = view(u, SLM_F32, 2, 1, 1, 0)};

    config.d_model = config.n_experts = 2;
    config.d_latent = 1;
    config.n_shared = 0;
    assert_int_equal(forward(&config, &weights, &args, &error), SLM_ERR_INTERNAL);
    assert_string_equal(error.field, "u");
    assert_string_equal(error.expected, "unproved at 4096 bits");
    assert_int_equal(bits_f32(u[0]), bits_f32(77));
    assert_int_equal(bits_f32(y[0]), bits_f32(77));

    args.u.dtype = SLM_F32;
    args.u.rank = 0; /* r and y are irrational, and z is decided exactly */
    assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
    assert_int_equal(bits_f32(z[0]), bits_f32(1));

    config.top_k = 1; /* p = 1 exactly: u = o = z, to even */
    args.ids = view(ids, SLM_I32, 2, 1, 1, 0);
    args.weight = view(weight, SLM_F32, 2, 1, 1, 0);
    args.u.rank = 2;
    assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
    assert_int_equal(bits_f32(u[0]), bits_f32(1));
}

/* logit = 1 + tail of two terms, in binary32. */
static float logit_of(float tail)
{
    const float x[] = {1, 1}, w_router[] = {1, tail};
    float logit = 77, weight;
    int32_t ids;
    slm_config config = seed_config();
    slm_handle *handle = NULL;
    const slm_route_args args = {.call = {.struct_size = sizeof args, .n_tokens = 1},
                                 .x = view(x, SLM_F32, 2, 1, 2, 0),
                                 .w_router = view(w_router, SLM_F32, 2, 1, 2, 0),
                                 .bias = view(no_bias, SLM_F32, 1, 1, 0, 0),
                                 .ids = view(&ids, SLM_I32, 2, 1, 1, 0),
                                 .weight = view(&weight, SLM_F32, 2, 1, 1, 0),
                                 .logit = view(&logit, SLM_F32, 2, 1, 1, 0)};

    config.d_model = 2;
    config.n_experts = config.top_k = 1;
    assert_int_equal(slm_ref_backend()->open(&config, &handle, NULL), SLM_OK);
    assert_int_equal(slm_ref_backend()->ops->route(handle, &args, NULL), SLM_OK);
    slm_ref_backend()->close(handle);
    return logit;
}

static void a_dot_product_on_a_midpoint_goes_to_even(void **state)
{
    (void)state;
    assert_int_equal(bits_f32(logit_of(0x1p-24f)), bits_f32(1));
    assert_int_equal(bits_f32(logit_of(0x1.8p-23f)), bits_f32(1 + 0x1p-22f));
    assert_int_equal(bits_f32(logit_of(0x1.000002p-24f)), bits_f32(1 + 0x1p-23f));
}

static void the_gauge_is_the_sum_of_absolute_products(void **state)
{
    (void)state;
    const float w[] = {1, -2, 3, -4, 5, -6};
    const slm_tensor matrix = view(w, SLM_F32, 2, 2, 3, 0);
    arb_ptr x = _arb_vec_init(3), y = _arb_vec_init(2), gauge = _arb_vec_init(2);

    arb_set_si(x, -1);
    arb_set_si(x + 1, 2);
    arb_set_si(x + 2, 3);
    slm_ref_linear(y, gauge, &matrix, x, SLM_REF_CAP);
    assert_true(arb_equal_si(y, 4) && arb_equal_si(y + 1, -4));
    assert_true(arb_equal_si(gauge, 14) && arb_equal_si(gauge + 1, 32));
    slm_ref_combine(y, gauge, x, x, 1, 2, SLM_REF_CAP);
    assert_true(arb_equal_si(y, 1) && arb_equal_si(gauge + 1, 2));
    _arb_vec_clear(gauge, 2);
    _arb_vec_clear(y, 2);
    _arb_vec_clear(x, 3);
}

enum { D = 4, L = 3, N = 3, K = 2, F = 2, S = 2, FS = 1 };

/* The layer in plain doubles, for a token: the formulas and nothing else. */
static double act(slm_expert_kind kind, double a, double b)
{
    const double sigma = 1 / (1 + exp(-a));

    if (kind == SLM_EXPERT_RELU) return b > 0 ? b : 0;
    if (kind == SLM_EXPERT_SWIGLU) return a * sigma * b;
    return 4 * tanh(a / 4) * sigma * 25 * tanh(b / 25);
}

static void times(double *y, const float *w, const double *x, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++) {
        y[i] = 0;
        for (size_t j = 0; j < cols; j++) y[i] += (double)w[i * cols + j] * x[j];
    }
}

static void inner(double *h, slm_expert_kind kind, const float *gate, const float *up,
                  const double *x, size_t rows, size_t cols)
{
    double a[4], b[4];

    times(a, gate, x, rows, cols);
    times(b, up, x, rows, cols);
    for (size_t i = 0; i < rows; i++) h[i] = act(kind, a[i], b[i]);
}

static void plain_layer(double *y, const slm_config *config, const slm_weights *w,
                        const double *x, const int32_t *ids)
{
    double logit[N], s[N], sum = 0, all = 0, z[L], h[F], o[L], u[L] = {0}, part[D];
    double square = 0;

    times(logit, w->w_router.data, x, N, D);
    for (size_t e = 0; e < N; e++) all += exp(logit[e]);
    for (size_t e = 0; e < N; e++)
        s[e] = config->score == SLM_SCORE_SOFTMAX ? exp(logit[e]) / all
                                                  : 1 / (1 + exp(-logit[e]));
    for (size_t q = 0; q < K; q++) sum += s[ids[q]];
    times(z, w->w_down.data, x, L, D);
    for (size_t q = 0; q < K; q++) {
        const size_t at = (size_t)ids[q] * F * L;

        inner(h, config->expert, (const float *)w->w_gate.data + at,
              (const float *)w->w_up.data + at, z, F, L);
        times(o, (const float *)w->w_out.data + at, h, L, F);
        for (size_t i = 0; i < L; i++) u[i] += s[ids[q]] / sum * o[i];
    }
    for (size_t i = 0; i < L; i++) square += u[i] * u[i];
    for (size_t i = 0; config->norm == SLM_NORM_RMS && i < L; i++)
        u[i] =
            ((const float *)w->gamma.data)[i] * u[i] / sqrt(square / L + config->eps);
    times(y, w->w_lift.data, u, D, L);
    inner(h, config->expert, w->w_shared_gate.data, w->w_shared_up.data, x, S * FS, D);
    times(part, w->w_shared_out.data, h, D, S * FS);
    for (size_t i = 0; i < D; i++) y[i] += part[i];
}

static void check_kind(slm_expert_kind kind, slm_score_function score,
                       slm_norm norm_kind)
{
    float w[128], x[D];
    double x_wide[D], y[D], want[D], h[K * F], hs[S * FS];
    int32_t ids[K];
    float weight[K];
    slm_config config = seed_config();
    const slm_weights weights = {
        .struct_size = sizeof weights,
        .w_router = view(w, SLM_F32, 2, N, D, 0),
        .w_down = view(w + 12, SLM_F32, 2, L, D, 0),
        .w_gate = view(w + 24, SLM_F32, 3, N, F, L),
        .w_up = view(w + 42, SLM_F32, 3, N, F, L),
        .w_out = view(w + 60, SLM_F32, 3, N, L, F),
        .gamma = view(w + 78, SLM_F32, 1, L, 0, 0),
        .w_lift = view(w + 81, SLM_F32, 2, D, L, 0),
        .w_shared_gate = view(w + 93, SLM_F32, 2, S * FS, D, 0),
        .w_shared_up = view(w + 101, SLM_F32, 2, S * FS, D, 0),
        .w_shared_out = view(w + 109, SLM_F32, 2, D, S * FS, 0)};
    const slm_layer_forward_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = 1},
        .x = view(x, SLM_F32, 2, 1, D, 0),
        .bias = view(no_bias, SLM_F32, 1, N, 0, 0),
        .y = view(y, SLM_F64, 2, 1, D, 0),
        .ids = view(ids, SLM_I32, 2, 1, K, 0),
        .weight = view(weight, SLM_F32, 2, 1, K, 0),
        .h = view(h, SLM_F64, 3, 1, K, F),
        .hs = view(hs, SLM_F64, 2, 1, S * FS, 0)};

    for (size_t i = 0; i < 128; i++) w[i] = (float)((i * 37 + 11) % 64) / 32 - 1;
    for (size_t i = 0; i < D; i++) x_wide[i] = (double)(x[i] = (float)i - 1.25f);
    config.d_model = D;
    config.d_latent = L;
    config.n_experts = N;
    config.top_k = K;
    config.d_expert = F;
    config.d_shared = FS;
    config.n_shared = S;
    config.expert = kind;
    config.score = score;
    config.norm = norm_kind;
    assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
    plain_layer(want, &config, &weights, x_wide, ids);
    for (size_t i = 0; i < D; i++) assert_true(fabs(y[i] - want[i]) < 1e-13);
}

static void every_kind_of_layer_agrees_with_its_formula_in_doubles(void **state)
{
    (void)state;
    check_kind(SLM_EXPERT_SITU, SLM_SCORE_SIGMOID, SLM_NORM_RMS);
    check_kind(SLM_EXPERT_SWIGLU, SLM_SCORE_SIGMOID, SLM_NORM_NONE);
    check_kind(SLM_EXPERT_RELU, SLM_SCORE_SOFTMAX, SLM_NORM_NONE);
    check_kind(SLM_EXPERT_SITU, SLM_SCORE_SOFTMAX, SLM_NORM_RMS);
}

static void progress_moves_within_a_token_and_ends_at_its_total(void **state)
{
    (void)state;
    const slm_config config = seed_config();
    const slm_weights weights = seed_weights();
    result out;
    progress seen = {0};
    slm_layer_forward_args args = layer_args(seed_x, 1, SLM_F64, &out);

    args.call.progress = note_progress;
    args.call.progress_user = &seen;
    assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
    assert_int_equal(seen.done, seen.total);
    assert_true(seen.calls >= config.top_k);
}

/* All sizes 1: every weight is used, and one alone is NaN. */
static void a_used_weight_that_is_not_finite_is_refused_at_its_stage(void **state)
{
    (void)state;
    static const char *const fields[] = {"logit", "z", "h",  "h",  "o",
                                         "gamma", "y", "hs", "hs", "y"};
    enum { WEIGHTS = sizeof fields / sizeof *fields };
    const float x = 1;
    float w[WEIGHTS] = {0}, y = 77, weight;
    int32_t ids;
    const slm_weights weights = weights_of_one(w);
    const slm_layer_forward_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = 1},
        .x = view(&x, SLM_F32, 2, 1, 1, 0),
        .bias = view(no_bias, SLM_F32, 1, 1, 0, 0),
        .y = view(&y, SLM_F32, 2, 1, 1, 0),
        .ids = view(&ids, SLM_I32, 2, 1, 1, 0),
        .weight = view(&weight, SLM_F32, 2, 1, 1, 0)};
    slm_config config;
    slm_error error;

    assert_true(slm_config_profile("paper", &config));
    config.d_model = config.d_latent = config.d_expert = config.d_shared = 1;
    config.n_experts = config.top_k = config.n_shared = 1;
    for (size_t i = 0; i < WEIGHTS; i++) {
        for (size_t j = 0; j < WEIGHTS; j++) w[j] = i == j ? NAN : 1;
        assert_int_equal(forward(&config, &weights, &args, &error), SLM_ERR_NONFINITE);
        assert_string_equal(error.field, fields[i]);
        assert_int_equal(bits_f32(y), bits_f32(77));
    }
    w[WEIGHTS - 1] = 1;
    assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
}

/* The second element of x by 1/2 and by 2^-60, and in one of the two sums beside 2^220
 * and -2^220: 128 bits do not hold that, and tell neither the score of the logit nor the
 * mean square from a negative one. */
static void sums_that_cancel_are_repeated_with_more_bits(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        const float x[] = {0x1p100f, 1, 0x1p100f}, one = 1, lift[] = {1, 1, 1};
        const float high[] = {which ? 0 : 0x1p120f, which ? 0x1p120f : 0};
        const float w_router[] = {high[0], 0.5f, -high[0]};
        const float w_down[] = {high[1], 0x1p-60f, -high[1]};
        const slm_weights weights = {.struct_size = sizeof weights,
                                     .w_router = view(w_router, SLM_F32, 2, 1, 3, 0),
                                     .w_down = view(w_down, SLM_F32, 2, 1, 3, 0),
                                     .w_expert = view(&one, SLM_F32, 3, 1, 1, 1),
                                     .w_lift = view(lift, SLM_F32, 2, 3, 1, 0)};
        slm_config config = seed_config();
        float score = 77;
        double y[3], r = 77, weight;
        int32_t ids;
        const slm_layer_forward_args args = {
            .call = {.struct_size = sizeof args, .n_tokens = 1},
            .x = view(x, SLM_F32, 2, 1, 3, 0),
            .bias = view(no_bias, SLM_F32, 1, 1, 0, 0),
            .y = view(y, SLM_F64, 2, 1, 3, 0),
            .ids = view(&ids, SLM_I32, 2, 1, 1, 0),
            .weight = view(&weight, SLM_F64, 2, 1, 1, 0),
            .score = view(&score, SLM_F32, 2, 1, 1, 0),
            .r = view(&r, SLM_F64, 2, 1, 1, 0)};

        config.d_model = 3;
        config.d_latent = config.n_experts = config.top_k = 1;
        config.n_shared = 0;
        assert_int_equal(forward(&config, &weights, &args, NULL), SLM_OK);
        assert_int_equal(bits_f32(score), bits_f32((float)(1 / (1 + exp(-0.5)))));
        assert_true(fabs(r / (0x1p-60 / sqrt(config.eps)) - 1) < 1e-14);
        assert_true(y[0] == r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_note_s_layer_has_its_binary64_values_bit_for_bit),
        cmocka_unit_test(a_token_does_not_depend_on_its_batch_nor_on_what_is_tapped),
        cmocka_unit_test(
            a_nan_row_is_refused_at_its_first_logit_and_nothing_is_written),
        cmocka_unit_test(nan_matters_only_in_experts_that_were_chosen),
        cmocka_unit_test(a_value_that_no_precision_decides_is_an_error),
        cmocka_unit_test(a_dot_product_on_a_midpoint_goes_to_even),
        cmocka_unit_test(the_gauge_is_the_sum_of_absolute_products),
        cmocka_unit_test(every_kind_of_layer_agrees_with_its_formula_in_doubles),
        cmocka_unit_test(progress_moves_within_a_token_and_ends_at_its_total),
        cmocka_unit_test(a_used_weight_that_is_not_finite_is_refused_at_its_stage),
        cmocka_unit_test(sums_that_cancel_are_repeated_with_more_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
