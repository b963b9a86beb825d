/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar.h - private: the plain implementation and its deviations.
 *
 * Every stage is binary32, one number after the other. wrong(handle, MUTANT_x) stands
 * exactly where mutant x deviates; is(handle, VARIANT_x) where a right variant goes its
 * own way. Rows lie packed in scratch memory cut from the caller's workspace. */
#ifndef SLM_SCALAR_H
#define SLM_SCALAR_H

#include <slm/backend.h>

typedef enum scalar_mutant {
    MUTANT_NONE,
#define X(id, name, clause, sentence) MUTANT_##id,
#include "mutants.def"
#undef X
    MUTANT_COUNT
} scalar_mutant;

typedef enum scalar_variant {
#define X(id, name, flags, sentence, ...) VARIANT_##id,
#include "variants.def"
#undef X
    VARIANT_COUNT
} scalar_variant;

struct slm_handle {
    slm_config config;
    slm_weights weights; /* the tensors are the caller's                       */
    scalar_mutant mutant;
    scalar_variant variant;
    float *packed;       /* [n, 2f, l] of packed-gate-up, else NULL             */
    float *first_bias;   /* [n] of first-bias-kept, else NULL                   */
    int has_first_bias;  /* it holds the first call's bias                      */
    int has_bad_weights; /* prepare() refused them, whatever it said           */
    slm_op op;           /* of the call at hand, for mutants of one kernel     */
    size_t n_tokens;     /* of the call at hand                                */
    size_t n_calls;      /* so far, with the call at hand                      */
    int overlooks;       /* the call at hand is to be refused, and is not      */
    size_t first_tokens; /* of sized-by-first-call                             */
    size_t mask_tokens;  /* of first-mask-kept: T, and which are counted        */
    size_t n_counted;
    size_t counted[64];
    const void *last_x; /* of cached-by-pointer                                */
    const void *last_y;
    slm_weights own_weights; /* of scalar_shared.c: what the handle was given  */
    double own_eps;
};

static inline int wrong(const slm_handle *handle, scalar_mutant mutant)
{
    return handle->mutant == mutant;
}

/* A mutant of one operation's own kernel. */
static inline int wrong_in(const slm_handle *handle, slm_op op, scalar_mutant mutant)
{
    return handle->mutant == mutant && handle->op == op;
}

static inline int is(const slm_handle *handle, scalar_variant variant)
{
    return handle->variant == variant;
}

/* ---- scalar_handle.c ---- */

slm_status scalar_open(const slm_config *config, scalar_variant variant,
                       scalar_mutant mutant, slm_handle **handle, slm_error *error);
void scalar_close(slm_handle *handle);
slm_status scalar_prepare(slm_handle *handle, const slm_weights *weights,
                          slm_error *error);
size_t scalar_workspace(slm_handle *handle, slm_op op, const slm_call *call);

/* The status that the caller is told of. */
slm_status scalar_report(const slm_handle *handle, slm_status status, slm_error *error);

/* ---- scalar_shared.c: what the handles of some mutants share ---- */

void scalar_shared_open(slm_handle *handle);
void scalar_shared_prepare(slm_handle *handle);
void scalar_shared_close(const slm_handle *handle);

/* Before a call: the weights and numbers that it will use. */
void scalar_shared_begin(slm_handle *handle);

/* ---- scalar_refusal.c ---- */

/* What every operation does first: the door of a variant that has its own, the size of
 * the workspace, NONFINITE of biases, and refusals that are a mutant's own. */
slm_status scalar_begin(slm_handle *handle, slm_op op, const void *args,
                        slm_error *error);

#define SCALAR_OP(name, level, purpose)                                                \
    slm_status scalar_##name(slm_handle *handle, const slm_##name##_args *args,        \
                             slm_error *error);
SLM_OPS(SCALAR_OP)
#undef SCALAR_OP

/* Bytes of workspace of the operations that need any. */
size_t scalar_route_space(const slm_config *config, const slm_call *call);
size_t scalar_select_space(const slm_config *config, const slm_call *call);
size_t scalar_permute_space(const slm_config *config, const slm_call *call);
size_t scalar_situ_space(const slm_config *config);
size_t scalar_ffn_space(const slm_config *config);
size_t scalar_rmsnorm_space(const slm_config *config);
size_t scalar_layer_space(const slm_config *config, const slm_call *call);
size_t scalar_qb_space(const slm_config *config, const slm_call *call);
size_t scalar_hist_space(const slm_config *config);
size_t scalar_observe_space(const slm_config *config);
size_t scalar_situ_backward_space(const slm_config *config);
size_t scalar_rmsnorm_backward_space(const slm_config *config, const slm_call *call);
size_t scalar_select_backward_space(const slm_config *config);
size_t scalar_ffn_backward_space(const slm_config *config, const slm_call *call);
size_t scalar_layer_backward_space(const slm_config *config, const slm_call *call);

/* ---- scalar_memory.c: scratch, rows and elements ---- */

/* A cursor over the workspace; with base NULL it only counts. */
typedef struct scalar_scratch {
    unsigned char *base;
    size_t used;
} scalar_scratch;

/* Room for count elements, aligned to 64 bytes. */
void *scalar_take(scalar_scratch *scratch, size_t count, size_t size);

/* The element of a row-major index, for reading or writing. */
void *scalar_element(const slm_tensor *tensor, size_t index);

/* Row of a tensor; an absent tensor stays absent. */
slm_tensor scalar_row(const slm_tensor *tensor, size_t index);

/* Elements of an f32 or bf16 view of rank 1 as binary32, and back: rounded to the
 * tensor's type. Nothing happens for an absent tensor. */
void scalar_load(float *out, const slm_tensor *row);
void scalar_store(const slm_tensor *row, const float *in);

/* The row where it lies when it is packed binary32, else a copy of it in `copy`. */
const float *scalar_view(float *copy, const slm_tensor *row);

/* The first `given` of n elements, the rest 0: x or z taken for the other. */
void scalar_pad(float *out, size_t n, const float *in, size_t given);

/* Whether the statistic counts a token.                                           Q5 */
int scalar_counts(const slm_handle *handle, const slm_tensor *mask, size_t token);

/* A packed matrix read in the other order: element (i, j) at i + j rows. */
slm_tensor scalar_transposed(const slm_tensor *matrix);

/* ---- scalar_number.c: rounding and functions ---- */

float scalar_bf16(float value);
float scalar_f16(float value);

/* To binary32 towards zero. */
float scalar_truncated(double value);

/* 0 for a value below 2^-126 when the variant flushes. */
float scalar_flush(const slm_handle *handle, float value);

/* A stored stage: bf16 when the configuration or the variant says so, flushed. */
void scalar_stage(const slm_handle *handle, float *value, size_t n);

/* n, or what is left of it when tails of tiles are dropped. */
size_t scalar_whole(const slm_handle *handle, size_t n);

/* A 64-bit count as the mutant keeps it. */
int64_t scalar_count(const slm_handle *handle, int64_t value);

float scalar_sigmoid(const slm_handle *handle, float a);
float scalar_tanh(const slm_handle *handle, float a);

/* ---- scalar_dot.c: sums of products ---- */

float scalar_dot(const slm_handle *handle, const float *a, const float *b, size_t n);

/* y[i] = sum_j w[i,j] x[j], x [cols], y [rows]; `copy` has room for a row of w. Returns
 * 0 when a factor is not finite. */
int scalar_linear(const slm_handle *handle, float *y, const slm_tensor *w,
                  const float *x, float *copy);

/* ---- scalar_select.c, scalar_choice.c, scalar_weight.c: R1-R4 ---- */

/* Routing of T tokens in scratch memory. */
typedef struct scalar_routing {
    float *bias;             /* [n]                                            */
    float *logit;            /* [T, n]; not filled when scores were given      */
    float *score;            /* [T, n]                                         */
    double *key;             /* [n]     of the row at hand                     */
    unsigned char *taken;    /* [n]                                            */
    int32_t *rank;           /* [k + 1]                                        */
    int32_t *ids;            /* [T, k]                                         */
    float *weight;           /* [T, k]                                         */
    float *cutoff;           /* [T]                                            */
    unsigned char *poisoned; /* [T]                                            */
} scalar_routing;

void scalar_routing_take(scalar_routing *routing, scalar_scratch *scratch,
                         const slm_config *config, size_t n_tokens);

/* Logits of one token.                                                          R1 */
void scalar_logits(const slm_handle *handle, float *logit, const slm_tensor *w_router,
                   const float *x, float *copy);

/* Keys [n] of one row; logit may be NULL.                                       R2 */
void scalar_keys(const slm_handle *handle, double *key, const float *score,
                 const float *logit, const float *bias);

/* The best `count` of keys [n], best first. `score` breaks ties for a mutant. Ids can
 * be out of range for mutants; see scalar_expert_id(). */
void scalar_choose(const slm_handle *handle, int32_t *rank, size_t count,
                   const double *key, const float *score, unsigned char *taken);

/* An id that may index experts. */
size_t scalar_expert_id(const slm_handle *handle, int32_t id);

/* Weights [k] of the chosen.                                                    R3 */
void scalar_weigh(const slm_handle *handle, float *weight, const int32_t *ids,
                  const float *score, const double *key, const float *bias);

/* Scores (from logits, if there are any), choice and weights of every row; NONFINITE
 * from a variant that refuses.                                               R2-R4 */
slm_status scalar_choose_rows(slm_handle *handle, scalar_routing *routing,
                              size_t n_tokens, int has_logits, slm_op op,
                              slm_error *error);

/* ids, weight and the cutoff, logit and score where they are present. */
void scalar_write_routing(const slm_handle *handle, const scalar_routing *routing,
                          const slm_tensor *ids, const slm_tensor *weight,
                          const slm_tensor *cutoff, const slm_tensor *logit,
                          const slm_tensor *score);

/* ---- scalar_permute.c ---- */

/* Counts [n], offsets [n + 1] and order [T k] of packed ids; order holds pairs. */
void scalar_group(const slm_handle *handle, const int32_t *ids, size_t n_tokens,
                  int64_t *counts, int64_t *offsets, int64_t *order);

/* ---- scalar_situ.c, scalar_rmsnorm.c ---- */

/* The configuration's activation of gate a and up b.                        L1, L4 */
float scalar_activation(const slm_handle *handle, float a, float b, int shared);

/* r of u; gamma NULL means ones; r is not u. Returns 0, and r all NaN, when a factor is
 * not finite.                                                                   L2 */
int scalar_normalise(const slm_handle *handle, float *r, const float *u,
                     const float *gamma, size_t width);

/* ---- scalar_ffn.c ---- */

/* h = act(x w_gate^T, x w_up^T), staged; gate has room for h, copy for a row. Returns 0
 * when a factor is not finite. */
int scalar_inner(const slm_handle *handle, float *h, float *gate,
                 const slm_tensor *w_gate, const slm_tensor *w_up, const float *x,
                 float *copy, int shared);

/* ---- scalar_cutoff.c, scalar_hist.c ---- */

/* alpha of one row of scores: the (k+1)-th key, or what the mutant takes for it. */
typedef struct scalar_cutoff {
    float *bias;          /* [n] */
    float *score;         /* [n] */
    double *key;          /* [n] */
    unsigned char *taken; /* [n] */
    int32_t *rank;        /* [k + 1] */
} scalar_cutoff;

void scalar_cutoff_take(scalar_cutoff *work, scalar_scratch *scratch,
                        const slm_config *config);
double scalar_alpha(const slm_handle *handle, scalar_cutoff *work,
                    const slm_tensor *score);

/* The required bias of expert j, from the row that scalar_alpha() was called for. */
double scalar_required(const slm_handle *handle, const scalar_cutoff *work,
                       double alpha, size_t j);

/* new_bias = RN32(candidate - mean), and the tap; candidate [n] is used up. */
void scalar_centre(const slm_handle *handle, double *candidate, const float *bias,
                   const slm_tensor *new_bias, const slm_tensor *tap);

/* Memory of the histogram operations. */
typedef struct scalar_hist {
    scalar_cutoff cutoff;
    double *candidate; /* [n] */
} scalar_hist;

void scalar_hist_take(scalar_hist *at, scalar_scratch *scratch,
                      const slm_config *config);

/* Tokens of one call, counted with the bias in at->cutoff in bins that `ends` [n], a
 * bias too, gives. Returns how many were counted. */
int64_t scalar_hist_count(const slm_handle *handle, scalar_hist *at, const float *ends,
                          size_t n_tokens, const slm_tensor *score,
                          const slm_tensor *mask, const slm_tensor *hist);

/* The candidates of m tokens' counts that were made with the bias in at->cutoff. */
void scalar_hist_solve(const slm_handle *handle, const scalar_hist *at,
                       const slm_tensor *hist, size_t m);

/* m = 0: new_bias = candidate = bias. */
void scalar_keep_bias(const slm_handle *handle, const slm_tensor *bias,
                      const slm_tensor *new_bias, const slm_tensor *tap);

#endif
