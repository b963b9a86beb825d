/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_select.c - routing: the chosen experts and the cutoff.     R2, R4
 *
 * With the backend's own scores at hand its keys RN32(s + b) are known, so its ids are
 * forced. Without them each score is known up to an interval; ids are forced where the
 * intervals decide, and free where they overlap. */
#include "routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum decision { FORCED, TIE, FREE } decision;

static slm_tensor *present(const judge_trial *trial, const char *field)
{
    slm_tensor *tensor = frame_tensor(trial->frame, field);

    return tensor && tensor->rank ? tensor : NULL;
}

/* Keys of scores that are known: the given ones or the backend's own. Returns 0 when a
 * score is NaN. */
static int known_keys(routing_row *row, const routing *r, const slm_tensor *score,
                      size_t t)
{
    for (size_t j = 0; j < r->n; j++) {
        const double s = slm_ref_get(score, t * r->n + j);

        if (isnan(s)) return 0;
        row->lo[j] = row->hi[j] = slm_ref_key((float)s, r->bias[j]);
        row->radius[j] = INFINITY;
    }
    return 1;
}

/* How it is known that expert a comes before expert b. Equal logits that no rounding
 * touched make equal scores in any backend.                                       R2 */
static decision before(const routing_row *row, const float *bias, size_t a, size_t b)
{
    if (row->lo[a] > row->hi[b]) return FORCED;
    if (a > b) return FREE;
    if (row->lo[a] == row->hi[b]) return TIE;
    if (row->radius[a] == 0 && row->radius[b] == 0 && bias[a] == bias[b] &&
        arb_is_exact(row->logit + a) && arb_equal(row->logit + a, row->logit + b))
        return TIE;
    return FREE;
}

/* The one possible choice in ids, and how it is known; FREE when there are several. */
static decision decide(const routing *r, const routing_row *row, int32_t *ids)
{
    float *key = stage_array(r->n, sizeof *key);
    unsigned char *chosen = stage_array(r->n, 1);
    decision worst = FORCED;
    float cutoff;

    for (size_t j = 0; j < r->n; j++)
        key[j] = (float)(0.5 * ((double)row->lo[j] + (double)row->hi[j]));
    slm_ref_choose(ids, &cutoff, key, r->n, r->k);
    for (size_t q = 0; q < r->k; q++) chosen[ids[q]] = 1;
    for (size_t q = 0; q + 1 < r->k; q++) {
        const decision d = before(row, r->bias, (size_t)ids[q], (size_t)ids[q + 1]);

        if (d > worst) worst = d;
    }
    for (size_t j = 0; j < r->n; j++) {
        if (chosen[j]) continue;
        const decision d = before(row, r->bias, (size_t)ids[r->k - 1], j);

        if (d > worst) worst = d;
    }
    stage_release(chosen);
    stage_release(key);
    return worst;
}

/* ids are k distinct experts; else the first that is not is recorded.             R2 */
static int are_ids(routing *r, const slm_tensor *ids, size_t t)
{
    for (size_t q = 0; q < r->k; q++) {
        const int64_t id = compare_integer(ids, t * r->k + q);
        int good = id >= 0 && id < (int64_t)r->n;
        char got[COMPARE_TEXT], want[COMPARE_WANT];

        for (size_t i = 0; i < q; i++) good &= compare_integer(ids, t * r->k + i) != id;
        if (good) continue;
        snprintf(got, sizeof got, "%lld", (long long)id);
        snprintf(want, sizeof want, "distinct experts, 0 to %zu", r->n - 1);
        stage_record_exact(r->trial, t * r->k + q, 0, got, want);
        return 0;
    }
    return 1;
}

/* Several choices are possible: none may put an expert behind one that it certainly
 * beats.                                                                          R2 */
static void judge_free(routing *r, const routing_row *row, const slm_tensor *ids,
                       size_t t)
{
    unsigned char *placed = stage_array(r->n, 1);

    for (size_t q = 0; q < r->k; q++) {
        const size_t id = (size_t)compare_integer(ids, t * r->k + q);
        char got[COMPARE_TEXT] = "", want[COMPARE_WANT] = "";
        size_t better = r->n;

        placed[id] = 1;
        for (size_t j = 0; j < r->n && better == r->n; j++)
            if (!placed[j] && before(row, r->bias, j, id) != FREE) better = j;
        if (better < r->n) {
            snprintf(got, sizeof got, "%zu", id);
            snprintf(want, sizeof want, "expert %zu before it", better);
        }
        stage_record_exact(r->trial, t * r->k + q, better == r->n, got, want);
    }
    stage_release(placed);
}

/* The file's ids where it gives them, else the ones that are known. `by_file`: the
 * inputs alone force the choice. */
static void judge_forced(routing *r, const int32_t *ids, size_t t, int by_file)
{
    for (size_t q = 0; q < r->k; q++) {
        const size_t i = t * r->k + q;
        int64_t want = ids[q];

        if (by_file && compare_is_fixed(r->trial->golden, i)) {
            const slm_tensor view = compare_golden_view(r->trial->golden);

            want = compare_integer(&view, i);
        }
        stage_integer(r->trial, i, want);
    }
}

static void count_decision(judge_verdict *verdict, decision how)
{
    if (how == FORCED) verdict->forced++;
    if (how == TIE) verdict->tie++;
    if (how == FREE) verdict->free++;
}

/* Whether the inputs alone force the row's choice. */
static int inputs_force(const routing *r, routing_row *row, size_t t)
{
    int32_t *ids = stage_array(r->k, sizeof *ids);
    int forced = 1;

    if (!r->given) {
        routing_fill(row, r, t, 0);
        forced = decide(r, row, ids) != FREE;
    }
    stage_release(ids);
    return forced;
}

/* Bring the row to what is known of the backend's keys. Returns 0 when nothing is. */
static int know_row(const routing *r, routing_row *row, size_t t)
{
    if (r->given) return known_keys(row, r, r->given, t);
    if (r->own_score) return known_keys(row, r, r->own_score, t);
    routing_fill(row, r, t, r->own_logit != NULL);
    for (size_t j = 0; j < r->n; j++)
        if (isnan(row->lo[j]) || isnan(row->hi[j])) return 0;
    return 1;
}

static void judge_ids(routing *r, routing_row *row)
{
    const slm_tensor *ids = frame_tensor(r->trial->frame, "ids");
    int32_t *want = stage_array(r->k, sizeof *want);

    stage_open(r->trial, "ids");
    for (size_t t = 0; t < r->n_tokens; t++) {
        if (!are_ids(r, ids, t)) {
            r->trial->rows[t] = ROW_LOST;
            continue;
        }
        if (r->trial->rows[t] != ROW_SOUND) continue;

        const int by_file = inputs_force(r, row, t);

        if (!know_row(r, row, t)) continue;

        const decision how = decide(r, row, want);

        count_decision(r->trial->verdict, how);
        if (how == FREE)
            judge_free(r, row, ids, t);
        else
            judge_forced(r, want, t, by_file);
    }
    stage_release(want);
}

static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

/* The (k + 1)-th largest key lies between the (k + 1)-th largest lower and upper ends:
 * an order statistic grows with every value.                                      R2 */
static void judge_cutoff(routing *r, routing_row *row)
{
    const slm_tensor *cutoff = stage_written(r->trial, "cutoff");

    if (!cutoff || r->k == r->n) return;
    stage_open(r->trial, "cutoff");
    for (size_t t = 0; t < r->n_tokens; t++) {
        char say_got[COMPARE_TEXT], say_want[COMPARE_WANT];
        const double got = slm_ref_get(cutoff, t);

        if (r->trial->rows[t] != ROW_SOUND || !know_row(r, row, t)) continue;
        qsort(row->lo, r->n, sizeof *row->lo, descending);
        qsort(row->hi, r->n, sizeof *row->hi, descending);

        const double lo = (double)row->lo[r->k], hi = (double)row->hi[r->k];

        if (lo == hi) {
            stage_exact(r->trial, t, lo);
            continue;
        }
        compare_say(say_got, got);
        snprintf(say_want, sizeof say_want, "%a to %a", lo, hi);
        stage_record_exact(r->trial, t, got >= lo && got <= hi, say_got, say_want);
    }
}

/* ---- the whole ---- */

static void open_routing(routing *r, judge_trial *trial)
{
    const slm_tensor *bias = frame_tensor(trial->frame, "bias");

    *r = (routing){.trial = trial,
                   .config = &trial->frame->config,
                   .n_tokens = trial->frame->call->n_tokens,
                   .n = trial->frame->config.n_experts,
                   .k = trial->frame->config.top_k};
    if (trial->test->op == SLM_OP_select) {
        r->given = present(trial, "score");
    } else {
        r->own_logit = stage_written(trial, "logit");
        r->own_score = stage_written(trial, "score");
    }
    r->bias = stage_array(r->n, sizeof *r->bias);
    r->radius = stage_array(r->n_tokens * r->n, sizeof *r->radius);
    r->logit = _arb_vec_init((slong)(r->n_tokens * r->n));
    for (size_t j = 0; bias && j < r->n; j++) r->bias[j] = (float)slm_ref_get(bias, j);
}

static void open_row(routing_row *row, size_t n)
{
    row->logit = _arb_vec_init((slong)n);
    row->score = _arb_vec_init((slong)n);
    row->radius = stage_array(n, sizeof *row->radius);
    row->score_range = stage_array(n, sizeof *row->score_range);
    row->lo = stage_array(n, sizeof *row->lo);
    row->hi = stage_array(n, sizeof *row->hi);
}

static void close_routing(routing *r, routing_row *row)
{
    stage_release(row->hi);
    stage_release(row->lo);
    stage_release(row->score_range);
    stage_release(row->radius);
    _arb_vec_clear(row->score, (slong)r->n);
    _arb_vec_clear(row->logit, (slong)r->n);
    _arb_vec_clear(r->logit, (slong)(r->n_tokens * r->n));
    stage_release(r->radius);
    stage_release(r->bias);
}

void judge_routing(judge_trial *trial)
{
    routing r;
    routing_row row;

    if (trial->frame->call->n_tokens == 0) return;
    open_routing(&r, trial);
    open_row(&row, r.n);
    if (trial->test->op == SLM_OP_select)
        routing_given(&r, present(trial, "logit"));
    else
        routing_real_logits(&r, present(trial, "x"), present(trial, "w_router"));
    judge_logits(&r);
    judge_scores(&r, &row);
    judge_ids(&r, &row);
    judge_cutoff(&r, &row);
    judge_weights(&r, &row);
    close_routing(&r, &row);
}

void judge_recomputed_routing(judge_trial *trial)
{
    routing r;
    routing_row row;

    if (!stage_written(trial, "logit") && !stage_written(trial, "weight")) return;
    open_routing(&r, trial);
    open_row(&row, r.n);
    routing_real_logits(&r, present(trial, "x"), present(trial, "w_router"));
    judge_logits(&r);
    if (stage_written(trial, "weight")) judge_weights(&r, &row);
    close_routing(&r, &row);
}
