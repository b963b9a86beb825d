/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/hist.cu - Quantile Balancing by a histogram: accumulate, merge, solve.  Q3, Q5, C1
 *
 * Counting is done by the router's tail (select.cu) with the bins of bins.cuh: a score
 * is read once for its key and its bin. Counts are integers: any order gives the same. */
#include "bins.cuh"
#include "element.cuh"
#include "wide.cuh"

namespace
{

enum { THREADS = 256, EXPERTS = 4 };
enum { SCORE, BIAS }; /* places of the verdict */
const unsigned FULL = 0xffffffffu;

/* range = (min b, max b); edge t = RN64(lo + t (hi - lo) / bins).
 *
 *   launch    grid 1, block 256
 *   bias      [n]; range [2] out; edge [bins] out, or NULL
 *   order     none: a minimum and a maximum */
__global__ void __launch_bounds__(THREADS)
    hist_edges(size_t n, const float *bias, size_t bins, double *range, double *edge,
               const slm_gpu_state *state)
{
    SLM_SHARED(unsigned long long, ends, [2]);

    if (slm_gpu_stopped(state)) return;
    if (threadIdx.x == 0) {
        ends[0] = ~0ull;
        ends[1] = 0;
    }
    __syncthreads();
    for (size_t j = threadIdx.x; j < n; j += THREADS) {
        const unsigned long long word = slm_gpu_ordered((double)bias[j]);

        atomicMin(&ends[0], word);
        atomicMax(&ends[1], word);
    }
    __syncthreads();

    const double least = slm_gpu_unordered(ends[0]), most = slm_gpu_unordered(ends[1]);

    if (threadIdx.x == 0) {
        range[0] = least;
        range[1] = most;
    }
    for (size_t t = threadIdx.x; edge && t < bins; t += THREADS)
        edge[t] = slm_gpu_along(least, most, {(double)t, 0.0}, (double)bins).hi;
}

/* hist = sum over the parts.
 *
 *   launch    grid any, block 256; threads stride over the counts
 *   parts     [parts, counts]; hist [counts] out */
__global__ void __launch_bounds__(THREADS)
    hist_merge(size_t n_parts, size_t counts, const int64_t *parts, int64_t *hist)
{
    const size_t step = (size_t)gridDim.x * THREADS;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < counts; i += step) {
        int64_t sum = 0;

        for (size_t p = 0; p < n_parts; p++) sum += parts[p * counts + i];
        hist[i] = sum;
    }
}

/* One warp solves one expert: the first bin whose cumulative count reaches ceil(m k / n),
 * then lo + (t + (m k / n - before) / here) w.
 *
 *   launch     grid ceil(n / 4), block (32, 4)
 *   hist       [n, bins]; range [2]; candidate [n, 2] out: hi, lo
 *   requires   each row sums to m >= 1; k < n
 *   order      32 bins at a time, ascending */
__global__ void __launch_bounds__(32 * EXPERTS)
    hist_solve(size_t n, size_t k, size_t bins, size_t m, const int64_t *hist,
               const double *range, double *candidate, const slm_gpu_state *state)
{
    const size_t e = (size_t)blockIdx.x * EXPERTS + threadIdx.y;
    const int64_t *row = hist + e * bins;
    const int lane = (int)threadIdx.x;
    const slm_gpu_wide pairs = (slm_gpu_wide)m * (slm_gpu_wide)k;
    const slm_gpu_wide whole = (slm_gpu_wide)n;
    int64_t before = 0;

    if (e >= n || slm_gpu_stopped(state)) return;

    const int64_t target = (int64_t)((pairs + whole - 1) / whole);

    for (size_t first = 0; first < bins; first += 32) {
        const size_t t = first + (size_t)lane;
        const int64_t own = t < bins ? row[t] : 0;
        int64_t sum = own;

        for (int d = 1; d < 32; d *= 2) {
            const int64_t other = __shfl_up_sync(FULL, sum, (unsigned)d);

            if (lane >= d) sum += other;
        }

        const unsigned reached = __ballot_sync(FULL, before + sum >= target);

        if (reached && lane == __ffs((int)reached) - 1) {
            const int64_t under = before + sum - own;
            /* Two divisions: n here might not fit in a binary64. */
            const slm_gpu_pair inside = slm_gpu_pair_over(
                slm_gpu_pair_over(slm_gpu_wide_pair(pairs - whole * under), (double)n),
                (double)own);
            const slm_gpu_pair at =
                slm_gpu_along(range[0], range[1],
                              slm_gpu_pair_add({(double)t, 0.0}, inside), (double)bins);

            candidate[2 * e] = at.hi;
            candidate[2 * e + 1] = at.lo;
        }
        if (reached) return;
        before += __shfl_sync(FULL, sum, 31);
    }
}

const slm_gpu_finding refusals[] = {{SLM_ERR_NONFINITE, "score", "finite"},
                                    {SLM_ERR_NONFINITE, "bias", "finite"}};
const slm_gpu_finding bias_refusals[] = {{SLM_ERR_NONFINITE, "bias", "finite"}};

struct space {
    double *range;     /* [2]                          */
    double *edge;      /* [B]     accumulate           */
    double *candidate; /* [n, 2]  solve            */
};

size_t lay_out(space *at, void *base, const slm_config *config, bool solves)
{
    slm_gpu_arena arena = {(char *)base, 0};

    at->range = (double *)slm_gpu_take(&arena, 2, 1, sizeof(double));
    at->edge =
        (double *)slm_gpu_take(&arena, solves ? 0 : config->n_bins, 1, sizeof(double));
    at->candidate = (double *)slm_gpu_take(&arena, solves ? config->n_experts : 0, 2,
                                           sizeof(double));
    return arena.used;
}

} // namespace

extern "C" slm_status slm_gpu_accumulate(slm_handle *handle, const slm_call *call,
                                         const float *score, const float *bias,
                                         int64_t *hist, const int32_t *mask,
                                         cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    slm_gpu_choice choice = {};
    space at;

    if (call->n_tokens == 0) return SLM_OK;
    lay_out(&at, call->workspace, config, false);
    SLM_LAUNCH(hist_edges, 1, THREADS, stream, config->n_experts, bias, config->n_bins,
               at.range, at.edge, handle->state);
    choice.rows = call->n_tokens;
    choice.n = choice.ld = config->n_experts;
    choice.k = config->top_k;
    choice.score = score;
    choice.bias = bias;
    choice.mask = mask;
    choice.state = handle->state;
    choice.hist = (unsigned long long *)hist;
    choice.bins = config->n_bins;
    choice.edge = at.edge;
    choice.range = at.range;
    return slm_gpu_choose(&choice, 0, stream);
}

extern "C" size_t slm_gpu_qb_hist_accumulate_space(const slm_config *config,
                                                   const slm_call *)
{
    space at;

    return lay_out(&at, NULL, config, false);
}

extern "C" slm_status
slm_gpu_qb_hist_accumulate(slm_handle *handle, const slm_qb_hist_accumulate_args *args,
                           slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const slm_tensor *given = slm_given(&args->call, &args->mask);
    const int32_t *mask = given ? (const int32_t *)given->data : NULL;
    const float *score = (const float *)args->score.data;
    const float *bias = (const float *)args->bias.data;
    const size_t n = handle->config.n_experts;
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status)
        status = slm_gpu_find_nonfinite_rows(handle, score, mask, args->call.n_tokens,
                                             n, SCORE, stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, bias, SLM_F32, n, BIAS, stream);
    if (!status)
        status = slm_gpu_accumulate(handle, &args->call, score, bias,
                                    (int64_t *)args->hist.data, mask, stream);
    if (status) return slm_gpu_failed(SLM_OP_qb_hist_accumulate, status, error);
    return slm_gpu_conclude(handle, SLM_OP_qb_hist_accumulate, refusals, stream, error);
}

extern "C" size_t slm_gpu_qb_hist_merge_space(const slm_config *, const slm_call *)
{
    return 0;
}

extern "C" slm_status slm_gpu_qb_hist_merge(slm_handle *handle,
                                            const slm_qb_hist_merge_args *args,
                                            slm_error *error)
{
    const size_t counts = handle->config.n_experts * handle->config.n_bins;
    const size_t blocks = counts / THREADS + 1;

    SLM_LAUNCH(hist_merge, (unsigned)(blocks < 4096 ? blocks : 4096), THREADS,
               slm_gpu_stream(&args->call), args->call.n_parts, counts,
               (const int64_t *)args->parts.data, (int64_t *)args->hist.data);

    const slm_status status = slm_gpu_launched();

    return status ? slm_gpu_failed(SLM_OP_qb_hist_merge, status, error) : SLM_OK;
}

extern "C" size_t slm_gpu_qb_hist_solve_space(const slm_config *config,
                                              const slm_call *)
{
    space at;

    return lay_out(&at, NULL, config, true);
}

extern "C" slm_status slm_gpu_qb_hist_solve(slm_handle *handle,
                                            const slm_qb_hist_solve_args *args,
                                            slm_error *error)
{
    const slm_config *config = &handle->config;
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const size_t n = config->n_experts, m = args->call.n_tokens;
    const float *bias = (const float *)args->bias.data;
    const dim3 block(32, EXPERTS);
    slm_status status = slm_gpu_begin(handle, stream);
    space at;

    lay_out(&at, args->call.workspace, config, true);
    if (!status) status = slm_gpu_find_nonfinite(handle, bias, SLM_F32, n, 0, stream);
    if (m) {
        SLM_LAUNCH(hist_edges, 1, THREADS, stream, n, bias, config->n_bins, at.range,
                   (double *)NULL, handle->state);
        SLM_LAUNCH(hist_solve, slm_gpu_blocks(n, EXPERTS), block, stream, n,
                   config->top_k, config->n_bins, m, (const int64_t *)args->hist.data,
                   at.range, at.candidate, handle->state);
    }
    if (!status)
        status = slm_gpu_centre(
            handle, n, m ? at.candidate : NULL, bias, (float *)args->new_bias.data,
            args->candidate.rank ? (double *)args->candidate.data : NULL, 0, stream);
    if (status) return slm_gpu_failed(SLM_OP_qb_hist_solve, status, error);
    return slm_gpu_conclude(handle, SLM_OP_qb_hist_solve, bias_refusals, stream, error);
}
