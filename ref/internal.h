/* SPDX-License-Identifier: Apache-2.0 */
/* ref/internal.h - what the reference's files share: handle, operations, drafts. */
#ifndef SLM_REF_INTERNAL_H
#define SLM_REF_INTERNAL_H

#include "ref.h"

#ifdef __FAST_MATH__
#error "the reference is exact: build it without -ffast-math"
#endif

/* From this precision on, products and sums of exact balls stay exact: a value that
 * lies on a rounding boundary is then seen to lie there. */
enum { SLM_REF_EXACT = 1024 };

struct slm_handle {
    slm_config config;
    slm_weights weights; /* of prepare(); the tensors are the caller's */
};

/* slm_ref_op_route, slm_ref_op_select, ...: the members of the table. Arguments have
 * passed slm_check(); NONFINITE, TARGET and TIE are the operation's own.         X1 */
#define SLM_REF_OP(name, level, purpose)                                               \
    slm_status slm_ref_op_##name(slm_handle *handle, const slm_##name##_args *args,    \
                                 slm_error *error);
SLM_OPS(SLM_REF_OP)
#undef SLM_REF_OP

/* ---- round.c ---- */

/* Store a value that the element type holds exactly, by row-major index. */
void slm_ref_set(const slm_tensor *tensor, size_t index, double value);

/* Round a ball to f32, bf16 or f64; *out is that element, as a double. 1 when proved. */
int slm_ref_round(double *out, const arb_t value, slm_dtype dtype);

/* ---- draft.c: outputs in the making, written when everything is proved ---- */

enum { SLM_REF_OUTPUTS = 40 };

typedef struct slm_ref_output {
    const slm_field *field;
    const slm_tensor *tensor; /* the caller's                           */
    size_t width;             /* elements at one first index            */
    double *value;            /* row-major; 0 where nothing was put     */
    int filled;               /* 0: never put, and so left untouched    */
} slm_ref_output;

/* Is handed each ball that is put, before it is rounded. */
typedef void slm_ref_watch(void *watcher, const char *name, size_t index,
                           const arb_t value);

typedef struct slm_ref_draft {
    const slm_op_info *info;
    const slm_call *call;
    size_t n_outputs; /* those the caller asked for */
    slm_ref_output outputs[SLM_REF_OUTPUTS];
    slm_ref_watch *watch; /* NULL: nobody watches */
    void *watcher;
    size_t units;               /* of work: tokens, and for slm_ref_whole one more */
    size_t steps;               /* progress reports a unit, at least 1             */
    const char *unproved_field; /* of this row at this precision; NULL: none    */
    size_t unproved_index;
} slm_ref_draft;

/* A draft of every output that is present in `args`, an argument struct of `op`. For
 * slm_ref_each_token all outputs must have T as first dimension. SLM_ERR_MEMORY leaves
 * nothing to close. */
slm_status slm_ref_draft_open(slm_ref_draft *draft, slm_op op, const void *args,
                              slm_error *error);
void slm_ref_draft_close(slm_ref_draft *draft);

/* Row `token` of the output of that name; nothing happens when it was not asked for.
 * A ball that does not yet round to one element is noted as unproved. */
void slm_ref_put(slm_ref_draft *draft, const char *name, size_t token, arb_srcptr row);
void slm_ref_put_f32(slm_ref_draft *draft, const char *name, size_t token,
                     const float *row);
void slm_ref_put_i32(slm_ref_draft *draft, const char *name, size_t token,
                     const int32_t *row);

/* The n elements of an output from the row-major index `first` on. */
void slm_ref_put_at(slm_ref_draft *draft, const char *name, size_t first,
                    arb_srcptr value, size_t n);

/* The output of that name, NULL when the caller did not ask for it. */
slm_ref_output *slm_ref_find(slm_ref_draft *draft, const char *name);

/* Rounds n elements from `first` on; returns the index of the first that is not proved,
 * or SIZE_MAX, and notes nothing: threads may do so for different elements. */
size_t slm_ref_round_at(const slm_ref_draft *draft, const slm_ref_output *output,
                        size_t first, arb_srcptr value, size_t n);

/* Note that a value the row depends on is not proved at this precision. */
void slm_ref_unproved(slm_ref_draft *draft, const char *name, size_t index);

/* Report that `step` of the `steps` of a unit, a token, are done; what is evaluated
 * again with more bits reports its steps again. */
void slm_ref_progress(const slm_ref_draft *draft, size_t unit, size_t step);

/* Evaluates one token at `prec` bits and puts its rows. */
typedef slm_status slm_ref_row(void *work, size_t token, slong prec,
                               slm_ref_draft *draft, slm_error *error);

/* Every token with SLM_REF_FIRST bits, then doubled until its row is proved; then, and
 * only then, all outputs are written. */
slm_status slm_ref_each_token(slm_ref_draft *draft, slm_ref_row *row, void *work,
                              slm_error *error);

/* Evaluates all tokens and the sums over them at `prec` bits and puts every output. */
typedef slm_status slm_ref_pass(void *work, slong prec, slm_ref_draft *draft,
                                slm_error *error);

/* The whole call with SLM_REF_FIRST bits, then doubled until everything is proved;
 * then, and only then, all outputs are written, 0 where the pass put nothing. */
slm_status slm_ref_whole(slm_ref_draft *draft, slm_ref_pass *pass, void *work,
                         slm_error *error);

/* ---- outer.c ---- */

/* n rows of `width` balls: row c begins at value + (row ? row[c] : c) step. */
typedef struct slm_ref_rows {
    arb_srcptr value;
    size_t step;
    size_t width;
    const size_t *row;
} slm_ref_rows;

/* A weight's gradient: element (i, j) of left.width x right.width, put from the
 * row-major index `first` of the output on, is the sum over c < n of
 * left[c, i] right[c, j]. */
void slm_ref_put_outer(slm_ref_draft *draft, const char *name, size_t first,
                       const slm_ref_rows *left, const slm_ref_rows *right, size_t n,
                       slong prec);

/* ---- ffn.c ---- */

/* Sum of a[i a_step] b[i b_step], i < n; exact when SLM_REF_EXACT allows it. */
void slm_ref_dot(arb_t out, arb_srcptr a, slong a_step, arb_srcptr b, slong b_step,
                 slong n, slong prec);

/* h = act(x w_gate^T, x w_up^T), both [rows, cols]; gate [rows] is scratch and not
 * touched for relu. 0 when a weight or x is not finite; *index is then its row. L1, L3 */
int slm_ref_inner(arb_ptr h, arb_ptr gate, const slm_tensor *w_gate,
                  const slm_tensor *w_up, arb_srcptr x, const slm_config *config,
                  size_t *index, slong prec);

/* The same with the sums kept: gate_up [2 rows] gate first, then up; gated kinds alone.
 *                                                                            L1, G1 */
int slm_ref_inner_sums(arb_ptr gate_up, arb_ptr h, const slm_tensor *w_gate,
                       const slm_tensor *w_up, arb_srcptr x, const slm_config *config,
                       size_t *index, slong prec);

/* dgate_up [2 rows] from dh [rows]; dx [cols] += da w_gate + db w_up. part [cols] is
 * scratch.                                                                       G1 */
void slm_ref_inner_backward(arb_ptr dx, arb_ptr dgate_up, arb_ptr part, arb_srcptr dh,
                            arb_srcptr gate_up, const slm_tensor *w_gate,
                            const slm_tensor *w_up, const slm_config *config,
                            slong prec);

/* ---- layer_gradients.c ---- */

/* The gradients at `prec` bits, each element of each output that is present handed to
 * `watch` as a ball; nothing is written. SLM_ERR_INTERNAL when these bits do not reach
 * to the end.                                                               G1-G5 */
slm_status slm_ref_watch_layer_backward(slm_handle *handle,
                                        const slm_layer_backward_args *args, slong prec,
                                        slm_ref_watch *watch, void *watcher,
                                        slm_error *error);

/* ---- select.c ---- */

/* Whether the chosen balls are one and the same number. */
int slm_ref_all_equal(arb_srcptr value, const int32_t *ids, size_t k);

/* weight [k] from real logits [n] and the chosen ids; scores are sigmoids, score [n] is
 * scratch.                                                                       R3 */
void slm_ref_weights_of_logits(arb_ptr weight, arb_ptr score, arb_srcptr logit,
                               const int32_t *ids, const slm_config *config,
                               slong prec);

/* One token's routing: n experts, k chosen. */
typedef struct slm_ref_routing {
    size_t n;
    size_t k;
    arb_ptr logit;  /* [n] real                                  */
    arb_ptr real;   /* [n] real scores                           */
    arb_ptr weight; /* [k] real                                  */
    float *score;   /* [n] RN32 of the real scores               */
    float *key;     /* [n] RN32(score + bias)                    */
    int32_t *ids;   /* [k]                                       */
} slm_ref_routing;

slm_status slm_ref_routing_open(slm_ref_routing *routing, const slm_config *config,
                                const char *op, slm_error *error);
void slm_ref_routing_close(slm_ref_routing *routing);

/* Logits of x, then scores, choice and weights; puts logit, score, ids, weight, cutoff.
 * Without a proof of every score nothing is chosen, and the draft says so.   R1-R4 */
slm_status slm_ref_route_token(slm_ref_routing *routing, arb_srcptr x,
                               const slm_tensor *w_router, const slm_tensor *bias,
                               const slm_config *config, size_t token, slong prec,
                               slm_ref_draft *draft, slm_error *error);

/* ---- layer.c ---- */

/* NONFINITE of the layer's operations: their inputs, and gamma when it is used. */
slm_status slm_ref_layer_finite(const slm_handle *handle, slm_op op, const void *args,
                                slm_error *error);

/* ---- round.c: what is finite ---- */

/* Row-major index of the first NaN or infinity of a tensor, or its count. */
size_t slm_ref_first_nonfinite(const slm_tensor *tensor);

/* Position of the first ball that is not a real number, or n. */
size_t slm_ref_first_unreal(arb_srcptr value, size_t n);

#endif
