/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/xfail.h - strict lists of expected failures.
 *
 * One entry a line: a glob over case ids, the state that is expected (FAIL, CRASH,
 * TIMEOUT, VACUOUS), and where it is tracked (a link, or PROJECT#123). Lines that begin
 * with '#' are comments. Strict: an entry without a tracker, one that matches no case,
 * and a matching case that passes are all failures. */
#ifndef SLM_XFAIL_H
#define SLM_XFAIL_H

#include "judge.h"

typedef struct xfail_entry {
    char glob[256];
    judge_state state;
    char tracker[256];
    size_t line;
    size_t matched; /* cases so far */
} xfail_entry;

typedef struct xfail_list {
    const char *path;
    size_t n;
    xfail_entry *entries;
} xfail_list;

/* Returns 0 and `why` (512 bytes, with path:line:column) when the file cannot be read
 * or is not such a list. */
int xfail_load(xfail_list *list, const char *path, char *why);
void xfail_free(xfail_list *list);

/* Turn an expected failure into XFAIL, an unexpected pass into XPASS. */
void xfail_apply(xfail_list *list, const vec_case *test, judge_verdict *verdict);

/* Entries that match no case of the set: each is printed to `out`. Returns how many. */
size_t xfail_stale(const xfail_list *list, const vec_set *set, FILE *out);

#endif
