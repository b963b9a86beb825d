/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html_failures.c - every failure in full; what was skipped and why. */
#include "report_html_parts.h"

#include <math.h>
#include <string.h>

/* So many are unfolded at first. */
enum { UNFOLDED = 5 };

static void put_finding(FILE *out, const run_result *result)
{
    if (!result->place[0]) return;
    html_pair(out, "place", result->place);
    fputs("<dt>got</dt><dd class=\"v\">", out);
    html_text(out, result->got);
    fputs("</dd>\n<dt>want</dt><dd class=\"v\">", out);
    html_text(out, result->want);
    fputs("</dd>\n<dt>off by</dt><dd>", out);
    if (isinf(result->multiple))
        fputs("no bound holds it", out);
    else if (result->multiple > 0)
        fprintf(out, "%.3g times the bound", result->multiple);
    else
        fputs("it had to match exactly", out);
    fputs("</dd>\n", out);
}

static void put_nearest(FILE *out, const run_result *result)
{
    if (!result->nearest[0]) return;
    fputs("<dt>looks like</dt><dd><code>", out);
    html_text(out, result->nearest);
    fputs("</code>", out);
    if (result->n_alike)
        fprintf(out, " and %zu other wrong backend%s that answer alike",
                result->n_alike, result->n_alike == 1 ? "" : "s");
    fputs("</dd>\n", out);
}

static void put_clause(const html_part *part, const run_result *result)
{
    const char *title = html_clause_title(part->page, result->clause);

    if (!result->clause[0]) return;
    fputs("<dt>clause</dt><dd>", part->out);
    html_text(part->out, result->clause);
    fputs(title[0] ? " " : "", part->out);
    html_text(part->out, title);
    fputs("</dd>\n", part->out);
}

static void put_summary(FILE *out, const run_result *result)
{
    fputs("<summary>", out);
    html_element(out, "span class=\"state bad\"", judge_state_name(result->state));
    fputc(' ', out);
    html_element(out, "h4 class=\"id\"", result->id);
    if (result->clause[0]) {
        fputs(" <span class=\"dim\">", out);
        html_text(out, result->clause);
        if (result->stage[0]) {
            fputs(", stage ", out);
            html_text(out, result->stage);
        }
        fputs("</span>", out);
    }
    fputs("</summary>\n", out);
}

static void put_failure(const html_part *part, const run_result *result, size_t number)
{
    FILE *out = part->out;

    fprintf(out, "<details class=\"failure item\" id=\"b%zu-f%zu\"%s", part->number,
            number, number <= UNFOLDED ? " open=\"open\"" : "");
    html_keys(out, result);
    fputs(">\n", out);
    put_summary(out, result);
    fputs("<dl>\n", out);
    html_pair(out, "reason", result->reason);
    put_clause(part, result);
    html_pair(out, "stage", result->stage);
    put_finding(out, result);
    put_nearest(out, result);
    html_pair(out, "about", result->about);
    html_pair(out, "note", result->note);
    if (result->output[0]) {
        fputs("<dt>printed</dt><dd><pre>", out);
        html_text(out, result->output);
        fputs("</pre></dd>\n", out);
    }
    if (result->again[0]) {
        fputs("<dt>again</dt><dd><code class=\"cmd\">", out);
        html_text(out, result->again);
        fputs("</code></dd>\n", out);
    }
    fputs("</dl>\n</details>\n", out);
}

/* Failures of the run that look most like that wrong backend. */
static size_t count_nearest(const run_part *run, const char *name)
{
    size_t n = 0;

    for (size_t i = 0; i < run->n_results; i++)
        n += strcmp(run->results[i].nearest, name) == 0;
    return n;
}

/* What most failures look like: often one bug behind all of them. */
static void put_suspect(const html_part *part)
{
    const run_part *run = part->run;
    const char *suspect = "";
    size_t most = 0;

    for (size_t i = 0; i < run->n_results; i++) {
        const char *name = run->results[i].nearest;
        const size_t n = name[0] ? count_nearest(run, name) : 0;

        if (n > most) suspect = name;
        if (n > most) most = n;
    }
    if (!most) return;
    fprintf(part->out,
            "<p>Of the first failures, which alone are compared with known bugs, %zu "
            "look%s like <code>",
            most, most == 1 ? "s" : "");
    html_text(part->out, suspect);
    fputs("</code>.</p>\n", part->out);
}

void html_failures(const html_part *part)
{
    size_t number = 0;

    if (!part->run->failed) return;
    fprintf(part->out, "<h3 id=\"b%zu-failures\">Failures</h3>\n", part->number);
    put_suspect(part);
    html_filter(part, "failures");
    fputs("<div>\n", part->out);
    for (size_t i = 0; i < part->run->n_results; i++)
        if (report_classify(part->run->results[i].state) == REPORT_FAILED)
            put_failure(part, &part->run->results[i], ++number);
    fputs("</div>\n", part->out);
}

static const char *reason_of(const run_result *result)
{
    return result->reason[0] ? result->reason : judge_state_name(result->state);
}

static bool is_skip(const run_result *result)
{
    return report_classify(result->state) == REPORT_SKIPPED;
}

static bool was_before(const run_part *run, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (is_skip(&run->results[j]) &&
            strcmp(reason_of(&run->results[j]), reason_of(&run->results[i])) == 0)
            return true;
    return false;
}

void html_skips(const html_part *part)
{
    const run_part *run = part->run;

    if (!run->skipped) return;
    fputs("<h3>Skipped</h3>\n<table><thead><tr><th scope=\"col\">reason</th><th "
          "scope=\"col\" class=\"num\">cases</th></tr></thead>\n<tbody>\n",
          part->out);
    for (size_t i = 0; i < run->n_results; i++) {
        size_t n = 0;

        if (!is_skip(&run->results[i]) || was_before(run, i)) continue;
        for (size_t j = i; j < run->n_results; j++)
            n += is_skip(&run->results[j]) &&
                 strcmp(reason_of(&run->results[j]), reason_of(&run->results[i])) == 0;
        fputs("<tr>", part->out);
        html_element(part->out, "td", reason_of(&run->results[i]));
        fprintf(part->out, "<td class=\"num\">%zu</td></tr>\n", n);
    }
    fputs("</tbody></table>\n", part->out);
}
