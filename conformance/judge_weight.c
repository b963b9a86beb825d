/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_weight.c - routing: the mixing weights of the chosen experts.   R3
 *
 * p comes from the raw scores: from the given or the backend's own where these carry
 * enough digits, else from the logits. Near underflow two readings are lawful, the
 * ratio of the real scores and the ratio of the rounded ones; a row must meet one of
 * them whole. */
#include "routing.h"

#include <math.h>

/* One reading of a row of weights. */
typedef struct reading {
    arb_ptr want;  /* [k] */
    double *bound; /* [k] */
    int holds;     /* 0: not for this row */
} reading;

enum { OF_SCORES, OF_LOGITS, EQUAL, READINGS };

typedef struct weighing {
    reading readings[READINGS];
    arb_ptr score;         /* [n] known scores                                  */
    int32_t *ids;          /* [k] the backend's own                             */
    bound_interval *range; /* [k] of the chosen scores                          */
} weighing;

static void open_weighing(weighing *w, const routing *r)
{
    for (int i = 0; i < READINGS; i++) {
        w->readings[i].want = _arb_vec_init((slong)r->k);
        w->readings[i].bound = stage_array(r->k, sizeof(double));
    }
    w->score = _arb_vec_init((slong)r->n);
    w->ids = stage_array(r->k, sizeof *w->ids);
    w->range = stage_array(r->k, sizeof *w->range);
}

static void close_weighing(weighing *w, const routing *r)
{
    stage_release(w->range);
    stage_release(w->ids);
    _arb_vec_clear(w->score, (slong)r->n);
    for (int i = 0; i < READINGS; i++) {
        stage_release(w->readings[i].bound);
        _arb_vec_clear(w->readings[i].want, (slong)r->k);
    }
}

static int is_release(const routing *r)
{
    return r->config->weighting == SLM_WEIGHT_RELEASE;
}

/* The ratio of known scores. Returns 1 when it is the only reading: each score is
 * normal and their sum at least 2^-100, or the scores are inputs.                 R3 */
static int read_scores(const routing *r, weighing *w, const slm_tensor *score, size_t t)
{
    reading *one = &w->readings[OF_SCORES];
    const double added = is_release(r) && r->k > 1 ? 1e-20 : 0;
    double sum = 0, least = 1, rest;

    one->holds = 1;
    for (size_t j = 0; j < r->n; j++)
        arb_set_d(w->score + j, slm_ref_get(score, t * r->n + j));
    for (size_t q = 0; q < r->k; q++) {
        const double s = slm_ref_get(score, t * r->n + (size_t)w->ids[q]);

        sum += s;
        least = fmin(least, s);
        if (!isfinite(s)) one->holds = 0;
    }
    if (!one->holds) return 0;
    slm_ref_mixture(one->want, w->score, w->ids, r->config, SLM_REF_JUDGE);
    for (size_t q = 0; q < r->k; q++) {
        const double p = stage_middle(one->want + q, &rest);

        one->bound[q] = bound_weight(&r->trial->rules, p, r->k, is_release(r));
        if (r->trial->rules.phi > 0 && sum > 0)
            one->bound[q] += (double)r->k * r->trial->rules.phi / (sum + added);
    }
    return r->given || (least >= 0x1p-126 && sum >= 0x1p-100);
}

/* The ratio of the real scores of the logits in the row. What each score may lose to
 * underflow counts against the sum: k (eta + phi) / S, unless the backend's rounded
 * scores are known and have a reading of their own. Without them, scores that may all
 * have become 0 may be shared out equally.                                        R3 */
static void read_logits(const routing *r, weighing *w, const routing_row *row)
{
    const bound_rules *rules = &r->trial->rules;
    const double added = is_release(r) && r->k > 1 ? 1e-20 : 0;
    reading *one = &w->readings[OF_LOGITS];
    double sum = added, rest, lost = 0;
    int may_vanish = !r->own_score && !is_release(r);

    one->holds = 1;
    slm_ref_mixture(one->want, row->score, w->ids, r->config, SLM_REF_JUDGE);
    for (size_t q = 0; q < r->k; q++) {
        const size_t id = (size_t)w->ids[q];

        sum += stage_middle(row->score + id, &rest);
        w->range[q] = routing_score(r, row, id, 1);
        may_vanish &= row->score_range[id].lo == 0;
    }
    if (!r->own_score) lost = (double)r->k * (rules->eta + rules->phi) / sum;
    for (size_t q = 0; q < r->k; q++) {
        const bound_interval p =
            bound_weight_interval(rules, w->range, r->k, q, is_release(r));
        const double middle = stage_middle(one->want + q, &rest);

        one->bound[q] = bound_reach(p, middle) + rest + fmin(lost, 1);
    }
    w->readings[EQUAL].holds = may_vanish;
    for (size_t q = 0; q < r->k; q++) {
        arb_one(w->readings[EQUAL].want + q);
        arb_div_ui(w->readings[EQUAL].want + q, w->readings[EQUAL].want + q, r->k,
                   SLM_REF_JUDGE);
        w->readings[EQUAL].bound[q] =
            bound_weight(rules, 1 / (double)r->k, r->k, is_release(r));
    }
}

/* Largest multiple of its bound in the row under a reading. */
static double worst(const reading *one, const slm_tensor *weight, size_t first,
                    size_t k)
{
    double most = 0;

    for (size_t q = 0; q < k; q++) {
        const double got = slm_ref_get(weight, first + q);
        const double distance =
            arb_is_finite(one->want + q)
                ? compare_distance(got, one->want + q, weight->dtype)
                : 0;
        const double multiple = distance > 0 ? distance / one->bound[q] : 0;

        if (!(multiple <= most)) most = multiple;
    }
    return most;
}

/* The file's weights belong to the file's ids. */
static int are_files_ids(const judge_trial *trial, const int32_t *ids, size_t first,
                         size_t k)
{
    const vec_tensor *golden =
        vec_find(trial->outcome->out, trial->outcome->n_out, "ids");

    for (size_t q = 0; q < k; q++) {
        if (!compare_is_fixed(golden, first + q)) return 0;

        const slm_tensor view = compare_golden_view(golden);

        if (compare_integer(&view, first + q) != ids[q]) return 0;
    }
    return 1;
}

/* A row of the paper's weights sums to 1. */
static void judge_sum(routing *r, size_t first)
{
    const double bound = bound_weight_sum(r->k);
    char got[COMPARE_TEXT], want[COMPARE_WANT];
    double sum = 0;

    for (size_t q = 0; q < r->k; q++) sum += slm_ref_get(r->trial->tensor, first + q);
    snprintf(got, sizeof got, "a row that sums to %.9g", sum);
    snprintf(want, sizeof want, "1 +- %.3g", bound);
    stage_record(r->trial, first, fabs(sum - 1) / bound, got, want);
}

static void judge_row(routing *r, weighing *w, size_t t)
{
    judge_trial *trial = r->trial;
    const size_t first = t * r->k;
    double least = INFINITY;
    int best = -1;

    for (int i = 0; i < READINGS; i++) {
        if (!w->readings[i].holds) continue;

        const double most = worst(&w->readings[i], trial->tensor, first, r->k);

        if (best < 0 || most < least) {
            best = i;
            least = most;
        }
    }
    if (best < 0) return;

    const int by_file = trial->test->op == SLM_OP_select && best != EQUAL &&
                        are_files_ids(trial, w->ids, first, r->k);

    for (size_t q = 0; q < r->k; q++)
        stage_real(trial, first + q, w->readings[best].want + q,
                   w->readings[best].bound[q], by_file);
    if (!is_release(r)) judge_sum(r, first);
}

void judge_weights(routing *r, routing_row *row)
{
    const slm_tensor *ids = frame_tensor(r->trial->frame, "ids");
    const slm_tensor *known = r->given ? r->given : r->own_score;
    weighing w;

    open_weighing(&w, r);
    stage_open(r->trial, "weight");
    for (size_t t = 0; t < r->n_tokens; t++) {
        if (r->trial->rows[t] != ROW_SOUND) continue;
        for (int i = 0; i < READINGS; i++) w.readings[i].holds = 0;
        for (size_t q = 0; q < r->k; q++)
            w.ids[q] = (int32_t)compare_integer(ids, t * r->k + q);
        if (!known || !read_scores(r, &w, known, t)) {
            routing_fill(row, r, t, r->own_logit != NULL);
            read_logits(r, &w, row);
        }
        judge_row(r, &w, t);
    }
    close_weighing(&w, r);
}
