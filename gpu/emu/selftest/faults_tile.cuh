/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/faults_tile.cuh - planted faults with tensor cores, for faults.cu: a
 * tile of ones times itself, by way of shared memory. */

namespace wmma = nvcuda::wmma;
typedef wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left;
typedef wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major>
    right;
typedef wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;

struct tile {
    __nv_bfloat16 value[16][24];
};

__device__ void write_ones(tile &to)
{
    const int lane = (int)threadIdx.x % 32;

    for (int i = 0; i < 8; i++)
        to.value[lane / 2][lane % 2 * 8 + i] = __float2bfloat16(1.0f);
}

/* One warp writes the tile, another multiplies it. */
__global__ void unwritten_tile(int fault, int *out)
{
    SLM_SHARED(tile, ones, [1]);
    left a;
    right b;
    sums c;

    if (threadIdx.x < 32) write_ones(ones[0]);
    if (!fault) __syncthreads();
    if (threadIdx.x < 32) return;
    wmma::fill_fragment(c, 0.0f);
    wmma::load_matrix_sync(a, &ones[0].value[0][0], 24); /* missing-barrier-tile */
    wmma::load_matrix_sync(b, &ones[0].value[0][0], 24);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync((float *)out, c, 16, wmma::mem_col_major);
}

/* Which of the rules is broken. */
enum { LANE_LOADS = 1, LANE_MULTIPLIES, OTHER_TILE, POINTER, LEADING, BEYOND };

__global__ void product(int broken, int *out)
{
    SLM_SHARED(tile, ones, [2]);
    const int lane = (int)threadIdx.x, other = broken == OTHER_TILE && lane > 7;
    const unsigned leading = broken == LEADING ? 20 : 24;
    const __nv_bfloat16 *from = ones[0].value[0] + (broken == POINTER ? 8 : 0);
    float *to = (float *)out + (broken == BEYOND ? 16 : 0);
    left a;
    right b;
    sums c;

    write_ones(ones[0]);
    write_ones(ones[1]);
    __syncwarp();
    wmma::fill_fragment(c, 0.0f);
    if (broken != LANE_LOADS || lane != 5)
        wmma::load_matrix_sync(a, ones[other].value[0], 24); /* lane-load other-tile */
    wmma::load_matrix_sync(b, from, leading);                /* tile-at tile-leading */
    if (broken != LANE_MULTIPLIES || lane < 31)
        wmma::mma_sync(c, a, b, c);                          /* lane-product */
    wmma::store_matrix_sync(to, c, 16, wmma::mem_row_major); /* tile-beyond */
}

/* A tile of 16 x 16, and no more than that. */
template <int rule> static void multiplied(int fault)
{
    int *out = zeros(256);

    SLM_LAUNCH(product, 1, 32, nullptr, fault ? rule : 0, out);
    cudaDeviceSynchronize();
    cudaFree(out);
}

static void missing_barrier_tile(int fault)
{
    int *out = zeros(256);

    SLM_LAUNCH(unwritten_tile, 1, N, nullptr, fault, out);
    cudaDeviceSynchronize();
    cudaFree(out);
}
