/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/clauses.h - the clauses that the specification has, by its headings. */
#ifndef SLM_CLAUSES_H
#define SLM_CLAUSES_H

#include <stddef.h>
#include <stdio.h>

enum { CLAUSES_MAX = 64 };

typedef struct clause_heading {
    char id[8];     /* "R2"     */
    char title[88]; /* "Choice" */
} clause_heading;

typedef struct clause_list {
    size_t n;
    clause_heading heading[CLAUSES_MAX];
} clause_list;

/* Open spec.md: that of SLM_SPEC, else the one of this build or installation. NULL, and
 * why and what to do on standard error, when it cannot be read. The caller closes it. */
FILE *clauses_open(void);

/* "### R2 Choice": fill in a heading; 0 for any other line. */
int clauses_heading(const char *line, clause_heading *out);

/* All of them, in the specification's order. Returns 0, and says why on standard error,
 * when the file cannot be read or has none. */
int clauses_read(clause_list *out);

#endif
