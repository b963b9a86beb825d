/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_backward.h - single steps of a backward pass, from numbers that are
 * known exactly: what live ref wants, and how far rounding may take it. */
#ifndef SLM_JUDGE_BACKWARD_H
#define SLM_JUDGE_BACKWARD_H

#include "trial.h"

/* da and db of an activation, stored with roundoff v.                             G1 */
typedef struct backward_slopes {
    arb_t da;
    arb_t db;
    double da_bound;
    double db_bound;
    arb_t a, b, dh; /* scratch */
} backward_slopes;

void backward_slopes_open(backward_slopes *out);
void backward_slopes_close(backward_slopes *out);
void backward_slopes_of(const judge_trial *trial, backward_slopes *out,
                        const slm_config *config, double a, double b, double dh,
                        double v);

/* du of one row, stored with roundoff v; and the row's part of dgamma, added to a ball
 * and to what bounds.h wants of each sum.                                         G2 */
typedef struct backward_norm {
    size_t width;
    const double *gamma; /* NULL: ones                                     */
    arb_ptr du;
    double *bound;
    arb_ptr dgamma;
    bound_dot *dots;
} backward_norm;

backward_norm backward_norm_open(const double *gamma, size_t width);
void backward_norm_close(backward_norm *out);
void backward_norm_row(const judge_trial *trial, backward_norm *out, const double *u,
                       const double *dr, double v);

/* Judge dgamma when every row was added; `deviation` (NULL: none) [width] is what the
 * factors add, 1 standard deviation.                                              G2 */
void backward_dgamma(judge_trial *trial, const backward_norm *out,
                     const double *deviation, int by_file);

/* dlogit [k] of the chosen from their logits and dp.                              G3 */
void backward_choice(const judge_trial *trial, const double *logit, const double *dp,
                     arb_ptr want, double *bound);

/* Whether dlogit is exactly 0 everywhere: the ratio of one is constant.           G5 */
int backward_is_constant(const slm_config *config);

/* Row t of dlogit where it was not chosen: exactly 0. Opens the stage.            G3 */
void backward_unchosen(judge_trial *trial, const int32_t *ids, size_t t);

#endif
