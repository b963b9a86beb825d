/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html_text.c - text, numbers and bars of the page. */
#include "report_html_parts.h"

#include <math.h>
#include <string.h>

void html_text(FILE *out, const char *text)
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
        case '\'':
            fputs("&#39;", out);
            break;
        case '\n':
        case '\t':
            fputc(*text, out);
            break;
        default:
            if ((unsigned char)*text < ' ' || *text == 0x7f)
                fputs("\xef\xbf\xbd", out);
            else
                fputc(*text, out);
        }
}

void html_element(FILE *out, const char *tag, const char *text)
{
    fprintf(out, "<%s>", tag);
    html_text(out, text);
    fprintf(out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

void html_pair(FILE *out, const char *label, const char *text)
{
    if (!text[0]) return;
    html_element(out, "dt", label);
    html_element(out, "dd", text);
    fputc('\n', out);
}

void html_share(FILE *out, double share)
{
    if (isinf(share))
        fputs("beyond", out);
    else if (share >= 100)
        fprintf(out, "%.1e", share);
    else
        fprintf(out, "%.2g", share);
}

void html_bar(FILE *out, const char *label, const html_piece *pieces, size_t n)
{
    enum { WIDTH = 600 };
    size_t total = 0, before = 0;

    for (size_t i = 0; i < n; i++) total += pieces[i].count;
    if (!total) return;
    fprintf(out,
            "<svg class=\"bar\" viewBox=\"0 0 %d 14\" preserveAspectRatio=\"none\" "
            "role=\"img\" aria-label=\"",
            WIDTH);
    html_text(out, label);
    fputs("\">", out);
    for (size_t i = 0; i < n; i++) {
        const double scale = (double)WIDTH / (double)total;

        if (!pieces[i].count) continue;
        fprintf(
            out, "<rect class=\"f-%s\" x=\"%.2f\" width=\"%.2f\" height=\"14\"></rect>",
            pieces[i].style, (double)before * scale, (double)pieces[i].count * scale);
        before += pieces[i].count;
    }
    fputs("</svg>\n<ul class=\"legend\">", out);
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "<li class=\"l-%s\"><b>%zu</b> ", pieces[i].style,
                pieces[i].count);
        html_text(out, pieces[i].name);
        fputs("</li>", out);
    }
    fputs("</ul>\n", out);
}

const char *html_state_style(judge_state state)
{
    static const char *const styles[] = {"ok", "bad", "skip"};

    return styles[report_classify(state)];
}

const char *html_clause_title(const html_page *page, const char *id)
{
    for (size_t i = 0; i < page->n_clauses; i++)
        if (strcmp(page->clauses[i].id, id) == 0) return page->clauses[i].title;
    return "";
}

void html_keys(FILE *out, const run_result *result)
{
    fputs(" data-k=\"", out);
    for (size_t i = 0; i < result->n_clauses; i++) {
        fputs(i ? " clause:" : "clause:", out);
        html_text(out, result->clauses[i]);
    }
    fputc('"', out);
}

void html_filter(const html_part *part, const char *what)
{
    fprintf(part->out, "<p class=\"filter\" hidden=\"hidden\"><label>Filter <input "
                       "type=\"search\" placeholder=\"words, clause:R2\" "
                       "autocomplete=\"off\" spellcheck=\"false\"/></label> <span "
                       "role=\"status\" data-what=\"");
    html_text(part->out, what);
    fputs("\"></span></p>\n", part->out);
}
