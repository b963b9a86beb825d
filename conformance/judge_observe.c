/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_observe.c - the state of a step: observe and commit.       Q4, Q8
 *
 * Only the bins of a counted micro-batch leave any room; all else is integers and
 * bits. */
#include "trial.h"

#include <string.h>

enum { STAMP = 4 };

/* What the case gave for an output that is input, too: n integers. */
static void given_integers(const judge_trial *trial, const char *field, int64_t *out)
{
    const vec_tensor *given = vec_find(trial->test->in, trial->test->n_in, field);

    if (given) vec_values(given, out);
}

static void judge_stamp(judge_trial *trial, const int64_t *want)
{
    stage_open(trial, "stamp");
    for (size_t i = 0; i < STAMP; i++) stage_integer(trial, i, want[i]);
}

/* Every count must be the given one, or 0. */
static void judge_counts_left(judge_trial *trial, int cleared)
{
    const size_t count = slm_tensor_count(frame_tensor(trial->frame, "hist"));
    int64_t *want = stage_array(count, sizeof *want);

    if (!cleared) given_integers(trial, "hist", want);
    stage_open_under(trial, "hist", "Q8");
    for (size_t i = 0; i < count; i++) stage_integer(trial, i, want[i]);
    stage_release(want);
}

/* A micro-batch is counted in training, and when it is the next one. */
void judge_observe(judge_trial *trial)
{
    const slm_tensor *ticket = frame_tensor(trial->frame, "ticket");
    int64_t stamp[STAMP] = {0};

    given_integers(trial, "stamp", stamp);
    if (compare_integer(ticket, SLM_TICKET_MODE) != SLM_MODE_TRAINING ||
        compare_integer(ticket, SLM_TICKET_MICRO_BATCH) !=
            stamp[SLM_STAMP_MICRO_BATCHES]) {
        judge_counts_left(trial, 0);
    } else {
        judge_hist_accumulate(trial);
        stamp[SLM_STAMP_MICRO_BATCHES]++;
        stamp[SLM_STAMP_TOKENS] += (int64_t)frame_counted(trial->frame);
    }
    judge_stamp(trial, stamp);
}

/* bias must have the bits of new_bias. */
static void judge_bias_in_force(judge_trial *trial, const float *want, size_t n)
{
    char say_got[COMPARE_TEXT], say_want[COMPARE_TEXT];

    stage_open(trial, "bias");
    for (size_t j = 0; j < n; j++) {
        const float got = (float)slm_ref_get(trial->tensor, j);

        compare_say(say_got, (double)got);
        compare_say(say_want, (double)want[j]);
        stage_record_exact(trial, j, memcmp(&got, &want[j], sizeof got) == 0, say_got,
                           say_want);
    }
}

void judge_commit(judge_trial *trial)
{
    const slm_tensor *new_bias = frame_tensor(trial->frame, "new_bias");
    const size_t n = trial->frame->config.n_experts;
    float *want = stage_array(n, sizeof *want);
    int64_t stamp[STAMP] = {0};

    for (size_t j = 0; j < n; j++) want[j] = (float)slm_ref_get(new_bias, j);
    given_integers(trial, "stamp", stamp);
    stamp[SLM_STAMP_VERSION]++;
    stamp[SLM_STAMP_CHECKSUM] = slm_checksum(want, n);
    stamp[SLM_STAMP_MICRO_BATCHES] = stamp[SLM_STAMP_TOKENS] = 0;
    judge_bias_in_force(trial, want, n);
    judge_stamp(trial, stamp);
    judge_counts_left(trial, 1);
    stage_release(want);
}
