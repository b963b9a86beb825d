/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee_end.c - how the process of a backend ended, in words. */
#include "testee_child.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In whose guard a fault lies. */
static void describe_fault(const json_t *fault, const call_frame *frame, char *out,
                           size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const json_int_t offset = json_integer_value(json_object_get(fault, "offset"));
    const json_t *write = json_object_get(fault, "write");
    const char *access = json_is_true(write)    ? "wrote"
                         : json_is_false(write) ? "read"
                                                : "touched";

    snprintf(out, size, ": %s outside of every argument", access);
    for (size_t i = 0; frame && offset >= 0 && i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];
        const char *name = buffer->field ? buffer->field->name : "the workspace";
        const size_t at = (size_t)offset, end = buffer->offset + buffer->bytes;

        if (at >= end && at < buffer->span_offset + buffer->span + page)
            snprintf(out, size, ": %s %zu bytes past the end of %s", access, at - end,
                     name);
        else if (at < buffer->span_offset && at + page >= buffer->span_offset)
            snprintf(out, size, ": %s %zu bytes before %s", access, buffer->offset - at,
                     name);
        else if (at >= buffer->offset && at < end)
            snprintf(out, size, ": %s into %s, which is an input", access, name);
        else
            continue;
        return;
    }
}

/* Wait up to two seconds for the end. The process stays unreaped, so that its group
 * keeps its number until child_stop() has ended the rest of it. */
static int has_ended(const child_testee *testee, siginfo_t *info)
{
    for (int i = 0; i < 2000; i++) {
        info->si_pid = 0;
        if (waitid(P_PID, (id_t)testee->pid, info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info->si_pid)
            return 1;
        usleep(1000);
    }
    return 0;
}

void child_bury(child_testee *testee, const call_frame *frame, const json_t *fault,
                testee_reply *reply)
{
    char place[256] = "";
    siginfo_t info = {0};

    reply->outcome = TESTEE_CRASHED;
    if (fault) describe_fault(fault, frame, place, sizeof place);
    if (!has_ended(testee, &info))
        snprintf(reply->why, sizeof reply->why,
                 fault ? "hung after a fault%s" : "closed its reply descriptor%s",
                 place);
    else if (info.si_code == CLD_EXITED)
        snprintf(reply->why, sizeof reply->why, "exited with %d instead of an answer%s",
                 info.si_status, place);
    else
        snprintf(reply->why, sizeof reply->why, "died of signal %d (%s)%s",
                 info.si_status, strsignal(info.si_status), place);
    child_output(testee, reply);
    child_stop(testee);
}
