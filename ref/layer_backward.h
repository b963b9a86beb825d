/* SPDX-License-Identifier: Apache-2.0 */
/* ref/layer_backward.h - what the two files of layer_backward share. */
#ifndef SLM_REF_LAYER_BACKWARD_H
#define SLM_REF_LAYER_BACKWARD_H

#include "internal.h"

/* Letters as in layer_backward.c. "kept": rows of every token, since the gradient of a
 * weight needs them; the rest is of one token. */
typedef struct slm_ref_layer_work {
    const slm_config *config;
    const slm_weights *weights;
    const slm_layer_backward_args *args;
    size_t n_tokens, d, l, n, k, f, fs; /* fs: of all shared experts together */
    fmpq_t eps;
    int32_t *ids;           /* [T, k]  the choice               */
    size_t *slot;           /* [T k]   slots of one expert      */
    size_t *token;          /* [T k]   their tokens             */
    arb_ptr gamma;          /* [l], NULL: ones                  */
    arb_ptr x;              /* [T, d]  kept                     */
    arb_ptr dy;             /* [T, d]  kept                     */
    arb_ptr z;              /* [T, l]  kept                     */
    arb_ptr h;              /* [T, k, f]  kept                  */
    arb_ptr r;              /* [T, l]  kept                     */
    arb_ptr hs;             /* [T, fs]  kept                    */
    arb_ptr v;              /* [T, k, l]  kept                  */
    arb_ptr dgate_up;       /* [T, k, 2f]  kept                 */
    arb_ptr dz;             /* [T, l]  kept                     */
    arb_ptr dlogit;         /* [T, n]  kept                     */
    arb_ptr dshared;        /* [T, 2fs]  kept                   */
    arb_ptr logit;          /* [n]                              */
    arb_ptr score;          /* [n]                              */
    arb_ptr p;              /* [k]                              */
    arb_ptr gate_up;        /* [k, 2f]                          */
    arb_ptr o;              /* [k, l]                           */
    arb_ptr u;              /* [l]                              */
    arb_ptr shared_gate_up; /* [2fs]                            */
    arb_ptr dr;             /* [l]                              */
    arb_ptr du;             /* [l]                              */
    arb_ptr dp;             /* [k]                              */
    arb_ptr dh;             /* [k, f]                           */
    arb_ptr dhs;            /* [fs]                             */
    arb_ptr dx;             /* [d]                              */
    arb_ptr part;           /* [max(d, l)] one addend of dz, dx */
    arb_ptr term;           /* [l] one addend of dgamma         */
    arb_ptr dgamma;         /* [l]                              */
} slm_ref_layer_work;

/* Token t, forward at the given choice and backward: fills the kept rows, adds to
 * dgamma and puts everything that has T rows. When these bits do not show that
 * mean(u^2) + eps > 0, that is noted as unproved, and nothing is put.         G1-G5 */
slm_status slm_ref_layer_token(slm_ref_layer_work *work, size_t t, slong prec,
                               slm_ref_draft *draft, slm_error *error);

#endif
