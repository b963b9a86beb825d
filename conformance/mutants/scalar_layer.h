/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_layer.h - private: the layer's memory and its stages. */
#ifndef SLM_SCALAR_LAYER_H
#define SLM_SCALAR_LAYER_H

#include "scalar.h"

/* Routing of the batch, then the stages of the token at hand. */
typedef struct scalar_layer {
    scalar_routing routing;
    int64_t *counts;  /* [n]                                        */
    int64_t *offsets; /* [n + 1]                                    */
    int64_t *order;   /* [T k]                                      */
    int64_t *place;   /* [T k]  pair to its place in order          */
    float *x;         /* [d]                                        */
    float *z;         /* [l]                                        */
    float *z_in;      /* [l]     what the experts read              */
    float *h;         /* [k, f]  not for linear experts             */
    float *o;         /* [k, l]                                     */
    float *u;         /* [l]                                        */
    float *r;         /* [l]                                        */
    float *gamma;     /* [l]                                        */
    float *hs;        /* [S fs]                                     */
    float *shared;    /* [d]     the shared path                    */
    float *y;         /* [d]                                        */
    float *gate;      /* [max(f, S fs)]                             */
    float *copy;      /* [max(d, l, f, S fs)]  a row of a weight    */
    float *padded;    /* [max(d, l)]  x or z taken for the other    */
} scalar_layer;

/* ---- scalar_expert.c ---- */

/* Places of all pairs, from routing.ids. */
void scalar_place_pairs(const slm_handle *handle, scalar_layer *at, size_t n_tokens);

/* h and o of every slot of token t from z_in. Returns 0 when a factor is not finite. */
int scalar_run_experts(const slm_handle *handle, scalar_layer *at, size_t t,
                       size_t n_tokens);

/* u from o: slot order, binary32.                                               L2 */
void scalar_combine(const slm_handle *handle, scalar_layer *at, size_t t,
                    size_t n_tokens);

#endif
