/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_layer.c - the stages of the layer after routing.  R4, L1-L3, L6
 *
 * When neither u nor r was tapped, y is judged by an envelope. */
#include "judge_layer.h"
#include "envelope.h"

#include <math.h>

/* What the shared experts add, and its dots.                                      L3 */
static void add_shared(layer_work *layer, arb_ptr shared, bound_dot *dots)
{
    const size_t d = layer->d;
    const stage_known *hs = &layer->known[LAYER_HS];
    arb_ptr part = _arb_vec_init((slong)d);

    if (layer->fs > 0)
        stage_linear(layer->trial, shared, dots, &layer->weights->w_shared_out,
                     hs->value, stage_radius(hs));
    if (layer->config->expert == SLM_EXPERT_LINEAR) {
        for (size_t j = 0; j < layer->config->n_shared; j++) {
            const slm_tensor w = slm_tensor_at(&layer->weights->w_shared, j);

            stage_linear(layer->trial, part, dots, &w, layer->x, NULL);
            _arb_vec_add(shared, shared, part, (slong)d, SLM_REF_JUDGE);
        }
    }
    _arb_vec_clear(part, (slong)d);
}

/* One sum over r and the shared values, K = l + S f_s + 1. A coarse store of y stands
 * for coarse stores of its two addends, too. */
static void run_y(layer_work *layer, size_t t)
{
    const size_t d = layer->d;
    const bound_rules *rules = &layer->trial->rules;
    const stage_known *r = &layer->known[LAYER_R];
    const double v = layer_stored(layer, SLM_STAGE_Y);
    const double addends = v > 0x1p-24 ? v : 0;
    arb_ptr routed = _arb_vec_init((slong)d);
    arb_ptr shared = _arb_vec_init((slong)d);
    bound_dot *dots = stage_array(d, sizeof *dots);

    for (size_t i = 0; i < d; i++) dots[i] = bound_dot_none();
    stage_linear(layer->trial, routed, dots, &layer->weights->w_lift, r->value,
                 stage_radius(r));
    add_shared(layer, shared, dots);
    stage_open(layer->trial, "y");
    for (size_t i = 0; i < d; i++) {
        double rest;
        const double parts = fabs(stage_middle(routed + i, &rest)) +
                             fabs(stage_middle(shared + i, &rest));
        double error = bound_dot_error(&dots[i], rules);

        error += addends * (parts + error + 0x1p-125); /* half a step of each */
        arb_add(routed + i, routed + i, shared + i, SLM_REF_JUDGE);
        stage_real(layer->trial, t * d + i, routed + i,
                   bound_store(rules, stage_middle(routed + i, &rest), error, v), 0);
    }
    stage_release(dots);
    _arb_vec_clear(shared, (slong)d);
    _arb_vec_clear(routed, (slong)d);
}

static const double *tapped(const layer_work *layer, int stage)
{
    return layer->known[stage].tap ? layer->known[stage].value : NULL;
}

static void run_envelope(layer_work *layer, size_t t)
{
    const size_t d = layer->d;
    const double v = layer_stored(layer, SLM_STAGE_Y);
    const envelope e = {.config = layer->config,
                        .weights = layer->weights,
                        .rules = &layer->trial->rules,
                        .dtype = layer->config->dtype,
                        .seed = t,
                        .x = layer->x,
                        .ids = layer->ids,
                        .weight = layer->weight,
                        .z = tapped(layer, LAYER_Z),
                        .h = tapped(layer, LAYER_H),
                        .o = tapped(layer, LAYER_O),
                        .hs = tapped(layer, LAYER_HS)};
    double *y = stage_array(d, sizeof *y);
    double *deviation = stage_array(d, sizeof *deviation);
    arb_t want;

    arb_init(want);
    envelope_run(&e, y, deviation);
    stage_open(layer->trial, "y");
    for (size_t i = 0; i < d; i++) {
        arb_set_d(want, y[i]);
        stage_real(layer->trial, t * d + i, want,
                   bound_store(&layer->trial->rules, y[i],
                               ENVELOPE_LIMIT * deviation[i] + 0x1p-48 * fabs(y[i]), v),
                   0);
    }
    arb_clear(want);
    stage_release(deviation);
    stage_release(y);
}

static void judge_token(layer_work *layer, size_t t)
{
    const int by_bounds = layer->last >= LAYER_U;

    layer_take(layer, t);
    for (int stage = 0; stage <= (by_bounds ? LAYER_R : layer->last); stage++)
        layer_run(layer, stage, t);
    if (by_bounds || layer->known[LAYER_HS].tap) layer_run(layer, LAYER_HS, t);
    if (by_bounds)
        run_y(layer, t);
    else
        run_envelope(layer, t);
}

/* A token that is poisoned or was given up: every y is NaN.                       R4 */
static void judge_poisoned(layer_work *layer, size_t t)
{
    stage_open_nan(layer->trial, "y");
    for (size_t i = 0; i < layer->d; i++)
        stage_exact(layer->trial, t * layer->d + i, NAN);
}

void judge_layer(judge_trial *trial)
{
    static const char *const names[LAYER_STAGES] = {"z", "",  "h", "o",
                                                    "u", "r", "",  "hs"};
    layer_work layer = {.names = names, .shared_stage = SLM_STAGE_HS};

    layer_open(&layer, trial, &trial->frame->config, &trial->frame->weights, 1);
    for (size_t t = 0; t < trial->frame->call->n_tokens; t++) {
        if (trial->rows[t] == ROW_LOST) continue;
        if (trial->rows[t] == ROW_POISONED || trial_is_given_up(trial->frame, "y", t))
            judge_poisoned(&layer, t);
        else
            judge_token(&layer, t);
    }
    layer_close(&layer);
}
