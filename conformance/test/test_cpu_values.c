/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_values.c - values of `cpu-blas` against plain loops.
 *
 * The vectors judge its numbers; a loop in binary64 guards against gross faults, and
 * the declared errors of sigmoid and tanh are held against libm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

/* ---- values, against plain loops ---- */

static double dot(const char *name, size_t row, size_t width, const double *x)
{
    double sum = 0.0;

    for (size_t i = 0; i < width; i++)
        sum += (double)cpu_noise(name, row * width + i) * x[i];
    return sum;
}

static double activation(const slm_config *config, double a, double b)
{
    const double sigmoid = 1.0 / (1.0 + exp(-a));

    if (config->expert == SLM_EXPERT_RELU) return b > 0.0 ? b : 0.0;
    if (config->expert == SLM_EXPERT_SWIGLU) return a * sigmoid * b;
    return config->beta_gate * tanh(a / config->beta_gate) * sigmoid * config->beta_up *
           tanh(b / config->beta_up);
}

/* out [outer] += scale * expert(in [width]); names and first rows say which expert. */
static void add_expert(const slm_config *config, const char *const name[3],
                       size_t expert, size_t width, size_t inner, double scale,
                       const double *in, double *out)
{
    double h[64];

    for (size_t i = 0; i < inner; i++)
        h[i] = activation(config, dot(name[0], expert * inner + i, width, in),
                          dot(name[1], expert * inner + i, width, in));
    for (size_t i = 0; i < width; i++)
        out[i] += scale * dot(name[2], expert * width + i, inner, h);
}

/* y [d] of token t in binary64 for a cpu_given choice of experts. */
static void plain_layer(const slm_config *config, size_t t, const int32_t *ids,
                        double *y)
{
    static const char *const routed[] = {"w_gate", "w_up", "w_out"};
    static const char *const shared[] = {"w_shared_gate", "w_shared_up",
                                         "w_shared_out"};
    const size_t d = config->d_model, l = config->d_latent, k = config->top_k;
    double x[64], z[64], u[64] = {0.0}, p[16], sum = 0.0, square = 0.0;

    for (size_t i = 0; i < d; i++) x[i] = (double)cpu_noise("x", t * d + i);
    for (size_t i = 0; i < l; i++) z[i] = dot("w_down", i, d, x);
    for (size_t q = 0; q < k; q++) {
        p[q] = 1.0 / (1.0 + exp(-dot("w_router", (size_t)ids[q], d, x)));
        sum += p[q];
    }
    for (size_t q = 0; q < k; q++) {
        const size_t e = (size_t)ids[q];

        if (config->expert == SLM_EXPERT_LINEAR)
            for (size_t i = 0; i < l; i++)
                u[i] += p[q] / sum * dot("w_expert", e * l + i, l, z);
        else
            add_expert(config, routed, e, l, config->d_expert, p[q] / sum, z, u);
    }
    for (size_t i = 0; i < l; i++) square += u[i] * u[i];
    for (size_t i = 0; i < l; i++)
        u[i] *= (double)cpu_noise("gamma", i) / sqrt(square / (double)l + config->eps);
    for (size_t i = 0; i < d; i++) y[i] = dot("w_lift", i, l, u);
    if (config->expert != SLM_EXPERT_LINEAR)
        add_expert(config, shared, 0, d, config->n_shared * config->d_shared, 1.0, x,
                   y);
    for (size_t j = 0; config->expert == SLM_EXPERT_LINEAR && j < config->n_shared; j++)
        for (size_t i = 0; i < d; i++) y[i] += dot("w_shared", j * d + i, d, x);
}

/* Tokens from the last back, at most about 70 of them. */
static void assert_layer(const slm_config *config, size_t tokens)
{
    const size_t d = config->d_model, k = config->top_k, step = tokens / 70 + 1;
    cpu_outcome out = cpu_run_plain(SLM_OP_layer_forward, config, tokens, NULL);
    const int32_t *ids = cpu_output(&out, "ids");
    const float *y = cpu_output(&out, "y");

    assert_int_equal(out.status, SLM_OK);
    for (size_t back = 1; back <= tokens; back += step) {
        const size_t t = tokens - back;
        double want[64];

        plain_layer(config, t, ids + t * k, want);
        for (size_t i = 0; i < d; i++)
            assert_true(fabs((double)y[t * d + i] - want[i]) <= 1e-4);
    }
    cpu_release(&out);
}

static void layer_agrees_with_a_loop_in_binary64(void **state)
{
    (void)state;
    for (int kind = 0; kind < SLM_EXPERT_KINDS; kind++)
        for (size_t n_shared = 0; n_shared < 3; n_shared += 2) {
            slm_config config = cpu_tiny();

            config.expert = (slm_expert_kind)kind;
            config.n_shared = n_shared;
            assert_layer(&config, 1);
            assert_layer(&config, 70);
        }
}

/* The layer takes 4096 tokens through at once. */
static void tokens_beyond_a_panel_agree_too(void **state)
{
    const slm_config config = cpu_tiny();

    (void)state;
    assert_layer(&config, 4100);
}

static void layer_reaches_experts_beyond_255(void **state)
{
    slm_config config = cpu_tiny();
    int32_t highest = 0;
    cpu_outcome out;

    (void)state;
    config.n_experts = 300;
    assert_layer(&config, 90);
    out = cpu_run_plain(SLM_OP_layer_forward, &config, 90, NULL);
    for (size_t i = 0; i < 90 * config.top_k; i++)
        if (((int32_t *)cpu_output(&out, "ids"))[i] > highest)
            highest = ((int32_t *)cpu_output(&out, "ids"))[i];
    assert_true(highest > 255);
    cpu_release(&out);
}

static void choice_with_ties_is_that_of_a_plain_scan_for_every_k(void **state)
{
    enum { N = 700 };
    static float score[2 * N], bias[N];
    const cpu_given list[] = {{"score", score}, {"bias", bias}, {NULL, NULL}};
    slm_config config = cpu_tiny();

    (void)state;
    config.n_experts = N;
    for (size_t i = 0; i < 2 * N; i++) {
        score[i] = floorf(8.0f * (1.0f + cpu_noise("score", i))) / 16.0f;
        if (score[i] == 0.0f && i % 2) score[i] = -0.0f;
    }
    for (size_t i = 0; i < N; i++) bias[i] = i % 3 ? -0.0f : 0.125f;
    for (size_t k = 1; k <= N; k += k < 4 || k >= N - 2 ? 1 : 116) {
        cpu_outcome out;

        config.top_k = k;
        out = cpu_run_plain(SLM_OP_select, &config, 2, list);
        for (size_t t = 0; t < 2; t++) {
            unsigned char taken[N] = {0};

            for (size_t q = 0; q <= k && q < N; q++) {
                size_t best = N;

                for (size_t e = 0; e < N; e++)
                    if (!taken[e] &&
                        (best == N ||
                         score[t * N + e] + bias[e] > score[t * N + best] + bias[best]))
                        best = e;
                taken[best] = 1;
                if (q < k)
                    assert_int_equal(((int32_t *)cpu_output(&out, "ids"))[t * k + q],
                                     best);
                else
                    assert_true(((float *)cpu_output(&out, "cutoff"))[t] ==
                                score[t * N + best] + bias[best]);
            }
        }
        cpu_release(&out);
    }
}

/* Every 977th binary32 as x of a router of one expert with weight 1. */
static void sigmoid_error_is_below_what_is_declared(void **state)
{
    const double declared = cpu_table()->arithmetic->sigmoid_ulp * 0x1p-24;
    const size_t count = 2 * (0x7f800000u / 977);
    const float one = 1.0f, zero = 0.0f;
    float *x = malloc(count * sizeof *x);
    const cpu_given list[] = {
        {"x", x}, {"w_router", &one}, {"bias", &zero}, {NULL, NULL}};
    slm_config config = cpu_tiny();
    cpu_outcome out;

    (void)state;
    assert_non_null(x);
    config.n_experts = config.top_k = config.d_model = 1;
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)(i / 2 * 977) | (i & 1 ? 0x80000000u : 0u);

        memcpy(&x[i], &bits, sizeof bits);
    }
    out = cpu_run_plain(SLM_OP_route, &config, count, list);
    for (size_t i = 0; i < count; i++) {
        const double e = exp(-fabs((double)x[i]));
        const double want = (x[i] < 0.0f ? e : 1.0) / (1.0 + e);
        const double got = (double)((float *)cpu_output(&out, "score"))[i];

        assert_true(fabs(got - want) <= declared * want + 0x1p-150 && got <= 1.0);
    }
    cpu_release(&out);
    free(x);
}

/* With betas 1 and the gate at infinity h is tanh(up). */
static void tanh_error_is_below_what_is_declared(void **state)
{
    const double declared = cpu_table()->arithmetic->tanh_ulp * 0x1p-24;
    const size_t count = 0x7f800000u / 977;
    float *pair = malloc(2 * count * sizeof *pair);
    const cpu_given list[] = {{"gate_up", pair}, {NULL, NULL}};
    slm_config config = cpu_tiny();
    cpu_outcome out;

    (void)state;
    assert_non_null(pair);
    config.d_expert = count;
    config.beta_gate = config.beta_up = 1.0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)(i * 977);

        pair[i] = INFINITY;
        memcpy(&pair[count + i], &bits, sizeof bits);
    }
    out = cpu_run_plain(SLM_OP_situ_glu, &config, 1, list);
    for (size_t i = 0; i < count; i++) {
        const double want = tanh((double)pair[count + i]);
        const double got = (double)((float *)cpu_output(&out, "h"))[i];

        assert_true(fabs(got - want) <= declared * want + 0x1p-150 && got <= 1.0);
    }
    cpu_release(&out);
    free(pair);
}

static void situ_glu_stays_within_one_hundred_and_keeps_its_limits(void **state)
{
    static const float edge[] = {0.0f,   -0.0f,    1e-45f,    -1e-38f, 1e-4f,
                                 8.3f,   -88.0f,   -103.9f,   250.0f,  3e38f,
                                 -3e38f, INFINITY, -INFINITY, NAN};
    enum { N = sizeof edge / sizeof *edge };
    float pair[2 * N * N];
    const cpu_given list[] = {{"gate_up", pair}, {NULL, NULL}};
    slm_config config = cpu_tiny();
    const float *h;
    cpu_outcome out;

    (void)state;
    config.d_expert = N * N;
    for (size_t i = 0; i < N * N; i++) {
        pair[i] = edge[i / N];
        pair[N * N + i] = edge[i % N];
    }
    out = cpu_run_plain(SLM_OP_situ_glu, &config, 1, list);
    h = cpu_output(&out, "h");
    for (size_t i = 0; i < N * N; i++) {
        const float a = pair[i], b = pair[N * N + i];

        if (isnan(a) || isnan(b)) {
            assert_true(isnan(h[i]));
            continue;
        }
        assert_true(fabsf(h[i]) <= 100.0f);
        if (a > 200.0f && isinf(b)) assert_true(h[i] == copysignf(100.0f, b));
        if (a == -INFINITY) assert_true(h[i] == 0.0f);
    }
    cpu_release(&out);
}

static void weights_of_scores_that_vanish_still_sum_to_one(void **state)
{
    static const float logit[] = {-100.0f, -101.0f, -3e38f,    -INFINITY,
                                  -200.0f, -3e38f,  -INFINITY, -200.0f};
    const float bias[] = {0.0f, 0.0f, 0.0f, 0.0f}, none[8] = {0.0f};
    const cpu_given of_logits[] = {{"logit", logit}, {"bias", bias}, {NULL, NULL}};
    const cpu_given of_zeros[] = {{"score", none}, {"bias", bias}, {NULL, NULL}};
    slm_config config = cpu_tiny();
    const float *weight;
    cpu_outcome out;

    (void)state;
    config.n_experts = 4;
    config.top_k = 2;
    out = cpu_run_plain(SLM_OP_select, &config, 2, of_logits);
    weight = cpu_output(&out, "weight");
    assert_true(fabs((double)weight[0] - 0.7310585786300049) < 1e-7);
    assert_true(fabs((double)weight[1] - 0.2689414213699951) < 1e-7);
    assert_true(weight[2] == 1.0f && weight[3] == 0.0f);
    cpu_release(&out);
    out = cpu_run_plain(SLM_OP_select, &config, 2, of_zeros);
    weight = cpu_output(&out, "weight");
    assert_true(weight[0] == 0.5f && weight[1] == 0.5f);
    cpu_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_agrees_with_a_loop_in_binary64),
        cmocka_unit_test(tokens_beyond_a_panel_agree_too),
        cmocka_unit_test(layer_reaches_experts_beyond_255),
        cmocka_unit_test(choice_with_ties_is_that_of_a_plain_scan_for_every_k),
        cmocka_unit_test(sigmoid_error_is_below_what_is_declared),
        cmocka_unit_test(tanh_error_is_below_what_is_declared),
        cmocka_unit_test(situ_glu_stays_within_one_hundred_and_keeps_its_limits),
        cmocka_unit_test(weights_of_scores_that_vanish_still_sum_to_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
