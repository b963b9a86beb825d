/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_avx512.c - products by AVX-512: gemm_tile.h with 16 lanes and FMA. */
#include "gemm.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#define LANES 16
#define TILE_ROWS 12
#define FEW_ROWS 6
#define WIDE 3
#define DEPTH 320

typedef __m512 vec;
#define vec_zero() _mm512_setzero_ps()
#define vec_set(x) _mm512_set1_ps(x)
#define vec_load(p) _mm512_loadu_ps(p)
#define vec_store(p, v) _mm512_storeu_ps(p, v)

/* In place: GCC lets sums move from register to register, copies and spills some, which
 * costs a tile 2 to 3 %. */
static inline __attribute__((always_inline)) vec vec_fma(vec a, vec b, vec c)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}

static inline vec vec_even(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}

static inline vec vec_odd(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000u)));
}

#include "gemm_tile.h"

const slm_cpu_level *slm_cpu_level_avx512(void)
{
    static const slm_cpu_level level = {"avx512",   SLM_ISA_AVX512, gemm, multiply,
                                        round_half, narrow,         0,    0};

    return &level;
}
#else
const slm_cpu_level *slm_cpu_level_avx512(void)
{
    return NULL;
}
#endif
