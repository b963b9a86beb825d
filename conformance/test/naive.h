/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/naive.h - the layer as a loop over tokens and experts, with radii.
 *
 * Forward and backward in binary64, one token and one expert at a time, nothing grouped;
 * written from the clauses, sharing no code with any backend. Every number carries the
 * radius that binary32 needs (real.h). */
#ifndef SLM_TEST_NAIVE_H
#define SLM_TEST_NAIVE_H

#include <slm/backend.h>

#include "real.h"

enum {
    NAIVE_T = 37,
    NAIVE_D = 24,
    NAIVE_L = 16,
    NAIVE_N = 8,
    NAIVE_K = 2,
    NAIVE_F = 20,
    NAIVE_S = 2,
    NAIVE_FS = 12,
    NAIVE_SF = NAIVE_S * NAIVE_FS
};

/* One value for every weight, in the members' order: of real here, of float there. */
#define NAIVE_LAYER(type)                                                              \
    {                                                                                  \
        type w_router[NAIVE_N][NAIVE_D];                                               \
        type w_down[NAIVE_L][NAIVE_D];                                                 \
        type w_gate[NAIVE_N][NAIVE_F][NAIVE_L];                                        \
        type w_up[NAIVE_N][NAIVE_F][NAIVE_L];                                          \
        type w_out[NAIVE_N][NAIVE_L][NAIVE_F];                                         \
        type w_expert[NAIVE_N][NAIVE_L][NAIVE_L];                                      \
        type gamma[NAIVE_L];                                                           \
        type w_lift[NAIVE_D][NAIVE_L];                                                 \
        type w_shared_gate[NAIVE_SF][NAIVE_D];                                         \
        type w_shared_up[NAIVE_SF][NAIVE_D];                                           \
        type w_shared_out[NAIVE_D][NAIVE_SF];                                          \
        type w_shared[NAIVE_S][NAIVE_D][NAIVE_D];                                      \
    }
typedef struct naive_layer NAIVE_LAYER(real) naive_layer;
typedef struct flat_layer NAIVE_LAYER(float) flat_layer;

/* A mistake made on purpose, so that a comparison can be seen to fail. */
typedef enum naive_fault {
    NAIVE_RIGHT,
    NAIVE_DROPS_A_TOKEN,      /* of an expert, from the sums of its gradients */
    NAIVE_FORGETS_THE_WEIGHT, /* p, in dh                                     */
    NAIVE_FORGETS_THE_ROUTER, /* its part of dx                               */
    NAIVE_FORGETS_THE_NORM,   /* the second term of du                        */
    NAIVE_FAULTS
} naive_fault;

typedef struct naive_job {
    const slm_config *config;
    const slm_arithmetic *arithmetic; /* of the backend that is compared */
    const naive_layer *weights;
    const float *x;    /* [T, d] */
    const float *dy;   /* [T, d] */
    const float *bias; /* [n]    */
    naive_fault fault;
} naive_job;

typedef struct naive_result {
    int ids[NAIVE_T][NAIVE_K];
    double margin; /* the least gap between two keys that decided the ids */
    real weight[NAIVE_T][NAIVE_K];
    real y[NAIVE_T][NAIVE_D];
    real dx[NAIVE_T][NAIVE_D];
    naive_layer gradient;
} naive_result;

void naive_run(const naive_job *job, naive_result *out);

/* w - rate g, as two binary32 operations. */
real naive_step(real w, double rate, real g);

#endif
