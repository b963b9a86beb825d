/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html_clauses.c - results by clause; null answers; tokens. */
#include "report_html_parts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CLAUSES = 128 };

typedef struct clause_row {
    const char *id;
    size_t count[3]; /* by report_class                                     */
    size_t failure;  /* number of its first failure, 0: none                */
} clause_row;

static clause_row *row_of(clause_row *rows, size_t *n, const char *id)
{
    for (size_t i = 0; i < *n; i++)
        if (strcmp(rows[i].id, id) == 0) return &rows[i];
    if (*n == MAX_CLAUSES) return NULL;
    rows[*n].id = id;
    return &rows[(*n)++];
}

/* In the order of the specification. */
static int compare_rows(const void *a, const void *b)
{
    static const char order[] = "RLQXAC";
    const char *left = ((const clause_row *)a)->id,
               *right = ((const clause_row *)b)->id;
    const char *l = strchr(order, left[0]), *r = strchr(order, right[0]);

    if (l != r) return !l ? 1 : !r ? -1 : l < r ? -1 : 1;
    if (strlen(left) != strlen(right)) return strlen(left) < strlen(right) ? -1 : 1;
    return strcmp(left, right);
}

static size_t count_clauses(const run_part *run, clause_row rows[MAX_CLAUSES])
{
    size_t n = 0, failures = 0;

    for (size_t i = 0; i < run->n_results; i++) {
        const run_result *result = &run->results[i];
        const report_class class = report_classify(result->state);

        failures += class == REPORT_FAILED;
        for (size_t j = 0; j < result->n_clauses; j++) {
            clause_row *row = row_of(rows, &n, result->clauses[j]);

            if (!row) continue;
            row->count[class]++;
            if (class == REPORT_FAILED && !row->failure) row->failure = failures;
        }
    }
    qsort(rows, n, sizeof *rows, compare_rows);
    return n;
}

static void put_row(const html_part *part, const clause_row *row)
{
    FILE *out = part->out;

    fputs("<tr><th scope=\"row\">", out);
    html_text(out, row->id);
    fputs("</th>", out);
    html_element(out, "td", html_clause_title(part->page, row->id));
    fprintf(out, "<td class=\"num\">%zu</td>", row->count[REPORT_PASSED]);
    if (row->failure) {
        fprintf(out, "<td class=\"num fails\"><a href=\"#b%zu-f%zu\" data-q=\"clause:",
                part->number, row->failure);
        html_text(out, row->id);
        fprintf(out, "\">%zu</a></td>", row->count[REPORT_FAILED]);
    } else {
        fputs("<td class=\"num\">0</td>", out);
    }
    fprintf(out, "<td class=\"num\">%zu</td></tr>\n", row->count[REPORT_SKIPPED]);
}

void html_clauses(const html_part *part)
{
    clause_row rows[MAX_CLAUSES] = {0};
    const size_t n = count_clauses(part->run, rows);

    if (!n) return;
    fputs("<h3>By clause</h3>\n<table><caption>A case counts for every clause that it "
          "concerns.</caption>\n<thead><tr><th scope=\"col\">clause</th><th "
          "scope=\"col\"></th><th scope=\"col\" class=\"num\">passed</th><th "
          "scope=\"col\" class=\"num\">failed</th><th scope=\"col\" "
          "class=\"num\">skipped</th></tr></thead>\n<tbody>\n",
          part->out);
    for (size_t i = 0; i < n; i++) put_row(part, &rows[i]);
    fputs("</tbody></table>\n", part->out);
}

void html_decisions(const html_part *part)
{
    html_piece pieces[] = {
        {"act", "forced: the scores leave one choice", 0},
        {"band", "free: score intervals overlap, either is right", 0},
        {"skip", "tie: exact, the lower id must win", 0}};

    for (size_t i = 0; i < part->run->n_results; i++) {
        pieces[0].count += part->run->results[i].forced;
        pieces[1].count += part->run->results[i].free;
        pieces[2].count += part->run->results[i].tie;
    }
    if (!(pieces[0].count + pieces[1].count + pieces[2].count)) return;
    fputs("<h3>How tokens were decided</h3>\n<p class=\"dim\">Tokens of all cases that "
          "choose experts. Forced and tied ones have to match exactly.</p>\n",
          part->out);
    html_bar(part->out, "tokens by how their choice was decided", pieces, 3);
}

static const char *control_words(judge_control control)
{
    switch (control) {
    case JUDGE_ZEROS:
        return "all zeros";
    case JUDGE_CONSTANT:
        return "one value everywhere, or the first experts";
    case JUDGE_ROTATED:
        return "the next token's or expert's answer";
    case JUDGE_DROPPED:
        return "the last expert dropped";
    default:
        return judge_control_name(control);
    }
}

void html_controls(const html_part *part)
{
    size_t count[JUDGE_CONTROLS][JUDGE_NULL_PASSES + 1] = {0}, judged = 0;

    for (size_t i = 0; i < part->run->n_results; i++)
        for (int j = 0; j < JUDGE_CONTROLS; j++) {
            const judge_null null = part->run->results[i].controls[j];

            count[j][null]++;
            judged += null != JUDGE_NULL_NONE;
        }
    if (!judged) return;
    fputs("<h3>Null answers</h3>\n<table><caption>Answers without content, judged in "
          "the place of this backend&#39;s. A case that lets one pass is no evidence "
          "and counts as VACUOUS.</caption>\n<thead><tr><th scope=\"col\">answer</th>"
          "<th scope=\"col\" class=\"num\">refused</th><th scope=\"col\" "
          "class=\"num\">nearly right</th><th scope=\"col\" class=\"num\">let "
          "pass</th></tr></thead>\n<tbody>\n",
          part->out);
    for (int j = 0; j < JUDGE_CONTROLS; j++) {
        const size_t passes = count[j][JUDGE_NULL_PASSES];

        fputs("<tr>", part->out);
        html_element(part->out, "th scope=\"row\"", control_words((judge_control)j));
        fprintf(part->out,
                "<td class=\"num\">%zu</td><td class=\"num\">%zu</td><td class=\"num"
                "%s\">%zu</td></tr>\n",
                count[j][JUDGE_NULL_FAILS], count[j][JUDGE_NULL_SAME],
                passes ? " fails" : "", passes);
    }
    fputs("</tbody></table>\n", part->out);
}
