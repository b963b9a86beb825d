/* SPDX-License-Identifier: Apache-2.0 */
/* slm/phases.h - optional: where the calls of a backend spend their time.
 *
 * A library that holds a backend may export a function named SLM_PHASES_SYMBOL of the
 * type slm_phase_getter. Only `slmoe bench --phases` asks for it. It is no part of the
 * table: a backend without it conforms as well. */
#ifndef SLM_PHASES_H
#define SLM_PHASES_H

#include <slm/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLM_PHASES_SYMBOL "slm_backend_phases"

enum { SLM_MAX_PHASES = 16 };

/* A part of the calls, in the order of the flow; numbers are sums over the calls. */
typedef struct slm_phase {
    char name[48];
    double seconds; /* from its begin to its end, whatever threads did           */
    double flops;   /* two for a multiplication of matrices' elements, else 0    */
    double bytes;   /* of weights that it had to read                            */
} slm_phase;

/* What the calls on the handle spent since it was asked last: `most` phases at most are
 * written to `list`, the caller's. Returns how many; 0 where nothing is kept of the
 * handle's operations. Not while a call runs. */
typedef size_t slm_phase_getter(slm_handle *handle, slm_phase *list, size_t most);

#ifdef __cplusplus
}
#endif
#endif
