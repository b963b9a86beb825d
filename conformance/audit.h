/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/audit.h - is the declared arithmetic the one that is used?
 *
 * The bounds follow from the declaration. One that is too fine shows as failures; one
 * that is too coarse buys wide bounds and shows here: the stages of a layer of width
 * one are given 1 and 1 + 2^-j, and the largest j that a stage still tells apart is the
 * number of bits that it keeps.                                                   A1 */
#ifndef SLM_AUDIT_H
#define SLM_AUDIT_H

#include "testee.h"

typedef enum audit_finding {
    AUDIT_TRUE,
    AUDIT_COARSER, /* than declared: results will fail                       */
    AUDIT_FINER    /* than declared: the bounds are wider than they need be  */
} audit_finding;

typedef struct audit_line {
    const char *stage; /* a tap, "accumulator"                               */
    double declared;   /* roundoff that may show there, stages before included */
    double seen;
    bool truncates; /* of the accumulator: rounds towards zero               */
    audit_finding finding;
} audit_line;

enum { AUDIT_LINES = 10 };

/* Fill one line a stage that the backend shows. Returns their number; 0 and `why`
 * (TESTEE_WHY) when the layer is not offered at these sizes. */
size_t audit_run(slm_testee *testee, audit_line lines[AUDIT_LINES], char *why);

#endif
