/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_human.c - results for people. */
#include "report.h"
#include "nearest.h"

#include <math.h>
#include <string.h>

static void begin(report_writer *report, const report_run *run)
{
    if (!run->verbose) return;
    fprintf(report->out, "%s: \"%s %s\", ABI %u.%u, tier %s, vectors sha256 %.12s\n",
            run->backend, run->about->name, run->about->version, run->about->abi_major,
            run->about->abi_minor, run->tier, run->vectors->sha256);
}

/* What the backend printed, line by line behind a bar. */
static void print_output(FILE *out, const char *text)
{
    while (*text) {
        const size_t length = strcspn(text, "\n");

        fprintf(out, "      | %.*s\n", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

static void print_nearest(FILE *out, const judge_verdict *verdict)
{
    if (!verdict->nearest[0]) return;
    fprintf(out, "      looks like: %s (%s)", verdict->nearest,
            nearest_sentence(verdict->nearest));
    if (verdict->n_alike)
        fprintf(out, "; no farther: %zu more of `slmoe mutants`", verdict->n_alike);
    fputc('\n', out);
}

static void print_failure(FILE *out, const report_run *run, const vec_case *test,
                          const judge_verdict *verdict)
{
    char again[REPORT_COMMAND];

    fprintf(out, "%-7s %s  %s", judge_state_name(verdict->state), run->backend,
            test->id);
    if (verdict->clause[0]) fprintf(out, "  %s", verdict->clause);
    if (verdict->stage[0]) fprintf(out, "  stage %s", verdict->stage);
    fputc('\n', out);
    if (verdict->place[0]) {
        fprintf(out, "      %s got %s want %s", verdict->place, verdict->got,
                verdict->want);
        if (isinf(verdict->multiple))
            fputs(": outside every bound", out);
        else if (verdict->multiple > 0)
            fprintf(out, ": %.3g bounds out", verdict->multiple);
        fputc('\n', out);
    }
    if (verdict->reason[0]) fprintf(out, "      %s\n", verdict->reason);
    print_nearest(out, verdict);
    print_output(out, verdict->output);
    report_again(run, test, again);
    fprintf(out, "      again: %s\n", again);
}

static void print_stages(FILE *out, const judge_verdict *verdict)
{
    for (size_t i = 0; i < verdict->n_stages; i++)
        fprintf(out, "%s%s %.2g", i ? ", " : "  used: ", verdict->stages[i].name,
                verdict->stages[i].used);
    if (verdict->forced + verdict->free + verdict->tie)
        fprintf(out, "  tokens: %zu forced, %zu free, %zu tie", verdict->forced,
                verdict->free, verdict->tie);
}

/* "controls: zeros fails, rotated same": those with a meaning for the case. */
static void print_controls(FILE *out, const judge_verdict *verdict)
{
    const char *separator = "  controls: ";

    for (int i = 0; i < JUDGE_CONTROLS; i++) {
        if (verdict->controls[i] == JUDGE_NULL_NONE) continue;
        fprintf(out, "%s%s %s", separator, judge_control_name((judge_control)i),
                judge_null_name(verdict->controls[i]));
        separator = ", ";
    }
}

static void result(report_writer *report, const report_run *run, const vec_case *test,
                   const judge_verdict *verdict)
{
    switch (verdict->state) {
    case JUDGE_PASS:
        if (!run->verbose) return;
        fprintf(report->out, "PASS    %s  %s", run->backend, test->id);
        print_stages(report->out, verdict);
        print_controls(report->out, verdict);
        fputc('\n', report->out);
        print_output(report->out, verdict->output);
        return;
    case JUDGE_SKIP:
    case JUDGE_XFAIL:
        if (!run->verbose) return;
        fprintf(report->out, "%-7s %s  %s: %s\n", judge_state_name(verdict->state),
                run->backend, test->id, verdict->reason);
        return;
    default:
        print_failure(report->out, run, test, verdict);
    }
}

static void end(report_writer *report, const report_run *run,
                const report_counts *counts)
{
    const char *separator = " (";

    fprintf(report->out, "%s: %zu passed, %zu failed, %zu skipped", run->backend,
            report_passed(counts), report_failed(counts), report_skipped(counts));
    for (int i = 0; i < VEC_PROVENANCES; i++)
        if (counts->provenance[i]) {
            fprintf(report->out, "%s%s %zu", separator,
                    vec_provenance_name((vec_provenance)i), counts->provenance[i]);
            separator = ", ";
        }
    fprintf(report->out, "%s%.1f s", separator[0] == ',' ? ")  " : "  ",
            counts->seconds);
    if (report_uncertifiable(run))
        fprintf(report->out, "  (%s: not certifiable)", report_uncertifiable(run));
    fputc('\n', report->out);
}

static void total(report_writer *report, const report_counts *counts)
{
    fprintf(report->out, "%zu passed, %zu failed, %zu skipped\n", report_passed(counts),
            report_failed(counts), report_skipped(counts));
}

const report_format report_human = {"human", begin, result, end, total};
