/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/ffn.c - matrices, products in blocks, and the dense feed-forward network.
 *
 * Clause   L1, L3, L4, L6.  Preconditions are the contract's; none is checked here.
 * Method   y is cut into blocks of tokens and columns by the sizes of the product
 *          alone; a block is one GEMM on one thread. Views that GEMM cannot read are
 *          copied to the workspace first.
 * Order    within a block GEMM's own, so a token's bits may depend on T. */
#include <limits.h>

#include "internal.h"

int slm_cpu_is_matrix(const slm_tensor *tensor, slm_cpu_matrix *matrix)
{
    const size_t rows = tensor->rank > 1 ? tensor->shape[0] : 1;
    const size_t cols = tensor->shape[tensor->rank - 1];
    const ptrdiff_t step = tensor->rank > 1 ? tensor->stride[0] : 0;

    if (cols > 1 && tensor->stride[tensor->rank - 1] != 1) return 0;
    if (rows > 1 && (step < (ptrdiff_t)cols || step > INT_MAX)) return 0;
    *matrix = (slm_cpu_matrix){tensor->data, rows > 1 ? (size_t)step : cols};
    return 1;
}

void slm_cpu_pack(float *to, const slm_tensor *from)
{
    const size_t rows = from->rank > 1 ? from->shape[0] : 1;
    const size_t cols = from->shape[from->rank - 1];
    const ptrdiff_t step = from->stride[from->rank - 1];

    for (size_t i = 0; i < rows; i++) {
        const float *row = from->rank > 1 ? slm_cpu_f32(from, i, 0) : from->data;

        for (size_t j = 0; j < cols; j++) to[i * cols + j] = row[(ptrdiff_t)j * step];
    }
}

slm_cpu_matrix slm_cpu_read(const slm_tensor *tensor, float *space)
{
    slm_cpu_matrix matrix;

    if (slm_cpu_is_matrix(tensor, &matrix)) return matrix;
    slm_cpu_pack(space, tensor);
    return (slm_cpu_matrix){space, tensor->shape[tensor->rank - 1]};
}

void slm_cpu_write(const slm_tensor *to, slm_cpu_matrix from)
{
    if (to->rank == 0) return;

    const size_t rows = to->rank > 1 ? to->shape[0] : 1;
    const size_t cols = to->shape[to->rank - 1];
    const ptrdiff_t step = to->stride[to->rank - 1];

    for (size_t i = 0; i < rows; i++) {
        const float *row = slm_cpu_row(from, i);
        float *target = to->rank > 1 ? slm_cpu_f32(to, i, 0) : to->data;

        for (size_t j = 0; j < cols; j++) target[(ptrdiff_t)j * step] = row[j];
    }
}

/* Of a block; multiples of 32, as where blocks begin. */
enum { MOST_ROWS = 256, MOST_COLS = 640 };

/* How a product is cut, evenly. */
typedef struct cut {
    size_t row_blocks;
    size_t col_blocks;
} cut;

/* Wide blocks of many tokens, since GEMM copies x anew for each; where the tokens make
 * one block only, narrower ones, so that there is something to share. */
static cut cut_of(const slm_cpu_linear *product)
{
    enum { FEW_ROWS = 16 };
    const size_t rows = product->rows;
    const size_t cols = rows > MOST_ROWS ? MOST_COLS : rows > FEW_ROWS ? 160 : 128;

    return (cut){slm_cpu_ceil_div(rows, MOST_ROWS),
                 slm_cpu_ceil_div(product->cols, cols)};
}

/* First element of part `index` of `parts` even parts that begin at multiples of 32. */
static size_t part_begin(size_t size, size_t parts, size_t index)
{
    const size_t each = (slm_cpu_ceil_div(size, parts) + 31) / 32 * 32;

    return index * each < size ? index * each : size;
}

slm_cpu_linear slm_cpu_block(const slm_cpu_linear *product, size_t index, size_t *row,
                             size_t *col)
{
    const int outer = (product->how & SLM_CPU_OUTER) != 0;
    const int back = (product->how & SLM_CPU_BACK) != 0;
    const cut by = cut_of(product);
    const size_t i = index / by.col_blocks, j = index % by.col_blocks;
    slm_cpu_linear block = *product;

    *row = part_begin(product->rows, by.row_blocks, i);
    *col = part_begin(product->cols, by.col_blocks, j);
    block.rows = part_begin(product->rows, by.row_blocks, i + 1) - *row;
    block.cols = part_begin(product->cols, by.col_blocks, j + 1) - *col;
    if (block.inner == 0) return block;
    block.x.data += outer ? *row : *row * block.x.ld;
    block.w.data += outer || back ? *col : *col * block.w.ld;
    return block;
}

static void run_block(const slm_handle *handle, const slm_cpu_linear *product,
                      size_t index)
{
    size_t row, col;
    slm_cpu_linear block = slm_cpu_block(product, index, &row, &col);

    if (block.rows == 0 || block.cols == 0) return;
    block.y.data += row * block.y.ld + col;
    slm_cpu_multiply(handle, &block);
}

size_t slm_cpu_blocks(const slm_cpu_linear *product)
{
    const cut by = cut_of(product);

    return by.row_blocks * by.col_blocks;
}

size_t slm_cpu_largest_block(size_t rows, size_t cols)
{
    return (rows < MOST_ROWS ? rows : MOST_ROWS) *
           (cols < MOST_COLS ? cols : MOST_COLS);
}

void slm_cpu_products(const slm_handle *handle, const slm_cpu_linear *list, size_t n)
{
    size_t total = 0;

    for (size_t p = 0; p < n; p++) total += slm_cpu_blocks(&list[p]);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t task = 0; task < total; task++) {
        size_t block = task, p = 0;

        while (block >= slm_cpu_blocks(&list[p])) block -= slm_cpu_blocks(&list[p++]);
        run_block(handle, &list[p], block);
    }
}

void slm_cpu_sum_of_products(const slm_handle *handle, const slm_cpu_linear *list,
                             size_t n)
{
    const size_t total = slm_cpu_blocks(list);

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t block = 0; block < total; block++)
        for (size_t p = 0; p < n; p++) run_block(handle, &list[p], block);
}

typedef struct space {
    float *x;      /* [T, d]                 */
    float *w_gate; /* [f, d]                 */
    float *w_up;   /* [f, d]                 */
    float *w_out;  /* [d, f]                 */
    float *gate;   /* [T, f]  becomes h      */
    float *up;     /* [T, f]                 */
    float *y;      /* [T, d]                 */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};
    const size_t d = config->d_model, f = config->d_expert;

    at->x = slm_cpu_take_f32(&arena, rows, d);
    at->w_gate = slm_cpu_take_f32(&arena, config->expert == SLM_EXPERT_RELU ? 0 : f, d);
    at->w_up = slm_cpu_take_f32(&arena, f, d);
    at->w_out = slm_cpu_take_f32(&arena, d, f);
    at->gate = slm_cpu_take_f32(&arena, rows, f);
    at->up = slm_cpu_take_f32(&arena, rows, f);
    at->y = slm_cpu_take_f32(&arena, rows, d);
    return arena.used;
}

size_t slm_cpu_dense_ffn_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

static int all_finite(size_t count, const float *row)
{
    int finite = 1;

    for (size_t i = 0; i < count; i++) finite &= isfinite(row[i]) != 0;
    return finite;
}

static void fill_nan(size_t count, float *row)
{
    for (size_t i = 0; i < count; i++) row[i] = NAN;
}

/* h in place of the gate. A row of x that is not finite gives a row of NaN.       R4 */
static void activate_rows(const slm_handle *handle, const space *at, slm_cpu_matrix x,
                          size_t rows)
{
    const size_t d = handle->config.d_model, f = handle->config.d_expert;

#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++) {
        float *gate = at->gate + t * f;

        if (all_finite(d, slm_cpu_row(x, t))) {
            slm_cpu_activate(handle, f, gate, at->up + t * f, gate);
            slm_cpu_store_half(handle, f, gate);
        } else
            fill_nan(f, gate);
    }
}

slm_status slm_cpu_dense_ffn(slm_handle *handle, const slm_dense_ffn_args *args,
                             slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, d = config->d_model, f = config->d_expert;
    const int gated = config->expert != SLM_EXPERT_RELU;
    slm_cpu_linear list[2];
    slm_cpu_matrix x, y;
    space at;

    (void)error;
    if (rows == 0) return SLM_OK;
    lay_out(&at, args->call.workspace, config, rows);
    x = slm_cpu_read(&args->x, at.x);
    list[0] = (slm_cpu_linear){rows,       f, d, x, slm_cpu_read(&args->w_up, at.w_up),
                               {at.up, f}, 0};
    if (gated)
        list[1] = (slm_cpu_linear){
            rows, f, d, x, slm_cpu_read(&args->w_gate, at.w_gate), {at.gate, f}, 0};
    slm_cpu_products(handle, list, gated ? 2 : 1);
    activate_rows(handle, &at, x, rows);

    const int direct = slm_cpu_is_matrix(&args->y, &y);

    if (!direct) y = (slm_cpu_matrix){at.y, d};
    list[0] = (slm_cpu_linear){
        rows, d, f, {at.gate, f}, slm_cpu_read(&args->w_out, at.w_out), y, 0};
    slm_cpu_products(handle, list, 1);
    if (!direct) slm_cpu_write(&args->y, y);
    slm_cpu_write(&args->h, (slm_cpu_matrix){at.gate, f});
    return SLM_OK;
}
