/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/declared.c - declared arithmetic in words. */
#include "declared.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *declared_stage(slm_stage stage)
{
    static const char *const names[SLM_STAGE_COUNT] = {
        "logit", "score", "weight", "z", "h", "o", "u", "r", "hs", "y"};

    return (unsigned)stage < SLM_STAGE_COUNT ? names[stage] : "unknown stage";
}

__attribute__((format(printf, 2, 3))) static void add(char *out, const char *format,
                                                      ...)
{
    const size_t used = strlen(out);
    va_list list;

    va_start(list, format);
    vsnprintf(out + used, DECLARED_TEXT - used, format, list);
    va_end(list);
}

/* 1 and the exponent when the value is a power of two. */
static int is_power(double value, int *exponent)
{
    const int power = frexp(value, exponent) == 0.5;

    *exponent -= 1;
    return power;
}

static void add_roundoff(char *out, double value)
{
    int exponent;

    if (!(value > 0))
        add(out, "exact");
    else if (is_power(value, &exponent))
        add(out, "2^%d", exponent);
    else
        add(out, "%.4g", value);
}

/* An error in units of 2^-24. */
static void add_units(char *out, double error)
{
    int exponent;

    if (is_power(error, &exponent))
        add(out, "2^%d", exponent - 24);
    else
        add(out, "%.4g x 2^-24", error);
}

static void add_function(char *out, const char *name, double error)
{
    if (!(error > 0)) return;
    add(out, ", %s within ", name);
    add_units(out, error);
}

void declared_words(const slm_arithmetic *arithmetic, char out[DECLARED_TEXT])
{
    snprintf(out, DECLARED_TEXT, "accumulator ");
    add_roundoff(out, arithmetic->accumulator);
    add(out, ", inputs ");
    if (arithmetic->input > 0) add(out, "rounded at ");
    add_roundoff(out, arithmetic->input);
    for (int i = 0; i < SLM_STAGE_COUNT; i++)
        if (arithmetic->store[i] > 0) {
            add(out, ", %s stored at ", declared_stage((slm_stage)i));
            add_roundoff(out, arithmetic->store[i]);
        }
    if (arithmetic->store_gradient > 0) {
        add(out, ", gradients of activations stored at ");
        add_roundoff(out, arithmetic->store_gradient);
    }
    if (arithmetic->store_weight_gradient > 0) {
        add(out, ", gradients of weights stored at ");
        add_roundoff(out, arithmetic->store_weight_gradient);
    }
    add_function(out, "sigmoid", arithmetic->sigmoid_ulp);
    add_function(out, "tanh", arithmetic->tanh_ulp);
    if (arithmetic->tanh_abs > 0) {
        add(out, arithmetic->tanh_ulp > 0 ? " plus " : ", tanh within ");
        add_units(out, arithmetic->tanh_abs);
        add(out, " absolute");
    }
    add_function(out, "1/sqrt", arithmetic->rsqrt_ulp);
    add(out, ", balancing ");
    add_roundoff(out, arithmetic->balance > 0 ? arithmetic->balance : 0x1p-53);
    add(out, arithmetic->flushes_subnormals ? ", flushes subnormals to 0"
                                            : ", keeps subnormals");
}
