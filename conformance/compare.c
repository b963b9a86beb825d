/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/compare.c - one element against what it must be, and its words. */
#include "compare.h"

#include <math.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "comparisons must see NaN: build them without -ffast-math"
#endif

/* Byte address of an element by its row-major index. */
static const unsigned char *address(const slm_tensor *tensor, size_t index)
{
    ptrdiff_t at = 0;

    for (uint32_t i = tensor->rank; i-- > 0;) {
        at += (ptrdiff_t)(index % tensor->shape[i]) * tensor->stride[i];
        index /= tensor->shape[i];
    }
    return (const unsigned char *)tensor->data +
           at * (ptrdiff_t)slm_dtype_size(tensor->dtype);
}

int64_t compare_integer(const slm_tensor *tensor, size_t index)
{
    const unsigned char *at = address(tensor, index);
    int64_t wide;
    int32_t narrow;

    if (tensor->dtype == SLM_I64) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

int compare_same(double got, double want)
{
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
    return got == want;
}

double compare_round(double golden, slm_dtype dtype)
{
    uint16_t upper;
    uint32_t bits;
    float value;
    arb_t exact;

    if (dtype == SLM_F32) return (double)(float)golden;
    if (dtype != SLM_BF16 || !isfinite(golden)) return golden;
    arb_init(exact);
    arb_set_d(exact, golden);
    slm_ref_bf16(&upper, exact);
    arb_clear(exact);
    bits = (uint32_t)upper << 16;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* The smallest magnitude that a format rounds to infinity, in *out. */
static void overflow_threshold(arf_t out, slm_dtype dtype)
{
    const slong top = dtype == SLM_F64 ? 1024 : 128;
    const slong digits = dtype == SLM_F64 ? 53 : dtype == SLM_BF16 ? 8 : 24;
    arf_t step;

    arf_init(step);
    arf_set_si_2exp_si(out, 1, top);
    arf_set_si_2exp_si(step, 1, top - digits - 1);
    arf_sub(out, out, step, ARF_PREC_EXACT, ARF_RND_DOWN);
    arf_clear(step);
}

double compare_distance(double got, const arb_t want, slm_dtype dtype)
{
    double distance;
    arf_t at;
    arb_t off;

    if (isnan(got)) return INFINITY;
    arf_init(at);
    arb_init(off);
    if (isinf(got)) {
        overflow_threshold(at, dtype);
        arb_set(off, want);
        if (got < 0) arb_neg(off, off);
        arb_sub_arf(off, off, at, 256);
        if (arb_is_nonnegative(off)) arb_zero(off);
    } else {
        arf_set_d(at, got);
        arb_sub_arf(off, want, at, 256);
    }
    arb_get_abs_lbound_arf(at, off, 64);
    distance = arf_get_d(at, ARF_RND_DOWN);
    arb_clear(off);
    arf_clear(at);
    return distance;
}

slm_tensor compare_golden_view(const vec_tensor *golden)
{
    return slm_tensor_packed(golden->values, golden->dtype, golden->rank,
                             golden->shape);
}

int compare_is_fixed(const vec_tensor *golden, size_t index)
{
    return golden && golden->values && index < golden->count &&
           !(golden->any && golden->any[index]);
}

int compare_digest(const slm_tensor *got, const vec_tensor *golden)
{
    char hex[65];

    vec_sha256(got->data, slm_tensor_count(got) * slm_dtype_size(got->dtype), hex);
    return strcmp(hex, golden->sha256) == 0;
}

void compare_say(char *out, double value)
{
    if (isfinite(value))
        snprintf(out, COMPARE_TEXT, "%a (%.9g)", value, value);
    else
        snprintf(out, COMPARE_TEXT, "%s",
                 isnan(value) ? "nan"
                 : value > 0  ? "inf"
                              : "-inf");
}

void compare_say_want(char *out, double value, double bound)
{
    char number[COMPARE_TEXT];

    compare_say(number, value);
    if (bound > 0)
        snprintf(out, COMPARE_WANT, "%s +- %.3g", number, bound);
    else
        snprintf(out, COMPARE_WANT, "%s", number);
}

void compare_say_place(char *out, const char *field, const slm_tensor *tensor,
                       size_t index)
{
    size_t at[SLM_MAX_RANK];
    int n = snprintf(out, COMPARE_PLACE, "%s[", field);

    for (uint32_t i = tensor->rank; i-- > 0;) {
        at[i] = index % tensor->shape[i];
        index /= tensor->shape[i];
    }
    for (uint32_t i = 0; i < tensor->rank && n < COMPARE_PLACE; i++)
        n += snprintf(out + n, (size_t)(COMPARE_PLACE - n), "%s%zu", i ? "," : "",
                      at[i]);
    if (n < COMPARE_PLACE) snprintf(out + n, (size_t)(COMPARE_PLACE - n), "]");
}
