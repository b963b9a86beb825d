/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/repetition.c - a case that passed, once more under other circumstances. */
#include "repetition.h"

#include <stdlib.h>
#include <string.h>

void repetition_fail(const repetition *check, judge_state state, const char *clause,
                     const char *circumstance, const char *why)
{
    check->verdict->state = state;
    snprintf(check->verdict->clause, sizeof check->verdict->clause, "%s", clause);
    snprintf(check->verdict->reason, sizeof check->verdict->reason, "%s: %.180s",
             circumstance, why);
}

/* What it printed is told with the failure. */
static void hear(const repetition *check, const testee_reply *reply)
{
    snprintf(check->verdict->output, sizeof check->verdict->output, "%.1023s",
             reply->output);
}

/* An answer under other circumstances: the same bits, or else a passing verdict. */
bool repetition_accept(const repetition *check, const call_frame *frame,
                       const testee_reply *reply, const char *clause,
                       const char *circumstance)
{
    const testee_about *about = testee_describe(check->testee);
    judge_verdict verdict = {0};
    char digest[65];

    if (reply->outcome != TESTEE_RETURNED) {
        repetition_fail(check,
                        reply->outcome == TESTEE_CRASHED     ? JUDGE_CRASH
                        : reply->outcome == TESTEE_TIMED_OUT ? JUDGE_TIMEOUT
                                                             : JUDGE_FAIL,
                        clause, circumstance, reply->why);
        hear(check, reply);
        return false;
    }
    if (!frame_workspace_intact(frame)) {
        repetition_fail(check, JUDGE_FAIL, "A3", circumstance,
                        "wrote behind the workspace that it asked for");
        return false;
    }
    frame_digest(frame, digest);
    if (strcmp(digest, check->digest) == 0) return true;
    judge_answer(check->test, frame, reply->status, &reply->error, &about->arithmetic,
                 strcmp(about->name, "ref") == 0, &verdict);
    /* That the case can fail was shown by the first answer, taps and all. */
    if (verdict.state == JUDGE_PASS || verdict.state == JUDGE_VACUOUS) return true;

    const double seconds = check->verdict->seconds;

    *check->verdict = verdict;
    check->verdict->seconds = seconds;
    repetition_fail(
        check, verdict.state, verdict.clause[0] ? verdict.clause : clause, circumstance,
        verdict.reason[0] ? verdict.reason : "another answer than the first time");
    hear(check, reply);
    return false;
}

/* Where it declares itself deterministic, the bits are those of the first time: the same
 * call, with other poison in outputs and workspace. */
bool repetition_same_bits(const repetition *check, const call_frame *frame,
                          const char *circumstance)
{
    char digest[65];

    if (!(testee_describe(check->testee)->flags & SLM_DETERMINISTIC)) return true;
    frame_digest(frame, digest);
    if (strcmp(digest, check->digest) == 0) return true;
    repetition_fail(
        check, JUDGE_FAIL, "A2", circumstance,
        "other bits than the first time, though it declares itself deterministic: does "
        "the answer depend on what lay in an output or the workspace?");
    return false;
}

bool contents_vary(const frame_buffer *buffer)
{
    return buffer->field && !buffer->output && buffer->bytes <= 1 << 20 &&
           frame_can_turn(buffer->field);
}

/* Keep the contents of inputs (and of what is input and output). */
void contents_keep(const call_frame *frame, contents *saved)
{
    memset(saved, 0, sizeof *saved);
    for (size_t i = 0; i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];

        if (!contents_vary(buffer) &&
            !(buffer->field && buffer->field->role == SLM_ROLE_INOUT))
            continue;
        saved->bytes[i] = malloc(buffer->bytes + 1);
        if (saved->bytes[i])
            memcpy(saved->bytes[i], buffer->tensor.data, buffer->bytes);
    }
}

void contents_restore(const call_frame *frame, const contents *saved)
{
    for (size_t i = 0; i < frame->n_buffers; i++)
        if (saved->bytes[i])
            memcpy(frame->buffers[i].tensor.data, saved->bytes[i],
                   frame->buffers[i].bytes);
}

void contents_free(contents *saved)
{
    for (int i = 0; i < FRAME_MAX_BUFFERS; i++) free(saved->bytes[i]);
}
