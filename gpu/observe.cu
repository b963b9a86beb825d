/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/observe.cu - the state of a balancing step: observe, commit.              Q4, Q8
 *
 * Ticket and stamp are read where they are, on the device; that they belong to the bias
 * in force is the caller's to check. The counts are those of hist.cu. */
#include "element.cuh"

namespace
{

enum { THREADS = 256 };

/* Nothing is looked at outside training; nothing is counted twice. `first`: only the
 * mode is asked.
 *
 *   launch    grid 1, block 32 */
__global__ void __launch_bounds__(32)
    observe_ticket(const int64_t *ticket, const int64_t *stamp, int first,
                   slm_gpu_state *state)
{
    const bool training = ticket[SLM_TICKET_MODE] == SLM_MODE_TRAINING;

    if (threadIdx.x != 0) return;
    if (!training)
        state->idle = 1;
    else if (!first && ticket[SLM_TICKET_MICRO_BATCH] != stamp[SLM_STAMP_MICRO_BATCHES])
        state->idle = 1;
}

/* One more micro-batch, and its tokens.
 *
 *   launch    grid 1, block 32 */
__global__ void __launch_bounds__(32)
    observe_stamp(int64_t *stamp, const slm_gpu_state *state)
{
    if (threadIdx.x != 0 || slm_gpu_stopped(state)) return;
    stamp[SLM_STAMP_TOKENS] += (int64_t)state->counted;
    stamp[SLM_STAMP_MICRO_BATCHES]++;
}

/* bias = new_bias, bit for bit, and the stamp of the next step. CRC-64/XZ by a table
 * that the threads make, then byte by byte.
 *
 *   launch    grid 1, block 256
 *   new_bias  [n]; bias [n] out; stamp [4] in and out */
__global__ void __launch_bounds__(THREADS)
    observe_commit(size_t n, const unsigned *new_bias, unsigned *bias, int64_t *stamp,
                   const slm_gpu_state *state)
{
    SLM_SHARED(unsigned long long, table, [256]);
    unsigned long long entry = threadIdx.x, sum = ~0ull;

    if (slm_gpu_stopped(state)) return;
    for (int bit = 0; bit < 8; bit++)
        entry = entry >> 1 ^ (entry & 1 ? 0xc96c5795d7870f42ull : 0);
    table[threadIdx.x] = entry;
    for (size_t j = threadIdx.x; j < n; j += THREADS) bias[j] = new_bias[j];
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (size_t j = 0; j < n; j++)
        for (int byte = 0; byte < 4; byte++)
            sum = sum >> 8 ^ table[(sum ^ new_bias[j] >> 8 * byte) & 255];
    stamp[SLM_STAMP_VERSION]++;
    stamp[SLM_STAMP_CHECKSUM] = (int64_t)~sum;
    stamp[SLM_STAMP_MICRO_BATCHES] = 0;
    stamp[SLM_STAMP_TOKENS] = 0;
}

/*   launch    grid any, block 256; threads stride over the counts */
__global__ void __launch_bounds__(THREADS)
    observe_clear(size_t count, int64_t *hist, const slm_gpu_state *state)
{
    const size_t step = (size_t)gridDim.x * THREADS;

    if (slm_gpu_stopped(state)) return;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step)
        hist[i] = 0;
}

const slm_gpu_finding observe_refusals[] = {{SLM_ERR_NONFINITE, "score", "finite"},
                                            {SLM_ERR_NONFINITE, "bias", "finite"}};
const slm_gpu_finding commit_refusals[] = {{SLM_ERR_NONFINITE, "new_bias", "finite"},
                                           {SLM_ERR_NONFINITE, "bias", "finite"}};

slm_status ask_ticket(slm_handle *handle, const slm_qb_observe_args *args, int first,
                      cudaStream_t stream)
{
    SLM_LAUNCH(observe_ticket, 1, 32, stream, (const int64_t *)args->ticket.data,
               (const int64_t *)args->stamp.data, first, handle->state);
    return slm_gpu_launched();
}

slm_status observe(slm_handle *handle, const slm_qb_observe_args *args,
                   cudaStream_t stream)
{
    const slm_tensor *given = slm_given(&args->call, &args->mask);
    const int32_t *mask = given ? (const int32_t *)given->data : NULL;
    const float *score = (const float *)args->score.data;
    const float *bias = (const float *)args->bias.data;
    const size_t rows = args->call.n_tokens, n = handle->config.n_experts;
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status) status = ask_ticket(handle, args, 1, stream);
    if (!status)
        status = slm_gpu_find_nonfinite_rows(handle, score, mask, rows, n, 0, stream);
    if (!status) status = slm_gpu_find_nonfinite(handle, bias, SLM_F32, n, 1, stream);
    if (!status) status = ask_ticket(handle, args, 0, stream);
    if (!status) status = slm_gpu_count_mask(handle, mask, rows, stream);
    if (!status)
        status = slm_gpu_accumulate(handle, &args->call, score, bias,
                                    (int64_t *)args->hist.data, mask, stream);
    if (status) return status;
    SLM_LAUNCH(observe_stamp, 1, 32, stream, (int64_t *)args->stamp.data,
               handle->state);
    return slm_gpu_launched();
}

} // namespace

extern "C" size_t slm_gpu_qb_observe_space(const slm_config *config,
                                           const slm_call *call)
{
    return slm_gpu_qb_hist_accumulate_space(config, call);
}

extern "C" slm_status slm_gpu_qb_observe(slm_handle *handle,
                                         const slm_qb_observe_args *args,
                                         slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const slm_status status = observe(handle, args, stream);

    if (status) return slm_gpu_failed(SLM_OP_qb_observe, status, error);
    return slm_gpu_conclude(handle, SLM_OP_qb_observe, observe_refusals, stream, error);
}

extern "C" size_t slm_gpu_qb_commit_space(const slm_config *, const slm_call *)
{
    return 0;
}

extern "C" slm_status
slm_gpu_qb_commit(slm_handle *handle, const slm_qb_commit_args *args, slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const size_t n = handle->config.n_experts, counts = n * handle->config.n_bins;
    const size_t blocks = counts / THREADS + 1;
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status)
        status =
            slm_gpu_find_nonfinite(handle, args->new_bias.data, SLM_F32, n, 0, stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->bias.data, SLM_F32, n, 1, stream);
    SLM_LAUNCH(observe_commit, 1, THREADS, stream, n,
               (const unsigned *)args->new_bias.data, (unsigned *)args->bias.data,
               (int64_t *)args->stamp.data, handle->state);
    SLM_LAUNCH(observe_clear, (unsigned)(blocks < 4096 ? blocks : 4096), THREADS,
               stream, counts, (int64_t *)args->hist.data, handle->state);
    if (!status) status = slm_gpu_launched();
    if (status) return slm_gpu_failed(SLM_OP_qb_commit, status, error);
    return slm_gpu_conclude(handle, SLM_OP_qb_commit, commit_refusals, stream, error);
}
