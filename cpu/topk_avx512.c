/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/topk_avx512.c - selection and balancing by AVX-512: topk_tile.h with 16 lanes. */
#include "topk.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#define LANES 16
#define VEC_MAX(a, b) ((vec)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define VEC_MIN(a, b) ((vec)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MASK_BITS(m) ((uint32_t)_mm512_movepi32_mask((__m512i)(m)))

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
