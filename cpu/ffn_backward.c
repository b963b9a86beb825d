/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/ffn_backward.c - gradients of weights, and of the dense feed-forward network.
 *
 * Clause   G1, G4, G5, L4.  Preconditions are the contract's; none is checked here.
 * Method   the forward is recomputed; then one product a gradient. Gradients of weights
 *          sum over the tokens inside one GEMM a block; a sum without tokens is zeros
 *          and calls none.
 * Order    blocks are cut by sizes alone, so threads change no bit. dx is the gate's
 *          part, then the up part. */
#include "internal.h"

/* Rows and columns [row, ..), [col, ..) of a view of rank 2. */
static slm_tensor window(const slm_tensor *of, size_t row, size_t col, size_t rows,
                         size_t cols)
{
    slm_tensor part = *of;

    part.data = slm_cpu_f32(of, row, col);
    part.shape[0] = rows;
    part.shape[1] = cols;
    return part;
}

/* At once where it can be: of long runs the CPU writes zeros without reading first. */
static void fill_zero(const slm_tensor *to)
{
    const size_t cols = to->shape[1];

    if (to->stride[1] == 1 && to->stride[0] == (ptrdiff_t)cols) {
        memset(to->data, 0, to->shape[0] * cols * sizeof(float));
        return;
    }
    for (size_t i = 0; i < to->shape[0]; i++)
        if (to->stride[1] == 1)
            memset(slm_cpu_f32(to, i, 0), 0, cols * sizeof(float));
        else
            for (size_t j = 0; j < cols; j++) *slm_cpu_f32(to, i, j) = 0.0f;
}

/* Part `index` of zeros: whole rows. */
static void zero_block(const slm_cpu_gradient *gradient, size_t index)
{
    const size_t rows = gradient->to.shape[0];
    const size_t blocks = slm_cpu_blocks(&gradient->product);
    const size_t first = rows * index / blocks, end = rows * (index + 1) / blocks;
    const slm_tensor part =
        window(&gradient->to, first, 0, end - first, gradient->to.shape[1]);

    if (end > first && part.shape[1] > 0) fill_zero(&part);
}

static void gradient_block(const slm_handle *handle, const slm_cpu_gradient *gradient,
                           size_t index, float *stage)
{
    size_t row, col;
    slm_cpu_linear block = slm_cpu_block(&gradient->product, index, &row, &col);
    const int adds = (block.how & SLM_CPU_ADD) != 0;

    if (block.inner == 0) {
        if (!adds) zero_block(gradient, index);
        return;
    }
    if (block.rows == 0 || block.cols == 0) return;

    const slm_tensor to = window(&gradient->to, row, col, block.rows, block.cols);

    if (slm_cpu_is_matrix(&gradient->to, &block.y)) {
        block.y.data += row * block.y.ld + col;
        handle->gemm(&block);
        return;
    }
    block.y = (slm_cpu_matrix){stage, block.cols};
    if (adds) slm_cpu_pack(stage, &to);
    handle->gemm(&block);
    slm_cpu_write(&to, block.y);
}

/* The gradient whose block has that number: `first` ascends. */
static const slm_cpu_gradient *holder(const slm_cpu_gradient *list, size_t n,
                                      size_t block)
{
    size_t low = 0, high = n;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (list[middle].first <= block)
            low = middle;
        else
            high = middle;
    }
    return &list[low];
}

void slm_cpu_gradients(const slm_handle *handle, slm_cpu_gradient *list, size_t n,
                       float *stage, size_t stage_size)
{
    size_t total = 0, wave;
    int direct = 1;

    for (size_t i = 0; i < n; i++) {
        slm_cpu_matrix ignored;

        list[i].first = total;
        total += slm_cpu_blocks(&list[i].product);
        direct &= slm_cpu_is_matrix(&list[i].to, &ignored);
    }
    wave = direct ? total : SLM_CPU_STAGES;
    for (size_t begin = 0; begin < total; begin += wave) {
        const size_t end = total - begin < wave ? total : begin + wave;

#pragma omp parallel for schedule(dynamic, 1)
        for (size_t block = begin; block < end; block++) {
            const slm_cpu_gradient *gradient = holder(list, n, block);

            gradient_block(handle, gradient, block - gradient->first,
                           direct ? NULL : stage + (block - begin) * stage_size);
        }
    }
}

typedef struct space {
    float *x;       /* [T, d]   this and the next five only when GEMM cannot read */
    float *dy;      /* [T, d]   or write them where they are                      */
    float *dx;      /* [T, d]                                                     */
    float *w_gate;  /* [f, d]                                                     */
    float *w_up;    /* [f, d]                                                     */
    float *w_out;   /* [d, f]                                                     */
    float *gate_up; /* [T, 2f]  becomes dgate_up                                  */
    float *h;       /* [T, f]                                                     */
    float *dh;      /* [T, f]                                                     */
    float *stage;   /* SLM_CPU_STAGES blocks                                      */
    size_t stage_size;
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};
    const size_t d = config->d_model, f = config->d_expert;
    const size_t up = slm_cpu_largest_block(f, d), out = slm_cpu_largest_block(d, f);

    at->x = slm_cpu_take_f32(&arena, rows, d);
    at->dy = slm_cpu_take_f32(&arena, rows, d);
    at->dx = slm_cpu_take_f32(&arena, rows, d);
    at->w_gate = slm_cpu_take_f32(&arena, f, d);
    at->w_up = slm_cpu_take_f32(&arena, f, d);
    at->w_out = slm_cpu_take_f32(&arena, d, f);
    at->gate_up = slm_cpu_take_f32(&arena, rows, 2 * f);
    at->h = slm_cpu_take_f32(&arena, rows, f);
    at->dh = slm_cpu_take_f32(&arena, rows, f);
    at->stage_size = up > out ? up : out;
    at->stage = slm_cpu_take_f32(&arena, SLM_CPU_STAGES, at->stage_size);
    return arena.used;
}

size_t slm_cpu_dense_ffn_backward_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

/* Matrices of one call. */
typedef struct operands {
    slm_cpu_matrix x;
    slm_cpu_matrix dy;
    slm_cpu_matrix w_gate;
    slm_cpu_matrix w_up;
    slm_cpu_matrix w_out;
} operands;

/* gate_up, h and dh; the taps of the first two, since gate_up is overwritten later. */
static void recompute(const slm_handle *handle, const space *at, const operands *in,
                      const slm_dense_ffn_backward_args *args)
{
    const size_t rows = args->call.n_tokens;
    const size_t d = handle->config.d_model, f = handle->config.d_expert;
    const slm_cpu_matrix gate = {at->gate_up, 2 * f}, up = {at->gate_up + f, 2 * f};
    const slm_cpu_linear list[] = {
        {rows, f, d, in->x, in->w_gate, gate, 0},
        {rows, f, d, in->x, in->w_up, up, 0},
        {rows, f, d, in->dy, in->w_out, {at->dh, f}, SLM_CPU_BACK},
    };

    slm_cpu_products(handle, list, 3);
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++) {
        slm_cpu_store_half(handle, 2 * f, slm_cpu_row(gate, t));
        slm_cpu_store_half(handle, f, at->dh + t * f);
        slm_cpu_activate(handle, f, slm_cpu_row(gate, t), slm_cpu_row(up, t),
                         at->h + t * f);
        slm_cpu_store_half(handle, f, at->h + t * f);
    }
    slm_cpu_write(&args->gate_up, gate);
    slm_cpu_write(&args->h, (slm_cpu_matrix){at->h, f});
    slm_cpu_write(&args->dh, (slm_cpu_matrix){at->dh, f});
}

/* dgate_up in place of gate_up. */
static void differentiate(const slm_handle *handle, const space *at, size_t rows)
{
    const size_t f = handle->config.d_expert;

#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++) {
        float *gate = at->gate_up + t * 2 * f, *up = gate + f;

        slm_cpu_activate_backward(handle, f,
                                  (slm_cpu_glu){gate, up, at->dh + t * f, gate, up});
        slm_cpu_store_half(handle, 2 * f, gate);
    }
}

static void write_dx(const slm_handle *handle, const space *at, const operands *in,
                     const slm_dense_ffn_backward_args *args)
{
    const size_t rows = args->call.n_tokens;
    const size_t d = handle->config.d_model, f = handle->config.d_expert;
    const slm_cpu_matrix dgate = {at->gate_up, 2 * f}, dup = {at->gate_up + f, 2 * f};
    slm_cpu_matrix dx;
    const int direct = slm_cpu_is_matrix(&args->dx, &dx);

    if (!direct) dx = (slm_cpu_matrix){at->dx, d};

    const slm_cpu_linear list[] = {
        {rows, d, f, dgate, in->w_gate, dx, SLM_CPU_BACK},
        {rows, d, f, dup, in->w_up, dx, SLM_CPU_BACK | SLM_CPU_ADD},
    };

    slm_cpu_sum_of_products(handle, list, 2);
    if (!direct) slm_cpu_write(&args->dx, dx);
}

slm_status slm_cpu_dense_ffn_backward(slm_handle *handle,
                                      const slm_dense_ffn_backward_args *args,
                                      slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, d = config->d_model, f = config->d_expert;
    const slm_status status =
        slm_check_finite(SLM_OP_dense_ffn_backward, config, args, error);
    operands in = {{NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    space at;

    if (status) return status;
    lay_out(&at, args->call.workspace, config, rows);
    if (rows) {
        in = (operands){slm_cpu_read(&args->x, at.x), slm_cpu_read(&args->dy, at.dy),
                        slm_cpu_read(&args->w_gate, at.w_gate),
                        slm_cpu_read(&args->w_up, at.w_up),
                        slm_cpu_read(&args->w_out, at.w_out)};
        recompute(handle, &at, &in, args);
        differentiate(handle, &at, rows);
        write_dx(handle, &at, &in, args);
        slm_cpu_write(&args->dgate_up, (slm_cpu_matrix){at.gate_up, 2 * f});
    }

    const slm_cpu_matrix dgate = {at.gate_up, 2 * f}, dup = {at.gate_up + f, 2 * f};
    slm_cpu_gradient list[] = {
        {{f, d, rows, dgate, in.x, {NULL, 0}, SLM_CPU_OUTER}, args->dw_gate, 0},
        {{f, d, rows, dup, in.x, {NULL, 0}, SLM_CPU_OUTER}, args->dw_up, 0},
        {{d, f, rows, in.dy, {at.h, f}, {NULL, 0}, SLM_CPU_OUTER}, args->dw_out, 0},
    };

    slm_cpu_gradients(handle, list, 3, at.stage, at.stage_size);
    return SLM_OK;
}
