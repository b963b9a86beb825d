/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html_parts.h - the parts of the page, in the order of the page. */
#ifndef SLM_REPORT_HTML_PARTS_H
#define SLM_REPORT_HTML_PARTS_H

#include "report.h"
#include "report_html.h"

/* One backend's section. */
typedef struct html_part {
    FILE *out;
    const html_page *page;
    const run_part *run;
    size_t number; /* from 1: ids of this section begin with "b<number>-" */
} html_part;

/* ---- report_html_text.c ---- */

/* Text between tags or in a quoted attribute; control characters become U+FFFD. */
void html_text(FILE *out, const char *text);

/* "<TAG>TEXT</TAG>", where TAG may carry attributes. */
void html_element(FILE *out, const char *tag, const char *text);

/* "<dt>LABEL</dt><dd>TEXT</dd>", nothing when the text is "". */
void html_pair(FILE *out, const char *label, const char *text);

/* "0", "0.012", "3.1e+04", "beyond every bound". */
void html_share(FILE *out, double share);

/* A stacked bar with its legend. */
typedef struct html_piece {
    const char *style; /* class of the style sheet */
    const char *name;
    size_t count;
} html_piece;
void html_bar(FILE *out, const char *label, const html_piece *pieces, size_t n);

/* "ok", "bad", "skip": the class of a state. */
const char *html_state_style(judge_state state);

/* The title of a clause, "" when unknown. */
const char *html_clause_title(const html_page *page, const char *id);

/* ---- report_html_style.c ---- */
extern const char *const html_style;
extern const char *const html_script;

/* ---- the rest by name ---- */
void html_failures(const html_part *part);
void html_clauses(const html_part *part);
void html_stages(const html_part *part);
void html_decisions(const html_part *part);
void html_controls(const html_part *part);
void html_skips(const html_part *part);
void html_balances(const html_part *part);
void html_environment(const html_part *part);
void html_cases(const html_part *part);

/* " data-k='clause:R2 clause:R3'" for the filter. */
void html_keys(FILE *out, const run_result *result);

/* The filter box above a list of `.item`s. */
void html_filter(const html_part *part, const char *what);

#endif
