/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/layer.h - the pieces of the layer: activations, expert products, dispatch.
 *
 * Rules of gpu.h. "Rows of experts" are (token, slot) pairs sorted by expert and
 * padded: each expert owns whole chunks of `chunk` rows, its pairs in ascending order
 * first, then rows of zeros. How many chunks there are depends on sizes alone, so that
 * every product of every expert has a fixed size: cuBLAS gets one batch, its weights
 * through pointers that a kernel writes, and the host never waits for the counts.
 * Chunks that no expert needs come last; there cuBLAS multiplies zeros by expert 0. */
#ifndef SLM_GPU_LAYER_H
#define SLM_GPU_LAYER_H

#include "gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- matrices ---- */

static inline slm_gpu_matrix slm_gpu_packed(const void *data, slm_dtype dtype,
                                            size_t cols)
{
    const slm_gpu_matrix matrix = {(void *)data, dtype, cols};

    return matrix;
}

/* Columns `col` and on. */
static inline slm_gpu_matrix slm_gpu_columns(slm_gpu_matrix of, size_t col)
{
    if (of.data) of.data = (char *)of.data + col * slm_dtype_size(of.dtype);
    return of;
}

#ifdef __cplusplus
static inline slm_status slm_gpu_multiply(const slm_handle *handle,
                                          const slm_gpu_linear &product,
                                          cudaStream_t stream)
{
    return slm_gpu_product(handle, &product, stream);
}
#endif

/* ---- activations: situ.cu, situ_backward.cu; rows of `width`, of one dtype ---- */

/* h = act(gate, up); relu does not look at gate.                              L1, L4 */
slm_status slm_gpu_activate_rows(const slm_config *config, size_t rows, size_t width,
                                 slm_gpu_matrix gate, slm_gpu_matrix up,
                                 slm_gpu_matrix h, cudaStream_t stream);

/* Gate, up and dh to their gradients; dgate and dup may be gate and up. */
typedef struct slm_gpu_glu {
    slm_gpu_matrix gate;
    slm_gpu_matrix up;
    slm_gpu_matrix dh;
    slm_gpu_matrix dgate;
    slm_gpu_matrix dup;
} slm_gpu_glu;

/* Nothing is written when state (or NULL) says no.                            G1, L4 */
slm_status slm_gpu_differentiate_rows(const slm_config *config, size_t rows,
                                      size_t width, const slm_gpu_glu *at,
                                      const slm_gpu_state *state, cudaStream_t stream);

/* ---- rows of experts: gather.cu ---- */

typedef struct slm_gpu_groups {
    size_t n;         /* experts                                                     */
    size_t pairs;     /* T k                                                         */
    size_t chunk;     /* rows of a chunk                                             */
    size_t chunks;    /* upper bound, whatever the ids are                           */
    int64_t *counts;  /* [n]                                                         */
    int64_t *offsets; /* [n + 1]                                                     */
    int64_t *order;   /* [T k]            sorted position to pair                    */
    int64_t *first;   /* [n + 1]          first chunk of an expert                   */
    int64_t *place;   /* [T k]            pair to row                                */
    int64_t *pair;    /* [chunks chunk]   row to pair; -1: a row of zeros            */
    int32_t *expert;  /* [chunks]                                                    */
    void **pointers;  /* [6 chunks]       the factors and results of a batch         */
    void *space;
} slm_gpu_groups;

/* Rows of all chunks; 0 pairs have none. */
static inline size_t slm_gpu_expert_rows(const slm_gpu_groups *at)
{
    return at->chunks * at->chunk;
}

/* Elements between rows of experts: 16 bytes are what cuBLAS's batches want. */
static inline size_t slm_gpu_padded(size_t width)
{
    return (width + 7) / 8 * 8;
}

void slm_gpu_take_groups(slm_gpu_arena *arena, size_t n, size_t rows, size_t k,
                         slm_gpu_groups *at);

/* Everything of *at from ids [T, k], distinct in a row.                           L5 */
slm_status slm_gpu_make_groups(const slm_gpu_groups *at, const int32_t *ids,
                               cudaStream_t stream);

/* to [rows of experts, width]: row pair / k of from; zeros where there is no pair. */
slm_status slm_gpu_gather(const slm_gpu_groups *at, size_t k, size_t width,
                          slm_gpu_matrix from, slm_gpu_matrix to, cudaStream_t stream);

/* to [T k, ld], packed or wider: the row of each pair; the same dtype. Nothing when to
 * is NULL or the verdict says no. */
slm_status slm_gpu_deliver_pairs(const slm_handle *handle, const slm_gpu_groups *at,
                                 size_t width, slm_gpu_matrix from, void *to, size_t ld,
                                 cudaStream_t stream);

/* Elements of one dtype in another, whatever the verdict. */
slm_status slm_gpu_convert(size_t rows, size_t cols, slm_gpu_matrix from,
                           slm_gpu_matrix to, cudaStream_t stream);

/* ---- products of experts: gemm.cu ---- */

/* y = x w[e]^T, or with SLM_GPU_BACK x w[e], for all rows of experts.
 *
 *              x              w                 y
 *   as it is   [rows, inner]  [n, cols, inner]  [rows, cols]
 *   BACK       [rows, inner]  [n, inner, cols]  [rows, cols] */
typedef struct slm_gpu_expert_linear {
    slm_gpu_matrix x;
    const void *w;
    slm_gpu_matrix y;
} slm_gpu_expert_linear;

/* One or two of the same sizes, dtype and distances, in one batch. Rows of y without a
 * pair are zeros, since those of x are. */
slm_status slm_gpu_expert_products(const slm_handle *handle, const slm_gpu_groups *at,
                                   size_t cols, size_t inner, unsigned how,
                                   const slm_gpu_expert_linear *list, size_t n_list,
                                   cudaStream_t stream);

/* ---- products of few rows: gemm_rows.cu, called by gemm.cu ---- */

enum { SLM_GPU_FEW_ROWS = 4 };

/* Whether weights can be read 16 bytes at once, x too where `how` needs it. */
int slm_gpu_is_wide(size_t cols, size_t inner, unsigned how, slm_gpu_matrix x,
                    slm_gpu_matrix w);

/* slm_gpu_product() of 1 .. SLM_GPU_FEW_ROWS rows that is wide and not OUTER. */
slm_status slm_gpu_few_rows(const slm_gpu_linear *product, cudaStream_t stream);

/* slm_gpu_expert_products() with chunks of at most SLM_GPU_FEW_ROWS rows, of which there
 * are some. Chunks that no expert needs cost nothing but their zeros. */
slm_status slm_gpu_few_expert_rows(const slm_gpu_groups *at, size_t cols, size_t inner,
                                   unsigned how, const slm_gpu_expert_linear *list,
                                   size_t n_list, cudaStream_t stream);

/* ---- gradients of experts: gemm_gradient.cu ---- */

/* dw[e] = a^T b over the rows of expert e: [n, a_cols, b_cols]; zeros without rows.
 * Nothing is written when state (or NULL) says no.                            G4, G5 */
slm_status slm_gpu_expert_gradients(const slm_gpu_groups *at, slm_gpu_matrix a,
                                    size_t a_cols, slm_gpu_matrix b, size_t b_cols,
                                    float *dw, const slm_gpu_state *state,
                                    cudaStream_t stream);

/* ---- sums over slots: combine.cu ---- */

/* out [T, width] = sum over slots, in order, of weight (NULL: 1) times the pair's row
 * of `parts`, then of `more` (data NULL: none).                               L2, G4 */
slm_status slm_gpu_combine(const slm_gpu_groups *at, size_t k, size_t width,
                           const float *weight, slm_gpu_matrix parts,
                           slm_gpu_matrix more, slm_gpu_matrix out,
                           cudaStream_t stream);

/* dweight [T, k] = <du, o>, and the pairs' rows pdu = weight du; else zeros.      G4 */
slm_status slm_gpu_turn(const slm_gpu_groups *at, size_t k, size_t width,
                        const float *weight, slm_gpu_matrix du, slm_gpu_matrix o,
                        float *dweight, slm_gpu_matrix pdu, cudaStream_t stream);

/* NaN in each row of to [rows, cols] whose row of from [rows, n] is not all finite; one
 * dtype.                                                                          R4 */
slm_status slm_gpu_poison(size_t rows, size_t n, slm_gpu_matrix from, size_t cols,
                          slm_gpu_matrix to, cudaStream_t stream);

/* ---- gradients of dense weights: ffn_backward.cu ---- */

/* to [x_cols, w_cols] = x^T w over T rows; zeros when T is 0; by way of `scratch`,
 * unless the verdict says no.                                                 G4, G5 */
slm_status slm_gpu_gradient(const slm_handle *handle, size_t rows, slm_gpu_matrix x,
                            size_t x_cols, slm_gpu_matrix w, size_t w_cols,
                            float *scratch, const slm_tensor *to, cudaStream_t stream);

/* ---- the routed and the shared path, for both directions: layer.cu ---- */

/* Weights as products read them: the caller's, or copies that prepare() made. Of the
 * optional ones data is NULL. */
typedef struct slm_gpu_layer_weights {
    slm_gpu_matrix first;  /* [n + l, d]  router, then down: one product            */
    slm_gpu_matrix router; /* [n, d]      binary32, since its gradients are         */
    slm_gpu_matrix down;   /* [l, d]                                                */
    const void *gate;      /* [n, f, l]   this and the next three aligned for       */
    const void *up;        /* [n, f, l]   cuBLAS's batches                          */
    const void *out;       /* [n, l, f]                                             */
    const void *expert;    /* [n, l, l]                                             */
} slm_gpu_layer_weights;

slm_gpu_layer_weights slm_gpu_weights_of(const slm_handle *handle);

/* Workspace of the forward pass. E: the configuration's dtype. R: rows of experts. */
typedef struct slm_gpu_forward {
    size_t rows;          /* T                                             */
    slm_gpu_matrix first; /* [T, n + l]   binary32: logits, then z         */
    int32_t *ids;         /* [T, k]                                        */
    float *weight;        /* [T, k]                                        */
    slm_gpu_groups groups;
    slm_gpu_matrix z;              /* [T, l]       E; in binary32 it is in `first`  */
    slm_gpu_matrix gathered;       /* [R, l]       E: z of the pair                 */
    slm_gpu_matrix gate;           /* [R, f]       E                                */
    slm_gpu_matrix up;             /* [R, f]       E                                */
    slm_gpu_matrix h;              /* [R, f]       E                                */
    slm_gpu_matrix o;              /* [R, l]       E                                */
    slm_gpu_matrix u;              /* [T, l]       E                                */
    slm_gpu_matrix r;              /* [T, l]       E; without a norm it is u        */
    slm_gpu_matrix shared_gate_up; /* [T, 2 S fs]  E                                */
    slm_gpu_matrix hs;             /* [T, S fs]    E                                */
} slm_gpu_forward;

void slm_gpu_take_forward(slm_gpu_arena *arena, const slm_config *config, size_t rows,
                          slm_gpu_forward *at);

/* The next piece as a matrix, rows `ld` elements apart. */
slm_gpu_matrix slm_gpu_take_matrix(slm_gpu_arena *arena, size_t rows, size_t ld,
                                   slm_dtype dtype);

/* S fs, or 0 where the shared path has no inner width. */
size_t slm_gpu_shared_width(const slm_config *config);

/* Logits and z of x. */
slm_status slm_gpu_run_first(const slm_handle *handle, const slm_gpu_forward *at,
                             slm_gpu_matrix x, cudaStream_t stream);

/* From ids, weight and z to u and r. */
slm_status slm_gpu_run_routed(const slm_handle *handle, const slm_gpu_forward *at,
                              cudaStream_t stream);

/* hs of x; nothing where the shared path has no inner width. */
slm_status slm_gpu_run_shared(const slm_handle *handle, const slm_gpu_forward *at,
                              slm_gpu_matrix x, cudaStream_t stream);

/* The side stream begins behind `stream`; `stream` waits for it. */
slm_status slm_gpu_fork(const slm_handle *handle, cudaStream_t stream);
slm_status slm_gpu_join(const slm_handle *handle, cudaStream_t stream);

/* A tap of rows of T; its dtype is the tensor's; nothing where it is absent. */
slm_status slm_gpu_tap(const slm_handle *handle, slm_gpu_matrix from,
                       const slm_tensor *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
