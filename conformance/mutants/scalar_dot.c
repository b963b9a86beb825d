/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_dot.c - sums of products, one order of summation each. */
#include "scalar.h"

#include <math.h>

static float sequential(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static float reversed(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t i = n; i-- > 0;) sum += a[i] * b[i];
    return sum;
}

static float blocked_32(const float *a, const float *b, size_t n)
{
    float part[32] = {0.0f};
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++) part[i % 32] += a[i] * b[i];
    for (size_t i = 0; i < 32; i++) sum += part[i];
    return sum;
}

static float fused(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}

static float pairwise(const float *a, const float *b, size_t n)
{
    const size_t half = n / 2;

    if (n <= 2) return sequential(a, b, n);
    return pairwise(a, b, half) + pairwise(a + half, b + half, n - half);
}

static float in_double(const float *a, const float *b, size_t n)
{
    double sum = 0.0;

    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

static float truncating(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++)
        sum = scalar_truncated((double)sum + (double)a[i] * (double)b[i]);
    return sum;
}

static float flushed(float value)
{
    return fabsf(value) < 0x1p-126f ? 0.0f : value;
}

static float flushing(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++)
        sum = flushed(sum + flushed(flushed(a[i]) * flushed(b[i])));
    return sum;
}

static float in_bf16(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++) sum = scalar_bf16(sum + a[i] * b[i]);
    return sum;
}

float scalar_dot(const slm_handle *handle, const float *a, const float *b, size_t n)
{
    n = scalar_whole(handle, n);
    if (wrong(handle, MUTANT_bf16_accumulate)) return in_bf16(a, b, n);
    if (wrong(handle, MUTANT_order_by_batch) && handle->n_tokens > 1)
        return reversed(a, b, n);
    if (wrong(handle, MUTANT_order_by_call) && handle->n_calls % 2 == 0)
        return reversed(a, b, n);
    if (wrong(handle, MUTANT_products_flush) ||
        wrong_in(handle, SLM_OP_layer_backward, MUTANT_gradient_products_flush) ||
        (wrong(handle, MUTANT_bf16_products_flush) && handle->config.dtype == SLM_BF16))
        return flushing(a, b, n);
    switch (handle->variant) {
    case VARIANT_reversed:
        return reversed(a, b, n);
    case VARIANT_blocked_32:
        return blocked_32(a, b, n);
    case VARIANT_fma:
        return fused(a, b, n);
    case VARIANT_pairwise:
        return pairwise(a, b, n);
    case VARIANT_double_accumulate:
        return in_double(a, b, n);
    case VARIANT_truncating:
        return truncating(a, b, n);
    case VARIANT_flush_to_zero:
        return flushing(a, b, n);
    default:
        return sequential(a, b, n);
    }
}

/* Ten stored bits of a significand, to nearest. */
static float tf32(float value)
{
    int exponent;

    if (!isfinite(value) || value == 0.0f) return value;
    frexpf(value, &exponent);

    const double unit = ldexp(1.0, exponent - 11);

    return (float)(rint((double)value / unit) * unit);
}

static float dot_tf32(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++) sum += tf32(a[i]) * tf32(b[i]);
    return sum;
}

static int all_finite(const float *value, size_t n)
{
    int finite = 1;

    for (size_t i = 0; i < n; i++) finite &= isfinite(value[i]) != 0;
    return finite;
}

int scalar_linear(const slm_handle *handle, float *y, const slm_tensor *w,
                  const float *x, float *copy)
{
    const size_t rows = w->shape[0], cols = w->shape[1];
    int finite = all_finite(x, cols);

    for (size_t i = 0; i < rows; i++) {
        const slm_tensor row = slm_tensor_at(w, i);
        const float *values = scalar_view(copy, &row);

        finite &= all_finite(values, cols);
        y[i] = is(handle, VARIANT_tf32_factors) ? dot_tf32(values, x, cols)
                                                : scalar_dot(handle, values, x, cols);
    }
    return finite;
}
