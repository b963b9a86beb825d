/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/rmsnorm.cu - RMSNorm of the routed aggregate, and its gradients.      L2, G2, R4
 *
 * Squares, sum, root and the products in binary64, one rounding to the element an
 * element: no square can overflow or underflow on the way. */
#include "eight.cuh"
#include "kernels.h"

namespace
{

enum { ROWS = 8, COLUMNS = 32, STEP = 32 * SLM_GPU_EIGHT };
const unsigned FULL = 0xffffffffu;

/* Elements of one dtype. */
struct elements {
    const void *data;
    slm_dtype dtype;
};

typedef float eight[SLM_GPU_EIGHT];

__device__ inline double element_at(elements of, size_t i)
{
    return (double)slm_gpu_load_as(of.data, of.dtype, i);
}

__device__ inline void load(elements of, size_t at, int left, eight &to)
{
    slm_gpu_load_eight_as(of.data, of.dtype, at, left, to);
}

/* gamma, or ones. */
__device__ inline void load_gain(elements gamma, int at, int left, eight &to)
{
    SLM_UNROLL
    for (int j = 0; j < SLM_GPU_EIGHT; j++) to[j] = 1.0f;
    if (gamma.data) load(gamma, (size_t)at, left, to);
}

/* Eight of u and of gamma dr, `left` of which are there, from element i of a row on. */
__device__ inline void load_slopes(elements u, elements gamma, elements dr, size_t row,
                                   int i, int left, eight &v,
                                   double (&g)[SLM_GPU_EIGHT])
{
    eight gain, d;

    load(u, row + (size_t)i, left, v);
    load(dr, row + (size_t)i, left, d);
    load_gain(gamma, i, left, gain);
    SLM_UNROLL
    for (int j = 0; j < SLM_GPU_EIGHT; j++) g[j] = (double)gain[j] * (double)d[j];
}

/* In every lane. */
__device__ inline double warp_sum(double sum)
{
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(FULL, sum, d);
    return sum;
}

/* One warp normalises one row: r = gamma u / sqrt(mean(u^2) + eps).             L2, R4
 *
 *   launch    grid ceil(rows / blockDim.y), block (32, <= 8); no shared memory
 *   u, r      [rows, width]; r may be u
 *   gamma     [width] or NULL for ones
 *   requires  rows >= 1, width >= 1, eps > 0              (the launcher checks)
 *   order     lane i sums eights i, i+32, ...; lanes fold by xor 16, 8, 4, 2, 1: the
 *             same width gives the same bits, whatever rows and the grid are */
__global__ void __launch_bounds__(32 * ROWS)
    rmsnorm_rows(elements u, elements gamma, double eps, int rows, int width, void *r,
                 slm_dtype r_dtype, const slm_gpu_state *state)
{
    const int row = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    const size_t at = (size_t)row * (size_t)width;
    double sum = 0.0;

    if (row >= rows || slm_gpu_stopped(state)) return; /* a warp leaves whole */
    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += STEP) {
        eight v;

        load(u, at + (size_t)i, width - i, v);
        SLM_UNROLL
        for (int j = 0; j < SLM_GPU_EIGHT; j++)
            sum = fma((double)v[j], (double)v[j], sum);
    }
    sum = warp_sum(sum);

    /* An infinity in u would leave zeros beside it. */
    const double scale =
        isfinite(sum) ? 1.0 / sqrt(sum / (double)width + eps) : (double)NAN;

    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += STEP) {
        eight v, gain;

        load(u, at + (size_t)i, width - i, v);
        load_gain(gamma, i, width - i, gain);
        SLM_UNROLL
        for (int j = 0; j < SLM_GPU_EIGHT; j++)
            v[j] = (float)((double)gain[j] * ((double)v[j] * scale));
        slm_gpu_store_eight_as(r, r_dtype, at + (size_t)i, width - i, v);
    }
}

/* One warp: du = (g - u sum(g u) scale^2 / width) scale, g = gamma dr, scale = 1 / R. G2
 *
 *   launch    as rmsnorm_rows
 *   du        [rows, width]; may be u or dr; scale [rows] out
 *   order     as rmsnorm_rows */
__global__ void __launch_bounds__(32 * ROWS)
    rmsnorm_slopes(elements u, elements gamma, elements dr, double eps, int rows,
                   int width, void *du, slm_dtype du_dtype, double *scale,
                   const slm_gpu_state *state)
{
    const int row = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    const size_t at = (size_t)row * (size_t)width;
    double squares = 0.0, sum = 0.0;

    if (row >= rows || slm_gpu_stopped(state)) return;
    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += STEP) {
        eight v;
        double g[SLM_GPU_EIGHT];

        load_slopes(u, gamma, dr, at, i, width - i, v, g);
        SLM_UNROLL
        for (int j = 0; j < SLM_GPU_EIGHT; j++) {
            squares = fma((double)v[j], (double)v[j], squares);
            sum = fma(g[j], (double)v[j], sum);
        }
    }
    squares = warp_sum(squares);
    sum = warp_sum(sum);

    const double own = 1.0 / sqrt(squares / (double)width + eps);
    const double along = sum * own / (double)width * own; /* mean(g n) / R */

    if (threadIdx.x == 0) scale[row] = own;
    for (int i = (int)threadIdx.x * SLM_GPU_EIGHT; i < width; i += STEP) {
        eight v;
        double g[SLM_GPU_EIGHT];

        load_slopes(u, gamma, dr, at, i, width - i, v, g);
        SLM_UNROLL
        for (int j = 0; j < SLM_GPU_EIGHT; j++)
            v[j] = (float)((g[j] - (double)v[j] * along) * own);
        slm_gpu_store_eight_as(du, du_dtype, at + (size_t)i, width - i, v);
    }
}

/* A block sums 32 columns: dgamma = sum over rows of dr u scale.                  G2
 *
 *   launch    grid ceil(width / 32), block (32, 8)
 *   u, dr     [rows, width]; scale [rows]; dgamma [width] out
 *   order     thread y sums rows y, y+8, ...; then the eight in order */
__global__ void __launch_bounds__(COLUMNS *ROWS)
    rmsnorm_gamma(elements u, elements dr, const double *scale, size_t rows,
                  size_t width, float *dgamma, const slm_gpu_state *state)
{
    SLM_SHARED(double, part, [ROWS][COLUMNS]);
    const size_t i = (size_t)blockIdx.x * COLUMNS + threadIdx.x;
    double sum = 0.0;

    if (slm_gpu_stopped(state)) return;
    for (size_t t = threadIdx.y; i < width && t < rows; t += ROWS)
        sum +=
            element_at(dr, t * width + i) * (element_at(u, t * width + i) * scale[t]);
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || i >= width) return;
    sum = part[0][threadIdx.x];
    for (int y = 1; y < ROWS; y++) sum += part[y][threadIdx.x];
    dgamma[i] = (float)sum;
}

int fits(size_t rows, size_t width)
{
    return slm_gpu_fits(rows, ROWS) && slm_gpu_fits(width, STEP);
}

const slm_gpu_finding refusals[] = {{SLM_ERR_NONFINITE, "u", "finite"},
                                    {SLM_ERR_NONFINITE, "gamma", "finite"},
                                    {SLM_ERR_NONFINITE, "dr", "finite"}};

} // namespace

extern "C" slm_status slm_gpu_norm(size_t rows, size_t width, const void *u,
                                   slm_dtype u_dtype, const void *gamma,
                                   slm_dtype gamma_dtype, double eps, void *r,
                                   slm_dtype r_dtype, const slm_gpu_state *state,
                                   cudaStream_t stream)
{
    const dim3 block(32, ROWS);
    const elements from = {u, u_dtype}, gain = {gamma, gamma_dtype};

    if (rows == 0) return SLM_OK;
    if (!fits(rows, width)) return SLM_ERR_UNSUPPORTED;
    SLM_LAUNCH(rmsnorm_rows, slm_gpu_blocks(rows, ROWS), block, stream, from, gain, eps,
               (int)rows, (int)width, r, r_dtype, state);
    return slm_gpu_launched();
}

extern "C" slm_status slm_gpu_rmsnorm_rows(size_t rows, size_t width, const float *u,
                                           const float *gamma, double eps, float *r,
                                           cudaStream_t stream)
{
    return slm_gpu_norm(rows, width, u, SLM_F32, gamma, SLM_F32, eps, r, SLM_F32, NULL,
                        stream);
}

extern "C" slm_status
slm_gpu_norm_slopes(size_t rows, size_t width, const void *u, slm_dtype u_dtype,
                    const void *gamma, slm_dtype gamma_dtype, const void *dr,
                    slm_dtype dr_dtype, double eps, void *du, slm_dtype du_dtype,
                    double *scale, const slm_gpu_state *state, cudaStream_t stream)
{
    const dim3 block(32, ROWS);
    const elements from = {u, u_dtype}, gain = {gamma, gamma_dtype};
    const elements slope = {dr, dr_dtype};

    if (rows == 0) return SLM_OK;
    if (!fits(rows, width)) return SLM_ERR_UNSUPPORTED;
    SLM_LAUNCH(rmsnorm_slopes, slm_gpu_blocks(rows, ROWS), block, stream, from, gain,
               slope, eps, (int)rows, (int)width, du, du_dtype, scale, state);
    return slm_gpu_launched();
}

extern "C" slm_status slm_gpu_gamma_slopes(size_t rows, size_t width, const void *u,
                                           slm_dtype u_dtype, const void *dr,
                                           slm_dtype dr_dtype, const double *scale,
                                           float *dgamma, const slm_gpu_state *state,
                                           cudaStream_t stream)
{
    const dim3 block(COLUMNS, ROWS);
    const elements from = {u, u_dtype}, slope = {dr, dr_dtype};

    SLM_LAUNCH(rmsnorm_gamma, slm_gpu_blocks(width, COLUMNS), block, stream, from,
               slope, scale, rows, width, dgamma, state);
    return slm_gpu_launched();
}

/* ---- operations ---- */

/* NULL where the tensor is absent. */
static const void *optional(const slm_tensor *tensor)
{
    return tensor->rank ? tensor->data : NULL;
}

extern "C" size_t slm_gpu_rmsnorm_space(const slm_config *, const slm_call *)
{
    return 0;
}

/* A row of u that is not finite becomes NaN: never refused.                       R4 */
extern "C" slm_status slm_gpu_rmsnorm(slm_handle *handle, const slm_rmsnorm_args *args,
                                      slm_error *error)
{
    const slm_config *config = &handle->config;
    const slm_dtype dtype = config->dtype;
    const slm_status status =
        slm_gpu_norm(args->call.n_tokens, config->d_latent, args->u.data, dtype,
                     optional(&args->gamma), dtype, config->eps, args->r.data, dtype,
                     NULL, slm_gpu_stream(&args->call));

    return status ? slm_gpu_failed(SLM_OP_rmsnorm, status, error) : SLM_OK;
}

extern "C" size_t slm_gpu_rmsnorm_backward_space(const slm_config *,
                                                 const slm_call *call)
{
    slm_gpu_arena arena = {NULL, 0};

    slm_gpu_take(&arena, call->n_tokens, 1, sizeof(double));
    return arena.used;
}

static slm_status differentiate(slm_handle *handle,
                                const slm_rmsnorm_backward_args *args,
                                cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, width = config->d_latent;
    const slm_dtype dtype = config->dtype;
    const void *gamma = optional(&args->gamma);
    double *scale = (double *)args->call.workspace;
    slm_status status = slm_gpu_begin(handle, stream);

    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->u.data, dtype, rows * width, 0,
                                        stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, gamma, dtype, width, 1, stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->dr.data, dtype, rows * width, 2,
                                        stream);
    if (!status)
        status = slm_gpu_norm_slopes(rows, width, args->u.data, dtype, gamma, dtype,
                                     args->dr.data, dtype, config->eps, args->du.data,
                                     dtype, scale, handle->state, stream);
    if (!status)
        status = slm_gpu_gamma_slopes(rows, width, args->u.data, dtype, args->dr.data,
                                      dtype, scale, (float *)args->dgamma.data,
                                      handle->state, stream);
    return status;
}

extern "C" slm_status slm_gpu_rmsnorm_backward(slm_handle *handle,
                                               const slm_rmsnorm_backward_args *args,
                                               slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const slm_status status = differentiate(handle, args, stream);

    if (status) return slm_gpu_failed(SLM_OP_rmsnorm_backward, status, error);
    return slm_gpu_conclude(handle, SLM_OP_rmsnorm_backward, refusals, stream, error);
}
