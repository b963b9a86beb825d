/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_number.c - rounding, counts, sigmoid and tanh. */
#include "scalar.h"

#include <math.h>
#include <string.h>

float scalar_bf16(float value)
{
    uint32_t bits;

    if (isnan(value)) return value;
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7fffu + (bits >> 16 & 1u);
    bits &= 0xffff0000u;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

float scalar_f16(float value)
{
    const float magnitude = fabsf(value);
    int exponent;
    float unit;

    if (!(magnitude < 65520.0f))
        return isnan(value) ? value : copysignf(INFINITY, value);
    frexpf(magnitude, &exponent);
    unit = ldexpf(1.0f, exponent < -13 ? -24 : exponent - 11);
    return rintf(value / unit) * unit;
}

float scalar_truncated(double value)
{
    const float nearest = (float)value;

    return fabs((double)nearest) > fabs(value) ? nextafterf(nearest, 0.0f) : nearest;
}

float scalar_flush(const slm_handle *handle, float value)
{
    return is(handle, VARIANT_flush_to_zero) && fabsf(value) < 0x1p-126f ? 0.0f : value;
}

void scalar_stage(const slm_handle *handle, float *value, size_t n)
{
    const int bf16 = handle->config.dtype == SLM_BF16 || is(handle, VARIANT_bf16_taps);

    for (size_t i = 0; i < n; i++) {
        if (bf16) value[i] = scalar_bf16(value[i]);
        value[i] = scalar_flush(handle, value[i]);
    }
}

size_t scalar_whole(const slm_handle *handle, size_t n)
{
    return wrong(handle, MUTANT_tail_dropped) && n > 8 ? n - n % 8 : n;
}

/* Back from binary32, which can round to 2^63. */
static int64_t from_float(float value)
{
    return value < 0x1p63f ? (int64_t)value : INT64_MAX;
}

int64_t scalar_count(const slm_handle *handle, int64_t value)
{
    if (wrong(handle, MUTANT_counts_16_bit)) return (uint16_t)value;
    if (wrong(handle, MUTANT_counts_32_bit)) return (int32_t)(uint32_t)value;
    if (wrong(handle, MUTANT_counts_binary32)) return from_float((float)value);
    if (wrong(handle, MUTANT_counts_bf16)) return from_float(scalar_bf16((float)value));
    return value;
}

float scalar_sigmoid(const slm_handle *handle, float a)
{
    if (wrong(handle, MUTANT_sigmoid_clamped)) a = fminf(fmaxf(a, -30.0f), 30.0f);
    if (wrong(handle, MUTANT_exp_overflow)) return expf(a) / (1.0f + expf(a));
    if (wrong(handle, MUTANT_sigmoid_from_tanh)) return 0.5f + 0.5f * tanhf(a / 2.0f);
    if (wrong(handle, MUTANT_division_flushes) && 1.0f + expf(-a) > 0x1p126f)
        return 0.0f;
    if (is(handle, VARIANT_naive_sigmoid) || a >= 0.0f) return 1.0f / (1.0f + expf(-a));

    const float e = expf(a);

    return scalar_flush(handle, e / (1.0f + e));
}

float scalar_tanh(const slm_handle *handle, float a)
{
    if (wrong(handle, MUTANT_tanh_in_bf16)) return scalar_bf16(tanhf(a));
    if (wrong(handle, MUTANT_tanh_by_cancelling_exp))
        return 1.0f - 2.0f / (1.0f + expf(2.0f * a));
    if (is(handle, VARIANT_tanh_from_expm1)) {
        const float e = expm1f(-2.0f * fabsf(a));

        return copysignf(e / (e + 2.0f), a);
    }
    return tanhf(a);
}
