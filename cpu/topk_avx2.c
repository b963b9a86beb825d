/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/topk_avx2.c - selection and balancing by AVX2: topk_tile.h with 8 lanes. */
#include "topk.h"

#if defined(__AVX2__)
#include <immintrin.h>

#define LANES 8
#define VEC_MAX(a, b) ((vec)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define VEC_MIN(a, b) ((vec)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define BITS(op, a, b)                                                                 \
    ((uint32_t)_mm256_movemask_ps(                                                     \
        _mm256_cmp_ps((__m256)(a), (__m256)(b), _CMP_##op##_OQ)))
#define COUNT_GT(to, a, b) ((to) - ((a) > (b)))

#include "topk_tile.h"

const slm_cpu_topk *slm_cpu_topk_avx2(void)
{
    static const slm_cpu_topk table = {LANES, choose, below, pivots, bins};

    return &table;
}
#else
const slm_cpu_topk *slm_cpu_topk_avx2(void)
{
    return NULL;
}
#endif
