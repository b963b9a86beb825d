/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_layer_backward.c - gradients of the layer and of a feed-forward
 * network.                                                                      G1-G5
 *
 * A value is judged by its bound when the backend showed all that it was computed from,
 * else by the envelope. A feed-forward network is a layer whose only path is the shared
 * one. Sums over the tokens stand in judge_weight_gradients.c. */
#include "judge_gradients.h"

#include <math.h>
#include <string.h>

static const char *const layer_names[FLOW_FIELDS] = {
    "x",       "dy",     "logit", "weight",         "z",  "gate_up", "h",
    "o",       "u",      "r",     "shared_gate_up", "hs", "dr",      "du",
    "dweight", "dlogit", "dh",    "dgate_up",       "dz", "dhs",     "dshared_gate_up",
    "dx"};

static const char *const dense_names[FLOW_FIELDS] = {
    "x", "dy", "", "", "", "", "", "", "",   "",         "gate_up",
    "h", "",   "", "", "", "", "", "", "dh", "dgate_up", "dx"};

int gradient_is_linear(const gradient_work *work)
{
    return work->flow.config->expert == SLM_EXPERT_LINEAR;
}

/* ---- what was shown ---- */

static size_t index_of(const gradient_work *work, flow_field field, size_t t, size_t i)
{
    const size_t k = work->flow.config->top_k;

    if (field == FLOW_LOGIT || field == FLOW_DLOGIT)
        return t * work->flow.config->n_experts + (size_t)work->flow.ids[t * k + i];
    return t * flow_width(&work->flow, field) + i;
}

static void take_shown(gradient_work *work)
{
    flow *const call = &work->flow;

    for (int field = 0; field < FLOW_DX; field++) {
        const size_t width = flow_width(call, (flow_field)field);
        const int given = field == FLOW_X || field == FLOW_DY;
        const slm_tensor *tensor =
            given ? frame_tensor(work->trial->frame, work->names[field])
                  : stage_written(work->trial, work->names[field]);

        if (!tensor || width == 0) continue;
        call->shown[field] = stage_array(call->n_tokens * width, sizeof(double));
        for (size_t i = 0; i < call->n_tokens * width; i++)
            call->shown[field][i] = slm_ref_get(
                tensor, index_of(work, (flow_field)field, i / width, i % width));
    }
}

/* A bit for each field. */
static unsigned bit(flow_field field)
{
    return 1u << field;
}

static unsigned shown_bits(const gradient_work *work)
{
    unsigned bits = 0;

    for (int i = 0; i < FLOW_FIELDS; i++)
        if (work->flow.shown[i]) bits |= bit((flow_field)i);
    if (work->flow.routed && backward_is_constant(work->flow.config))
        bits |= bit(FLOW_DLOGIT); /* it is 0 */
    return bits;
}

/* What a field is computed from. Of the forward only those that the chain of bounds does
 * not bridge.                                                                  G1-G4 */
static unsigned sources_of(const gradient_work *work, flow_field field)
{
    const int linear = gradient_is_linear(work),
              rms = work->flow.config->norm == SLM_NORM_RMS;
    const unsigned inner = bit(linear ? FLOW_Z : FLOW_H);

    switch (field) {
    case FLOW_U:
        return bit(FLOW_WEIGHT);
    case FLOW_R:
        return work->flow.shown[FLOW_U] ? 0 : bit(FLOW_WEIGHT);
    case FLOW_DU:
        return bit(FLOW_DR) | (rms ? bit(FLOW_U) : 0);
    case FLOW_DWEIGHT:
        return bit(FLOW_DU) | bit(FLOW_O) | inner;
    case FLOW_DLOGIT:
        return backward_is_constant(work->flow.config)
                   ? 0
                   : bit(FLOW_LOGIT) | bit(FLOW_DWEIGHT);
    case FLOW_DH:
        return bit(FLOW_WEIGHT) | bit(FLOW_DU);
    case FLOW_DGATE_UP:
        return bit(FLOW_GATE_UP) | bit(FLOW_DH);
    case FLOW_DZ:
        return linear ? bit(FLOW_WEIGHT) | bit(FLOW_DU) : bit(FLOW_DGATE_UP);
    case FLOW_DSHARED_GATE_UP:
        return bit(FLOW_SHARED_GATE_UP) | bit(FLOW_DHS);
    case FLOW_DX:
        return (work->flow.routed ? bit(FLOW_DZ) | bit(FLOW_DLOGIT) : 0) |
               (flow_width(&work->flow, FLOW_HS) ? bit(FLOW_DSHARED_GATE_UP) : 0);
    default:
        return 0;
    }
}

int gradient_is_known(const gradient_work *work, unsigned sources)
{
    return (sources & ~shown_bits(work)) == 0;
}

const double *gradient_own(const gradient_work *work, flow_field field, size_t t)
{
    return work->flow.shown[field] + t * flow_width(&work->flow, field);
}

static int is_written(const gradient_work *work, flow_field field)
{
    return field == FLOW_DX || (work->flow.shown[field] != NULL);
}

/* ---- v of each field ---- */

double gradient_stored(const gradient_work *work, flow_field field)
{
    static const slm_stage stages[FLOW_DR] = {
        [FLOW_Z] = SLM_STAGE_Z, [FLOW_GATE_UP] = SLM_STAGE_H, [FLOW_H] = SLM_STAGE_H,
        [FLOW_O] = SLM_STAGE_O, [FLOW_U] = SLM_STAGE_U,       [FLOW_R] = SLM_STAGE_R};
    const bound_rules *rules = &work->trial->rules;

    if (field == FLOW_LOGIT || field == FLOW_WEIGHT || field == FLOW_DWEIGHT ||
        field == FLOW_DLOGIT)
        return bound_roundoff(SLM_F32);
    if (field < FLOW_DR) return bound_stored(rules, stages[field], work->flow.dtype);
    return bound_stored_gradient(rules, work->flow.dtype);
}

double gradient_coarse(const gradient_work *work)
{
    const double v = bound_stored_gradient(&work->trial->rules, work->flow.dtype);

    return v > 0x1p-24 ? v : 0;
}

/* ---- one value ---- */

void gradient_judge(gradient_work *work, flow_field field, size_t t, size_t i,
                    const arb_t want, double bound)
{
    stage_real(work->trial, index_of(work, field, t, i), want, bound, 0);
}

static void judge_enveloped(gradient_work *work, flow_field field, size_t t)
{
    const size_t width = flow_width(&work->flow, field);
    const double *value = work->flow.value[field] + t * width;
    const double *deviation = work->flow.deviation[field] + t * width;
    const double v = gradient_stored(work, field);
    arb_t want;

    arb_init(want);
    for (size_t i = 0; i < width; i++) {
        const double error = ENVELOPE_LIMIT * deviation[i] + 0x1p-48 * fabs(value[i]);

        arb_set_d(want, value[i]);
        gradient_judge(work, field, t, i, want,
                       bound_store(&work->trial->rules, value[i], error, v));
    }
    arb_clear(want);
}

static void judge_field(gradient_work *work, flow_field field, size_t t)
{
    if (!is_written(work, field) || flow_width(&work->flow, field) == 0) return;
    stage_open(work->trial, work->names[field]);
    if (field == FLOW_DLOGIT)
        backward_unchosen(work->trial, work->flow.ids + t * work->flow.config->top_k,
                          t);
    if (gradient_is_known(work, sources_of(work, field)))
        gradient_by_bound[field](work, t);
    else
        judge_enveloped(work, field, t);
}

/* ---- the forward pass that it rests on ---- */

/* A stage of the forward by the chain of bounds, else by the envelope. */
static void judge_forward(gradient_work *work, int stage, flow_field field, size_t t)
{
    layer_work *layer = &work->layer;
    stage_known *known = &layer->known[stage];

    if (gradient_is_known(work, sources_of(work, field))) {
        layer_run(layer, stage, t);
        return;
    }
    if (!known->tap) return;
    stage_open(work->trial, work->names[field]);
    judge_enveloped(work, field, t);
    memcpy(known->value, gradient_own(work, field, t),
           known->width * sizeof *known->value);
}

static void judge_token(gradient_work *work, size_t t)
{
    static const flow_field routed[LAYER_ROUTED] = {FLOW_Z, FLOW_GATE_UP, FLOW_H,
                                                    FLOW_O, FLOW_U,       FLOW_R};
    layer_work *layer = &work->layer;

    layer_take(layer, t);
    for (int stage = 0; stage <= layer->last; stage++)
        judge_forward(work, stage, routed[stage], t);
    if (layer->known[LAYER_SHARED_GATE_UP].tap)
        layer_run(layer, LAYER_SHARED_GATE_UP, t);
    if (layer->known[LAYER_HS].tap) layer_run(layer, LAYER_HS, t);
    for (int field = FLOW_DR; field < FLOW_FIELDS; field++)
        judge_field(work, (flow_field)field, t);
}

/* ---- the whole ---- */

static int needs_envelope(const gradient_work *work)
{
    for (int field = FLOW_Z; field < FLOW_FIELDS; field++)
        if (is_written(work, (flow_field)field) &&
            !gradient_is_known(work, sources_of(work, (flow_field)field)))
            return 1;
    return gradient_products_need_envelope(work);
}

static void open_in_order(gradient_work *work)
{
    for (int field = FLOW_LOGIT; field < FLOW_FIELDS; field++)
        if (is_written(work, (flow_field)field) &&
            flow_width(&work->flow, (flow_field)field) > 0)
            stage_open(work->trial, work->names[field]);
}

static void judge_gradients(judge_trial *trial, const slm_config *config,
                            const slm_weights *weights, const bound_rules *rules,
                            int routed)
{
    const char *const *names = routed ? layer_names : dense_names;
    const char *const stages[LAYER_STAGES] = {names[FLOW_Z],
                                              names[FLOW_GATE_UP],
                                              names[FLOW_H],
                                              names[FLOW_O],
                                              names[FLOW_U],
                                              names[FLOW_R],
                                              names[FLOW_SHARED_GATE_UP],
                                              names[FLOW_HS]};
    const size_t n_tokens = trial->frame->call->n_tokens;
    gradient_work work = {
        .trial = trial,
        .names = names,
        .layer = {.names = stages, .shared_stage = routed ? SLM_STAGE_HS : SLM_STAGE_H},
        .flow = {.config = config,
                 .weights = weights,
                 .rules = rules,
                 .dtype = config->dtype,
                 .routed = routed,
                 .n_tokens = n_tokens}};
    const size_t k = routed ? config->top_k : 0;
    int32_t *ids = stage_array(n_tokens * k, sizeof *ids);

    for (size_t i = 0; i < n_tokens * k; i++)
        ids[i] = (int32_t)compare_integer(frame_tensor(trial->frame, "ids"), i);
    work.flow.ids = ids;
    take_shown(&work);
    layer_open(&work.layer, trial, config, weights, routed);
    work.norm = backward_norm_open(work.layer.gamma, routed ? config->d_latent : 0);
    backward_slopes_open(&work.slopes);
    work.enveloped = needs_envelope(&work);
    if (work.enveloped) envelope_backward_open(&work.flow);
    open_in_order(&work);
    if (routed) judge_recomputed_routing(trial);
    for (size_t t = 0; t < n_tokens; t++) judge_token(&work, t);
    gradient_judge_products(&work);
    if (work.enveloped) envelope_backward_close(&work.flow);
    backward_slopes_close(&work.slopes);
    backward_norm_close(&work.norm);
    layer_close(&work.layer);
    for (int i = 0; i < FLOW_FIELDS; i++)
        if (work.flow.shown[i]) stage_release(work.flow.shown[i]);
    stage_release(ids);
}

void judge_layer_backward(judge_trial *trial)
{
    judge_gradients(trial, &trial->frame->config, &trial->frame->weights, &trial->rules,
                    1);
}

/* Its h is stored as an h, not as an hs. */
void judge_dense_ffn_backward(judge_trial *trial)
{
    const call_frame *frame = trial->frame;
    const slm_weights weights = {.struct_size = sizeof weights,
                                 .w_shared_gate = *frame_tensor(frame, "w_gate"),
                                 .w_shared_up = *frame_tensor(frame, "w_up"),
                                 .w_shared_out = *frame_tensor(frame, "w_out")};
    slm_config config = frame->config;
    bound_rules rules = trial->rules;

    config.n_shared = 1;
    config.d_shared = config.d_expert;
    rules.store[SLM_STAGE_HS] = rules.store[SLM_STAGE_H];
    judge_gradients(trial, &config, &weights, &rules, 0);
}
