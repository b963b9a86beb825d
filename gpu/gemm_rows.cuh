/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/gemm_rows.cuh - what the two kernels of gemm_rows.cu share: the product, loads of
 * 16 bytes or one element, and what a block finds to do. */
#ifndef SLM_GPU_GEMM_ROWS_CUH
#define SLM_GPU_GEMM_ROWS_CUH

#include "eight.cuh"
#include "layer.h"

namespace slm_gpu_rows
{

enum { THREADS = 256, WARPS = THREADS / 32, FEW = SLM_GPU_FEW_ROWS };

struct operands {
    const void *x;
    const void *w;
    void *y;
};

/* Distances count elements. */
struct product {
    operands of[2]; /* blockIdx.y says which                             */
    size_t x_ld;
    size_t w_ld;
    size_t y_ld;
    size_t w_step; /* from the weights of an expert to the next one's   */
    int rows;      /* dense: of x; else of a chunk, which divides FEW   */
    int cols;
    int inner;
    int tiles;             /* blocks of an item                                 */
    int n;                 /* experts                                           */
    bool add;              /* y +=                                              */
    const int32_t *expert; /* [chunks]; NULL: dense                             */
    const int64_t *first;  /* [n + 1]                                           */
    const int64_t *counts; /* [n]                                               */
};

/* What a lane loads at once: 16 bytes of elements, or one. */
template <class E, bool WIDE> struct piece {
    enum { COUNT = 1 };
    E raw;

    __device__ void unpack(float (&to)[COUNT]) const
    {
        to[0] = slm_gpu_load(&raw);
    }
};

template <> struct piece<float, true> {
    enum { COUNT = 4 };
    slm_gpu_words raw;

    __device__ void unpack(float (&to)[COUNT]) const
    {
        slm_gpu_unpack(raw, to);
    }
};

template <> struct piece<__nv_bfloat16, true> {
    enum { COUNT = 8 };
    slm_gpu_words raw;

    __device__ void unpack(float (&to)[COUNT]) const
    {
        slm_gpu_unpack_halves(raw, to);
    }
};

/* Zeros where the elements are not `there`. */
template <class E, bool WIDE>
__device__ inline piece<E, WIDE> load(const E *at, bool there)
{
    piece<E, WIDE> made = {};

    if (there) made.raw = *(const decltype(made.raw) *)at;
    return made;
}

/* ---- items ---- */

struct item {
    size_t row;    /* the first                           */
    int rows;      /* to multiply, 0 .. FEW               */
    int zeros;     /* rows after them that become zeros   */
    size_t expert; /* whose weights                       */
};

__device__ inline int least(int64_t a, int b)
{
    return a < b ? (int)a : b;
}

/* What the blocks of chunk c do: the same for all their threads. */
__device__ inline item item_of(const product &p, int c)
{
    if (!p.expert) return {0, p.rows, 0, 0};
    if (c >= p.first[p.n]) return {(size_t)c * p.rows, 0, p.rows, 0};

    const int e = p.expert[c];
    const int64_t begin = p.first[e] * p.rows, end = p.first[e + 1] * p.rows;
    const int64_t row = (int64_t)c * p.rows;
    const int rows = least(begin + p.counts[e] - row, FEW), all = least(end - row, FEW);

    if ((row - begin) % FEW) return {0, 0, 0, 0}; /* an earlier chunk's blocks do it */
    return {(size_t)row, rows, all - rows, (size_t)e};
}

/* Zeros in columns col .. col + cols - 1 of the rows without a pair. */
template <class Y>
__device__ inline void clear(const product &p, Y *y, const item &of, int col, int cols)
{
    for (int i = (int)threadIdx.x; i < of.zeros * cols; i += THREADS) {
        const size_t row = of.row + of.rows + i / cols;
        const int at = col + i % cols;

        if (at < p.cols) slm_gpu_store(y + row * p.y_ld + at, 0.0f);
    }
}

template <class Y> __device__ inline void write(const product &p, Y *at, float sum)
{
    slm_gpu_store(at, p.add ? slm_gpu_load(at) + sum : sum);
}

} // namespace slm_gpu_rows

#endif
