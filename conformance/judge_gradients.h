/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_gradients.h - what the judges of a layer's gradients share: those of
 * its tokens and those of its weights. */
#ifndef SLM_JUDGE_GRADIENTS_H
#define SLM_JUDGE_GRADIENTS_H

#include "envelope_backward.h"
#include "judge_backward.h"
#include "judge_layer.h"

typedef struct gradient_work {
    judge_trial *trial;
    const char *const *names; /* [FLOW_FIELDS]; "": the operation has none */
    flow flow;
    int enveloped; /* the flow was run                          */
    layer_work layer;
    backward_norm norm;
    backward_slopes slopes;
} gradient_work;

/* Whether the backend showed all of these fields (a bit each). */
int gradient_is_known(const gradient_work *work, unsigned sources);

int gradient_is_linear(const gradient_work *work);

/* What the backend showed of a field for token t. */
const double *gradient_own(const gradient_work *work, flow_field field, size_t t);

/* v of a field; and what a coarse store of an addend, which is shown nowhere, may do, 0
 * in binary32. */
double gradient_stored(const gradient_work *work, flow_field field);
double gradient_coarse(const gradient_work *work);

/* Judge element i of token t of the open stage. */
void gradient_judge(gradient_work *work, flow_field field, size_t t, size_t i,
                    const arb_t want, double bound);

/* Judge a gradient of token t by its bound: from FLOW_DR on. */
extern void (*const gradient_by_bound[FLOW_FIELDS])(gradient_work *, size_t);

/* Relative error of p du, which is shown nowhere: rounded, and in a coarse arithmetic
 * perhaps stored. A power of two rounds nothing. */
double gradient_weighting(const gradient_work *work, double p);

/* Whether some gradient of weights rests on what was not shown. */
int gradient_products_need_envelope(const gradient_work *work);

/* Judge dw_*, dgamma and dbias, when the tokens were judged.                   G2-G5 */
void gradient_judge_products(gradient_work *work);

#endif
