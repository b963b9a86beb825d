/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/tiles_model.h - the tiles of tiles.h in portable C: the bits that Intel's manual
 * gives (Software Developer's Manual, volume 2, LDTILECFG to TILEZERO), on any CPU.
 *
 * TDPBF16PS  for each m and n: two chains over k, of the even and of the odd elements
 *            of the pairs, begin at 0 and take one FMA a pair; the two are added, and
 *            then their sum to c. So the 32 products of a full tile meet c as one
 *            number. Each of these roundings is to nearest, ties to even. An operand
 *            below 2^-126 counts as 0 of its sign, a result that is below 2^-126 once
 *            it is rounded to 24 bits becomes 0 of its sign. MXCSR is not looked at.
 * Faults     what the instructions refuse traps here, too. */
#ifndef SLM_CPU_TILES_MODEL_H
#define SLM_CPU_TILES_MODEL_H

#include <float.h>
#include <math.h>
#include <string.h>

/* The registers. rows and colsb stay as configured; all beyond them is zeros. */
typedef struct slm_tiles {
    slm_tile_config config;
    unsigned char bytes[SLM_TILE_COUNT][SLM_TILE_ROWS][SLM_TILE_BYTES];
} slm_tiles;

static inline void slm_tiles_demand(int holds)
{
    if (!holds) __builtin_trap();
}

static inline void slm_tiles_configure(slm_tiles *tiles, const slm_tile_config *config)
{
    slm_tiles_demand(config->palette == 1 && config->start_row == 0);
    for (size_t i = 0; i < sizeof config->reserved; i++)
        slm_tiles_demand(config->reserved[i] == 0);
    for (size_t i = 0; i < 16; i++) {
        const int rows = config->rows[i], colsb = config->colsb[i];

        slm_tiles_demand(rows <= SLM_TILE_ROWS && colsb <= SLM_TILE_BYTES);
        slm_tiles_demand((rows == 0) == (colsb == 0));
        slm_tiles_demand(rows == 0 || i < SLM_TILE_COUNT);
    }
    memset(tiles, 0, sizeof *tiles);
    tiles->config = *config;
}

static inline void slm_tiles_release(slm_tiles *tiles)
{
    memset(tiles, 0, sizeof *tiles);
}

static inline void slm_tiles_zero(slm_tiles *tiles, size_t tile)
{
    slm_tiles_demand(tiles->config.rows[tile] > 0);
    memset(tiles->bytes[tile], 0, sizeof tiles->bytes[tile]);
}

static inline void slm_tiles_load(slm_tiles *tiles, size_t tile, const void *base,
                                  size_t stride)
{
    slm_tiles_zero(tiles, tile);
    for (size_t i = 0; i < tiles->config.rows[tile]; i++)
        memcpy(tiles->bytes[tile][i], (const char *)base + i * stride,
               tiles->config.colsb[tile]);
}

static inline void slm_tiles_store(const slm_tiles *tiles, size_t tile, void *base,
                                   size_t stride)
{
    slm_tiles_demand(tiles->config.rows[tile] > 0);
    for (size_t i = 0; i < tiles->config.rows[tile]; i++)
        memcpy((char *)base + i * stride, tiles->bytes[tile][i],
               tiles->config.colsb[tile]);
}

/* ---- TDPBF16PS ---- */

static inline float slm_tiles_flush(float value)
{
    return fabsf(value) < FLT_MIN ? copysignf(0.0f, value) : value;
}

/* c + a b of flushed operands, rounded once. A product that is normal has at most 16
 * digits, so it is exact, as that of a zero is. Where fmaf, which has subnormals, shows 2^-126, the sum may
 * be less: with subnormals out of the way it is seen. Both factors are below 2^26 then,
 * and |c| below 2^-101, so that no power of two overflows. */
static inline float slm_tiles_fma(float a, float b, float c)
{
    const float product = a * b, size = fabsf(product);
    const int exact = (size >= FLT_MIN && size <= FLT_MAX) || a == 0.0f || b == 0.0f;
    const float sum = exact ? c + product : fmaf(a, b, c);

    if (fabsf(sum) > FLT_MIN || sum == 0.0f) return sum;
    if (fabsf(sum) == FLT_MIN &&
        fabsf(fmaf(a * 0x1p32f, b * 0x1p32f, c * 0x1p64f)) < 0x1p-62f)
        return copysignf(0.0f, sum);
    return slm_tiles_flush(sum);
}

/* Element `at` of a row of binary32; of a row of bf16. */
static inline float slm_tiles_f32(const unsigned char *row, size_t at)
{
    float value;

    memcpy(&value, row + at * sizeof value, sizeof value);
    return slm_tiles_flush(value);
}

static inline float slm_tiles_bf16(const unsigned char *row, size_t at)
{
    uint16_t half;
    uint32_t bits;
    float value;

    memcpy(&half, row + at * sizeof half, sizeof half);
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
    return slm_tiles_flush(value);
}

/* Row m of c. */
static inline void slm_tiles_dot_row(slm_tiles *tiles, size_t c, size_t a, size_t b,
                                     size_t m)
{
    enum { COLS = SLM_TILE_BYTES / sizeof(float) };
    const size_t pairs = tiles->config.colsb[a] / 4, cols = tiles->config.colsb[c] / 4;
    const unsigned char *left = tiles->bytes[a][m];
    float even[COLS] = {0.0f}, odd[COLS] = {0.0f};

    for (size_t k = 0; k < pairs; k++) {
        const unsigned char *right = tiles->bytes[b][k];
        const float first = slm_tiles_bf16(left, 2 * k);
        const float second = slm_tiles_bf16(left, 2 * k + 1);

        for (size_t n = 0; n < cols; n++) {
            even[n] = slm_tiles_fma(first, slm_tiles_bf16(right, 2 * n), even[n]);
            odd[n] = slm_tiles_fma(second, slm_tiles_bf16(right, 2 * n + 1), odd[n]);
        }
    }
    for (size_t n = 0; n < cols; n++) {
        const float sum = slm_tiles_flush(even[n] + odd[n]);
        const float to = slm_tiles_flush(slm_tiles_f32(tiles->bytes[c][m], n) + sum);

        memcpy(tiles->bytes[c][m] + n * sizeof to, &to, sizeof to);
    }
}

static inline void slm_tiles_dot(slm_tiles *tiles, size_t c, size_t a, size_t b)
{
    const slm_tile_config *is = &tiles->config;

    slm_tiles_demand(c != a && c != b && a != b && is->rows[c] && is->rows[a] &&
                     is->rows[b]);
    slm_tiles_demand(is->rows[c] == is->rows[a] && is->colsb[c] == is->colsb[b] &&
                     is->rows[b] == is->colsb[a] / 4);
    slm_tiles_demand(is->colsb[c] % 4 == 0 && is->colsb[a] % 4 == 0);
    for (size_t m = 0; m < is->rows[c]; m++) slm_tiles_dot_row(tiles, c, a, b, m);
}

#endif
