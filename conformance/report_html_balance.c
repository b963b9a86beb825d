/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html_balance.c - loads before and after a balancing step. */
#include "report_html_parts.h"

#include <inttypes.h>

enum { WIDTH = 200 };

static void put_load(FILE *out, int64_t load, int64_t largest, double mean)
{
    const double scale = (double)WIDTH / (double)(largest ? largest : 1);

    fprintf(out,
            "<td class=\"num\">%" PRId64 "</td><td class=\"load\"><svg viewBox=\"0 0 "
            "%d 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect "
            "class=\"f-band\" width=\"%.1f\" height=\"10\"></rect><rect class=\"f-fg\" "
            "x=\"%.1f\" width=\"1\" height=\"10\"></rect></svg></td>",
            load, WIDTH, (double)load * scale, mean * scale - 1);
}

static void put_verdict(const html_part *part, const char *id)
{
    const run_result *result = run_file_find(part->run, id);

    fputs("<p class=\"dim\">This backend on that case: ", part->out);
    if (result) {
        fprintf(part->out, "<span class=\"state %s\">%s</span>",
                html_state_style(result->state), judge_state_name(result->state));
    } else {
        fputs("not judged in this run", part->out);
    }
    fputs(".</p>\n", part->out);
}

static void put_balance(const html_part *part, const html_balance *balance)
{
    const balance_loads *loads = &balance->loads;
    const double mean = (double)loads->sum / (double)loads->n_experts;
    int64_t largest = 0;

    for (size_t j = 0; j < loads->n_experts; j++) {
        if (loads->before[j] > largest) largest = loads->before[j];
        if (loads->after[j] > largest) largest = loads->after[j];
    }
    fputs("<table class=\"loads\"><caption>", part->out);
    html_element(part->out, "span class=\"id\"", balance->id);
    fprintf(part->out,
            "; the line is the balanced load %g</caption>\n<thead><tr><th "
            "scope=\"col\">expert</th><th scope=\"colgroup\" colspan=\"2\">load "
            "before</th><th scope=\"colgroup\" colspan=\"2\">load after</th></tr>"
            "</thead>\n<tbody>\n",
            mean);
    for (size_t j = 0; j < loads->n_experts; j++) {
        fprintf(part->out, "<tr><th scope=\"row\">%zu</th>", j);
        put_load(part->out, loads->before[j], largest, mean);
        put_load(part->out, loads->after[j], largest, mean);
        fputs("</tr>\n", part->out);
    }
    fputs("</tbody></table>\n", part->out);
    if (balance_load_rests_on_rule(loads))
        fputs(
            "<p class=\"dim\">The loads after rest on the lower-id rule (R2): a token "
            "ties exactly at its cutoff.</p>\n",
            part->out);
    put_verdict(part, balance->id);
}

void html_balances(const html_part *part)
{
    const html_page *page = part->page;

    fputs(
        "<h3>What a balancing step does</h3>\n<p class=\"dim\">An illustration, "
        "computed by the exact reference on a batch of the documents: the same tokens "
        "routed under the old bias and under the new. In training a batch is never "
        "routed again (Q4).</p>\n",
        part->out);
    for (size_t i = 0; i < page->n_balances; i++) put_balance(part, &page->balances[i]);
    if (!page->n_balances && page->no_balances) {
        fputs("<p>", part->out);
        html_text(part->out, page->no_balances);
        fputs("</p>\n", part->out);
    }
}
