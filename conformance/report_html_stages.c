/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html_stages.c - what share of its bound each stage used. */
#include "report_html_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, WIDTH = 600, HEIGHT = 20, DECADES = 6, LOWEST = -4 };

/* One stage over all cases that judged it. */
typedef struct stage_row {
    const char *name;
    size_t cases;
    size_t checked;
    size_t failed;
    double *used; /* [cases], ascending in the end                          */
    size_t n_bad;
    double *bad; /* [n_bad] of the cases where it failed                    */
} stage_row;

static stage_row *row_of(stage_row *rows, size_t *n, const char *name)
{
    for (size_t i = 0; i < *n; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    if (*n == MAX_ROWS) return NULL;
    rows[*n].name = name;
    return &rows[(*n)++];
}

/* In order of the data flow; what is not in the list comes last. */
static size_t rank(const char *name)
{
    static const char *const flow[] = {
        "logit",  "score",   "ids",   "cutoff",    "weight",   "load", "metric",
        "counts", "offsets", "order", "z",         "h",        "o",    "u",
        "r",      "hs",      "y",     "candidate", "new_bias", "hist"};
    size_t i = 0;

    while (i < sizeof flow / sizeof *flow && strcmp(flow[i], name) != 0) i++;
    return i;
}

static int compare_rows(const void *a, const void *b)
{
    const size_t left = rank(((const stage_row *)a)->name),
                 right = rank(((const stage_row *)b)->name);

    return (left > right) - (left < right);
}

static int compare_doubles(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Room for every case in every row. */
static int make_room(stage_row *rows, size_t n, size_t n_results)
{
    for (size_t i = 0; i < n; i++) {
        rows[i].used = calloc(2 * n_results + 1, sizeof *rows[i].used);
        if (!rows[i].used) return 0;
        rows[i].bad = rows[i].used + n_results;
    }
    return 1;
}

static size_t name_rows(const run_part *run, stage_row rows[MAX_ROWS])
{
    size_t n = 0;

    for (size_t i = 0; i < run->n_results; i++)
        for (size_t j = 0; j < run->results[i].n_stages; j++)
            row_of(rows, &n, run->results[i].stages[j].name);
    qsort(rows, n, sizeof *rows, compare_rows);
    return n;
}

static void fill_rows(const run_part *run, stage_row rows[MAX_ROWS], size_t n)
{
    for (size_t i = 0; i < run->n_results; i++)
        for (size_t j = 0; j < run->results[i].n_stages; j++) {
            const run_stage *stage = &run->results[i].stages[j];
            stage_row *row = row_of(rows, &n, stage->name);

            /* A stage named twice in one case counts for it once. */
            if (!row || !stage->checked || row->cases == run->n_results) continue;
            row->used[row->cases++] = stage->used;
            row->checked += stage->checked;
            row->failed += stage->failed;
            if (stage->failed) row->bad[row->n_bad++] = stage->used;
        }
    for (size_t i = 0; i < n; i++)
        qsort(rows[i].used, rows[i].cases, sizeof(double), compare_doubles);
}

/* The least share that at least that part of the cases stay within. */
static double quantile(const stage_row *row, double part)
{
    const double rank = ceil(part * (double)row->cases);

    return row->used[rank > 1 ? (size_t)rank - 1 : 0];
}

/* Abscissa of a share; what lies outside of the scale is drawn at its end. */
static double place(double share)
{
    const double decades = log10(share) - LOWEST;

    if (!(decades > 0)) return 0;
    return fmin(decades / DECADES, 1) * WIDTH;
}

static void put_rect(FILE *out, const char *style, double x, double width, int y,
                     int height)
{
    if (x + width > WIDTH) x = WIDTH - width;
    fprintf(out,
            "<rect class=\"f-%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\">"
            "</rect>",
            style, x > 0 ? x : 0, y, width > 0 ? width : 0, height);
}

static void put_strip(FILE *out, const stage_row *row)
{
    const double median = place(quantile(row, 0.5)), most = place(quantile(row, 0.9)),
                 largest = place(row->used[row->cases - 1]), bound = place(1);

    fprintf(out,
            "<svg class=\"strip\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" "
            "role=\"img\" aria-label=\"",
            WIDTH, HEIGHT);
    html_text(out, row->name);
    fputs(": share of the bound on a logarithmic scale\">", out);
    put_rect(out, "over", bound, WIDTH - bound, 0, HEIGHT);
    for (int i = 1; i < DECADES; i++)
        put_rect(out, "line", i * WIDTH / DECADES - 0.5, 1, 0, HEIGHT);
    put_rect(out, "fg", bound - 1, 2, 0, HEIGHT);
    put_rect(out, "band", median, most - median, 5, HEIGHT - 10);
    put_rect(out, "act", most, largest - most, HEIGHT / 2 - 1, 2);
    put_rect(out, "act", median - 1.5, 3, 3, HEIGHT - 6);
    put_rect(out, "act", largest - 1, 2, 5, HEIGHT - 10);
    for (size_t i = 0; i < row->n_bad; i++)
        put_rect(out, "bad", place(row->bad[i]) - 1.5, 3, 0, HEIGHT);
    fputs("</svg>", out);
}

static bool is_exact(const stage_row *row)
{
    return !row->cases || row->used[row->cases - 1] <= 0;
}

static void put_row(FILE *out, const stage_row *row)
{
    const bool exact = is_exact(row);
    static const double parts[] = {0.5, 0.9, 1};

    fputs(exact ? "<tr>" : "<tr class=\"top\">", out);
    html_element(out, "th scope=\"row\"", row->name);
    fprintf(out,
            "<td class=\"num wide\">%zu</td><td class=\"num\">%zu</td><td class=\"num"
            "%s\">%zu</td>",
            row->cases, row->checked, row->failed ? " fails" : "", row->failed);
    for (size_t i = 0; i < 3 && !exact; i++) {
        fputs("<td class=\"num\">", out);
        html_share(out, quantile(row, parts[i]));
        fputs("</td>", out);
    }
    if (exact) {
        fputs("<td class=\"num dim\" colspan=\"3\">no error seen</td></tr>\n", out);
        return;
    }
    fputs("</tr>\n<tr class=\"pic\"><td colspan=\"7\">", out);
    put_strip(out, row);
    fputs("</td></tr>\n", out);
}

static const char table_head[] =
    "<table><caption>How much of its bound a stage used, by the worst element of each "
    "case. The bound comes from the declared arithmetic; at 1 it is used "
    "up.</caption>\n"
    "<thead><tr><th scope=\"col\">stage</th><th scope=\"col\" class=\"num "
    "wide\">cases</th><th scope=\"col\" class=\"num\">elements</th><th scope=\"col\" "
    "class=\"num\">failed</th><th scope=\"col\" class=\"num\">median</th><th "
    "scope=\"col\" class=\"num\">90&#160;%</th><th scope=\"col\" "
    "class=\"num\">max</th></tr></thead>\n<tbody>\n";

/* The labels of the scale, under the strips. */
static void put_axis(FILE *out)
{
    static const char *const labels[DECADES + 1] = {
        "10<sup>-4</sup>", "10<sup>-3</sup>", "0.01", "0.1", "<b>1</b>", "10", "100"};

    fputs("<tr class=\"pic\"><td colspan=\"7\"><div class=\"axis\" "
          "aria-hidden=\"true\">",
          out);
    for (int i = 0; i <= DECADES; i++)
        fprintf(out, "<span style=\"left:%.2f%%\">%s</span>", 100.0 * i / DECADES,
                labels[i]);
    fputs("</div></td></tr>\n", out);
}

static const char legend[] =
    "<ul class=\"legend\"><li class=\"l-band\">median to 90 %</li><li class=\"l-act\">"
    "to the largest</li><li class=\"l-bad\">cases where the stage failed</li></ul>\n";

void html_stages(const html_part *part)
{
    stage_row rows[MAX_ROWS] = {0};
    const size_t n = name_rows(part->run, rows);
    bool drawn = false;

    if (n && make_room(rows, n, part->run->n_results)) {
        fill_rows(part->run, rows, n);
        fputs("<h3>By stage</h3>\n", part->out);
        fputs(table_head, part->out);
        for (size_t i = 0; i < n; i++) {
            if (rows[i].cases) put_row(part->out, &rows[i]);
            drawn |= !is_exact(&rows[i]);
        }
        if (drawn) put_axis(part->out);
        fputs("</tbody></table>\n", part->out);
        if (drawn) fputs(legend, part->out);
    }
    for (size_t i = 0; i < n; i++) free(rows[i].used);
}
