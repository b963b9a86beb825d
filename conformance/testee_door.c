/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee_door.c - what every way of holding a backend has in common: the
 * contract at the door, and the way from a testee to its functions. */
#include "testee_kind.h"

#include <string.h>

int testee_is_for_the_door(const vec_case *test)
{
    for (size_t i = 0; i < test->n_outcomes; i++) {
        const slm_status status = test->outcomes[i].status;

        if (status != SLM_ERR_SHAPE && status != SLM_ERR_ALIAS &&
            status != SLM_ERR_DOMAIN)
            return 0;
    }
    return 1;
}

/* ref is the contract's own implementation: with it the door itself is under test. */
int testee_owns_the_door(const testee_about *about)
{
    return (about->flags & SLM_CHECKS_ARGUMENTS) || strcmp(about->name, "ref") == 0;
}

int testee_knows_arguments(const testee_about *about, const vec_case *test,
                           char *reason)
{
    for (size_t i = 0; i < test->n_in; i++) {
        const slm_field *field = test->in[i].field;

        if (field->since <= about->abi_minor) continue;
        snprintf(reason, 256, "speaks ABI %u.%u, which has no %s", about->abi_major,
                 about->abi_minor, field->name);
        return 0;
    }
    return 1;
}

slm_status testee_door(const testee_about *about, const call_frame *frame,
                       slm_error *error)
{
    slm_status status = SLM_OK;

    if (about->flags & SLM_CHECKS_ARGUMENTS) return SLM_OK;
    if (frame->info->prepared)
        status = slm_check_weights(&frame->config, &frame->weights, error);
    if (status != SLM_OK) return status;
    return slm_check(frame->info->op, &frame->config, frame->args, error);
}

void testee_run(slm_testee *testee, call_frame *frame, testee_reply *reply)
{
    testee_reply end;

    testee_begin(testee, frame, reply);
    if (reply->outcome != TESTEE_RETURNED || reply->status != SLM_OK) return;
    testee_call(testee, frame, reply);
    testee_end(testee, frame, &end);
    if (reply->outcome == TESTEE_RETURNED && end.outcome != TESTEE_RETURNED)
        *reply = end;
}

void testee_close(slm_testee *testee)
{
    if (testee) testee->kind->close(testee);
}

const testee_about *testee_describe(const slm_testee *testee)
{
    return &testee->about;
}

int testee_offers(slm_testee *testee, const vec_case *test, char *reason)
{
    return testee->kind->offers(testee, test, reason);
}

int testee_frame(slm_testee *testee, const vec_case *test, const frame_options *layout,
                 call_frame *frame, char *why)
{
    return testee->kind->frame(testee, test, layout, frame, why);
}

void testee_begin(slm_testee *testee, call_frame *frame, testee_reply *reply)
{
    testee->kind->begin(testee, frame, reply);
}

void testee_call(slm_testee *testee, call_frame *frame, testee_reply *reply)
{
    testee->kind->call(testee, frame, TESTEE_ALONE, reply);
}

void testee_call_beside(slm_testee *testee, call_frame *frame, testee_beside beside,
                        testee_reply *reply)
{
    testee->kind->call(testee, frame, beside, reply);
}

void testee_neighbour(slm_testee *testee, call_frame *frame, bool open,
                      testee_reply *reply)
{
    testee->kind->neighbour(testee, frame, open, reply);
}

void testee_end(slm_testee *testee, call_frame *frame, testee_reply *reply)
{
    testee->kind->end(testee, frame, reply);
}
