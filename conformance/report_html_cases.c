/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html_cases.c - all cases, by family. */
#include "report_html_parts.h"

#include <string.h>

static void put_family(FILE *out, const run_result *result)
{
    fputs("<tbody class=\"family\"><tr><th colspan=\"6\" scope=\"rowgroup\">", out);
    html_text(out, result->family);
    if (result->about[0]) html_element(out, "span", result->about);
    fputs("</th></tr>\n", out);
}

static void put_case(FILE *out, const run_result *result)
{
    const size_t length = strlen(result->family);
    const char *name = result->id;
    const double share = run_file_share(result);

    if (strncmp(name, result->family, length) == 0 && name[length] == '/')
        name += length + 1;
    fputs("<tr class=\"item\" data-id=\"", out);
    html_text(out, result->id);
    fputc('"', out);
    html_keys(out, result);
    fprintf(out, "><td class=\"state %s\">%s</td><td><span class=\"id\">",
            html_state_style(result->state), judge_state_name(result->state));
    html_text(out, name);
    fputs("</span>", out);
    if (result->state != JUDGE_PASS && result->reason[0])
        html_element(out, "span class=\"why\"", result->reason);
    else if (result->note[0])
        html_element(out, "span class=\"why\"", result->note);
    fputs("</td><td>", out);
    for (size_t i = 0; i < result->n_clauses; i++) {
        if (i) fputc(' ', out);
        html_text(out, result->clauses[i]);
    }
    fputs("</td>", out);
    html_element(out, "td class=\"wide\"", result->provenance);
    fputs("<td class=\"num\">", out);
    if (result->n_stages) html_share(out, share);
    fprintf(out, "</td><td class=\"num wide\">%.3g</td></tr>\n", 1e3 * result->seconds);
}

void html_cases(const html_part *part)
{
    const run_part *run = part->run;
    const char *family = NULL;

    fprintf(part->out, "<h3>Cases</h3>\n<details><summary>all %zu cases</summary>\n",
            run->n_results);
    html_filter(part, "cases");
    fputs("<table class=\"list\"><thead><tr><th scope=\"col\">state</th><th "
          "scope=\"col\">case</th><th scope=\"col\">clause</th><th scope=\"col\" "
          "class=\"wide\">provenance</th><th scope=\"col\" class=\"num\">share</th><th "
          "scope=\"col\" class=\"num wide\">ms</th></tr></thead>\n",
          part->out);
    for (size_t i = 0; i < run->n_results; i++) {
        if (!family || strcmp(family, run->results[i].family) != 0) {
            if (family) fputs("</tbody>\n", part->out);
            put_family(part->out, &run->results[i]);
        }
        family = run->results[i].family;
        put_case(part->out, &run->results[i]);
    }
    if (family) fputs("</tbody>\n", part->out);
    fputs("</table>\n</details>\n", part->out);
}
