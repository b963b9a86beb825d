/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/qb_sieve.cu - the exact quantile of many rows from one pass over them.  Q1, Q2
 *
 * Elements are sifted by d = RN32(alpha - s). Rounding never turns an order round, so
 * what has a smaller d has a smaller r; equal d stay together. Which rows are sampled and
 * in which order elements are kept decides no bit. */
#include "qb_sieve.h"

namespace
{

enum { FEWEST_ROWS = 1024, LEAST_STRIDE = 8 };
enum { COLUMNS = 4, SAMPLE_BLOCK = 512, SAMPLE_LANES = SAMPLE_BLOCK / COLUMNS };
enum { EACH = 16, MOST_SAMPLES = EACH * SAMPLE_LANES };
enum { WARPS = 8, SIEVE_BLOCK = WARPS * 32, SIFTED = 16, WARP_ROWS = 128 };
enum { PICK_BLOCK = 256 };
const unsigned FULL = 0xffffffffu;
const float DEVIATIONS = 5.0f, SLACK = 8.0f; /* of the sample's rank, each way */

typedef slm_gpu_qb_desk<1, PICK_BLOCK> desk;

/* One row of each stride, not always the same one of it. */
__device__ inline size_t sampled_row(size_t i, size_t stride)
{
    return i * stride + ((unsigned)i * 2654435761u >> 16) % (unsigned)stride;
}

/* Ranks of the sample, within which the batch's rank very likely lies: -1 and `taken`
 * where it may lie outside the sample. */
struct span {
    int low;
    int high;
};

__device__ inline span ranks(size_t nth, size_t m, int taken)
{
    const float share = ((float)nth + 0.5f) / (float)m;
    const float middle = share * (float)taken - 0.5f;
    const float margin =
        DEVIATIONS * sqrtf((float)taken * share * (1.0f - share)) + SLACK;
    const float low = floorf(middle - margin), high = ceilf(middle + margin);

    return {low < 0.0f ? -1 : (int)low, high < (float)taken ? (int)high : taken};
}

/* A digit of both ranks of each column. All threads of the block. */
__device__ inline void sample_pass(const unsigned (&key)[EACH], int shift,
                                   unsigned (*count)[COLUMNS][SLM_GPU_QB_DIGITS],
                                   unsigned long long (*word)[COLUMNS],
                                   unsigned (*rank)[COLUMNS])
{
    const int column = (int)threadIdx.x % COLUMNS, warp = (int)threadIdx.x / 32;
    const int last = SLM_GPU_QB_DIGITS - 1;

    for (int i = (int)threadIdx.x; i < 2 * COLUMNS * SLM_GPU_QB_DIGITS;
         i += SAMPLE_BLOCK)
        count[i / (COLUMNS * SLM_GPU_QB_DIGITS)][i / SLM_GPU_QB_DIGITS % COLUMNS]
             [i % SLM_GPU_QB_DIGITS] = 0;
    __syncthreads();

    const unsigned low = (unsigned)word[0][column], high = (unsigned)word[1][column];

    SLM_UNROLL
    for (int j = 0; j < EACH; j++) {
        const unsigned digit = key[j] >> shift & (unsigned)last;

        if (key[j] == 0) continue;
        if (((key[j] ^ low) >> shift >> 8) == 0)
            atomicAdd(&count[0][column][digit], 1u);
        if (((key[j] ^ high) >> shift >> 8) == 0)
            atomicAdd(&count[1][column][digit], 1u);
    }
    __syncthreads();
    if (warp < 2 * COLUMNS)
        slm_gpu_qb_digit(count[warp / COLUMNS][warp % COLUMNS],
                         &rank[warp / COLUMNS][warp % COLUMNS],
                         &word[warp / COLUMNS][warp % COLUMNS], shift);
    __syncthreads();
}

/* The keys that a thread holds of its column, in order; 0: none. Returns how many. */
__device__ inline int take_sample(const slm_gpu_qb_batch &of, size_t stride, size_t e,
                                  unsigned (&key)[EACH])
{
    const size_t samples = of.rows / stride;
    int own = 0;

    SLM_UNROLL
    for (int j = 0; j < EACH; j++) {
        const size_t i = threadIdx.x / COLUMNS + (size_t)j * SAMPLE_LANES;

        key[j] = 0;
        if (e >= of.n || i >= samples) continue;

        const size_t t = sampled_row(i, stride);
        const float d = of.alpha[t] - of.score[t * of.n + e];

        if (d == d) key[j] = slm_gpu_ordered(d);
        own += d == d;
    }
    return own;
}

/* A block finds the brackets of 4 columns and clears their counters.
 *
 *   launch    grid ceil(n / 4), block 512: thread = 4 row + column
 *   requires  rows / stride <= 2048
 *   order     none: counts of integers */
__global__ void __launch_bounds__(SAMPLE_BLOCK)
    qb_bracket(slm_gpu_qb_batch of, slm_gpu_qb_sieve to, const slm_gpu_state *state)
{
    SLM_SHARED(unsigned, count, [2][COLUMNS][SLM_GPU_QB_DIGITS]);
    SLM_SHARED(unsigned long long, word, [2][COLUMNS]);
    SLM_SHARED(unsigned, rank, [2][COLUMNS]);
    SLM_SHARED(int, taken, [1]);
    const int column = (int)threadIdx.x % COLUMNS;
    const size_t e = (size_t)blockIdx.x * COLUMNS + (size_t)column;
    const size_t m = (size_t)state->counted;
    unsigned key[EACH];

    if (slm_gpu_stopped(state)) return;
    if (threadIdx.x == 0) taken[0] = 0;
    __syncthreads();

    const int own = take_sample(of, to.stride, e, key);

    if (column == 0) atomicAdd(&taken[0], own);
    __syncthreads();

    const int all = taken[0];
    const span at = all ? ranks(slm_gpu_qb_rank(of.k, m, of.n), m, all) : span{-1, 0};

    if (threadIdx.x < COLUMNS) {
        word[0][column] = word[1][column] = 0;
        rank[0][column] = (unsigned)(at.low < 0 ? 0 : at.low);
        rank[1][column] = (unsigned)(at.high < all ? at.high : all - 1);
    }
    __syncthreads();
    for (int shift = 24; shift >= 0; shift -= 8)
        sample_pass(key, shift, count, word, rank);
    if (threadIdx.x >= COLUMNS || e >= of.n) return;
    to.bracket[2 * e] =
        at.low < 0 ? -INFINITY : slm_gpu_unordered((unsigned)word[0][column]);
    to.bracket[2 * e + 1] =
        at.high >= all ? INFINITY : slm_gpu_unordered((unsigned)word[1][column]);
    to.below[e] = to.inside[e] = 0;
}

/* A lane's expert: its bracket, NaN, which keeps nothing, of a lane without one; what
 * was found of it; what is kept and not yet in memory. */
struct sifted_column {
    size_t e;
    float low;
    float high;
    unsigned below;
    unsigned stashed;
    float2 (*stash)[SIEVE_BLOCK]; /* [SIFTED] of this thread */
};

__device__ inline void unload(const slm_gpu_qb_sieve &to, sifted_column &at)
{
    if (at.stashed == 0) return;

    const size_t slot = atomicAdd(&to.inside[at.e], at.stashed);
    float2 *kept = to.kept + at.e * to.capacity + slot;

    for (unsigned i = 0; i < at.stashed && slot + i < to.capacity; i++)
        kept[i] = at.stash[i][threadIdx.x];
    at.stashed = 0;
}

/* Sift 16 rows, `left` of which are there, the first at `from`; lane j has alpha of the
 * j-th, or NaN. All lanes of a warp. */
__device__ inline void sift(const slm_gpu_qb_sieve &to, sifted_column &at,
                            const float *from, size_t n, int left, float alpha)
{
    float score[SIFTED];
    unsigned inside = 0;

    SLM_UNROLL
    for (int j = 0; j < SIFTED; j++) { /* the last row again: no load has a condition */
        score[j] = *from;
        if (j + 1 < left) from += n;
    }
    SLM_UNROLL
    for (int j = 0; j < SIFTED; j++) {
        const float d = __shfl_sync(FULL, alpha, j) - score[j];

        at.below += d < at.low;
        inside |= (unsigned)(d >= at.low && d <= at.high) << j;
    }
    if (at.stashed + (unsigned)__popc(inside) > SIFTED) unload(to, at);
    SLM_UNROLL
    for (int j = 0; j < SIFTED; j++) {
        const float own = __shfl_sync(FULL, alpha, j);

        if (inside >> j & 1) at.stash[at.stashed++][threadIdx.x] = {own, score[j]};
    }
}

/* A warp sifts 128 rows of 32 columns.
 *
 *   launch  grid ceil(ceil(rows / 128) ceil(n / 32) / 8), block 256
 *   order   none: counts of integers; what is kept has no order */
__global__ void __launch_bounds__(SIEVE_BLOCK)
    qb_sieve(slm_gpu_qb_batch of, slm_gpu_qb_sieve to, const slm_gpu_state *state)
{
    SLM_SHARED(float2, stash, [SIFTED][SIEVE_BLOCK]);
    const int lane = (int)threadIdx.x % 32;
    const size_t item = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const size_t groups = (of.n + 31) / 32, begin = item / groups * WARP_ROWS;
    const size_t end = begin + WARP_ROWS < of.rows ? begin + WARP_ROWS : of.rows;
    const size_t e = item % groups * 32 + (size_t)lane;
    sifted_column at = {e, NAN, NAN, 0, 0, stash};

    if (begin >= of.rows || slm_gpu_stopped(state)) return; /* a warp leaves whole */
    if (e < of.n) {
        at.low = to.bracket[2 * e];
        at.high = to.bracket[2 * e + 1];
    }
    for (size_t t = begin; t < end; t += SIFTED) {
        const int left = (int)(end - t);
        const float alpha = lane < SIFTED && lane < left ? of.alpha[t + lane] : NAN;
        const float *from = of.score + t * of.n + (e < of.n ? e : of.n - 1);

        sift(to, at, from, of.n, left, alpha);
    }
    unload(to, at);
    if (at.below) atomicAdd(&to.below[e], at.below);
}

/* The elements of a column that were kept. */
struct kept_column {
    enum { AT_ONCE = 2 };
    const float2 *kept;
    size_t count;

    __device__ bool take(size_t i, slm_gpu_qb_element &r) const
    {
        const float2 both = kept[i];

        r = slm_gpu_qb_element_of(both.x, both.y);
        return true;
    }
};

/* A block finds the candidate of one column among what was kept of it, if it is there,
 * and in strict mode the element below it, too.
 *
 *   launch     grid n, block 256
 *   candidate  [n, 2] out: hi, lo
 *   order      none: counts and maxima of integers */
__global__ void __launch_bounds__(PICK_BLOCK)
    qb_pick(slm_gpu_qb_batch of, slm_gpu_qb_sieve from, double *candidate,
            slm_gpu_state *state)
{
    SLM_SHARED(desk, at, [1]);
    const size_t e = blockIdx.x, m = (size_t)state->counted;

    if (slm_gpu_stopped(state) || m == 0) return;

    const size_t nth = slm_gpu_qb_rank(of.k, m, of.n);
    const size_t below = from.below[e], inside = from.inside[e];
    const bool boundary = of.balance == SLM_BALANCE_STRICT && nth > 0;
    const size_t least = boundary ? nth - 1 : nth; /* ranks least .. nth are needed */
    const bool there =
        below <= least && nth < below + inside && inside <= from.capacity;

    if (threadIdx.x == 0) from.done[e] = there;
    if (!there) return;

    const kept_column column = {from.kept + e * from.capacity, inside};

    slm_gpu_qb_find(column, (unsigned)(nth - below), at[0]);
    slm_gpu_qb_deliver(of, column, e, true, boundary, at[0], candidate, state);
}

/* Elements of a column that may be kept: a stride of rows for each of the sample between
 * its two ranks, as in ranks(), and five deviations of them; besides, the rows whose
 * cutoff the expert is: there r is its bias, all but rounded. */
size_t capacity_for(size_t rows, size_t stride, size_t n, size_t k)
{
    const double samples = (double)(rows / stride), share = (double)k / (double)n;
    const double width =
        2.0 * DEVIATIONS * sqrt(samples * share * (1.0 - share)) + 2.0 * SLACK + 2.0;
    const double most = (width + DEVIATIONS * sqrt(width)) * (double)stride +
                        2.0 * (double)rows / (double)n;

    return most < (double)rows ? (size_t)most : rows;
}

} // namespace

void slm_gpu_qb_lay_sieve(slm_gpu_arena *arena, const slm_config *config, size_t rows,
                          slm_gpu_qb_sieve *sieve)
{
    const size_t n = config->n_experts, groups = n / 32 + 1;
    const size_t stride = rows / MOST_SAMPLES + (rows % MOST_SAMPLES != 0);

    *sieve = {};
    if (rows < FEWEST_ROWS || n > INT32_MAX ||
        rows / WARP_ROWS + 1 > INT32_MAX / groups)
        return;
    sieve->stride = stride < LEAST_STRIDE ? (size_t)LEAST_STRIDE : stride;
    sieve->capacity = capacity_for(rows, sieve->stride, n, config->top_k);
    sieve->bracket = slm_gpu_take_f32(arena, n, 2);
    sieve->below = (unsigned *)slm_gpu_take(arena, n, 1, sizeof(unsigned));
    sieve->inside = (unsigned *)slm_gpu_take(arena, n, 1, sizeof(unsigned));
    sieve->done = (unsigned *)slm_gpu_take(arena, n, 1, sizeof(unsigned));
    sieve->kept = (float2 *)slm_gpu_take(arena, n, sieve->capacity, sizeof(float2));
}

slm_status slm_gpu_qb_pass_sieve(const slm_gpu_qb_batch *of,
                                 const slm_gpu_qb_sieve *sieve, double *candidate,
                                 slm_gpu_state *state, cudaStream_t stream)
{
    const size_t warps =
        slm_gpu_blocks(of->rows, WARP_ROWS) * (size_t)slm_gpu_blocks(of->n, 32);

    SLM_LAUNCH(qb_bracket, slm_gpu_blocks(of->n, COLUMNS), SAMPLE_BLOCK, stream, *of,
               *sieve, state);
    SLM_LAUNCH(qb_sieve, slm_gpu_blocks(warps, WARPS), SIEVE_BLOCK, stream, *of, *sieve,
               state);
    SLM_LAUNCH(qb_pick, (unsigned)of->n, PICK_BLOCK, stream, *of, *sieve, candidate,
               state);
    return slm_gpu_launched();
}
