/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/kernels_avx2.c - elements and rows by AVX2: situ_tile.h with 8 lanes and FMA. */
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#define LANES 8
#define VEC_FMA(a, b, c) ((vec)_mm256_fmadd_ps(a, b, c))
#define VEC_MIN(a, b) ((vec)_mm256_min_ps(a, b))
#define VEC_MAX(a, b) ((vec)_mm256_max_ps(a, b))
#define VEC_LESS(a, b, yes, no)                                                        \
    ((vec)_mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)))

#include "rows_tile.h"
#include "situ_tile.h"

const slm_cpu_kernels *slm_cpu_kernels_avx2(void)
{
    static const slm_cpu_kernels table = {
        sigmoid, situ, situ_rows, situ_rows_half, combine, combine_half, rmsnorm};

    return &table;
}
#else
const slm_cpu_kernels *slm_cpu_kernels_avx2(void)
{
    return NULL;
}
#endif
