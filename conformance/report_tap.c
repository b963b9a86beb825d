/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_tap.c - results as TAP; the plan comes last.
 *
 * `tap` calls itself version 14. What is written is the same in version 13, and `tap13`
 * says so, for Perl's prove, which refuses a number that it does not know. */
#include "report.h"

static void begin_version(report_writer *report, const report_run *run, int version)
{
    if (!report->started) fprintf(report->out, "TAP version %d\n", version);
    report->started = true;
    fprintf(report->out, "# %s: %s %s, tier %s\n", run->backend, run->about->name,
            run->about->version, run->tier);
}

static void begin(report_writer *report, const report_run *run)
{
    begin_version(report, run, 14);
}

static void begin_13(report_writer *report, const report_run *run)
{
    begin_version(report, run, 13);
}

/* '#' begins a directive, '\' escapes it. */
static void put_description(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '#' || *text == '\\') fputc('\\', out);
        fputc(*text == '\n' ? ' ' : *text, out);
    }
}

static void put_quoted(FILE *out, const char *key, const char *text)
{
    fprintf(out, "  %s: \"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
    }
    fputs("\"\n", out);
}

static void put_diagnosis(FILE *out, const report_run *run, const vec_case *test,
                          const judge_verdict *verdict)
{
    char again[REPORT_COMMAND];

    fprintf(out, "  ---\n  state: %s\n", judge_state_name(verdict->state));
    if (verdict->clause[0]) fprintf(out, "  clause: %s\n", verdict->clause);
    if (verdict->stage[0]) fprintf(out, "  stage: %s\n", verdict->stage);
    if (verdict->place[0]) {
        put_quoted(out, "place", verdict->place);
        put_quoted(out, "got", verdict->got);
        put_quoted(out, "want", verdict->want);
    }
    if (verdict->reason[0]) put_quoted(out, "reason", verdict->reason);
    if (verdict->nearest[0]) put_quoted(out, "nearest", verdict->nearest);
    report_again(run, test, again);
    put_quoted(out, "again", again);
    if (verdict->output[0]) put_quoted(out, "printed", verdict->output);
    fputs("  ...\n", out);
}

static void result(report_writer *report, const report_run *run, const vec_case *test,
                   const judge_verdict *verdict)
{
    FILE *out = report->out;
    const bool fine = verdict->state == JUDGE_PASS || verdict->state == JUDGE_SKIP;

    fprintf(out, "%s %zu - ", fine ? "ok" : "not ok", ++report->number);
    put_description(out, run->backend);
    fputc(' ', out);
    put_description(out, test->id);
    if (verdict->state == JUDGE_SKIP || verdict->state == JUDGE_XFAIL) {
        fputs(verdict->state == JUDGE_SKIP ? " # SKIP " : " # TODO ", out);
        put_description(out, verdict->reason);
    }
    fputc('\n', out);
    if (!fine && verdict->state != JUDGE_XFAIL) put_diagnosis(out, run, test, verdict);
}

static void end(report_writer *report, const report_run *run,
                const report_counts *counts)
{
    fprintf(report->out, "# %s: %zu passed, %zu failed, %zu skipped\n", run->backend,
            report_passed(counts), report_failed(counts), report_skipped(counts));
}

static void total(report_writer *report, const report_counts *counts)
{
    (void)counts;
    fprintf(report->out, "1..%zu\n", report->number);
}

const report_format report_tap = {"tap", begin, result, end, total};
const report_format report_tap13 = {"tap13", begin_13, result, end, total};
