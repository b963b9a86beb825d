/* SPDX-License-Identifier: Apache-2.0 */
/* slm/slm.h - the words of the contract: status, tensor, configuration, arguments.
 *
 * Clauses (R2, Q1, ...) are numbered in spec/spec.md. Arrays are row-major; a shape is
 * written [rows, cols]. Letters: T tokens, d model width, l latent width, n routed
 * experts, k chosen per token, f expert inner width, S shared experts, fs their inner
 * width, B histogram bins, R parts of a batch. Sizes and strides count elements, never
 * bytes. Compiles as C99 and as C++. */
#ifndef SLM_SLM_H
#define SLM_SLM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "slm: big-endian machines are not supported"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Outcome of a call, in order of precedence: when several apply, the first is
 * reported. On anything but SLM_OK every output is untouched.                    X1 */
typedef enum slm_status {
    SLM_OK = 0,
    SLM_ERR_SHAPE, /* sizes, dtypes or presence disagree, or a product overflows */
    SLM_ERR_ALIAS, /* an output or the workspace overlaps another argument    */
    SLM_ERR_UNSUPPORTED, /* lawful, but this backend does not do it                 */
    SLM_ERR_DOMAIN,      /* a value outside its clause's domain                     */
    SLM_ERR_NONFINITE,   /* NaN or infinity where the clause has none               */
    SLM_ERR_TARGET,      /* the equal load m k / n is not an integer             Q2 */
    SLM_ERR_TIE,         /* the balancing boundary is not unique                 Q2 */
    SLM_ERR_MEMORY,      /* an allocation failed                                    */
    SLM_ERR_INTERNAL,    /* a fault of the implementation itself                    */
    SLM_STATUS_COUNT
} slm_status;

enum { SLM_NAME = 32, SLM_EXPECTED = 160, SLM_MAX_RANK = 4 };

/* What was wrong, for people. Filled when a call fails; the caller owns it and may pass
 * NULL. `index` is the row-major position of the first offending element, else 0. */
typedef struct slm_error {
    slm_status status;
    char op[SLM_NAME];           /* the operation, "select"             */
    char field[SLM_NAME];        /* the argument, "bias"                */
    size_t index;                /* first offending element             */
    char expected[SLM_EXPECTED]; /* "finite", "1 <= k <= n, n is 64"    */
} slm_error;

typedef enum slm_dtype {
    SLM_F32 = 0,
    SLM_BF16, /* upper half of a binary32 */
    SLM_F64,
    SLM_I32,
    SLM_I64,
    SLM_DTYPE_COUNT
} slm_dtype;

typedef enum slm_space {
    SLM_HOST = 0,
    SLM_DEVICE /* memory of the backend's own alloc() */
} slm_space;

/* A view of elements that somebody else owns. Element (i, j, ...) lies at
 * data + (i stride[0] + j stride[1] + ...) elements. Aligned to its element size and to
 * nothing more. An absent optional argument has rank 0; an empty one (T = 0) has its
 * rank and shape, and data may then be NULL. Inputs are never written. */
typedef struct slm_tensor {
    void *data;
    slm_dtype dtype;
    slm_space space;
    uint32_t rank;
    size_t shape[SLM_MAX_RANK];
    ptrdiff_t stride[SLM_MAX_RANK];
} slm_tensor;

typedef enum slm_score_function {
    SLM_SCORE_SIGMOID = 0, /* R2 */
    SLM_SCORE_SOFTMAX      /* L4: a control, not K3 */
} slm_score_function;

typedef enum slm_weighting {
    SLM_WEIGHT_RATIO = 0, /* p = s / sum of the chosen s, also for k = 1         R3 */
    SLM_WEIGHT_RELEASE    /* k > 1: s / (sum + 1e-20); k = 1: p = s              R3 */
} slm_weighting;

typedef enum slm_expert_kind {
    SLM_EXPERT_SITU = 0, /* SiTU-GLU                                             L1 */
    SLM_EXPERT_SWIGLU,   /* a sigma(a) b: a control                              L4 */
    SLM_EXPERT_RELU,     /* max(0, b), no gate: a control                        L4 */
    SLM_EXPERT_LINEAR,   /* one matrix an expert: the note's minimal structure   L4 */
    SLM_EXPERT_KINDS
} slm_expert_kind;

typedef enum slm_norm {
    SLM_NORM_RMS = 0, /* L2 */
    SLM_NORM_NONE     /* L4: a control, not K3 */
} slm_norm;

typedef enum slm_balance {
    SLM_BALANCE_STRICT = 0, /* refuses ties and non-integral targets             Q2 */
    SLM_BALANCE_RELAXED     /* takes the order statistic regardless              Q2 */
} slm_balance;

typedef enum slm_tie_test {
    SLM_TIE_NOTE = 0, /* gap <= 1e-8 + 1e-5 |r_(q+1)|, evaluated exactly         Q2 */
    SLM_TIE_EQUAL     /* gap = 0                                                 Q2 */
} slm_tie_test;

/* Everything that is not a tensor. A size that an operation does not use is ignored.
 * `struct_size` is sizeof(slm_config) of whoever filled it; members are only appended.
 * eps stands for the decimal of fewest digits that reads back as this binary64, so
 * 1e-6 means 10^-6 exactly.                                                      X3 */
typedef struct slm_config {
    size_t struct_size;
    size_t d_model;   /* d                    */
    size_t d_latent;  /* l                    */
    size_t n_experts; /* n                    */
    size_t top_k;     /* k                    */
    size_t d_expert;  /* f                    */
    size_t n_shared;  /* S                    */
    size_t d_shared;  /* fs, of one of the S  */
    size_t n_bins;    /* B                 Q3 */
    slm_dtype dtype;  /* of x, y and the weights: SLM_F32 or SLM_BF16 */
    slm_score_function score;
    slm_weighting weighting;
    slm_expert_kind expert;
    slm_norm norm;
    slm_balance balance;
    slm_tie_test tie_test;
    double eps;       /* > 0                       L2 */
    double beta_gate; /* > 0; K3: 4                L1 */
    double beta_up;   /* > 0; K3: 25               L1 */
    double rate;      /* of the sign step, > 0, a binary32 value  Q6 */
} slm_config;

/* What every call carries. The workspace belongs to the caller, holds at least what
 * the table's workspace() asked for, aligned to 64 bytes, and its content means nothing
 * before and after. `struct_size` is the size of the whole argument struct that begins
 * with this member. progress may be NULL; a slow implementation may call it. */
typedef struct slm_call {
    size_t struct_size;
    size_t n_tokens; /* T; for balancing the m tokens of the statistic */
    size_t n_parts;  /* R, only for qb_hist_merge                      */
    void *workspace;
    size_t workspace_size; /* bytes */
    void *stream;          /* the device's queue, NULL on a host */
    void (*progress)(void *user, size_t done, size_t total);
    void *progress_user;
    void *reserved[4]; /* NULL; room for later members */
} slm_call;

/* Weights of one layer, given once to prepare(). [out, in] as in y = x W^T. Which
 * members are present depends on config.expert (see slm/ops.h). */
typedef struct slm_weights {
    size_t struct_size;
    slm_tensor w_router;      /* [n, d]                                          R1 */
    slm_tensor w_down;        /* [l, d]                                             */
    slm_tensor w_gate;        /* [n, f, l]   situ, swiglu                           */
    slm_tensor w_up;          /* [n, f, l]   situ, swiglu, relu                     */
    slm_tensor w_out;         /* [n, l, f]   situ, swiglu, relu                     */
    slm_tensor w_expert;      /* [n, l, l]   linear                                 */
    slm_tensor gamma;         /* [l]         optional: absent means ones         L2 */
    slm_tensor w_lift;        /* [d, l]                                             */
    slm_tensor w_shared_gate; /* [S fs, d]   situ, swiglu                        L3 */
    slm_tensor w_shared_up;   /* [S fs, d]   situ, swiglu, relu                  L3 */
    slm_tensor w_shared_out;  /* [d, S fs]   situ, swiglu, relu                  L3 */
    slm_tensor w_shared;      /* [S, d, d]   linear                              L3 */
} slm_weights;

/* One argument struct an operation; what each operation does stands in slm/ops.h.
 * "tap" marks an optional output: the very value that the next stage used. */

/* Score, choose, weigh.                                                      R1-R4 */
typedef struct slm_route_args {
    slm_call call;
    slm_tensor x;        /* [T, d]  dtype of the config                     */
    slm_tensor w_router; /* [n, d]  dtype of the config                     */
    slm_tensor bias;     /* [n]     f32, finite; for the choice only        */
    slm_tensor ids;      /* [T, k]  out i32: best first, distinct           */
    slm_tensor weight;   /* [T, k]  out f32: raw scores, weighted as R3 says */
    slm_tensor cutoff;   /* [T]     tap f32: the (k+1)-th key; untouched if k = n */
    slm_tensor logit;    /* [T, n]  tap f32                                 */
    slm_tensor score;    /* [T, n]  tap f32                                 */
} slm_route_args;

/* Choose and weigh from given scores, or from given logits.                 R2-R4
 * Exactly one of score and logit is present. */
typedef struct slm_select_args {
    slm_call call;
    slm_tensor score;  /* [T, n]  f32 in [0, 1]                             */
    slm_tensor logit;  /* [T, n]  f32                                       */
    slm_tensor bias;   /* [n]     f32, finite                               */
    slm_tensor ids;    /* [T, k]  out i32                                   */
    slm_tensor weight; /* [T, k]  out f32                                   */
    slm_tensor cutoff; /* [T]     tap f32; untouched if k = n               */
} slm_select_args;

/* Group the (token, slot) pairs by expert, stably.                          R5, L5 */
typedef struct slm_permute_args {
    slm_call call;
    slm_tensor ids;     /* [T, k]    i32, distinct within a row, in 0..n-1  */
    slm_tensor counts;  /* [n]       out i64                                */
    slm_tensor offsets; /* [n + 1]   out i64: offsets[e] = sum of counts before e */
    slm_tensor order;   /* [T k]     out i64: t k + slot, by expert, then ascending */
} slm_permute_args;

/* h = b1 tanh(a/b1) sigma(a) b2 tanh(b/b2) for each pair.                       L1 */
typedef struct slm_situ_glu_args {
    slm_call call;
    slm_tensor gate_up; /* [T, 2f]  dtype of the config: gate a first, then up b  */
    slm_tensor h;       /* [T, f]   out                                     */
} slm_situ_glu_args;

/* y = act(x W_gate^T, x W_up^T) W_out^T at width d.                          L1, L3 */
typedef struct slm_dense_ffn_args {
    slm_call call;
    slm_tensor x;      /* [T, d]                                            */
    slm_tensor w_gate; /* [f, d]   situ, swiglu                             */
    slm_tensor w_up;   /* [f, d]                                            */
    slm_tensor w_out;  /* [d, f]                                            */
    slm_tensor y;      /* [T, d]   out                                      */
    slm_tensor h;      /* [T, f]   tap                                      */
} slm_dense_ffn_args;

/* r = gamma u / sqrt(mean(u^2) + eps), row by row.                              L2 */
typedef struct slm_rmsnorm_args {
    slm_call call;
    slm_tensor u;     /* [T, l]                                             */
    slm_tensor gamma; /* [l]     optional: absent means ones                */
    slm_tensor r;     /* [T, l]  out                                        */
} slm_rmsnorm_args;

/* The whole layer on the weights of prepare().                        R1-R5, L1-L6 */
typedef struct slm_layer_forward_args {
    slm_call call;
    slm_tensor x;      /* [T, d]                                            */
    slm_tensor bias;   /* [n]        f32: may change from call to call      */
    slm_tensor y;      /* [T, d]     out                                    */
    slm_tensor ids;    /* [T, k]     out i32                                */
    slm_tensor weight; /* [T, k]     out f32                                */
    slm_tensor cutoff; /* [T]        tap f32; untouched if k = n            */
    slm_tensor logit;  /* [T, n]     tap f32                                */
    slm_tensor score;  /* [T, n]     tap f32                                */
    slm_tensor z;      /* [T, l]     tap                                    */
    slm_tensor h;      /* [T, k, f]  tap, not for linear experts            */
    slm_tensor o;      /* [T, k, l]  tap: expert outputs before weighting   */
    slm_tensor u;      /* [T, l]     tap: weighted sum in slot order        */
    slm_tensor r;      /* [T, l]     tap: normalised aggregate              */
    slm_tensor hs;     /* [T, S fs]  tap, not for linear experts            */
} slm_layer_forward_args;

/* The order statistic of the required biases, centred.                      Q1, Q2 */
typedef struct slm_qb_exact_args {
    slm_call call;
    slm_tensor score;     /* [T, n]  f32                                    */
    slm_tensor bias;      /* [n]     f32: the bias that routed this batch   */
    slm_tensor new_bias;  /* [n]     out f32; T = 0: bias, bit for bit      */
    slm_tensor candidate; /* [n]     tap f64: before centring; T = 0: bias  */
    slm_tensor cutoff;    /* [T]     tap f32: alpha                         */
    slm_tensor mask; /* [T]     optional i32: 0 leaves the token out, 1 counts it  Q5 */
} slm_qb_exact_args;

/* Add a batch's required biases to integer counts.                              Q3 */
typedef struct slm_qb_hist_accumulate_args {
    slm_call call;
    slm_tensor score; /* [T, n]  f32                                        */
    slm_tensor bias;  /* [n]     f32                                        */
    slm_tensor hist;  /* [n, B]  in and out i64: counts are added           */
    slm_tensor mask;  /* [T]     optional i32, 0 or 1                    Q5 */
} slm_qb_hist_accumulate_args;

/* Pool counts of R parts.                                                   Q3, C1 */
typedef struct slm_qb_hist_merge_args {
    slm_call call;
    slm_tensor parts; /* [R, n, B]  i64                                     */
    slm_tensor hist;  /* [n, B]     out i64                                 */
} slm_qb_hist_merge_args;

/* New bias from pooled counts; every row sums to the same m = n_tokens.         Q3 */
typedef struct slm_qb_hist_solve_args {
    slm_call call;
    slm_tensor hist;      /* [n, B]  i64                                    */
    slm_tensor bias;      /* [n]     f32: the bias the counts were made with */
    slm_tensor new_bias;  /* [n]     out f32; m = 0: bias, bit for bit      */
    slm_tensor candidate; /* [n]     tap f64: before centring; m = 0: bias  */
} slm_qb_hist_solve_args;

/* b + rate sign(mean load - load), rounded once.                                Q6 */
typedef struct slm_sign_step_args {
    slm_call call;
    slm_tensor bias;     /* [n]  f32                                        */
    slm_tensor load;     /* [n]  i64, >= 0                                  */
    slm_tensor new_bias; /* [n]  out f32                                    */
} slm_sign_step_args;

/* How far a choice is from equal load.                                          Q7 */
typedef struct slm_load_metrics_args {
    slm_call call;
    slm_tensor ids;    /* [T, k]  i32                                       */
    slm_tensor load;   /* [n]     out i64                                   */
    slm_tensor metric; /* [4]     out f64: max_vio, cv, dead, residual      */
    slm_tensor mask;   /* [T]     optional i32, 0 or 1                   Q5 */
} slm_load_metrics_args;

/* ---- since ABI 1.1 ---- */

/* Gradients of h = situ_glu(a, b).                                              G1 */
typedef struct slm_situ_glu_backward_args {
    slm_call call;
    slm_tensor gate_up;  /* [T, 2f]  gate a first, then up b; +-inf: its limit */
    slm_tensor dh;       /* [T, f]   finite                                 */
    slm_tensor dgate_up; /* [T, 2f]  out: da first, then db                 */
} slm_situ_glu_backward_args;

/* Gradients of r = gamma u / sqrt(mean(u^2) + eps).                             G2 */
typedef struct slm_rmsnorm_backward_args {
    slm_call call;
    slm_tensor u;      /* [T, l]  finite                                    */
    slm_tensor gamma;  /* [l]     optional, finite: absent means ones       */
    slm_tensor dr;     /* [T, l]  finite                                    */
    slm_tensor du;     /* [T, l]  out                                       */
    slm_tensor dgamma; /* [l]     out f32: also when gamma is absent        */
} slm_rmsnorm_backward_args;

/* Gradient of the logits through the weights of the chosen.                     G3 */
typedef struct slm_select_backward_args {
    slm_call call;
    slm_tensor logit;   /* [T, n]  f32, finite                              */
    slm_tensor ids;     /* [T, k]  i32: the choice, distinct in a row       */
    slm_tensor dweight; /* [T, k]  f32, finite                              */
    slm_tensor dlogit;  /* [T, n]  out f32: exactly 0 where not chosen      */
} slm_select_backward_args;

/* Gradients of y = act(x W_gate^T, x W_up^T) W_out^T.                       G1, G4 */
typedef struct slm_dense_ffn_backward_args {
    slm_call call;
    slm_tensor x;        /* [T, d]   finite, like every input               */
    slm_tensor w_gate;   /* [f, d]                                          */
    slm_tensor w_up;     /* [f, d]                                          */
    slm_tensor w_out;    /* [d, f]                                          */
    slm_tensor dy;       /* [T, d]                                          */
    slm_tensor dx;       /* [T, d]   out                                    */
    slm_tensor dw_gate;  /* [f, d]   out f32                                */
    slm_tensor dw_up;    /* [f, d]   out f32                                */
    slm_tensor dw_out;   /* [d, f]   out f32                                */
    slm_tensor gate_up;  /* [T, 2f]  tap: gate sums first, then up sums     */
    slm_tensor h;        /* [T, f]   tap                                    */
    slm_tensor dh;       /* [T, f]   tap                                    */
    slm_tensor dgate_up; /* [T, 2f]  tap                                    */
} slm_dense_ffn_backward_args;

/* Gradients of the layer at the choice that its forward made, on the weights of
 * prepare(). Gradients of weights sum over the tokens of the call and are written, not
 * added; an expert that no token chose gets exact zeros. Taps are the values of the
 * backend's own recomputed or kept forward, then those of its backward.     G1-G5 */
typedef struct slm_layer_backward_args {
    slm_call call;
    slm_tensor x;               /* [T, d]       finite                      */
    slm_tensor ids;             /* [T, k]       i32: the choice, distinct in a row */
    slm_tensor dy;              /* [T, d]       finite                      */
    slm_tensor dx;              /* [T, d]       out                         */
    slm_tensor dw_router;       /* [n, d]       out f32, like every weight  */
    slm_tensor dw_down;         /* [l, d]       out                         */
    slm_tensor dw_gate;         /* [n, f, l]    out  situ, swiglu           */
    slm_tensor dw_up;           /* [n, f, l]    out  situ, swiglu           */
    slm_tensor dw_out;          /* [n, l, f]    out  situ, swiglu           */
    slm_tensor dw_expert;       /* [n, l, l]    out  linear                 */
    slm_tensor dgamma;          /* [l]          out  with a norm            */
    slm_tensor dw_lift;         /* [d, l]       out                         */
    slm_tensor dw_shared_gate;  /* [S fs, d]    out  situ, swiglu           */
    slm_tensor dw_shared_up;    /* [S fs, d]    out  situ, swiglu           */
    slm_tensor dw_shared_out;   /* [d, S fs]    out  situ, swiglu           */
    slm_tensor dw_shared;       /* [S, d, d]    out  linear                 */
    slm_tensor dbias;           /* [n]          tap f32: exactly 0       G5 */
    slm_tensor logit;           /* [T, n]       tap f32                     */
    slm_tensor weight;          /* [T, k]       tap f32                     */
    slm_tensor z;               /* [T, l]       tap                         */
    slm_tensor gate_up;         /* [T, k, 2f]   tap: gate sums, then up sums */
    slm_tensor h;               /* [T, k, f]    tap                         */
    slm_tensor o;               /* [T, k, l]    tap                         */
    slm_tensor u;               /* [T, l]       tap                         */
    slm_tensor r;               /* [T, l]       tap                         */
    slm_tensor shared_gate_up;  /* [T, 2 S fs]  tap                         */
    slm_tensor hs;              /* [T, S fs]    tap                         */
    slm_tensor dr;              /* [T, l]       tap                         */
    slm_tensor du;              /* [T, l]       tap                         */
    slm_tensor dweight;         /* [T, k]       tap f32                     */
    slm_tensor dlogit;          /* [T, n]       tap f32: 0 where not chosen */
    slm_tensor dh;              /* [T, k, f]    tap: of the weighted output */
    slm_tensor dgate_up;        /* [T, k, 2f]   tap                         */
    slm_tensor dz;              /* [T, l]       tap: summed over the slots  */
    slm_tensor dhs;             /* [T, S fs]    tap                         */
    slm_tensor dshared_gate_up; /* [T, 2 S fs]  tap                         */
} slm_layer_backward_args;

/* Members of a ticket and of a stamp. A checksum is the bit pattern of slm_checksum() of
 * the bias. Ticket: what a forward pass knew. Stamp: the state of a balancing step. Q8 */
enum {
    SLM_TICKET_MODE,         /* an slm_mode                                  */
    SLM_TICKET_VERSION,      /* of the bias that routed the batch            */
    SLM_TICKET_CHECKSUM,     /* of the same                                  */
    SLM_TICKET_MICRO_BATCH,  /* which of the step, from 0                    */
    SLM_STAMP_VERSION = 0,   /* of the bias in force; steps committed so far */
    SLM_STAMP_CHECKSUM,      /* of the bias in force                         */
    SLM_STAMP_MICRO_BATCHES, /* observed in this step                       */
    SLM_STAMP_TOKENS         /* observed in this step: the sum of every row of hist */
};

/* What a forward pass is run for. Only the first is observed. */
typedef enum slm_mode {
    SLM_MODE_TRAINING = 0,
    SLM_MODE_RECOMPUTATION, /* of activations, for the backward pass        */
    SLM_MODE_EVALUATION,    /* and inference                                */
    SLM_MODE_COUNT
} slm_mode;

/* Observe one micro-batch of a step, at most once.                          Q4, Q8 */
typedef struct slm_qb_observe_args {
    slm_call call;
    slm_tensor score;  /* [T, n]  f32                                       */
    slm_tensor bias;   /* [n]     f32: the bias in force                    */
    slm_tensor ticket; /* [4]     i64                                       */
    slm_tensor stamp;  /* [4]     in and out i64                            */
    slm_tensor hist;   /* [n, B]  in and out i64                            */
    slm_tensor mask;   /* [T]     optional i32, 0 or 1                   Q5 */
} slm_qb_observe_args;

/* Put a proposed bias in force and begin the next step.                     Q4, Q8 */
typedef struct slm_qb_commit_args {
    slm_call call;
    slm_tensor new_bias; /* [n]     f32, finite                             */
    slm_tensor bias;     /* [n]     in and out f32                          */
    slm_tensor stamp;    /* [4]     in and out i64                          */
    slm_tensor hist;     /* [n, B]  in and out i64: zero afterwards         */
} slm_qb_commit_args;

#ifdef __cplusplus
}
#endif
#endif
