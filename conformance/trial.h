/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/trial.h - the judge's own: one outcome tried, stage by stage, element by
 * element.
 *
 * A stage is an output field. It is opened, its elements are checked in any number, and
 * the first that is out of bounds becomes the verdict's place. Stages are opened in
 * order of the data flow. */
#ifndef SLM_TRIAL_H
#define SLM_TRIAL_H

#include "bounds.h"
#include "compare.h"
#include "judge.h"

/* What can be asked of a token: everything; a NaN logit made it poisoned (R4): ids in
 * range and y all NaN; its ids are no ids, so nothing after them can be judged. */
enum { ROW_SOUND, ROW_POISONED, ROW_LOST };

typedef struct judge_trial {
    const vec_case *test;
    const call_frame *frame;
    const vec_outcome *outcome; /* the one that is tried                    */
    bound_rules rules;
    judge_verdict *verdict;
    unsigned char *rows; /* [T]: ROW_SOUND, ROW_POISONED, ROW_LOST          */

    /* The open stage. */
    judge_stage *stage;
    const char *clause;
    const slm_tensor *tensor;
    const vec_tensor *golden;  /* the file's values, or NULL                */
    const judge_stage *guilty; /* stage of the verdict's place, or NULL     */
} judge_trial;

/* Memory for n elements of a size, zeroed; never NULL (FLINT ends the process when
 * there is none, as it does under every ball). Release with stage_release(). */
void *stage_array(size_t n, size_t size);
void stage_release(void *array);

/* The tensor of an output that the backend wrote; NULL when the operation has none, it
 * was not asked for, or it is an optional output that was left alone. */
const slm_tensor *stage_written(const judge_trial *trial, const char *field);

/* Begin with a field's elements, or go on with them. `field` is static text. */
void stage_open(judge_trial *trial, const char *field);

/* The same for elements that must be NaN because their inputs are not numbers.    R4 */
void stage_open_nan(judge_trial *trial, const char *field);

/* The same for elements that another clause than the field's decides. */
void stage_open_under(judge_trial *trial, const char *field, const char *clause);

/* The clause that an operation's field is judged under. */
const char *stage_clause(slm_op op, const char *field);

/* Element against the number in a ball: |got - want| <= bound. When the file gives that
 * element and `by_file` is set, its golden value is what is wanted. A NaN of the file
 * wants NaN. A ball that is not finite, or an infinite bound, decides nothing. */
void stage_real(judge_trial *trial, size_t index, const arb_t want, double bound,
                int by_file);

/* The same with a number that a double holds well enough: its own error is part of the
 * bound. Cheap, for tensors of millions; the file is not asked. */
void stage_double(judge_trial *trial, size_t index, double want, double bound);

/* Element that must be this very value; NaN wants NaN. */
void stage_exact(judge_trial *trial, size_t index, double want);
void stage_integer(judge_trial *trial, size_t index, int64_t want);

/* n elements from `first` on that must be 0. Cheap, for tensors of millions. */
void stage_zeros(judge_trial *trial, size_t first, size_t n);

/* Record the outcome of a check of another kind: `multiple` of its bound was used (<= 1
 * is good); got and want are for people. */
void stage_record(judge_trial *trial, size_t index, double multiple, const char *got,
                  const char *want);

/* The same for something that had to match exactly: there is no bound to be a multiple
 * of. */
void stage_record_exact(judge_trial *trial, size_t index, int same, const char *got,
                        const char *want);

/* The verdict fails in words; the first failure stays. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void stage_fail(judge_trial *trial, const char *clause, const char *reason, ...);

/* A row of a rank-1 view as doubles. */
void stage_row(double *out, const slm_tensor *row);
void stage_balls(arb_ptr out, const double *values, size_t n);

/* Midpoint of a ball as a double, and in *radius what a double does not hold of it. */
double stage_middle(const arb_t ball, double *radius);

/* y[i] = sum_j w[i,j] x[j] by live ref, and what bounds.h wants to know of each sum,
 * added to dots[i]. dx NULL: x is exact. w is [rows, cols]; a sum that is not finite
 * gets an infinite gauge. */
void stage_linear(const judge_trial *trial, arb_ptr y, bound_dot *dots,
                  const slm_tensor *w, const double *x, const double *dx);

/* y[j] = sum_i w[i,j] x[i], what a linear layer does to a gradient; x is exact. y and
 * dots [cols] are added to.                                                      G4 */
void stage_transposed(const judge_trial *trial, arb_ptr y, bound_dot *dots,
                      const slm_tensor *w, const double *x);

/* What is known of a stage's elements for one token: the backend's own numbers when it
 * tapped them, else ref's with the radius that its bounds leave. */
typedef struct stage_known {
    const slm_tensor *tap; /* NULL: not written   */
    size_t width;          /* elements of a token */
    double *value;         /* [width]             */
    double *radius;        /* [width]             */
} stage_known;

stage_known stage_know(const judge_trial *trial, const char *field, size_t width);
void stage_forget(stage_known *known);

/* Its radii for stage_linear(): NULL when the numbers are the backend's own. */
const double *stage_radius(const stage_known *known);

/* Element i of token t is wanted to be within bound of a ball. Judges it when it was
 * tapped (its stage must be open), and keeps what the next stage is to use. */
void stage_settle(judge_trial *trial, stage_known *known, size_t t, size_t i,
                  const arb_t want, double bound, int by_file);

/* The sums of x under one of the [rows, cols] matrices before an activation, and the
 * error of each: stored with roundoff v where that is coarser than binary32.      A1 */
void stage_sums(const judge_trial *trial, arb_ptr want, double *error,
                const slm_tensor *w, const double *x, const double *dx, double v);

/* The activations of x under [rows, cols] gate and up matrices: want[i] and bound[i],
 * storage with roundoff v included. Without a gate w_gate is NULL.        L1, L3, L4 */
void stage_inner(const judge_trial *trial, arb_ptr want, double *bound,
                 const slm_tensor *w_gate, const slm_tensor *w_up, const double *x,
                 const double *dx, double v);

/* Activation of a and b with radii da and db: want and bound as above. */
void stage_activation(const judge_trial *trial, arb_t want, double *bound,
                      const arb_t a, double da, const arb_t b, double db, double v);

/* Element i of token t of an activation: within its bound, and never beyond the limit
 * of the caps, stored with roundoff v.                                            L1 */
void stage_settle_activation(judge_trial *trial, stage_known *known, size_t t, size_t i,
                             const arb_t want, double bound, double v, int by_file);

/* r of u (radii du, NULL: exact): want[i] and bound[i], storage included. gamma NULL
 * means ones. Outside the domain, where squares overflow binary32, bounds are infinite.
 *                                                                                 L2 */
void stage_rmsnorm(const judge_trial *trial, arb_ptr want, double *bound,
                   const double *u, const double *du, const double *gamma, size_t width,
                   double v);

/* ---- inputs that are not finite ----                                            R4 */

/* Whether token t may be poisoned, so that its taps and weights say nothing. */
int trial_may_be_poisoned(const call_frame *frame, size_t t);

/* Whether the backend gave token t up, and may: its row of the output is all NaN, and a
 * weight that it uses is not finite. Its taps then say nothing. */
int trial_is_given_up(const call_frame *frame, const char *output, size_t t);

/* ---- the operations ---- */

/* Routing: logit, score, ids, cutoff, weight of route, select and layer_forward.
 * Fills trial->rows. */
void judge_routing(judge_trial *trial);

/* The logits and weights that a backward pass showed: from x and the given ids. R1, R3 */
void judge_recomputed_routing(judge_trial *trial);

/* The stages of layer_forward after routing; situ_glu, dense_ffn, rmsnorm. */
void judge_layer(judge_trial *trial);
void judge_situ_glu(judge_trial *trial);
void judge_dense_ffn(judge_trial *trial);
void judge_rmsnorm(judge_trial *trial);

/* The backward operations: each gradient from the backend's own values where it showed
 * all of them, else by the envelope.                                         G1-G5 */
void judge_situ_glu_backward(judge_trial *trial);
void judge_rmsnorm_backward(judge_trial *trial);
void judge_select_backward(judge_trial *trial);
void judge_dense_ffn_backward(judge_trial *trial);
void judge_layer_backward(judge_trial *trial);

/* Balancing, permute and load_metrics: against live ref's own outputs. */
void judge_counts(judge_trial *trial);

/* 1 when rounding under the declared arithmetic may have turned the wanted outcome of a
 * strict balancing, OK or TIE, into the other, which is `status`.                 Q2 */
int judge_tie_is_free(const judge_trial *trial, slm_status status);
void judge_hist_accumulate(judge_trial *trial);

/* The state of a step: counts, stamp and bias.                                Q4, Q8 */
void judge_observe(judge_trial *trial);
void judge_commit(judge_trial *trial);

#endif
