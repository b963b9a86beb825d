/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/killing.h - which case kills which mutant, and at which stage. */
#ifndef SLM_KILLING_H
#define SLM_KILLING_H

#include "mutants/mutants.h"
#include "vector.h"

/* What one case did to one mutant. */
typedef struct kill_mark {
    bool executed;
    bool killed;
    char clause[8];
    char stage[SLM_NAME];
} kill_mark;

typedef struct kill_matrix {
    size_t n_mutants;
    size_t n_cases;
    const vec_case *const *cases;
    kill_mark *marks; /* [n_mutants, n_cases] */
} kill_matrix;

/* Run the right implementation and every mutant over the cases, with the judge and the
 * memory and reuse checks, `jobs` at once in this process. Returns 0 and `why` (512
 * bytes) when it cannot, or when the right implementation itself fails a case. */
int kill_run(kill_matrix *matrix, const vec_case *const *cases, size_t n_cases,
             size_t jobs, void (*progress)(void *user, size_t done, size_t total),
             void *user, char *why);
void kill_free(kill_matrix *matrix);

const kill_mark *kill_at(const kill_matrix *matrix, size_t mutant, size_t test);

/* Number of cases that kill a mutant; the first of them (or n_cases). */
size_t kill_count(const kill_matrix *matrix, size_t mutant, size_t *first);

/* Whether some case of that family kills it; *stage is the first killing case's. */
bool kill_by_family(const kill_matrix *matrix, size_t mutant, const vec_family *family,
                    const char **stage);

#endif
