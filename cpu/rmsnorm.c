/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/rmsnorm.c - RMSNorm of the routed aggregate.
 *
 * Clause   L2, R4.  Preconditions are the contract's; none is checked here.
 * Method   squares, sum, root and the two products in binary64, one rounding to
 *          binary32 an element: no square can overflow or underflow on the way.
 * Order    eight partial sums i mod 8, added from 0 to 7: fixed by the width alone.
 * Aliasing r may be u. No allocation. */
#include "internal.h"

enum { LANES = 8 };

void slm_cpu_rmsnorm_row(size_t width, const float *u, const float *gamma, double eps,
                         float *r)
{
    double part[LANES] = {0.0}, sum = 0.0;
    size_t i = 0;

    for (; i + LANES <= width; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            part[lane] += (double)u[i + lane] * (double)u[i + lane];
    for (size_t lane = 0; i + lane < width; lane++)
        part[lane] += (double)u[i + lane] * (double)u[i + lane];
    for (size_t lane = 0; lane < LANES; lane++) sum += part[lane];

    /* An infinity in u would leave zeros beside it. */
    const double scale =
        isfinite(sum) ? 1.0 / sqrt(sum / (double)width + eps) : (double)NAN;

    if (gamma)
        for (i = 0; i < width; i++)
            r[i] = (float)((double)gamma[i] * ((double)u[i] * scale));
    else
        for (i = 0; i < width; i++) r[i] = (float)((double)u[i] * scale);
}

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
        slm_cpu_rmsnorm_row(width, slm_cpu_row(u, t), gamma, config->eps,
                            slm_cpu_row(r, t));
    if (!direct) slm_cpu_write(&args->r, r);
    return SLM_OK;
}
