/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/dispatch.c - which instruction set: the best of this CPU, or the one asked for. */
#include <stdlib.h>

#include "gemm.h"

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

const slm_cpu_level *slm_cpu_find_level(slm_error *error)
{
    const slm_cpu_level *const levels[] = {slm_cpu_level_plain(), slm_cpu_level_avx2(),
                                           slm_cpu_level_avx512()};
    const slm_cpu_isa best = slm_cpu_best_isa();
    const char *wanted = getenv("SLM_CPU_LEVEL");
    const slm_cpu_level *found = NULL;

    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (levels[i] && levels[i]->isa <= best &&
            (!wanted || strcmp(wanted, levels[i]->name) == 0))
            found = levels[i];
    if (!found)
        slm_fail(error, SLM_ERR_UNSUPPORTED, "open", "SLM_CPU_LEVEL", 0,
                 "plain, avx2 or avx512, and one that this CPU has; got %s", wanted);
    return found;
}
