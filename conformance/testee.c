/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee.c - a backend under test in a process of its own: questions. */
#include "testee_child.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Memory that a call may keep after close before it counts as a leak. */
static const size_t LEAK_LIMIT = (size_t)256 << 20;

/* More workspace than this no operation needs. */
static const size_t WORKSPACE_LIMIT = (size_t)1 << 40;

/* What the machine has, for the guards write to every page of it. */
static size_t workspace_limit(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const size_t limit =
        pages > 0 && page > 0 ? (size_t)pages * (size_t)page : WORKSPACE_LIMIT;

    return limit < WORKSPACE_LIMIT ? limit : WORKSPACE_LIMIT;
}

/* The next message that is neither progress nor the last word on a fault. */
static protocol_result listen_for(child_testee *testee, const call_frame *frame,
                                  double deadline, json_t **fault, json_t **message)
{
    protocol_result result;

    while ((result = child_hear(testee, deadline, message)) == PROTOCOL_MESSAGE) {
        const char *type = child_text(*message, "type");

        if (strcmp(type, "fault") == 0) {
            json_decref(*fault);
            *fault = *message;
        } else if (strcmp(type, "progress") == 0) {
            if (frame && frame->call->progress)
                frame->call->progress(
                    frame->call->progress_user,
                    (size_t)json_integer_value(json_object_get(*message, "done")),
                    (size_t)json_integer_value(json_object_get(*message, "total")));
            json_decref(*message);
        } else {
            break;
        }
    }
    return result;
}

/* There is no answer: fill the reply and clear the child away. */
static void give_up(child_testee *testee, const call_frame *frame,
                    protocol_result result, const json_t *fault, const json_t *message,
                    testee_reply *reply)
{
    if (result == PROTOCOL_END || (result == PROTOCOL_LATE && fault)) {
        child_bury(testee, frame, fault, reply);
        return;
    }
    reply->outcome = result == PROTOCOL_LATE ? TESTEE_TIMED_OUT : TESTEE_BROKEN;
    if (result == PROTOCOL_LATE)
        snprintf(reply->why, sizeof reply->why, "no answer within %g s",
                 testee->options.timeout * testee->options.slow);
    else if (result == PROTOCOL_GARBAGE)
        snprintf(reply->why, sizeof reply->why, "its reply is not a line of JSON");
    else
        snprintf(reply->why, sizeof reply->why,
                 "its reply is out of place: %.100s %.200s",
                 child_text(message, "type"), child_text(message, "why"));
    child_output(testee, reply);
    child_stop(testee);
}

/* One question, one answer of the wanted type, all within the time of a call. Returns
 * the answer, the caller's, or NULL with the reply filled and the child cleared away. */
static json_t *ask(child_testee *testee, call_frame *frame, json_t *question,
                   const char *wanted, testee_reply *reply)
{
    const double timeout = testee->options.timeout * testee->options.slow;
    json_t *fault = NULL, *message = NULL;
    protocol_result result;

    if (!testee->pid) {
        json_decref(question);
        reply->outcome = TESTEE_CRASHED;
        snprintf(reply->why, sizeof reply->why, "its process has ended");
        return NULL;
    }
    /* Nothing may lie there before the question, least of all an answer. */
    result = listen_for(testee, frame, 0, &fault, &message);
    if (result == PROTOCOL_LATE) {
        if (protocol_send(testee->request, question))
            result =
                listen_for(testee, frame, stopwatch_now() + timeout, &fault, &message);
        else
            result = PROTOCOL_END;
        if (result == PROTOCOL_MESSAGE &&
            strcmp(child_text(message, "type"), wanted) == 0) {
            json_decref(fault);
            child_output(testee, reply);
            return message;
        }
    } else {
        json_decref(question);
    }
    give_up(testee, frame, result, fault, message, reply);
    json_decref(fault);
    json_decref(message);
    return NULL;
}

static void read_status(const json_t *message, testee_reply *reply)
{
    reply->status = protocol_status(child_text(message, "status"));
    if (reply->status == SLM_STATUS_COUNT) {
        reply->outcome = TESTEE_BROKEN;
        snprintf(reply->why, sizeof reply->why,
                 "returned a status that slm_status does not have: %.100s",
                 child_text(message, "status"));
        return;
    }
    slm_fail(&reply->error, reply->status, child_text(message, "op"),
             child_text(message, "field"),
             (size_t)json_integer_value(json_object_get(message, "index")), "%s",
             child_text(message, "expected"));
    reply->seconds = json_number_value(json_object_get(message, "seconds"));
}

/* What a call did beside its work. */
static void read_conduct(const json_t *message, testee_reply *reply)
{
    const char *broken = child_text(message, "broken");

    if (reply->outcome != TESTEE_RETURNED) return;
    if (!broken[0] && json_is_true(json_object_get(message, "environment")))
        broken = TESTEE_ENVIRONMENT;
    if (!broken[0]) return;
    reply->outcome = TESTEE_BROKEN;
    snprintf(reply->why, sizeof reply->why, "%s", broken);
}

static json_t *request(const char *type, const vec_case *test)
{
    return json_pack("{s:s, s:s, s:o, s:I, s:I}", "type", type, "op",
                     slm_op_describe(test->op)->name, "config",
                     protocol_config(&test->config), "n_tokens",
                     (json_int_t)test->call.n_tokens, "n_parts",
                     (json_int_t)test->call.n_parts);
}

static json_t *frame_request(const char *type, const call_frame *frame)
{
    json_t *message = json_pack("{s:s}", "type", type);
    json_t *content = protocol_frame(frame);

    json_object_update(message, content);
    json_decref(content);
    return message;
}

/* Start what has ended. What goes wrong before begin() is kept for it. */
static int is_running(child_testee *testee)
{
    if (testee->pid) return 1;
    memset(&testee->loss, 0, sizeof testee->loss);
    testee->loss.outcome = TESTEE_CRASHED;
    testee->lost = !child_start(testee, testee->loss.why);
    return !testee->lost;
}

/* A reply came, and it is none: the case has its verdict. */
static void lose(child_testee *testee, const char *why)
{
    memset(&testee->loss, 0, sizeof testee->loss);
    testee->lost = true;
    testee->loss.outcome = TESTEE_BROKEN;
    snprintf(testee->loss.why, sizeof testee->loss.why, "%s", why);
    child_output(testee, &testee->loss);
    child_stop(testee);
}

static int child_offers(slm_testee *base, const vec_case *test, char *reason)
{
    child_testee *testee = (child_testee *)base;
    const slm_op_info *info = slm_op_describe(test->op);
    json_t *message;
    int offered;

    testee->lost = false;
    reason[0] = '\0';
    if (testee_is_for_the_door(test) && !testee_owns_the_door(&testee->base.about))
        snprintf(reason, 256, "arguments are checked at the door for this backend");
    else if (!(testee->base.about.offered & 1u << test->op))
        snprintf(reason, 256, "the backend has no `%s`", info->name);
    else if (!(testee->base.about.levels & info->level))
        snprintf(reason, 256, "the backend does not claim the level of `%s`",
                 info->name);
    else
        testee_knows_arguments(&testee->base.about, test, reason);
    if (reason[0]) return 0;
    if (!is_running(testee)) return 1;
    memset(&testee->loss, 0, sizeof testee->loss);
    testee->n_printed = 0;
    message = ask(testee, NULL, request("supports", test), "supports", &testee->loss);
    testee->lost = !message;
    if (!message) return 1;
    if (!json_is_boolean(json_object_get(message, "offered"))) {
        json_decref(message);
        lose(testee, "its reply to supports lacks `offered`, which is true or false");
        return 1;
    }
    offered = json_is_true(json_object_get(message, "offered"));
    snprintf(reason, 256, "%s",
             offered || child_text(message, "reason")[0]
                 ? child_text(message, "reason")
                 : "the backend gave no reason");
    json_decref(message);
    return offered;
}

/* Bytes of workspace that the backend asks for. */
static size_t ask_workspace(child_testee *testee, const vec_case *test)
{
    testee_reply *loss = &testee->loss;
    char why[128];
    json_t *message;
    size_t bytes;

    memset(loss, 0, sizeof *loss);
    message = ask(testee, NULL, request("workspace", test), "workspace", loss);
    testee->lost = !message;
    if (!message) return 0;
    if (!json_is_integer(json_object_get(message, "bytes"))) {
        json_decref(message);
        lose(testee, "its reply to workspace lacks `bytes`, which is an integer");
        return 0;
    }
    bytes = (size_t)json_integer_value(json_object_get(message, "bytes"));
    json_decref(message);
    if (bytes <= workspace_limit()) return bytes;
    snprintf(why, sizeof why,
             "asks for %zu bytes of workspace; this machine can give %zu", bytes,
             workspace_limit());
    lose(testee, why);
    return 0;
}

static int child_frame(slm_testee *base, const vec_case *test,
                       const frame_options *layout, call_frame *frame, char *why)
{
    child_testee *testee = (child_testee *)base;
    frame_options options = layout ? *layout : (frame_options){0};
    size_t workspace = 0;

    if (!testee->lost && !testee_is_for_the_door(test) && is_running(testee))
        workspace = ask_workspace(testee, test);
    options.golden = false;
    options.workspace_size = workspace;
    options.arena_fd = testee->arena;
    return frame_build_as(frame, test, &options, why);
}

static size_t resident_pages(pid_t pid)
{
    char path[64];
    size_t size = 0, resident = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    file = fopen(path, "re");
    if (!file) return 0;
    if (fscanf(file, "%zu %zu", &size, &resident) != 2) resident = 0;
    fclose(file);
    return resident;
}

static void child_begin(slm_testee *base, call_frame *frame, testee_reply *reply)
{
    child_testee *testee = (child_testee *)base;
    json_t *message;

    memset(reply, 0, sizeof *reply);
    if (testee->lost || !is_running(testee)) {
        *reply = testee->loss;
        testee->lost = false;
        return;
    }
    reply->status = testee_door(&testee->base.about, frame, &reply->error);
    if (reply->status != SLM_OK) return;
    testee->resident = resident_pages(testee->pid);
    message = ask(testee, frame, frame_request("open", frame), "status", reply);
    if (message) read_status(message, reply);
    testee->open = message && reply->status == SLM_OK;
    json_decref(message);
}

static void child_call(slm_testee *base, call_frame *frame, testee_beside beside,
                       testee_reply *reply)
{
    static const char *const words[] = {NULL, "before", "during"};
    child_testee *testee = (child_testee *)base;
    json_t *message;

    memset(reply, 0, sizeof *reply);
    reply->status = testee_door(&testee->base.about, frame, &reply->error);
    if (reply->status != SLM_OK) return;
    message = frame_request("call", frame);
    if (words[beside])
        json_object_set_new(message, "neighbour", json_string(words[beside]));
    message = ask(testee, frame, message, "status", reply);
    if (!message) return;
    read_status(message, reply);
    read_conduct(message, reply);
    json_decref(message);
}

static void child_end(slm_testee *base, call_frame *frame, testee_reply *reply)
{
    child_testee *testee = (child_testee *)base;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    json_t *message;
    size_t resident, kept;

    memset(reply, 0, sizeof *reply);
    if (!testee->open) return;
    testee->open = false;
    message = ask(testee, frame, json_pack("{s:s}", "type", "close"), "status", reply);
    if (!message) return;
    json_decref(message);
    resident = resident_pages(testee->pid);
    kept = resident > testee->resident ? (resident - testee->resident) * page : 0;
    if (kept > LEAK_LIMIT) {
        reply->outcome = TESTEE_BROKEN;
        snprintf(reply->why, sizeof reply->why,
                 "kept %zu MiB of memory after close(): a leak", kept >> 20);
        child_stop(testee);
    }
}

static void child_neighbour(slm_testee *base, call_frame *frame, bool open,
                            testee_reply *reply)
{
    child_testee *testee = (child_testee *)base;
    json_t *message = frame_request(open ? "open" : "close", frame);

    memset(reply, 0, sizeof *reply);
    json_object_set_new(message, "neighbour", json_true());
    message = ask(testee, frame, message, "status", reply);
    if (message) read_status(message, reply);
    json_decref(message);
}

static void child_close(slm_testee *base)
{
    child_testee *testee = (child_testee *)base;

    child_leave(testee);
    if (testee->arena >= 0) close(testee->arena);
    free(testee->name);
    free(testee);
}

static const testee_kind child_kind = {child_close,    child_offers, child_frame,
                                       child_begin,    child_call,   child_end,
                                       child_neighbour};

slm_testee *testee_open(const char *name, const testee_options *options, char *why)
{
    child_testee *testee = calloc(1, sizeof *testee);

    snprintf(why, TESTEE_WHY, "%s: out of memory or descriptors", name);
    if (!testee) return NULL;
    testee->base.kind = &child_kind;
    testee->name = strdup(name);
    testee->options = *options;
    testee->process = testee->request = testee->output = testee->reader.fd = -1;
    testee->arena = child_descriptor(memfd_create("slm-arena", MFD_CLOEXEC));
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* an arena longer than a file may be: EFBIG */
    if (testee->name && testee->arena >= 0 && child_start(testee, why))
        return &testee->base;
    child_close(&testee->base);
    return NULL;
}
