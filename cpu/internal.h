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

/* How a product is taken: none or several of these. */
enum {
    SLM_CPU_ADD = 1,  /* y += instead of y =                                        */
    SLM_CPU_BACK = 2, /* x w:   the gradient of what went into x w^T                */
    SLM_CPU_OUTER = 4 /* x^T w: the gradient of a weight, a sum over the inner rows */
};

/* One product y = x w^T, or as `how` says; y overlaps neither factor.
 *
 *              x              w              y
 *   as it is   [rows, inner]  [cols, inner]  [rows, cols]
 *   BACK       [rows, inner]  [inner, cols]  [rows, cols]
 *   OUTER      [inner, rows]  [inner, cols]  [rows, cols] */
typedef struct slm_cpu_linear {
    size_t rows;
    size_t cols;
    size_t inner;
    slm_cpu_matrix x;
    slm_cpu_matrix w;
    slm_cpu_matrix y;
    unsigned how;
} slm_cpu_linear;

/* Does one product on the calling thread alone. */
typedef void slm_cpu_gemm(const slm_cpu_linear *product);

/* Instruction sets that kernels are made for, each with those before it. */
typedef enum slm_cpu_isa {
    SLM_ISA_PLAIN,  /* portable C                  */
    SLM_ISA_AVX2,   /* and FMA                     */
    SLM_ISA_AVX512, /* F, BW, DQ, VL               */
    SLM_ISA_AMX     /* tiles of bf16               */
} slm_cpu_isa;

/* dispatch.c: the best of this CPU, for kernels of single elements. */
slm_cpu_isa slm_cpu_best_isa(void);

/* Tiles [rows, 32], packed, and how they are activated. */
typedef struct slm_cpu_gates {
    size_t rows;
    const float *gate;
    const float *up;
    double beta_gate;
    double beta_up;
    const char *ahead; /* what is read later is asked for on the way, evenly: ... */
    size_t bytes;      /* ... so many                                             */
} slm_cpu_gates;

/* Kernels of elements and of rows for one instruction set. In and out may be the same
 * memory. */
typedef struct slm_cpu_kernels {
    void (*sigmoid)(size_t count, const float *in, float *out);
    void (*situ)(size_t count, const float *gate, const float *up, float *out,
                 double beta_gate, double beta_up);
    /* The activation of a tile, to rows that begin `ld` apart; rounded to bf16. */
    void (*situ_rows)(const slm_cpu_gates *of, float *out, size_t ld);
    void (*situ_rows_half)(const slm_cpu_gates *of, uint16_t *out, size_t ld);
    /* u = sum over the k slots of weight[q] o[place[q]], in slot order; o [T k, l].  L2 */
    void (*combine)(size_t k, size_t l, const float *weight, const int64_t *place,
                    const float *o, float *u);
    void (*combine_half)(size_t k, size_t l, const float *weight, const int64_t *place,
                         const uint16_t *o, float *u); /* o of bf16 */
    /* r = gamma u / sqrt(mean(u^2) + eps); gamma NULL means ones. NaN or infinity in u
     * makes the whole row NaN.                                               L2, R4 */
    void (*rmsnorm)(size_t width, const float *u, const float *gamma, double eps,
                    float *r);
} slm_cpu_kernels;

/* One gated activation and its gradients; dgate, dup may be any of the inputs. */
typedef struct slm_cpu_glu {
    const float *gate;
    const float *up;
    const float *dh;
    float *dgate;
    float *dup;
} slm_cpu_glu;

/* Gradients of activations for one instruction set. */
typedef struct slm_cpu_slopes {
    void (*situ)(size_t count, slm_cpu_glu at, double beta_gate, double beta_up);
    void (*swiglu)(size_t count, slm_cpu_glu at);
} slm_cpu_slopes;

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

/* One weight, and where a handle names its matrix. */
typedef struct slm_cpu_weight {
    const char *name;
    const slm_tensor *from;
    slm_cpu_matrix *to;
    ptrdiff_t *step; /* of its parts; NULL where it has one */
    int of_experts;  /* a part is one expert's              */
} slm_cpu_weight;

struct slm_handle {
    slm_config config;
    slm_cpu_gemm *gemm;
    const slm_cpu_kernels *kernels;
    const slm_cpu_slopes *slopes;
    const struct slm_cpu_topk *topk; /* topk.h */
    slm_cpu_weights weights;
    float *packed[SLM_CPU_WEIGHTS]; /* owned copies of weights that GEMM cannot read */
    struct slm_cpu_native *native;  /* of `cpu` alone: native.h                      */
    /* Of `cpu`: a product by the packed form of w; 0, nothing done, if it has none. */
    int (*by_panels)(const slm_handle *handle, const slm_cpu_linear *product);
    int half; /* values stored between the stages of an operation are rounded to bf16 */
    int router_is_wrong; /* w_router has a NaN or an infinity: no row has an answer  R4 */
};

/* One product on the calling thread, by packed weights where there are. */
static inline void slm_cpu_multiply(const slm_handle *handle,
                                    const slm_cpu_linear *product)
{
    if (!handle->by_panels || !handle->by_panels(handle, product))
        handle->gemm(product);
}

/* handle.c: a handle of that configuration, all else zero; NULL without memory. */
slm_handle *slm_cpu_new_handle(const slm_config *config, slm_error *error);
void slm_cpu_close(slm_handle *handle);

/* All weights, and their places in handle->weights, which stay as they are. */
void slm_cpu_list_weights(slm_handle *handle, const slm_weights *from,
                          slm_cpu_weight list[SLM_CPU_WEIGHTS]);

/* Let handle->router_is_wrong say what it says. */
void slm_cpu_look_at_router(slm_handle *handle, const slm_weights *weights);

/* Let handle->weights name binary32 weights; copies of those that GEMM cannot read. */
slm_status slm_cpu_refer_to_weights(slm_handle *handle, const slm_weights *weights,
                                    slm_error *error);
size_t slm_cpu_workspace(slm_handle *handle, slm_op op, const slm_call *call);

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

/* ---- bf16: the upper half of a binary32 ---- */

static inline float slm_cpu_of_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To nearest, ties to even; a NaN stays one. */
static inline uint16_t slm_cpu_to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(value != value ? bits >> 16 | 0x40
                                     : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* What a stage of this handle stores. */
static inline void slm_cpu_store_half(const slm_handle *handle, size_t count,
                                      float *values)
{
    if (!handle->half) return;
    for (size_t i = 0; i < count; i++)
        values[i] = slm_cpu_of_bf16(slm_cpu_to_bf16(values[i]));
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

/* How many blocks a product is cut into, and one of them, with its first element. */
size_t slm_cpu_blocks(const slm_cpu_linear *product);
slm_cpu_linear slm_cpu_block(const slm_cpu_linear *product, size_t index, size_t *row,
                             size_t *col);

/* Most elements of a block of y [rows, cols]. */
size_t slm_cpu_largest_block(size_t rows, size_t cols);

/* The gradient of a weight: an OUTER product into a view of any strides. */
typedef struct slm_cpu_gradient {
    slm_cpu_linear product; /* y is found from `to`; inner 0: zeros, or nothing added */
    slm_tensor to;          /* [rows, cols]                                           */
    size_t first;           /* filled by slm_cpu_gradients                            */
} slm_cpu_gradient;

/* All gradients, in blocks shared among threads. Blocks of views that GEMM cannot write
 * go through `stage`, SLM_CPU_STAGES at a time, each of at most `stage_size` elements,
 * the largest block of the list.                                      ffn_backward.c */
enum { SLM_CPU_STAGES = 8 };
void slm_cpu_gradients(const slm_handle *handle, slm_cpu_gradient *list, size_t n,
                       float *stage, size_t stage_size);

/* dispatch.c: the kernels for an instruction set, or the best below it that was
 * compiled. */
const slm_cpu_kernels *slm_cpu_kernels_of(slm_cpu_isa isa);

/* h = act(gate, up) of the configuration's expert; out may be gate or up.    L1, L4 */
void slm_cpu_activate(const slm_handle *handle, size_t count, const float *gate,
                      const float *up, float *out);

/* The gradients of slm_cpu_activate: situ_backward.c.                        G1, L4 */
const slm_cpu_slopes *slm_cpu_slopes_of(slm_cpu_isa isa);
void slm_cpu_activate_backward(const slm_handle *handle, size_t count, slm_cpu_glu at);

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
    size_t ahead;         /* rows before this one are asked for before they are read */
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

/* Score, choose and weigh the rows [first, end). A NaN logit poisons a row: ids 0..k-1,
 * NaN weights and cutoff; poisoned [T], may be NULL, becomes 1 there, else 0. Scratch
 * is that of first / SLM_CPU_ROWS and after: threads begin at multiples.  R2, R3, R4 */
void slm_cpu_select_rows(const slm_handle *handle, const slm_cpu_router *from,
                         size_t first, size_t end, const slm_cpu_choices *to,
                         unsigned char *poisoned);

/* Rows [first, end) of a tensor of rank 2 have no NaN and no infinity. */
int slm_cpu_is_finite(const slm_tensor *tensor, size_t first, size_t end);

/* Poison those of the rows [first, end) whose logits are infinite because x or w_router is.
 * A sum of finite products that is beyond binary32 is no reason.                      R4 */
void slm_cpu_poison_infinite(const slm_handle *handle, const slm_tensor *x,
                             slm_cpu_matrix logit, size_t first, size_t end,
                             unsigned char *poisoned);

/* To the outputs of a call; cutoff only where it is present and k < n. */
void slm_cpu_write_choice(const slm_config *config, size_t rows,
                          const slm_cpu_choices *from, const slm_tensor *ids,
                          const slm_tensor *weight, const slm_tensor *cutoff);

/* Score row t and weigh its given choice; scores [T, n] and `weight` [k] are written.
 * R3 */
void slm_cpu_weigh_row(const slm_handle *handle, const slm_cpu_router *from, size_t t,
                       const int32_t *ids, float *weight);

/* dlogit [n] from logit [n] and dweight [k] at the choice ids [k]; scratch [k]:
 * select_backward.c.                                                             G3 */
void slm_cpu_select_backward_row(const slm_config *config, const float *logit,
                                 const int32_t *ids, const float *dweight,
                                 double *scratch, float *dlogit);

/* du, from u and dr; returns 1 / sqrt(mean(u^2) + eps). du may be u or dr.       G2 */
double slm_cpu_rmsnorm_backward_row(size_t width, const float *u, const float *gamma,
                                    const float *dr, double eps, float *du);

/* Add to sum [width] each row's dr u scale, in order of the rows.                G2 */
void slm_cpu_add_dgamma(size_t rows, size_t width, slm_cpu_matrix u, slm_cpu_matrix dr,
                        const double *scale, double *sum);

/* ---- permute.c ---- */

/* counts [n], offsets [n + 1], order [rows k] from packed ids [rows, k].         L5 */
void slm_cpu_group(size_t rows, size_t n, size_t k, const int32_t *ids, int64_t *counts,
                   int64_t *offsets, int64_t *order);

/* ---- the routed path: layer.c ---- */

enum { SLM_CPU_TASK_ROWS = 256 };

/* Rows [begin, end) of the sorted pairs: all of one expert. */
typedef struct slm_cpu_task {
    size_t expert;
    size_t begin;
    size_t end;
} slm_cpu_task;

/* (token, slot) pairs sorted by expert. */
typedef struct slm_cpu_groups {
    int64_t *counts;     /* [n]                                                      */
    int64_t *offsets;    /* [n + 1]                                                  */
    int64_t *order;      /* [T k]  sorted position to pair                           */
    int64_t *place;      /* [T k]  pair to sorted position                           */
    slm_cpu_task *tasks; /* at most min(n, T k) + T k / SLM_CPU_TASK_ROWS            */
} slm_cpu_groups;

void slm_cpu_take_groups(slm_cpu_arena *arena, size_t n, size_t rows, size_t k,
                         slm_cpu_groups *at);

/* Sort the pairs of packed ids [rows, k] by expert and cut them into tasks; returns how
 * many. */
size_t slm_cpu_make_tasks(const slm_config *config, const int32_t *ids, size_t rows,
                          const slm_cpu_groups *at);

/* S fs, or 0 where the shared path has no inner width. */
size_t slm_cpu_shared_width(const slm_handle *handle);

/* Tokens that the layer takes through at once, of n_tokens still to do. */
size_t slm_cpu_panel_rows(size_t n_tokens);

/* One panel of a forward pass: `args` has its rows alone, `buffers` is the caller's. */
typedef void slm_cpu_run_panel(slm_handle *handle, const void *buffers,
                               const slm_layer_forward_args *args, size_t rows);

/* Every panel of a call, in order. */
void slm_cpu_in_panels(slm_handle *handle, const slm_layer_forward_args *args,
                       slm_cpu_run_panel *run, const void *buffers);

/* Rows first .. first + count - 1; an absent tensor stays absent. */
slm_tensor slm_cpu_part(const slm_tensor *tensor, size_t first, size_t count);

/* Of sorted pairs begin .. end - 1 the rows of their tokens, to `rows` [end - begin]; a
 * row has `bytes`. */
void slm_cpu_gather(const slm_cpu_groups *groups, size_t k, size_t begin, size_t end,
                    size_t bytes, const void *tokens, void *rows);

/* A tap [T, k, width] from sorted pairs; nothing when it is absent. */
void slm_cpu_write_pairs(const slm_tensor *tap, const int64_t *place,
                         const float *sorted, size_t width);

static inline slm_cpu_matrix slm_cpu_of_expert(slm_cpu_matrix weight, ptrdiff_t step,
                                               size_t expert)
{
    weight.data += (ptrdiff_t)expert * step;
    return weight;
}

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
size_t slm_cpu_rmsnorm_backward_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_select_backward_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_dense_ffn_backward_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_layer_backward_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_qb_exact_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_qb_hist_accumulate_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_qb_hist_solve_space(const slm_config *config, const slm_call *call);
size_t slm_cpu_qb_commit_space(const slm_config *config, const slm_call *call);

static inline size_t slm_cpu_ceil_div(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

#endif
