/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_layer.c - the stages of the layer after routing.  R4, L1-L3, L6
 *
 * Each stage is judged on the backend's own numbers of the stage before. A stage that
 * was not tapped is replaced by ref's numbers with their bounds as radii, so that one
 * missing tap costs little. When neither u nor r was tapped, y is judged by an
 * envelope. */
#include "envelope.h"
#include "trial.h"

#include <math.h>

/* The routed stages in order, then the shared one. */
enum { Z, H, O, U, R, ROUTED, HS = ROUTED, STAGES };

typedef struct layer_work {
    judge_trial *trial;
    const slm_config *config;
    const slm_weights *weights;
    size_t d, l, k, f, fs; /* fs: of all shared experts together                     */
    int last;              /* the last routed stage that was tapped, -1: none        */
    stage_known known[STAGES];
    double *x;      /* [d] */
    double *gamma;  /* [l], NULL: ones */
    double *weight; /* [k] the backend's own */
    int32_t *ids;   /* [k] the backend's own */
} layer_work;

static double stored(const layer_work *layer, slm_stage stage)
{
    return bound_stored(&layer->trial->rules, stage, layer->config->dtype);
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
    stage_open(layer->trial, "z");
    settle_linear(layer, Z, 0, &layer->weights->w_down, layer->x, NULL, t,
                  stored(layer, SLM_STAGE_Z));
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

static void run_h(layer_work *layer, size_t t)
{
    const stage_known *z = &layer->known[Z];
    const slm_weights *weights = layer->weights;

    if (layer->config->expert == SLM_EXPERT_LINEAR) return;
    stage_open(layer->trial, "h");
    for (size_t q = 0; q < layer->k; q++) {
        const size_t e = (size_t)layer->ids[q];
        const int gated = layer->config->expert != SLM_EXPERT_RELU;
        const slm_tensor up = slm_tensor_at(&weights->w_up, e);
        const slm_tensor gate =
            gated ? slm_tensor_at(&weights->w_gate, e) : (slm_tensor){0};

        settle_inner(layer, H, q * layer->f, gated ? &gate : NULL, &up, z->value,
                     stage_radius(z), t, stored(layer, SLM_STAGE_H));
    }
}

static void run_o(layer_work *layer, size_t t)
{
    const int linear = layer->config->expert == SLM_EXPERT_LINEAR;
    const stage_known *from = &layer->known[linear ? Z : H];
    const double *radius = stage_radius(from);

    stage_open(layer->trial, "o");
    for (size_t q = 0; q < layer->k; q++) {
        const size_t e = (size_t)layer->ids[q];
        const size_t at = linear ? 0 : q * layer->f;
        const slm_tensor w = slm_tensor_at(
            linear ? &layer->weights->w_expert : &layer->weights->w_out, e);

        settle_linear(layer, O, q * layer->l, &w, from->value + at,
                      radius ? radius + at : NULL, t, stored(layer, SLM_STAGE_O));
    }
}

static void run_u(layer_work *layer, size_t t)
{
    const size_t l = layer->l, k = layer->k;
    const stage_known *o = &layer->known[O];
    const double *radius = stage_radius(o);
    arb_ptr outs = _arb_vec_init((slong)(k * l));
    arb_ptr shares = _arb_vec_init((slong)k);
    arb_ptr want = _arb_vec_init((slong)l);

    stage_open(layer->trial, "u");
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
                              gauge, error, k, stored(layer, SLM_STAGE_U));
        stage_settle(layer->trial, &layer->known[U], t, i, want + i, bound, 0);
    }
    _arb_vec_clear(want, (slong)l);
    _arb_vec_clear(shares, (slong)k);
    _arb_vec_clear(outs, (slong)(k * l));
}

/* Without a norm r is u itself, perhaps stored once more.                         L4 */
static void run_r(layer_work *layer, size_t t)
{
    const size_t l = layer->l;
    const stage_known *u = &layer->known[U];
    const double *radius = stage_radius(u);
    const double v = stored(layer, SLM_STAGE_R);
    arb_ptr want = _arb_vec_init((slong)l);
    double *bound = stage_array(l, sizeof *bound);

    stage_open(layer->trial, "r");
    if (layer->config->norm == SLM_NORM_RMS) {
        stage_rmsnorm(layer->trial, want, bound, u->value, radius, layer->gamma, l, v);
    } else {
        stage_balls(want, u->value, l);
        for (size_t i = 0; i < l; i++)
            bound[i] = bound_store(&layer->trial->rules, u->value[i],
                                   radius ? radius[i] : 0, v);
    }
    for (size_t i = 0; i < l; i++)
        stage_settle(layer->trial, &layer->known[R], t, i, want + i, bound[i], 0);
    stage_release(bound);
    _arb_vec_clear(want, (slong)l);
}

static void run_hs(layer_work *layer, size_t t)
{
    const slm_weights *weights = layer->weights;
    const int gated = weights->w_shared_gate.rank != 0;

    if (layer->fs == 0) return;
    stage_open(layer->trial, "hs");
    settle_inner(layer, HS, 0, gated ? &weights->w_shared_gate : NULL,
                 &weights->w_shared_up, layer->x, NULL, t, stored(layer, SLM_STAGE_HS));
}

/* What the shared experts add, and its dots.                                      L3 */
static void add_shared(layer_work *layer, arb_ptr shared, bound_dot *dots)
{
    const size_t d = layer->d;
    const stage_known *hs = &layer->known[HS];
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
    const stage_known *r = &layer->known[R];
    const double v = stored(layer, SLM_STAGE_Y);
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
    const double v = stored(layer, SLM_STAGE_Y);
    const envelope e = {.config = layer->config,
                        .weights = layer->weights,
                        .rules = &layer->trial->rules,
                        .dtype = layer->config->dtype,
                        .seed = t,
                        .x = layer->x,
                        .ids = layer->ids,
                        .weight = layer->weight,
                        .z = tapped(layer, Z),
                        .h = tapped(layer, H),
                        .o = tapped(layer, O),
                        .hs = tapped(layer, HS)};
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
    void (*const run[ROUTED])(layer_work *, size_t) = {run_z, run_h, run_o, run_u,
                                                       run_r};
    const judge_trial *trial = layer->trial;
    const slm_tensor x = slm_tensor_at(frame_tensor(trial->frame, "x"), t);
    const slm_tensor *ids = frame_tensor(trial->frame, "ids");
    const slm_tensor *weight = frame_tensor(trial->frame, "weight");
    const int by_bounds = layer->last >= U;

    stage_row(layer->x, &x);
    for (size_t q = 0; q < layer->k; q++) {
        layer->ids[q] = (int32_t)compare_integer(ids, t * layer->k + q);
        layer->weight[q] = slm_ref_get(weight, t * layer->k + q);
    }
    for (int stage = 0; stage <= (by_bounds ? R : layer->last); stage++)
        run[stage](layer, t);
    if (by_bounds || layer->known[HS].tap) run_hs(layer, t);
    if (by_bounds)
        run_y(layer, t);
    else
        run_envelope(layer, t);
}

/* A poisoned token: every y is NaN.                                               R4 */
static void judge_poisoned(layer_work *layer, size_t t)
{
    stage_open_nan(layer->trial, "y");
    for (size_t i = 0; i < layer->d; i++)
        stage_exact(layer->trial, t * layer->d + i, NAN);
}

static void open_layer(layer_work *layer, judge_trial *trial)
{
    static const char *const names[STAGES] = {"z", "h", "o", "u", "r", "hs"};
    const slm_config *config = &trial->frame->config;
    const int linear = config->expert == SLM_EXPERT_LINEAR;
    const slm_tensor *gamma = frame_tensor(trial->frame, "gamma");

    *layer = (layer_work){.trial = trial,
                          .config = config,
                          .weights = &trial->frame->weights,
                          .d = config->d_model,
                          .l = config->d_latent,
                          .k = config->top_k,
                          .f = linear ? 0 : config->d_expert,
                          .fs = linear ? 0 : config->n_shared * config->d_shared,
                          .last = -1};

    const size_t widths[STAGES] = {
        layer->l, layer->k * layer->f, layer->k * layer->l, layer->l, layer->l,
        layer->fs};

    for (int i = 0; i < STAGES; i++) {
        layer->known[i] = stage_know(trial, names[i], widths[i]);
        if (i < ROUTED && layer->known[i].tap) layer->last = i;
    }
    layer->x = stage_array(layer->d, sizeof *layer->x);
    layer->weight = stage_array(layer->k, sizeof *layer->weight);
    layer->ids = stage_array(layer->k, sizeof *layer->ids);
    if (gamma->rank) {
        layer->gamma = stage_array(layer->l, sizeof *layer->gamma);
        stage_row(layer->gamma, gamma);
    }
}

void judge_layer(judge_trial *trial)
{
    layer_work layer;

    open_layer(&layer, trial);
    for (size_t t = 0; t < trial->frame->call->n_tokens; t++) {
        if (trial->rows[t] == ROW_SOUND) judge_token(&layer, t);
        if (trial->rows[t] == ROW_POISONED) judge_poisoned(&layer, t);
    }
    if (layer.gamma) stage_release(layer.gamma);
    stage_release(layer.ids);
    stage_release(layer.weight);
    stage_release(layer.x);
    for (int i = 0; i < STAGES; i++) stage_forget(&layer.known[i]);
}
