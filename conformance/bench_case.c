/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_case.c - the arguments of a timed call. */
#include "bench_case.h"
#include "seeded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* j has at most 8 bits where bf16 must hold it, else 23. */
static unsigned bits_of(const slm_config *config, const slm_field *field)
{
    return slm_field_dtype(field, config) == SLM_BF16 ? 8 : 23;
}

/* Values between -2^exponent and 2^exponent, about `add`. */
static vec_recipe uniform(uint64_t seed, unsigned bits, int exponent, double add)
{
    return (vec_recipe){.seed = seed,
                        .bits = bits,
                        .scale = ldexp(1, exponent - (int)bits),
                        .add = add};
}

/* A matrix [.., inner] keeps the variance of what it is applied to, about. */
static int matrix_exponent(size_t inner)
{
    return (int)lround(0.5 * log2(3.0 / (double)(inner ? inner : 1)));
}

static vec_recipe recipe_of(const vec_tensor *tensor, const slm_config *config,
                            uint64_t seed)
{
    const slm_field *field = tensor->field;
    const unsigned bits = bits_of(config, field);

    if (strcmp(field->name, "score") == 0) return uniform(seed, 23, -1, 0.5);
    if (strcmp(field->name, "gamma") == 0) return uniform(seed, 5, -2, 1);
    if (strcmp(field->name, "bias") == 0) return uniform(seed, 10, -6, 0);
    if (strcmp(field->name, "gate_up") == 0) return uniform(seed, bits, 2, 0);
    if (strncmp(field->name, "w_", 2) == 0)
        return uniform(seed, bits, matrix_exponent(tensor->shape[tensor->rank - 1]), 0);
    return uniform(seed, bits, 0, 0);
}

/* k different ones of n for each token. */
static int32_t *draw_ids(const slm_config *config, size_t n_tokens, uint64_t seed)
{
    const size_t n = config->n_experts, k = config->top_k;
    int32_t *ids = malloc(n_tokens * k * sizeof *ids + 1);
    int32_t *pool = malloc(n * sizeof *pool + 1);

    for (size_t e = 0; pool && e < n; e++) pool[e] = (int32_t)e;
    for (size_t i = 0; ids && pool && i < n_tokens * k; i++) {
        const size_t q = i % k;
        const int32_t j = seeded_integer(seed, "ids", i, 23) + (1 << 23);
        const size_t other = q + (size_t)j % (n - q);
        const int32_t taken = pool[other];

        pool[other] = pool[q];
        ids[i] = pool[q] = taken;
    }
    free(pool);
    if (pool) return ids;
    free(ids);
    return NULL;
}

int bench_is_weight(const vec_tensor *tensor)
{
    size_t n;
    const slm_field *weights = slm_weight_fields(&n);

    return tensor->field >= weights && tensor->field < weights + n;
}

/* What a bench gives: every input, but no mask, and of score and logit the score. */
static int is_given(slm_op op, const slm_field *field, const slm_config *config)
{
    if (!slm_field_applies(field, config) || field->role == SLM_ROLE_OUT ||
        field->role == SLM_ROLE_TAP || strcmp(field->name, "mask") == 0)
        return 0;
    return op != SLM_OP_select || strcmp(field->name, "logit") != 0;
}

static int add(bench_case *out, const slm_field *field, uint64_t layer_seed,
               uint64_t seed)
{
    vec_tensor *tensor = &out->in[out->test.n_in];
    const slm_config *config = &out->test.config;

    if (out->test.n_in == BENCH_CASE_INPUTS) return 0;
    *tensor = (vec_tensor){.field = field,
                           .form = VEC_GEN,
                           .dtype = slm_field_dtype(field, config),
                           .rank = (uint32_t)strlen(field->dims),
                           .count = 1};
    if (tensor->dtype == SLM_BF16) tensor->dtype = SLM_F32;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (!slm_dim(config, &out->test.call, field->dims[i], &tensor->shape[i]) ||
            __builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count))
            return 0;
    }
    out->test.n_in++;
    if (tensor->dtype == SLM_F32) {
        tensor->recipe =
            recipe_of(tensor, config, bench_is_weight(tensor) ? layer_seed : seed);
        return 1;
    }
    tensor->form = VEC_DATA;
    if (tensor->dtype == SLM_I32)
        tensor->values = draw_ids(config, out->test.call.n_tokens, seed);
    else
        tensor->values = calloc(tensor->count + 1, slm_dtype_size(tensor->dtype));
    return tensor->values != NULL;
}

int bench_case_make(bench_case *out, slm_op op, const slm_config *config,
                    size_t n_tokens, size_t layer, size_t place)
{
    const slm_op_info *info = slm_op_describe(op);
    size_t n_weights;
    const slm_field *weights = slm_weight_fields(&n_weights);
    const uint64_t layer_seed = 1 + layer, seed = 1001 + place;
    int ok = 1;

    memset(out, 0, sizeof *out);
    out->test.id = (char *)(uintptr_t) "bench";
    out->test.op = op;
    out->test.config = *config;
    out->test.config.balance = SLM_BALANCE_RELAXED;
    out->test.call.n_tokens = n_tokens;
    out->test.tier = VEC_FULL;
    out->test.n_outcomes = 1;
    out->test.outcomes = &out->anything;
    out->test.in = out->in;
    for (size_t i = 0; ok && i < info->n_fields; i++)
        if (is_given(op, &info->fields[i], config))
            ok = add(out, &info->fields[i], layer_seed, seed);
    for (size_t i = 0; ok && info->prepared && i < n_weights; i++)
        if (is_given(op, &weights[i], config))
            ok = add(out, &weights[i], layer_seed, seed);
    if (!ok) bench_case_free(out);
    return ok;
}

void bench_case_free(bench_case *made)
{
    for (size_t i = 0; i < made->test.n_in; i++) free(made->in[i].values);
    memset(made, 0, sizeof *made);
}

size_t bench_count_experts(const int32_t *ids, size_t n, unsigned char *seen,
                           size_t n_experts)
{
    unsigned char *here = calloc(n_experts + 1, 1);
    size_t different = 0;

    for (size_t i = 0; here && i < n; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= n_experts) continue;
        different += !here[ids[i]];
        here[ids[i]] = seen[ids[i]] = 1;
    }
    free(here);
    return different;
}
