/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/registry.c - the only place that knows the built-in backends. */
#include "registry.h"
#include "mutants/mutants.h"

#include <string.h>

#include <ref.h>
#ifdef SLM_WITH_BLAS
#include <cpu.h>
#endif

static const struct {
    const char *name;
    const slm_backend *(*table)(void);
    const char *missing;
} backends[] = {
    {"ref", slm_ref_backend, NULL},
#ifdef SLM_WITH_BLAS
    {"cpu-blas", slm_cpu_blas_backend, NULL},
#else
    {"cpu-blas", NULL, "OpenBLAS was not found when slmoe was built"},
#endif
};

enum { N_BACKENDS = sizeof backends / sizeof *backends };

const slm_backend *registry_find(const char *name)
{
    for (size_t i = 0; i < N_BACKENDS; i++)
        if (backends[i].table && strcmp(backends[i].name, name) == 0)
            return backends[i].table();
    if (strncmp(name, "mutant:", 7) == 0) return slm_mutant_find(name + 7);
    if (strncmp(name, "variant:", 8) == 0) return slm_variant_find(name + 8);
    return NULL;
}

const char *registry_name(size_t index)
{
    return index < N_BACKENDS ? backends[index].name : NULL;
}

const char *registry_missing(const char *name)
{
    for (size_t i = 0; i < N_BACKENDS; i++)
        if (strcmp(backends[i].name, name) == 0) return backends[i].missing;
    return NULL;
}
