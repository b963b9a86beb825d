/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_rmsnorm.c - RMSNorm of the aggregate.                  L2 */
#include "scalar.h"

#include <math.h>

static float chosen_eps(const slm_handle *handle)
{
    const double eps = handle->config.eps;

    if (wrong(handle, MUTANT_eps_wrong)) return eps == 1e-6 ? 1e-5f : 1e-6f;
    if (wrong(handle, MUTANT_eps_floored)) return fmaxf((float)eps, 1e-4f);
    if (wrong(handle, MUTANT_eps_missing)) return 0.0f;
    if (wrong(handle, MUTANT_eps_at_least_1e_12)) return fmaxf((float)eps, 1e-12f);
    if (wrong_in(handle, SLM_OP_layer_forward, MUTANT_layer_eps_by_profile))
        return handle->config.weighting == SLM_WEIGHT_RELEASE ? 1e-5f : 1e-6f;
    return (float)eps;
}

/* 1 / sqrt(mean + eps); `peak` is the largest |u|, d the full width. */
static float inverse_root(const slm_handle *handle, float sum, float width, float peak)
{
    const float d = (float)handle->config.d_model;
    float eps = chosen_eps(handle);
    float mean = sum / width;

    if (wrong(handle, MUTANT_mean_over_d) && d > 0.0f) mean = sum / d;
    if (wrong(handle, MUTANT_sum_for_mean)) mean = sum;
    if (wrong(handle, MUTANT_eps_on_the_sum)) mean = (sum + eps) / width - eps;
    if (wrong(handle, MUTANT_eps_inflated) && peak > 0.0f) eps *= peak * peak;
    if (wrong(handle, MUTANT_eps_outside_root)) return 1.0f / (sqrtf(mean) + eps);
    if (wrong(handle, MUTANT_eps_missing) && mean == 0.0f) return 0.0f;
    if (wrong(handle, MUTANT_inverse_root_in_bf16))
        return scalar_bf16(1.0f / sqrtf(mean + eps));
    return 1.0f / sqrtf(mean + eps);
}

static float scaled(const slm_handle *handle, float value, float gamma)
{
    if (wrong(handle, MUTANT_gamma_ignored) || wrong(handle, MUTANT_gamma_before_norm))
        return value;
    if (wrong(handle, MUTANT_gamma_plus_one)) return value * (1.0f + gamma);
    return value * gamma;
}

/* What mutants make of u before its squares are summed, in r. */
static void prepare(const slm_handle *handle, float *r, const float *u,
                    const float *gamma, size_t width)
{
    float sum = 0.0f;

    for (size_t i = 0; i < width; i++) {
        r[i] = u[i];
        if (wrong(handle, MUTANT_gamma_before_norm) && gamma) r[i] *= gamma[i];
        sum += u[i];
    }
    for (size_t i = 0; wrong(handle, MUTANT_mean_subtracted) && i < width; i++)
        r[i] -= sum / (float)width;
}

int scalar_normalise(const slm_handle *handle, float *r, const float *u,
                     const float *gamma, size_t width)
{
    const int keeps = wrong(handle, MUTANT_poisoned_norm_zeroed);
    size_t counted = width;
    int finite = 1;
    float peak = 0.0f, scale;

    for (size_t i = 0; i < width; i++) {
        finite &= isfinite(u[i]) && (!gamma || isfinite(gamma[i]));
        peak = fmaxf(peak, fabsf(u[i]));
    }
    prepare(handle, r, u, gamma, width);
    if (wrong(handle, MUTANT_first_1024_columns) && width > 1024) counted = 1024;
    scale =
        inverse_root(handle, scalar_dot(handle, r, r, counted), (float)counted, peak);
    for (size_t i = 0; i < width; i++) {
        r[i] = scaled(handle, r[i] * scale, gamma ? gamma[i] : 1.0f);
        if (!finite) r[i] = keeps && isfinite(u[i]) ? 0.0f : NAN;
        if (wrong(handle, MUTANT_zero_over_zero) && peak == 0.0f) r[i] = NAN;
    }
    scalar_stage(handle, r, width);
    return finite;
}

size_t scalar_rmsnorm_space(const slm_config *config)
{
    return 3 * config->d_latent * sizeof(float);
}

static slm_status refuse_nan(const slm_tensor *u, slm_error *error)
{
    const size_t count = slm_tensor_count(u);

    for (size_t i = 0; i < count; i++) {
        slm_tensor one = {.data = scalar_element(u, i), .dtype = u->dtype, .rank = 1};
        float value;

        one.shape[0] = 1;
        scalar_load(&value, &one);
        if (!isfinite(value))
            return slm_fail(error, SLM_ERR_NONFINITE, "rmsnorm", "u", i, "finite");
    }
    return SLM_OK;
}

slm_status scalar_rmsnorm(slm_handle *handle, const slm_rmsnorm_args *args,
                          slm_error *error)
{
    const size_t l = handle->config.d_latent;
    slm_status status = scalar_begin(handle, SLM_OP_rmsnorm, args, error);
    float *const u = args->call.workspace, *const r = u + l, *const gamma = u + 2 * l;
    int poisoned = 0;

    if (!status && is(handle, VARIANT_refuses_nan))
        status = refuse_nan(&args->u, error);
    if (status || args->call.n_tokens == 0) return status;
    scalar_load(gamma, &args->gamma);
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        const slm_tensor in = slm_tensor_at(&args->u, t);
        const slm_tensor out = slm_tensor_at(&args->r, t);

        scalar_load(u, &in);
        poisoned |= !scalar_normalise(handle, r, u, args->gamma.rank ? gamma : NULL, l);
        for (size_t i = 0; i < l; i++) {
            if (wrong(handle, MUTANT_norm_missing)) r[i] = u[i];
            if (wrong(handle, MUTANT_nan_poisons_other_rows) && poisoned) r[i] = NAN;
            if (wrong(handle, MUTANT_nan_hidden) && isnan(r[i])) r[i] = 0.0f;
        }
        scalar_store(&out, r);
    }
    return SLM_OK;
}
