/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_amx_model.c - the products of gemm_amx.c on any CPU: its tiles are a model,
 * all else is portable C. Slow; for tests. */
#include "gemm.h"

#define SLM_TILES_MODEL
#define OTHER slm_cpu_level_plain
#include "gemm_amx.h"

const slm_cpu_level *slm_cpu_level_amx_model(void)
{
    static const slm_cpu_level level = {"amx-model", SLM_ISA_PLAIN, gemm, multiply,
                                        round_half,  narrow,        1,    1};

    return &level;
}
