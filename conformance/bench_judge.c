/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_judge.c - a sample of a batch, judged before anything is timed. */
#include "bench_judge.h"
#include "bench_case.h"
#include "bench_cost.h"

#include <string.h>

bench_sample bench_sample_of(slm_op op, size_t n_tokens, size_t wanted)
{
    bench_sample sample = {.n_tokens = n_tokens, .judged = wanted};

    if (!bench_is_by_row(op)) {
        if (n_tokens > BENCH_WHOLE) sample.n_tokens = BENCH_WHOLE;
        sample.judged = sample.n_tokens;
    }
    if (sample.judged > n_tokens) sample.judged = n_tokens;
    return sample;
}

/* The row of sample i: the last is the batch's last, the others lie evenly before it. */
static size_t row_of(size_t i, size_t judged, size_t n_tokens)
{
    return n_tokens - 1 -
           (judged - 1 - i) * (n_tokens - 1) / (judged > 1 ? judged - 1 : 1);
}

void bench_cut(call_frame *frame, size_t judged)
{
    const size_t n_tokens = frame->call->n_tokens;

    if (judged == 0 || judged >= n_tokens) return;
    frame->call->n_tokens = judged;
    for (size_t i = 0; i < frame->n_buffers; i++) {
        frame_buffer *buffer = &frame->buffers[i];
        unsigned char *data = buffer->tensor.data;

        if (!buffer->field || buffer->field->dims[0] != 'T') continue;

        const size_t row = buffer->bytes / n_tokens;

        for (size_t j = 0; j < judged; j++)
            memmove(data + j * row, data + row_of(j, judged, n_tokens) * row, row);
        buffer->bytes = judged * row;
        buffer->tensor.shape[0] = judged;
        buffer->fingerprint = frame_fingerprint(data, buffer->bytes);
        *frame_tensor(frame, buffer->field->name) = buffer->tensor;
    }
}

static void settle(judge_verdict *verdict, judge_state state, const char *why)
{
    verdict->state = state;
    snprintf(verdict->reason, sizeof verdict->reason, "%.255s", why);
}

static void judge_reply(slm_testee *testee, bench_case *made, call_frame *frame,
                        const testee_reply *reply, size_t judged,
                        judge_verdict *verdict)
{
    const char *changed = "";
    const testee_about *about = testee_describe(testee);

    switch (reply->outcome) {
    case TESTEE_CRASHED:
        settle(verdict, JUDGE_CRASH, reply->why);
        return;
    case TESTEE_TIMED_OUT:
        settle(verdict, JUDGE_TIMEOUT, reply->why);
        return;
    case TESTEE_BROKEN:
        settle(verdict, JUDGE_FAIL, reply->why);
        return;
    case TESTEE_RETURNED:
        break;
    }
    if (!frame_inputs_intact(frame, &changed)) {
        char why[96];

        snprintf(why, sizeof why, "changed its input %.64s", changed);
        settle(verdict, JUDGE_FAIL, why);
        return;
    }
    bench_cut(frame, judged);
    made->test.call.n_tokens = frame->call->n_tokens;
    judge_answer(&made->test, frame, reply->status, &reply->error, &about->arithmetic,
                 false, verdict);
}

void bench_judge(slm_testee *testee, slm_op op, const slm_config *config,
                 const bench_sample *sample, judge_verdict *verdict)
{
    bench_case made;
    testee_reply reply;
    call_frame frame;
    char reason[256] = "";

    memset(verdict, 0, sizeof *verdict);
    if (!bench_case_make(&made, op, config, sample->n_tokens, 0, 0)) {
        settle(verdict, JUDGE_ERROR, "out of memory");
        return;
    }
    if (!testee_offers(testee, &made.test, reason)) {
        settle(verdict, JUDGE_SKIP, reason);
    } else if (!testee_frame(testee, &made.test, NULL, &frame, reply.why)) {
        settle(verdict, JUDGE_ERROR, reply.why);
    } else {
        frame_hide_taps(&frame, UINT64_MAX);
        testee_run(testee, &frame, &reply);
        frame_hide_taps(&frame, 0);
        judge_reply(testee, &made, &frame, &reply, sample->judged, verdict);
        frame_free(&frame);
    }
    bench_case_free(&made);
}
