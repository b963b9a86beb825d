/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/runner.h - cases through one backend, in several processes at once. */
#ifndef SLM_RUNNER_H
#define SLM_RUNNER_H

#include "judge.h"
#include "memo.h"
#include "testee.h"

typedef struct runner_options {
    testee_options testee;
    size_t jobs;      /* processes at once, at least 1                          */
    bool hygiene;     /* memory and reuse checks after each case that passed    */
    const bool *stop; /* no case is visited once it is true; NULL: never        */
} runner_options;

/* Called in the order of the cases, from the calling thread. */
typedef void (*runner_visit)(void *user, const vec_case *test,
                             const judge_verdict *verdict);

/* Called before and within a case, from the calling thread when jobs is 1. May be NULL. */
typedef void (*runner_progress)(void *user, size_t done, size_t total);

/* Execute one case on an open testee and judge it, with the help of verdicts that were
 * reached before (memo may be NULL). */
void runner_execute(slm_testee *testee, const vec_case *test, bool hygiene,
                    judge_memo *memo, runner_progress progress, void *user,
                    judge_verdict *verdict);

/* Execute `cases` on the named backend. `first` is already open and is used, too. The
 * first ten cases that fail get a hint at the mutant that they look like (nearest.h).
 * Returns 0 and `why` (TESTEE_WHY) when further processes cannot be had. */
int runner_run(const char *backend, slm_testee *first, const vec_case *const *cases,
               size_t n, const runner_options *options, runner_visit visit,
               runner_progress progress, void *user, char *why);

#endif
