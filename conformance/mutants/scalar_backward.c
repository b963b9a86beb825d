/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_backward.c - what the backwards share; the norm.      G2 */
#include "scalar_gradient.h"

#include <math.h>

slm_handle scalar_backward_handle(const slm_handle *handle)
{
    slm_handle own = *handle;

    if (own.mutant < MUTANT_situ_gradient_one_minus_tanh_squared ||
        own.mutant > MUTANT_idle_experts_unwritten)
        own.mutant = MUTANT_NONE;
    return own;
}

void scalar_gradient_stage(const slm_handle *handle, float *value, size_t n)
{
    const int bf16 =
        handle->config.dtype == SLM_BF16 || is(handle, VARIANT_bf16_gradients);

    for (size_t i = 0; i < n; i++) {
        if (bf16) value[i] = scalar_bf16(value[i]);
        value[i] = scalar_flush(handle, value[i]);
    }
}

void scalar_sum_stage(const slm_handle *handle, float *value, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (handle->config.dtype == SLM_BF16) value[i] = scalar_bf16(value[i]);
        value[i] = scalar_flush(handle, value[i]);
    }
}

void scalar_write(const slm_tensor *tensor, const float *value)
{
    if (tensor->rank == 1) scalar_store(tensor, value);
    for (size_t i = 0; tensor->rank > 1 && i < tensor->shape[0]; i++) {
        const slm_tensor row = slm_tensor_at(tensor, i);

        scalar_write(&row, value);
        value += slm_tensor_count(&row);
    }
}

void scalar_write_tap(const slm_handle *handle, const slm_tensor *tensor,
                      const float *value)
{
    if (!is(handle, VARIANT_tapless)) scalar_write(tensor, value);
}

void scalar_read(float *out, const slm_tensor *tensor)
{
    for (size_t t = 0; t < tensor->shape[0]; t++) {
        const slm_tensor row = slm_tensor_at(tensor, t);

        scalar_load(out + t * row.shape[0], &row);
    }
}

static float chosen_eps(const slm_handle *handle)
{
    const float eps = (float)handle->config.eps;

    return wrong_in(handle, SLM_OP_rmsnorm_backward, MUTANT_gradient_eps_at_least_1e_12)
               ? fmaxf(eps, 1e-12f)
               : eps;
}

void scalar_norm_backward(const slm_handle *handle, float *du, float *normal,
                          const float *u, const float *gamma, const float *dr)
{
    const size_t l = handle->config.d_latent;
    const int scaled = gamma && !wrong(handle, MUTANT_norm_gradient_without_gamma);
    const float squares = scalar_dot(handle, u, u, l) / (float)l;
    const float root = sqrtf(squares + chosen_eps(handle)), scale = 1.0f / root;
    float share;

    for (size_t i = 0; i < l; i++) {
        normal[i] = u[i] * scale;
        du[i] = scaled ? gamma[i] * dr[i] : dr[i];
    }
    share = scalar_dot(handle, du, normal, l) / (float)l;
    if (wrong(handle, MUTANT_norm_gradient_without_projection)) share = 0.0f;
    if (wrong(handle, MUTANT_norm_gradient_eps_forgotten) && squares > 0.0f)
        share /= squares * scale * scale;
    for (size_t i = 0; i < l; i++) {
        if (wrong_in(handle, SLM_OP_rmsnorm_backward, MUTANT_norm_gradient_by_cube))
            du[i] = du[i] * scale - u[i] * (share * root) / (root * root * root);
        else
            du[i] = (du[i] - normal[i] * share) * scale;
        if (wrong(handle, MUTANT_norm_backward_skipped)) du[i] = dr[i];
    }
    scalar_gradient_stage(handle, du, l);
}

void scalar_gamma_backward(const slm_handle *handle, const scalar_sum *sum,
                           const slm_tensor *dgamma, const float *dr,
                           const float *normal, const float *u, const float *r)
{
    const size_t l = handle->config.d_latent;
    const float *by = normal;
    scalar_sum tokens = *sum;

    if (wrong(handle, MUTANT_gamma_gradient_from_u)) by = u;
    if (wrong(handle, MUTANT_gamma_gradient_from_r)) by = r;
    if (wrong(handle, MUTANT_gamma_gradient_first_token_only) && tokens.n > 1)
        tokens.n = 1;
    if (wrong_in(handle, SLM_OP_rmsnorm_backward, MUTANT_gamma_gradient_of_32_tokens) &&
        tokens.n > 32)
        tokens.n = 32;
    scalar_inner_sum(handle, &tokens, dgamma, (scalar_factor){dr, l, 1},
                     (scalar_factor){by, l, 1});
}

/* Rows of T tokens. */
typedef struct norm_space {
    float *u, *dr, *du, *normal, *r; /* [T, l] */
    float *gamma;                    /* [l]    */
    scalar_sum sum;
} norm_space;

static size_t lay_out(norm_space *at, void *base, const slm_config *config,
                      size_t n_tokens)
{
    const size_t l = config->d_latent, count = n_tokens * l;
    scalar_scratch scratch = {base, 0};

    at->u = scalar_take(&scratch, count, sizeof(float));
    at->dr = scalar_take(&scratch, count, sizeof(float));
    at->du = scalar_take(&scratch, count, sizeof(float));
    at->normal = scalar_take(&scratch, count, sizeof(float));
    at->r = scalar_take(&scratch, count, sizeof(float));
    at->gamma = scalar_take(&scratch, l, sizeof(float));
    scalar_sum_take(&at->sum, &scratch, n_tokens, 1);
    return scratch.used;
}

size_t scalar_rmsnorm_backward_space(const slm_config *config, const slm_call *call)
{
    norm_space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status scalar_rmsnorm_backward(slm_handle *handle,
                                   const slm_rmsnorm_backward_args *args,
                                   slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens, l = handle->config.d_latent;
    const slm_status status =
        scalar_begin(handle, SLM_OP_rmsnorm_backward, args, error);
    const slm_handle own = scalar_backward_handle(handle);
    norm_space at;

    if (status || (n_tokens == 0 && wrong(handle, MUTANT_counts_not_written)))
        return status;
    lay_out(&at, args->call.workspace, &own.config, n_tokens);
    scalar_read(at.u, &args->u);
    scalar_read(at.dr, &args->dr);
    scalar_load(at.gamma, &args->gamma);
    for (size_t t = 0; t < n_tokens; t++) {
        const float *gamma = args->gamma.rank ? at.gamma : NULL;

        scalar_norm_backward(&own, at.du + t * l, at.normal + t * l, at.u + t * l,
                             gamma, at.dr + t * l);
        for (size_t i = 0; i < l; i++) {
            const size_t k = t * l + i;

            at.r[k] = gamma ? at.normal[k] * gamma[i] : at.normal[k];
        }
    }
    scalar_write(&args->du, at.du);
    scalar_gamma_backward(&own, &at.sum, &args->dgamma, at.dr, at.normal, at.u, at.r);
    return SLM_OK;
}
