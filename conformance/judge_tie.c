/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_tie.c - strict balancing where rounding may decide.             Q2
 *
 * Strict refuses when gap <= threshold. A backend that balances with roundoff u rounds
 * both required biases, their gap (u each) and the threshold (two operations and a
 * constant), so it is off by u (|r| + |r'| + gap + 3 threshold) at most. The margin
 * below is at least twice that: it pays for the binary64 used here, too, whose roundoff
 * no declared u is below. */
#include "trial.h"

#include <math.h>
#include <stdlib.h>

/* The required biases of the m counted tokens, expert by expert: [n, m]. */
static void fill_columns(const call_frame *frame, double *column, size_t m)
{
    const slm_tensor *score = frame_tensor(frame, "score");
    const slm_tensor *bias = frame_tensor(frame, "bias");
    const size_t n = frame->config.n_experts, k = frame->config.top_k;
    float *key = stage_array(n, sizeof *key);
    int32_t *ids = stage_array(k, sizeof *ids);

    for (size_t t = 0, i = 0; t < frame->call->n_tokens; t++) {
        float alpha = 0;

        if (!frame_counts(frame, t)) continue;

        for (size_t j = 0; j < n; j++)
            key[j] = slm_ref_key((float)slm_ref_get(score, t * n + j),
                                 (float)slm_ref_get(bias, j));
        slm_ref_choose(ids, &alpha, key, n, k);
        for (size_t j = 0; j < n; j++)
            column[j * m + i] = (double)alpha - slm_ref_get(score, t * n + j);
        i++;
    }
    stage_release(ids);
    stage_release(key);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* How a column's boundary stands to the test. */
enum { UNIQUE = 1, UNDECIDED = 2, TIED = 4 };

/* Equal required biases are equal in any arithmetic. Where the file wants a result no
 * column is tied, and a gap of 0 is one that binary64 does not see. */
static int stand(const judge_trial *trial, const double *column, size_t q)
{
    const double lower = column[q - 1], upper = column[q];
    const double gap = upper - lower;
    const double threshold =
        trial->frame->config.tie_test == SLM_TIE_EQUAL ? 0 : 1e-8 + 1e-5 * fabs(upper);
    const double margin =
        4 * trial->rules.balance * (fabs(lower) + fabs(upper) + threshold);

    if (gap > threshold + margin) return UNIQUE;
    if (gap < threshold - margin) return TIED;
    return gap == 0 && trial->outcome->status == SLM_ERR_TIE ? TIED : UNDECIDED;
}

int judge_tie_is_free(const judge_trial *trial, slm_status status)
{
    const call_frame *frame = trial->frame;
    const slm_status wanted = trial->outcome->status;
    const size_t n = frame->config.n_experts, k = frame->config.top_k;
    double *column;
    size_t m;
    int seen = 0;

    if (trial->test->op != SLM_OP_qb_exact || status == wanted) return 0;
    if (frame->config.balance != SLM_BALANCE_STRICT) return 0;
    if ((status != SLM_OK && status != SLM_ERR_TIE) ||
        (wanted != SLM_OK && wanted != SLM_ERR_TIE))
        return 0;
    m = frame_counted(frame);
    if (m == 0 || k >= n || m * k % n != 0) return 0;
    column = stage_array(n * m, sizeof *column);
    fill_columns(frame, column, m);
    for (size_t j = 0; j < n; j++) {
        qsort(column + j * m, m, sizeof *column, ascending);
        seen |= stand(trial, column + j * m, m * k / n);
    }
    stage_release(column);
    return (seen & UNDECIDED) && !(seen & TIED);
}
