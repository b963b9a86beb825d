/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/audit.c - is the declared arithmetic the one that is used? */
#include "audit.h"

#include <math.h>
#include <string.h>

enum {
    RUNGS = 23,         /* token j of 1..RUNGS gets 1 + 2^-j, token 0 gets 1 */
    TOKENS = RUNGS + 2, /* the last: 1 + 1.5 2^-24, which truncation loses   */
    MAX_IN = 12
};

/* A case of one layer in memory: its tensors' values are the caller's. */
typedef struct step_ladder {
    vec_case test;
    vec_outcome anything;
    vec_tensor in[MAX_IN];
    float x[2 * TOKENS];
} step_ladder;

static void give(step_ladder *ladder, const slm_field *fields, size_t n_fields,
                 const char *name, float *values)
{
    vec_tensor *tensor = &ladder->in[ladder->test.n_in];

    for (size_t i = 0; i < n_fields; i++) {
        if (strcmp(fields[i].name, name) != 0) continue;
        tensor->field = &fields[i];
        tensor->form = VEC_DATA;
        tensor->dtype = SLM_F32;
        tensor->rank = (uint32_t)strlen(fields[i].dims);
        tensor->count = 1;
        for (uint32_t j = 0; j < tensor->rank; j++) {
            slm_dim(&ladder->test.config, &ladder->test.call, fields[i].dims[j],
                    &tensor->shape[j]);
            tensor->count *= tensor->shape[j];
        }
        tensor->values = values;
        ladder->test.n_in++;
        return;
    }
}

static float one[] = {1, 1}, zero[] = {0}, steep[] = {32, 32};

/* Every width is 1, and d is `width`: with 2, the step 2^-j comes in as an addend of its
 * own and shows the accumulator. A gate of 32 is saturated, so h follows the up branch. */
static void make(step_ladder *ladder, size_t width)
{
    size_t n_weights;
    const slm_field *weights = slm_weight_fields(&n_weights);
    const slm_op_info *info = slm_op_describe(SLM_OP_layer_forward);
    const struct {
        const char *name;
        float *values;
    } all[] = {{"w_router", one},    {"w_down", one},          {"w_gate", steep},
               {"w_up", one},        {"w_out", one},           {"gamma", one},
               {"w_lift", one},      {"w_shared_gate", steep}, {"w_shared_up", one},
               {"w_shared_out", one}};

    memset(ladder, 0, sizeof *ladder);
    ladder->test.id = (char *)(uintptr_t) "probe/audit";
    ladder->test.op = SLM_OP_layer_forward;
    slm_config_profile("paper", &ladder->test.config);
    ladder->test.config.d_model = width;
    ladder->test.config.d_latent = ladder->test.config.d_expert = 1;
    ladder->test.config.n_experts = ladder->test.config.top_k = 1;
    ladder->test.config.n_shared = ladder->test.config.d_shared = 1;
    ladder->test.call.n_tokens = TOKENS;
    ladder->test.in = ladder->in;
    ladder->test.n_outcomes = 1;
    ladder->test.outcomes = &ladder->anything;
    for (int j = 0; j < TOKENS; j++) {
        const float step = j == 0 ? 0 : j <= RUNGS ? ldexpf(1, -j) : 0x1.8p-24f;

        ladder->x[(size_t)j * width] = width == 1 ? 1 + step : 1;
        if (width == 2) ladder->x[2 * j + 1] = step;
    }
    give(ladder, info->fields, info->n_fields, "x", ladder->x);
    give(ladder, info->fields, info->n_fields, "bias", zero);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        give(ladder, weights, n_weights, all[i].name, all[i].values);
}

static double at(const slm_tensor *tensor, int token)
{
    return (double)((const float *)tensor->data)[token * tensor->stride[0]];
}

/* Roundoff of a stage: half the smallest step that still shows. */
static double roundoff(const slm_tensor *tensor)
{
    int j = 1;

    while (j <= RUNGS && at(tensor, j) != at(tensor, 0)) j++;
    return ldexp(1, -j);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void enter(audit_line *line, const char *stage, double declared, double seen)
{
    /* A factor of four: a step may be lost between two roundings of the same size. */
    *line = (audit_line){.stage = stage, .declared = declared, .seen = seen};
    if (seen > 4 * declared) line->finding = AUDIT_COARSER;
    if (declared > 4 * seen) line->finding = AUDIT_FINER;
}

static int run(slm_testee *testee, step_ladder *ladder, call_frame *frame, char *why)
{
    testee_reply reply;

    if (!testee_offers(testee, &ladder->test, why)) return 0;
    if (!testee_frame(testee, &ladder->test, NULL, frame, why)) return 0;
    testee_run(testee, frame, &reply);
    if (reply.outcome == TESTEE_RETURNED && reply.status == SLM_OK) return 1;
    snprintf(why, TESTEE_WHY, "%.400s",
             reply.outcome == TESTEE_RETURNED ? slm_status_name(reply.status)
                                              : reply.why);
    frame_free(frame);
    return 0;
}

static size_t read_accumulator(slm_testee *testee, audit_line *line, char *why)
{
    const slm_arithmetic *arithmetic = &testee_describe(testee)->arithmetic;
    step_ladder ladder;
    call_frame frame;
    size_t n = 0;

    make(&ladder, 2);
    if (!run(testee, &ladder, &frame, why)) return 0;
    if (!frame_untouched(&frame, "logit")) {
        const slm_tensor *logit = frame_tensor(&frame, "logit");

        enter(line, "accumulator", larger(arithmetic->accumulator, 0x1p-24),
              roundoff(logit));
        line->truncates = at(logit, RUNGS + 1) == at(logit, 0);
        /* Truncation at 2^-23 shows the same steps as rounding at 2^-24. */
        if (line->truncates && line->seen == 0x1p-24) {
            const bool said = arithmetic->accumulator >= 0x1p-23;

            line->seen = 0x1p-23;
            line->finding = said ? AUDIT_TRUE : AUDIT_COARSER;
        }
        n = 1;
    }
    frame_free(&frame);
    return n;
}

size_t audit_run(slm_testee *testee, audit_line lines[AUDIT_LINES], char *why)
{
    static const struct {
        const char *tap;
        slm_stage stage;
        bool from_x; /* hs and y hang on x, not on the stage before */
    } taps[] = {{"logit", SLM_STAGE_LOGIT, true}, {"z", SLM_STAGE_Z, true},
                {"h", SLM_STAGE_H, false},        {"o", SLM_STAGE_O, false},
                {"u", SLM_STAGE_U, false},        {"hs", SLM_STAGE_HS, true},
                {"y", SLM_STAGE_Y, false}};
    const slm_arithmetic *arithmetic = &testee_describe(testee)->arithmetic;
    size_t n = read_accumulator(testee, &lines[0], why);
    double declared = 0;
    step_ladder ladder;
    call_frame frame;

    make(&ladder, 1);
    if (!run(testee, &ladder, &frame, why)) return n;
    for (size_t i = 0; i < sizeof taps / sizeof *taps; i++) {
        const double store =
            taps[i].stage == SLM_STAGE_LOGIT ? 0 : arithmetic->store[taps[i].stage];
        const double here = larger(larger(store, arithmetic->input), 0x1p-24);

        declared = taps[i].from_x ? here : larger(declared, here);
        if (frame_untouched(&frame, taps[i].tap)) continue;
        enter(&lines[n], taps[i].tap, declared,
              roundoff(frame_tensor(&frame, taps[i].tap)));
        /* Coarse factors are lawful in the router, and better ones are, too (R1). */
        if (taps[i].stage == SLM_STAGE_LOGIT && lines[n].finding == AUDIT_FINER)
            lines[n].finding = AUDIT_TRUE;
        n++;
    }
    frame_free(&frame);
    return n;
}
