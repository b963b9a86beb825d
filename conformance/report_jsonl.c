/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_jsonl.c - results as JSON lines: run, result ..., end, total. */
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

static void begin(report_writer *report, const report_run *run)
{
    put(report, json_pack("{s:s, s:s, s:s, s:s, s:[i,i], s:s, s:s}", "kind", "run",
                          "backend", run->backend, "name", run->about->name, "version",
                          run->about->version, "abi", (int)run->about->abi_major,
                          (int)run->about->abi_minor, "tier", run->tier, "vectors",
                          run->vectors->sha256));
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

static void result(report_writer *report, const report_run *run, const vec_case *test,
                   const judge_verdict *verdict)
{
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:s, s:s, s:o, s:f, s:f}", "kind", "result",
        "backend", run->backend, "case", test->id, "state",
        judge_state_name(verdict->state), "clauses",
        strings(test->clauses, test->n_clauses), "op", slm_op_describe(test->op)->name,
        "provenance", vec_provenance_name(test->provenance), "stages", stages(verdict),
        "seconds", verdict->seconds, "judge_seconds", verdict->judge_seconds);

    if (verdict->forced + verdict->free + verdict->tie)
        json_object_set_new(
            line, "tokens",
            json_pack("{s:I, s:I, s:I}", "forced", (json_int_t)verdict->forced, "free",
                      (json_int_t)verdict->free, "tie", (json_int_t)verdict->tie));
    if (verdict->reason[0])
        json_object_set_new(line, "reason", json_string(verdict->reason));
    if (verdict->clause[0])
        json_object_set_new(line, "clause", json_string(verdict->clause));
    if (verdict->place[0])
        json_object_set_new(line, "finding",
                            json_pack("{s:s, s:s, s:s, s:s, s:o}", "stage",
                                      verdict->stage, "place", verdict->place, "got",
                                      verdict->got, "want", verdict->want, "multiple",
                                      number(verdict->multiple)));
    if (verdict->output[0])
        json_object_set_new(line, "output", json_string(verdict->output));
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
