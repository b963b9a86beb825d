/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/kernels_avx512.c - elements and rows by AVX-512: situ_tile.h with 16 lanes
 * and FMA. */
#include "kernels.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#define LANES 16
#define VEC_FMA(a, b, c) ((vec)_mm512_fmadd_ps(a, b, c))
#define VEC_MIN(a, b) ((vec)_mm512_min_ps(a, b))
#define VEC_MAX(a, b) ((vec)_mm512_max_ps(a, b))
#define VEC_LESS(a, b, yes, no)                                                        \
    ((vec)_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes))
#define VEC_SCALE(x, n) ((vec)_mm512_scalef_ps(x, n))

#include "rows_tile.h"
#include "situ_tile.h"

const slm_cpu_kernels *slm_cpu_kernels_avx512(void)
{
    static const slm_cpu_kernels table = {
        sigmoid, situ, situ_rows, situ_rows_half, combine, combine_half, rmsnorm};

    return &table;
}
#else
const slm_cpu_kernels *slm_cpu_kernels_avx512(void)
{
    return NULL;
}
#endif
