/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/qb.cu - exact Quantile Balancing.                                      Q1, Q2, Q5
 *
 * The cutoffs come from the choice of select.cu, the candidates from qb_sieve.cu or, of
 * few rows and of the columns that it leaves, from qb_columns. The mean is taken in pairs
 * and rounded once.
 *
 * Traffic  of many rows a score is read from memory twice: with its row for the cutoff,
 *          where it is also looked at for X1, and in the sieve. Besides, a sample: at
 *          most one row in eight. */
#include "qb_sieve.h"

namespace
{

enum { COLUMNS = 8, BLOCK = 512, THREADS = 256 };
const unsigned FULL = 0xffffffffu;

typedef slm_gpu_qb_desk<COLUMNS, BLOCK> desk;

/* A column of the batch. */
struct whole_column {
    enum { AT_ONCE = 4 };
    const slm_gpu_qb_batch &of;
    size_t e;
    size_t count; /* rows, or 0: another found its candidate */

    __device__ bool take(size_t t, slm_gpu_qb_element &r) const
    {
        const float alpha = of.alpha[t];

        if (alpha != alpha) return false;
        r = slm_gpu_qb_element_of(alpha, of.score[t * of.n + e]);
        return true;
    }
};

/* A block does the columns of 8 experts, those that are done left out.
 *
 *   launch     grid ceil(n / 8), block 512: thread = 8 row + column
 *   done       [n] or NULL
 *   candidate  [n, 2] out: hi, lo
 *   order      none: counts and maxima of integers */
__global__ void __launch_bounds__(BLOCK)
    qb_columns(slm_gpu_qb_batch of, const unsigned *done, double *candidate,
               slm_gpu_state *state)
{
    SLM_SHARED(desk, at, [1]);
    const size_t e = (size_t)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    const size_t m = (size_t)state->counted;

    if (slm_gpu_stopped(state) || m == 0) return;

    const size_t nth = slm_gpu_qb_rank(of.k, m, of.n);
    const bool wanted = e < of.n && (!done || !done[e]);
    const whole_column column = {of, e, wanted ? of.rows : 0};

    if (!__syncthreads_or(wanted)) return;
    slm_gpu_qb_find(column, (unsigned)nth, at[0]);
    slm_gpu_qb_deliver(of, column, e, wanted,
                       of.balance == SLM_BALANCE_STRICT && nth > 0, at[0], candidate,
                       state);
}

/* The cutoff of a row that does not count becomes NaN. One that counts has a NaN if it
 * holds a score that is not finite: the lowest index of those enters the verdict.
 *
 *   launch  grid ceil(rows / 256), block 256: a thread a row
 *   score   [rows, n]; mask [rows] or NULL; alpha [rows] of slm_gpu_choose, finite = 1
 *   order   none: a minimum */
__global__ void __launch_bounds__(THREADS)
    qb_rows(size_t rows, size_t n, const float *score, const int32_t *mask,
            float *alpha, slm_gpu_state *state)
{
    const size_t t = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (t >= rows) return;
    if (mask && mask[t] == 0) {
        alpha[t] = NAN;
        return;
    }
    if (alpha[t] == alpha[t]) return;
    for (size_t i = t * n; i < (t + 1) * n; i++) {
        if (isfinite(score[i])) continue;
        atomicMin(&state->verdict, slm_gpu_found(SLM_GPU_QB_SCORE, i));
        break;
    }
}

/* Strict mode: m k / n is an integer, or else refused.
 *
 *   launch    grid 1, block 32 */
__global__ void __launch_bounds__(32)
    qb_target(size_t k, size_t n, slm_gpu_state *state)
{
    const size_t m = (size_t)state->counted;

    if (threadIdx.x == 0 && m % n * (k % n) % n != 0)
        atomicMin(&state->verdict, slm_gpu_found(SLM_GPU_QB_TARGET, 0));
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
__global__ void __launch_bounds__(THREADS)
    qb_cutoffs(size_t rows, const int32_t *mask, const float *alpha, float *cutoff,
               const slm_gpu_state *state)
{
    const size_t t = (size_t)blockIdx.x * THREADS + threadIdx.x;

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
    slm_gpu_qb_sieve sieve;
};

size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_gpu_arena arena = {(char *)base, 0};

    at->alpha = slm_gpu_take_f32(&arena, rows, 1);
    at->candidate =
        (double *)slm_gpu_take(&arena, config->n_experts, 2, sizeof(double));
    slm_gpu_qb_lay_sieve(&arena, config, rows, &at->sieve);
    return arena.used;
}

/* The cutoffs, before anything was refused: so the scores are read once for both. */
slm_status take_cutoffs(slm_handle *handle, const slm_qb_exact_args *args,
                        const int32_t *mask, float *alpha, cudaStream_t stream)
{
    const size_t rows = args->call.n_tokens, n = handle->config.n_experts;
    slm_gpu_choice choice = {};
    slm_status status;

    choice.rows = rows;
    choice.n = choice.ld = n;
    choice.k = handle->config.top_k;
    choice.score = (const float *)args->score.data;
    choice.bias = (const float *)args->bias.data;
    choice.mask = mask;
    choice.cutoff = alpha;
    choice.state = handle->state;
    status = slm_gpu_choose(&choice, 1, stream);
    if (status || rows == 0) return status;
    SLM_LAUNCH(qb_rows, slm_gpu_blocks(rows, THREADS), THREADS, stream, rows, n,
               choice.score, mask, alpha, handle->state);
    return slm_gpu_launched();
}

slm_status check_batch(slm_handle *handle, const slm_qb_exact_args *args,
                       const int32_t *mask, float *alpha, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t n = config->n_experts;
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status) status = take_cutoffs(handle, args, mask, alpha, stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->bias.data, SLM_F32, n,
                                        SLM_GPU_QB_BIAS, stream);
    if (!status) status = slm_gpu_count_mask(handle, mask, args->call.n_tokens, stream);
    if (!status && config->balance == SLM_BALANCE_STRICT) {
        SLM_LAUNCH(qb_target, 1, 32, stream, config->top_k, n, handle->state);
        status = slm_gpu_launched();
    }
    return status;
}

slm_status solve(slm_handle *handle, const slm_gpu_qb_batch *of, const space *at,
                 cudaStream_t stream)
{
    slm_status status = SLM_OK;

    if (at->sieve.capacity)
        status =
            slm_gpu_qb_pass_sieve(of, &at->sieve, at->candidate, handle->state, stream);
    if (status) return status;
    SLM_LAUNCH(qb_columns, slm_gpu_blocks(of->n, COLUMNS), BLOCK, stream, *of,
               at->sieve.done, at->candidate, handle->state);
    return slm_gpu_settle(handle, stream);
}

slm_status deliver_cutoffs(slm_handle *handle, const slm_qb_exact_args *args,
                           const int32_t *mask, const float *alpha, cudaStream_t stream)
{
    const size_t rows = args->call.n_tokens;

    if (!args->cutoff.rank || rows == 0) return SLM_OK;
    SLM_LAUNCH(qb_cutoffs, slm_gpu_blocks(rows, THREADS), THREADS, stream, rows, mask,
               alpha, (float *)args->cutoff.data, handle->state);
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
    const slm_config *config = &handle->config;
    const slm_tensor *given = slm_given(&args->call, &args->mask);
    const int32_t *mask = given ? (const int32_t *)given->data : NULL;
    space at;

    lay_out(&at, args->call.workspace, config, args->call.n_tokens);

    const slm_gpu_qb_batch of = {(const float *)args->score.data,
                                 at.alpha,
                                 args->call.n_tokens,
                                 config->n_experts,
                                 config->top_k,
                                 config->balance,
                                 config->tie_test};
    slm_status status = check_batch(handle, args, mask, at.alpha, stream);

    if (!status) status = solve(handle, &of, &at, stream);
    if (!status) status = deliver_cutoffs(handle, args, mask, at.alpha, stream);
    if (!status)
        status = slm_gpu_centre(
            handle, of.n, at.candidate, (const float *)args->bias.data,
            (float *)args->new_bias.data,
            args->candidate.rank ? (double *)args->candidate.data : NULL, 1, stream);
    if (status) return slm_gpu_failed(SLM_OP_qb_exact, status, error);
    return slm_gpu_conclude(handle, SLM_OP_qb_exact, refusals, stream, error);
}
