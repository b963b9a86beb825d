/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report_html.h - a run as one page that needs nothing but itself.
 *
 * The page is well-formed XML too, asks for nothing over the network, and reads without
 * JavaScript, which only filters and unfolds for print. */
#ifndef SLM_REPORT_HTML_H
#define SLM_REPORT_HTML_H

#include <stdio.h>

#include "balance_load.h"
#include "clauses.h"
#include "run_file.h"

/* What ref's balancing step does to the batch of a case. */
typedef struct html_balance {
    const char *id; /* of the case */
    balance_loads loads;
} html_balance;

typedef struct html_page {
    const run_file *run;
    size_t n_clauses; /* titles; may be 0                                   */
    const clause_heading *clauses;
    size_t n_balances; /* illustrations; may be 0                           */
    const html_balance *balances;
    const char *no_balances; /* why there are none                          */
} html_page;

/* Errors of the stream are the caller's to find. */
void html_write(FILE *out, const html_page *page);

#endif
