/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/run_diff.h - what changed between two runs. */
#ifndef SLM_RUN_DIFF_H
#define SLM_RUN_DIFF_H

#include "run_file.h"

/* A share of a bound that changed by more than DIFF_FACTOR is told, where the larger is
 * at least DIFF_FLOOR: below it a share is noise far inside its bound. */
#define DIFF_FACTOR 2.0
#define DIFF_FLOOR 0.01

typedef struct run_difference {
    size_t worse;   /* a state became worse, a passed case is gone, a share grew */
    size_t better;  /* a state became better, a share shrank                */
    size_t changed; /* a state changed for neither                          */
    size_t added;   /* cases that only the second run has                   */
    size_t gone;    /* cases that only the first run has                    */
} run_difference;

/* Compare backend by backend (by name; two runs of one backend each are compared
 * whatever their names), and print for people every difference and a last line of
 * counts. A case fails worse in the order FAIL, VACUOUS; CRASH, TIMEOUT, ERROR; an XPASS
 * counts as a pass. A new case that fails is told and not worse. */
run_difference run_diff(FILE *out, const run_file *before, const run_file *after);

#endif
