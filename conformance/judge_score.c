/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_score.c - routing: logits, and what they say of keys.     R1, R2 */
#include "routing.h"

#include <math.h>

/* ---- logits ---- */

void routing_real_logits(routing *r, const slm_tensor *x, const slm_tensor *w)
{
    const slm_dtype dtype = r->own_logit ? r->own_logit->dtype : SLM_F32;
    const double v = bound_stored(&r->trial->rules, SLM_STAGE_LOGIT, dtype);
    double *row = stage_array(w->shape[1], sizeof *row);
    bound_dot *dots = stage_array(r->n, sizeof *dots);

    for (size_t t = 0; t < r->n_tokens; t++) {
        const slm_tensor view = slm_tensor_at(x, t);
        arb_ptr logit = r->logit + t * r->n;

        for (size_t j = 0; j < r->n; j++) dots[j] = bound_dot_none();
        stage_row(row, &view);
        stage_linear(r->trial, logit, dots, w, row, NULL);
        for (size_t j = 0; j < r->n; j++) {
            double rest;
            const double middle = stage_middle(logit + j, &rest);
            const double error = bound_dot_error(&dots[j], &r->trial->rules);

            r->radius[t * r->n + j] = bound_store(&r->trial->rules, middle, error, v);
            if (!arb_is_finite(logit + j)) r->trial->rows[t] = ROW_POISONED;
        }
    }
    stage_release(dots);
    stage_release(row);
}

void routing_given(routing *r, const slm_tensor *logit)
{
    const slm_tensor *values = r->given ? r->given : logit;

    for (size_t i = 0; i < r->n_tokens * r->n; i++) {
        const double value = slm_ref_get(values, i);

        if (isnan(value)) r->trial->rows[i / r->n] = ROW_POISONED;
        if (logit) arb_set_d(r->logit + i, value);
    }
}

void judge_logits(routing *r)
{
    if (!r->own_logit) return;
    stage_open(r->trial, "logit");
    for (size_t i = 0; i < r->n_tokens * r->n; i++)
        if (r->trial->rows[i / r->n] == ROW_SOUND)
            stage_real(r->trial, i, r->logit + i, r->radius[i], 0);
}

/* ---- scores ---- */

bound_interval routing_score(const routing *r, const routing_row *row, size_t j,
                             int real)
{
    double rest, widest = 0, most = 0;

    if (r->config->score == SLM_SCORE_SIGMOID) {
        const double middle = stage_middle(row->logit + j, &rest);

        return bound_score(&r->trial->rules,
                           bound_around(middle, row->radius[j] + rest), real);
    }
    for (size_t i = 0; i < r->n; i++) {
        const double middle = stage_middle(row->logit + i, &rest);

        widest = fmax(widest, row->radius[i] + rest);
        most = fmax(most, fabs(middle));
    }
    widest += 0x1p-23 * most; /* logit - largest logit is rounded */
    return bound_softmax(&r->trial->rules, stage_middle(row->score + j, &rest), widest,
                         r->n, real);
}

static float up_to(double x)
{
    const float f = (float)x;

    return (double)f < x ? nextafterf(f, INFINITY) : f;
}

static float down_to(double x)
{
    const float f = (float)x;

    return (double)f > x ? nextafterf(f, -INFINITY) : f;
}

void routing_fill(routing_row *row, const routing *r, size_t t, int own)
{
    for (size_t j = 0; j < r->n; j++) {
        const size_t i = t * r->n + j;

        arb_set(row->logit + j, r->logit + i);
        row->radius[j] = r->radius[i];
        if (!own) continue;
        arb_set_d(row->logit + j, slm_ref_get(r->own_logit, i));
        row->radius[j] = 0;
    }
    slm_ref_scores(row->score, row->logit, r->config, SLM_REF_JUDGE);
    for (size_t j = 0; j < r->n; j++) {
        const bound_interval s = routing_score(r, row, j, 0);

        row->score_range[j] = s;
        row->lo[j] = slm_ref_key(up_to(s.lo), r->bias[j]);
        row->hi[j] = slm_ref_key(down_to(s.hi), r->bias[j]);
    }
}

/* A naive sigmoid overflows its exponential below -87.33 and gives 0.             R2 */
void judge_scores(routing *r, routing_row *row)
{
    if (!r->own_score) return;
    stage_open(r->trial, "score");
    for (size_t t = 0; t < r->n_tokens; t++) {
        if (r->trial->rows[t] != ROW_SOUND) continue;
        routing_fill(row, r, t, r->own_logit != NULL);
        for (size_t j = 0; j < r->n; j++) {
            const bound_rules *rules = &r->trial->rules;
            const bound_interval s = routing_score(r, row, j, 1);
            double rest;
            const double middle = stage_middle(row->score + j, &rest);
            const double bound =
                bound_reach(s, middle) + rest + rules->eta + rules->phi;
            const size_t i = t * r->n + j;

            if (slm_ref_get(r->own_score, i) == 0 && row->score_range[j].lo == 0)
                stage_exact(r->trial, i, 0);
            else
                stage_real(r->trial, i, row->score + j, bound, 0);
        }
    }
}
