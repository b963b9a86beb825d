/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/gpu.h - what the files of the GPU backend share.
 *
 * Every pointer is device memory unless it is named `host` or lies in the handle. A
 * call's work is queued on its stream (slm_gpu_stream), NULL being the default stream;
 * memory comes from the caller's workspace. Tensors are packed (no SLM_STRIDED) and
 * aligned to their element, nothing more.
 *
 * A verdict: what the inputs hold that the clause refuses is found by kernels, in one
 * word of the handle: (place << 56 | index), the lowest wins, SLM_GPU_FINE is none. So
 * one number keeps the order of X1. Kernels that write outputs read the word and return
 * when it is not SLM_GPU_FINE; cuBLAS cannot, so products go to workspace. The host
 * reads the word once, at the end of the call, and never while the stream is captured:
 * a captured call that is refused leaves its outputs untouched and says nothing.
 *
 * For kernels: element.cuh (elements, refusal), exponential.cuh (e^x, sigmoid with
 * relative accuracy), pair.cuh (sums of two binary64). */
#ifndef SLM_GPU_GPU_H
#define SLM_GPU_GPU_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <slm/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SLM_GPU_ALIGN = 64, SLM_GPU_PLACE_SHIFT = 56 };
#define SLM_GPU_FINE 0xffffffffffffffffull

/* Words in device memory, one struct a handle. A call resets it first. */
typedef struct slm_gpu_state {
    unsigned long long verdict; /* see above                                       */
    unsigned long long pending; /* found by a kernel that reads the verdict        */
    unsigned long long counted; /* tokens that the mask counts                  Q5 */
    unsigned long long idle;    /* 1: the operation has nothing to change       Q8 */
} slm_gpu_state;

struct slm_handle {
    slm_config config;
    slm_weights weights; /* of prepare(): views of the caller's device memory      */
    cublasHandle_t blas;
    cublasHandle_t side_blas; /* of the side stream: one each, or bits may change   */
    cudaStream_t side;        /* shared experts                                    */
    cudaEvent_t fork, join;   /* the side stream leaves and comes back             */
    slm_gpu_state *state;     /* device                                            */
    slm_gpu_state *host_seen; /* pinned: its copy                                  */
    void *packed;             /* device: what prepare() made (slm_gpu_pack), or NULL */
};

static inline cudaStream_t slm_gpu_stream(const slm_call *call)
{
    return (cudaStream_t)call->stream;
}

/* ---- workspace: one function lays a call's pieces out, for size and for use ---- */

/* Pieces of caller's memory. base NULL only measures: then every piece is NULL. */
typedef struct slm_gpu_arena {
    char *base;
    size_t used; /* SIZE_MAX once a size did not fit */
} slm_gpu_arena;

/* The next piece, rows x cols elements of `size` bytes, aligned to SLM_GPU_ALIGN. */
static inline void *slm_gpu_take(slm_gpu_arena *arena, size_t rows, size_t cols,
                                 size_t size)
{
    const size_t at = arena->used;
    size_t bytes;

    if (__builtin_mul_overflow(rows, cols, &bytes) ||
        __builtin_mul_overflow(bytes, size, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)SLM_GPU_ALIGN - 1, &bytes) ||
        __builtin_add_overflow(at, bytes & ~((size_t)SLM_GPU_ALIGN - 1),
                               &arena->used)) {
        arena->used = SIZE_MAX;
        return NULL;
    }
    return arena->base ? arena->base + at : NULL;
}

static inline float *slm_gpu_take_f32(slm_gpu_arena *arena, size_t rows, size_t cols)
{
    return (float *)slm_gpu_take(arena, rows, cols, sizeof(float));
}

/* ---- verdict: check.cu ---- */

/* What a place of the verdict means; an operation has a table of them, index = place. */
typedef struct slm_gpu_finding {
    slm_status status;
    const char *field;
    const char *expected;
} slm_gpu_finding;

/* Set the state to "fine, nothing counted, not idle". The first work of a call that
 * may be refused. */
slm_status slm_gpu_begin(slm_handle *handle, cudaStream_t stream);

/* Look for NaN and infinity among `count` binary32 or bf16 elements; found ones enter
 * the verdict at `place`. NULL data or count 0: nothing. Not while idle. */
slm_status slm_gpu_find_nonfinite(slm_handle *handle, const void *data, slm_dtype dtype,
                                  size_t count, unsigned place, cudaStream_t stream);

/* The same for NaN alone. */
slm_status slm_gpu_find_nan(slm_handle *handle, const void *data, slm_dtype dtype,
                            size_t count, unsigned place, cudaStream_t stream);

/* What is pending becomes the verdict. */
slm_status slm_gpu_settle(slm_handle *handle, cudaStream_t stream);

/* Wait for the stream, read the verdict, fill the error. SLM_OK at once, without
 * waiting, while the stream is captured. */
slm_status slm_gpu_conclude(slm_handle *handle, slm_op op, const slm_gpu_finding *table,
                            cudaStream_t stream, slm_error *error);

/* Copy elements (SLM_F32 or SLM_BF16, either way; else of equal types) unless refused or
 * idle: from workspace to an output. to NULL (an absent tap): nothing.
 *   from  [rows, cols], rows `ld` elements apart;  to  [rows, cols] packed */
slm_status slm_gpu_deliver(const slm_handle *handle, const void *from,
                           slm_dtype from_dtype, size_t ld, size_t rows, size_t cols,
                           void *to, slm_dtype to_dtype, cudaStream_t stream);

/* Fill the error for a launch or a call to cuBLAS that failed; returns status. */
slm_status slm_gpu_failed(slm_op op, slm_status status, slm_error *error);

/* ---- products: gemm.cu ---- */

/* binary32 or bf16, row-major, rows `ld` elements apart. */
typedef struct slm_gpu_matrix {
    void *data; /* inputs are never written through it */
    slm_dtype dtype;
    size_t ld;
} slm_gpu_matrix;

enum {
    SLM_GPU_ADD = 1,  /* y += instead of y =                                        */
    SLM_GPU_BACK = 2, /* x w:   the gradient of what went into x w^T                */
    SLM_GPU_OUTER = 4 /* x^T w: the gradient of a weight, a sum over the inner rows */
};

/* y = x w^T, or as `how` says; sums in binary32. x and w have one dtype.
 *
 *              x              w              y
 *   as it is   [rows, inner]  [cols, inner]  [rows, cols]
 *   BACK       [rows, inner]  [inner, cols]  [rows, cols]
 *   OUTER      [inner, rows]  [inner, cols]  [rows, cols] */
typedef struct slm_gpu_linear {
    size_t rows;
    size_t cols;
    size_t inner;
    slm_gpu_matrix x;
    slm_gpu_matrix w;
    slm_gpu_matrix y;
    unsigned how;
} slm_gpu_linear;

slm_status slm_gpu_product(const slm_handle *handle, const slm_gpu_linear *product,
                           cudaStream_t stream);

/* A cuBLAS handle that never sums in less than binary32; backend.cu makes both. */
slm_status slm_gpu_open_blas(cublasHandle_t *blas);

/* ---- the router's tail: select.cu ---- */

/* Rows to choose from and where results go. Of logit and score one is given. */
typedef struct slm_gpu_choice {
    size_t rows;
    size_t n;
    size_t k;
    slm_weighting weighting;
    const float *logit; /* [rows, n], `ld` apart; or NULL                       */
    const float *score; /* the same                                             */
    size_t ld;
    const float *bias;          /* [n]                                              */
    const int32_t *mask;        /* [rows] or NULL: 0 leaves a row out entirely   Q5 */
    int32_t *ids;               /* out [rows, k] or NULL                            */
    float *weight;              /* out [rows, k] or NULL                            */
    float *cutoff;              /* out [rows] or NULL; not written if k = n         */
    float *logit_out;           /* out [rows, n] packed or NULL: a copy             */
    float *score_out;           /* out [rows, n] packed or NULL                     */
    const slm_gpu_state *state; /* no row is done when refused or idle; NULL: always */
    /* Counts of required biases, by the way; hist NULL: none.               Q3 */
    unsigned long long *hist; /* in and out [n, bins]                           */
    size_t bins;
    const double *edge;  /* [bins]  RN64 of the lower edge                      */
    const double *range; /* [2]     min b, max b                                */
} slm_gpu_choice;

/* Score, choose, weigh. A NaN (from logits: a logit that is NaN; with `finite`: or
 * infinite) poisons its row: ids 0..k-1, weights and cutoff NaN. ids are distinct and in
 * range whatever the bias holds.                                          R2, R3, R4 */
slm_status slm_gpu_choose(const slm_gpu_choice *choice, int finite,
                          cudaStream_t stream);

/* Weights [rows, k] of a given choice, from logits [rows, n] `ld` apart.          R3 */
slm_status slm_gpu_weigh(size_t rows, size_t n, size_t k, slm_weighting weighting,
                         const float *logit, size_t ld, const int32_t *ids,
                         float *weight, cudaStream_t stream);

/* ---- rmsnorm.cu: u, gamma, r, dr, du are binary32 or bf16, each its own ---- */

/* r = gamma u / sqrt(mean(u^2) + eps) by row; gamma NULL: ones; r may be u.   L2, R4 */
slm_status slm_gpu_norm(size_t rows, size_t width, const void *u, slm_dtype u_dtype,
                        const void *gamma, slm_dtype gamma_dtype, double eps, void *r,
                        slm_dtype r_dtype, const slm_gpu_state *state,
                        cudaStream_t stream);

/* du, and 1/R of each row in scale [rows]; du may be u or dr.                     G2 */
slm_status slm_gpu_norm_slopes(size_t rows, size_t width, const void *u,
                               slm_dtype u_dtype, const void *gamma,
                               slm_dtype gamma_dtype, const void *dr,
                               slm_dtype dr_dtype, double eps, void *du,
                               slm_dtype du_dtype, double *scale,
                               const slm_gpu_state *state, cudaStream_t stream);

/* dgamma [width] = sum over rows of dr u scale; rows 0: zeros.                    G2 */
slm_status slm_gpu_gamma_slopes(size_t rows, size_t width, const void *u,
                                slm_dtype u_dtype, const void *dr, slm_dtype dr_dtype,
                                const double *scale, float *dgamma,
                                const slm_gpu_state *state, cudaStream_t stream);

/* ---- select_backward.cu ---- */

/* dlogit [rows, n] packed from logit [rows, n] `ld` apart, ids and dweight [rows, k].
 * Nothing is written when state (or NULL) says no.                            G3, G5 */
slm_status slm_gpu_select_slopes(size_t rows, size_t n, size_t k,
                                 slm_weighting weighting, const float *logit, size_t ld,
                                 const int32_t *ids, const float *dweight,
                                 float *dlogit, const slm_gpu_state *state,
                                 cudaStream_t stream);

/* ---- balancing: qb.cu, hist.cu ---- */

/* state->counted = tokens that the mask counts (all without one).                 Q5 */
slm_status slm_gpu_count_mask(slm_handle *handle, const int32_t *mask, size_t rows,
                              cudaStream_t stream);

/* NaN and infinity among the counted rows of score [rows, n].                     Q5 */
slm_status slm_gpu_find_nonfinite_rows(slm_handle *handle, const float *score,
                                       const int32_t *mask, size_t rows, size_t n,
                                       unsigned place, cudaStream_t stream);

/* new_bias = RN32(candidate - mean); candidate [n, 2]: hi, lo; tap NULL: absent. With
 * candidate NULL, or by_count and nothing counted: the bias, bit for bit.        Q1 */
slm_status slm_gpu_centre(const slm_handle *handle, size_t n, const double *candidate,
                          const float *bias, float *new_bias, double *tap, int by_count,
                          cudaStream_t stream);

/* Add a batch to the counts unless refused or idle; the workspace is that of
 * qb_hist_accumulate.                                                         Q3, Q5 */
slm_status slm_gpu_accumulate(slm_handle *handle, const slm_call *call,
                              const float *score, const float *bias, int64_t *hist,
                              const int32_t *mask, cudaStream_t stream);

/* ---- operations and their workspace ----
 *
 * Of this file's owner: route, select, permute, rmsnorm, rmsnorm_backward,
 * select_backward, qb_*, sign_step, load_metrics. Of the layer: the others, and
 * slm_gpu_pack (prepare: what the layer wants besides the caller's tensors; it may set
 * handle->packed, freed by close). */

#define SLM_GPU_DECLARE(name, level, purpose)                                          \
    slm_status slm_gpu_##name(slm_handle *handle, const slm_##name##_args *args,       \
                              slm_error *error);                                       \
    size_t slm_gpu_##name##_space(const slm_config *config, const slm_call *call);
SLM_OPS(SLM_GPU_DECLARE)
#undef SLM_GPU_DECLARE

slm_status slm_gpu_pack(slm_handle *handle, slm_error *error);

/* The table: backend.cu. */
const slm_backend *slm_gpu_backend(void);

#ifdef __cplusplus
}
#endif
#endif
