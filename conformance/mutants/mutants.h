/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/mutants.h - backends that are wrong on purpose, and right ones.
 *
 * All of them are one plain binary32 implementation. A mutant differs from it in one
 * named deviation, so a suite that cannot tell them apart has a hole there. A variant
 * is right under the arithmetic that its table declares, so a suite that rejects it is
 * too strict. None crashes, hangs or leaves its buffers. */
#ifndef SLM_MUTANTS_H
#define SLM_MUTANTS_H

#include <slm/backend.h>

/* One wrong backend. The table's name is "mutant:" and the name. Static storage. */
typedef struct slm_mutant_info {
    const char *name;     /* "bias-leaks-into-weights"                        */
    const char *clause;   /* that it breaks, "R3"                             */
    const char *sentence; /* what it does wrong; perhaps a public report      */
    const slm_backend *table;
} slm_mutant_info;

/* One right backend. The table's name is "variant:" and the name. Static storage. */
typedef struct slm_variant_info {
    const char *name;     /* "pairwise"                                       */
    const char *sentence; /* what it does in its own way                      */
    const slm_backend *table;
} slm_variant_info;

/* Table of that name (without "mutant:", "variant:"), or NULL. */
const slm_backend *slm_mutant_find(const char *name);
const slm_backend *slm_variant_find(const char *name);

/* How many there are, and number `index` of them, NULL past the last. */
size_t slm_mutant_count(void);
size_t slm_variant_count(void);
const slm_mutant_info *slm_mutant_info_at(size_t index);
const slm_variant_info *slm_variant_info_at(size_t index);

#endif
