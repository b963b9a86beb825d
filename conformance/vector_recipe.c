/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_recipe.c - `gen` of a golden vector: a recipe that stays exact. */
#include "vector_load.h"

#include "vector_number.h"

#include <math.h>
#include <string.h>

enum { KEY_SEED, KEY_BITS, KEY_SCALE, KEY_ADD, N_KEYS };
static const char *const keys[N_KEYS] = {"seed", "bits", "scale", "add"};

enum { MAX_DIGEST = 1 << 26 }; /* elements that a digest is made over */

/* The power of two that a number is an odd multiple of. value is not 0. */
static int lowest_bit(double value)
{
    int exponent;
    double odd = ldexp(frexp(value, &exponent), 53);

    exponent -= 53;
    while (fmod(odd, 2) == 0) {
        odd /= 2;
        exponent++;
    }
    return exponent;
}

/* Whether add + scale j is a value of the type for every |j| <= most. All values are
 * multiples of 2^step; within 2^p of them every multiple is exact. */
static bool is_exact(const vec_recipe *recipe, double most, slm_dtype type)
{
    const int scale = lowest_bit(recipe->scale);
    const int add = recipe->add == 0 ? scale : lowest_bit(recipe->add);
    const int step = add < scale ? add : scale;
    const double reach = ldexp(fabs(recipe->add), -step) + ldexp(most, scale - step);

    switch (type) {
    case SLM_I32:
        return step >= 0 && ldexp(reach, step) <= (double)INT32_MAX;
    case SLM_I64:
        return step >= 0 && ldexp(reach, step) <= 0x1p53;
    case SLM_BF16:
        return step >= -133 && reach <= 0x1p8 && ldexp(reach, step) < 0x1p128;
    default:
        return step >= -149 && reach <= 0x1p24 && ldexp(reach, step) < 0x1p128;
    }
}

static int read_real(loader *ld, const tree_node *node, const char *what, double *out)
{
    char why[NUMBER_WHY];

    if (node->kind != TREE_SCALAR || node->style != TREE_PLAIN || node->size == 0)
        return load_unexpected(ld, node, what, "a hexadecimal float");
    if (number_real(node->text, SLM_F64, out, why)) return 1;
    return load_fault(ld, &node->begin, "%s: %s", what, why);
}

static int read_scale(loader *ld, const tree_node *node, const char *what, double *out)
{
    int exponent;

    if (!read_real(ld, node, what, out)) return 0;
    if (isfinite(*out) && frexp(*out, &exponent) == 0.5) return 1;
    return load_unexpected(ld, node, what, "a power of two like 0x1p-4");
}

static int read_add(loader *ld, const tree_node *node, const char *what,
                    slm_dtype dtype, double *out)
{
    char why[NUMBER_WHY];
    int64_t integer;

    if (dtype != SLM_I32 && dtype != SLM_I64) {
        if (!read_real(ld, node, what, out)) return 0;
        return isfinite(*out) ? 1 : load_unexpected(ld, node, what, "a finite number");
    }
    if (node->kind != TREE_SCALAR || node->style != TREE_PLAIN || node->size == 0)
        return load_unexpected(ld, node, what, "a decimal integer");
    if (!number_integer(node->text, dtype, &integer, why))
        return load_fault(ld, &node->begin, "%s: %s", what, why);
    *out = (double)integer;
    return fabs(*out) <= 0x1p53
               ? 1
               : load_unexpected(ld, node, what, "an integer within 2^53");
}

static int read_bits(loader *ld, const tree_node *node, const char *what, unsigned *out)
{
    uint64_t bits;

    if (!load_size(ld, node, what, &bits)) return 0;
    if (bits < 1 || bits > 23) return load_unexpected(ld, node, what, "1 to 23");
    *out = (unsigned)bits;
    return 1;
}

static int read_keys(loader *ld, const tree_node *node, const char *what,
                     const tree_node **found, vec_tensor *out)
{
    vec_recipe *recipe = &out->recipe;
    char where[N_KEYS][SLM_NAME + 24];

    for (size_t i = 0; i < N_KEYS; i++) {
        snprintf(where[i], sizeof where[i], "%s.%s", what, keys[i]);
        if (!found[i] && i != KEY_ADD)
            return load_fault(ld, &node->begin, "%s is missing", where[i]);
    }
    return load_size(ld, found[KEY_SEED], where[KEY_SEED], &recipe->seed) &&
           read_bits(ld, found[KEY_BITS], where[KEY_BITS], &recipe->bits) &&
           read_scale(ld, found[KEY_SCALE], where[KEY_SCALE], &recipe->scale) &&
           (!found[KEY_ADD] ||
            read_add(ld, found[KEY_ADD], where[KEY_ADD], out->dtype, &recipe->add));
}

int load_recipe(loader *ld, const tree_node *node, const char *what, slm_dtype fit,
                vec_tensor *out)
{
    const tree_node *found[N_KEYS];
    char where[SLM_NAME + 16];

    out->form = VEC_GEN;
    snprintf(where, sizeof where, "%s.gen", what);
    if (!load_keys(ld, node, where, keys, N_KEYS, found) ||
        !read_keys(ld, node, where, found, out))
        return 0;
    if (!is_exact(&out->recipe, (double)((1u << out->recipe.bits) - 1), fit))
        return load_fault(ld, &node->begin,
                          "%s: add + scale * j of %u bits is not always a value of %s",
                          where, out->recipe.bits, slm_dtype_name(fit));
    if (out->sha256[0] && out->count > MAX_DIGEST)
        return load_fault(ld, &node->begin,
                          "%s: %zu elements are too many for a sha256, at most %d",
                          what, out->count, MAX_DIGEST);
    return 1;
}
