/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/gemm_gradient.cu - gradients of experts' weights.                       G4, G5
 *
 * They sum over as many rows as an expert has, which cuBLAS can only be told from the
 * host: kernels of their own. For binary32 fused operations, no tensor cores: those
 * would round the factors. For bf16 tensor cores: products are exact, sums binary32. */
#include "eight.cuh"
#include "layer.h"

namespace wmma = nvcuda::wmma;

/* ---- binary32 ---- */

enum { TILE = 64, DEPTH = 16, SIDE = 16, EACH = TILE / SIDE };

/* Rows begin .. begin + DEPTH - 1, columns col .. col + TILE - 1 of m; zeros past the
 * ends. */
__device__ inline void load_tile(float (&tile)[DEPTH][TILE], const float *m, size_t ld,
                                 int64_t begin, int64_t end, int col, int cols)
{
    for (int i = (int)threadIdx.x; i < DEPTH * TILE; i += SIDE * SIDE) {
        const int row = i / TILE, at = i % TILE;
        const bool inside = begin + row < end && col + at < cols;

        tile[row][at] = inside ? m[(size_t)(begin + row) * ld + col + at] : 0.0f;
    }
}

/* One block makes one tile of 64 x 64 of dw[e] = a^T b over the rows of expert e; a
 * thread has every 16th row and column of it.                                 G4, G5
 *
 *   launch      grid n * tiles_a * tiles_b, block 256
 *   a [rows of experts, a_cols], b [rows of experts, b_cols], `a_ld`, `b_ld` apart
 *   first       [n + 1] first chunk of an expert; counts [n] its rows
 *   dw          [n, a_cols, b_cols] out; zeros where counts is 0
 *   state       nothing is written when it says no; NULL: always
 *   order       one sum an element, in order of the rows */
__global__ void __launch_bounds__(SIDE *SIDE)
    gemm_expert_gradient(const float *a, size_t a_ld, int a_cols, const float *b,
                         size_t b_ld, int b_cols, int tiles_a, int tiles_b,
                         const int64_t *first, const int64_t *counts, int chunk,
                         float *dw, const slm_gpu_state *state)
{
    SLM_SHARED(float, left, [DEPTH][TILE]);
    SLM_SHARED(float, right, [DEPTH][TILE]);
    const unsigned tile = blockIdx.x % (unsigned)(tiles_a * tiles_b);
    const unsigned e = blockIdx.x / (unsigned)(tiles_a * tiles_b);
    const int i0 = (int)(tile / (unsigned)tiles_b) * TILE;
    const int j0 = (int)(tile % (unsigned)tiles_b) * TILE;
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
    float sum[EACH][EACH] = {};

    if (slm_gpu_stopped(state)) return; /* all threads see the same */

    const int64_t begin = first[e] * chunk, end = begin + counts[e];

    for (int64_t row = begin; row < end; row += DEPTH) {
        load_tile(left, a, a_ld, row, end, i0, a_cols);
        load_tile(right, b, b_ld, row, end, j0, b_cols);
        __syncthreads();
        for (int d = 0; d < DEPTH; d++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(left[d][ty + i * SIDE], right[d][tx + j * SIDE],
                                     sum[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const int row = i0 + ty + i * SIDE, col = j0 + tx + j * SIDE;

            if (row < a_cols && col < b_cols)
                dw[((size_t)e * (size_t)a_cols + (size_t)row) * (size_t)b_cols +
                   (size_t)col] = sum[i][j];
        }
}

/* ---- bf16 ---- */

/* A block makes a tile of dw, a warp 4 x 2 parts of it. A part is what a tensor core
 * multiplies at once: 16 x 16 of dw over the 16 rows of a step. Pitches are such that
 * rows begin in different banks. */
enum {
    PART = 16,
    CORE_TILE = 128,
    CORE_PITCH = CORE_TILE + SLM_GPU_EIGHT,
    PATCH_PITCH = PART + 4,
    PARTS_DOWN = 4,
    PARTS_ACROSS = 2,
    PARTS = PARTS_DOWN * PARTS_ACROSS,
    WARPS_ACROSS = CORE_TILE / (PARTS_ACROSS * PART),
    WARPS = CORE_TILE / (PARTS_DOWN * PART) * WARPS_ACROSS,
    EIGHTS = CORE_TILE / SLM_GPU_EIGHT
};
static_assert(WARPS * 32 == PART * EIGHTS, "eight elements of a step a thread");

/* Rows of both factors. */
struct alignas(32) core_step {
    __nv_bfloat16 left[PART][CORE_PITCH];
    __nv_bfloat16 right[PART][CORE_PITCH];
};

/* What a warp lays down where it cannot store a part at once. */
struct alignas(32) core_patch {
    float value[PART][PATCH_PITCH];
};

typedef wmma::fragment<wmma::accumulator, PART, PART, PART, float> core_sums;

/* A factor as a block reads it: columns from `col` on. */
struct core_factor {
    const __nv_bfloat16 *data;
    size_t ld;
    int col, cols;
};

/* Eight elements one by one; zeros where `left` are fewer. */
__device__ inline slm_gpu_words gather_words(const __nv_bfloat16 *at, int left)
{
    unsigned word[SLM_GPU_EIGHT / 2];

    SLM_UNROLL
    for (int i = 0; i < SLM_GPU_EIGHT / 2; i++) {
        const unsigned low = 2 * i < left ? __bfloat16_as_ushort(at[2 * i]) : 0u;
        const unsigned high =
            2 * i + 1 < left ? __bfloat16_as_ushort(at[2 * i + 1]) : 0u;

        word[i] = low | high << 16;
    }
    return {word[0], word[1], word[2], word[3]};
}

/* A thread's share of the rows row .. row + 15; zeros past the ends. */
__device__ inline slm_gpu_words read_ahead(const core_factor &from, int64_t row,
                                           int64_t end)
{
    const int64_t at_row = row + (int)threadIdx.x / EIGHTS;
    const int col = from.col + (int)threadIdx.x % EIGHTS * SLM_GPU_EIGHT;
    const int left = at_row < end ? from.cols - col : 0;
    const __nv_bfloat16 *at = from.data + (size_t)at_row * from.ld + col;

    return slm_gpu_is_whole(at, left) ? *(const slm_gpu_words *)at
                                      : gather_words(at, left);
}

__device__ inline void lay_down(__nv_bfloat16 (&rows)[PART][CORE_PITCH],
                                slm_gpu_words ahead)
{
    const int row = (int)threadIdx.x / EIGHTS;
    const int col = (int)threadIdx.x % EIGHTS * SLM_GPU_EIGHT;

    *(slm_gpu_words *)&rows[row][col] = ahead;
}

/* The warp's parts, from `top`, `side` of the tile on, += left^T right. */
__device__ inline void add_step(core_sums (&sums)[PARTS_DOWN][PARTS_ACROSS],
                                const core_step &step, int top, int side)
{
    wmma::fragment<wmma::matrix_b, PART, PART, PART, __nv_bfloat16, wmma::row_major>
        right[PARTS_ACROSS];
    wmma::fragment<wmma::matrix_a, PART, PART, PART, __nv_bfloat16, wmma::col_major>
        left;

    SLM_UNROLL
    for (int j = 0; j < PARTS_ACROSS; j++)
        wmma::load_matrix_sync(right[j], &step.right[0][side + j * PART], CORE_PITCH);
    SLM_UNROLL
    for (int i = 0; i < PARTS_DOWN; i++) {
        wmma::load_matrix_sync(left, &step.left[0][top + i * PART], CORE_PITCH);
        SLM_UNROLL
        for (int j = 0; j < PARTS_ACROSS; j++)
            wmma::mma_sync(sums[i][j], left, right[j], sums[i][j]);
    }
}

/* One part to `to`, of which `rows` x `cols` are there. All lanes see the same. */
__device__ inline void store_part(float *to, int ld, int rows, int cols,
                                  const core_sums &part, core_patch &patch)
{
    if (rows <= 0 || cols <= 0) return;
    if (rows >= PART && cols >= PART && ld % 4 == 0 && (uintptr_t)to % 32 == 0) {
        wmma::store_matrix_sync(to, part, (unsigned)ld, wmma::mem_row_major);
        return;
    }
    wmma::store_matrix_sync(&patch.value[0][0], part, PATCH_PITCH, wmma::mem_row_major);
    __syncwarp();
    for (int i = (int)threadIdx.x % 32; i < PART * PART; i += 32)
        if (i / PART < rows && i % PART < cols)
            to[(size_t)(i / PART) * (size_t)ld + i % PART] =
                patch.value[i / PART][i % PART];
    __syncwarp();
}

/* The warp's parts to dw[e], from row `row` and column `col` on. */
__device__ inline void store_sums(float *dw, int row, int a_cols, int col, int b_cols,
                                  const core_sums (&sums)[PARTS_DOWN][PARTS_ACROSS],
                                  core_patch &patch)
{
    SLM_UNROLL
    for (int i = 0; i < PARTS; i++) {
        const int down = row + i / PARTS_ACROSS * PART;
        const int across = col + i % PARTS_ACROSS * PART;

        store_part(dw + (size_t)down * (size_t)b_cols + across, b_cols, a_cols - down,
                   b_cols - across, sums[i / PARTS_ACROSS][i % PARTS_ACROSS], patch);
    }
}

/* gemm_expert_gradient for bf16, on tensor cores: tiles of 128 x 128, 16 rows a step,
 * those of the next step on their way from memory meanwhile.                  G4, G5
 *
 *   order       16 rows at a time, in order; within them as a tensor core adds */
__global__ void __launch_bounds__(WARPS * 32, 2)
    gemm_tensor_gradient(const __nv_bfloat16 *a, size_t a_ld, int a_cols,
                         const __nv_bfloat16 *b, size_t b_ld, int b_cols, int tiles_a,
                         int tiles_b, const int64_t *first, const int64_t *counts,
                         int chunk, float *dw, const slm_gpu_state *state)
{
    SLM_SHARED(core_step, step, [2]);
    SLM_SHARED(core_patch, patch, [WARPS]);
    const unsigned tile = blockIdx.x % (unsigned)(tiles_a * tiles_b);
    const unsigned e = blockIdx.x / (unsigned)(tiles_a * tiles_b);
    const int i0 = (int)(tile / (unsigned)tiles_b) * CORE_TILE;
    const int j0 = (int)(tile % (unsigned)tiles_b) * CORE_TILE;
    const int warp = (int)threadIdx.x / 32;
    const int top = warp / WARPS_ACROSS * PARTS_DOWN * PART;
    const int side = warp % WARPS_ACROSS * PARTS_ACROSS * PART;
    const core_factor from_a = {a, a_ld, i0, a_cols}, from_b = {b, b_ld, j0, b_cols};
    core_sums sums[PARTS_DOWN][PARTS_ACROSS];

    if (slm_gpu_stopped(state)) return; /* all threads see the same */

    const int64_t begin = first[e] * chunk, end = begin + counts[e];
    slm_gpu_words left = read_ahead(from_a, begin, end);
    slm_gpu_words right = read_ahead(from_b, begin, end);

    SLM_UNROLL
    for (int i = 0; i < PARTS; i++)
        wmma::fill_fragment(sums[i / PARTS_ACROSS][i % PARTS_ACROSS], 0.0f);
    for (int64_t row = begin; row < end; row += PART) {
        core_step &now = step[(row - begin) / PART % 2];

        lay_down(now.left, left);
        lay_down(now.right, right);
        __syncthreads(); /* nobody is still in the step before the last */
        left = read_ahead(from_a, row + PART, end);
        right = read_ahead(from_b, row + PART, end);
        if (i0 + top < a_cols && j0 + side < b_cols) add_step(sums, now, top, side);
    }
    store_sums(dw + (size_t)e * (size_t)a_cols * (size_t)b_cols, i0 + top, a_cols,
               j0 + side, b_cols, sums, patch[warp]);
}

/* ---- both ---- */

/* Tiles of a width; 0 when kernels cannot count so far. */
static size_t tiles_of(size_t width, size_t tile)
{
    return slm_gpu_fits(width + tile) ? (width + tile - 1) / tile : 0;
}

slm_status slm_gpu_expert_gradients(const slm_gpu_groups *at, slm_gpu_matrix a,
                                    size_t a_cols, slm_gpu_matrix b, size_t b_cols,
                                    float *dw, const slm_gpu_state *state,
                                    cudaStream_t stream)
{
    const bool bf16 = a.dtype == SLM_BF16;
    const size_t side = bf16 ? (size_t)CORE_TILE : (size_t)TILE;
    const size_t tiles_a = tiles_of(a_cols, side), tiles_b = tiles_of(b_cols, side);

    if (!tiles_a || !tiles_b || !slm_gpu_fits(tiles_a * tiles_b) ||
        tiles_a * tiles_b > INT32_MAX / at->n)
        return SLM_ERR_UNSUPPORTED;

    const unsigned blocks = (unsigned)(at->n * tiles_a * tiles_b);

    if (bf16)
        SLM_LAUNCH(gemm_tensor_gradient, blocks, WARPS * 32, stream,
                   (const __nv_bfloat16 *)a.data, a.ld, (int)a_cols,
                   (const __nv_bfloat16 *)b.data, b.ld, (int)b_cols, (int)tiles_a,
                   (int)tiles_b, at->first, at->counts, (int)at->chunk, dw, state);
    else
        SLM_LAUNCH(gemm_expert_gradient, blocks, SIDE * SIDE, stream,
                   (const float *)a.data, a.ld, (int)a_cols, (const float *)b.data,
                   b.ld, (int)b_cols, (int)tiles_a, (int)tiles_b, at->first, at->counts,
                   (int)at->chunk, dw, state);
    return slm_gpu_launched();
}
