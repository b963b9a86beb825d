/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_backward.c - backward operations whose inputs are all given, and the
 * steps that they share with the layer.                                     G1, G2, G3 */
#include "judge_backward.h"
#include "envelope.h"

#include <math.h>

/* ---- slopes of the activation ---- */

void backward_slopes_open(backward_slopes *out)
{
    arb_init(out->da);
    arb_init(out->db);
    arb_init(out->a);
    arb_init(out->b);
    arb_init(out->dh);
}

void backward_slopes_close(backward_slopes *out)
{
    arb_clear(out->dh);
    arb_clear(out->b);
    arb_clear(out->a);
    arb_clear(out->db);
    arb_clear(out->da);
}

/* Bound of a stored number that lies in an interval before it is stored. */
static double stored_reach(const judge_trial *trial, const arb_t want,
                           bound_interval range, double v)
{
    double rest;
    const double middle = stage_middle(want, &rest);

    if (range.lo == 0 && range.hi == 0 && middle == 0) return 0;
    return bound_store(&trial->rules, middle, bound_reach(range, middle) + rest, v);
}

void backward_slopes_of(const judge_trial *trial, backward_slopes *out,
                        const slm_config *config, double a, double b, double dh,
                        double v)
{
    arb_set_d(out->a, a);
    arb_set_d(out->b, b);
    arb_set_d(out->dh, dh);
    slm_ref_situ_glu_backward(out->da, out->db, out->a, out->b, out->dh, config,
                              SLM_REF_JUDGE);
    out->da_bound = stored_reach(trial, out->da,
                                 bound_gate_slope(&trial->rules, config, a, b, dh), v);
    out->db_bound = stored_reach(trial, out->db,
                                 bound_up_slope(&trial->rules, config, a, b, dh), v);
}

/* The operation is SiTU whatever kind of expert the configuration has.            G1 */
void judge_situ_glu_backward(judge_trial *trial)
{
    const call_frame *frame = trial->frame;
    const slm_tensor *gate_up = frame_tensor(frame, "gate_up");
    const slm_tensor *dh = frame_tensor(frame, "dh");
    const slm_tensor *out = frame_tensor(frame, "dgate_up");
    const double v = bound_stored_gradient(&trial->rules, out->dtype);
    const size_t f = frame->config.d_expert;
    slm_config config = frame->config;
    backward_slopes slopes;

    config.expert = SLM_EXPERT_SITU;
    backward_slopes_open(&slopes);
    stage_open(trial, "dgate_up");
    for (size_t i = 0; i < frame->call->n_tokens * f; i++) {
        const size_t at = i / f * 2 * f + i % f;

        backward_slopes_of(trial, &slopes, &config, slm_ref_get(gate_up, at),
                           slm_ref_get(gate_up, at + f), slm_ref_get(dh, i), v);
        stage_real(trial, at, slopes.da, slopes.da_bound, 1);
        stage_real(trial, at + f, slopes.db, slopes.db_bound, 1);
    }
    backward_slopes_close(&slopes);
}

/* ---- RMSNorm ---- */

backward_norm backward_norm_open(const double *gamma, size_t width)
{
    backward_norm out = {.width = width,
                         .gamma = gamma,
                         .du = _arb_vec_init((slong)width),
                         .bound = stage_array(width, sizeof(double)),
                         .dgamma = _arb_vec_init((slong)width),
                         .dots = stage_array(width, sizeof(bound_dot))};

    for (size_t i = 0; i < width; i++) out.dots[i] = bound_dot_none();
    return out;
}

void backward_norm_close(backward_norm *out)
{
    stage_release(out->dots);
    _arb_vec_clear(out->dgamma, (slong)out->width);
    stage_release(out->bound);
    _arb_vec_clear(out->du, (slong)out->width);
}

/* What the bounds want to know of a row; terms of the sum of squares in *squares. Sums
 * that leave binary32 on the way have no error that could be told. */
static bound_norm_row know_row(const judge_trial *trial, const backward_norm *norm,
                               const double *u, const double *dr)
{
    const double eps = trial->frame->config.eps;
    bound_norm_row row = {.width = norm->width};
    double sum = 0, most = 0, most_g = 0;
    size_t squares = 0;

    for (size_t i = 0; i < norm->width; i++) {
        sum += u[i] * u[i];
        squares += u[i] != 0;
        most = fmax(most, fabs(u[i]));
    }
    row.root = sqrt(sum / (double)norm->width + eps);
    for (size_t i = 0; i < norm->width; i++) {
        const double g = dr[i] * (norm->gamma ? norm->gamma[i] : 1);

        row.mean += fabs(g * u[i]) / row.root;
        row.terms += g * u[i] != 0;
        most_g = fmax(most_g, fabs(g));
    }
    row.mean = row.mean * (1 + 0x1p-40) / (double)norm->width;
    row.rel = bound_rmsnorm(&trial->rules, eps, squares);
    if ((double)norm->width * most * most >= 0x1p127 ||
        (double)norm->width * most_g * fmax(1, most) * fmax(1, 1 / row.root) >= 0x1p127)
        row.rel = INFINITY;
    return row;
}

static void ref_norm(const judge_trial *trial, backward_norm *out, const double *u,
                     const double *dr)
{
    const slong width = (slong)out->width;
    arb_ptr balls = _arb_vec_init(4 * width);
    fmpq_t eps;

    fmpq_init(eps);
    slm_ref_decimal(eps, trial->frame->config.eps);
    stage_balls(balls, u, out->width);
    stage_balls(balls + width, dr, out->width);
    if (out->gamma) stage_balls(balls + 2 * width, out->gamma, out->width);
    slm_ref_rmsnorm_backward(out->du, balls + 3 * width, balls,
                             out->gamma ? balls + 2 * width : NULL, balls + width,
                             out->width, eps, SLM_REF_JUDGE);
    _arb_vec_add(out->dgamma, out->dgamma, balls + 3 * width, width, SLM_REF_JUDGE);
    fmpq_clear(eps);
    _arb_vec_clear(balls, 4 * width);
}

void backward_norm_row(const judge_trial *trial, backward_norm *out, const double *u,
                       const double *dr, double v)
{
    const bound_rules *rules = &trial->rules;
    const bound_norm_row row = know_row(trial, out, u, dr);

    ref_norm(trial, out, u, dr);
    for (size_t i = 0; i < out->width; i++) {
        const double n = u[i] / row.root;
        const double g = dr[i] * (out->gamma ? out->gamma[i] : 1);
        const double away = bound_norm_factor(rules, &row, n) + 0x1p-48 * fabs(n);
        double rest;
        const double middle = stage_middle(out->du + i, &rest);
        const double error = bound_norm_slope(rules, &row, g, n);

        out->bound[i] = error == 0 ? 0 : bound_store(rules, middle, error + rest, v);
        bound_dot_add(&out->dots[i], rules, &dr[i], &n, &away, 1);
    }
}

void backward_dgamma(judge_trial *trial, const backward_norm *out,
                     const double *deviation, int by_file)
{
    const bound_rules *rules = &trial->rules;
    const double v = bound_stored_weight_gradient(rules);

    stage_open(trial, "dgamma");
    for (size_t i = 0; i < out->width; i++) {
        double rest, error = bound_dot_error(&out->dots[i], rules);
        const double middle = stage_middle(out->dgamma + i, &rest);

        if (error > 0) error += rest;
        if (deviation) error += ENVELOPE_LIMIT * deviation[i];
        stage_real(trial, i, out->dgamma + i, bound_store(rules, middle, error, v),
                   by_file);
    }
}

void judge_rmsnorm_backward(judge_trial *trial)
{
    const call_frame *frame = trial->frame;
    const size_t width = frame->config.d_latent;
    const slm_tensor *gamma = frame_tensor(frame, "gamma");
    const double v =
        bound_stored_gradient(&trial->rules, frame_tensor(frame, "du")->dtype);
    double *rows = stage_array(3 * width, sizeof *rows);
    backward_norm norm =
        backward_norm_open(gamma->rank ? rows + 2 * width : NULL, width);

    if (gamma->rank) stage_row(rows + 2 * width, gamma);
    stage_open(trial, "du");
    for (size_t t = 0; t < frame->call->n_tokens; t++) {
        const slm_tensor u = slm_tensor_at(frame_tensor(frame, "u"), t);
        const slm_tensor dr = slm_tensor_at(frame_tensor(frame, "dr"), t);

        stage_row(rows, &u);
        stage_row(rows + width, &dr);
        backward_norm_row(trial, &norm, rows, rows + width, v);
        for (size_t i = 0; i < width; i++)
            stage_real(trial, t * width + i, norm.du + i, norm.bound[i], 1);
    }
    if (frame_tensor(frame, "dgamma")->rank) backward_dgamma(trial, &norm, NULL, 1);
    backward_norm_close(&norm);
    stage_release(rows);
}

/* ---- weights ---- */

int backward_is_constant(const slm_config *config)
{
    return config->top_k == 1 && config->weighting == SLM_WEIGHT_RATIO;
}

void backward_choice(const judge_trial *trial, const double *logit, const double *dp,
                     arb_ptr want, double *bound)
{
    slm_config config = trial->frame->config;
    const size_t k = config.top_k;
    const int release = config.weighting == SLM_WEIGHT_RELEASE;
    bound_interval *range = stage_array(2 * k, sizeof *range);
    int32_t *ids = stage_array(k, sizeof *ids);
    arb_ptr balls = _arb_vec_init(2 * (slong)k);

    config.n_experts = k; /* a row of the chosen alone */
    for (size_t q = 0; q < k; q++) ids[q] = (int32_t)q;
    stage_balls(balls, logit, k);
    stage_balls(balls + k, dp, k);
    slm_ref_mixture_backward(want, balls, ids, balls + k, &config, SLM_REF_JUDGE);
    bound_choice_weights(&trial->rules, logit, k, release, range + k, range);
    for (size_t q = 0; q < k; q++)
        bound[q] = stored_reach(trial, want + q,
                                bound_choice_slope(&trial->rules, range, dp, k, q,
                                                   logit[q], release && k == 1),
                                bound_roundoff(SLM_F32));
    _arb_vec_clear(balls, 2 * (slong)k);
    stage_release(ids);
    stage_release(range);
}

void backward_unchosen(judge_trial *trial, const int32_t *ids, size_t t)
{
    const size_t n = trial->frame->config.n_experts, k = trial->frame->config.top_k;
    unsigned char *chosen = stage_array(n, 1);

    stage_open(trial, "dlogit");
    for (size_t q = 0; q < k; q++) chosen[ids[q]] = 1;
    for (size_t j = 0; j < n; j++)
        if (!chosen[j] || backward_is_constant(&trial->frame->config))
            stage_exact(trial, t * n + j, 0);
    stage_release(chosen);
}

void judge_select_backward(judge_trial *trial)
{
    const call_frame *frame = trial->frame;
    const size_t n = frame->config.n_experts, k = frame->config.top_k;
    const slm_tensor *logit = frame_tensor(frame, "logit");
    double *chosen = stage_array(k, sizeof *chosen), *dp = stage_array(k, sizeof *dp);
    double *bound = stage_array(k, sizeof *bound);
    int32_t *ids = stage_array(k, sizeof *ids);
    arb_ptr want = _arb_vec_init((slong)k);

    for (size_t t = 0; t < frame->call->n_tokens; t++) {
        for (size_t q = 0; q < k; q++) {
            ids[q] = (int32_t)compare_integer(frame_tensor(frame, "ids"), t * k + q);
            chosen[q] = slm_ref_get(logit, t * n + (size_t)ids[q]);
            dp[q] = slm_ref_get(frame_tensor(frame, "dweight"), t * k + q);
        }
        backward_unchosen(trial, ids, t);
        if (backward_is_constant(&frame->config)) continue;
        backward_choice(trial, chosen, dp, want, bound);
        for (size_t q = 0; q < k; q++)
            stage_real(trial, t * n + (size_t)ids[q], want + q, bound[q], 1);
    }
    _arb_vec_clear(want, (slong)k);
    stage_release(ids);
    stage_release(bound);
    stage_release(dp);
    stage_release(chosen);
}
