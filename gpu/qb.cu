/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/qb.cu - exact Quantile Balancing.                                      Q1, Q2, Q5
 *
 * r = alpha - s is kept as an exact pair hi + lo: for a tiny s beside a large alpha
 * binary64 alone would make unequal r equal. Pairs are ordered by hi, then lo, as
 * integers; the element i* of each expert's column comes from a radix selection. The tie
 * test is the sign of an exact sum. The mean is taken in pairs and rounded once. */
#include "element.cuh"
#include "wide.cuh"

namespace
{

enum { COLUMNS = 8, LANES = 64, BLOCK = COLUMNS * LANES, DIGITS = 256 };
enum { SCORE, BIAS, TARGET, TIE }; /* places of the verdict */
const unsigned FULL = 0xffffffffu;

/* Clause Q2: r_(q+1) = above and r_(q) = under are tied. Exact.
 * note: 10^8 (above - under) - 1 - 10^3 |above| <= 0 */
__device__ inline bool tied(slm_tie_test test, slm_gpu_pair under, slm_gpu_pair above)
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

/* A batch, and which of its rows count. */
struct batch {
    const float *score; /* [rows, n] */
    const float *alpha; /* [rows]    */
    const int32_t *mask;
    size_t rows;
    size_t n;
};

/* r of one row and expert, as integers in order. */
struct element {
    unsigned long long hi;
    unsigned long long lo;
};

__device__ inline element element_of(const batch &of, size_t t, size_t e)
{
    const slm_gpu_pair r =
        slm_gpu_two_sum((double)of.alpha[t], -(double)of.score[t * of.n + e]);

    return {slm_gpu_ordered(r.hi), slm_gpu_ordered(r.lo)};
}

__device__ inline slm_gpu_pair pair_of(element of)
{
    return {slm_gpu_unordered(of.hi), slm_gpu_unordered(of.lo)};
}

/* Of column `warp`: the digit in whose elements the rank lies; the rank becomes that
 * within them. One warp a column; `word` gets the digit at `shift`. */
__device__ inline void pick_digit(const unsigned *count, unsigned *rank,
                                  unsigned long long *word, int shift)
{
    const int lane = (int)threadIdx.x % 32, each = DIGITS / 32;
    unsigned own = 0, sum;

    for (int i = 0; i < each; i++) own += count[lane * each + i];
    sum = own;
    for (int d = 1; d < 32; d *= 2) {
        const unsigned other = __shfl_up_sync(FULL, sum, (unsigned)d);

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

/* One pass: choose the digit at `shift` of hi, or of lo among the elements whose hi is
 * chosen. All threads of the block. */
__device__ inline void radix_pass(const batch &of, size_t e, bool low, int shift,
                                  unsigned (*count)[DIGITS], element *chosen,
                                  unsigned *rank)
{
    const int column = (int)threadIdx.x % COLUMNS, warp = (int)threadIdx.x / 32;

    for (int i = (int)threadIdx.x; i < COLUMNS * DIGITS; i += BLOCK)
        count[i / DIGITS][i % DIGITS] = 0;
    __syncthreads();

    const element prefix = chosen[column];

    for (size_t t = threadIdx.x / COLUMNS; e < of.n && t < of.rows; t += LANES) {
        if (of.mask && of.mask[t] == 0) continue;

        const element r = element_of(of, t, e);
        const unsigned long long word = low ? r.lo : r.hi;
        const unsigned long long differs = word ^ (low ? prefix.lo : prefix.hi);

        if (low && r.hi != prefix.hi) continue;
        if (differs >> shift >> 8) continue;
        atomicAdd(&count[column][word >> shift & (DIGITS - 1)], 1u);
    }
    __syncthreads();
    if (warp < COLUMNS)
        pick_digit(count[warp], &rank[warp], low ? &chosen[warp].lo : &chosen[warp].hi,
                   shift);
    __syncthreads();
}

/* The largest element below the chosen one, word by word. Returns it in `under`, zeros
 * if there is none. All threads of the block. */
__device__ inline void find_under(const batch &of, size_t e, const element *chosen,
                                  element *under)
{
    const int column = (int)threadIdx.x % COLUMNS;
    const element above = chosen[column];

    if (threadIdx.x < COLUMNS) under[threadIdx.x] = {0, 0};
    __syncthreads();
    for (int low = 0; low < 2; low++) {
        const unsigned long long best = low ? under[column].hi : 0;

        for (size_t t = threadIdx.x / COLUMNS; e < of.n && t < of.rows; t += LANES) {
            if (of.mask && of.mask[t] == 0) continue;

            const element r = element_of(of, t, e);

            if (r.hi > above.hi || (r.hi == above.hi && r.lo >= above.lo)) continue;
            if (!low)
                atomicMax(&under[column].hi, r.hi);
            else if (r.hi == best)
                atomicMax(&under[column].lo, r.lo);
        }
        __syncthreads();
    }
}

/* A block does the columns of 8 experts: candidate, and in strict mode the tie.
 *
 *   launch     grid ceil(n / 8), block 512: thread = 8 row + column
 *   candidate  [n, 2] out: hi, lo
 *   requires   rows < 2^31; k < n
 *   order      none: counts and maxima of integers */
__global__ void __launch_bounds__(BLOCK)
    qb_columns(batch of, size_t k, slm_balance balance, slm_tie_test test,
               double *candidate, slm_gpu_state *state)
{
    SLM_SHARED(unsigned, count, [COLUMNS][DIGITS]);
    SLM_SHARED(element, chosen, [COLUMNS]);
    SLM_SHARED(element, under, [COLUMNS]);
    SLM_SHARED(unsigned, rank, [COLUMNS]);
    const int column = (int)threadIdx.x % COLUMNS;
    const size_t first = (size_t)blockIdx.x * COLUMNS, e = first + (size_t)column;
    const size_t m = (size_t)state->counted;

    if (slm_gpu_stopped(state) || m == 0) return;

    const size_t nth = (k * (m - 1) + of.n - 1) / of.n;
    int spread = 0;

    if (threadIdx.x < COLUMNS) {
        chosen[threadIdx.x] = {0, 0};
        rank[threadIdx.x] = (unsigned)nth;
    }
    for (int shift = 56; shift >= 0; shift -= 8)
        radix_pass(of, e, false, shift, count, chosen, rank);

    const unsigned long long zero = slm_gpu_ordered(0.0);

    for (size_t t = threadIdx.x / COLUMNS; e < of.n && t < of.rows; t += LANES) {
        if (of.mask && of.mask[t] == 0) continue;

        const element r = element_of(of, t, e);

        spread |= r.hi == chosen[column].hi && r.lo != zero;
    }
    if (__syncthreads_or(spread)) {
        for (int shift = 56; shift >= 0; shift -= 8)
            radix_pass(of, e, true, shift, count, chosen, rank);
    } else {
        if (threadIdx.x < COLUMNS) chosen[threadIdx.x].lo = zero;
        __syncthreads();
    }
    if (balance == SLM_BALANCE_STRICT && nth > 0) find_under(of, e, chosen, under);
    if (threadIdx.x >= COLUMNS || e >= of.n) return;

    const slm_gpu_pair found = pair_of(chosen[column]);

    candidate[2 * e] = found.hi;
    candidate[2 * e + 1] = found.lo;
    if (balance != SLM_BALANCE_STRICT || nth == 0) return;
    /* Equal ones before it in the order, or else the one below. */
    if (tied(test, rank[column] ? found : pair_of(under[column]), found))
        atomicMin(&state->pending, slm_gpu_found(TIE, e));
}

/* Strict mode: m k / n is an integer, or else refused.
 *
 *   launch    grid 1, block 32 */
__global__ void __launch_bounds__(32)
    qb_target(size_t k, size_t n, slm_gpu_state *state)
{
    const size_t m = (size_t)state->counted;

    if (threadIdx.x == 0 && m % n * (k % n) % n != 0)
        atomicMin(&state->verdict, slm_gpu_found(TARGET, 0));
}

/* One warp: new_bias = RN32((n candidate - sum) / n), one division, exact wherever the
 * result is. Without candidates, or with none counted, the bias bit for bit.
 *
 *   launch     grid 1, block 32
 *   candidate  [n, 2]; tap [n] or NULL
 *   order      lane i sums i, i+32, ...; lanes fold by xor 16, 8, 4, 2, 1 */
__global__ void __launch_bounds__(32)
    qb_centre(size_t n, const double *candidate, const float *bias, float *new_bias,
              double *tap, int by_count, const slm_gpu_state *state)
{
    const unsigned *bits = (const unsigned *)bias;
    const bool keep = !candidate || (by_count && state->counted == 0);
    slm_gpu_pair sum = {0.0, 0.0};

    if (slm_gpu_stopped(state)) return;
    for (size_t j = threadIdx.x; keep && j < n; j += 32) {
        ((unsigned *)new_bias)[j] = bits[j];
        if (tap) tap[j] = (double)__uint_as_float(bits[j]);
    }
    if (keep) return;
    for (size_t j = threadIdx.x; j < n; j += 32)
        sum = slm_gpu_pair_add(sum, {candidate[2 * j], candidate[2 * j + 1]});
    for (int d = 16; d > 0; d /= 2) {
        const double hi = __shfl_xor_sync(FULL, sum.hi, d);
        const double lo = __shfl_xor_sync(FULL, sum.lo, d);

        sum = slm_gpu_pair_add(sum, {hi, lo});
    }
    for (size_t j = threadIdx.x; j < n; j += 32) {
        const slm_gpu_pair scaled =
            slm_gpu_pair_times({candidate[2 * j], candidate[2 * j + 1]}, (double)n);
        const slm_gpu_pair centred =
            slm_gpu_pair_over(slm_gpu_pair_add(scaled, {-sum.hi, -sum.lo}), (double)n);

        new_bias[j] = slm_gpu_round_once(centred);
        if (tap) tap[j] = candidate[2 * j];
    }
}

/* alpha to the output, of tokens that count only.
 *
 *   launch    grid ceil(rows / 256), block 256 */
__global__ void __launch_bounds__(256)
    qb_cutoffs(size_t rows, const int32_t *mask, const float *alpha, float *cutoff,
               const slm_gpu_state *state)
{
    const size_t t = (size_t)blockIdx.x * 256 + threadIdx.x;

    if (t >= rows || slm_gpu_stopped(state) || (mask && mask[t] == 0)) return;
    cutoff[t] = alpha[t];
}

const slm_gpu_finding refusals[] = {
    {SLM_ERR_NONFINITE, "score", "finite"},
    {SLM_ERR_NONFINITE, "bias", "finite"},
    {SLM_ERR_TARGET, "n_tokens", "m k divisible by n"},
    {SLM_ERR_TIE, "new_bias", "a unique boundary between elements q and q + 1"}};

struct space {
    float *alpha;      /* [T]    */
    double *candidate; /* [n, 2] */
};

size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_gpu_arena arena = {(char *)base, 0};

    at->alpha = slm_gpu_take_f32(&arena, rows, 1);
    at->candidate =
        (double *)slm_gpu_take(&arena, config->n_experts, 2, sizeof(double));
    return arena.used;
}

slm_status take_cutoffs(slm_handle *handle, const slm_qb_exact_args *args,
                        const batch &of, float *alpha, cudaStream_t stream)
{
    slm_gpu_choice choice = {};

    choice.rows = of.rows;
    choice.n = choice.ld = of.n;
    choice.k = handle->config.top_k;
    choice.score = of.score;
    choice.bias = (const float *)args->bias.data;
    choice.mask = of.mask;
    choice.cutoff = alpha;
    choice.state = handle->state;
    return slm_gpu_choose(&choice, 0, stream);
}

slm_status check_batch(slm_handle *handle, const slm_qb_exact_args *args,
                       const batch &of, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status)
        status = slm_gpu_find_nonfinite_rows(handle, of.score, of.mask, of.rows, of.n,
                                             SCORE, stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->bias.data, SLM_F32, of.n, BIAS,
                                        stream);
    if (!status) status = slm_gpu_count_mask(handle, of.mask, of.rows, stream);
    if (!status && config->balance == SLM_BALANCE_STRICT) {
        SLM_LAUNCH(qb_target, 1, 32, stream, config->top_k, of.n, handle->state);
        status = slm_gpu_launched();
    }
    return status;
}

slm_status solve(slm_handle *handle, const slm_qb_exact_args *args, const batch &of,
                 const space &at, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    slm_status status = take_cutoffs(handle, args, of, at.alpha, stream);

    if (status) return status;
    SLM_LAUNCH(qb_columns, slm_gpu_blocks(of.n, COLUMNS), BLOCK, stream, of,
               config->top_k, config->balance, config->tie_test, at.candidate,
               handle->state);
    status = slm_gpu_settle(handle, stream);
    if (status) return status;
    if (args->cutoff.rank && of.rows)
        SLM_LAUNCH(qb_cutoffs, slm_gpu_blocks(of.rows, 256), 256, stream, of.rows,
                   of.mask, at.alpha, (float *)args->cutoff.data, handle->state);
    return slm_gpu_launched();
}

} // namespace

extern "C" slm_status slm_gpu_centre(const slm_handle *handle, size_t n,
                                     const double *candidate, const float *bias,
                                     float *new_bias, double *tap, int by_count,
                                     cudaStream_t stream)
{
    SLM_LAUNCH(qb_centre, 1, 32, stream, n, candidate, bias, new_bias, tap, by_count,
               handle->state);
    return slm_gpu_launched();
}

extern "C" size_t slm_gpu_qb_exact_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

extern "C" slm_status slm_gpu_qb_exact(slm_handle *handle,
                                       const slm_qb_exact_args *args, slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const slm_tensor *mask = slm_given(&args->call, &args->mask);
    const batch rows = {(const float *)args->score.data, NULL,
                        mask ? (const int32_t *)mask->data : NULL, args->call.n_tokens,
                        handle->config.n_experts};
    slm_status status = check_batch(handle, args, rows, stream);
    batch of = rows;
    space at;

    lay_out(&at, args->call.workspace, &handle->config, rows.rows);
    of.alpha = at.alpha;
    if (!status) status = solve(handle, args, of, at, stream);
    if (!status)
        status = slm_gpu_centre(
            handle, of.n, at.candidate, (const float *)args->bias.data,
            (float *)args->new_bias.data,
            args->candidate.rank ? (double *)args->candidate.data : NULL, 1, stream);
    if (status) return slm_gpu_failed(SLM_OP_qb_exact, status, error);
    return slm_gpu_conclude(handle, SLM_OP_qb_exact, refusals, stream, error);
}
