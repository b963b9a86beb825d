/* SPDX-License-Identifier: Apache-2.0 */
/* ref/round.c - from balls to elements by enclosure, and from elements to balls.   X2
 *
 * A ball rounds to an element when both of its ends do. The ends are rounded here, on
 * arf numbers: correct at subnormals and at overflow, and independent of the floating
 * point environment. */
#include "internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A binary format: digits of a normal number, exponent of the last digit of a subnormal
 * one, and the exponent of the first power of two that is too large. */
typedef struct binary_format {
    slong digits;
    slong least;
    slong top;
} binary_format;

static binary_format format_of(slm_dtype dtype)
{
    switch (dtype) {
    case SLM_BF16:
        return (binary_format){8, -133, 128};
    case SLM_F64:
        return (binary_format){53, -1074, 1024};
    default:
        return (binary_format){24, -149, 128};
    }
}

/* Nearest element, ties to even. `digits` is what the format has left at x's size. */
static double nearest(const arf_t x, binary_format format)
{
    double element;
    arf_t rounded;

    if (arf_is_special(x)) return arf_get_d(x, ARF_RND_DOWN);
    if (arf_cmpabs_2exp_si(x, format.top) >= 0) return arf_sgn(x) * (double)INFINITY;
    const slong room = arf_abs_bound_lt_2exp_si(x) - format.least;
    const slong digits = room < format.digits ? room : format.digits;
    arf_init(rounded);
    if (digits > 0)
        arf_set_round(rounded, x, digits, ARF_RND_NEAR);
    else if (digits == 0 && arf_cmpabs_2exp_si(x, format.least - 1) > 0)
        arf_set_si_2exp_si(rounded, arf_sgn(x), format.least);
    if (arf_cmpabs_2exp_si(rounded, format.top) >= 0)
        element = arf_sgn(x) > 0 ? (double)INFINITY : -(double)INFINITY;
    else
        element = arf_get_d(rounded, ARF_RND_DOWN);
    arf_clear(rounded);
    return element;
}

int slm_ref_round(double *out, const arb_t value, slm_dtype dtype)
{
    const binary_format format = format_of(dtype);
    double low, high;
    arf_t lower, upper;

    if (arb_is_exact(value)) {
        low = nearest(arb_midref(value), format);
        *out = low == 0 ? 0 : low;
        return 1;
    }
    if (arf_is_nan(arb_midref(value))) return 0;
    arf_init(lower);
    arf_init(upper);
    arb_get_interval_arf(lower, upper, value, SLM_REF_CAP + 64);
    low = nearest(lower, format);
    high = nearest(upper, format);
    arf_clear(upper);
    arf_clear(lower);
    if (!(low == high)) return 0;
    *out = low == 0 ? 0 : low;
    return 1;
}

int slm_ref_f32(float *out, const arb_t value)
{
    double element;

    if (!slm_ref_round(&element, value, SLM_F32)) return 0;
    *out = (float)element;
    return 1;
}

int slm_ref_f64(double *out, const arb_t value)
{
    return slm_ref_round(out, value, SLM_F64);
}

static uint16_t bf16_of(double element)
{
    const float single = (float)element;
    uint32_t bits;

    memcpy(&bits, &single, sizeof bits);
    return (uint16_t)(bits >> 16);
}

int slm_ref_bf16(uint16_t *out, const arb_t value)
{
    double element;

    if (!slm_ref_round(&element, value, SLM_BF16)) return 0;
    *out = bf16_of(element);
    return 1;
}

/* A dyadic rational becomes an exact ball as soon as its digits fit; any other lies on
 * no boundary. So the loop ends. */
static double rational(const fmpq_t value, slm_dtype dtype)
{
    double element = 0;
    arb_t ball;

    arb_init(ball);
    for (slong prec = SLM_REF_FIRST;; prec *= 2) {
        arb_set_fmpq(ball, value, prec);
        if (slm_ref_round(&element, ball, dtype)) break;
    }
    arb_clear(ball);
    return element;
}

float slm_ref_f32_q(const fmpq_t value)
{
    return (float)rational(value, SLM_F32);
}

double slm_ref_f64_q(const fmpq_t value)
{
    return rational(value, SLM_F64);
}

float slm_ref_key(float score, float bias)
{
    float key;
    arf_t sum, term;

    arf_init(sum);
    arf_init(term);
    arf_set_d(sum, (double)score);
    arf_set_d(term, (double)bias);
    arf_add(sum, sum, term, ARF_PREC_EXACT, ARF_RND_DOWN);
    key = (float)nearest(sum, format_of(SLM_F32));
    arf_clear(term);
    arf_clear(sum);
    return key == 0 ? 0 : key;
}

/* The rational that "d.ddde+xx" denotes; the sign of the point does not matter. */
static void parse_scientific(fmpq_t out, const char *text)
{
    fmpz_t power;
    slong exponent = 0;
    int fraction = 0;
    const char *at = text;

    fmpq_zero(out);
    for (; *at && *at != 'e'; at++) {
        if (*at >= '0' && *at <= '9') {
            fmpz_mul_ui(fmpq_numref(out), fmpq_numref(out), 10);
            fmpz_add_ui(fmpq_numref(out), fmpq_numref(out), (ulong)(*at - '0'));
            exponent -= fraction;
        } else {
            fraction = 1;
        }
    }
    exponent += strtol(at + 1, NULL, 10);
    fmpz_init(power);
    fmpz_ui_pow_ui(power, 10, (ulong)(exponent < 0 ? -exponent : exponent));
    if (exponent < 0)
        fmpq_div_fmpz(out, out, power);
    else
        fmpq_mul_fmpz(out, out, power);
    fmpz_clear(power);
}

void slm_ref_decimal(fmpq_t out, double value)
{
    char text[64];

    fmpq_zero(out);
    if (!isfinite(value)) return;
    for (int digits = 0; digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits, fabs(value));
        parse_scientific(out, text);
        if (slm_ref_f64_q(out) == fabs(value)) break;
    }
    if (value < 0) fmpq_neg(out, out);
}

/* Address of an element, which need not be aligned. */
static char *element_at(const slm_tensor *tensor, size_t index)
{
    ptrdiff_t at = 0;

    for (uint32_t i = tensor->rank; i-- > 0;) {
        at += (ptrdiff_t)(index % tensor->shape[i]) * tensor->stride[i];
        index /= tensor->shape[i];
    }
    return (char *)tensor->data + at * (ptrdiff_t)slm_dtype_size(tensor->dtype);
}

static double read_element(const char *at, slm_dtype dtype)
{
    uint16_t half;
    uint32_t bits;
    float single = 0;
    double wide;
    int32_t small;
    int64_t large;

    switch (dtype) {
    case SLM_BF16:
        memcpy(&half, at, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    case SLM_F64:
        memcpy(&wide, at, sizeof wide);
        return wide;
    case SLM_I32:
        memcpy(&small, at, sizeof small);
        return (double)small;
    case SLM_I64:
        memcpy(&large, at, sizeof large);
        return (double)large;
    default:
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
}

double slm_ref_get(const slm_tensor *tensor, size_t index)
{
    return read_element(element_at(tensor, index), tensor->dtype);
}

void slm_ref_set(const slm_tensor *tensor, size_t index, double value)
{
    char *at = element_at(tensor, index);
    const uint16_t half = tensor->dtype == SLM_BF16 ? bf16_of(value) : 0;
    const float single = tensor->dtype == SLM_F32 ? (float)value : 0;
    const int32_t small = tensor->dtype == SLM_I32 ? (int32_t)value : 0;
    const int64_t large = tensor->dtype == SLM_I64 ? (int64_t)value : 0;

    switch (tensor->dtype) {
    case SLM_BF16:
        memcpy(at, &half, sizeof half);
        break;
    case SLM_F64:
        memcpy(at, &value, sizeof value);
        break;
    case SLM_I32:
        memcpy(at, &small, sizeof small);
        break;
    case SLM_I64:
        memcpy(at, &large, sizeof large);
        break;
    default:
        memcpy(at, &single, sizeof single);
    }
}

void slm_ref_load(arb_ptr out, const slm_tensor *row)
{
    const ptrdiff_t step = row->stride[0] * (ptrdiff_t)slm_dtype_size(row->dtype);

    for (size_t i = 0; i < row->shape[0]; i++)
        arb_set_d(out + i, read_element((const char *)row->data + (ptrdiff_t)i * step,
                                        row->dtype));
}

size_t slm_ref_first_nonfinite(const slm_tensor *tensor)
{
    const size_t count = slm_tensor_count(tensor);
    size_t i = 0;

    while (i < count && isfinite(slm_ref_get(tensor, i))) i++;
    return i;
}

size_t slm_ref_first_unreal(arb_srcptr value, size_t n)
{
    size_t i = 0;

    while (i < n && arb_is_finite(value + i)) i++;
    return i;
}
