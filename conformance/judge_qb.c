/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_qb.c - balancing, permute, load metrics, against live ref's outputs.
 *                                                         L5, Q1, Q3, Q5, Q6, Q7, C1 */
#include "golden.h"
#include "trial.h"

#include <math.h>
#include <string.h>

/* The case as ref answers it: outputs are golden. Balancing is relaxed, because whether
 * to refuse was for the file to say. */
typedef struct live_case {
    vec_case test;
    call_frame frame;
} live_case;

static int open_live(live_case *live, judge_trial *trial)
{
    slm_status status = SLM_OK;
    slm_error error;
    char why[256] = "";

    live->test = *trial->test;
    live->test.config.balance = SLM_BALANCE_RELAXED;
    if (!golden_run(&live->test, &live->frame, NULL, NULL, &status, &error, why)) {
        trial->verdict->state = JUDGE_ERROR;
        snprintf(trial->verdict->reason, sizeof trial->verdict->reason, "%s", why);
        return 0;
    }
    if (status == SLM_OK) return 1;
    trial->verdict->state = JUDGE_ERROR;
    snprintf(trial->verdict->reason, sizeof trial->verdict->reason,
             "the vector wants a result, and ref refuses: %s, %s",
             slm_status_name(status), error.field);
    frame_free(&live->frame);
    return 0;
}

static const slm_tensor *live_tensor(const live_case *live, const char *field)
{
    return frame_tensor(&live->frame, field);
}

/* Every element must be the file's integer, or live ref's where the file has none. */
static void judge_integers(judge_trial *trial, const live_case *live, const char *field)
{
    const slm_tensor *want = live_tensor(live, field);

    stage_open(trial, field);
    for (size_t i = 0; i < slm_tensor_count(want); i++) {
        if (compare_is_fixed(trial->golden, i)) {
            const slm_tensor view = compare_golden_view(trial->golden);

            stage_integer(trial, i, compare_integer(&view, i));
        } else {
            stage_integer(trial, i, compare_integer(want, i));
        }
    }
}

/* Every element must be live ref's number; where ref keeps the bits of an input, the
 * sign of a zero counts. */
static void judge_numbers(judge_trial *trial, const live_case *live, const char *field,
                          const slm_tensor *kept)
{
    const slm_tensor *want = live_tensor(live, field);

    stage_open(trial, field);
    for (size_t i = 0; i < slm_tensor_count(want); i++) {
        const double number = slm_ref_get(want, i);
        const double got = slm_ref_get(trial->tensor, i);
        const int keeps = slm_ref_get(kept, i) == number;

        if (keeps && got == 0 && number == 0 && signbit(got) != signbit(number))
            stage_record_exact(trial, i, 0, signbit(got) ? "-0" : "+0",
                               "the bits of bias");
        else
            stage_exact(trial, i, number);
    }
}

static double largest(const slm_tensor *values)
{
    double most = 0;

    for (size_t i = 0; i < slm_tensor_count(values); i++)
        most = fmax(most, fabs(slm_ref_get(values, i)));
    return most;
}

/* The cutoffs of the counted tokens; returns the largest magnitude.             Q1, Q5 */
static double judge_cutoffs(judge_trial *trial, const live_case *live)
{
    const slm_tensor *want = live_tensor(live, "cutoff");
    const int written = stage_written(trial, "cutoff") != NULL;
    double most = 0;

    if (written) stage_open(trial, "cutoff");
    for (size_t t = 0; t < slm_tensor_count(want); t++) {
        if (!frame_counts(trial->frame, t)) continue;
        most = fmax(most, fabs(slm_ref_get(want, t)));
        if (written) stage_exact(trial, t, slm_ref_get(want, t));
    }
    return most;
}

static void judge_candidates(judge_trial *trial, const slm_tensor *candidate,
                             double scale)
{
    arb_t want;

    if (!stage_written(trial, "candidate")) return;
    arb_init(want);
    stage_open(trial, "candidate");
    for (size_t j = 0; j < slm_tensor_count(candidate); j++) {
        const double c = slm_ref_get(candidate, j);

        arb_set_d(want, c);
        stage_real(trial, j, want, bound_candidate(&trial->rules, c, scale), 1);
    }
    arb_clear(want);
}

/* The centred candidates before their one rounding, each ball as wide as the rounding
 * of ref's candidates to binary64.                                            Q1, Q3 */
static void judge_new_bias(judge_trial *trial, const slm_tensor *candidate,
                           double scale)
{
    const size_t n = slm_tensor_count(candidate);
    arb_t mean, want, c;

    arb_init(mean);
    arb_init(want);
    arb_init(c);
    stage_open(trial, "new_bias");
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t j = 0; j < n; j++) {
            const double value = slm_ref_get(candidate, j);
            double rest, bound;

            arb_set_d(c, value);
            mag_set_d(arb_radref(c), 0x1p-53 * fabs(value));
            if (pass == 0) {
                arb_add(mean, mean, c, 256);
                continue;
            }
            arb_sub(want, c, mean, 256);
            bound = bound_new_bias(&trial->rules, stage_middle(want, &rest), n, scale);
            stage_real(trial, j, want, bound, 0);
        }
        if (pass == 0) arb_div_ui(mean, mean, n, 256);
    }
    arb_clear(c);
    arb_clear(want);
    arb_clear(mean);
}

static void judge_qb_exact(judge_trial *trial, const live_case *live)
{
    const slm_tensor *candidate = live_tensor(live, "candidate");
    const double scale = largest(candidate) + judge_cutoffs(trial, live) + 1;

    judge_candidates(trial, candidate, scale);
    judge_new_bias(trial, candidate, scale);
}

/* lo and hi are at most max |b| + 1. */
static void judge_hist_solve(judge_trial *trial, const live_case *live)
{
    const slm_tensor *candidate = live_tensor(live, "candidate");
    const double scale =
        largest(candidate) + largest(frame_tensor(trial->frame, "bias")) + 1;

    judge_candidates(trial, candidate, scale);
    judge_new_bias(trial, candidate, scale);
}

/* Without tokens: bias, bit for bit.                                          Q1, Q3 */
static void judge_kept_bias(judge_trial *trial, const live_case *live)
{
    const slm_tensor *bias = frame_tensor(trial->frame, "bias");

    if (stage_written(trial, "candidate"))
        judge_numbers(trial, live, "candidate", bias);
    judge_numbers(trial, live, "new_bias", bias);
}

static void judge_load_metrics(judge_trial *trial, const live_case *live)
{
    const slm_config *config = &trial->frame->config;
    const double assigned = (double)frame_counted(trial->frame) * (double)config->top_k;
    const slm_tensor *metric = live_tensor(live, "metric");
    const double mean = assigned / (double)config->n_experts;
    const double peak = assigned > 0 ? largest(live_tensor(live, "load")) / mean : 0;
    enum { DEAD = 2 };
    arb_t want;

    arb_init(want);
    judge_integers(trial, live, "load");
    stage_open(trial, "metric");
    for (size_t i = 0; i < slm_tensor_count(metric); i++) {
        const double value = slm_ref_get(metric, i);
        const double bound =
            i == DEAD || assigned == 0
                ? 0
                : bound_metric(&trial->rules, value, peak, config->n_experts);

        arb_set_d(want, value);
        stage_real(trial, i, want, bound, bound > 0);
    }
    arb_clear(want);
}

static void judge_by_live(judge_trial *trial, const live_case *live)
{
    const int empty =
        trial->frame->call->n_tokens == 0 ||
        (trial->test->op == SLM_OP_qb_exact && frame_counted(trial->frame) == 0);

    switch (trial->test->op) {
    case SLM_OP_permute:
        judge_integers(trial, live, "counts");
        judge_integers(trial, live, "offsets");
        judge_integers(trial, live, "order");
        break;
    case SLM_OP_qb_hist_merge:
        judge_integers(trial, live, "hist");
        break;
    case SLM_OP_load_metrics:
        judge_load_metrics(trial, live);
        break;
    case SLM_OP_sign_step:
        judge_numbers(trial, live, "new_bias", frame_tensor(trial->frame, "bias"));
        break;
    case SLM_OP_qb_exact:
        empty ? judge_kept_bias(trial, live) : judge_qb_exact(trial, live);
        break;
    case SLM_OP_qb_hist_solve:
        empty ? judge_kept_bias(trial, live) : judge_hist_solve(trial, live);
        break;
    default:
        break;
    }
}

void judge_counts(judge_trial *trial)
{
    live_case live;

    switch (trial->test->op) {
    case SLM_OP_qb_hist_accumulate:
        judge_hist_accumulate(trial);
        return;
    case SLM_OP_qb_observe:
        judge_observe(trial);
        return;
    case SLM_OP_qb_commit:
        judge_commit(trial);
        return;
    default:
        break;
    }
    if (!open_live(&live, trial)) return;
    judge_by_live(trial, &live);
    frame_free(&live.frame);
}
