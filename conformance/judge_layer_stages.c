/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_layer_stages.c - the stages of a forward layer, one at a time. L1-L6
 *
 * Each stage is judged on the backend's own numbers of the stage before. A stage that
 * was not tapped is replaced by ref's numbers with their bounds as radii, so that one
 * missing tap costs little. */
#include "judge_layer.h"

#include <math.h>

double layer_stored(const layer_work *layer, slm_stage stage)
{
    return bound_stored(&layer->trial->rules, stage, layer->config->dtype);
}

static void open_stage(layer_work *layer, int stage)
{
    if (layer->known[stage].tap) stage_open(layer->trial, layer->names[stage]);
}

/* A row of dot products that are one stage: z and o. */
static void settle_linear(layer_work *layer, int stage, size_t offset,
                          const slm_tensor *w, const double *x, const double *dx,
                          size_t t, double v)
{
    const size_t rows = w->shape[0];
    const bound_rules *rules = &layer->trial->rules;
    arb_ptr want = _arb_vec_init((slong)rows);
    bound_dot *dots = stage_array(rows, sizeof *dots);

    for (size_t i = 0; i < rows; i++) dots[i] = bound_dot_none();
    stage_linear(layer->trial, want, dots, w, x, dx);
    for (size_t i = 0; i < rows; i++) {
        double rest;
        const double error = bound_dot_error(&dots[i], rules);
        const double bound =
            bound_store(rules, stage_middle(want + i, &rest), error, v);

        stage_settle(layer->trial, &layer->known[stage], t, offset + i, want + i, bound,
                     0);
    }
    stage_release(dots);
    _arb_vec_clear(want, (slong)rows);
}

static void run_z(layer_work *layer, size_t t)
{
    open_stage(layer, LAYER_Z);
    settle_linear(layer, LAYER_Z, 0, &layer->weights->w_down, layer->x, NULL, t,
                  layer_stored(layer, SLM_STAGE_Z));
}

static void settle_inner(layer_work *layer, int stage, size_t offset,
                         const slm_tensor *gate, const slm_tensor *up, const double *x,
                         const double *dx, size_t t, double v)
{
    const size_t rows = up->shape[0];
    arb_ptr want = _arb_vec_init((slong)rows);
    double *bound = stage_array(rows, sizeof *bound);

    stage_inner(layer->trial, want, bound, gate, up, x, dx, v);
    for (size_t i = 0; i < rows; i++)
        stage_settle_activation(layer->trial, &layer->known[stage], t, offset + i,
                                want + i, bound[i], v, 0);
    stage_release(bound);
    _arb_vec_clear(want, (slong)rows);
}

/* The sums before an activation, where a backward pass showed them: element offset + i
 * of the stage.                                                                L6, L3 */
static void settle_sums(layer_work *layer, int stage, size_t offset,
                        const slm_tensor *w, const double *x, const double *dx,
                        size_t t, double v)
{
    const size_t rows = w->shape[0];
    arb_ptr want = _arb_vec_init((slong)rows);
    double *error = stage_array(rows, sizeof *error);

    stage_sums(layer->trial, want, error, w, x, dx, v);
    for (size_t i = 0; i < rows; i++) {
        double rest;
        const double middle = stage_middle(want + i, &rest);
        const double bound =
            v > 0x1p-24 ? error[i]
                        : bound_store(&layer->trial->rules, middle, error[i], v);

        stage_settle(layer->trial, &layer->known[stage], t, offset + i, want + i, bound,
                     0);
    }
    stage_release(error);
    _arb_vec_clear(want, (slong)rows);
}

/* The activations of sums that were shown, n parts of gate and up, `width` each. */
static void settle_shown(layer_work *layer, int from, int stage, size_t n, size_t width,
                         size_t t, double v)
{
    const double *both = layer->known[from].value;
    arb_t a, b, want;

    arb_init(a);
    arb_init(b);
    arb_init(want);
    for (size_t i = 0; i < n * width; i++) {
        const size_t at = i / width * 2 * width + i % width;
        double bound;

        arb_set_d(a, both[at]);
        arb_set_d(b, both[at + width]);
        stage_activation(layer->trial, want, &bound, a, 0, b, 0, v);
        stage_settle_activation(layer->trial, &layer->known[stage], t, i, want, bound,
                                v, 0);
    }
    arb_clear(want);
    arb_clear(b);
    arb_clear(a);
}

static void run_gate_up(layer_work *layer, size_t t)
{
    const stage_known *z = &layer->known[LAYER_Z];
    const double v = layer_stored(layer, SLM_STAGE_H);
    const size_t f = layer->f;

    if (!layer->known[LAYER_GATE_UP].tap) return;
    open_stage(layer, LAYER_GATE_UP);
    for (size_t q = 0; q < layer->k; q++) {
        const size_t e = (size_t)layer->ids[q];
        const slm_tensor gate = slm_tensor_at(&layer->weights->w_gate, e);
        const slm_tensor up = slm_tensor_at(&layer->weights->w_up, e);

        settle_sums(layer, LAYER_GATE_UP, q * 2 * f, &gate, z->value, stage_radius(z),
                    t, v);
        settle_sums(layer, LAYER_GATE_UP, q * 2 * f + f, &up, z->value, stage_radius(z),
                    t, v);
    }
}

static void run_h(layer_work *layer, size_t t)
{
    const stage_known *z = &layer->known[LAYER_Z];
    const slm_weights *weights = layer->weights;

    if (layer->config->expert == SLM_EXPERT_LINEAR) return;
    open_stage(layer, LAYER_H);
    if (layer->known[LAYER_GATE_UP].tap) {
        settle_shown(layer, LAYER_GATE_UP, LAYER_H, layer->k, layer->f, t,
                     layer_stored(layer, SLM_STAGE_H));
        return;
    }
    for (size_t q = 0; q < layer->k; q++) {
        const size_t e = (size_t)layer->ids[q];
        const int gated = layer->config->expert != SLM_EXPERT_RELU;
        const slm_tensor up = slm_tensor_at(&weights->w_up, e);
        const slm_tensor gate =
            gated ? slm_tensor_at(&weights->w_gate, e) : (slm_tensor){0};

        settle_inner(layer, LAYER_H, q * layer->f, gated ? &gate : NULL, &up, z->value,
                     stage_radius(z), t, layer_stored(layer, SLM_STAGE_H));
    }
}

static void run_o(layer_work *layer, size_t t)
{
    const int linear = layer->config->expert == SLM_EXPERT_LINEAR;
    const stage_known *from = &layer->known[linear ? LAYER_Z : LAYER_H];
    const double *radius = stage_radius(from);

    open_stage(layer, LAYER_O);
    for (size_t q = 0; q < layer->k; q++) {
        const size_t e = (size_t)layer->ids[q];
        const size_t at = linear ? 0 : q * layer->f;
        const slm_tensor w = slm_tensor_at(
            linear ? &layer->weights->w_expert : &layer->weights->w_out, e);

        settle_linear(layer, LAYER_O, q * layer->l, &w, from->value + at,
                      radius ? radius + at : NULL, t, layer_stored(layer, SLM_STAGE_O));
    }
}

static void run_u(layer_work *layer, size_t t)
{
    const size_t l = layer->l, k = layer->k;
    const stage_known *o = &layer->known[LAYER_O];
    const double *radius = stage_radius(o);
    arb_ptr outs = _arb_vec_init((slong)(k * l));
    arb_ptr shares = _arb_vec_init((slong)k);
    arb_ptr want = _arb_vec_init((slong)l);

    open_stage(layer, LAYER_U);
    stage_balls(outs, o->value, k * l);
    stage_balls(shares, layer->weight, k);
    slm_ref_combine(want, NULL, shares, outs, k, l, SLM_REF_JUDGE);
    for (size_t i = 0; i < l; i++) {
        double gauge = 0, error = 0, rest, bound;

        for (size_t q = 0; q < k; q++) {
            const double away = radius ? radius[q * l + i] : 0;

            gauge += fabs(layer->weight[q]) * (fabs(o->value[q * l + i]) + away);
            error += fabs(layer->weight[q]) * away;
        }
        bound = bound_combine(&layer->trial->rules, stage_middle(want + i, &rest),
                              gauge, error, k, layer_stored(layer, SLM_STAGE_U));
        stage_settle(layer->trial, &layer->known[LAYER_U], t, i, want + i, bound, 0);
    }
    _arb_vec_clear(want, (slong)l);
    _arb_vec_clear(shares, (slong)k);
    _arb_vec_clear(outs, (slong)(k * l));
}

/* Without a norm r is u itself, perhaps stored once more.                         L4 */
static void run_r(layer_work *layer, size_t t)
{
    const size_t l = layer->l;
    const stage_known *u = &layer->known[LAYER_U];
    const double *radius = stage_radius(u);
    const double v = layer_stored(layer, SLM_STAGE_R);
    arb_ptr want = _arb_vec_init((slong)l);
    double *bound = stage_array(l, sizeof *bound);

    open_stage(layer, LAYER_R);
    if (layer->config->norm == SLM_NORM_RMS) {
        stage_rmsnorm(layer->trial, want, bound, u->value, radius, layer->gamma, l, v);
    } else {
        stage_balls(want, u->value, l);
        for (size_t i = 0; i < l; i++)
            bound[i] = bound_store(&layer->trial->rules, u->value[i],
                                   radius ? radius[i] : 0, v);
    }
    for (size_t i = 0; i < l; i++)
        stage_settle(layer->trial, &layer->known[LAYER_R], t, i, want + i, bound[i], 0);
    stage_release(bound);
    _arb_vec_clear(want, (slong)l);
}

static void run_shared_gate_up(layer_work *layer, size_t t)
{
    const slm_weights *weights = layer->weights;
    const double v = layer_stored(layer, layer->shared_stage);

    if (!layer->known[LAYER_SHARED_GATE_UP].tap) return;
    open_stage(layer, LAYER_SHARED_GATE_UP);
    settle_sums(layer, LAYER_SHARED_GATE_UP, 0, &weights->w_shared_gate, layer->x, NULL,
                t, v);
    settle_sums(layer, LAYER_SHARED_GATE_UP, layer->fs, &weights->w_shared_up, layer->x,
                NULL, t, v);
}

static void run_hs(layer_work *layer, size_t t)
{
    const slm_weights *weights = layer->weights;
    const int gated = weights->w_shared_gate.rank != 0;
    const double v = layer_stored(layer, layer->shared_stage);

    if (layer->fs == 0) return;
    open_stage(layer, LAYER_HS);
    if (layer->known[LAYER_SHARED_GATE_UP].tap)
        settle_shown(layer, LAYER_SHARED_GATE_UP, LAYER_HS, 1, layer->fs, t, v);
    else
        settle_inner(layer, LAYER_HS, 0, gated ? &weights->w_shared_gate : NULL,
                     &weights->w_shared_up, layer->x, NULL, t, v);
}

void layer_take(layer_work *layer, size_t t)
{
    const call_frame *frame = layer->trial->frame;
    const slm_tensor x = slm_tensor_at(frame_tensor(frame, "x"), t);
    const slm_tensor *weight = stage_written(layer->trial, "weight");

    stage_row(layer->x, &x);
    for (size_t q = 0; q < layer->k; q++)
        layer->ids[q] =
            (int32_t)compare_integer(frame_tensor(frame, "ids"), t * layer->k + q);
    for (size_t q = 0; weight && q < layer->k; q++)
        layer->weight[q] = slm_ref_get(weight, t * layer->k + q);
}

void layer_run(layer_work *layer, int stage, size_t t)
{
    static void (*const run[LAYER_STAGES])(layer_work *, size_t) = {
        run_z, run_gate_up, run_h, run_o, run_u, run_r, run_shared_gate_up, run_hs};

    run[stage](layer, t);
}

void layer_open(layer_work *layer, judge_trial *trial, const slm_config *config,
                const slm_weights *weights, int routed)
{
    const int linear = config->expert == SLM_EXPERT_LINEAR;

    layer->trial = trial;
    layer->config = config;
    layer->weights = weights;
    layer->d = config->d_model;
    layer->l = routed ? config->d_latent : 0;
    layer->k = routed ? config->top_k : 0;
    layer->f = linear || !routed ? 0 : config->d_expert;
    layer->fs = linear ? 0 : config->n_shared * config->d_shared;
    layer->last = -1;

    const size_t widths[LAYER_STAGES] = {layer->l,
                                         layer->k * 2 * layer->f,
                                         layer->k * layer->f,
                                         layer->k * layer->l,
                                         layer->l,
                                         layer->l,
                                         2 * layer->fs,
                                         layer->fs};

    for (int i = 0; i < LAYER_STAGES; i++) {
        layer->known[i] = stage_know(trial, layer->names[i], widths[i]);
        if (i < LAYER_ROUTED && layer->known[i].tap) layer->last = i;
    }
    layer->x = stage_array(layer->d, sizeof *layer->x);
    layer->weight = stage_array(layer->k, sizeof *layer->weight);
    layer->ids = stage_array(layer->k, sizeof *layer->ids);
    if (routed && weights->gamma.rank) {
        layer->gamma = stage_array(layer->l, sizeof *layer->gamma);
        stage_row(layer->gamma, &weights->gamma);
    }
}

void layer_close(layer_work *layer)
{
    if (layer->gamma) stage_release(layer->gamma);
    stage_release(layer->ids);
    stage_release(layer->weight);
    stage_release(layer->x);
    for (int i = 0; i < LAYER_STAGES; i++) stage_forget(&layer->known[i]);
}
