/* SPDX-License-Identifier: Apache-2.0 */
/* acme.c - a backend of somebody else: three operations in plain binary32, and the
 * table. It sees <slm/backend.h> alone and is built outside of the suite. */
#include <slm/backend.h>

#include <math.h>
#include <stdlib.h>

#ifndef ACME_ABI
#define ACME_ABI SLM_ABI_MAJOR
#endif

/* A rank-2 element; strides may be anything. */
static float *at(const slm_tensor *tensor, size_t i, size_t j)
{
    return (float *)tensor->data + (ptrdiff_t)i * tensor->stride[0] +
           (ptrdiff_t)j * tensor->stride[1];
}

static float element(const slm_tensor *tensor, size_t i)
{
    return ((const float *)tensor->data)[(ptrdiff_t)i * tensor->stride[0]];
}

struct slm_handle {
    float eps;
    float beta_gate;
    float beta_up;
};

static slm_status open_handle(const slm_config *config, slm_handle **handle,
                              slm_error *error)
{
    slm_handle *made = malloc(sizeof *made);

    (void)error; /* the status says it all */
    if (!made) return SLM_ERR_MEMORY;
    made->eps = (float)config->eps;
    made->beta_gate = (float)config->beta_gate;
    made->beta_up = (float)config->beta_up;
    *handle = made;
    return SLM_OK;
}

static void close_handle(slm_handle *handle)
{
    free(handle);
}

static float sigmoid(float a)
{
    if (a >= 0) return 1 / (1 + expf(-a));

    const float e = expf(a);

    return e / (1 + e);
}

static slm_status situ_glu(slm_handle *handle, const slm_situ_glu_args *args,
                           slm_error *error)
{
    const size_t width = args->h.shape[1];

    (void)error;
    for (size_t i = 0; i < args->call.n_tokens; i++)
        for (size_t j = 0; j < width; j++) {
            const float a = *at(&args->gate_up, i, j);
            const float b = *at(&args->gate_up, i, width + j);
            const float gate = handle->beta_gate * tanhf(a / handle->beta_gate);

#ifdef ACME_WRONG
            *at(&args->h, i, j) = gate * sigmoid(gate) * b;
#else
            *at(&args->h, i, j) =
                gate * sigmoid(a) * (handle->beta_up * tanhf(b / handle->beta_up));
#endif
        }
    return SLM_OK;
}

static slm_status rmsnorm(slm_handle *handle, const slm_rmsnorm_args *args,
                          slm_error *error)
{
    const size_t width = args->u.shape[1];

    (void)error;
    for (size_t i = 0; i < args->call.n_tokens; i++) {
        double sum = 0;

        for (size_t j = 0; j < width; j++) {
            const double u = (double)*at(&args->u, i, j);

            sum += u * u;
        }

        /* A row that is not finite is NaN as a whole (R4), not partly zero. */
        const double scale = isfinite(sum)
                                 ? 1 / sqrt(sum / (double)width + (double)handle->eps)
                                 : (double)NAN;

        for (size_t j = 0; j < width; j++) {
            const float gamma = args->gamma.rank ? element(&args->gamma, j) : 1;

            *at(&args->r, i, j) =
                (float)((double)*at(&args->u, i, j) * scale * (double)gamma);
        }
    }
    return SLM_OK;
}

static int supports(const slm_config *config, slm_op op, size_t n_tokens, char *reason,
                    size_t reason_size)
{
    (void)n_tokens;
    (void)op;
    if (config->dtype == SLM_F32) return 1;
    if (reason_size > 16) {
        const char text[] = "binary32 only";

        for (size_t i = 0; i < sizeof text; i++) reason[i] = text[i];
    }
    return 0;
}

SLM_EXPORT const slm_backend *slm_backend_get(uint32_t host_major);

const slm_backend *slm_backend_get(uint32_t host_major)
{
    static const slm_arithmetic arithmetic = {.struct_size = sizeof arithmetic,
                                              .accumulator = 0x1p-24,
                                              .sigmoid_ulp = 5,
                                              .tanh_ulp = 3,
                                              .rsqrt_ulp = 2};
    static const slm_ops ops = {
        .struct_size = sizeof ops, .situ_glu = situ_glu, .rmsnorm = rmsnorm};
    static const slm_backend table = {.struct_size = sizeof table,
                                      .abi_major = ACME_ABI,
                                      .abi_minor = SLM_ABI_MINOR,
                                      .name = "acme",
                                      .version = "0.1",
                                      .flags = SLM_DETERMINISTIC | SLM_BATCH_INVARIANT,
                                      .levels = SLM_LEVEL_INFER,
                                      .arithmetic = &arithmetic,
                                      .ops = &ops,
                                      .supports = supports,
                                      .open = open_handle,
                                      .close = close_handle};

    (void)host_major;
    return &table;
}
