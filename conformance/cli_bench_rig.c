/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench_rig.c - the processes of a bench, and batches of calls in them. */
#include "bench_case.h"
#include "bench_stats.h"
#include "cli_bench.h"
#include "testee_child.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The name that slmoe-host knows its timing by. */
#define TIMER "--bench"

/* A backend. The inputs of a command's calls are copied into its frame one by one, as
 * its process has one handle. */
typedef struct subject {
    const char *name;
    size_t slot;         /* in the timer                                     */
    child_testee *child; /* of a command, else NULL                          */
    call_frame frame;
    bool framed;
    unsigned char *inputs; /* [places] of all that is no weight                */
    size_t place;
} subject;

struct bench_rig {
    child_testee *timer;
    testee_options options;
    rig_work work;
    size_t n;
    subject subjects[RIG_SUBJECTS];
};

/* ---- processes ---- */

static void close_child(child_testee *child)
{
    if (!child) return;
    child_leave(child);
    if (child->arena >= 0) close(child->arena);
    free(child->name);
    free(child);
}

static child_testee *open_child(const char *name, const testee_options *options,
                                char *why)
{
    child_testee *child = calloc(1, sizeof *child);

    snprintf(why, TESTEE_WHY, "%s: out of memory or descriptors", name);
    if (!child) return NULL;
    child->name = strdup(name);
    child->options = *options;
    child->process = child->request = child->output = child->reader.fd = -1;
    child->arena = child_descriptor(memfd_create("slm-bench", MFD_CLOEXEC));
    signal(SIGPIPE, SIG_IGN);
    if (child->name && child->arena >= 0 && child_start(child, why)) return child;
    close_child(child);
    return NULL;
}

/* The answer, the caller's; NULL and why, which names `who`, when there is none of that
 * type. */
static json_t *ask(child_testee *child, const char *who, json_t *question,
                   const char *wanted, char *why)
{
    const double seconds = child->options.timeout * child->options.slow;
    json_t *answer = NULL;
    testee_reply end = {0};
    protocol_result result = PROTOCOL_END;

    snprintf(why, TESTEE_WHY, "%s: its process has ended", who);
    if (!child->pid) {
        json_decref(question);
        return NULL;
    }
    if (protocol_send(child->request, question)) {
        const double deadline = stopwatch_now() + seconds;

        while ((result = child_hear(child, deadline, &answer)) == PROTOCOL_MESSAGE) {
            const char *type = child_text(answer, "type");

            if (strcmp(type, wanted) == 0) return answer;
            if (strcmp(type, "progress") != 0) break;
            json_decref(answer);
        }
    }
    if (result == PROTOCOL_MESSAGE) {
        snprintf(why, TESTEE_WHY, "%s: %.400s", who, child_text(answer, "why"));
        json_decref(answer);
        return NULL;
    }
    if (result == PROTOCOL_END) {
        child_bury(child, NULL, NULL, &end);
        snprintf(why, TESTEE_WHY, "%s: %.120s%s%.200s", who, end.why,
                 end.output[0] ? "; it printed: " : "", end.output);
    } else {
        snprintf(why, TESTEE_WHY, "%s: no answer within %g s", who, seconds);
        child_stop(child);
    }
    return NULL;
}

/* The same, when nothing is to be read from the answer. */
static int tell(child_testee *child, json_t *question, const char *wanted, char *why)
{
    json_t *answer = ask(child, child->name, question, wanted, why);

    json_decref(answer);
    return answer != NULL;
}

static int load(bench_rig *rig, subject *one, char *why)
{
    json_t *answer;

    if (strncmp(one->name, "cmd:", 4) == 0) {
        one->child = open_child(one->name, &rig->options, why);
        return one->child != NULL;
    }
    answer = ask(rig->timer, one->name,
                 json_pack("{s:s, s:s}", "type", "load", "backend", one->name),
                 "loaded", why);
    one->slot = (size_t)json_integer_value(json_object_get(answer, "slot"));
    json_decref(answer);
    return answer != NULL;
}

bench_rig *rig_start(const char *const *backends, size_t n,
                     const testee_options *options, char *why)
{
    bench_rig *rig = calloc(1, sizeof *rig);
    int ok = rig && n <= RIG_SUBJECTS;

    snprintf(why, TESTEE_WHY, "out of memory, or more than %d backends", RIG_SUBJECTS);
    if (ok) {
        rig->options = *options;
        rig->timer = open_child(TIMER, options, why);
        ok = rig->timer != NULL;
    }
    if (ok && rig->timer->base.about.note[0])
        setenv("OPENBLAS_CORETYPE", rig->timer->base.about.note, 0);
    for (size_t i = 0; ok && i < n; i++, rig->n++) {
        rig->subjects[i].name = backends[i];
        ok = load(rig, &rig->subjects[i], why);
    }
    if (ok) return rig;
    rig_stop(rig);
    return NULL;
}

static void let_go(subject *one)
{
    if (one->framed) frame_free(&one->frame);
    free(one->inputs);
    one->inputs = NULL;
    one->framed = false;
    one->place = 0;
}

void rig_stop(bench_rig *rig)
{
    if (!rig) return;
    for (size_t i = 0; i < RIG_SUBJECTS; i++) {
        let_go(&rig->subjects[i]);
        close_child(rig->subjects[i].child);
    }
    close_child(rig->timer);
    free(rig);
}

const char *rig_name(const bench_rig *rig, size_t index)
{
    const subject *one = &rig->subjects[index];

    return one->child ? one->child->base.about.name : one->name;
}

/* ---- the timer ---- */

int rig_roof(bench_rig *rig, size_t threads, double largest, bench_roof *out, char *why)
{
    json_t *answer = ask(rig->timer, "the roof",
                         json_pack("{s:s, s:I, s:f}", "type", "roof", "threads",
                                   (json_int_t)threads, "largest", largest),
                         "roof", why);
    const json_t *sizes = json_object_get(answer, "sizes");
    const json_t *bandwidth = json_object_get(answer, "bandwidth");

    memset(out, 0, sizeof *out);
    if (!answer) return 0;
    out->threads = threads;
    snprintf(out->kernel, sizeof out->kernel, "%s", child_text(answer, "kernel"));
    out->fma = json_number_value(json_object_get(answer, "fma"));
    out->dot = json_number_value(json_object_get(answer, "dot"));
    out->amx = json_number_value(json_object_get(answer, "amx"));
    for (size_t i = 0; i < json_array_size(sizes) && i < BENCH_SIZES; i++) {
        out->size[out->n_sizes] = json_number_value(json_array_get(sizes, i));
        out->bandwidth[out->n_sizes++] =
            json_number_value(json_array_get(bandwidth, i));
    }
    json_decref(answer);
    return 1;
}

int rig_prepare(bench_rig *rig, const rig_work *work, char *why)
{
    rig->work = *work;
    for (size_t i = 0; i < rig->n; i++) {
        subject *one = &rig->subjects[i];

        if (one->framed &&
            !tell(one->child, json_pack("{s:s}", "type", "close"), "status", why))
            return 0;
        let_go(one);
    }
    return tell(rig->timer,
                json_pack("{s:s, s:s, s:o, s:I, s:I, s:I}", "type", "work", "op",
                          slm_op_describe(work->op)->name, "config",
                          protocol_config(&work->config), "n_tokens",
                          (json_int_t)work->n_tokens, "layers",
                          (json_int_t)work->layers, "places", (json_int_t)work->places),
                "ready", why);
}

/* ---- a command ---- */

static json_t *frame_message(const char *type, const call_frame *frame)
{
    json_t *message = json_pack("{s:s}", "type", type);
    json_t *content = protocol_frame(frame);

    json_object_update(message, content);
    json_decref(content);
    return message;
}

/* Inputs that differ from place to place: all but weights. */
static int varies(const frame_buffer *buffer)
{
    size_t n;
    const slm_field *weights = slm_weight_fields(&n);

    return buffer->field && !buffer->output &&
           !(buffer->field >= weights && buffer->field < weights + n);
}

static size_t varied_bytes(const call_frame *frame)
{
    size_t bytes = 0;

    for (size_t i = 0; i < frame->n_buffers; i++)
        if (varies(&frame->buffers[i])) bytes += frame->buffers[i].bytes;
    return bytes;
}

/* Make the inputs of every place, one after the other. */
static int make_inputs(const bench_rig *rig, subject *one)
{
    const rig_work *work = &rig->work;
    const size_t bytes = varied_bytes(&one->frame);
    unsigned char *at = malloc(work->places * bytes + 1);

    one->inputs = at;
    for (size_t place = 0; at && place < work->places; place++) {
        bench_case made;

        if (!bench_case_make(&made, work->op, &work->config, work->n_tokens, 0, place))
            return 0;
        for (size_t i = 0; i < one->frame.n_buffers; i++) {
            const frame_buffer *buffer = &one->frame.buffers[i];

            if (!varies(buffer)) continue;
            bench_fill(vec_find(made.in, made.test.n_in, buffer->field->name),
                       buffer->tensor.dtype, 0, slm_tensor_count(&buffer->tensor), at);
            at += buffer->bytes;
        }
        bench_case_free(&made);
    }
    return one->inputs != NULL;
}

static void show_place(const bench_rig *rig, subject *one)
{
    const unsigned char *at =
        one->inputs + one->place % rig->work.places * varied_bytes(&one->frame);

    for (size_t i = 0; i < one->frame.n_buffers; i++) {
        const frame_buffer *buffer = &one->frame.buffers[i];

        if (!varies(buffer)) continue;
        memcpy(buffer->tensor.data, at, buffer->bytes);
        at += buffer->bytes;
    }
    one->place++;
}

/* One call; *seconds are those that its process tells, else those until its answer. */
static int call_command(const bench_rig *rig, subject *one, double *seconds, char *why)
{
    double start;
    json_t *answer;
    const json_t *told;

    show_place(rig, one);
    start = stopwatch_now();
    answer =
        ask(one->child, one->name, frame_message("call", &one->frame), "status", why);
    *seconds = stopwatch_now() - start;
    if (!answer) return 0;
    told = json_object_get(answer, "seconds");
    if (json_is_number(told)) *seconds = json_number_value(told);
    if (strcmp(child_text(answer, "status"), "SLM_OK") != 0) {
        snprintf(why, TESTEE_WHY, "%s: returned %.64s (%.200s)", one->name,
                 child_text(answer, "status"), child_text(answer, "expected"));
        json_decref(answer);
        return 0;
    }
    json_decref(answer);
    return 1;
}

static int build_frame(const bench_rig *rig, subject *one, char *why)
{
    const rig_work *work = &rig->work;
    const frame_options options = {.arena_fd = one->child->arena};
    bench_case made;

    snprintf(why, TESTEE_WHY, "%s: out of memory", one->name);
    if (!bench_case_make(&made, work->op, &work->config, work->n_tokens, 0, 0))
        return 0;
    one->framed = frame_build_as(&one->frame, &made.test, &options, why);
    bench_case_free(&made);
    if (!one->framed) return 0;
    frame_hide_taps(&one->frame, true);
    return make_inputs(rig, one);
}

static int open_command(const bench_rig *rig, subject *one, bench_rotation *rotation,
                        char *why)
{
    const slm_config *config = &rig->work.config;
    const slm_tensor *ids;
    unsigned char *seen;
    int ok;

    if (!build_frame(rig, one, why) ||
        !tell(one->child, frame_message("open", &one->frame), "status", why))
        return 0;
    ids = one->frame.info->prepared ? frame_tensor(&one->frame, "ids") : NULL;
    seen = calloc(config->n_experts + 1, 1);
    ok = seen != NULL;
    for (size_t place = 0; ok && place < rig->work.places; place++) {
        double seconds;

        ok = call_command(rig, one, &seconds, why);
        if (ok && ids)
            rotation->experts += (double)bench_count_experts(
                ids->data, slm_tensor_count(ids), seen, config->n_experts);
    }
    rotation->experts /= (double)rig->work.places;
    for (size_t i = 0; seen && i < config->n_experts; i++) rotation->reached += seen[i];
    free(seen);
    return ok;
}

/* ---- both ---- */

int rig_open(bench_rig *rig, size_t index, bench_rotation *rotation, char *why)
{
    subject *one = &rig->subjects[index];
    const int prepared = slm_op_describe(rig->work.op)->prepared;
    json_t *answer;

    *rotation =
        (bench_rotation){.layers = prepared ? rig->work.layers : rig->work.places,
                         .places = rig->work.places};
    if (one->child) return open_command(rig, one, rotation, why);
    answer = ask(rig->timer, one->name,
                 json_pack("{s:s, s:I}", "type", "open", "slot", (json_int_t)one->slot),
                 "opened", why);
    rotation->experts = json_number_value(json_object_get(answer, "experts"));
    rotation->reached = json_number_value(json_object_get(answer, "reached"));
    json_decref(answer);
    return answer != NULL;
}

static double clock_seconds(clockid_t clock)
{
    struct timespec time;

    if (clock_gettime(clock, &time)) return 0;
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double child_seconds(const child_testee *child)
{
    clockid_t clock;

    if (!child || !child->pid || clock_getcpuclockid(child->pid, &clock)) return 0;
    return clock_seconds(clock);
}

/* CPU seconds of all processes that belong to the bench. */
static double own_seconds(const bench_rig *rig)
{
    double sum = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) + child_seconds(rig->timer);

    for (size_t i = 0; i < rig->n; i++) sum += child_seconds(rig->subjects[i].child);
    return sum;
}

static int make_calls(bench_rig *rig, subject *one, size_t calls, double *seconds,
                      char *why)
{
    json_t *answer;

    *seconds = 0;
    if (one->child) {
        for (size_t i = 0; i < calls; i++) {
            double one_call;

            if (!call_command(rig, one, &one_call, why)) return 0;
            *seconds += one_call;
        }
        return 1;
    }
    answer = ask(rig->timer, one->name,
                 json_pack("{s:s, s:I, s:I}", "type", "batch", "slot",
                           (json_int_t)one->slot, "calls", (json_int_t)calls),
                 "batch", why);
    *seconds = json_number_value(json_object_get(answer, "seconds"));
    json_decref(answer);
    return answer != NULL;
}

int rig_batch(bench_rig *rig, size_t index, size_t calls, size_t threads,
              double *seconds, int *quiet, double *cores, char *why)
{
    const double busy = bench_busy_now(), own = own_seconds(rig);
    const double start = stopwatch_now();
    double wall;

    if (!make_calls(rig, &rig->subjects[index], calls, seconds, why)) return 0;
    wall = stopwatch_now() - start;
    *cores = wall > 0 ? (own_seconds(rig) - own) / wall : 0;
    *quiet =
        busy >= 0 && bench_is_quiet(bench_busy_now() - busy, own_seconds(rig) - own,
                                    wall, threads, bench_ticks());
    return 1;
}
