/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_ffn.c - activations, feed-forward networks, RMSNorm.  L1, L2, L3 */
#include "trial.h"

#include <math.h>

/* ---- what stages know of each other ---- */

stage_known stage_know(const judge_trial *trial, const char *field, size_t width)
{
    return (stage_known){.tap = stage_written(trial, field),
                         .width = width,
                         .value = stage_array(width, sizeof(double)),
                         .radius = stage_array(width, sizeof(double))};
}

void stage_forget(stage_known *known)
{
    stage_release(known->radius);
    stage_release(known->value);
}

const double *stage_radius(const stage_known *known)
{
    return known->tap ? NULL : known->radius;
}

void stage_settle(judge_trial *trial, stage_known *known, size_t t, size_t i,
                  const arb_t want, double bound, int by_file)
{
    double rest;

    if (known->tap) {
        const size_t index = t * known->width + i;

        stage_real(trial, index, want, bound, by_file);
        known->value[i] = slm_ref_get(known->tap, index);
        known->radius[i] = 0;
        return;
    }
    known->value[i] = stage_middle(want, &rest);
    known->radius[i] = bound + rest;
}

/* ---- activations ---- */

static void activation_of(const judge_trial *trial, const slm_config *config,
                          arb_t want, double *bound, const arb_t a, double da,
                          const arb_t b, double db, double v)
{
    double rest_a, rest_b, rest;
    const double mid_a = stage_middle(a, &rest_a);
    const double mid_b = stage_middle(b, &rest_b);
    const bound_interval range =
        bound_activation(&trial->rules, config, bound_around(mid_a, da + rest_a),
                         bound_around(mid_b, db + rest_b));
    double middle;

    slm_ref_activation(want, a, b, config, SLM_REF_JUDGE);
    middle = stage_middle(want, &rest);
    *bound = bound_store(&trial->rules, middle, bound_reach(range, middle) + rest, v);
}

void stage_activation(const judge_trial *trial, arb_t want, double *bound,
                      const arb_t a, double da, const arb_t b, double db, double v)
{
    activation_of(trial, &trial->frame->config, want, bound, a, da, b, db, v);
}

/* Error of a computed gate or up value. An implementation that stores h with fewer
 * digits than binary32 may store these two in the same way. */
static double inner_error(const judge_trial *trial, const bound_dot *dot,
                          const arb_t value, double v)
{
    const double error = bound_dot_error(dot, &trial->rules);
    double rest;

    if (v <= 0x1p-24) return error;
    return bound_store(&trial->rules, stage_middle(value, &rest), error, v);
}

void stage_sums(const judge_trial *trial, arb_ptr want, double *error,
                const slm_tensor *w, const double *x, const double *dx, double v)
{
    const size_t rows = w->shape[0];
    bound_dot *dots = stage_array(rows, sizeof *dots);

    for (size_t i = 0; i < rows; i++) dots[i] = bound_dot_none();
    stage_linear(trial, want, dots, w, x, dx);
    for (size_t i = 0; i < rows; i++)
        error[i] = inner_error(trial, &dots[i], want + i, v);
    stage_release(dots);
}

void stage_inner(const judge_trial *trial, arb_ptr want, double *bound,
                 const slm_tensor *w_gate, const slm_tensor *w_up, const double *x,
                 const double *dx, double v)
{
    const size_t rows = w_up->shape[0];
    arb_ptr gate = _arb_vec_init((slong)rows);
    double *da = stage_array(rows, sizeof *da);

    stage_sums(trial, want, bound, w_up, x, dx, v);
    if (w_gate) stage_sums(trial, gate, da, w_gate, x, dx, v);
    for (size_t i = 0; i < rows; i++)
        stage_activation(trial, want + i, &bound[i], gate + i, da[i], want + i,
                         bound[i], v);
    stage_release(da);
    _arb_vec_clear(gate, (slong)rows);
}

static void settle_activation(judge_trial *trial, const slm_config *config,
                              stage_known *known, size_t t, size_t i, const arb_t want,
                              double bound, double v, int by_file)
{
    const double limit = bound_activation_limit(config, v);
    const size_t index = t * known->width + i;
    char say_got[COMPARE_TEXT], say_want[COMPARE_WANT];

    if (known->tap && fabs(slm_ref_get(known->tap, index)) > limit) {
        compare_say(say_got, slm_ref_get(known->tap, index));
        snprintf(say_want, sizeof say_want, "magnitude at most %g", limit);
        stage_record_exact(trial, index, 0, say_got, say_want);
    }
    stage_settle(trial, known, t, i, want, bound, by_file);
}

void stage_settle_activation(judge_trial *trial, stage_known *known, size_t t, size_t i,
                             const arb_t want, double bound, double v, int by_file)
{
    settle_activation(trial, &trial->frame->config, known, t, i, want, bound, v,
                      by_file);
}

void judge_situ_glu(judge_trial *trial)
{
    const slm_tensor *gate_up = frame_tensor(trial->frame, "gate_up");
    slm_config config = trial->frame->config;
    const size_t f = config.d_expert;
    stage_known h = stage_know(trial, "h", f);
    const double v = h.tap ? bound_stored(&trial->rules, SLM_STAGE_H, h.tap->dtype) : 0;
    arb_t a, b, want;

    arb_init(a);
    arb_init(b);
    arb_init(want);
    config.expert = SLM_EXPERT_SITU; /* whatever experts the layer has */
    stage_open(trial, "h");
    for (size_t i = 0; i < trial->frame->call->n_tokens * f; i++) {
        const size_t t = i / f;
        const double gate = slm_ref_get(gate_up, t * 2 * f + i % f);
        const double up = slm_ref_get(gate_up, t * 2 * f + f + i % f);
        double bound;

        if (isnan(gate) || isnan(up)) {
            stage_exact(trial, i, NAN);
            continue;
        }
        arb_set_d(a, gate);
        arb_set_d(b, up);
        activation_of(trial, &config, want, &bound, a, 0, b, 0, v);
        settle_activation(trial, &config, &h, t, i % f, want, bound, v, 1);
    }
    stage_forget(&h);
    arb_clear(want);
    arb_clear(b);
    arb_clear(a);
}

/* ---- dense_ffn ---- */

/* NaN or infinity in x: that row is all NaN.                                      R4 */
static int is_finite_row(const double *row, size_t width)
{
    for (size_t i = 0; i < width; i++)
        if (!isfinite(row[i])) return 0;
    return 1;
}

static void judge_dense_h(judge_trial *trial, stage_known *h, const double *x, size_t t)
{
    const slm_tensor *gate = frame_tensor(trial->frame, "w_gate");
    const slm_tensor *up = frame_tensor(trial->frame, "w_up");
    const slm_dtype dtype = trial->frame->config.dtype;
    const double v = bound_stored(&trial->rules, SLM_STAGE_H, dtype);
    arb_ptr want = _arb_vec_init((slong)h->width);
    double *bound = stage_array(h->width, sizeof *bound);

    stage_open(trial, "h");
    stage_inner(trial, want, bound, gate->rank ? gate : NULL, up, x, NULL, v);
    for (size_t i = 0; i < h->width; i++)
        stage_settle_activation(trial, h, t, i, want + i, bound[i], v, 0);
    stage_release(bound);
    _arb_vec_clear(want, (slong)h->width);
}

static void judge_dense_y(judge_trial *trial, const stage_known *h, size_t t)
{
    const slm_tensor *out = frame_tensor(trial->frame, "w_out");
    const slm_tensor *y = frame_tensor(trial->frame, "y");
    const double v = bound_stored(&trial->rules, SLM_STAGE_Y, y->dtype);
    const size_t d = out->shape[0];
    arb_ptr want = _arb_vec_init((slong)d);
    bound_dot *dots = stage_array(d, sizeof *dots);

    for (size_t i = 0; i < d; i++) dots[i] = bound_dot_none();
    stage_open(trial, "y");
    stage_linear(trial, want, dots, out, h->value, stage_radius(h));
    for (size_t i = 0; i < d; i++) {
        double rest;
        const double error = bound_dot_error(&dots[i], &trial->rules);

        stage_real(trial, t * d + i, want + i,
                   bound_store(&trial->rules, stage_middle(want + i, &rest), error, v),
                   0);
    }
    stage_release(dots);
    _arb_vec_clear(want, (slong)d);
}

void judge_dense_ffn(judge_trial *trial)
{
    const slm_config *config = &trial->frame->config;
    const slm_tensor *x = frame_tensor(trial->frame, "x");
    stage_known h = stage_know(trial, "h", config->d_expert);
    double *row = stage_array(config->d_model, sizeof *row);

    for (size_t t = 0; t < trial->frame->call->n_tokens; t++) {
        const slm_tensor view = slm_tensor_at(x, t);

        stage_row(row, &view);
        if (!is_finite_row(row, config->d_model) ||
            trial_is_given_up(trial->frame, "y", t)) {
            stage_open_nan(trial, "y");
            for (size_t i = 0; i < config->d_model; i++)
                stage_exact(trial, t * config->d_model + i, NAN);
            continue;
        }
        judge_dense_h(trial, &h, row, t);
        judge_dense_y(trial, &h, t);
    }
    stage_release(row);
    stage_forget(&h);
}

/* ---- RMSNorm ---- */

/* Squares and their sum stay finite in binary32.                                  L2 */
static int is_in_domain(const double *u, size_t width)
{
    double most = 0;

    for (size_t i = 0; i < width; i++) most = fmax(most, fabs(u[i]));
    return (double)width * most * most < 0x1p127;
}

/* The two norms that a spread needs: of the radii, and the root of the mean square. */
static void norms_of(const double *u, const double *du, size_t width, double eps,
                     double *e2, double *rho)
{
    double errors = 0, squares = 0;

    for (size_t i = 0; i < width; i++) {
        squares += u[i] * u[i];
        if (du) errors += du[i] * du[i];
    }
    *e2 = sqrt(errors) * (1 + 0x1p-40);
    *rho = sqrt(squares / (double)width + eps);
}

/* Roundoff of r: cast, then multiplied by gamma in the narrow type, it is rounded twice,
 * (1 + v)^2 - 1. A power of two only shifts what the first rounding left, so the second
 * is exact and v is all.                                                          L2 */
static double stored_gain(double gain, double v)
{
    int exponent;

    return v > 0x1p-24 && frexp(gain, &exponent) != 0.5 ? 2 * v + v * v : v;
}

void stage_rmsnorm(const judge_trial *trial, arb_ptr want, double *bound,
                   const double *u, const double *du, const double *gamma, size_t width,
                   double v)
{
    const bound_rules *rules = &trial->rules;
    const double eps = trial->frame->config.eps;
    arb_ptr gains = NULL;
    size_t terms = 0;
    double e2, rho, rel, rest;
    fmpq_t exact_eps;

    if (!is_finite_row(u, width)) {
        for (size_t i = 0; i < width; i++) {
            arb_indeterminate(want + i);
            bound[i] = INFINITY;
        }
        return;
    }
    fmpq_init(exact_eps);
    slm_ref_decimal(exact_eps, eps);
    stage_balls(want, u, width);
    if (gamma) {
        gains = _arb_vec_init((slong)width);
        for (size_t i = 0; i < width; i++)
            arb_set_d(gains + i, isfinite(gamma[i]) ? gamma[i] : 0);
    }
    slm_ref_rmsnorm(want, want, gains, width, exact_eps, SLM_REF_JUDGE);
    for (size_t i = 0; i < width; i++) terms += u[i] != 0 || (du && du[i] > 0);
    norms_of(u, du, width, eps, &e2, &rho);
    rel = is_in_domain(u, width) ? bound_rmsnorm(rules, eps, terms) : INFINITY;
    for (size_t i = 0; i < width; i++) {
        const double gain = gamma ? fabs(gamma[i]) : 1;
        const double middle = stage_middle(want + i, &rest);
        const double spread =
            du ? gain * bound_rmsnorm_spread(u[i], du[i], e2, rho, eps, width) : 0;
        const double flushed =
            gain * (bound_least(rules, v) + rules->phi + rules->phi / sqrt(eps));
        double error = rest + spread + flushed;

        if (middle != 0 || spread > 0) error += rel * (fabs(middle) + spread);
        bound[i] = bound_store(rules, middle, error, stored_gain(gain, v));
        if (!isfinite(gain)) arb_indeterminate(want + i);
    }
    if (gains) _arb_vec_clear(gains, (slong)width);
    fmpq_clear(exact_eps);
}

void judge_rmsnorm(judge_trial *trial)
{
    const size_t width = trial->frame->config.d_latent;
    const slm_tensor *u = frame_tensor(trial->frame, "u");
    const slm_tensor *gamma = frame_tensor(trial->frame, "gamma");
    const slm_tensor *r = frame_tensor(trial->frame, "r");
    const double v = bound_stored(&trial->rules, SLM_STAGE_R, r->dtype);
    arb_ptr want = _arb_vec_init((slong)width);
    double *bound = stage_array(width, sizeof *bound);
    double *row = stage_array(width, sizeof *row);
    double *gains = gamma->rank ? stage_array(width, sizeof *gains) : NULL;

    if (gains) stage_row(gains, gamma);
    for (size_t t = 0; t < trial->frame->call->n_tokens; t++) {
        const slm_tensor view = slm_tensor_at(u, t);
        int finite;

        stage_row(row, &view);
        finite = is_finite_row(row, width) && !trial_is_given_up(trial->frame, "r", t);
        if (finite)
            stage_open(trial, "r");
        else
            stage_open_nan(trial, "r");
        if (finite) stage_rmsnorm(trial, want, bound, row, NULL, gains, width, v);
        for (size_t i = 0; i < width; i++) {
            if (finite)
                stage_real(trial, t * width + i, want + i, bound[i], 1);
            else
                stage_exact(trial, t * width + i, NAN);
        }
    }
    if (gains) stage_release(gains);
    stage_release(row);
    stage_release(bound);
    _arb_vec_clear(want, (slong)width);
}
