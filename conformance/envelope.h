/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/envelope.h - where y can lie when the stages before it were not tapped.
 *
 * A worst-case bound over the whole layer is a million times the true error and decides
 * nothing. So the rest of the layer is run in binary64 many times, each dot product
 * disturbed as its rounding would and each declared store rounded at random; the spread
 * of the results is the yardstick (Monte Carlo arithmetic). */
#ifndef SLM_ENVELOPE_H
#define SLM_ENVELOPE_H

#include "bounds.h"

/* Largest distance from the undisturbed y in standard deviations. */
#define ENVELOPE_LIMIT 8.0

/* Part of a vector's pooled deviation that each of its elements has at least. */
#define ENVELOPE_FLOOR 0x1p-4

/* One token. The run starts at the last of z, h, o that is not NULL, else at x; hs is
 * used when it is not NULL. Everything is the backend's own. */
typedef struct envelope {
    const slm_config *config;
    const slm_weights *weights;
    const bound_rules *rules;
    slm_dtype dtype; /* that stages are stored in */
    uint64_t seed;
    const double *x;      /* [d]    */
    const int32_t *ids;   /* [k]    */
    const double *weight; /* [k]    */
    const double *z;      /* [l]    */
    const double *h;      /* [k, f] */
    const double *o;      /* [k, l] */
    const double *hs;     /* [S fs] */
} envelope;

/* y[d] without disturbance and deviation[d]: the larger of the element's and the row's
 * pooled standard deviation. The store of y is not part of it. */
void envelope_run(const envelope *e, double *y, double *deviation);

#endif
