/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/mutants.c - one table an entry of mutants.def and variants.def. */
#include "mutants.h"

#include <string.h>

#include "scalar.h"

/* Relative errors in units of 2^-24. Seen over every 23rd binary32 with glibc 2.36:
 * sigmoid 3.0, tanh 2.9, tanh from expm1 2.8. */
#define SIGMOID 4
#define TANH 4

#define RUN(name, level, purpose)                                                      \
    static slm_status run_##name(slm_handle *handle, const slm_##name##_args *args,    \
                                 slm_error *error)                                     \
    {                                                                                  \
        return scalar_report(handle, scalar_##name(handle, args, error), error);       \
    }
SLM_OPS(RUN)
#undef RUN

static const slm_ops operations = {.struct_size = sizeof operations,
#define MEMBER(name, level, purpose) .name = run_##name,
                                   SLM_OPS(MEMBER)
#undef MEMBER
};

#define TABLE(label, own_flags, opener, declared)                                      \
    {                                                                                  \
        .struct_size = sizeof(slm_backend), .abi_major = SLM_ABI_MAJOR,                \
        .abi_minor = SLM_ABI_MINOR, .name = label, .version = "1",                     \
        .flags = SLM_DETERMINISTIC | SLM_BATCH_INVARIANT | SLM_STRIDED | (own_flags),  \
        .levels = SLM_LEVEL_INFER | SLM_LEVEL_TRAIN | SLM_LEVEL_DIST,                  \
        .arithmetic = &(declared), .ops = &operations, .open = opener,                 \
        .close = scalar_close, .prepare = scalar_prepare,                              \
        .workspace = scalar_workspace                                                  \
    }

/* The variant that a mutant is built on: the last of the list check their arguments. */
#define BASE(id)                                                                       \
    (MUTANT_##id < MUTANT_refusal_missing ? VARIANT_sequential : VARIANT_own_door)
#define DOOR(id) (MUTANT_##id < MUTANT_refusal_missing ? 0 : SLM_CHECKS_ARGUMENTS)

/* A table carries no state of its own, so each has its own open(). */
#define X(id, name, own_flags, sentence, ...)                                          \
    static slm_status open_variant_##id(const slm_config *config, slm_handle **handle, \
                                        slm_error *error)                              \
    {                                                                                  \
        return scalar_open(config, VARIANT_##id, MUTANT_NONE, handle, error);          \
    }
#include "variants.def"
#undef X
#define X(id, name, clause, sentence)                                                  \
    static slm_status open_mutant_##id(const slm_config *config, slm_handle **handle,  \
                                       slm_error *error)                               \
    {                                                                                  \
        return scalar_open(config, BASE(id), MUTANT_##id, handle, error);              \
    }
#include "mutants.def"
#undef X

static const slm_arithmetic arithmetics[] = {
#define X(id, name, own_flags, sentence, ...)                                          \
    {.struct_size = sizeof(slm_arithmetic), __VA_ARGS__},
#include "variants.def"
#undef X
};

static const slm_backend variant_tables[] = {
#define X(id, name, own_flags, sentence, ...)                                          \
    TABLE("variant:" name, own_flags, open_variant_##id, arithmetics[VARIANT_##id]),
#include "variants.def"
#undef X
};

static const slm_backend mutant_tables[] = {
#define X(id, name, clause, sentence)                                                  \
    TABLE("mutant:" name, DOOR(id), open_mutant_##id, arithmetics[VARIANT_sequential]),
#include "mutants.def"
#undef X
};

static const slm_variant_info variants[] = {
#define X(id, name, own_flags, sentence, ...)                                          \
    {name, sentence, &variant_tables[VARIANT_##id]},
#include "variants.def"
#undef X
};

static const slm_mutant_info mutants[] = {
#define X(id, name, clause, sentence)                                                  \
    {name, clause, sentence, &mutant_tables[MUTANT_##id - 1]},
#include "mutants.def"
#undef X
};

size_t slm_mutant_count(void)
{
    return sizeof mutants / sizeof *mutants;
}

size_t slm_variant_count(void)
{
    return sizeof variants / sizeof *variants;
}

const slm_mutant_info *slm_mutant_info_at(size_t index)
{
    return index < slm_mutant_count() ? &mutants[index] : NULL;
}

const slm_variant_info *slm_variant_info_at(size_t index)
{
    return index < slm_variant_count() ? &variants[index] : NULL;
}

const slm_backend *slm_mutant_find(const char *name)
{
    for (size_t i = 0; i < slm_mutant_count(); i++)
        if (strcmp(mutants[i].name, name) == 0) return mutants[i].table;
    return NULL;
}

const slm_backend *slm_variant_find(const char *name)
{
    for (size_t i = 0; i < slm_variant_count(); i++)
        if (strcmp(variants[i].name, name) == 0) return variants[i].table;
    return NULL;
}
