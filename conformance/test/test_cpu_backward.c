/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_backward.c - the gradients of `cpu-blas`: what no vector
 * can see.
 *
 * One result for any threads, strides and taps, for every kind; sums over several
 * panels; slopes over the whole range; exact zeros over old memory; refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

static const slm_op backward[] = {SLM_OP_situ_glu_backward, SLM_OP_rmsnorm_backward,
                                  SLM_OP_select_backward, SLM_OP_dense_ffn_backward,
                                  SLM_OP_layer_backward};
enum { OPS = sizeof backward / sizeof *backward };

/* ---- the same bits however it is called ---- */

static void every_kind_has_one_result(void **state)
{
    static const slm_expert_kind kinds[] = {SLM_EXPERT_SITU, SLM_EXPERT_SWIGLU,
                                            SLM_EXPERT_LINEAR};

    (void)state;
    for (size_t kind = 0; kind < 3; kind++)
        for (size_t n_shared = 0; n_shared < 3; n_shared += 2) {
            slm_config config = cpu_tiny();

            config.expert = kinds[kind];
            config.n_shared = n_shared;
            cpu_one_result(SLM_OP_layer_backward, &config, 33);
            config.norm = SLM_NORM_NONE;
            config.weighting = SLM_WEIGHT_RELEASE;
            cpu_one_result(SLM_OP_layer_backward, &config, 5);
            cpu_one_result(SLM_OP_rmsnorm_backward, &config, 5);
            if (kinds[kind] != SLM_EXPERT_LINEAR)
                cpu_one_result(SLM_OP_dense_ffn_backward, &config, 33);
        }
}

/* Products that are cut into several blocks, the last ones odd; the gradients' blocks
 * are more than go through the stage at once. */
static void many_blocks_have_one_result(void **state)
{
    slm_config config = cpu_tiny();

    (void)state;
    config.d_model = 701;
    config.d_latent = 333;
    config.d_expert = 270;
    config.n_experts = 3;
    config.top_k = 2;
    for (size_t tokens = 1; tokens < 400; tokens = tokens * 5 + 17) {
        cpu_one_result(SLM_OP_layer_backward, &config, tokens);
        cpu_one_result(SLM_OP_dense_ffn_backward, &config, tokens);
    }
}

/* Taps are asked for by cpu_run; without them the same outputs, bit for bit. */
static void taps_do_not_change_what_is_tapped(void **state)
{
    const slm_config config = cpu_tiny();
    cpu_outcome with = cpu_run_plain(SLM_OP_layer_backward, &config, 33, NULL);
    cpu_frame made;
    slm_handle *handle;

    (void)state;
    cpu_frame_make(&made, SLM_OP_layer_backward, &config, 33, NULL, CPU_PACKED);
    for (size_t i = 0; i < made.info->n_fields; i++)
        if (made.info->fields[i].role == SLM_ROLE_TAP)
            cpu_field(&made, &made.info->fields[i])->rank = 0;
    handle = cpu_frame_open(&made, SLM_OP_layer_backward, &config);
    assert_int_equal(cpu_invoke(handle, SLM_OP_layer_backward, &made.args, NULL),
                     SLM_OK);
    cpu_same_outputs(&made, &with);
    cpu_frame_close(&made, handle);
    cpu_release(&with);
}

/* ---- the forward that is recomputed ---- */

/* Within 1e-5 of the largest element: blocks may be cut otherwise. */
static void assert_alike(const float *one, const double *other, size_t count)
{
    double largest = 0.0;

    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs(other[i]));
    for (size_t i = 0; i < count; i++)
        assert_true(fabs((double)one[i] - other[i]) <= 1e-5 * largest);
}

static void assert_same_tap(const cpu_outcome *a, const cpu_outcome *b,
                            const char *name)
{
    for (size_t i = 0; i < a->n; i++) {
        const size_t count = a->size[i] / sizeof(float);
        const float *other;
        double *wide;

        if (strcmp(a->name[i], name) != 0) continue;
        other = cpu_output(b, name);
        wide = malloc(count * sizeof *wide);
        assert_non_null(wide);
        for (size_t e = 0; e < count; e++) wide[e] = (double)other[e];
        assert_alike(cpu_output(a, name), wide, count);
        free(wide);
    }
}

/* h from [gate | up], whose memory the gradient takes later. */
static void assert_activates(const cpu_outcome *out, const char *from, const char *to,
                             size_t rows, size_t width)
{
    const float *gate_up = cpu_output(out, from);
    double *h = malloc(rows * width * sizeof *h);

    assert_non_null(h);
    for (size_t i = 0; i < rows * width; i++) {
        const double a = (double)gate_up[i / width * 2 * width + i % width];
        const double b = (double)gate_up[(i / width * 2 + 1) * width + i % width];

        h[i] = 4.0 * tanh(a / 4.0) / (1.0 + exp(-a)) * 25.0 * tanh(b / 25.0);
    }
    assert_alike(cpu_output(out, to), h, rows * width);
    free(h);
}

static void taps_of_the_forward_are_those_of_layer_forward(void **state)
{
    static const char *const both[] = {"logit", "weight", "z", "h",
                                       "o",     "u",      "r", "hs"};
    const slm_config config = cpu_tiny();
    cpu_outcome forward = cpu_run_plain(SLM_OP_layer_forward, &config, 33, NULL);
    const cpu_given list[] = {{"ids", cpu_output(&forward, "ids")}, {NULL, NULL}};
    cpu_outcome out = cpu_run_plain(SLM_OP_layer_backward, &config, 33, list);

    (void)state;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++)
        assert_same_tap(&forward, &out, both[i]);
    assert_activates(&out, "shared_gate_up", "hs", 33, 2 * config.d_shared);
    assert_activates(&out, "gate_up", "h", 33 * config.top_k, config.d_expert);
    cpu_release(&forward);
    cpu_release(&out);
}

/* ---- sums over panels ---- */

static float small_integer(const char *name, size_t index)
{
    return floorf(1.5f + 1.5f * cpu_noise(name, index)) - 1.0f; /* -1, 0 or 1 */
}

enum { PANELS_T = 2 * 4096 + 2, PANELS_D = 3, PANELS_L = 2, PANELS_N = 3 };

/* Linear experts without a norm, k = 1, integers: every sum is exact, so the gradients
 * of all tokens are, bit for bit, the sums of those of the tokens one by one. The last
 * expert is chosen beyond the first panel alone. */
static void gradients_add_up_over_panels(void **state)
{
    static float x[PANELS_T * PANELS_D], dy[PANELS_T * PANELS_D];
    static int32_t ids[PANELS_T];
    static float down[PANELS_L * PANELS_D], lift[PANELS_D * PANELS_L];
    static float expert[PANELS_N * PANELS_L * PANELS_L];
    double want_down[PANELS_L * PANELS_D] = {0.0},
                                want_lift[PANELS_L * PANELS_D] = {0.0};
    double want_expert[PANELS_N * PANELS_L * PANELS_L] = {0.0};
    const cpu_given list[] = {{"x", x},         {"dy", dy},       {"ids", ids},
                              {"w_down", down}, {"w_lift", lift}, {"w_expert", expert},
                              {NULL, NULL}};
    slm_config config = cpu_tiny();

    (void)state;
    config.expert = SLM_EXPERT_LINEAR;
    config.norm = SLM_NORM_NONE;
    config.d_model = PANELS_D;
    config.d_latent = PANELS_L;
    config.n_experts = PANELS_N;
    config.top_k = 1;
    config.n_shared = 0;
    for (size_t i = 0; i < PANELS_T * PANELS_D; i++) {
        x[i] = small_integer("x", i);
        dy[i] = small_integer("dy", i);
    }
    for (size_t i = 0; i < PANELS_L * PANELS_D; i++) {
        down[i] = small_integer("down", i);
        lift[i] = small_integer("lift", i);
    }
    for (size_t i = 0; i < PANELS_N * PANELS_L * PANELS_L; i++)
        expert[i] = small_integer("expert", i);
    for (size_t t = 0; t < PANELS_T; t++) {
        const float *w = expert;
        double z[PANELS_L] = {0.0}, o[PANELS_L] = {0.0}, dr[PANELS_L] = {0.0};
        double dz[PANELS_L] = {0.0};

        ids[t] = t % 2 && t >= 4096 ? PANELS_N - 1 : 0;
        w += (size_t)ids[t] * PANELS_L * PANELS_L;
        for (size_t i = 0; i < PANELS_L; i++)
            for (size_t j = 0; j < PANELS_D; j++) {
                z[i] += (double)down[i * PANELS_D + j] * (double)x[t * PANELS_D + j];
                dr[i] += (double)lift[j * PANELS_L + i] * (double)dy[t * PANELS_D + j];
            }
        for (size_t i = 0; i < PANELS_L; i++)
            for (size_t j = 0; j < PANELS_L; j++) {
                o[i] += (double)w[i * PANELS_L + j] * z[j];
                dz[j] += dr[i] * (double)w[i * PANELS_L + j];
                want_expert[((size_t)ids[t] * PANELS_L + i) * PANELS_L + j] +=
                    dr[i] * z[j];
            }
        for (size_t i = 0; i < PANELS_L; i++)
            for (size_t j = 0; j < PANELS_D; j++) {
                want_down[i * PANELS_D + j] += dz[i] * (double)x[t * PANELS_D + j];
                want_lift[j * PANELS_L + i] += (double)dy[t * PANELS_D + j] * o[i];
            }
    }
    for (int how = CPU_PACKED; how < CPU_LAYOUTS; how++) {
        cpu_outcome out = cpu_run(SLM_OP_layer_backward, &config, PANELS_T, list,
                                  (cpu_layout)how, 2, 0xff);
        const float *of_down = cpu_output(&out, "dw_down");
        const float *of_lift = cpu_output(&out, "dw_lift");
        const float *of_expert = cpu_output(&out, "dw_expert");

        assert_int_equal(out.status, SLM_OK);
        for (size_t i = 0; i < PANELS_L * PANELS_D; i++)
            assert_true((double)of_down[i] == want_down[i] &&
                        (double)of_lift[i] == want_lift[i]);
        for (size_t i = 0; i < PANELS_N * PANELS_L * PANELS_L; i++)
            assert_true((double)of_expert[i] == want_expert[i]);
        cpu_release(&out);
    }
    assert_true(want_expert[(PANELS_N - 1) * PANELS_L * PANELS_L] != 0.0);
}

/* ---- slopes ---- */

static double sigma(double x)
{
    const double e = exp(-fabs(x));

    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

static double sech2(double x)
{
    const double t = exp(-2.0 * fabs(x));

    return 4.0 * t / ((1.0 + t) * (1.0 + t));
}

/* Within `units` of 2^-24 of `gauge`, and of the least step. */
static void assert_near(float got, double want, double gauge, double units)
{
    assert_true(fabs((double)got - want) <= units * 0x1p-24 * gauge + 0x1p-149);
}

/* Every 4099th binary32 as gate and, in another order, as up. The gradients are rounded
 * once; a slope of its own would be allowed 2 c_s + 4 + 2 |x| units (A1). */
static void slopes_are_right_over_the_whole_range(void **state)
{
    static const float dh[] = {1.0f, -0x1p100f, 0x1.8p-40f};
    const size_t count = 2 * (0x7f800000u / 4099);
    float *gate_up = malloc(2 * count * sizeof *gate_up);
    float *of_h = malloc(count * sizeof *of_h);
    const cpu_given list[] = {{"gate_up", gate_up}, {"dh", of_h}, {NULL, NULL}};
    slm_config config = cpu_tiny();
    cpu_outcome out;

    (void)state;
    assert_true(gate_up && of_h);
    config.d_expert = count;
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)(i / 2 * 4099) | (i % 2 ? 0x80000000u : 0u);
        const size_t j = i * 1048583 % count;

        memcpy(&gate_up[i], &bits, sizeof bits);
        memcpy(&gate_up[count + j], &bits, sizeof bits);
    }
    for (size_t i = 0; i < count; i++) of_h[i] = dh[i % 3];
    out = cpu_run_plain(SLM_OP_situ_glu_backward, &config, 1, list);
    for (size_t i = 0; i < count; i++) {
        const float *da = cpu_output(&out, "dgate_up"), *db = da + count;
        const double a = (double)gate_up[i], b = (double)gate_up[count + i];
        const double g = (double)of_h[i], cap = 4.0 * tanh(a / 4.0);
        const double up = 25.0 * tanh(b / 25.0);
        const double one = sigma(a) * sech2(a / 4.0);
        const double two = cap * sigma(a) * sigma(-a);

        assert_near(da[i], g * up * (one + two), fabs(g * up) * (one + fabs(two)), 1.0);
        assert_near(db[i], g * cap * sigma(a) * sech2(b / 25.0),
                    fabs(g * cap * sigma(a) * sech2(b / 25.0)), 1.0);
    }
    cpu_release(&out);
    free(gate_up);
    free(of_h);
}

static void infinite_gates_and_ups_give_the_limits(void **state)
{
    float gate_up[] = {INFINITY, -INFINITY, 2.0f,      INFINITY,
                       3.0f,     3.0f,      -INFINITY, 0.0f};
    float dh[] = {2.0f, 2.0f, 2.0f, 2.0f};
    const cpu_given list[] = {{"gate_up", gate_up}, {"dh", dh}, {NULL, NULL}};
    const double cap = 4.0 * tanh(0.5) * sigma(2.0);
    slm_config config = cpu_tiny();
    cpu_outcome out;
    const float *d;

    (void)state;
    config.d_expert = 4;
    out = cpu_run_plain(SLM_OP_situ_glu_backward, &config, 1, list);
    d = cpu_output(&out, "dgate_up");
    assert_true(d[0] == 0.0f && d[1] == 0.0f && d[3] == 0.0f);
    assert_near(d[2], -50.0 * (sigma(2.0) * sech2(0.5) + cap * sigma(-2.0)), 70.0, 1.0);
    assert_near(d[4], 8.0 * sech2(0.12), 8.0, 1.0);
    assert_true(d[5] == 0.0f && d[6] == 0.0f);
    assert_true(d[7] == 8.0f);
    cpu_release(&out);
}

/* ---- exact zeros, written over old memory ---- */

static int all_zero(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] != 0.0f) return 0;
    return 1;
}

/* No token chooses expert 4 of 11; with no token at all nobody chooses any. */
static void idle_experts_get_zeros(void **state)
{
    static int32_t ids[20 * 3];
    const cpu_given list[] = {{"ids", ids}, {NULL, NULL}};
    const slm_config config = cpu_tiny();
    const size_t n = config.n_experts, inner = config.d_expert * config.d_latent;

    (void)state;
    for (size_t t = 0; t < 20; t++) {
        ids[t * 3] = (int32_t)(t % 4);
        ids[t * 3 + 1] = (int32_t)(5 + t % 3);
        ids[t * 3 + 2] = (int32_t)(8 + t % 3);
    }
    for (size_t tokens = 0; tokens <= 20; tokens += 20) {
        cpu_outcome out = cpu_run_plain(SLM_OP_layer_backward, &config, tokens, list);
        const char *const weights[] = {"dw_gate", "dw_up", "dw_out"};

        assert_int_equal(out.status, SLM_OK);
        for (size_t e = 0; e < n; e++) {
            const int is_idle = e == 4 || tokens == 0;

            for (size_t w = 0; w < 3; w++)
                assert_int_equal(
                    all_zero((float *)cpu_output(&out, weights[w]) + e * inner, inner),
                    is_idle);
            assert_int_equal(
                all_zero((float *)cpu_output(&out, "dw_router") + e * config.d_model,
                         config.d_model),
                is_idle);
        }
        assert_true(all_zero(cpu_output(&out, "dbias"), n));
        assert_int_equal(all_zero(cpu_output(&out, "dgamma"), config.d_latent),
                         tokens == 0);
        assert_int_equal(all_zero(cpu_output(&out, "dw_shared_out"),
                                  config.d_model * 2 * config.d_shared),
                         tokens == 0);
        cpu_release(&out);
    }
}

static void one_chosen_expert_teaches_the_router_under_release_alone(void **state)
{
    slm_config config = cpu_tiny();
    float logit[] = {0.5f, -1.0f, 2.0f}, dweight[] = {3.0f}, *d;
    int32_t ids[] = {2};
    const cpu_given list[] = {
        {"logit", logit}, {"dweight", dweight}, {"ids", ids}, {NULL, NULL}};
    cpu_outcome out;

    (void)state;
    config.n_experts = 3;
    config.top_k = 1;
    out = cpu_run_plain(SLM_OP_select_backward, &config, 1, list);
    assert_true(all_zero(cpu_output(&out, "dlogit"), 3));
    cpu_release(&out);
    config.weighting = SLM_WEIGHT_RELEASE;
    out = cpu_run_plain(SLM_OP_select_backward, &config, 1, list);
    d = cpu_output(&out, "dlogit");
    assert_true(d[0] == 0.0f && d[1] == 0.0f);
    assert_near(d[2], 3.0 * sigma(2.0) * sigma(-2.0), 1.0, 0.5);
    cpu_release(&out);
}

/* p = (e, 1) / (e + 1) though both scores are 0 in binary32. */
static void weights_of_lost_scores_keep_their_gradient(void **state)
{
    slm_config config = cpu_tiny();
    float logit[] = {-1000.0f, -1001.0f, 4.0f}, dweight[] = {2.0f, -1.0f}, *d;
    int32_t ids[] = {0, 1};
    const cpu_given list[] = {
        {"logit", logit}, {"dweight", dweight}, {"ids", ids}, {NULL, NULL}};
    const double p = sigma(1.0);
    cpu_outcome out;

    (void)state;
    config.n_experts = 3;
    config.top_k = 2;
    out = cpu_run_plain(SLM_OP_select_backward, &config, 1, list);
    d = cpu_output(&out, "dlogit");
    assert_near(d[0], 3.0 * p * (1.0 - p), 1.0, 0.5);
    assert_true(d[1] == -d[0] && d[2] == 0.0f);
    cpu_release(&out);
}

/* ---- refusals ---- */

static void an_input_that_is_not_finite_is_refused_before_any_output(void **state)
{
    const slm_config config = cpu_tiny();
    static float values[9 * 64 * 64];

    (void)state;
    for (size_t o = 0; o < OPS; o++) {
        const slm_op_info *info = slm_op_describe(backward[o]);

        for (size_t i = 0; i < info->n_fields; i++) {
            const slm_field *field = &info->fields[i];
            const cpu_given list[] = {{field->name, values}, {NULL, NULL}};
            cpu_outcome out;

            if (field->role == SLM_ROLE_OUT || field->role == SLM_ROLE_TAP ||
                field->kind == SLM_KIND_I32)
                continue;
            memset(values, 0, sizeof values);
            values[7] = NAN;
            out = cpu_run_plain(backward[o], &config, 9, list);
            assert_int_equal(out.status, SLM_ERR_NONFINITE);
            assert_string_equal(out.error.field, field->name);
            assert_int_equal(out.error.index, 7);
            for (size_t f = 0; f < out.n; f++)
                for (size_t b = 0; b < out.size[f]; b++)
                    assert_int_equal(out.bytes[f][b], CPU_UNTOUCHED);
            cpu_release(&out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_one_result),
        cmocka_unit_test(many_blocks_have_one_result),
        cmocka_unit_test(taps_do_not_change_what_is_tapped),
        cmocka_unit_test(taps_of_the_forward_are_those_of_layer_forward),
        cmocka_unit_test(gradients_add_up_over_panels),
        cmocka_unit_test(slopes_are_right_over_the_whole_range),
        cmocka_unit_test(infinite_gates_and_ups_give_the_limits),
        cmocka_unit_test(idle_experts_get_zeros),
        cmocka_unit_test(one_chosen_expert_teaches_the_router_under_release_alone),
        cmocka_unit_test(weights_of_lost_scores_keep_their_gradient),
        cmocka_unit_test(an_input_that_is_not_finite_is_refused_before_any_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
