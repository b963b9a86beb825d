/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench_rig.c - the processes of a bench, and batches of calls in them. */
#include "bench_stats.h"
#include "cli_bench_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The name that slmoe-host knows its timing by. */
#define TIMER "--bench"

/* How the note of a command begins that works on a device. */
#define ON_DEVICE "device: "

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

json_t *rig_ask(child_testee *child, const char *who, json_t *question,
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

int rig_tell(child_testee *child, json_t *question, const char *wanted, char *why)
{
    json_t *answer = rig_ask(child, child->name, question, wanted, why);

    json_decref(answer);
    return answer != NULL;
}

static int load(bench_rig *rig, subject *one, char *why)
{
    json_t *answer;

    if (strncmp(one->name, "cmd:", 4) == 0) {
        one->child = open_child(one->name, &rig->options, why);
        one->device = one->child && strncmp(one->child->base.about.note, ON_DEVICE,
                                            strlen(ON_DEVICE)) == 0;
        return one->child != NULL;
    }
    answer = rig_ask(rig->timer, one->name,
                     json_pack("{s:s, s:s}", "type", "load", "backend", one->name),
                     "loaded", why);
    one->slot = (size_t)json_integer_value(json_object_get(answer, "slot"));
    one->device = json_is_true(json_object_get(answer, "device"));
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

void rig_stop(bench_rig *rig)
{
    if (!rig) return;
    for (size_t i = 0; i < RIG_SUBJECTS; i++) {
        command_let_go(&rig->subjects[i]);
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

int rig_on_device(const bench_rig *rig, size_t index)
{
    return rig->subjects[index].device;
}

static double number(const json_t *answer, const char *key)
{
    return json_number_value(json_object_get(answer, key));
}

static void read_roof(const json_t *answer, bench_roof *out)
{
    const json_t *reading = json_object_get(answer, "read");

    snprintf(out->device, sizeof out->device, "%s", child_text(answer, "device"));
    snprintf(out->kernel, sizeof out->kernel, "%s", child_text(answer, "kernel"));
    snprintf(out->missing, sizeof out->missing, "%s", child_text(answer, "missing"));
    out->emulated = json_is_true(json_object_get(answer, "emulated"));
    out->fma = number(answer, "f32");
    out->tile = number(answer, "tile");
    out->dot = number(answer, "bf16");
    out->amx = number(answer, "amx");
    out->copy = number(answer, "copy");
    for (size_t i = 0; i < json_array_size(reading) && i < BENCH_SIZES; i++) {
        const json_t *pair = json_array_get(reading, i);

        out->size[i] = json_number_value(json_array_get(pair, 0));
        out->bandwidth[i] = json_number_value(json_array_get(pair, 1));
        out->usual[i] = json_number_value(json_array_get(pair, 2));
        out->n_sizes = i + 1;
    }
}

int rig_roof(bench_rig *rig, size_t threads, int device, double largest,
             bench_roof *out, char *why)
{
    json_t *answer =
        rig_ask(rig->timer, "the roof",
                json_pack("{s:s, s:b, s:I, s:f}", "type", "roof", "device", device,
                          "threads", (json_int_t)threads, "largest", largest),
                "roof", why);

    memset(out, 0, sizeof *out);
    out->threads = threads;
    if (!answer) return 0;
    read_roof(answer, out);
    json_decref(answer);
    return 1;
}

int rig_prepare(bench_rig *rig, const rig_work *work, char *why)
{
    rig->work = *work;
    for (size_t i = 0; i < rig->n; i++) {
        subject *one = &rig->subjects[i];

        if (one->framed &&
            !rig_tell(one->child, json_pack("{s:s}", "type", "close"), "status", why))
            return 0;
        command_let_go(one);
    }
    return rig_tell(rig->timer,
                    json_pack("{s:s, s:s, s:o, s:I, s:I, s:I}", "type", "work", "op",
                              slm_op_describe(work->op)->name, "config",
                              protocol_config(&work->config), "n_tokens",
                              (json_int_t)work->n_tokens, "layers",
                              (json_int_t)work->layers, "places",
                              (json_int_t)work->places),
                    "ready", why);
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
    if (one->child) return command_open(rig, one, rotation, why);
    answer =
        rig_ask(rig->timer, one->name,
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

            if (!command_call(rig, one, &one_call, why)) return 0;
            *seconds += one_call;
        }
        return 1;
    }
    answer = rig_ask(rig->timer, one->name,
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
    double wall, mine, all;

    if (!make_calls(rig, &rig->subjects[index], calls, seconds, why)) return 0;
    wall = stopwatch_now() - start;
    all = bench_busy_now() - busy;
    mine = own_seconds(rig) - own;
    *cores = wall > 0 ? mine / wall : 0;
    *quiet =
        busy >= 0 && (rig->subjects[index].device
                          ? bench_has_idle_cpu(all, wall, bench_cpus())
                          : bench_is_quiet(all, mine, wall, threads, bench_ticks()));
    return 1;
}

int rig_phases(bench_rig *rig, size_t index, slm_phase *list, size_t most, size_t *n,
               char *why)
{
    const subject *one = &rig->subjects[index];
    const json_t *phases;
    json_t *answer;

    *n = 0;
    if (one->child) return 1;
    answer = rig_ask(
        rig->timer, one->name,
        json_pack("{s:s, s:I}", "type", "phases", "slot", (json_int_t)one->slot),
        "phases", why);
    if (!answer) return 0;
    phases = json_object_get(answer, "list");
    for (; *n < json_array_size(phases) && *n < most; ++*n) {
        const json_t *from = json_array_get(phases, *n);
        slm_phase *to = &list[*n];

        snprintf(to->name, sizeof to->name, "%s",
                 json_string_value(json_object_get(from, "name")));
        to->seconds = number(from, "seconds");
        to->flops = number(from, "flops");
        to->bytes = number(from, "bytes");
    }
    json_decref(answer);
    return 1;
}
