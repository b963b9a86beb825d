/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/backward_case.c - cases of backward passes, for tests of the judge. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../seeded.h"
#include "backward_case.h"

const look looks[LOOKS] = {
    {"paper", K, 1, 1, 1, 1, SLM_F32},       {"paper", K, 48, 1, 1, 1, SLM_F32},
    {"paper", K, 1, 0x1p-12, 1, 1, SLM_F32}, {"release", K, 1, 1, 0x1p-20, 1, SLM_F32},
    {"paper", 1, 1, 1, 1, 1, SLM_F32},       {"release", 1, 1, 1, 1, 1, SLM_F32},
    {"vanilla", 3, 1, 1, 1, 1, SLM_F32},     {"linear", K, 1, 1, 1, 1, SLM_F32},
    {"paper", K, 1, 1, 1, 1, SLM_BF16},      {"paper", N, 4, 1, 1, 1, SLM_F32},
    {"paper", K, 1, 1, 1, 20, SLM_F32},      {"paper", K, 1, 0x1p+45, 1, 1, SLM_F32}};

static float *seeded(run *at, const char *name, double scale, double add)
{
    const slm_config *config = &at->made.test.config;
    size_t n_weights, count = 1;
    const slm_field *field = NULL, *weights = slm_weight_fields(&n_weights);
    const slm_op_info *info = slm_op_describe(at->made.test.op);
    const unsigned bits = config->dtype == SLM_BF16 ? 7 : 18;
    float *out;

    for (size_t i = 0; i < info->n_fields; i++)
        if (strcmp(info->fields[i].name, name) == 0) field = &info->fields[i];
    for (size_t i = 0; i < n_weights && !field; i++)
        if (strcmp(weights[i].name, name) == 0) field = &weights[i];
    for (const char *dim = field->dims; *dim; dim++) {
        size_t size = 0;

        slm_dim(config, &at->made.test.call, *dim, &size);
        count *= size;
    }
    out = calloc(count + 1, sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++)
        out[i] = seeded_value(11, name, i, bits, ldexp(scale, -(int)bits), add);
    at->values[at->n_values++] = out;
    case_in(&at->made, name, out);
    return out;
}

/* Experts 6 and 7 stay idle where k allows it. */
static void choose(run *at, size_t k)
{
    int32_t *ids = calloc(T * k + 1, sizeof *ids);

    assert_non_null(ids);
    for (size_t t = 0; t < T; t++)
        for (size_t q = 0; q < k; q++)
            ids[t * k + q] = (int32_t)((t * 5 + q * (k < N ? 2 : 1)) % (k < N ? 6 : N));
    at->values[at->n_values++] = (float *)(void *)ids;
    case_in(&at->made, "ids", ids);
}

void hold_frame(run *at, const slm_backend *table)
{
    char why[TESTEE_WHY] = "";

    at->made.test.in = at->made.in;
    at->made.test.outcomes = &at->made.outcome;
    at->made.outcome.out = at->made.out;
    at->testee = testee_open_table(table, true);
    assert_non_null(at->testee);
    if (!testee_frame(at->testee, &at->made.test, NULL, &at->made.frame, why))
        fail_msg("%s", why);
}

void open_layer(run *at, const slm_backend *table, const look *how)
{
    slm_config *config = &at->made.test.config;

    memset(at, 0, sizeof *at);
    case_begin(&at->made, SLM_OP_layer_backward, how->profile);
    config->d_model = D;
    config->d_latent = L;
    config->n_experts = N;
    config->top_k = how->k;
    config->d_expert = F;
    config->n_shared = S;
    config->d_shared = FS;
    config->dtype = how->dtype;
    at->made.test.call.n_tokens = T;
    seeded(at, "x", 1, 0);
    choose(at, how->k);
    seeded(at, "dy", how->dy, 0);
    seeded(at, "w_router", 0.5 * how->router, 0);
    seeded(at, "w_down", 0.5, 0);
    if (config->expert == SLM_EXPERT_LINEAR) {
        seeded(at, "w_expert", 0.5, 0);
        seeded(at, "w_shared", 0.5, 0);
    } else {
        seeded(at, "w_gate", 0.5 * how->scale, 0);
        seeded(at, "w_up", 0.5 * how->scale, 0);
        seeded(at, "w_out", 0.5 * how->out, 0);
        seeded(at, "w_shared_gate", 0.5 * how->scale, 0);
        seeded(at, "w_shared_up", 0.5 * how->scale, 0);
        seeded(at, "w_shared_out", 0.5, 0);
    }
    if (config->norm == SLM_NORM_RMS) seeded(at, "gamma", 0.25, 1);
    seeded(at, "w_lift", 0.5, 0);
    hold_frame(at, table);
}

void open_dense(run *at, const slm_backend *table, const look *how)
{
    slm_config *config = &at->made.test.config;

    memset(at, 0, sizeof *at);
    case_begin(&at->made, SLM_OP_dense_ffn_backward, how->profile);
    config->d_model = D;
    config->d_expert = F;
    config->dtype = how->dtype;
    at->made.test.call.n_tokens = T;
    seeded(at, "x", 1, 0);
    seeded(at, "w_gate", 0.5 * how->scale, 0);
    seeded(at, "w_up", 0.5 * how->scale, 0);
    seeded(at, "w_out", 0.5 * how->out, 0);
    seeded(at, "dy", how->dy, 0);
    hold_frame(at, table);
}

/* A single operation of the layer's sizes; its inputs are seeded by the caller. */
static void open_single(run *at, slm_op op, const look *how)
{
    slm_config *config = &at->made.test.config;

    memset(at, 0, sizeof *at);
    case_begin(&at->made, op, how->profile);
    config->d_latent = L;
    config->n_experts = N;
    config->top_k = how->k;
    config->d_expert = F;
    config->dtype = how->dtype;
    at->made.test.call.n_tokens = T;
}

void open_slopes(run *at, const slm_backend *table, const look *how)
{
    float *gate_up;

    open_single(at, SLM_OP_situ_glu_backward, how);
    gate_up = seeded(at, "gate_up", 4 * how->scale, 0);
    seeded(at, "dh", how->dy, 0);
    gate_up[1] = gate_up[2 * F + F] = INFINITY;
    gate_up[3] = gate_up[4 * F + F + 3] = -INFINITY;
    gate_up[5] = 0;
    hold_frame(at, table);
}

void open_norm(run *at, const slm_backend *table, const look *how)
{
    open_single(at, SLM_OP_rmsnorm_backward, how);
    memset(seeded(at, "u", how->out, 0), 0, L * sizeof(float));
    if (at->made.test.config.norm == SLM_NORM_RMS) seeded(at, "gamma", 0.25, 1);
    seeded(at, "dr", how->dy, 0);
    hold_frame(at, table);
}

void open_choice(run *at, const slm_backend *table, const look *how)
{
    open_single(at, SLM_OP_select_backward, how);
    seeded(at, "logit", 2 * how->router, 0);
    choose(at, how->k);
    seeded(at, "dweight", how->dy, 0);
    hold_frame(at, table);
}

void close_run(run *at)
{
    frame_free(&at->made.frame);
    testee_close(at->testee);
    for (size_t i = 0; i < at->n_values; i++) free(at->values[i]);
}

int is_odd(opener *open, const look *how)
{
    return (open != open_layer && strcmp(how->profile, "linear") == 0) ||
           (open == open_norm && strcmp(how->profile, "vanilla") == 0);
}
