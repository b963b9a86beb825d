/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/envelope_backward.h - where the values of a backward pass can lie when what
 * they were computed from was not shown.
 *
 * As envelope.h: forward and backward are run in binary64 many times under the declared
 * noise. Each value's yardstick is its own standard deviation; a part of its vector's (one
 * token's, one row of one expert's matrix) is a floor. */
#ifndef SLM_ENVELOPE_BACKWARD_H
#define SLM_ENVELOPE_BACKWARD_H

#include "envelope.h"

/* The values of one token, in order of the data flow. logit and dlogit are those of the
 * chosen, in slot order. */
typedef enum flow_field {
    FLOW_X,
    FLOW_DY,
    FLOW_LOGIT,
    FLOW_WEIGHT,
    FLOW_Z,
    FLOW_GATE_UP,
    FLOW_H,
    FLOW_O,
    FLOW_U,
    FLOW_R,
    FLOW_SHARED_GATE_UP,
    FLOW_HS,
    FLOW_DR,
    FLOW_DU,
    FLOW_DWEIGHT,
    FLOW_DLOGIT,
    FLOW_DH,
    FLOW_DGATE_UP,
    FLOW_DZ,
    FLOW_DHS,
    FLOW_DSHARED_GATE_UP,
    FLOW_DX,
    FLOW_FIELDS
} flow_field;

/* One call. dense_ffn_backward is a layer whose only path is the shared one: not
 * `routed`. */
typedef struct flow {
    const slm_config *config;
    const slm_weights *weights;
    const bound_rules *rules;
    slm_dtype dtype; /* that stages are stored in                               */
    int routed;
    size_t n_tokens;
    const int32_t *ids;         /* [T, k]                                       */
    double *shown[FLOW_FIELDS]; /* [T, width] what the backend showed, inputs too; NULL:
                                   nothing */
    /* From envelope_backward_open() on; of fields that the call has. */
    double *value[FLOW_FIELDS];     /* [T, width]                               */
    double *deviation[FLOW_FIELDS]; /* [T, width]                               */
    double *kept[FLOW_FIELDS]; /* [T, RUNS, width] of factors of weight gradients */
} flow;

/* Elements of a token; 0 when the call has no such field. */
size_t flow_width(const flow *e, flow_field field);

/* One row of a matrix, as a matrix. */
slm_tensor flow_row(const slm_tensor *matrix, size_t row);

/* Run every token. What was shown replaces what was computed for all that follows. */
void envelope_backward_open(flow *e);
void envelope_backward_close(flow *e);

/* A gradient of weights: the sum over tokens of left^T right. `weighted`: left is
 * multiplied by the slot's weight. Of an expert: over the slots that chose it, each with
 * its own part of `left` and, where right_step is not 0, of `right`. */
typedef struct flow_product {
    flow_field left;
    size_t left_at;   /* first element in a slot's or token's part          */
    size_t left_step; /* of a slot                                          */
    size_t rows;
    flow_field right;
    size_t right_step; /* of a slot                                          */
    size_t cols;
    int weighted;
    int of_expert;
} flow_product;

/* deviation[cols] of row i of a product, of one expert where it is of an expert. The
 * last sum is undisturbed. */
void envelope_product_row(const flow *e, const flow_product *product, size_t expert,
                          size_t i, double *deviation);

/* A field of token t as a factor: what was shown, else the undisturbed run. */
const double *flow_factor(const flow *e, flow_field field, size_t t);

/* deviation[l] of dgamma. */
void envelope_dgamma(const flow *e, double *deviation);

#endif
