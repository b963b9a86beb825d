/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_hist.c - balancing: cumulative counts of required biases. Q3, Q5 */
#include "trial.h"

#include <string.h>

/* How many required biases of an expert must, and may, lie in bins 0..t-1, for every
 * edge t of 1..B-1. */
typedef struct counting {
    size_t bins;
    fmpq_t lo, hi;
    fmpq_t delta;
    int64_t *least; /* [B + 1] first as differences, then summed */
    int64_t *most;  /* [B + 1]                                   */
    int64_t *edge;  /* [B + 1] r that are this very edge         */
} counting;

static void set_rational(fmpq_t out, double value)
{
    arf_t exact;

    arf_init(exact);
    arf_set_d(exact, value);
    arf_get_fmpq(out, exact);
    arf_clear(exact);
}

/* The edge that r is, 1..B-1, or 0. */
static size_t edge_of(const counting *c, const fmpq_t r, size_t bin)
{
    fmpq_t edge, width;

    if (bin == 0) return 0;
    fmpq_init(edge);
    fmpq_init(width);
    fmpq_sub(width, c->hi, c->lo);
    fmpq_set_si(edge, (slong)bin, c->bins);
    fmpq_mul(edge, edge, width);
    fmpq_add(edge, edge, c->lo);

    const int is = fmpq_equal(edge, r);

    fmpq_clear(width);
    fmpq_clear(edge);
    return is ? bin : 0;
}

/* An r counts below edge t for certain when r < e_t - delta, that is from the edge
 * after the bin of r + delta; perhaps when r < e_t + delta; never when it is e_t.
 *                                                                                 Q3 */
static void count_one(counting *c, const fmpq_t r)
{
    fmpq_t moved;

    fmpq_init(moved);
    fmpq_add(moved, r, c->delta);
    c->least[slm_ref_hist_bin(moved, c->lo, c->hi, c->bins) + 1]++;
    fmpq_sub(moved, r, c->delta);
    c->most[slm_ref_hist_bin(moved, c->lo, c->hi, c->bins) + 1]++;
    c->edge[edge_of(c, r, slm_ref_hist_bin(r, c->lo, c->hi, c->bins))]++;
    fmpq_clear(moved);
}

static void count_expert(counting *c, const judge_trial *trial, const float *alpha,
                         size_t j)
{
    const slm_tensor *score = frame_tensor(trial->frame, "score");
    const size_t n = trial->frame->config.n_experts;
    fmpq_t r, s;

    fmpq_init(r);
    fmpq_init(s);
    memset(c->least, 0, (c->bins + 1) * sizeof *c->least);
    memset(c->most, 0, (c->bins + 1) * sizeof *c->most);
    memset(c->edge, 0, (c->bins + 1) * sizeof *c->edge);
    for (size_t i = 0; i < trial->frame->call->n_tokens; i++) {
        if (!frame_counts(trial->frame, i)) continue;
        set_rational(r, (double)alpha[i]);
        set_rational(s, slm_ref_get(score, i * n + j));
        fmpq_sub(r, r, s);
        count_one(c, r);
    }
    fmpq_clear(s);
    fmpq_clear(r);
}

/* Counts that were added to the input's, compared with what they may be. */
static void judge_counts_of(judge_trial *trial, const counting *c,
                            const int64_t *before, size_t j)
{
    const int64_t m = (int64_t)frame_counted(trial->frame);
    int64_t sum = 0, least = 0, most = 0;
    char got[COMPARE_TEXT], want[COMPARE_WANT];

    for (size_t t = 1; t <= c->bins; t++) {
        const size_t at = j * c->bins + t - 1;
        const int64_t added = compare_integer(trial->tensor, at) - before[at];
        int good = added >= 0 && added <= m;

        if (good) sum += added;
        least += t < c->bins ? c->least[t] : 0;
        most += t < c->bins ? c->most[t] : 0;
        if (t == c->bins)
            good &= sum == m;
        else
            good &= sum >= least && sum <= most - c->edge[t];
        snprintf(got, sizeof got, "%lld added up to here", (long long)sum);
        snprintf(want, sizeof want, "%lld to %lld",
                 (long long)(t == c->bins ? m : least),
                 (long long)(t == c->bins ? m : most - c->edge[t]));
        stage_record_exact(trial, at, good, got, want);
    }
}

/* The cutoffs of the counted tokens, exact: score and bias are inputs.                     Q1 */
static void batch_cutoffs(const judge_trial *trial, float *alpha, float *bias)
{
    const size_t n = trial->frame->config.n_experts, k = trial->frame->config.top_k;
    const slm_tensor *score = frame_tensor(trial->frame, "score");
    float *key = stage_array(n, sizeof *key);
    int32_t *ids = stage_array(k, sizeof *ids);

    for (size_t j = 0; j < n; j++)
        bias[j] = (float)slm_ref_get(frame_tensor(trial->frame, "bias"), j);
    for (size_t i = 0; i < trial->frame->call->n_tokens; i++) {
        if (!frame_counts(trial->frame, i)) continue;
        for (size_t j = 0; j < n; j++)
            key[j] = slm_ref_key((float)slm_ref_get(score, i * n + j), bias[j]);
        slm_ref_choose(ids, &alpha[i], key, n, k);
    }
    stage_release(ids);
    stage_release(key);
}

static void open_counting(counting *c, const judge_trial *trial, const float *bias)
{
    const size_t bins = trial->frame->config.n_bins;
    double lo, hi;

    c->bins = bins;
    fmpq_init(c->lo);
    fmpq_init(c->hi);
    fmpq_init(c->delta);
    slm_ref_hist_range(c->lo, c->hi, bias, trial->frame->config.n_experts);
    lo = slm_ref_f64_q(c->lo);
    hi = slm_ref_f64_q(c->hi);
    set_rational(c->delta, bound_hist_edge(&trial->rules, lo, hi));
    c->least = stage_array(bins + 1, sizeof *c->least);
    c->most = stage_array(bins + 1, sizeof *c->most);
    c->edge = stage_array(bins + 1, sizeof *c->edge);
}

static void close_counting(counting *c)
{
    stage_release(c->edge);
    stage_release(c->most);
    stage_release(c->least);
    fmpq_clear(c->delta);
    fmpq_clear(c->hi);
    fmpq_clear(c->lo);
}

void judge_hist_accumulate(judge_trial *trial)
{
    const size_t n = trial->frame->config.n_experts;
    const vec_tensor *given = vec_find(trial->test->in, trial->test->n_in, "hist");
    float *alpha = stage_array(trial->frame->call->n_tokens, sizeof *alpha);
    float *bias = stage_array(n, sizeof *bias);
    int64_t *before = stage_array(n * trial->frame->config.n_bins, sizeof *before);
    counting c;

    if (given) vec_values(given, before);
    batch_cutoffs(trial, alpha, bias);
    open_counting(&c, trial, bias);
    stage_open(trial, "hist");
    for (size_t j = 0; j < n; j++) {
        count_expert(&c, trial, alpha, j);
        judge_counts_of(trial, &c, before, j);
    }
    close_counting(&c);
    stage_release(before);
    stage_release(bias);
    stage_release(alpha);
}
