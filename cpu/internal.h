/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/internal.h - what the files of the CPU backends share.
 *
 * Matrices are row-major binary32, "ld" is the distance of their rows in elements.
 * Work is cut by sizes alone, never by the number of threads, and every task writes its
 * own memory in a fixed order: so the bits of a result do not depend on threads. */
#ifndef SLM_CPU_INTERNAL_H
#define SLM_CPU_INTERNAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <slm/backend.h>

enum {
    SLM_CPU_ALIGN = 64,   /* bytes: every piece of workspace begins here      */
    SLM_CPU_ROWS = 16,    /* tokens of a task of row-wise work                */
    SLM_CPU_COLUMNS = 16, /* experts of a task of column-wise work            */
    SLM_CPU_PANEL = 4096, /* tokens that the layer takes through at once      */
    SLM_CPU_WEIGHTS = 12  /* members of slm_weights                           */
};

/* A matrix that GEMM can read or write: unit stride in a row, ld >= columns >= 1. */
typedef struct slm_cpu_matrix {
    float *data; /* inputs are never written through it */
    size_t ld;
} slm_cpu_matrix;

/* One product y = x w^T, or y += x w^T.
 *
 *   x [rows, inner], w [cols, inner], y [rows, cols]; y overlaps neither */
typedef struct slm_cpu_linear {
    size_t rows;
    size_t cols;
    size_t inner;
    slm_cpu_matrix x;
    slm_cpu_matrix w;
    slm_cpu_matrix y;
    int add;
} slm_cpu_linear;

/* Does one product on the calling thread alone. */
typedef void slm_cpu_gemm(const slm_cpu_linear *product);

/* Element-wise kernels for one instruction set. In and out may be the same memory. */
typedef struct slm_cpu_kernels {
    void (*sigmoid)(size_t count, const float *in, float *out);
    void (*situ)(size_t count, const float *gate, const float *up, float *out,
                 double beta_gate, double beta_up);
} slm_cpu_kernels;

/* Weights of the layer as prepare() left them; data NULL where there are none. */
typedef struct slm_cpu_weights {
    slm_cpu_matrix router;
    slm_cpu_matrix down;
    slm_cpu_matrix gate; /* of expert 0; expert e lies gate_step elements further */
    slm_cpu_matrix up;
    slm_cpu_matrix out;
    slm_cpu_matrix expert;
    slm_cpu_matrix gamma;
    slm_cpu_matrix lift;
    slm_cpu_matrix shared_gate;
    slm_cpu_matrix shared_up;
    slm_cpu_matrix shared_out;
    slm_cpu_matrix shared;
    ptrdiff_t gate_step;
    ptrdiff_t up_step;
    ptrdiff_t out_step;
    ptrdiff_t expert_step;
    ptrdiff_t shared_step;
} slm_cpu_weights;

struct slm_handle {
    slm_config config;
    slm_cpu_gemm *gemm;
    const slm_cpu_kernels *kernels;
    slm_cpu_weights weights;
    float *packed[SLM_CPU_WEIGHTS]; /* owned copies of weights that GEMM cannot read */
};

/* ---- workspace: one function lays a call's pieces out, for size and for use ---- */

/* Pieces of caller's memory. base NULL only measures: then every piece is NULL. */
typedef struct slm_cpu_arena {
    char *base;
    size_t used; /* SIZE_MAX once a size did not fit */
} slm_cpu_arena;

/* The next piece: rows x cols elements of `size` bytes. */
static inline void *slm_cpu_take(slm_cpu_arena *arena, size_t rows, size_t cols,
                                 size_t size)
{
    const size_t at = arena->used;
    size_t bytes;

    if (__builtin_mul_overflow(rows, cols, &bytes) ||
        __builtin_mul_overflow(bytes, size, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)SLM_CPU_ALIGN - 1, &bytes) ||
        __builtin_add_overflow(at, bytes & ~((size_t)SLM_CPU_ALIGN - 1),
                               &arena->used)) {
        arena->used = SIZE_MAX;
        return NULL;
    }
    return arena->base ? arena->base + at : NULL;
}

static inline float *slm_cpu_take_f32(slm_cpu_arena *arena, size_t rows, size_t cols)
{
    return slm_cpu_take(arena, rows, cols, sizeof(float));
}

/* ---- tensors ---- */

/* Elements of a tensor of that type, by position; one index for rank 1. */
static inline ptrdiff_t slm_cpu_at(const slm_tensor *tensor, size_t i, size_t j)
{
    return (ptrdiff_t)i * tensor->stride[0] +
           (tensor->rank > 1 ? (ptrdiff_t)j * tensor->stride[1] : 0);
}

static inline float *slm_cpu_f32(const slm_tensor *tensor, size_t i, size_t j)
{
    return (float *)tensor->data + slm_cpu_at(tensor, i, j);
}

static inline double *slm_cpu_f64(const slm_tensor *tensor, size_t i)
{
    return (double *)tensor->data + slm_cpu_at(tensor, i, 0);
}

static inline int32_t *slm_cpu_i32(const slm_tensor *tensor, size_t i, size_t j)
{
    return (int32_t *)tensor->data + slm_cpu_at(tensor, i, j);
}

static inline int64_t *slm_cpu_i64(const slm_tensor *tensor, size_t i, size_t j)
{
    return (int64_t *)tensor->data + slm_cpu_at(tensor, i, j);
}

static inline float *slm_cpu_row(slm_cpu_matrix matrix, size_t row)
{
    return matrix.data + row * matrix.ld;
}

/* ffn.c: 1 and the matrix when GEMM can take this view of rank 1 or 2 as it is (rank 1
 * is one row). Looks at no element. */
int slm_cpu_is_matrix(const slm_tensor *tensor, slm_cpu_matrix *matrix);

/* ffn.c: the view as a matrix; copied to `space`, packed, when it is none. */
slm_cpu_matrix slm_cpu_read(const slm_tensor *tensor, float *space);

/* ffn.c: copy a view of rank 1 or 2 to packed rows. */
void slm_cpu_pack(float *to, const slm_tensor *from);

/* ffn.c: copy rows to a view of rank 1 or 2; nothing when it is absent. */
void slm_cpu_write(const slm_tensor *to, slm_cpu_matrix from);

/* ---- products and activations: ffn.c, situ.c ---- */

/* All products, in blocks shared among threads. They may not depend on each other. */
void slm_cpu_products(const slm_handle *handle, const slm_cpu_linear *list, size_t n);

/* Products of the same rows and cols into the same y, in order. */
void slm_cpu_sum_of_products(const slm_handle *handle, const slm_cpu_linear *list,
                             size_t n);

/* The kernels for this CPU. */
const slm_cpu_kernels *slm_cpu_pick_kernels(void);

/* h = act(gate, up) of the configuration's expert; out may be gate or up.    L1, L4 */
void slm_cpu_activate(const slm_handle *handle, size_t count, const float *gate,
                      const float *up, float *out);

/* ---- one row: select.c, rmsnorm.c ---- */

/* The best min(k + 1, n) experts by key = score + bias, best first, each as key and id
 * in one word for the two functions below. `best` has that many words. No NaN.   R2 */
void slm_cpu_choose(const float *score, const float *bias, size_t n, size_t k,
                    uint64_t *best);
int32_t slm_cpu_chosen_id(uint64_t word);
float slm_cpu_chosen_key(uint64_t word);

/* What rows are selected from. */
typedef struct slm_cpu_router {
    slm_cpu_matrix logit; /* [T, n]; data NULL when the scores were given            */
    slm_cpu_matrix score; /* [T, n]; written where there are logits                  */
    const float *bias;    /* [n]                                                     */
} slm_cpu_router;

/* Results of selection, packed, in workspace. */
typedef struct slm_cpu_choices {
    int32_t *ids;   /* [T, k]                                                        */
    float *weight;  /* [T, k]                                                        */
    float *cutoff;  /* [T]; not written if k = n                                     */
    uint64_t *best; /* scratch: k + 1 words for each SLM_CPU_ROWS rows, rounded up   */
} slm_cpu_choices;

void slm_cpu_take_choices(slm_cpu_arena *arena, size_t rows, size_t k,
                          slm_cpu_choices *at);

/* Score, choose and weigh row t. A NaN logit poisons it: ids 0..k-1, NaN weights and
 * cutoff; then returns 1, else 0. Scratch is that of t / SLM_CPU_ROWS.   R2, R3, R4 */
int slm_cpu_select_row(const slm_handle *handle, const slm_cpu_router *from, size_t t,
                       const slm_cpu_choices *to);

/* To the outputs of a call; cutoff only where it is present and k < n. */
void slm_cpu_write_choice(const slm_config *config, size_t rows,
                          const slm_cpu_choices *from, const slm_tensor *ids,
                          const slm_tensor *weight, const slm_tensor *cutoff);

/* r = gamma u / sqrt(mean(u^2) + eps); gamma NULL means ones; r may be u. NaN or
 * infinity in u makes the whole row NaN.                                    L2, R4 */
void slm_cpu_rmsnorm_row(size_t width, const float *u, const float *gamma, double eps,
                         float *r);

/* ---- permute.c ---- */

/* counts [n], offsets [n + 1], order [rows k] from packed ids [rows, k].         L5 */
void slm_cpu_group(size_t rows, size_t n, size_t k, const int32_t *ids, int64_t *counts,
                   int64_t *offsets, int64_t *order);

/* ---- balancing: qb.c ---- */

/* An unevaluated sum hi + lo with hi = RN64(hi + lo): about 106 bits. Additions and
 * products below are within 2^-102 of the larger operand or the result. */
typedef struct slm_cpu_pair {
    double hi;
    double lo;
} slm_cpu_pair;

/* Exact a + b. */
static inline slm_cpu_pair slm_cpu_two_sum(double a, double b)
{
    const double sum = a + b;
    const double part = sum - a;

    return (slm_cpu_pair){sum, (a - (sum - part)) + (b - part)};
}

/* Exact a b, above 2^-960 or so. */
static inline slm_cpu_pair slm_cpu_two_product(double a, double b)
{
    const double product = a * b;

    return (slm_cpu_pair){product, fma(a, b, -product)};
}

static inline slm_cpu_pair slm_cpu_pair_add(slm_cpu_pair a, slm_cpu_pair b)
{
    const slm_cpu_pair high = slm_cpu_two_sum(a.hi, b.hi);
    const slm_cpu_pair low = slm_cpu_two_sum(a.lo, b.lo);
    const slm_cpu_pair sum = slm_cpu_two_sum(high.hi, high.lo + low.hi);

    return slm_cpu_two_sum(sum.hi, sum.lo + low.lo);
}

static inline slm_cpu_pair slm_cpu_pair_times(slm_cpu_pair a, double b)
{
    const slm_cpu_pair product = slm_cpu_two_product(a.hi, b);

    return slm_cpu_two_sum(product.hi, product.lo + a.lo * b);
}

static inline slm_cpu_pair slm_cpu_pair_over(slm_cpu_pair a, double b)
{
    const double quotient = a.hi / b;
    const double rest = fma(-quotient, b, a.hi) + a.lo;

    return slm_cpu_two_sum(quotient, rest / b);
}

/* Sign, -1, 0 or 1, of an exact sum of at most SLM_CPU_TERMS doubles. */
enum { SLM_CPU_TERMS = 16 };
int slm_cpu_sign_of_sum(const double *term, size_t n);

/* alpha [rows]: the (k+1)-th key of each row of score. `best` has k + 1 words for each
 * SLM_CPU_ROWS rows, rounded up.                                             Q1, R2 */
void slm_cpu_cutoffs(const slm_handle *handle, size_t rows, slm_cpu_matrix score,
                     const float *bias, uint64_t *best, float *alpha);

/* new_bias = RN32(candidate - mean of candidates); candidate is written where present.
 * Q1 */
void slm_cpu_centre(const slm_cpu_pair *candidate, size_t n, const slm_tensor *new_bias,
                    const slm_tensor *tap);

/* No token: new_bias = bias, bit for bit, and candidate = bias. */
void slm_cpu_keep_bias(const slm_tensor *bias, const slm_tensor *new_bias,
                       const slm_tensor *tap);

/* ---- operations and their workspace ---- */

#define SLM_CPU_DECLARE(name, level, purpose)                                          \
    slm_status slm_cpu_##name(slm_handle *handle, const slm_##name##_args *args,       \
                              slm_error *error);
SLM_OPS(SLM_CPU_DECLARE)
#undef SLM_CPU_DECLARE

size_t slm_cpu_route_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_select_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_permute_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_dense_ffn_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_rmsnorm_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_layer_forward_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_qb_exact_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_qb_hist_accumulate_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_qb_hist_solve_space(const slm_config *config, const slm_call *call);

static inline size_t slm_cpu_ceil_div(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

#endif
