/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/combine.cu - sums over the slots of a token, and back; spoilt rows. L2, G4, R4 */
#include "eight.cuh"
#include "layer.h"

/* sum += p of eight elements, of which `left` are there. */
template <class E>
__device__ inline void add_eight(float p, const E *of, int left,
                                 float (&sum)[SLM_GPU_EIGHT])
{
    float part[SLM_GPU_EIGHT];

    slm_gpu_load_eight(of, left, part);
    SLM_UNROLL
    for (int i = 0; i < SLM_GPU_EIGHT; i++) sum[i] = fmaf(p, part[i], sum[i]);
}

/* One block sums one token, a thread eight neighbouring elements.
 *
 *   launch   grid T, block 32 .. 256
 *   place    [T, k]; weight [T, k] or NULL for ones
 *   parts, more  [rows of experts, width], `ld` apart; more may be NULL
 *   out      [T, width], `out_ld` apart
 *   order    slot 0, 1, ...; of a slot parts, then more: one sum an element, fused */
template <class E>
__global__ void __launch_bounds__(256)
    combine_slots(int k, int width, const int64_t *place, const float *weight,
                  const E *parts, const E *more, size_t ld, E *out, size_t out_ld)
{
    const size_t first = blockIdx.x * (size_t)k;
    const int step = (int)blockDim.x * SLM_GPU_EIGHT;

    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += step) {
        float sum[SLM_GPU_EIGHT] = {};

        for (int q = 0; q < k; q++) {
            const size_t at = (size_t)place[first + q] * ld + i;
            const float p = weight ? weight[first + q] : 1.0f;

            add_eight(p, parts + at, width - i, sum);
            if (more) add_eight(p, more + at, width - i, sum);
        }
        slm_gpu_store_eight(out + blockIdx.x * out_ld + i, width - i, sum);
    }
}

slm_status slm_gpu_combine(const slm_gpu_groups *at, size_t k, size_t width,
                           const float *weight, slm_gpu_matrix parts,
                           slm_gpu_matrix more, slm_gpu_matrix out, cudaStream_t stream)
{
    const size_t rows = at->pairs / k;
    const unsigned blocks = slm_gpu_blocks(rows, 1);
    const unsigned threads = slm_gpu_threads_of_eight(width);

    if (rows == 0) return SLM_OK;
    if (!blocks || width > INT32_MAX - 2048) return SLM_ERR_UNSUPPORTED;
    if (out.dtype == SLM_BF16)
        SLM_LAUNCH(combine_slots<__nv_bfloat16>, blocks, threads, stream, (int)k,
                   (int)width, at->place, weight, parts.data, more.data, parts.ld,
                   out.data, out.ld);
    else
        SLM_LAUNCH(combine_slots<float>, blocks, threads, stream, (int)k, (int)width,
                   at->place, weight, parts.data, more.data, parts.ld, out.data,
                   out.ld);
    return slm_gpu_launched();
}

/* One warp turns one row of experts: its weight's gradient, and weight times du.
 *
 *   launch   grid ceil(rows / blockDim.y), block (32, <= 8)
 *   pair     [rows of experts]; its token is pair / k; -1: pdu becomes zeros
 *   du       [T, width], `du_ld` apart
 *   o, pdu   [rows of experts, width], `ld` apart
 *   dweight  [T, k] out: binary64 inside, rounded once
 *   order    lane i sums eights i, i + 32, ...; lanes fold by xor 16, 8, 4, 2, 1 */
template <class E>
__global__ void __launch_bounds__(256)
    combine_turn(int rows, int k, int width, const int64_t *pair, const float *weight,
                 const E *du, size_t du_ld, const E *o, size_t ld, float *dweight,
                 E *pdu)
{
    const int row = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    if (row >= rows) return; /* a warp is one row, so it leaves whole */

    const int64_t own = pair[row];
    const float p = own < 0 ? 0.0f : weight[own];
    const E *slope = du + (size_t)(own < 0 ? 0 : own / k) * du_ld;
    const size_t at = (size_t)row * ld;
    double sum = 0.0;

    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += 32 * SLM_GPU_EIGHT) {
        float d[SLM_GPU_EIGHT] = {}, of[SLM_GPU_EIGHT] = {}, scaled[SLM_GPU_EIGHT];

        if (own >= 0) {
            slm_gpu_load_eight(slope + i, width - i, d);
            slm_gpu_load_eight(o + at + i, width - i, of);
        }
        SLM_UNROLL
        for (int j = 0; j < SLM_GPU_EIGHT; j++) {
            scaled[j] = p * d[j];
            sum = fma((double)d[j], (double)of[j], sum);
        }
        slm_gpu_store_eight(pdu + at + i, width - i, scaled);
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (own >= 0 && threadIdx.x == 0) dweight[own] = (float)sum;
}

slm_status slm_gpu_turn(const slm_gpu_groups *at, size_t k, size_t width,
                        const float *weight, slm_gpu_matrix du, slm_gpu_matrix o,
                        float *dweight, slm_gpu_matrix pdu, cudaStream_t stream)
{
    const size_t rows = slm_gpu_expert_rows(at);
    const unsigned blocks = slm_gpu_blocks(rows, 8);
    const dim3 block(32, 8);

    if (rows == 0) return SLM_OK;
    if (rows > INT32_MAX - 8 || width > INT32_MAX - 256) return SLM_ERR_UNSUPPORTED;
    if (o.dtype == SLM_BF16)
        SLM_LAUNCH(combine_turn<__nv_bfloat16>, blocks, block, stream, (int)rows,
                   (int)k, (int)width, at->pair, weight, du.data, du.ld, o.data, o.ld,
                   dweight, pdu.data);
    else
        SLM_LAUNCH(combine_turn<float>, blocks, block, stream, (int)rows, (int)k,
                   (int)width, at->pair, weight, du.data, du.ld, o.data, o.ld, dweight,
                   pdu.data);
    return slm_gpu_launched();
}

/* One block looks at one row and spoils its result.
 *
 *   launch   grid rows, block 128
 *   from     [rows, n], `ld` apart; to [rows, cols], `to_ld` apart */
template <class E>
__global__ void __launch_bounds__(128)
    combine_poison(int n, const E *from, size_t ld, int cols, E *to, size_t to_ld)
{
    const E *own = from + blockIdx.x * ld;
    int found = 0;

    for (int i = (int)threadIdx.x; i < n; i += 128)
        found |= !isfinite(slm_gpu_load(own + i));
    if (!__syncthreads_or(found)) return;
    for (int i = (int)threadIdx.x; i < cols; i += 128)
        slm_gpu_store(to + blockIdx.x * to_ld + i, NAN);
}

slm_status slm_gpu_poison(size_t rows, size_t n, slm_gpu_matrix from, size_t cols,
                          slm_gpu_matrix to, cudaStream_t stream)
{
    const unsigned blocks = slm_gpu_blocks(rows, 1);

    if (rows == 0) return SLM_OK;
    if (!blocks || n > INT32_MAX - 128 || cols > INT32_MAX - 128)
        return SLM_ERR_UNSUPPORTED;
    if (from.dtype == SLM_BF16)
        SLM_LAUNCH(combine_poison<__nv_bfloat16>, blocks, 128, stream, (int)n,
                   from.data, from.ld, (int)cols, to.data, to.ld);
    else
        SLM_LAUNCH(combine_poison<float>, blocks, 128, stream, (int)n, from.data,
                   from.ld, (int)cols, to.data, to.ld);
    return slm_gpu_launched();
}
