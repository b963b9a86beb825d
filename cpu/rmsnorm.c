/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/rmsnorm.c - RMSNorm of the routed aggregate, and its gradients.
 *
 * Clause   L2, G2, R4.  Preconditions are the contract's; none is checked here.
 * Method   squares, sum, root and the products in binary64, one rounding to binary32
 *          an element: no square can overflow or underflow on the way.
 * Order    eight partial sums i mod 8, added from 0 to 7: fixed by the width alone.
 *          dgamma: one sum a column, in order of the rows.
 * Aliasing r may be u; du may be u or dr. No allocation. */
#include "internal.h"

enum { LANES = 8, COLUMNS = 32 };

typedef struct space {
    float *u;     /* [T, l]  becomes r  */
    float *gamma; /* [l]                */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};

    at->u = slm_cpu_take_f32(&arena, rows, config->d_latent);
    at->gamma = slm_cpu_take_f32(&arena, 1, config->d_latent);
    return arena.used;
}

size_t slm_cpu_rmsnorm_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status slm_cpu_rmsnorm(slm_handle *handle, const slm_rmsnorm_args *args,
                           slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, width = config->d_latent;
    const float *gamma = NULL;
    slm_cpu_matrix u, r;
    space at;

    (void)error;
    if (rows == 0) return SLM_OK;
    lay_out(&at, args->call.workspace, config, rows);
    if (args->gamma.rank) gamma = slm_cpu_read(&args->gamma, at.gamma).data;

    const int direct = slm_cpu_is_matrix(&args->r, &r);

    if (!direct) {
        slm_cpu_pack(at.u, &args->u);
        u = r = (slm_cpu_matrix){at.u, width};
    } else {
        u = slm_cpu_read(&args->u, at.u);
    }
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++)
        handle->kernels->rmsnorm(width, slm_cpu_row(u, t), gamma, config->eps,
                                 slm_cpu_row(r, t));
    if (!direct) slm_cpu_write(&args->r, r);
    return SLM_OK;
}

double slm_cpu_rmsnorm_backward_row(size_t width, const float *u, const float *gamma,
                                    const float *dr, double eps, float *du)
{
    double square[LANES] = {0.0}, product[LANES] = {0.0}, squares = 0.0, sum = 0.0;

    for (size_t i = 0; i < width; i++) {
        const double g = (gamma ? (double)gamma[i] : 1.0) * (double)dr[i];

        square[i % LANES] += (double)u[i] * (double)u[i];
        product[i % LANES] += g * (double)u[i];
    }
    for (size_t lane = 0; lane < LANES; lane++) {
        squares += square[lane];
        sum += product[lane];
    }

    const double scale = 1.0 / sqrt(squares / (double)width + eps);
    const double along = sum * scale / (double)width * scale; /* mean(g n) / R */

    for (size_t i = 0; i < width; i++) {
        const double g = (gamma ? (double)gamma[i] : 1.0) * (double)dr[i];

        du[i] = (float)((g - (double)u[i] * along) * scale);
    }
    return scale;
}

void slm_cpu_add_dgamma(size_t rows, size_t width, slm_cpu_matrix u, slm_cpu_matrix dr,
                        const double *scale, double *sum)
{
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < width; first += COLUMNS) {
        const size_t end = width - first < COLUMNS ? width : first + COLUMNS;

        for (size_t t = 0; t < rows; t++) {
            const float *of_u = slm_cpu_row(u, t), *of_dr = slm_cpu_row(dr, t);

            for (size_t i = first; i < end; i++)
                sum[i] += (double)of_dr[i] * ((double)of_u[i] * scale[t]);
        }
    }
}

typedef struct backward_space {
    float *u;      /* [T, l]  only when it cannot be read where it is     */
    float *dr;     /* [T, l]  the same                                    */
    float *du;     /* [T, l]  only when it cannot be written where it is  */
    float *gamma;  /* [l]                                                 */
    double *scale; /* [T]                                                 */
    double *sum;   /* [l]                                                 */
} backward_space;

static size_t lay_out_backward(backward_space *at, void *base, const slm_config *config,
                               size_t rows)
{
    slm_cpu_arena arena = {base, 0};
    const size_t l = config->d_latent;

    at->u = slm_cpu_take_f32(&arena, rows, l);
    at->dr = slm_cpu_take_f32(&arena, rows, l);
    at->du = slm_cpu_take_f32(&arena, rows, l);
    at->gamma = slm_cpu_take_f32(&arena, 1, l);
    at->scale = slm_cpu_take(&arena, rows, 1, sizeof *at->scale);
    at->sum = slm_cpu_take(&arena, 1, l, sizeof *at->sum);
    return arena.used;
}

size_t slm_cpu_rmsnorm_backward_space(const slm_config *config, const slm_call *call)
{
    backward_space at;

    return lay_out_backward(&at, NULL, config, call->n_tokens);
}

slm_status slm_cpu_rmsnorm_backward(slm_handle *handle,
                                    const slm_rmsnorm_backward_args *args,
                                    slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, width = config->d_latent;
    const slm_status status =
        slm_check_finite(SLM_OP_rmsnorm_backward, config, args, error);
    const float *gamma = NULL;
    slm_cpu_matrix u, dr, du;
    backward_space at;

    if (status) return status;
    lay_out_backward(&at, args->call.workspace, config, rows);
    if (args->gamma.rank) gamma = slm_cpu_read(&args->gamma, at.gamma).data;
    u = slm_cpu_read(&args->u, at.u);
    dr = slm_cpu_read(&args->dr, at.dr);

    const int direct = slm_cpu_is_matrix(&args->du, &du);

    if (!direct) du = (slm_cpu_matrix){at.du, width};
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++)
        at.scale[t] = slm_cpu_rmsnorm_backward_row(width, slm_cpu_row(u, t), gamma,
                                                   slm_cpu_row(dr, t), config->eps,
                                                   slm_cpu_row(du, t));
    memset(at.sum, 0, width * sizeof *at.sum);
    slm_cpu_add_dgamma(rows, width, u, dr, at.scale, at.sum);
    if (!direct) slm_cpu_write(&args->du, du);
    for (size_t i = 0; i < width && args->dgamma.rank; i++)
        *slm_cpu_f32(&args->dgamma, i, 0) = (float)at.sum[i];
    return SLM_OK;
}
