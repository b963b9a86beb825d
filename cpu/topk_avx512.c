/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/topk_avx512.c - selection and balancing by AVX-512: topk_tile.h with 16 lanes. */
#include "topk.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#define LANES 16
#define VEC_MAX(a, b) ((vec)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define VEC_MIN(a, b) ((vec)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define BITS(op, a, b)                                                                 \
    ((uint32_t)_mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_##op##_OQ))
#define COUNT_GT(to, a, b)                                                             \
    ((ints)_mm512_mask_add_epi32((__m512i)(to),                                        \
                                 _mm512_cmpgt_epi32_mask((__m512i)(a), (__m512i)(b)),  \
                                 (__m512i)(to), _mm512_set1_epi32(1)))

#include "topk_tile.h"

const slm_cpu_topk *slm_cpu_topk_avx512(void)
{
    static const slm_cpu_topk table = {LANES, choose, below, pivots, bins};

    return &table;
}
#else
const slm_cpu_topk *slm_cpu_topk_avx512(void)
{
    return NULL;
}
#endif
