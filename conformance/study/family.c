/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/family.c - the four input families that rules are compared on. */
#include "family.h"

#include "../compare.h"
#include "../seeded.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The values of one tensor: add + amplitude U, U uniform in (-1, 1) with `bits` bits; or
 * for 0 bits, bell-shaped with the same deviation, rounded to the element type, so that
 * sums of products round. 0 everywhere: left out, or zeros. */
typedef struct blend {
    const char *field;
    double amplitude;
    double add;
    unsigned bits;
} blend;

enum { BLENDS = 12, CHANGES = 5 };

/* Stages of the order of 1: the deviation is 0.58 amplitude. */
static const blend unit[BLENDS] = {
    {"x", 2, 0, 0},
    {"w_router", 0x1p-2, 0, 0},
    {"bias", 0x1p-3, 0, 0},
    {"w_down", 0x1p-3, 0, 0},
    {"w_gate", 0x1p-2, 0, 0},
    {"w_up", 0x1p-2, 0, 0},
    {"w_out", 0x1p-1, 0, 0},
    {"gamma", 0x1p-2, 1, 5},
    {"w_lift", 0x1p-2, 0, 0},
    {"w_shared_gate", 0x1p-3, 0, 0},
    {"w_shared_up", 0x1p-3, 0, 0},
    {"w_shared_out", 0x1p-2, 0, 0},
};

/* What a case changes of that. */
static const struct {
    study_family family;
    const char *name;
    size_t n_tokens;
    blend changes[CHANGES];
} cases[] = {
    {STUDY_UNIT, "unit", 9, {{0}}},
    {STUDY_TINY, "tiny-aggregate", 4, {{"w_out", 0x1p-10, 0, 0}}},
    {STUDY_TINY,
     "tiny-gates",
     4,
     {{"w_gate", 0x1p-18, 0, 0},
      {"w_up", 0x1p-18, 0, 0},
      {"w_out", 0x1p22, 0, 0},
      {"gamma", 0, 0, 0}}},
    {STUDY_LARGE,
     "saturated",
     3,
     {{"w_gate", 0x1p5, 0, 0},
      {"w_up", 0x1p8, 0, 0},
      {"w_shared_gate", 0x1p4, 0, 0},
      {"w_shared_up", 0x1p7, 0, 0}}},
    {STUDY_LARGE, /* every hs between 0.95 and 0.999 of its cap */
     "capped",
     4,
     {{"x", 1, 1, 0},
      {"w_gate", 4, 0, 0},
      {"w_up", 8, 0, 0},
      {"w_shared_gate", 0x1p-3, 0.1, 0},
      {"w_shared_up", 0x1p-1, 0.6, 0}}},
    {STUDY_LARGE,
     "low-scores",
     3,
     {{"x", 1, 1, 6}, {"w_router", 0x1p-2, -0.5, 6}, {"bias", 0, 0, 0}}},
    {STUDY_NEAR,
     "large-bias",
     5,
     {{"x", 2, 0, 3}, {"w_router", 0x1p-1, 0, 3}, {"bias", 0x1p-5, 0x1p17, 1}}},
    {STUDY_NEAR,
     "negative-bias",
     3,
     {{"x", 2, 0, 3}, {"w_router", 0x1p-1, 0, 3}, {"bias", 0x1p-3, -2, 0}}},
    {STUDY_NEAR, "huge-bias", 3, {{"bias", 0x1p114, 0x1p127, 10}}},
};

const char *study_family_name(study_family family)
{
    static const char *const names[STUDY_FAMILIES] = {"unit scale", "tiny aggregate",
                                                      "saturating", "near tie"};

    return names[family];
}

size_t study_n_cases(void)
{
    return sizeof cases / sizeof *cases;
}

study_family study_family_of(size_t index)
{
    return cases[index].family;
}

static const blend *changed(size_t index, const blend *plain)
{
    for (size_t i = 0; i < CHANGES; i++) {
        const blend *change = &cases[index].changes[i];

        if (change->field && strcmp(change->field, plain->field) == 0) return change;
    }
    return plain;
}

/* The sum of four uniform numbers, of deviation 0.58. */
static double bell(uint64_t seed, const char *field, uint64_t index)
{
    double sum = 0;

    for (uint64_t i = 0; i < 4; i++)
        sum += 0x1p-24 * seeded_integer(seed + (i << 32), field, index, 23);
    return sum;
}

static void fill(made_case *made, const blend *one, uint64_t seed)
{
    const vec_recipe recipe = {.seed = seed,
                               .bits = one->bits,
                               .scale = ldexp(one->amplitude, -(int)one->bits),
                               .add = one->add};
    const size_t index = made->test.n_in;
    const int narrow =
        made->test.config.dtype == SLM_BF16 && strcmp(one->field, "bias") != 0;
    float *values;

    if (one->bits) {
        made_recipe(made, one->field, &recipe);
        return;
    }
    values = made_values(made, one->field);
    for (size_t i = 0; i < made->in[index].count; i++)
        values[i] =
            (float)compare_round(one->add + one->amplitude * bell(seed, one->field, i),
                                 narrow ? SLM_BF16 : SLM_F32);
}

void study_make(made_case *made, size_t index, slm_dtype dtype, uint64_t seed)
{
    slm_config *config = &made->test.config;

    made_begin(made, SLM_OP_layer_forward, "paper");
    snprintf(made->id, sizeof made->id, "study/%s", cases[index].name);
    config->d_model = 100;
    config->d_latent = 52;
    config->n_experts = 24;
    config->top_k = 4;
    config->d_expert = 20;
    config->n_shared = 2;
    config->d_shared = 20;
    config->dtype = dtype;
    made->test.call.n_tokens = cases[index].n_tokens;
    for (size_t i = 0; i < BLENDS; i++) {
        const blend *one = changed(index, &unit[i]);

        if (one->amplitude == 0 && strcmp(one->field, "gamma") == 0) continue;
        fill(made, one, seed);
    }
}
