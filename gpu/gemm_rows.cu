/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/gemm_rows.cu - products of few rows: dense, and of all experts in one launch.
 *
 * Such a product is as fast as its weights come from memory. A block reads its part of
 * them once for all rows of an item, 16 bytes a lane and several such loads before the
 * first is used; where an address or a size forbids that, one element a lane. x comes
 * from cache, again and again.
 *
 * An item is a dense product, or up to four rows of one expert. A block finds it from a
 * chunk: the chunks of an expert lie side by side, the blocks of every fourth row work
 * for the chunks between, too. Rows without a pair are not multiplied; they become
 * zeros, because activations go through all rows.
 *
 * Order    an element is one sum, whose order depends on `inner`, the dtype and the
 *          width of the loads alone: not on how many rows there are. */
#include "gemm_rows.cuh"

using namespace slm_gpu_rows;

namespace
{

/* ---- y = x w^T: a warp takes two rows of w, its lanes go along them ---- */

enum { PER_WARP = 2, DOT_COLS = WARPS * PER_WARP };

/* Blocks that share a multiprocessor: as many as registers allow without spills. */
template <class E, bool WIDE> constexpr int RESIDENT = WIDE && sizeof(E) == 2 ? 3 : 1;

/* sum += x w for a piece of ROWS rows of x, of which `rows` are there, zeros where the
 * piece is not `there`. */
template <int ROWS, class E, bool WIDE>
__device__ inline void fold_rows(const piece<E, WIDE> (&w)[PER_WARP], const E *x,
                                 size_t x_ld, int rows, bool there,
                                 float (&sum)[ROWS][PER_WARP])
{
    enum { COUNT = piece<E, WIDE>::COUNT };
    float a[COUNT], b[PER_WARP][COUNT];

    SLM_UNROLL
    for (int j = 0; j < PER_WARP; j++) w[j].unpack(b[j]);
    SLM_UNROLL
    for (int r = 0; r < ROWS; r++) {
        load<E, WIDE>(x + (r < rows ? r : 0) * x_ld, there).unpack(a);
        SLM_UNROLL
        for (int i = 0; i < COUNT; i++) {
            SLM_UNROLL
            for (int j = 0; j < PER_WARP; j++)
                sum[r][j] = fmaf(a[i], b[j][i], sum[r][j]);
        }
    }
}

/* The lane's part of the warp's sums. Rows of w are columns of y. */
template <int ROWS, class E, bool WIDE>
__device__ inline void walk(const product &p, const E *x, int rows,
                            const E *const (&column)[PER_WARP],
                            float (&sum)[ROWS][PER_WARP])
{
    enum { COUNT = piece<E, WIDE>::COUNT, AHEAD = ROWS > 2 ? 2 : 4 };
    const int pieces = p.inner / COUNT;

    for (int begin = (int)threadIdx.x % 32; begin < pieces; begin += 32 * AHEAD) {
        piece<E, WIDE> ahead[AHEAD][PER_WARP];

        SLM_UNROLL
        for (int u = 0; u < AHEAD; u++) {
            const int at = begin + 32 * u;

            SLM_UNROLL
            for (int j = 0; j < PER_WARP; j++)
                ahead[u][j] =
                    load<E, WIDE>(column[j] + (size_t)at * COUNT, at < pieces);
        }
        SLM_UNROLL
        for (int u = 0; u < AHEAD; u++) {
            const int at = begin + 32 * u;

            fold_rows<ROWS, E, WIDE>(ahead[u], x + (size_t)at * COUNT, p.x_ld, rows,
                                     at < pieces, sum);
        }
    }
}

/* Columns col and col + 1 of ROWS rows, of which of.rows are there. A whole warp. */
template <int ROWS, class E, class Y, bool WIDE>
__device__ inline void dot_rows(const product &p, const item &of, const E *x,
                                const E *w, Y *y, int col)
{
    const E *const column[PER_WARP] = {w + (size_t)col * p.w_ld,
                                       w + (size_t)least(p.cols - 1, col + 1) * p.w_ld};
    float sum[ROWS][PER_WARP] = {};

    walk<ROWS, E, WIDE>(p, x, of.rows, column, sum);
    SLM_UNROLL
    for (int r = 0; r < ROWS; r++) {
        SLM_UNROLL
        for (int j = 0; j < PER_WARP; j++) {
            float all = sum[r][j];

            for (int d = 16; d > 0; d /= 2) all += __shfl_xor_sync(0xffffffffu, all, d);
            if (threadIdx.x % 32 == 0 && r < of.rows && col + j < p.cols)
                write(p, y + (of.row + r) * p.y_ld + col + j, all);
        }
    }
}

/* y = x w^T for an item's rows and 16 columns.
 *
 *   launch   grid (chunks, dense 1; times tiles; products), block 256
 *   WIDE     x and w and their distances are multiples of 16 bytes, inner of a piece
 *   order    lane i sums pieces i, i + 32, ...; lanes fold by xor 16, 8, 4, 2, 1 */
template <class E, class Y, bool WIDE>
__global__ void __launch_bounds__(THREADS, RESIDENT<E, WIDE>) gemm_rows_dot(product p)
{
    const operands &on = p.of[0], &second = p.of[1];
    const bool other = blockIdx.y;
    const int tile = (int)(blockIdx.x % (unsigned)p.tiles);
    const item of = item_of(p, (int)(blockIdx.x / (unsigned)p.tiles));
    const int col = tile * DOT_COLS + (int)threadIdx.x / 32 * PER_WARP;
    const E *x = (const E *)(other ? second.x : on.x) + of.row * p.x_ld;
    const E *w = (const E *)(other ? second.w : on.w) + of.expert * p.w_step;
    Y *y = (Y *)(other ? second.y : on.y);

    clear(p, y, of, tile * DOT_COLS, DOT_COLS);
    if (of.rows == 0 || col >= p.cols) return; /* whole warps */
    if (of.rows == 1)
        dot_rows<1, E, Y, WIDE>(p, of, x, w, y, col);
    else if (of.rows == 2)
        dot_rows<2, E, Y, WIDE>(p, of, x, w, y, col);
    else
        dot_rows<FEW, E, Y, WIDE>(p, of, x, w, y, col);
}

/* ---- y = x w: lanes lie across columns, warps and parts of warps go down w ---- */

template <class E, bool WIDE> struct down {
    enum {
        COUNT = piece<E, WIDE>::COUNT,
        ACROSS = WIDE ? 8 : 32, /* lanes                              */
        WIDTH = ACROSS * COUNT, /* columns of a block                 */
        STEP = THREADS / ACROSS /* rows of w that a block reads at once */
    };
};

/* The thread's sums over rows begin, begin + STEP, ... of w in COUNT columns. */
template <int ROWS, class E, bool WIDE, int COUNT>
__device__ inline void descend(const product &p, const E *x, const E *w, int rows,
                               int begin, bool inside, float (&sum)[ROWS][COUNT])
{
    enum { STEP = down<E, WIDE>::STEP, AHEAD = ROWS > 2 ? 4 : 8 };

    for (; begin < p.inner; begin += STEP * AHEAD) {
        piece<E, WIDE> ahead[AHEAD];

        SLM_UNROLL
        for (int u = 0; u < AHEAD; u++) {
            const int at = begin + STEP * u;

            ahead[u] = load<E, WIDE>(w + (size_t)at * p.w_ld, inside && at < p.inner);
        }
        SLM_UNROLL
        for (int u = 0; u < AHEAD; u++) {
            const int at = begin + STEP * u;
            float b[COUNT];

            ahead[u].unpack(b);
            SLM_UNROLL
            for (int r = 0; r < ROWS; r++) {
                const E *own = x + (r < rows ? r : 0) * p.x_ld + at;
                const float a = at < p.inner ? slm_gpu_load(own) : 0.0f;

                SLM_UNROLL
                for (int i = 0; i < COUNT; i++) sum[r][i] = fmaf(a, b[i], sum[r][i]);
            }
        }
    }
}

/* The warp's sums of ROWS rows, in `part`; x: the item's first row. */
template <int ROWS, class E, bool WIDE, int WIDTH>
__device__ inline void sum_rows(const product &p, const E *x, const E *w, int rows,
                                int col, float (&part)[FEW][WIDTH])
{
    enum { COUNT = down<E, WIDE>::COUNT, ACROSS = down<E, WIDE>::ACROSS };
    const int lane = (int)threadIdx.x % ACROSS, at = col + lane * COUNT;
    float sum[ROWS][COUNT] = {};

    descend<ROWS, E, WIDE>(p, x, w + at, rows, (int)threadIdx.x / ACROSS, at < p.cols,
                           sum);
    SLM_UNROLL
    for (int r = 0; r < ROWS; r++) {
        SLM_UNROLL
        for (int i = 0; i < COUNT; i++) {
            float all = sum[r][i];

            for (int d = ACROSS; d < 32; d *= 2)
                all += __shfl_xor_sync(0xffffffffu, all, d);
            if ((int)threadIdx.x % 32 < ACROSS) part[r][lane * COUNT + i] = all;
        }
    }
}

/* y = x w for an item's rows and 64 columns in bf16, 32 in binary32 or not WIDE.
 *
 *   launch   grid (chunks, dense 1; times tiles; products), block 256
 *   WIDE     w and its distances are multiples of 16 bytes, cols of a piece
 *   order    with s = THREADS / lanes across: s sums of rows i, i + s, ... of w; those
 *            of a warp fold by xor, those of the warps in order */
template <class E, class Y, bool WIDE>
__global__ void __launch_bounds__(THREADS) gemm_rows_back(product p)
{
    enum { WIDTH = down<E, WIDE>::WIDTH };
    SLM_SHARED(float, part, [WARPS][FEW][WIDTH]);
    const operands &on = p.of[0], &second = p.of[1];
    const bool other = blockIdx.y;
    const int warp = (int)threadIdx.x / 32;
    const int col = (int)(blockIdx.x % (unsigned)p.tiles) * WIDTH;
    const item of = item_of(p, (int)(blockIdx.x / (unsigned)p.tiles));
    const E *x = (const E *)(other ? second.x : on.x) + of.row * p.x_ld;
    const E *w = (const E *)(other ? second.w : on.w) + of.expert * p.w_step;
    Y *y = (Y *)(other ? second.y : on.y);

    clear(p, y, of, col, WIDTH);
    if (of.rows == 0) return; /* the whole block */
    if (of.rows == 1)
        sum_rows<1, E, WIDE>(p, x, w, of.rows, col, part[warp]);
    else if (of.rows == 2)
        sum_rows<2, E, WIDE>(p, x, w, of.rows, col, part[warp]);
    else
        sum_rows<FEW, E, WIDE>(p, x, w, of.rows, col, part[warp]);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < of.rows * WIDTH; i += THREADS) {
        const int r = i / WIDTH, at = i % WIDTH;
        float all = 0.0f;

        for (int from = 0; from < WARPS; from++) all += part[from][r][at];
        if (col + at < p.cols) write(p, y + (of.row + r) * p.y_ld + col + at, all);
    }
}

/* ---- launchers ---- */

/* Sizes that indices hold, and some steps of a block beyond. */
bool fits(size_t size)
{
    return slm_gpu_fits(size, 4096);
}

bool is_even(slm_gpu_matrix matrix)
{
    return (uintptr_t)matrix.data % 16 == 0 &&
           matrix.ld * slm_dtype_size(matrix.dtype) % 16 == 0;
}

template <class E, class Y, bool WIDE>
slm_status launch(product p, bool back, size_t chunks, size_t n_list,
                  cudaStream_t stream)
{
    const size_t width = back ? (size_t)down<E, WIDE>::WIDTH : (size_t)DOT_COLS;
    const size_t tiles = (p.cols + width - 1) / width;

    if (tiles > INT32_MAX / chunks) return SLM_ERR_UNSUPPORTED;

    const dim3 grid((unsigned)(tiles * chunks), (unsigned)n_list);

    p.tiles = (int)tiles;
    if (back)
        SLM_LAUNCH((gemm_rows_back<E, Y, WIDE>), grid, THREADS, stream, p);
    else
        SLM_LAUNCH((gemm_rows_dot<E, Y, WIDE>), grid, THREADS, stream, p);
    return slm_gpu_launched();
}

template <bool WIDE>
slm_status launch_typed(const product &p, slm_dtype dtype, slm_dtype y_dtype, bool back,
                        size_t chunks, size_t n_list, cudaStream_t stream)
{
    if (dtype == SLM_F32)
        return launch<float, float, WIDE>(p, back, chunks, n_list, stream);
    if (y_dtype == SLM_F32)
        return launch<__nv_bfloat16, float, WIDE>(p, back, chunks, n_list, stream);
    return launch<__nv_bfloat16, __nv_bfloat16, WIDE>(p, back, chunks, n_list, stream);
}

} // namespace

int slm_gpu_is_wide(size_t cols, size_t inner, unsigned how, slm_gpu_matrix x,
                    slm_gpu_matrix w)
{
    const size_t count = 16 / slm_dtype_size(w.dtype);

    return is_even(w) &&
           (how & SLM_GPU_BACK ? cols % count == 0 : inner % count == 0 && is_even(x));
}

slm_status slm_gpu_few_rows(const slm_gpu_linear *product_of, cudaStream_t stream)
{
    const slm_gpu_linear &of = *product_of;
    product p = {};

    if (!fits(of.cols) || !fits(of.inner)) return SLM_ERR_UNSUPPORTED;
    p.of[0] = {of.x.data, of.w.data, of.y.data};
    p.x_ld = of.x.ld;
    p.w_ld = of.w.ld;
    p.y_ld = of.y.ld;
    p.rows = (int)of.rows;
    p.cols = (int)of.cols;
    p.inner = (int)of.inner;
    p.add = of.how & SLM_GPU_ADD;
    return launch_typed<true>(p, of.x.dtype, of.y.dtype, of.how & SLM_GPU_BACK, 1, 1,
                              stream);
}

slm_status slm_gpu_few_expert_rows(const slm_gpu_groups *at, size_t cols, size_t inner,
                                   unsigned how, const slm_gpu_expert_linear *list,
                                   size_t n_list, cudaStream_t stream)
{
    const bool back = how & SLM_GPU_BACK;
    const slm_gpu_matrix &x = list->x, &y = list->y;
    bool wide = true;
    product p = {};

    if (!fits(cols) || !fits(inner)) return SLM_ERR_UNSUPPORTED;
    p.w_ld = back ? cols : inner;
    for (size_t i = 0; i < n_list; i++) {
        const slm_gpu_matrix w = slm_gpu_packed(list[i].w, x.dtype, p.w_ld);

        p.of[i] = {list[i].x.data, list[i].w, list[i].y.data};
        wide = wide && slm_gpu_is_wide(cols, inner, how, list[i].x, w);
    }
    p.x_ld = x.ld;
    p.y_ld = y.ld;
    p.w_step = cols * inner;
    p.rows = (int)at->chunk;
    p.cols = (int)cols;
    p.inner = (int)inner;
    p.n = (int)at->n;
    p.expert = at->expert;
    p.first = at->first;
    p.counts = at->counts;
    return wide ? launch_typed<true>(p, x.dtype, y.dtype, back, at->chunks, n_list,
                                     stream)
                : launch_typed<false>(p, x.dtype, y.dtype, back, at->chunks, n_list,
                                      stream);
}
