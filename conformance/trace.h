/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/trace.h - which families and mutants stand for a clause. */
#ifndef SLM_TRACE_H
#define SLM_TRACE_H

#include "clauses.h"
#include "killing.h"

/* Print clause x families x mutants, as a table or as CSV. Returns how many clauses lack
 * a family or a mutant without an excuse that the specification gives, and how many
 * families and mutants name a clause that it does not have (on standard error). */
size_t trace_print(const clause_list *spec, const kill_matrix *matrix,
                   const vec_set *set, bool csv);

#endif
