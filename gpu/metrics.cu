/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/metrics.cu - load metrics, and the sign step that goes by the load.   Q5, Q6, Q7
 *
 * Ratios of integers, exact up to their last division or square root. */
#include "element.cuh"
#include "wide.cuh"

namespace
{

enum { THREADS = 256 };
const size_t MOST_BLOCKS = 1024;

/* load[e] += pairs of expert e among tokens that count.
 *
 *   launch    grid any, block 256; threads stride over the pairs
 *   ids       [rows, k]; mask [rows] or NULL; load [n] in and out */
__global__ void __launch_bounds__(THREADS)
    metrics_count(size_t rows, size_t k, const int32_t *ids, const int32_t *mask,
                  unsigned long long *load)
{
    const size_t step = (size_t)gridDim.x * THREADS, pairs = rows * k;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < pairs; i += step)
        if (!mask || mask[i / k] != 0) atomicAdd(&load[ids[i]], 1ull);
}

/* One warp: max_vio, cv, dead, residual. All integers are exact, also where a pair of
 * loads squared passes 64 bits.
 *
 *   launch    grid 1, block 32
 *   load      [n]; metric [4] out */
__global__ void __launch_bounds__(32)
    metrics_ratios(size_t n, const int64_t *load, double *metric)
{
    slm_gpu_wide pairs = 0, squares = 0, distance = 0, dead = 0;
    long long top = 0;

    for (size_t e = threadIdx.x; e < n; e += 32) {
        const slm_gpu_wide own = load[e];

        pairs += own;
        squares += own * own;
        dead += own == 0;
        top = load[e] > top ? load[e] : top;
    }
    pairs = slm_gpu_wide_sum(pairs);
    squares = slm_gpu_wide_sum(squares);
    dead = slm_gpu_wide_sum(dead);
    for (int d = 16; d > 0; d /= 2) {
        const long long other = __shfl_xor_sync(0xffffffffu, top, d);

        top = other > top ? other : top;
    }
    for (size_t e = threadIdx.x; e < n; e += 32) {
        const slm_gpu_wide over =
            (slm_gpu_wide)n * load[e] - pairs; /* n (load - mean) */

        distance += over < 0 ? -over : over;
    }
    distance = slm_gpu_wide_sum(distance);
    if (threadIdx.x != 0) return;

    const double all = slm_gpu_wide_pair(pairs).hi, experts = (double)n;
    const slm_gpu_wide most = (slm_gpu_wide)n * top - pairs;
    const slm_gpu_wide spread = (slm_gpu_wide)n * squares - pairs * pairs;

    metric[0] = pairs ? slm_gpu_wide_pair(most).hi / all : 0.0;
    metric[1] = pairs ? sqrt(slm_gpu_wide_pair(spread).hi) / all : 0.0;
    metric[2] = slm_gpu_wide_pair(dead).hi;
    metric[3] = pairs ? slm_gpu_wide_pair(distance).hi / (2.0 * experts * all) : 0.0;
}

/* One warp: b + rate sign(mean load - load), rounded once; the sign by exact integers.
 *
 *   launch    grid 1, block 32 */
__global__ void __launch_bounds__(32)
    metrics_sign(size_t n, const float *bias, const int64_t *load, float rate,
                 float *new_bias, const slm_gpu_state *state)
{
    slm_gpu_wide total = 0;

    if (slm_gpu_stopped(state)) return;
    for (size_t j = threadIdx.x; j < n; j += 32) total += load[j];
    total = slm_gpu_wide_sum(total);
    for (size_t j = threadIdx.x; j < n; j += 32) {
        const slm_gpu_wide lack = total - (slm_gpu_wide)n * load[j];

        if (lack == 0)
            ((unsigned *)new_bias)[j] = ((const unsigned *)bias)[j];
        else
            new_bias[j] = lack > 0 ? bias[j] + rate : bias[j] - rate;
    }
}

const slm_gpu_finding refusals[] = {{SLM_ERR_NONFINITE, "bias", "finite"}};

} // namespace

extern "C" size_t slm_gpu_load_metrics_space(const slm_config *, const slm_call *)
{
    return 0;
}

extern "C" slm_status
slm_gpu_load_metrics(slm_handle *, const slm_load_metrics_args *args, slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const slm_tensor *mask = slm_given(&args->call, &args->mask);
    const size_t rows = args->call.n_tokens, n = args->load.shape[0];
    const size_t k = args->ids.shape[1], blocks = rows * k / THREADS + 1;

    cudaMemsetAsync(args->load.data, 0, n * sizeof(int64_t), stream);
    if (rows)
        SLM_LAUNCH(metrics_count,
                   (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS,
                   stream, rows, k, (const int32_t *)args->ids.data,
                   mask ? (const int32_t *)mask->data : NULL,
                   (unsigned long long *)args->load.data);
    SLM_LAUNCH(metrics_ratios, 1, 32, stream, n, (const int64_t *)args->load.data,
               (double *)args->metric.data);

    const slm_status status = slm_gpu_launched();

    return status ? slm_gpu_failed(SLM_OP_load_metrics, status, error) : SLM_OK;
}

extern "C" size_t slm_gpu_sign_step_space(const slm_config *, const slm_call *)
{
    return 0;
}

extern "C" slm_status
slm_gpu_sign_step(slm_handle *handle, const slm_sign_step_args *args, slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const size_t n = handle->config.n_experts;
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->bias.data, SLM_F32, n, 0, stream);
    SLM_LAUNCH(metrics_sign, 1, 32, stream, n, (const float *)args->bias.data,
               (const int64_t *)args->load.data, (float)handle->config.rate,
               (float *)args->new_bias.data, handle->state);
    if (!status) status = slm_gpu_launched();
    if (status) return slm_gpu_failed(SLM_OP_sign_step, status, error);
    return slm_gpu_conclude(handle, SLM_OP_sign_step, refusals, stream, error);
}
