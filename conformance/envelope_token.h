/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/envelope_token.h - private: one token's runs of an envelope. */
#ifndef SLM_ENVELOPE_TOKEN_H
#define SLM_ENVELOPE_TOKEN_H

#include "envelope_backward.h"
#include "noise.h"

/* The runs of one token. */
typedef struct envelope_token {
    flow *e;
    noise_source noise;
    size_t t;
    size_t d, l, k, f, fs;
    const int32_t *ids;
    double *runs[FLOW_FIELDS]; /* [RUNS, width] that later values are made of    */
    double *own_o;             /* [RUNS, k l] o as computed, whatever was shown     */
} envelope_token;

int flow_is_linear(const flow *e);

/* Elements that are one vector: of one token, one slot, one of gate and up. */
size_t flow_slice(const flow *e, flow_field field);

/* A vector's pooled deviation is a floor of each of its elements', but no more than a
 * part of it: a tiny element among large ones is not excused by them. */
void envelope_lift(double *deviation, size_t width);

/* Take down the runs of a field, then go on with what was shown of it. Owns `runs`. */
void envelope_settle(envelope_token *at, flow_field field, double *runs);

/* One slot's part of [RUNS, k, width], to be released with flint_free(). And back, which
 * releases it. */
double *envelope_part(const double *runs, size_t k, size_t width, size_t q);
void envelope_put(double *runs, size_t k, size_t width, size_t q, double *part);

/* Every stage of the forward pass. */
void envelope_forward(envelope_token *at);

#endif
