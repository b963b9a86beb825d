/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_situ.c - the activations.                          L1, L4 */
#include "scalar.h"

#include <math.h>

/* beta tanh(a / beta). */
static float softcap(const slm_handle *handle, float a, float beta)
{
    const float v = a / beta;

    if (wrong(handle, MUTANT_hard_clamp)) return fmaxf(-beta, fminf(beta, a));
    if (wrong(handle, MUTANT_nan_at_infinity) && v != 0.0f)
        return a * (scalar_tanh(handle, v) / v);
    return beta * scalar_tanh(handle, v);
}

static float gelu(float a)
{
    return 0.5f * a * (1.0f + erff(a * 0.70710678f));
}

static float situ(const slm_handle *handle, float a, float b)
{
    const int fixed = wrong_in(handle, SLM_OP_situ_glu, MUTANT_betas_fixed) ||
                      wrong_in(handle, SLM_OP_layer_forward, MUTANT_layer_betas_fixed);
    const int swapped = wrong(handle, MUTANT_betas_swapped);
    const float beta_gate = fixed ? 4.0f : (float)handle->config.beta_gate;
    const float beta_up = fixed ? 25.0f : (float)handle->config.beta_up;

    if (wrong_in(handle, SLM_OP_layer_forward, MUTANT_layer_clamps_nan)) {
        a = fmaxf(-0x1p20f, fminf(0x1p20f, a));
        b = fmaxf(-0x1p20f, fminf(0x1p20f, b));
    }
    float gate = softcap(handle, a, swapped ? beta_up : beta_gate);
    float up = softcap(handle, b, swapped ? beta_gate : beta_up);
    float sigma = scalar_sigmoid(handle, a);

    if (wrong(handle, MUTANT_sigma_of_capped_gate))
        sigma = scalar_sigmoid(handle, gate);
    if (wrong(handle, MUTANT_gate_cap_missing)) gate = a;
    if (wrong(handle, MUTANT_up_cap_missing)) up = b;
    if (wrong(handle, MUTANT_geglu_for_situ))
        return softcap(handle, gelu(a), beta_gate) * up;
    return gate * sigma * up;
}

static float swiglu(const slm_handle *handle, float a, float b)
{
    return a * scalar_sigmoid(handle, a) * b;
}

static float relu(const slm_handle *handle, float b)
{
    if (wrong(handle, MUTANT_relu_missing)) return b;
    if (wrong(handle, MUTANT_relu_hides_nan)) return fmaxf(0.0f, b);
    return b > 0.0f || isnan(b) ? b : 0.0f;
}

static float activation(const slm_handle *handle, slm_expert_kind kind, float a,
                        float b, int shared)
{
    const int swap = wrong(handle, MUTANT_halves_swapped);
    const float gate = swap ? b : a, up = swap ? a : b;
    int as_swiglu = kind == SLM_EXPERT_SWIGLU;
    float h;

    if (wrong(handle, MUTANT_swiglu_for_situ)) as_swiglu = 1;
    if (wrong(handle, MUTANT_swiglu_in_shared_only) && shared) as_swiglu = 1;
    if (wrong_in(handle, SLM_OP_layer_forward, MUTANT_original_without_norm) &&
        handle->config.norm == SLM_NORM_NONE)
        as_swiglu = 1;
    if (wrong(handle, MUTANT_situ_for_swiglu)) as_swiglu = 0;
    if (kind == SLM_EXPERT_RELU)
        h = relu(handle, b);
    else
        h = as_swiglu ? swiglu(handle, gate, up) : situ(handle, gate, up);
    if (wrong(handle, MUTANT_flushes_undeclared) && fabsf(h) < 0x1p-126f) h = 0.0f;
    if (wrong(handle, MUTANT_flushed_too_early) && fabsf(h) < 0x1p-64f) h = 0.0f;
    if (wrong(handle, MUTANT_bound_exceeded)) h *= 1.0f + 0x1p-22f;
    return h;
}

float scalar_activation(const slm_handle *handle, float a, float b, int shared)
{
    return activation(handle, handle->config.expert, a, b, shared);
}

static int has_nan(const float *row, size_t n)
{
    size_t i = 0;

    while (i < n && !isnan(row[i])) i++;
    return i < n;
}

size_t scalar_situ_space(const slm_config *config)
{
    return 3 * config->d_expert * sizeof(float);
}

slm_status scalar_situ_glu(slm_handle *handle, const slm_situ_glu_args *args,
                           slm_error *error)
{
    const size_t f = handle->config.d_expert;
    const int pairs = wrong(handle, MUTANT_interleaved_halves);
    const slm_status status = scalar_begin(handle, SLM_OP_situ_glu, args, error);
    float *const gate_up = args->call.workspace;

    if (status) return status;
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        const slm_tensor in = slm_tensor_at(&args->gate_up, t);
        slm_tensor out = slm_tensor_at(&args->h, t);
        float *h = gate_up + 2 * f;

        out.shape[0] = scalar_whole(handle, f);
        scalar_load(gate_up, &in);
        for (size_t i = 0; i < f; i++) {
            const float a = gate_up[pairs ? 2 * i : i];
            const float b = gate_up[pairs ? 2 * i + 1 : f + i];

            h[i] = activation(handle, SLM_EXPERT_SITU, a, b, 0);
        }
        if (wrong(handle, MUTANT_nan_poisons_other_elements) && has_nan(h, f))
            for (size_t i = 0; i < f; i++) h[i] = NAN;
        scalar_stage(handle, h, f);
        scalar_store(&out, h);
    }
    return SLM_OK;
}
