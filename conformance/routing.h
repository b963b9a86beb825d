/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/routing.h - what the judges of choice and of weights share. */
#ifndef SLM_ROUTING_H
#define SLM_ROUTING_H

#include "trial.h"

typedef struct routing {
    judge_trial *trial;
    const slm_config *config;
    size_t n_tokens;
    size_t n;
    size_t k;
    const slm_tensor *given;     /* score of select, or NULL                         */
    const slm_tensor *own_logit; /* taps that were written, or NULL                  */
    const slm_tensor *own_score;
    float *bias;    /* [n]                                                           */
    arb_ptr logit;  /* [T, n] real logits; nothing when scores are given             */
    double *radius; /* [T, n] how far a computed logit may be away                   */
} routing;

/* The row in work: where its computed scores and keys can lie. */
typedef struct routing_row {
    arb_ptr logit; /* [n] the numbers that the scores are made from: own or real     */
    arb_ptr score; /* [n] real scores of these                                       */
    double *radius;
    bound_interval *score_range; /* [n]                                              */
    float *lo;                   /* [n] keys                                         */
    float *hi;
} routing_row;

/* Fill a row from the backend's own logits when `own`, else from the real ones. */
void routing_fill(routing_row *row, const routing *r, size_t t, int own);

/* Where the computed score of expert j can lie; `real`: relative errors alone. */
bound_interval routing_score(const routing *r, const routing_row *row, size_t j,
                             int real);

/* Real logits of x and the router, and how far computed ones may be away. A row whose
 * logits are not all finite is poisoned.                                    R1, R4 */
void routing_real_logits(routing *r, const slm_tensor *x, const slm_tensor *w);

/* The scores or logits that select was given: a NaN poisons its row, an infinite logit
 * is lawful.                                                                    R4 */
void routing_given(routing *r, const slm_tensor *logit);

/* The stages, in order. */
void judge_logits(routing *r);
void judge_scores(routing *r, routing_row *row);

/* The stage of the weights, after the ids.                                      R3 */
void judge_weights(routing *r, routing_row *row);

#endif
