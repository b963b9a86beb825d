/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/qb_select.cuh - the element of a rank in columns of r = alpha - s.      Q1, Q2
 *
 * r is kept as an exact pair hi + lo: for a tiny s beside a large alpha binary64 alone
 * would make unequal r equal. Pairs are ordered by hi, then lo, as integers; a radix
 * selection finds the element. It passes only over digits in which elements differ.
 *
 * A source holds one column as a thread sees it: `count` places, take(i, r), which says
 * whether place i counts, and if so is r, and AT_ONCE, of which that many are asked for
 * before the first is used. A block does COLUMNS columns at once,
 * thread = COLUMNS lane + column; all its threads come to each function here. */
#ifndef SLM_GPU_QB_SELECT_CUH
#define SLM_GPU_QB_SELECT_CUH

#include "element.cuh"
#include "pair.cuh"

enum { SLM_GPU_QB_DIGITS = 256 };

/* Places of the verdict. */
enum { SLM_GPU_QB_SCORE, SLM_GPU_QB_BIAS, SLM_GPU_QB_TARGET, SLM_GPU_QB_TIE };

/* A batch and what is asked of it. */
struct slm_gpu_qb_batch {
    const float *score; /* [rows, n]                       */
    const float *alpha; /* [rows]; NaN: not counted        */
    size_t rows;        /* < 2^31                          */
    size_t n;
    size_t k; /* < n                             */
    slm_balance balance;
    slm_tie_test test;
};

/* r of one row and expert, as integers in order. */
struct slm_gpu_qb_element {
    unsigned long long hi;
    unsigned long long lo;
};

/* What a block shares. */
template <int COLUMNS, int BLOCK> struct slm_gpu_qb_desk {
    unsigned count[COLUMNS][SLM_GPU_QB_DIGITS];
    unsigned ones[COLUMNS][2];  /* bits that are 1 in some element; low half first */
    unsigned zeros[COLUMNS][2]; /* ... 0 in some                                  */
    unsigned rank[COLUMNS];     /* in the end: equal elements before the chosen   */
    slm_gpu_qb_element chosen[COLUMNS];
    slm_gpu_qb_element best[BLOCK / 32][COLUMNS];
};

__device__ inline slm_gpu_qb_element slm_gpu_qb_element_of(float alpha, float score)
{
    const slm_gpu_pair r = slm_gpu_two_sum((double)alpha, -(double)score);

    return {slm_gpu_ordered(r.hi), slm_gpu_ordered(r.lo)};
}

__device__ inline slm_gpu_pair slm_gpu_qb_pair(slm_gpu_qb_element of)
{
    return {slm_gpu_unordered(of.hi), slm_gpu_unordered(of.lo)};
}

__device__ inline bool slm_gpu_qb_less(slm_gpu_qb_element a, slm_gpu_qb_element b)
{
    return a.hi < b.hi || (a.hi == b.hi && a.lo < b.lo);
}

/* i* of Q1; m >= 1. */
__device__ inline size_t slm_gpu_qb_rank(size_t k, size_t m, size_t n)
{
    return (k * (m - 1) + n - 1) / n;
}

/* Calls use(r) for what this thread sees. */
template <int STEP, class Source, class Use>
__device__ inline void slm_gpu_qb_each(const Source &of, size_t first, Use use)
{
    for (size_t i = first; i < of.count; i += Source::AT_ONCE * STEP) {
        slm_gpu_qb_element r[Source::AT_ONCE] = {};
        bool is[Source::AT_ONCE];

        SLM_UNROLL
        for (int b = 0; b < Source::AT_ONCE; b++)
            is[b] = i + b * STEP < of.count && of.take(i + b * STEP, r[b]);
        SLM_UNROLL
        for (int b = 0; b < Source::AT_ONCE; b++)
            if (is[b]) use(r[b]);
    }
}

/* Of one column: the digit in whose elements the rank lies; the rank becomes that within
 * them. One warp; `word`, whose digit at `shift` is 0, gets it. */
__device__ inline void slm_gpu_qb_digit(const unsigned *count, unsigned *rank,
                                        unsigned long long *word, int shift)
{
    const int lane = (int)threadIdx.x % 32, each = SLM_GPU_QB_DIGITS / 32;
    unsigned own = 0, sum;

    for (int i = 0; i < each; i++) own += count[lane * each + i];
    sum = own;
    for (int d = 1; d < 32; d *= 2) {
        const unsigned other = __shfl_up_sync(0xffffffffu, sum, (unsigned)d);

        if (lane >= d) sum += other;
    }

    const unsigned wanted = *rank;
    unsigned before = sum - own;

    __syncwarp(); /* all have read the rank */
    if (wanted < before || wanted >= sum) return;
    for (int i = 0; i < each; i++) {
        const unsigned here = count[lane * each + i];

        if (wanted < before + here) {
            *word |= (unsigned long long)(lane * each + i) << shift;
            *rank = wanted - before;
            return;
        }
        before += here;
    }
}

/* Choose the digit at `shift` of hi, or of lo among the elements whose hi is chosen. */
template <int COLUMNS, int BLOCK, class Source>
__device__ inline void slm_gpu_qb_pass(const Source &of, bool low, int shift,
                                       slm_gpu_qb_desk<COLUMNS, BLOCK> &at)
{
    const int column = (int)threadIdx.x % COLUMNS, warp = (int)threadIdx.x / 32;

    for (int i = (int)threadIdx.x; i < COLUMNS * SLM_GPU_QB_DIGITS; i += BLOCK)
        at.count[i / SLM_GPU_QB_DIGITS][i % SLM_GPU_QB_DIGITS] = 0;
    __syncthreads();

    const slm_gpu_qb_element prefix = at.chosen[column];

    slm_gpu_qb_each<BLOCK / COLUMNS>(
        of, threadIdx.x / COLUMNS, [&](slm_gpu_qb_element r) {
            const unsigned long long word = low ? r.lo : r.hi;
            const unsigned long long differs = word ^ (low ? prefix.lo : prefix.hi);

            if (low && r.hi != prefix.hi) return;
            if (differs >> shift >> 8) return;
            atomicAdd(&at.count[column][word >> shift & (SLM_GPU_QB_DIGITS - 1)], 1u);
        });
    __syncthreads();
    if (warp < COLUMNS)
        slm_gpu_qb_digit(at.count[warp], &at.rank[warp],
                         low ? &at.chosen[warp].lo : &at.chosen[warp].hi, shift);
    __syncthreads();
}

/* Which bits of hi, or of lo among the elements whose hi is chosen, are 1 and are 0 in
 * some element of a column; returns whether some lo of the block is not 0. */
template <int COLUMNS, int BLOCK, class Source>
__device__ inline bool slm_gpu_qb_bits(const Source &of, bool low,
                                       slm_gpu_qb_desk<COLUMNS, BLOCK> &at)
{
    const int column = (int)threadIdx.x % COLUMNS, lane = (int)threadIdx.x % 32;
    const unsigned long long zero = slm_gpu_ordered(0.0), hi = at.chosen[column].hi;
    unsigned long long ones = 0, zeros = 0;
    bool some = false;

    if (threadIdx.x < COLUMNS)
        for (int w = 0; w < 2; w++) at.ones[column][w] = at.zeros[column][w] = 0;
    slm_gpu_qb_each<BLOCK / COLUMNS>(of, threadIdx.x / COLUMNS,
                                     [&](slm_gpu_qb_element r) {
                                         if (low && r.hi != hi) return;
                                         ones |= low ? r.lo : r.hi;
                                         zeros |= ~(low ? r.lo : r.hi);
                                         some |= r.lo != zero;
                                     });
    for (int d = 16; d >= COLUMNS; d /= 2) {
        ones |= __shfl_xor_sync(0xffffffffu, ones, d);
        zeros |= __shfl_xor_sync(0xffffffffu, zeros, d);
    }
    some = __syncthreads_or(some);
    if (lane < COLUMNS) {
        atomicOr(&at.ones[column][0], (unsigned)ones);
        atomicOr(&at.ones[column][1], (unsigned)(ones >> 32));
        atomicOr(&at.zeros[column][0], (unsigned)zeros);
        atomicOr(&at.zeros[column][1], (unsigned)(zeros >> 32));
    }
    __syncthreads();
    return some;
}

/* Bits of hi, or of lo among the elements whose hi is chosen, that differ within some
 * column of the block. The chosen word gets the digits without such a bit, zeros in the
 * others. `more` becomes whether some lo is not 0. */
template <int COLUMNS, int BLOCK, class Source>
__device__ inline unsigned long long
slm_gpu_qb_look(const Source &of, bool low, slm_gpu_qb_desk<COLUMNS, BLOCK> &at,
                bool *more)
{
    const int column = (int)threadIdx.x % COLUMNS;
    unsigned long long varies = 0, same = 0;

    *more = slm_gpu_qb_bits(of, low, at);
    for (int c = 0; c < COLUMNS; c++)
        varies |= (unsigned long long)(at.ones[c][1] & at.zeros[c][1]) << 32 |
                  (at.ones[c][0] & at.zeros[c][0]);
    for (int shift = 0; shift < 64; shift += 8)
        if (!(varies >> shift & 255)) same |= 255ull << shift;
    if (threadIdx.x < COLUMNS) {
        const unsigned long long ones =
            (unsigned long long)at.ones[column][1] << 32 | at.ones[column][0];

        (low ? at.chosen[column].lo : at.chosen[column].hi) = ones & same;
    }
    __syncthreads();
    return varies;
}

/* at.chosen: the element at `rank` of each column, from 0; at.rank: how many equal ones
 * stand before it. rank < elements of the column; a column without any is left at 0. */
template <int COLUMNS, int BLOCK, class Source>
__device__ inline void slm_gpu_qb_find(const Source &of, unsigned rank,
                                       slm_gpu_qb_desk<COLUMNS, BLOCK> &at)
{
    bool more = false;

    if (threadIdx.x < COLUMNS) {
        at.chosen[threadIdx.x] = {0, slm_gpu_ordered(0.0)};
        at.rank[threadIdx.x] = rank;
    }
    __syncthreads();
    for (int low = 0; low < 2; low++) {
        if (low && !more) break;

        const unsigned long long varies = slm_gpu_qb_look(of, low, at, &more);

        for (int shift = 56; shift >= 0; shift -= 8)
            if (varies >> shift & 255) slm_gpu_qb_pass(of, low, shift, at);
    }
}

/* The largest element of this thread's column below the chosen one, {0, 0} if none. */
template <int COLUMNS, int BLOCK, class Source>
__device__ inline slm_gpu_qb_element
slm_gpu_qb_under(const Source &of, slm_gpu_qb_desk<COLUMNS, BLOCK> &at)
{
    const int column = (int)threadIdx.x % COLUMNS, lane = (int)threadIdx.x % 32;
    const slm_gpu_qb_element above = at.chosen[column];
    slm_gpu_qb_element best = {0, 0};

    slm_gpu_qb_each<BLOCK / COLUMNS>(
        of, threadIdx.x / COLUMNS, [&](slm_gpu_qb_element r) {
            if (slm_gpu_qb_less(r, above) && slm_gpu_qb_less(best, r)) best = r;
        });
    for (int d = 16; d >= COLUMNS; d /= 2) {
        const unsigned long long hi = __shfl_xor_sync(0xffffffffu, best.hi, d);
        const unsigned long long lo = __shfl_xor_sync(0xffffffffu, best.lo, d);

        if (slm_gpu_qb_less(best, {hi, lo})) best = {hi, lo};
    }
    if (lane < COLUMNS) at.best[threadIdx.x / 32][column] = best;
    __syncthreads();
    for (int w = 0; w < BLOCK / 32; w++)
        if (slm_gpu_qb_less(best, at.best[w][column])) best = at.best[w][column];
    return best;
}

/* Clause Q2: r_(q+1) = above and r_(q) = under are tied. Exact.
 * note: 10^8 (above - under) - 1 - 10^3 |above| <= 0 */
__device__ inline bool slm_gpu_qb_tied(slm_tie_test test, slm_gpu_pair under,
                                       slm_gpu_pair above)
{
    const double sign = above.hi < 0.0 ? -1.0 : 1.0;
    const slm_gpu_pair a = slm_gpu_two_product(1e8, above.hi);
    const slm_gpu_pair b = slm_gpu_two_product(1e8, above.lo);
    const slm_gpu_pair c = slm_gpu_two_product(-1e8, under.hi);
    const slm_gpu_pair d = slm_gpu_two_product(-1e8, under.lo);
    const slm_gpu_pair e = slm_gpu_two_product(-1e3, sign * above.hi);
    const slm_gpu_pair f = slm_gpu_two_product(-1e3, sign * above.lo);
    double term[] = {a.hi, a.lo, b.hi, b.lo, c.hi, c.lo, d.hi,
                     d.lo, e.hi, e.lo, f.hi, f.lo, -1.0};

    if (test == SLM_TIE_EQUAL) return under.hi == above.hi && under.lo == above.lo;
    return slm_gpu_sign_of_sum(term) <= 0;
}

/* After slm_gpu_qb_find: the candidate of this thread's expert e if it is wanted, and
 * with `boundary` the tie that strict mode refuses. candidate [n, 2]: hi, lo. */
template <int COLUMNS, int BLOCK, class Source>
__device__ inline void
slm_gpu_qb_deliver(const slm_gpu_qb_batch &of, const Source &from, size_t e,
                   bool wanted, bool boundary, slm_gpu_qb_desk<COLUMNS, BLOCK> &at,
                   double *candidate, slm_gpu_state *state)
{
    const int column = (int)threadIdx.x % COLUMNS;
    slm_gpu_qb_element under = {0, 0};

    if (boundary) under = slm_gpu_qb_under(from, at);
    if (threadIdx.x >= COLUMNS || !wanted) return;

    const slm_gpu_pair found = slm_gpu_qb_pair(at.chosen[column]);

    candidate[2 * e] = found.hi;
    candidate[2 * e + 1] = found.lo;
    if (!boundary) return;
    /* Equal ones before it in the order, or else the one below. */
    if (slm_gpu_qb_tied(of.test, at.rank[column] ? found : slm_gpu_qb_pair(under),
                        found))
        atomicMin(&state->pending, slm_gpu_found(SLM_GPU_QB_TIE, e));
}

#endif
