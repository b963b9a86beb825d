/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_svg.c - share of the roof over the batch size, as a picture. */
#include "bench_report.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 480, HEIGHT = 240, LEFT = 48, TOP = 28, BELOW = 40, COLOURS = 6 };

static const char *const colours[COLOURS] = {"#0b6fa4", "#c2410c", "#15803d",
                                             "#7e22ce", "#a16207", "#475569"};

/* Text of strangers: what XML does not allow becomes '?'. */
static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else
            fputc((unsigned char)*text < ' ' || (unsigned char)*text >= 0x7f ? '?'
                                                                             : *text,
                  out);
    }
}

static int is_drawn(const bench_row *row)
{
    return !row->skipped[0] && row->n && !row->disturbed && row->roof > 0;
}

static int same_panel(const bench_row *a, const bench_row *b)
{
    return strcmp(a->shape, b->shape) == 0 && strcmp(a->op, b->op) == 0 &&
           a->threads == b->threads && a->config.dtype == b->config.dtype &&
           a->config.n_experts == b->config.n_experts &&
           a->config.top_k == b->config.top_k;
}

static int same_line(const bench_row *a, const bench_row *b)
{
    return same_panel(a, b) && strcmp(a->backend, b->backend) == 0;
}

typedef int (*likeness)(const bench_row *a, const bench_row *b);

/* Whether no drawn row before row i is like it. */
static int is_first(const bench_row *rows, size_t i, likeness alike)
{
    for (size_t j = 0; j < i; j++)
        if (is_drawn(&rows[j]) && alike(&rows[j], &rows[i])) return 0;
    return is_drawn(&rows[i]);
}

/* Batch sizes on a logarithmic scale, from 1 to the panel's largest. */
static double across(size_t tokens, double largest)
{
    const double whole = largest > 1 ? log2(largest) : 1;

    return LEFT + (WIDTH - 2 * LEFT) * log2((double)tokens) / whole;
}

static double down(double share)
{
    return TOP + (HEIGHT - TOP - BELOW) * (1 - (share < 1.2 ? share : 1.2) / 1.2);
}

static double share_of(const bench_row *row)
{
    return row->roof / row->time[1];
}

static void put_grid(FILE *out, const bench_row *rows, size_t n, size_t first,
                     double largest)
{
    for (int i = 0; i <= 4; i++)
        fprintf(out,
                "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/>\n"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
                LEFT, down(i / 4.0), WIDTH - LEFT, down(i / 4.0),
                i == 4 ? "#111" : "#ddd", LEFT - 6, down(i / 4.0) + 4, 25 * i);
    for (size_t i = first; i < n; i++)
        if (is_drawn(&rows[i]) && same_panel(&rows[first], &rows[i]))
            fprintf(out,
                    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%zu</text>\n",
                    across(rows[i].n_tokens, largest), HEIGHT - BELOW + 16,
                    rows[i].n_tokens);
}

static void put_line(FILE *out, const bench_row *rows, size_t n, size_t first,
                     double largest, int number)
{
    const char *colour = colours[number % COLOURS];

    fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
            colour);
    for (size_t i = first; i < n; i++)
        if (is_drawn(&rows[i]) && same_line(&rows[first], &rows[i]))
            fprintf(out, "%.1f,%.1f ", across(rows[i].n_tokens, largest),
                    down(share_of(&rows[i])));
    fputs("\"/>\n", out);
    for (size_t i = first; i < n; i++)
        if (is_drawn(&rows[i]) && same_line(&rows[first], &rows[i]))
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                    across(rows[i].n_tokens, largest), down(share_of(&rows[i])),
                    colour);
    fprintf(out, "<text x=\"%d\" y=\"%d\" fill=\"%s\">", LEFT + 120 * (number % 3),
            HEIGHT - 6 - 12 * (number / 3 % 2 == 0), colour);
    put_text(out, rows[first].backend);
    fputs("</text>\n", out);
}

static void put_panel(FILE *out, const bench_row *rows, size_t n, size_t first,
                      int number)
{
    const bench_row *own = &rows[first];
    double largest = 1;
    int lines = 0;

    for (size_t i = first; i < n; i++)
        if (is_drawn(&rows[i]) && same_panel(own, &rows[i]) &&
            (double)rows[i].n_tokens > largest)
            largest = (double)rows[i].n_tokens;
    fprintf(out,
            "<g transform=\"translate(0 %d)\">\n<text x=\"%d\" y=\"16\" "
            "font-weight=\"bold\">",
            number * HEIGHT, LEFT);
    put_text(out, own->shape);
    fprintf(out,
            " %s, %s, n %zu, k %zu, %zu threads: share of the roof over T</text>\n",
            own->op, slm_dtype_name(own->config.dtype), own->config.n_experts,
            own->config.top_k, own->threads);
    put_grid(out, rows, n, first, largest);
    for (size_t i = first; i < n; i++)
        if (same_panel(own, &rows[i]) && is_first(rows, i, same_line))
            put_line(out, rows, n, i, largest, lines++);
    fputs("</g>\n", out);
}

void bench_svg(FILE *out, const bench_row *rows, size_t n)
{
    int panels = 0;

    for (size_t i = 0; i < n; i++) panels += is_first(rows, i, same_panel);
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, panels ? panels * HEIGHT : HEIGHT);
    if (panels == 0)
        fprintf(out,
                "<text x=\"%d\" y=\"16\">no row that was timed undisturbed</text>\n",
                LEFT);
    panels = 0;
    for (size_t i = 0; i < n; i++)
        if (is_first(rows, i, same_panel)) put_panel(out, rows, n, i, panels++);
    fputs("</svg>\n", out);
}
