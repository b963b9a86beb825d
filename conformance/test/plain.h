/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/plain.h - a straightforward binary32 layer, right or with one
 * fault. */
#ifndef SLM_TEST_PLAIN_H
#define SLM_TEST_PLAIN_H

#include "case.h"

/* Orders of summation that a right implementation may have. */
typedef enum plain_order {
    PLAIN_FORWARD,
    PLAIN_BACKWARD,
    PLAIN_LANES,
    PLAIN_FMA,
    PLAIN_ORDERS
} plain_order;

typedef enum plain_fault {
    PLAIN_RIGHT,
    PLAIN_BIAS_IN_WEIGHT,
    PLAIN_NOT_NORMALISED,
    PLAIN_BIAS_IGNORED,
    PLAIN_WEIGHTS_SWAPPED,
    PLAIN_WEIGHTS_EQUAL,
    PLAIN_EXPERT_PLUS_ONE,
    PLAIN_LAST_EXPERT_DROPPED,
    PLAIN_SCORES_BF16,
    PLAIN_SIGMA_OF_CAPPED,
    PLAIN_NO_CAP_ON_UP,
    PLAIN_BETAS_SWAPPED,
    PLAIN_SWIGLU,
    PLAIN_HARD_CAP,
    PLAIN_NO_NORM,
    PLAIN_EPS_OUTSIDE,
    PLAIN_EPS_TENFOLD,
    PLAIN_EPS_MISSING,
    PLAIN_GAMMA_IGNORED,
    PLAIN_MEAN_OVER_D,
    PLAIN_SHARED_DROPPED,
    PLAIN_SHARED_FED_Z,
    PLAIN_BF16_SUMS,
    PLAIN_ROWS_SWAPPED,
    PLAIN_LAST_COLUMN,
    PLAIN_LAST_TOKEN,
    PLAIN_FAULTS,
    PLAIN_STORES_BF16 /* z, h, o, u, r, hs, y: right when it is declared */
} plain_fault;

const char *plain_fault_name(plain_fault fault);

float plain_dot(plain_order order, const float *w, const float *x, size_t n);
float plain_sigmoid(float a);
float plain_situ(float a, float b, plain_fault fault);

/* Run layer_forward on the frame of a case (f32, profile paper, f = fs S allowed). With
 * `taps` every tap is written, too. */
void plain_layer(made_case *made, plain_order order, plain_fault fault, int taps);

/* RMSNorm of one row with eps 1e-6 or as the fault has it. */
void plain_rmsnorm(const float *u, const float *gamma, size_t l, size_t d,
                   plain_fault fault, float *r);

#endif
