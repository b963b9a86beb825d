/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref_layer_backward.c - the reference's backward passes of a network and of a
 * layer: by hand, refused at the right stage, or unproved.                    G1-G5 */
#include "internal.h"
#include "ref_call.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

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

static slm_weights layer_weights(const layer *m)
{
    return (slm_weights){.struct_size = sizeof(slm_weights),
                         .w_router = view(m->w_router, SLM_F32, 2, 3, 2, 0),
                         .w_down = view(m->w_down, SLM_F32, 2, 2, 2, 0),
                         .w_expert = view(m->w_expert, SLM_F32, 3, 3, 2, 2),
                         .w_lift = view(m->w_lift, SLM_F32, 2, 2, 2, 0),
                         .w_shared = view(m->w_shared, SLM_F32, 3, 1, 2, 2)};
}

static slm_status layer_run(layer *m, const slm_layer_backward_args *args,
                            slm_error *error)
{
    const slm_weights weights = layer_weights(m);
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
    const slm_weights weights = weights_of_one(w);
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
    const slm_weights weights = layer_weights(&m);
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

static void progress_moves_and_ends_at_its_total(void **state)
{
    (void)state;
    layer m = layer_of("linear");
    slm_layer_backward_args args = layer_args(&m, 2);
    progress seen = {0};

    args.call.progress = note_progress;
    args.call.progress_user = &seen;
    assert_int_equal(layer_run(&m, &args, NULL), SLM_OK);
    assert_true(seen.total >= 6);
    assert_int_equal(seen.done, seen.total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
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
        cmocka_unit_test(strided_views_give_the_same_bits),
        cmocka_unit_test(element_types_are_the_real_number_rounded_once),
        cmocka_unit_test(progress_moves_and_ends_at_its_total),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
