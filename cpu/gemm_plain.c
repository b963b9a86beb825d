/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_plain.c - products in portable C: gemm_tile.h with 4 lanes, a product and an
 * addition each rounded. The vectors are GCC's and Clang's own, for any CPU. */
#include "gemm.h"

#define LANES 4
#define TILE_ROWS 4
#define FEW_ROWS 2
#define WIDE 0
#define DEPTH 640

typedef float vec __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));

static inline vec vec_set(float x)
{
    return (vec){x, x, x, x};
}

static inline vec vec_load(const float *p)
{
    vec v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

#define vec_zero() vec_set(0.0f)
#define vec_fma(a, b, c) ((c) + (a) * (b))

static inline vec vec_even(const uint16_t *p)
{
    words pairs;

    memcpy(&pairs, p, sizeof pairs);
    return (vec)(pairs << 16);
}

static inline vec vec_odd(const uint16_t *p)
{
    words pairs;

    memcpy(&pairs, p, sizeof pairs);
    return (vec)(pairs & 0xffff0000u);
}

#include "gemm_tile.h"

const slm_cpu_level *slm_cpu_level_plain(void)
{
    static const slm_cpu_level level = {"plain",    SLM_ISA_PLAIN, gemm, multiply,
                                        round_half, narrow,        0,    0};

    return &level;
}
