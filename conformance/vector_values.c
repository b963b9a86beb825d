/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_values.c - values of loaded tensors, their digests, and names. */
#include "vector.h"

#include "seeded.h"
#include "yaml_tree.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* Integers stay exact: the loader keeps add + scale j within 2^53. */
static void make_integers(const vec_tensor *tensor, size_t first, size_t n, void *out)
{
    const vec_recipe *recipe = &tensor->recipe;

    for (size_t i = 0; i < n; i++) {
        const double value =
            recipe->add + recipe->scale * seeded_integer(recipe->seed,
                                                         tensor->field->name, first + i,
                                                         recipe->bits);

        if (tensor->dtype == SLM_I32)
            ((int32_t *)out)[i] = (int32_t)value;
        else
            ((int64_t *)out)[i] = (int64_t)value;
    }
}

void vec_values_range(const vec_tensor *tensor, size_t first, size_t n, void *out)
{
    const size_t size = slm_dtype_size(tensor->dtype);
    const vec_recipe *recipe = &tensor->recipe;

    if (n == 0) return;
    if (tensor->form != VEC_GEN)
        memcpy(out, (const char *)tensor->values + first * size, n * size);
    else if (tensor->dtype == SLM_F32)
        seeded_values(recipe->seed, tensor->field->name, first, n, recipe->bits,
                      recipe->scale, recipe->add, out);
    else
        make_integers(tensor, first, n, out);
}

void vec_values(const vec_tensor *tensor, void *out)
{
    vec_values_range(tensor, 0, tensor->count, out);
}

const vec_tensor *vec_find(const vec_tensor *tensors, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(tensors[i].field->name, name) == 0) return &tensors[i];
    return NULL;
}

const char *vec_provenance_name(vec_provenance provenance)
{
    static const char *const names[VEC_PROVENANCES] = {"hand", "document", "oracle",
                                                       "ref", "public-report"};

    return (unsigned)provenance < VEC_PROVENANCES ? names[provenance]
                                                  : "unknown provenance";
}

const char *vec_tier_name(vec_tier tier)
{
    static const char *const names[VEC_TIERS] = {"smoke", "quick", "full"};

    return (unsigned)tier < VEC_TIERS ? names[tier] : "unknown tier";
}

static void write_hex(const unsigned char *digest, char *out)
{
    for (size_t i = 0; i < 64; i++)
        out[i] = "0123456789abcdef"[i % 2 ? digest[i / 2] & 15 : digest[i / 2] >> 4];
    out[64] = '\0';
}

void vec_sha256(const void *data, size_t size, char *out)
{
    unsigned char digest[EVP_MAX_MD_SIZE] = {0};

    out[0] = 0;
    if (EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL))
        write_hex(digest, out);
}

enum { CHUNK = 1 << 13 };

/* Digest of a recipe's elements without keeping them. 0 when libcrypto fails. */
static int digest_recipe(const vec_tensor *tensor, char *out)
{
    const size_t size = slm_dtype_size(tensor->dtype);
    unsigned char digest[EVP_MAX_MD_SIZE];
    double chunk[CHUNK];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int good = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL);

    for (size_t first = 0; good && first < tensor->count; first += CHUNK) {
        const size_t left = tensor->count - first;
        const size_t n = left < CHUNK ? left : CHUNK;

        vec_values_range(tensor, first, n, chunk);
        good = EVP_DigestUpdate(context, chunk, n * size);
    }
    good = good && EVP_DigestFinal_ex(context, digest, NULL);
    EVP_MD_CTX_free(context);
    if (good) write_hex(digest, out);
    return good;
}

/* Whether an earlier case of the family has this very node: a default of the family. */
static bool seen_before(const vec_family *family, size_t n_cases,
                        const vec_tensor *tensor)
{
    for (size_t i = 0; i < n_cases; i++)
        for (size_t j = 0; j < family->cases[i].n_in; j++) {
            const vec_tensor *other = &family->cases[i].in[j];

            if (other->begin.byte == tensor->begin.byte &&
                other->dtype == tensor->dtype)
                return true;
        }
    return false;
}

static int verify_tensor(const vec_family *family, const vec_tensor *tensor,
                         vec_error *error)
{
    char digest[65];

    if (!digest_recipe(tensor, digest))
        return vec_fault(error, family->path, NULL, "libcrypto makes no SHA-256");
    if (strcmp(digest, tensor->sha256) == 0) return 1;
    vec_fault(error, family->path, &tensor->begin,
              "in.%s: the recipe's sha256 is %s, the file says %s", tensor->field->name,
              digest, tensor->sha256);
    snprintf(error->remedy, sizeof error->remedy,
             "the recipe or the generator has changed; neither may");
    return 0;
}

int vec_verify(const vec_set *set, vec_error *error)
{
    for (size_t i = 0; i < set->n_families; i++) {
        const vec_family *family = &set->families[i];

        for (size_t j = 0; j < family->n_cases; j++)
            for (size_t k = 0; k < family->cases[j].n_in; k++) {
                const vec_tensor *tensor = &family->cases[j].in[k];

                if (tensor->form == VEC_GEN && tensor->sha256[0] &&
                    !seen_before(family, j, tensor) &&
                    !verify_tensor(family, tensor, error))
                    return 0;
            }
    }
    return 1;
}
