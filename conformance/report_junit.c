/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_junit.c - results as JUnit XML: one testsuite a backend.
 *
 * A suite's counts stand in its opening tag, so its cases are kept until its end. */
#include "report.h"

#include <stdlib.h>
#include <string.h>

static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\n':
            fputs("&#10;", out);
            break;
        default:
            fputc((unsigned char)*text < ' ' ? '?' : *text, out);
        }
}

static void put_attribute(FILE *out, const char *name, const char *value)
{
    fprintf(out, " %s=\"", name);
    put_text(out, value);
    fputc('"', out);
}

static void begin(report_writer *report, const report_run *run)
{
    (void)run;
    if (!report->started)
        fputs(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"slmoe\">\n",
            report->out);
    report->started = true;
    report->kept = NULL;
    report->body = open_memstream(&report->kept, &report->kept_size);
}

static void put_outcome(FILE *out, const report_run *run, const vec_case *test,
                        const judge_verdict *verdict)
{
    const bool failed = verdict->state != JUDGE_SKIP && verdict->state != JUDGE_XFAIL;
    const bool error = verdict->state == JUDGE_CRASH ||
                       verdict->state == JUDGE_TIMEOUT || verdict->state == JUDGE_ERROR;
    char again[REPORT_COMMAND];
    const char *element = !failed ? "skipped" : error ? "error" : "failure";

    fprintf(out, "      <%s", element);
    put_attribute(out, "message",
                  verdict->reason[0] ? verdict->reason
                                     : judge_state_name(verdict->state));
    if (!failed) {
        fputs("/>\n", out);
        return;
    }
    put_attribute(out, "type", judge_state_name(verdict->state));
    fputc('>', out);
    if (verdict->clause[0]) {
        put_text(out, verdict->clause);
        fputs(" stage ", out);
        put_text(out, verdict->stage);
        fputs(": ", out);
    }
    if (verdict->place[0]) {
        put_text(out, verdict->place);
        fputs(" got ", out);
        put_text(out, verdict->got);
        fputs(" want ", out);
        put_text(out, verdict->want);
    }
    if (verdict->nearest[0]) {
        fputs("; looks like ", out);
        put_text(out, verdict->nearest);
    }
    fprintf(out, "</%s>\n      <system-out>", element);
    report_again(run, test, again);
    put_text(out, again);
    if (verdict->output[0]) {
        fputs("&#10;it printed:&#10;", out);
        put_text(out, verdict->output);
    }
    fputs("</system-out>\n", out);
}

static void result(report_writer *report, const report_run *run, const vec_case *test,
                   const judge_verdict *verdict)
{
    FILE *out = report->body;

    if (!out) return;
    fputs("    <testcase", out);
    put_attribute(out, "classname", test->family->name);
    put_attribute(out, "name", test->id);
    fprintf(out, " time=\"%.6f\"", verdict->seconds);
    if (verdict->state == JUDGE_PASS) {
        fputs("/>\n", out);
        return;
    }
    fputs(">\n", out);
    put_outcome(out, run, test, verdict);
    fputs("    </testcase>\n", out);
}

static void end(report_writer *report, const report_run *run,
                const report_counts *counts)
{
    const size_t *state = counts->state;
    const size_t errors =
        state[JUDGE_CRASH] + state[JUDGE_TIMEOUT] + state[JUDGE_ERROR];
    size_t tests = 0;

    if (!report->body || fclose(report->body) != 0 || !report->kept) {
        report->broken = true;
        return;
    }
    for (int i = 0; i < JUDGE_STATES; i++) tests += state[i];
    fputs("  <testsuite", report->out);
    put_attribute(report->out, "name", run->backend);
    fprintf(report->out,
            " tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\" "
            "time=\"%.3f\">\n    <properties>\n",
            tests, report_failed(counts) - errors, errors, report_skipped(counts),
            counts->seconds);
    fprintf(report->out, "      <property name=\"vectors\" value=\"%s\"/>\n",
            run->vectors->sha256);
    fputs("      <property name=\"backend\"", report->out);
    put_attribute(report->out, "value", run->about->name);
    fprintf(report->out,
            "/>\n      <property name=\"certifiable\" value=\"%s\"/>\n"
            "    </properties>\n",
            report_uncertifiable(run) ? "false" : "true");
    fwrite(report->kept, 1, report->kept_size, report->out);
    fputs("  </testsuite>\n", report->out);
    free(report->kept);
    report->kept = NULL;
    report->body = NULL;
}

static void total(report_writer *report, const report_counts *counts)
{
    (void)counts;
    if (report->started) fputs("</testsuites>\n", report->out);
}

const report_format report_junit = {"junit", begin, result, end, total};
