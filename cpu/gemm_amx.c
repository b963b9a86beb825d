/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_amx.c - products of bf16 by AMX, all others by AVX-512. */
#include "gemm.h"

/* Older releases of Clang leave the second underline out. */
#if (defined(__AMX_TILE__) && defined(__AMX_BF16__)) ||                                \
    (defined(__AMXTILE__) && defined(__AMXBF16__))
#define OTHER slm_cpu_level_avx512
#include "gemm_amx.h"

const slm_cpu_level *slm_cpu_level_amx(void)
{
    static const slm_cpu_level level = {"amx",      SLM_ISA_AMX, gemm, multiply,
                                        round_half, narrow,      1,    1};

    return OTHER() ? &level : NULL;
}
#else
const slm_cpu_level *slm_cpu_level_amx(void)
{
    return NULL;
}
#endif
