/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_gradient.h - private: the parts of the backward passes. */
#ifndef SLM_SCALAR_GRADIENT_H
#define SLM_SCALAR_GRADIENT_H

#include "scalar.h"

/* The handle of a backward call: a mutant of another operation is right here. */
slm_handle scalar_backward_handle(const slm_handle *handle);

/* A stored gradient of an activation, and a stored sum of the forward that has no stage
 * of its own (gate_up). */
void scalar_gradient_stage(const slm_handle *handle, float *value, size_t n);
void scalar_sum_stage(const slm_handle *handle, float *value, size_t n);

/* An output of rank 1 to 3 from packed values; nothing when it is absent. */
void scalar_write(const slm_tensor *tensor, const float *value);

/* The same for a tap. */
void scalar_write_tap(const slm_handle *handle, const slm_tensor *tensor,
                      const float *value);

/* Packed rows of a view [T, width] into memory. */
void scalar_read(float *out, const slm_tensor *tensor);

/* ---- scalar_gated.c ---- */

/* A gated network: its weights and, at one row, what a token leaves in it. */
typedef struct scalar_gated {
    slm_tensor w_gate; /* [width, in]  */
    slm_tensor w_up;   /* [width, in]  */
    slm_tensor w_out;  /* [out, width] */
    size_t width;
    float *gate_up;  /* [2 width] */
    float *h;        /* [width]   */
    float *dh;       /* [width]   */
    float *dgate_up; /* [2 width] */
} scalar_gated;

/* Room for that many rows; the weights are the caller's to fill in. */
void scalar_gated_take(scalar_gated *all, scalar_scratch *scratch, size_t rows,
                       size_t width);

/* Row `index` of it. */
scalar_gated scalar_gated_row(const scalar_gated *all, size_t index);

/* gate_up and h of x; `copy` has room for a row of a weight. */
void scalar_gated_forward(const slm_handle *handle, const scalar_gated *at,
                          const float *x, float *copy);

/* dgate_up from dh and gate_up.                                                   G1 */
void scalar_gated_backward(const slm_handle *handle, const scalar_gated *at);

/* sum += a w, w [rows, cols]; `part` has room for cols, `copy` for rows. */
void scalar_add_product(const slm_handle *handle, float *sum, const slm_tensor *w,
                        const float *a, float *part, float *copy);

/* sum += da w_gate + db w_up, gate first. */
void scalar_gated_add_input(const slm_handle *handle, float *sum,
                            const scalar_gated *at, float *part, float *copy);

/* ---- scalar_outer.c: gradients of weights ---- */

/* Rows of a factor: that of number i lies at value + i / share * step. */
typedef struct scalar_factor {
    const float *value;
    size_t step;
    size_t share; /* k for a row a token where the numbers are pairs, else 1 */
} scalar_factor;

/* The rows to sum over, and room for columns of the factors. */
typedef struct scalar_sum {
    const int64_t *order; /* their numbers; NULL: 0, 1, 2, ...          */
    size_t n;
    int is_expert;  /* the rows are those of one expert            */
    float *column;  /* [T]                                         */
    float *columns; /* [widest factor, T]                          */
} scalar_sum;

void scalar_sum_take(scalar_sum *sum, scalar_scratch *scratch, size_t n_tokens,
                     size_t widest);

/* out[i,j] = sum over rows of a[i] b[j]; nothing when out is absent. */
void scalar_outer(const slm_handle *handle, const scalar_sum *sum,
                  const slm_tensor *out, scalar_factor a, scalar_factor b);

/* out[i] = sum over rows of a[i] b[i]. */
void scalar_inner_sum(const slm_handle *handle, const scalar_sum *sum,
                      const slm_tensor *out, scalar_factor a, scalar_factor b);

/* dw_gate, dw_up and dw_out of a network's rows; x is what it read, dy the gradient of
 * what it gave. */
void scalar_gated_outer(const slm_handle *handle, const scalar_sum *sum,
                        const scalar_gated *all, scalar_factor x, scalar_factor dy,
                        const slm_tensor *dw_gate, const slm_tensor *dw_up,
                        const slm_tensor *dw_out);

/* ---- scalar_backward.c ---- */

/* du [l] and the normalised row n = u / R [l]; gamma NULL means ones.             G2 */
void scalar_norm_backward(const slm_handle *handle, float *du, float *normal,
                          const float *u, const float *gamma, const float *dr);

/* dgamma from rows of dr and of n, or what mutants take for n. */
void scalar_gamma_backward(const slm_handle *handle, const scalar_sum *sum,
                           const slm_tensor *dgamma, const float *dr,
                           const float *normal, const float *u, const float *r);

/* ---- scalar_weight_backward.c ---- */

/* Weights [k] of the chosen from their logits.                                    R3 */
void scalar_weights_of(const slm_handle *handle, float *weight, const float *logit,
                       const int32_t *ids);

/* dlogit [n] from the weights and their gradients.                                G3 */
void scalar_weight_backward(const slm_handle *handle, float *dlogit, const float *logit,
                            const int32_t *ids, const float *weight,
                            const float *dweight);

/* ---- the layer: scalar_layer_backward.c, scalar_layer_gradient.c ---- */

/* Every stage of every token, forward and backward. */
typedef struct scalar_tape {
    size_t n_tokens;
    float *x, *dy;       /* [T, d]     */
    int32_t *ids;        /* [T, k]     */
    float *logit;        /* [T, n]     */
    float *weight;       /* [T, k]     */
    float *z;            /* [T, l]     */
    float *o;            /* [T, k, l]  */
    float *u, *normal;   /* [T, l]     */
    float *r;            /* [T, l]     */
    float *dr, *du;      /* [T, l]     */
    float *dweight;      /* [T, k]     */
    float *dlogit;       /* [T, n]     */
    float *weighted;     /* [T, k, l]  the gradient of o: p du           */
    float *dz;           /* [T, l]     */
    float *dz_first;     /* [T, l]     the share of the first slot       */
    float *dx;           /* [T, d]     */
    float *dbias;        /* [n]        */
    float *gamma;        /* [l]        */
    float *padded;       /* [T, d]     z taken for x by a mutant         */
    float *part, *copy;  /* [widest]   */
    scalar_gated routed; /* T k rows; the weights are those of all experts */
    scalar_gated shared; /* T rows     */
    int64_t *counts;     /* [n]        */
    int64_t *offsets;    /* [n + 1]    */
    int64_t *order;      /* [T k]      */
    scalar_sum sum;
} scalar_tape;

/* Every gradient of an activation of token t, from its forward. */
void scalar_token_backward(const slm_handle *handle, const scalar_tape *at, size_t t);

/* Every gradient of a weight. */
void scalar_weights_backward(const slm_handle *handle, const scalar_tape *at,
                             const slm_layer_backward_args *args);

/* Matrix of the expert of pair `pair`. */
slm_tensor scalar_expert_matrix(const scalar_tape *at, const slm_tensor *all,
                                size_t pair);

/* The network of that pair. */
scalar_gated scalar_expert_row(const scalar_tape *at, size_t pair);

#endif
