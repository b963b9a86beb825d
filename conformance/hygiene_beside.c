/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/hygiene_beside.c - two handles that are alive together.               A3 */
#include "hygiene_beside.h"

/* Bytes that a neighbour copies at every call. */
enum { NEIGHBOUR_LIMIT = 1 << 24 };

static bool is_small(const call_frame *frame)
{
    size_t bytes = 0;

    for (size_t i = 0; i < frame->n_buffers; i++) bytes += frame->buffers[i].bytes;
    return bytes <= NEIGHBOUR_LIMIT;
}

/* Returns false when the neighbour cannot be had, for a backend may refuse weights that
 * are not finite (R4); anything else that keeps it from opening makes *ok false. */
static bool open_neighbour(const repetition *check, call_frame *frame, bool *ok)
{
    testee_reply reply;

    testee_neighbour(check->testee, frame, true, &reply);
    if (reply.outcome == TESTEE_RETURNED &&
        (reply.status == SLM_OK || reply.status == SLM_ERR_NONFINITE))
        return reply.status == SLM_OK;
    if (reply.outcome == TESTEE_RETURNED) {
        snprintf(reply.why, sizeof reply.why, "%s: expected %.200s",
                 slm_status_name(reply.status), reply.error.expected);
        reply.outcome = TESTEE_BROKEN;
    }
    *ok = repetition_accept(check, frame, &reply, "A3", "opening a second handle");
    return false;
}

/* Returns whether all is well still. */
static bool close_neighbour(const repetition *check, call_frame *frame, bool ok)
{
    testee_reply reply;

    testee_neighbour(check->testee, frame, false, &reply);
    if (!ok || reply.outcome == TESTEE_RETURNED) return ok;
    return repetition_accept(check, frame, &reply, "A3", "closing a second handle");
}

static bool call_beside(const repetition *check, call_frame *frame,
                        const contents *saved, testee_beside beside,
                        const char *circumstance)
{
    testee_reply reply;

    contents_restore(frame, saved);
    frame_poison(frame, true);
    testee_call_beside(check->testee, frame, beside, &reply);
    return repetition_accept(check, frame, &reply, "A3", circumstance) &&
           repetition_same_bits(check, frame, circumstance);
}

static bool is_open(const testee_reply *reply)
{
    return reply->outcome == TESTEE_RETURNED && reply->status == SLM_OK;
}

/* The other one is opened second. */
static bool before_another(const repetition *check, call_frame *frame,
                           const contents *saved)
{
    testee_reply reply;
    bool ok = true;

    testee_begin(check->testee, frame, &reply);
    if (!is_open(&reply)) return true;
    if (open_neighbour(check, frame, &ok)) {
        ok = call_beside(check, frame, saved, TESTEE_AFTER_NEIGHBOUR,
                         "after a call on another handle") &&
             call_beside(check, frame, saved, TESTEE_WITH_NEIGHBOUR,
                         "while another thread calls on another handle");
        ok = close_neighbour(check, frame, ok) &&
             call_beside(check, frame, saved, TESTEE_ALONE,
                         "after another handle was closed");
    }
    testee_end(check->testee, frame, &reply);
    return ok;
}

/* The other one is opened first. */
static bool after_another(const repetition *check, call_frame *frame,
                          const contents *saved)
{
    testee_reply reply;
    bool ok = true;

    contents_restore(frame, saved);
    frame_poison(frame, true);
    if (!open_neighbour(check, frame, &ok)) return ok;
    testee_begin(check->testee, frame, &reply);
    if (is_open(&reply))
        ok = call_beside(check, frame, saved, TESTEE_ALONE,
                         "a handle that was opened after another");
    else
        ok = repetition_accept(check, frame, &reply, "A3",
                               "opening a handle beside another");
    ok = close_neighbour(check, frame, ok);
    testee_end(check->testee, frame, &reply);
    return ok;
}

bool hygiene_beside(const repetition *check)
{
    char why[TESTEE_WHY];
    call_frame frame;
    contents saved;
    bool ok = true;

    if (!testee_describe(check->testee)->neighbours ||
        !testee_frame(check->testee, check->test, NULL, &frame, why))
        return true;
    if (is_small(&frame)) {
        contents_keep(&frame, &saved);
        ok = before_another(check, &frame, &saved) &&
             after_another(check, &frame, &saved);
        contents_free(&saved);
    }
    frame_free(&frame);
    return ok;
}
