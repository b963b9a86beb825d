/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report.c - opening writers; what the counts mean. */
#include "report.h"

#include <errno.h>
#include <string.h>

size_t report_passed(const report_counts *counts)
{
    return counts->state[JUDGE_PASS];
}

size_t report_failed(const report_counts *counts)
{
    const size_t *state = counts->state;

    return state[JUDGE_FAIL] + state[JUDGE_XPASS] + state[JUDGE_CRASH] +
           state[JUDGE_TIMEOUT] + state[JUDGE_ERROR] + state[JUDGE_VACUOUS];
}

size_t report_skipped(const report_counts *counts)
{
    return counts->state[JUDGE_SKIP] + counts->state[JUDGE_XFAIL];
}

void report_again(const report_run *run, const vec_case *test, char out[REPORT_COMMAND])
{
    const char *quote = strpbrk(run->backend, " '$&|;") ? "'" : "";

    snprintf(out, REPORT_COMMAND, "slmoe run -b %s%s%s%s --only '%s'", quote,
             run->backend, quote, run->repeat, test->id);
}

int report_open(report_writer *report, const char *spec, char *why)
{
    static const report_format *const formats[] = {
        &report_human, &report_jsonl, &report_junit, &report_tap, &report_tap13};
    const char *equals = strchr(spec, '=');
    const size_t length = equals ? (size_t)(equals - spec) : strlen(spec);

    memset(report, 0, sizeof *report);
    report->out = stdout;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strlen(formats[i]->name) == length &&
            strncmp(formats[i]->name, spec, length) == 0)
            report->format = formats[i];
    if (!report->format) {
        snprintf(why, 256,
                 "--format %s: expected human, jsonl, junit, tap or tap13, perhaps "
                 "with =FILE",
                 spec);
        return 0;
    }
    if (equals) report->out = fopen(equals + 1, "we");
    if (!report->out) {
        snprintf(why, 256, "%s: cannot be written: %s", equals + 1, strerror(errno));
        return 0;
    }
    return 1;
}

int report_close(report_writer *report)
{
    int ok = fflush(report->out) == 0 && !ferror(report->out) && !report->broken;

    if (report->out != stdout && fclose(report->out) != 0) ok = 0;
    return ok;
}
