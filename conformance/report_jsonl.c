/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_jsonl.c - results as JSON lines: run, result ..., end, total.
 *
 * run_file.c reads them back. A line holds what its case needs and nothing that is zero
 * or empty; what a family is about stands in its first result. */
#include "declared.h"
#include "report.h"

#include <jansson.h>
#include <math.h>

static void put(report_writer *report, json_t *line)
{
    json_dumpf(line, report->out, JSON_COMPACT | JSON_ENSURE_ASCII);
    fputc('\n', report->out);
    json_decref(line);
}

/* JSON has no infinity: a share or multiple without end is the string "inf". */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_string("inf");
}

/* Sets a member unless the text is NULL or empty. */
static void set_text(json_t *object, const char *key, const char *text)
{
    if (text && text[0]) json_object_set_new(object, key, json_string(text));
}

static void set_positive(json_t *object, const char *key, double value)
{
    if (value > 0) json_object_set_new(object, key, json_real(value));
}

/* Without the members that are zero.                                              A1 */
static json_t *arithmetic(const slm_arithmetic *declared)
{
    json_t *object = json_object(), *store = json_object();

    set_positive(object, "accumulator", declared->accumulator);
    set_positive(object, "input", declared->input);
    for (int i = 0; i < SLM_STAGE_COUNT; i++)
        set_positive(store, declared_stage((slm_stage)i), declared->store[i]);
    if (json_object_size(store)) json_object_set(object, "store", store);
    json_decref(store);
    set_positive(object, "sigmoid_ulp", declared->sigmoid_ulp);
    set_positive(object, "tanh_ulp", declared->tanh_ulp);
    set_positive(object, "tanh_abs", declared->tanh_abs);
    set_positive(object, "rsqrt_ulp", declared->rsqrt_ulp);
    set_positive(object, "balance", declared->balance);
    set_positive(object, "store_gradient", declared->store_gradient);
    set_positive(object, "store_weight_gradient", declared->store_weight_gradient);
    if (declared->flushes_subnormals)
        json_object_set_new(object, "flushes_subnormals", json_true());
    return object;
}

static json_t *levels(uint32_t mask)
{
    static const struct {
        uint32_t level;
        const char *name;
    } known[] = {{SLM_LEVEL_INFER, "infer"},
                 {SLM_LEVEL_TRAIN, "train"},
                 {SLM_LEVEL_DIST, "dist"}};
    json_t *array = json_array();

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (mask & known[i].level)
            json_array_append_new(array, json_string(known[i].name));
    return array;
}

static void begin(report_writer *report, const report_run *run)
{
    const testee_about *about = run->about;
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:[i,i], s:o, s:b, s:o, s:s, s:s}", "kind", "run",
        "format", "slm-run/1", "backend", run->backend, "name", about->name, "version",
        about->version, "abi", (int)about->abi_major, (int)about->abi_minor, "levels",
        levels(about->levels), "certifiable", !report_uncertifiable(run), "arithmetic",
        arithmetic(&about->arithmetic), "tier", run->tier, "vectors",
        run->vectors->sha256);

    set_text(line, "url", about->url);
    set_text(line, "note", about->note);
    set_text(line, "selection", run->selection);
    set_text(line, "slmoe", run->harness);
    set_text(line, "spec", run->spec);
    if (run->machine) {
        set_text(line, "date", run->machine->date);
        set_text(line, "system", run->machine->system);
        set_text(line, "cpu", run->machine->cpu);
        if (run->machine->cores > 0)
            json_object_set_new(line, "cores", json_integer(run->machine->cores));
    }
    report->family = NULL;
    put(report, line);
}

static json_t *strings(char *const *items, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++) json_array_append_new(array, json_string(items[i]));
    return array;
}

static json_t *stages(const judge_verdict *verdict)
{
    json_t *array = json_array();

    for (size_t i = 0; i < verdict->n_stages; i++) {
        const judge_stage *stage = &verdict->stages[i];

        json_array_append_new(
            array, json_pack("{s:s, s:I, s:I, s:o}", "stage", stage->name, "checked",
                             (json_int_t)stage->checked, "failed",
                             (json_int_t)stage->failed, "used", number(stage->used)));
    }
    return array;
}

/* Null answers that have a meaning for the case; NULL when none has. */
static json_t *controls(const judge_verdict *verdict)
{
    json_t *object = NULL;

    for (int i = 0; i < JUDGE_CONTROLS; i++) {
        if (verdict->controls[i] == JUDGE_NULL_NONE) continue;
        if (!object) object = json_object();
        json_object_set_new(object, judge_control_name((judge_control)i),
                            json_string(judge_null_name(verdict->controls[i])));
    }
    return object;
}

static void result(report_writer *report, const report_run *run, const vec_case *test,
                   const judge_verdict *verdict)
{
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:s, s:s, s:s, s:o, s:f, s:f}", "kind", "result",
        "backend", run->backend, "case", test->id, "state",
        judge_state_name(verdict->state), "clauses",
        strings(test->clauses, test->n_clauses), "op", slm_op_describe(test->op)->name,
        "provenance", vec_provenance_name(test->provenance), "tier",
        vec_tier_name(test->tier), "stages", stages(verdict), "seconds",
        verdict->seconds, "judge_seconds", verdict->judge_seconds);
    json_t *nulls = controls(verdict);

    set_text(line, "bits", verdict->bits);
    set_text(line, "note", test->note);
    if (test->family != report->family) set_text(line, "about", test->family->about);
    report->family = test->family;
    if (verdict->forced + verdict->free + verdict->tie)
        json_object_set_new(
            line, "tokens",
            json_pack("{s:I, s:I, s:I}", "forced", (json_int_t)verdict->forced, "free",
                      (json_int_t)verdict->free, "tie", (json_int_t)verdict->tie));
    set_text(line, "reason", verdict->reason);
    set_text(line, "clause", verdict->clause);
    if (verdict->place[0])
        json_object_set_new(line, "finding",
                            json_pack("{s:s, s:s, s:s, s:s, s:o}", "stage",
                                      verdict->stage, "place", verdict->place, "got",
                                      verdict->got, "want", verdict->want, "multiple",
                                      number(verdict->multiple)));
    set_text(line, "nearest", verdict->nearest);
    if (verdict->n_alike)
        json_object_set_new(line, "alike", json_integer((json_int_t)verdict->n_alike));
    if (nulls) json_object_set_new(line, "controls", nulls);
    set_text(line, "output", verdict->output);
    if (report_classify(verdict->state) == REPORT_FAILED) {
        char again[REPORT_COMMAND];

        report_again(run, test, again);
        set_text(line, "again", again);
    }
    put(report, line);
}

static json_t *tally(const report_counts *counts)
{
    return json_pack("{s:I, s:I, s:I, s:f}", "passed",
                     (json_int_t)report_passed(counts), "failed",
                     (json_int_t)report_failed(counts), "skipped",
                     (json_int_t)report_skipped(counts), "seconds", counts->seconds);
}

static void end(report_writer *report, const report_run *run,
                const report_counts *counts)
{
    json_t *line = tally(counts), *provenance = json_object();

    json_object_set_new(line, "kind", json_string("end"));
    json_object_set_new(line, "backend", json_string(run->backend));
    for (int i = 0; i < VEC_PROVENANCES; i++)
        json_object_set_new(provenance, vec_provenance_name((vec_provenance)i),
                            json_integer((json_int_t)counts->provenance[i]));
    json_object_set_new(line, "passed_by_provenance", provenance);
    put(report, line);
}

static void total(report_writer *report, const report_counts *counts)
{
    json_t *line = tally(counts);

    json_object_set_new(line, "kind", json_string("total"));
    put(report, line);
}

const report_format report_jsonl = {"jsonl", begin, result, end, total};
