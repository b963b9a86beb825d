/* SPDX-License-Identifier: Apache-2.0 */
/* slm/ops.h - the one list of operations, and a description of their arguments.
 *
 * The list gives the backend table its members, the loader its keys, reports their
 * names and skips. It is append-only within a major ABI: the order is the layout of
 * slm_ops. */
#ifndef SLM_OPS_H
#define SLM_OPS_H

#include <slm/slm.h>

#ifdef __cplusplus
extern "C" {
#endif

/*  X(operation, level it belongs to, what it does) */
#define SLM_OPS(X)                                                                     \
    X(route, INFER, "logits, sigmoid scores, chosen experts and their weights")        \
    X(select, INFER, "chosen experts and weights from given scores or logits")         \
    X(permute, INFER, "stable grouping of (token, slot) pairs by expert")              \
    X(situ_glu, INFER, "the SiTU-GLU activation")                                      \
    X(dense_ffn, INFER, "a gated feed-forward network at full width")                  \
    X(rmsnorm, INFER, "RMSNorm of the routed aggregate")                               \
    X(layer_forward, INFER, "the whole layer, with optional taps")                     \
    X(qb_exact, TRAIN, "Quantile Balancing by the exact order statistic")              \
    X(qb_hist_accumulate, TRAIN, "counts of required biases in uniform bins")          \
    X(qb_hist_merge, DIST, "pooled counts of several parts")                           \
    X(qb_hist_solve, TRAIN, "new bias from pooled counts")                             \
    X(sign_step, TRAIN, "the loss-free sign update, for comparison")                   \
    X(load_metrics, INFER, "load, MaxVio, CV, dead experts, residual imbalance")       \
    X(situ_glu_backward, TRAIN, "gradients of the SiTU-GLU activation")                \
    X(rmsnorm_backward, TRAIN, "gradients of the RMSNorm")                             \
    X(select_backward, TRAIN, "gradient of the logits through the chosen weights")     \
    X(dense_ffn_backward, TRAIN, "gradients of the feed-forward network")              \
    X(layer_backward, TRAIN, "gradients of the whole layer, with optional taps")       \
    X(qb_observe, TRAIN, "counts of one micro-batch of a training step, once")         \
    X(qb_commit, TRAIN, "the proposed bias put in force")

typedef enum slm_op {
#define SLM_OP_ENUM(name, level, purpose) SLM_OP_##name,
    SLM_OPS(SLM_OP_ENUM)
#undef SLM_OP_ENUM
        SLM_OP_COUNT
} slm_op;

/* Levels that a backend may claim; what it does not claim is skipped, not failed. */
enum { SLM_LEVEL_INFER = 1, SLM_LEVEL_TRAIN = 2, SLM_LEVEL_DIST = 4 };

typedef enum slm_role {
    SLM_ROLE_IN,
    SLM_ROLE_OPTIONAL, /* an input that may be absent                       */
    SLM_ROLE_OUT,      /* must be written                                   */
    SLM_ROLE_TAP,      /* an output that may be absent                      */
    SLM_ROLE_INOUT
} slm_role;

typedef enum slm_kind {
    SLM_KIND_REAL,   /* the configuration's dtype; golden values are binary64      */
    SLM_KIND_REAL32, /* binary32 whatever the dtype; golden values are binary64    */
    SLM_KIND_F32,    /* a binary32 by its clause: golden values are binary32       */
    SLM_KIND_F64,
    SLM_KIND_I32,
    SLM_KIND_I64
} slm_kind;

/* Where an argument lies and what it must look like. `dims` has one letter a
 * dimension: T d l n k f S B R as in slm/slm.h, g = 2 f, s = S fs, t = 2 S fs, N = n + 1,
 * q = T k, 4 = four. `experts` is a mask of 1u << slm_expert_kind: the argument exists
 * for these kinds only. */
typedef struct slm_field {
    const char *name;
    const char *dims;
    slm_role role;
    slm_kind kind;
    unsigned experts;
    unsigned since; /* ABI minor that appended it to its operation; 0: always there */
    size_t offset;  /* of the slm_tensor in the argument struct */
} slm_field;

typedef struct slm_op_info {
    slm_op op;
    const char *name;
    const char *purpose;
    unsigned level;
    size_t args_size;
    size_t n_fields;
    const slm_field *fields;
    int prepared; /* works on the weights of prepare()                      */
} slm_op_info;

/* Description of an operation; NULL when op is out of range. Static storage. */
const slm_op_info *slm_op_describe(slm_op op);

/* Operation of that name, or SLM_OP_COUNT. */
slm_op slm_op_find(const char *name);

/* The weights' fields, described like arguments (offsets into slm_weights). */
const slm_field *slm_weight_fields(size_t *n_fields);

/* Size of one dimension letter. Returns 0 and leaves *size alone when it does not fit
 * in a size_t or the letter is unknown, else 1. */
int slm_dim(const slm_config *config, const slm_call *call, char letter, size_t *size);

/* Whether the configuration uses this field at all (expert kinds; gamma without a
 * norm). */
int slm_field_applies(const slm_field *field, const slm_config *config);

/* The dtype that a field has under a configuration: in a call, and as a golden value
 * (real numbers are kept as binary64). */
slm_dtype slm_field_dtype(const slm_field *field, const slm_config *config);
slm_dtype slm_field_golden_dtype(const slm_field *field);

/* Packed view of memory that the caller keeps: rank <= SLM_MAX_RANK. */
slm_tensor slm_tensor_packed(void *data, slm_dtype dtype, uint32_t rank,
                             const size_t *shape);

/* An optional argument of a call; NULL when it is absent, or when the caller's argument
 * struct is of a minor version that did not have it yet. */
const slm_tensor *slm_given(const slm_call *call, const slm_tensor *argument);

/* Sub-view at the first index; rank shrinks by one. Precondition: index < shape[0]. */
slm_tensor slm_tensor_at(const slm_tensor *tensor, size_t index);

/* CRC-64/XZ of the little-endian bytes of n binary32 values, as its bit pattern: what a
 * bias is known by. -0 and +0 differ.                                           Q8 */
int64_t slm_checksum(const float *values, size_t n);

/* Bytes of an element. */
size_t slm_dtype_size(slm_dtype dtype);

/* Number of elements; shapes are the caller's own, their product must fit. */
size_t slm_tensor_count(const slm_tensor *tensor);

/* "SLM_ERR_TIE" and the like; "f32" and the like. Static storage, never NULL. */
const char *slm_status_name(slm_status status);
const char *slm_dtype_name(slm_dtype dtype);

/* Fill an error (error may be NULL) and return its status. `expected` is a printf
 * format. */
#if defined(__GNUC__)
__attribute__((format(printf, 6, 7)))
#endif
slm_status
slm_fail(slm_error *error, slm_status status, const char *op, const char *field,
         size_t index, const char *expected, ...);

/* The checks at the door, once, for any caller: SHAPE, ALIAS and DOMAIN in the order of
 * X1. SHAPE: presence, rank, dtype, shape, products that overflow, workspace absent.
 * DOMAIN: sizes, eps, betas, rate, score outside [0, 1] (a NaN is not outside), ids
 * out of range or repeated, negative loads and counts, rows of a histogram that do not
 * sum to n_tokens, a mask that is not 0 or 1, a ticket or stamp that does not fit (Q8). Host memory only is looked into. `args` points to the operation's
 * argument struct. Nothing is written through it.                            X1, R5 */
slm_status slm_check(slm_op op, const slm_config *config, const void *args,
                     slm_error *error);

/* NONFINITE where the clause has none: bias of every operation; score and bias of the
 * balancing operations; new_bias of a commit; the inputs of the backward operations
 * (in gate_up of situ_glu_backward only NaN). NaN logits and poisoned rows are the operation's own (R4).
 * The harness lets such cases reach a backend; a backend may call this. */
slm_status slm_check_finite(slm_op op, const slm_config *config, const void *args,
                            slm_error *error);

/* The same for the weights of prepare(): SHAPE and dtype against the configuration. */
slm_status slm_check_weights(const slm_config *config, const slm_weights *weights,
                             slm_error *error);

/* The profile of a name ("paper", "release", "vanilla", "linear"): fills score,
 * weighting, expert, norm, eps, betas, rate 2^-10, bins 1000, strict, dtype f32, and
 * struct_size; sizes become 0. Returns 0 for an unknown name.          R3, L2, L4 */
int slm_config_profile(const char *name, slm_config *config);

#ifdef __cplusplus
}
#endif
#endif
