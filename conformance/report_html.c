/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html.c - a run as one page: the verdict, and the parts in order. */
#include "report_html.h"
#include "declared.h"
#include "report_html_parts.h"

/* ---- the verdict ---- */

static size_t count_state(const run_part *run, judge_state state)
{
    size_t n = 0;

    for (size_t i = 0; i < run->n_results; i++) n += run->results[i].state == state;
    return n;
}

static const char *verdict_style(const run_part *run)
{
    return run->failed ? "bad" : run->passed ? "ok" : "skip";
}

/* Expected failures (XFAIL) take nothing from the exit code, and are said. */
static void put_verdict_words(FILE *out, const run_part *run)
{
    const size_t expected = count_state(run, JUDGE_XFAIL);

    if (run->failed)
        fputs("Does not conform", out);
    else if (!run->passed)
        fputs("Nothing was judged", out);
    else if (expected)
        fprintf(out, "Conforms, but for %zu expected failure%s", expected,
                expected == 1 ? "" : "s");
    else
        fputs("Conforms", out);
}

static void put_scope(FILE *out, const run_part *run)
{
    fputs("<p>", out);
    fprintf(out, "%zu passed, ", run->passed);
    if (run->failed)
        fprintf(out, "<b>%zu failed</b>, ", run->failed);
    else
        fputs("0 failed, ", out);
    fprintf(out, "%zu skipped; tier ", run->skipped);
    html_text(out, run->tier);
    if (run->selection[0]) {
        fputs("; <b>a selection only:</b> <code>", out);
        html_text(out, run->selection);
        fputs("</code>", out);
    }
    fputs("</p>\n", out);
}

/* Nothing but skips keeps this run from standing for the whole tier. */
static bool is_certificate(const run_part *run)
{
    return run->certifiable && run->passed && !run->failed && !run->selection[0] &&
           !count_state(run, JUDGE_XFAIL);
}

static void put_verdict(const html_part *part)
{
    const run_part *run = part->run;
    char words[DECLARED_TEXT];
    FILE *out = part->out;

    declared_words(&run->arithmetic, words);
    fprintf(out, "<div class=\"verdict %s\"><strong>", verdict_style(run));
    put_verdict_words(out, run);
    fputs("</strong>\n", out);
    put_scope(out, run);
    fprintf(out, "<p>%s: ",
            run->failed || !run->passed ? "Judged by its declared arithmetic"
                                        : "Conforms at");
    html_text(out, words);
    fputs(".</p>\n<p>", out);
    fputs(
        !run->certifiable
            ? "Not certifiable: the backend ran in the judge&#39;s own process, was "
              "emulated, or each case was one call (<code>--once</code>)."
        : is_certificate(run)
            ? "Certifiable: all cases of the tier, the backend in a process of its own."
            : "The backend ran in a process of its own.",
        out);
    fputs("</p></div>\n", out);
}

static void put_counts(const html_part *part)
{
    const html_piece pieces[] = {{"ok", "passed", part->run->passed},
                                 {"bad", "failed", part->run->failed},
                                 {"skip", "skipped", part->run->skipped}};

    html_bar(part->out, "cases passed, failed and skipped", pieces, 3);
}

/* ---- where it comes from ---- */

static void put_backend(FILE *out, const run_part *run)
{
    html_pair(out, "backend", run->backend);
    html_pair(out, "says it is", run->name);
    html_pair(out, "version", run->version);
    html_pair(out, "reports to", run->url);
    fprintf(out, "<dt>ABI</dt><dd>%zu.%zu</dd>\n<dt>levels</dt><dd>", run->abi_major,
            run->abi_minor);
    for (size_t i = 0; i < run->n_levels; i++) {
        if (i) fputs(", ", out);
        html_text(out, run->levels[i]);
    }
    fputs(run->n_levels ? "</dd>\n" : "none</dd>\n", out);
    html_pair(out, "its host says", run->note);
}

void html_environment(const html_part *part)
{
    const run_part *run = part->run;
    FILE *out = part->out;

    fputs("<h3>Environment</h3>\n<dl>\n", out);
    put_backend(out, run);
    html_pair(out, "vectors, sha256", run->vectors);
    html_pair(out, "slmoe", run->harness);
    html_pair(out, "spec", run->spec);
    html_pair(out, "date", run->date);
    html_pair(out, "system", run->system);
    html_pair(out, "processor", run->cpu);
    if (run->cores) fprintf(out, "<dt>cores</dt><dd>%zu</dd>\n", run->cores);
    fprintf(out, "<dt>took</dt><dd>%.1f s</dd>\n</dl>\n", run->seconds);
}

/* ---- the page ---- */

static void put_part(const html_part *part)
{
    fprintf(part->out, "<section id=\"b%zu\">\n<h2>", part->number);
    html_text(part->out, part->run->name[0] ? part->run->name : part->run->backend);
    if (part->run->version[0]) fputc(' ', part->out);
    html_text(part->out, part->run->version);
    fputs("</h2>\n", part->out);
    put_verdict(part);
    put_counts(part);
    html_failures(part);
    html_clauses(part);
    html_stages(part);
    html_decisions(part);
    html_controls(part);
    html_skips(part);
    html_balances(part);
    html_environment(part);
    html_cases(part);
    fputs("</section>\n", part->out);
}

/* Of a run of several backends. */
static void put_overview(FILE *out, const run_file *run)
{
    if (run->n_parts < 2) return;
    fputs("<nav aria-label=\"backends\"><table><thead><tr><th "
          "scope=\"col\">backend</th><th scope=\"col\">verdict</th></tr></thead><tbody>"
          "\n",
          out);
    for (size_t i = 0; i < run->n_parts; i++) {
        fprintf(out, "<tr><th scope=\"row\"><a href=\"#b%zu\">", i + 1);
        html_text(out, run->parts[i].backend);
        fprintf(out, "</a></th><td class=\"%s\"><strong>",
                verdict_style(&run->parts[i]));
        put_verdict_words(out, &run->parts[i]);
        fputs("</strong></td></tr>\n", out);
    }
    fputs("</tbody></table></nav>\n", out);
}

void html_write(FILE *out, const html_page *page)
{
    const run_file *run = page->run;

    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, "
          "initial-scale=1\"/>\n<title>",
          out);
    put_verdict_words(out, &run->parts[0]);
    fputs(": ", out);
    html_text(out, run->parts[0].backend);
    if (run->n_parts > 1) fprintf(out, " and %zu more", run->n_parts - 1);
    fprintf(out,
            "</title>\n<link rel=\"icon\" href=\"data:,\"/>\n<style>\n%s</style>"
            "</head>\n<body><main>\n<h1>Stable LatentMoE conformance</h1>\n",
            html_style);
    put_overview(out, run);
    for (size_t i = 0; i < run->n_parts; i++) {
        const html_part part = {
            .out = out, .page = page, .run = &run->parts[i], .number = i + 1};

        put_part(&part);
    }
    fprintf(out, "</main>\n<script>\n%s</script>\n</body></html>\n", html_script);
}
