/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/registry.c - the only place that knows the built-in backends. */
#include "registry.h"
#include "builtins.h"
#include "mutants/mutants.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cpu.h>
#include <ref.h>

#ifndef SLM_WITH_GPU
#define NO_GPU "nvcc was not found when slmoe was built"
#else
#define NO_GPU NULL
#endif
#ifndef SLM_WITH_GPU_EMU
#define NO_GPU_EMU                                                                     \
    "CUDA's headers, OpenBLAS or an x86-64 were not found when slmoe was built"
#else
#define NO_GPU_EMU NULL
#endif

/* Those at the end, from PEERS on, are there to be compared with: they are known by name,
 * and left out where every backend is meant. */
static const struct {
    const char *name;
    const slm_backend *(*table)(void);
    const char *library; /* instead of the table                       */
    const char *missing; /* why it has neither, or NULL                */
} backends[] = {
    {"ref", slm_ref_backend, NULL, NULL},
    {"cpu", slm_cpu_backend, NULL, NULL},
#ifdef SLM_WITH_BLAS
    {"cpu-blas", slm_cpu_blas_backend, NULL, NULL},
#else
    {"cpu-blas", NULL, NULL, "OpenBLAS was not found when slmoe was built"},
#endif
    {"gpu", NULL, "libslm-gpu.so", NO_GPU},
    {"gpu-emu", NULL, "libslm-gpu-emu.so", NO_GPU_EMU},
    {"gpu-loop", NULL, "libslm-gpu-loop.so", NO_GPU},
    {"gpu-loop-emu", NULL, "libslm-gpu-loop-emu.so", NO_GPU_EMU},
};

enum { N_BACKENDS = sizeof backends / sizeof *backends, PEERS = N_BACKENDS - 2 };

const slm_backend *registry_find(const char *name)
{
    for (size_t i = 0; i < N_BACKENDS; i++)
        if (backends[i].table && strcmp(backends[i].name, name) == 0)
            return backends[i].table();
    if (strncmp(name, "mutant:", 7) == 0) return slm_mutant_find(name + 7);
    if (strncmp(name, "variant:", 8) == 0) return slm_variant_find(name + 8);
    return NULL;
}

slm_phase_getter *registry_phases(const char *name)
{
    return strcmp(name, "cpu") == 0 ? slm_cpu_phases : NULL;
}

const char *registry_name(size_t index)
{
    return index < PEERS ? backends[index].name : NULL;
}

/* Beside this program, or where an installed one has its libraries. */
static const char *find_library(const char *file)
{
    static const char *const places[] = {"", SLM_LIBRARIES_FROM_BIN "/"};
    static char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 512);
    char *end;

    path[length > 0 ? length : 0] = '\0';
    end = strrchr(path, '/');
    if (!end) return NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(end, (size_t)(path + sizeof path - end), "/%s%s", places[i], file);
        if (access(path, R_OK) == 0) return path;
    }
    return NULL;
}

const char *registry_library(const char *name)
{
    for (size_t i = 0; i < N_BACKENDS; i++)
        if (strcmp(backends[i].name, name) == 0)
            return backends[i].library && !backends[i].missing
                       ? find_library(backends[i].library)
                       : NULL;
    return NULL;
}

const char *registry_roof(int emulated)
{
    return find_library(emulated ? "libslm-gpu-roof-emu.so" : "libslm-gpu-roof.so");
}

/* Software that comes with a device and is not here: the loader names it. */
static int is_of_device(const char *why)
{
    return strstr(why, "libcublas") || strstr(why, "libcudart") ||
           strstr(why, "libcuda.so");
}

/* What a library says of this machine: it is loaded for the question, and stays. */
static const char *ask_library(const char *file)
{
    static char why[160];
    const char *path = find_library(file), *failed;
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const char *(*missing)(void) = NULL;

    if (!path) {
        snprintf(why, sizeof why, "%s is not where slmoe-host is", file);
        return why;
    }
    if (library) *(void **)&missing = dlsym(library, "slm_gpu_missing");
    if (missing) return missing();
    failed = dlerror();
    snprintf(why, sizeof why, "%s%.120s",
             !library && is_of_device(failed) ? BUILTINS_NO_DEVICE ": " : "", failed);
    return why;
}

const char *registry_missing(const char *name)
{
    for (size_t i = 0; i < N_BACKENDS; i++) {
        if (strcmp(backends[i].name, name) != 0) continue;
        return backends[i].library && !backends[i].missing
                   ? ask_library(backends[i].library)
                   : backends[i].missing;
    }
    return NULL;
}
