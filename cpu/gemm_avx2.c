/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_avx2.c - products by AVX2: gemm_tile.h with 8 lanes and FMA. */
#include "gemm.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#define LANES 8
#define TILE_ROWS 6
#define FEW_ROWS 3
#define WIDE 0
#define DEPTH 640

typedef __m256 vec;
#define vec_zero() _mm256_setzero_ps()
#define vec_set(x) _mm256_set1_ps(x)
#define vec_load(p) _mm256_loadu_ps(p)
#define vec_store(p, v) _mm256_storeu_ps(p, v)
#define vec_fma(a, b, c) _mm256_fmadd_ps(a, b, c)

static inline vec vec_even(const uint16_t *p)
{
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)p);

    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

static inline vec vec_odd(const uint16_t *p)
{
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)p);

    return _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
}

#include "gemm_tile.h"

const slm_cpu_level *slm_cpu_level_avx2(void)
{
    static const slm_cpu_level level = {"avx2",     SLM_ISA_AVX2, gemm, multiply,
                                        round_half, narrow,       0,    0};

    return &level;
}
#else
const slm_cpu_level *slm_cpu_level_avx2(void)
{
    return NULL;
}
#endif
