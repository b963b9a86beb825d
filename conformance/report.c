/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report.c - opening writers; what the counts mean. */
#include "report.h"

#include <errno.h>
#include <string.h>

report_class report_classify(judge_state state)
{
    switch (state) {
    case JUDGE_PASS:
        return REPORT_PASSED;
    case JUDGE_SKIP:
    case JUDGE_XFAIL:
        return REPORT_SKIPPED;
    default:
        return REPORT_FAILED;
    }
}

static size_t count_class(const report_counts *counts, report_class wanted)
{
    size_t n = 0;

    for (int i = 0; i < JUDGE_STATES; i++)
        if (report_classify((judge_state)i) == wanted) n += counts->state[i];
    return n;
}

const char *report_uncertifiable(const report_run *run)
{
    if (run->about->emulated[0]) return run->about->emulated;
    if (!run->about->certifiable) return "in the judge's process";
    return run->once ? "one call a case" : NULL;
}

size_t report_passed(const report_counts *counts)
{
    return count_class(counts, REPORT_PASSED);
}

size_t report_failed(const report_counts *counts)
{
    return count_class(counts, REPORT_FAILED);
}

size_t report_skipped(const report_counts *counts)
{
    return count_class(counts, REPORT_SKIPPED);
}

void report_append_word(char *command, size_t size, const char *word)
{
    const int plain = word[0] && !strpbrk(word, " \t\n'\"\\$`&|;<>()*?[]#~!{}");
    size_t at = strlen(command);

    if (plain) {
        snprintf(command + at, size - at, "%s", word);
        return;
    }
    snprintf(command + at, size - at, "'");
    for (; *word; word++) {
        at = strlen(command);
        if (*word == '\'')
            snprintf(command + at, size - at, "'\\''");
        else
            snprintf(command + at, size - at, "%c", *word);
    }
    at = strlen(command);
    snprintf(command + at, size - at, "'");
}

void report_again(const report_run *run, const vec_case *test, char out[REPORT_COMMAND])
{
    size_t at;

    snprintf(out, REPORT_COMMAND, "slmoe run -b ");
    report_append_word(out, REPORT_COMMAND, run->backend);
    at = strlen(out);
    snprintf(out + at, REPORT_COMMAND - at, "%s --only '%s'", run->repeat, test->id);
}

static const report_format *find_format(const char *spec, size_t length)
{
    static const report_format *const formats[] = {
        &report_human, &report_jsonl, &report_junit, &report_tap, &report_tap13};

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strlen(formats[i]->name) == length &&
            strncmp(formats[i]->name, spec, length) == 0)
            return formats[i];
    return NULL;
}

int report_shares_file(const char *const *specs, size_t i, char *why)
{
    const char *file = strchr(specs[i], '=');

    for (size_t j = 0; file && j < i; j++) {
        if (strcmp(strchrnul(specs[j], '='), file) != 0) continue;
        snprintf(why, 256, "--format %s: that file gets --format %s already", specs[i],
                 specs[j]);
        return 1;
    }
    return 0;
}

int report_check(const char *const *specs, size_t n, char *why)
{
    for (size_t i = 0; i < n; i++) {
        const size_t length = strcspn(specs[i], "=");

        if (!find_format(specs[i], length) || strcmp(specs[i] + length, "=") == 0) {
            snprintf(why, 256,
                     "--format %s: expected human, jsonl, junit, tap or tap13, perhaps "
                     "with =FILE",
                     specs[i]);
            return 0;
        }
        if (report_shares_file(specs, i, why)) return 0;
    }
    return 1;
}

int report_open(report_writer *report, const char *spec, char *why)
{
    const size_t length = strcspn(spec, "=");

    memset(report, 0, sizeof *report);
    report->format = find_format(spec, length);
    report->out = spec[length] ? fopen(spec + length + 1, "we") : stdout;
    if (report->out) return 1;
    snprintf(why, 256, "%s: cannot be written: %s", spec + length + 1, strerror(errno));
    return 0;
}

int report_close(report_writer *report)
{
    int ok = fflush(report->out) == 0 && !ferror(report->out) && !report->broken;

    if (report->out != stdout && fclose(report->out) != 0) ok = 0;
    return ok;
}
