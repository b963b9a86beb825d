/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/select.cu - the router's tail: score, choose, weigh, count.
 *
 * The order of R2 is that of the word (key, lower id first): keys as integers whose
 * order is the keys'. Nothing here depends on which thread came first, so the same rows
 * give the same bits in any batch. */
#include "bins.cuh"
#include "element.cuh"
#include "exponential.cuh"

#include <float.h>

namespace
{

enum { WARPS = 4, WIDE = 256, FUSED_EXPERTS = 1024, FUSED_CHOSEN = 32 };
const unsigned FULL = 0xffffffffu;

/* Unsigned order of the keys. A NaN (of a refused bias) is the lowest, and still above
 * 0, which means "taken" or "no expert". */
__device__ inline unsigned ordered(float key)
{
    return key != key ? 1 : slm_gpu_ordered(key);
}

__device__ inline bool poisons(float value, int finite)
{
    return finite ? !isfinite(value) : value != value;
}

/* sum + the parts of lanes 0 .. count - 1, in that order. All lanes of a warp. */
__device__ inline double add_in_order(double sum, double part, int count)
{
    for (int q = 0; q < count; q++) sum += __shfl_sync(FULL, part, q);
    return sum;
}

__device__ inline double warp_max(double value)
{
    for (int d = 16; d > 0; d /= 2) {
        const double other = __shfl_xor_sync(FULL, value, d);

        value = other > value ? other : value;
    }
    return value;
}

/* Weights of the k chosen of a row by one warp; value(q) is the score of slot q or, if
 * so it is said, its logit. From the logits where a score is subnormal or the sum below
 * 2^-100: the largest is divided out first. Sums go in slot order.                R3 */
template <class Value>
__device__ inline void weigh(int k, slm_weighting weighting, bool logit, Value value,
                             float *weight)
{
    const int lane = (int)threadIdx.x;
    const bool release = weighting == SLM_WEIGHT_RELEASE, alone = release && k == 1;
    double sum = 0.0, top = -HUGE_VAL;
    int normal = 1;

    for (int first = 0; first < k; first += 32) {
        const int count = k - first < 32 ? k - first : 32;
        float score = 1.0f;

        if (lane < count) score = value(first + lane);
        if (lane < count && logit) score = slm_gpu_sigmoid(score);
        sum = add_in_order(sum, (double)score, count);
        normal &= __all_sync(FULL, score >= FLT_MIN);
    }

    const bool deep = logit && !alone && (!normal || sum < 0x1p-100);

    for (int first = 0; deep && first < k; first += 32)
        if (first + lane < k)
            top = fmax(top, slm_gpu_log_sigmoid((double)value(first + lane)));
    top = deep && !release ? warp_max(top) : 0.0;
    for (int write = deep ? 0 : 1; write < 2; write++) {
        const double total = alone ? 1.0 : release ? sum + 1e-20 : sum;

        if (!write) sum = 0.0;
        for (int first = 0; first < k; first += 32) {
            const int count = k - first < 32 ? k - first : 32;
            double part = 0.0;

            if (lane < count && deep) {
                const double log_of = slm_gpu_log_sigmoid((double)value(first + lane));

                part = log_of == top ? 1.0 : exp(log_of - top);
            } else if (lane < count) {
                const float of = value(first + lane);

                part = (double)(logit ? slm_gpu_sigmoid(of) : of);
            }
            if (!write)
                sum = add_in_order(sum, part, count);
            else if (lane < count)
                weight[first + lane] =
                    (float)(total > 0.0 ? part / total : 1.0 / (double)k);
        }
    }
}

/* A poisoned row: ids 0 .. k - 1, NaN.                                            R4 */
__device__ inline void poison(const slm_gpu_choice &c, size_t row, int lane, int lanes)
{
    for (size_t q = (size_t)lane; q < c.k; q += (size_t)lanes) {
        if (c.ids) c.ids[row * c.k + q] = (int32_t)q;
        if (c.weight) c.weight[row * c.k + q] = NAN;
    }
    if (lane == 0 && c.cutoff && c.k < c.n) c.cutoff[row] = NAN;
}

/* One warp does one row; lane i holds experts i, i + 32, ... in registers, so each score
 * is read once. k + 1 times the best that is left: key first, then the lower id.
 *
 *   launch    grid ceil(rows / 4), block (32, 4)
 *   shapes    as slm_gpu_choice says
 *   requires  n <= 32 ITEMS, k <= 32; HIST: hist, k < n
 *   order     weights in slot order; counts are integers */
template <int ITEMS, bool HIST>
__global__ void __launch_bounds__(32 * WARPS) select_rows(slm_gpu_choice c, int finite)
{
    const int lane = (int)threadIdx.x, n = (int)c.n, k = (int)c.k;
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.y;

    if (row >= c.rows || slm_gpu_stopped(c.state)) return;
    if (c.mask && c.mask[row] == 0) return;

    const bool logit = c.logit != NULL;
    const float *from = (logit ? c.logit : c.score) + row * c.ld;
    float value[ITEMS];
    unsigned key[ITEMS], best = 0;
    int at = 0, bad = 0;

    SLM_UNROLL
    for (int i = 0; i < ITEMS; i++) {
        const int e = lane + 32 * i;

        value[i] = 0.0f;
        key[i] = 0;
        if (e >= n) continue;
        value[i] = from[e];

        const float score = logit ? slm_gpu_sigmoid(value[i]) : value[i];

        bad |= poisons(value[i], finite);
        key[i] = ordered(score + c.bias[e]);
        if (key[i] > best) {
            best = key[i];
            at = i;
        }
        if (c.logit_out) c.logit_out[row * c.n + (size_t)e] = value[i];
        if (c.score_out) c.score_out[row * c.n + (size_t)e] = score;
    }
    if (__any_sync(FULL, bad)) {
        poison(c, row, lane, 32);
        return;
    }

    const int keep = k < n ? k + 1 : k;
    unsigned id = 0, top = 0;
    float mine = 0.0f;

    for (int rank = 0; rank < keep; rank++) {
        float chosen = 0.0f;

        top = __reduce_max_sync(FULL, best);

        const unsigned own = best == top ? (unsigned)(lane + 32 * at) : FULL;
        const unsigned first = __reduce_min_sync(FULL, own);
        const bool owner = (first & 31u) == (unsigned)lane;

        if (owner) {
            const int taken = at;

            best = 0;
            at = 0;
            SLM_UNROLL
            for (int i = 0; i < ITEMS; i++) {
                if (i == taken) {
                    chosen = value[i];
                    key[i] = 0;
                }
                if (key[i] > best) {
                    best = key[i];
                    at = i;
                }
            }
        }
        chosen = __shfl_sync(FULL, chosen, (int)(first & 31u));
        if (lane == rank) {
            id = first;
            mine = chosen;
        }
    }
    if (c.ids && lane < k) c.ids[row * c.k + (size_t)lane] = (int32_t)id;
    if (c.cutoff && k < n && lane == 0) c.cutoff[row] = slm_gpu_unordered(top);
    if (c.weight)
        weigh(
            k, c.weighting, logit, [=](int) { return mine; }, c.weight + row * c.k);
    if (HIST) {
        const slm_gpu_bins bins = slm_gpu_make_bins(c.range, c.edge, (int)c.bins);
        const float alpha = slm_gpu_unordered(top);

        SLM_UNROLL
        for (int i = 0; i < ITEMS; i++) {
            const int e = lane + 32 * i;

            if (e >= n) break;

            const float score = logit ? slm_gpu_sigmoid(value[i]) : value[i];
            const int bin = slm_gpu_bin(bins, alpha, score);

            atomicAdd(&c.hist[(size_t)e * c.bins + (size_t)bin], 1ull);
        }
    }
}

/* The largest over the block, in every thread. `space` [WIDE / 32]. */
__device__ inline unsigned long long block_max(unsigned long long word,
                                               unsigned long long *space)
{
    const int lane = (int)threadIdx.x % 32;

    for (int d = 16; d > 0; d /= 2) {
        const unsigned long long other = __shfl_xor_sync(FULL, word, d);

        word = other > word ? other : word;
    }
    __syncthreads();
    if (lane == 0) space[threadIdx.x / 32] = word;
    __syncthreads();
    for (int w = 0; w < WIDE / 32; w++) word = space[w] > word ? space[w] : word;
    return word;
}

/* One block does one row of any n and k: k + 1 passes over the row, each for the best
 * word below the last one.
 *
 *   launch    grid rows, block 256
 *   requires  as slm_gpu_choice; weight only with ids
 *   order     weights in slot order; counts are integers */
__global__ void __launch_bounds__(WIDE) select_wide(slm_gpu_choice c, int finite)
{
    SLM_SHARED(unsigned long long, space, [WIDE / 32]);
    const size_t row = blockIdx.x;

    if (slm_gpu_stopped(c.state)) return;
    if (c.mask && c.mask[row] == 0) return;

    const bool logit = c.logit != NULL;
    const float *from = (logit ? c.logit : c.score) + row * c.ld;
    int bad = 0;

    for (size_t e = threadIdx.x; e < c.n; e += WIDE) {
        const float value = from[e];

        bad |= poisons(value, finite);
        if (c.logit_out) c.logit_out[row * c.n + e] = value;
        if (c.score_out)
            c.score_out[row * c.n + e] = logit ? slm_gpu_sigmoid(value) : value;
    }
    if (__syncthreads_or(bad)) {
        poison(c, row, (int)threadIdx.x, WIDE);
        return;
    }

    const size_t keep = c.k < c.n ? c.k + 1 : c.k;
    unsigned long long last = ~0ull;

    for (size_t rank = 0; rank < keep; rank++) {
        unsigned long long best = 0;

        for (size_t e = threadIdx.x; e < c.n; e += WIDE) {
            const float score = logit ? slm_gpu_sigmoid(from[e]) : from[e];
            const unsigned long long word =
                (unsigned long long)ordered(score + c.bias[e]) << 32 |
                (FULL - (unsigned)e);

            if (word < last && word > best) best = word;
        }
        last = block_max(best, space);
        if (threadIdx.x == 0 && c.ids && rank < c.k)
            c.ids[row * c.k + rank] = (int32_t)(FULL - (unsigned)last);
    }
    if (c.cutoff && c.k < c.n && threadIdx.x == 0)
        c.cutoff[row] = slm_gpu_unordered((unsigned)(last >> 32));
    if (c.hist) {
        const slm_gpu_bins bins = slm_gpu_make_bins(c.range, c.edge, (int)c.bins);
        const float alpha = slm_gpu_unordered((unsigned)(last >> 32));

        for (size_t e = threadIdx.x; e < c.n; e += WIDE) {
            const float score = logit ? slm_gpu_sigmoid(from[e]) : from[e];
            const int bin = slm_gpu_bin(bins, alpha, score);

            atomicAdd(&c.hist[e * c.bins + (size_t)bin], 1ull);
        }
    }
    __syncthreads(); /* ids are read by others than wrote them */
    if (c.weight && threadIdx.x < 32) {
        const int32_t *ids = c.ids + row * c.k;

        weigh((int)c.k, c.weighting, logit, [=](int q) { return from[ids[q]]; },
              c.weight + row * c.k);
    }
}

/* One warp weighs one row at the given ids.                                       R3
 *
 *   launch    grid ceil(rows / 4), block (32, 4)
 *   logit     [rows, n], `ld` apart; ids, weight [rows, k]
 *   order     slot order */
__global__ void __launch_bounds__(32 * WARPS)
    select_weigh(size_t rows, int k, slm_weighting weighting, const float *logit,
                 size_t ld, const int32_t *ids, float *weight)
{
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.y;
    const float *from = logit + row * ld;
    const int32_t *own = ids + row * (size_t)k;

    if (row >= rows) return;
    weigh(
        k, weighting, true, [=](int q) { return from[own[q]]; },
        weight + row * (size_t)k);
}

} // namespace

extern "C" slm_status slm_gpu_choose(const slm_gpu_choice *choice, int finite,
                                     cudaStream_t stream)
{
    const dim3 block(32, WARPS);
    const unsigned grid = slm_gpu_blocks(choice->rows, WARPS);

    if (choice->rows == 0) return SLM_OK;
    if (choice->rows > INT32_MAX || choice->n > INT32_MAX || choice->bins > INT32_MAX)
        return SLM_ERR_UNSUPPORTED;
    if (choice->n > FUSED_EXPERTS || choice->k > FUSED_CHOSEN)
        SLM_LAUNCH(select_wide, (unsigned)choice->rows, WIDE, stream, *choice, finite);
    else if (choice->n <= 256 && choice->hist)
        SLM_LAUNCH((select_rows<8, true>), grid, block, stream, *choice, finite);
    else if (choice->n <= 256)
        SLM_LAUNCH((select_rows<8, false>), grid, block, stream, *choice, finite);
    else if (choice->hist)
        SLM_LAUNCH((select_rows<32, true>), grid, block, stream, *choice, finite);
    else
        SLM_LAUNCH((select_rows<32, false>), grid, block, stream, *choice, finite);
    return slm_gpu_launched();
}

extern "C" slm_status slm_gpu_weigh(size_t rows, size_t n, size_t k,
                                    slm_weighting weighting, const float *logit,
                                    size_t ld, const int32_t *ids, float *weight,
                                    cudaStream_t stream)
{
    const dim3 block(32, WARPS);

    if (rows == 0) return SLM_OK;
    if (rows > INT32_MAX || n > INT32_MAX) return SLM_ERR_UNSUPPORTED;
    SLM_LAUNCH(select_weigh, slm_gpu_blocks(rows, WARPS), block, stream, rows, (int)k,
               weighting, logit, ld, ids, weight);
    return slm_gpu_launched();
}
