/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/select_backward.cu - gradient of the logits through the weights of the chosen.
 *
 * In binary64 from the logits, rounded once: dlogit = p (1 - s) (dp - sum p dp). The
 * largest chosen log s is divided out first, so p keeps its digits where every s has
 * underflowed; 1 - s is sigma(-logit).                                        G3, G5 */
#include "element.cuh"
#include "exponential.cuh"

namespace
{

enum { WARPS = 4 };
const unsigned FULL = 0xffffffffu;

__device__ inline double sigmoid(double x)
{
    const double e = exp(-fabs(x));

    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* One warp does one row; lane i has slots i, i + 32, ...
 *
 *   launch    grid ceil(rows / 4), block (32, 4)
 *   logit     [rows, n], `ld` apart; dlogit [rows, n] packed
 *   ids, dp   [rows, k]
 *   order     sums go in slot order; rows are independent */
__global__ void __launch_bounds__(32 * WARPS)
    select_slopes(size_t rows, size_t n, int k, slm_weighting weighting,
                  const float *logit, size_t ld, const int32_t *ids, const float *dp,
                  float *dlogit, const slm_gpu_state *state)
{
    const int lane = (int)threadIdx.x;
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.y;
    const float *from = logit + row * ld, *slope = dp + row * (size_t)k;
    const int32_t *own = ids + row * (size_t)k;
    float *to = dlogit + row * n;
    const bool release = weighting == SLM_WEIGHT_RELEASE, alone = release && k == 1;
    double top = release ? 0.0 : -HUGE_VAL, sum = 0.0, mean = 0.0;

    if (row >= rows || slm_gpu_stopped(state)) return;
    for (size_t e = (size_t)lane; e < n; e += 32) to[e] = 0.0f;
    for (int q = lane; !release && q < k; q += 32)
        top = fmax(top, slm_gpu_log_sigmoid((double)from[own[q]]));
    for (int d = 16; d > 0; d /= 2) {
        const double other = __shfl_xor_sync(FULL, top, d);

        top = fmax(top, other);
    }
    for (int first = 0; first < k; first += 32) {
        const int q = first + lane, count = k - first < 32 ? k - first : 32;
        double part = 0.0;

        if (q < k) part = exp(slm_gpu_log_sigmoid((double)from[own[q]]) - top);
        for (int i = 0; i < count; i++) sum += __shfl_sync(FULL, part, i);
    }
    if (release) sum = alone ? 1.0 : sum + 1e-20;
    for (int first = 0; first < k; first += 32) {
        const int q = first + lane, count = k - first < 32 ? k - first : 32;
        double part = 0.0;

        if (q < k)
            part = exp(slm_gpu_log_sigmoid((double)from[own[q]]) - top) / sum *
                   (double)slope[q];
        for (int i = 0; i < count; i++) mean += __shfl_sync(FULL, part, i);
    }
    __syncwarp(); /* the zeros come first */
    for (int q = lane; q < k; q += 32) {
        const double x = (double)from[own[q]];
        const double p = exp(slm_gpu_log_sigmoid(x) - top) / sum;
        const double d = (double)slope[q];

        to[own[q]] = (float)(p * sigmoid(-x) * (alone ? d : d - mean));
    }
}

const slm_gpu_finding refusals[] = {{SLM_ERR_NONFINITE, "logit", "finite"},
                                    {SLM_ERR_NONFINITE, "dweight", "finite"}};

} // namespace

extern "C" slm_status slm_gpu_select_slopes(size_t rows, size_t n, size_t k,
                                            slm_weighting weighting, const float *logit,
                                            size_t ld, const int32_t *ids,
                                            const float *dweight, float *dlogit,
                                            const slm_gpu_state *state,
                                            cudaStream_t stream)
{
    const dim3 block(32, WARPS);

    if (rows == 0) return SLM_OK;
    if (rows > INT32_MAX || n > INT32_MAX) return SLM_ERR_UNSUPPORTED;
    SLM_LAUNCH(select_slopes, slm_gpu_blocks(rows, WARPS), block, stream, rows, n,
               (int)k, weighting, logit, ld, ids, dweight, dlogit, state);
    return slm_gpu_launched();
}

extern "C" size_t slm_gpu_select_backward_space(const slm_config *, const slm_call *)
{
    return 0;
}

extern "C" slm_status slm_gpu_select_backward(slm_handle *handle,
                                              const slm_select_backward_args *args,
                                              slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, n = config->n_experts, k = config->top_k;
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->logit.data, SLM_F32, rows * n, 0,
                                        stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->dweight.data, SLM_F32, rows * k,
                                        1, stream);
    if (!status)
        status = slm_gpu_select_slopes(
            rows, n, k, config->weighting, (const float *)args->logit.data, n,
            (const int32_t *)args->ids.data, (const float *)args->dweight.data,
            (float *)args->dlogit.data, handle->state, stream);
    if (status) return slm_gpu_failed(SLM_OP_select_backward, status, error);
    return slm_gpu_conclude(handle, SLM_OP_select_backward, refusals, stream, error);
}
