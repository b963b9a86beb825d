/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_gated.c - a gated network there and back.          G1, L1 */
#include "scalar_gradient.h"

#include <math.h>

/* A half of the activation and its slope. */
typedef struct half {
    float value;
    float slope;
} half;

/* sech^2(a / beta), relative to itself. */
static float sech_squared(const slm_handle *handle, float a, double beta)
{
    const double v = fabs((double)a) / beta, e = exp(-2.0 * v);

    if (wrong(handle, MUTANT_situ_gradient_one_minus_tanh_squared)) {
        const float t = tanhf(a / (float)beta);

        return 1.0f - t * t;
    }
    if (wrong(handle, MUTANT_sech_squared_overflows)) {
        const float w = expf(2.0f * (float)v);

        return 4.0f * w / ((1.0f + w) * (1.0f + w));
    }
    return scalar_flush(handle, (float)(4.0 * e / ((1.0 + e) * (1.0 + e))));
}

static int is_swiglu(const slm_handle *handle)
{
    return handle->op != SLM_OP_situ_glu_backward &&
           handle->config.expert == SLM_EXPERT_SWIGLU;
}

/* G(a). */
static half gate_half(const slm_handle *handle, float a)
{
    const float beta = (float)handle->config.beta_gate;
    const int capped = !is_swiglu(handle);
    const float cap = capped ? beta * scalar_tanh(handle, a / beta) : a;
    const float sigma = scalar_sigmoid(handle, a);
    float steep = capped ? sech_squared(handle, a, (double)beta) : 1.0f;
    float bend = sigma * scalar_sigmoid(handle, -a);

    if (wrong_in(handle, SLM_OP_situ_glu_backward, MUTANT_gate_slope_cut_off) &&
        fabsf(a) > 64.0f)
        steep = bend = 0.0f;
    if (wrong(handle, MUTANT_gate_gradient_without_cap)) steep = 1.0f;
    if (wrong(handle, MUTANT_sigma_gradient_one_minus_sigma))
        bend = sigma * (1.0f - sigma);
    if (wrong(handle, MUTANT_gradient_of_capped_gate))
        bend = scalar_sigmoid(handle, cap) * scalar_sigmoid(handle, -cap);
    if (wrong(handle, MUTANT_gate_gradient_without_sigma_term)) bend = 0.0f;
    return (half){cap * sigma, steep * sigma + cap * bend};
}

/* U(b). */
static half up_half(const slm_handle *handle, float b)
{
    const float beta = (float)handle->config.beta_up;
    half up = {b, 1.0f};

    if (is_swiglu(handle)) return up;
    up.value = beta * scalar_tanh(handle, b / beta);
    if (!wrong(handle, MUTANT_up_gradient_without_cap))
        up.slope = sech_squared(handle, b, (double)beta);
    return up;
}

void scalar_gated_take(scalar_gated *all, scalar_scratch *scratch, size_t rows,
                       size_t width)
{
    all->width = width;
    all->gate_up = scalar_take(scratch, rows * 2 * width, sizeof *all->gate_up);
    all->h = scalar_take(scratch, rows * width, sizeof *all->h);
    all->dh = scalar_take(scratch, rows * width, sizeof *all->dh);
    all->dgate_up = scalar_take(scratch, rows * 2 * width, sizeof *all->dgate_up);
}

scalar_gated scalar_gated_row(const scalar_gated *all, size_t index)
{
    scalar_gated row = *all;

    row.gate_up += index * 2 * all->width;
    row.h += index * all->width;
    row.dh += index * all->width;
    row.dgate_up += index * 2 * all->width;
    return row;
}

void scalar_gated_forward(const slm_handle *handle, const scalar_gated *at,
                          const float *x, float *copy)
{
    scalar_linear(handle, at->gate_up, &at->w_gate, x, copy);
    scalar_linear(handle, at->gate_up + at->width, &at->w_up, x, copy);
    scalar_sum_stage(handle, at->gate_up, 2 * at->width);
    for (size_t i = 0; i < at->width; i++)
        at->h[i] =
            scalar_activation(handle, at->gate_up[i], at->gate_up[at->width + i], 0);
    scalar_stage(handle, at->h, at->width);
}

void scalar_gated_backward(const slm_handle *handle, const scalar_gated *at)
{
    const int pairs =
        wrong_in(handle, SLM_OP_situ_glu_backward, MUTANT_gradients_interleaved);
    const int swap = wrong(handle, MUTANT_gate_up_gradients_swapped);

    for (size_t i = 0; i < at->width; i++) {
        const half gate = gate_half(handle, at->gate_up[i]);
        const half up = up_half(handle, at->gate_up[at->width + i]);
        const float da = at->dh[i] * gate.slope * up.value;
        const float db = at->dh[i] * gate.value * up.slope;

        at->dgate_up[pairs ? 2 * i : i] = swap ? db : da;
        at->dgate_up[pairs ? 2 * i + 1 : at->width + i] = swap ? da : db;
    }
    scalar_gradient_stage(handle, at->dgate_up, 2 * at->width);
}

/* Rows for columns. */
static slm_tensor turned(const slm_tensor *w)
{
    slm_tensor other = *w;

    other.shape[0] = w->shape[1];
    other.shape[1] = w->shape[0];
    other.stride[0] = w->stride[1];
    other.stride[1] = w->stride[0];
    return other;
}

void scalar_add_product(const slm_handle *handle, float *sum, const slm_tensor *w,
                        const float *a, float *part, float *copy)
{
    const slm_tensor by_column = turned(w);

    scalar_linear(handle, part, &by_column, a, copy);
    for (size_t i = 0; i < by_column.shape[0]; i++) sum[i] += part[i];
}

void scalar_gated_add_input(const slm_handle *handle, float *sum,
                            const scalar_gated *at, float *part, float *copy)
{
    scalar_add_product(handle, sum, &at->w_gate, at->dgate_up, part, copy);
    if (!wrong_in(handle, SLM_OP_dense_ffn_backward, MUTANT_dx_without_up_path))
        scalar_add_product(handle, sum, &at->w_up, at->dgate_up + at->width, part,
                           copy);
}

size_t scalar_situ_backward_space(const slm_config *config)
{
    scalar_scratch scratch = {NULL, 0};
    scalar_gated at;

    scalar_gated_take(&at, &scratch, 1, config->d_expert);
    return scratch.used;
}

slm_status scalar_situ_glu_backward(slm_handle *handle,
                                    const slm_situ_glu_backward_args *args,
                                    slm_error *error)
{
    const slm_status status =
        scalar_begin(handle, SLM_OP_situ_glu_backward, args, error);
    const slm_handle own = scalar_backward_handle(handle);
    scalar_scratch scratch = {args->call.workspace, 0};
    scalar_gated at;

    if (status) return status;
    scalar_gated_take(&at, &scratch, 1, own.config.d_expert);
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        const slm_tensor gate_up = slm_tensor_at(&args->gate_up, t);
        const slm_tensor dh = slm_tensor_at(&args->dh, t);
        const slm_tensor out = slm_tensor_at(
            &args->dgate_up, wrong(&own, MUTANT_gradient_rows_to_row_zero) ? 0 : t);

        scalar_load(at.gate_up, &gate_up);
        scalar_load(at.dh, &dh);
        scalar_gated_backward(&own, &at);
        scalar_store(&out, at.dgate_up);
    }
    return SLM_OK;
}
