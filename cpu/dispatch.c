/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/dispatch.c - which instruction set: the CPU's best, or the one asked for. */
#include <stdlib.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "gemm.h"
#include "kernels.h"

#if defined(__x86_64__) && defined(__linux__)
/* 1 if the system saves what tiles need: bits 17 and 18 of XCR0. */
static int saves_tiles(void)
{
    enum { TILES = 3 << 17 };
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & TILES) == TILES;
}

/* 1 if this CPU has AMX-TILE and AMX-BF16, and its palette 1 is the one of tiles.h. */
static int has_tiles(void)
{
    enum { OSXSAVE = 1 << 27, BF16 = 1 << 22, TILE = 1 << 24 };
    uint32_t a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE) || !saves_tiles()) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BF16) || !(d & TILE))
        return 0;
    if (!__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) return 0;
    return a >> 16 == 1024 && (b & 0xffff) == 64 && b >> 16 == 8 && (c & 0xffff) == 16;
}

/* 1 if the system lets this process use them, in all its threads. */
static int may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };

    return has_tiles() && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}
#else
static int may_use_tiles(void)
{
    return 0;
}
#endif

slm_cpu_isa slm_cpu_best_isa(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return SLM_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return SLM_ISA_AVX2;
#endif
    return SLM_ISA_PLAIN;
}

const slm_cpu_kernels *slm_cpu_kernels_of(slm_cpu_isa isa)
{
    const slm_cpu_kernels *made = NULL;

    if (isa >= SLM_ISA_AVX512) made = slm_cpu_kernels_avx512();
    if (!made && isa >= SLM_ISA_AVX2) made = slm_cpu_kernels_avx2();
    return made ? made : slm_cpu_kernels_plain();
}

static int is_there(const slm_cpu_level *level)
{
    const slm_cpu_isa best = slm_cpu_best_isa();

    if (!level) return 0;
    return level->isa == SLM_ISA_AMX ? best >= SLM_ISA_AVX512 && may_use_tiles()
                                     : level->isa <= best;
}

const slm_cpu_level *slm_cpu_find_level(slm_error *error)
{
    const slm_cpu_level *const levels[] = {slm_cpu_level_amx_model(),
                                           slm_cpu_level_plain(), slm_cpu_level_avx2(),
                                           slm_cpu_level_avx512(), slm_cpu_level_amx()};
    const char *wanted = getenv("SLM_CPU_LEVEL");
    const slm_cpu_level *found = NULL;

    /* Without a word the last is the best; the model comes before what always is. */
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (levels[i] && (!wanted || strcmp(wanted, levels[i]->name) == 0) &&
            is_there(levels[i]))
            found = levels[i];
    if (!found)
        slm_fail(error, SLM_ERR_UNSUPPORTED, "open", "SLM_CPU_LEVEL", 0,
                 "plain, avx2, avx512, amx or amx-model, and one that this CPU has; "
                 "got %s",
                 wanted);
    return found;
}
