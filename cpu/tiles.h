/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/tiles.h - the tile registers of AMX: eight of up to 16 rows of 64 bytes.
 *
 * The instructions themselves, or, with SLM_TILES_MODEL, tiles_model.h, which does the
 * same in portable C. A tile's number is a literal. Between slm_tiles_configure() and
 * slm_tiles_release() nothing else of this thread may use tiles; the registers are this
 * CPU's, so `tiles` is memory of the model alone.
 *
 *   configure  LDTILECFG: sizes of all tiles, which become zeros
 *   zero       TILEZERO
 *   load       TILELOADD: row i from base + i stride bytes; the rest becomes zeros
 *   store      TILESTORED: the rows and bytes that the tile has, no others
 *   dot        TDPBF16PS: c[m][n] += the sum over k of a[m][k] b[k / 2][n][k % 2]
 *   release    TILERELEASE: a thread that keeps tiles costs its CPU time and sleep */
#ifndef SLM_CPU_TILES_H
#define SLM_CPU_TILES_H

#include <stddef.h>
#include <stdint.h>

enum { SLM_TILE_ROWS = 16, SLM_TILE_BYTES = 64, SLM_TILE_COUNT = 8 };

/* What LDTILECFG reads. A tile that is not used has 0 of both. */
typedef struct slm_tile_config {
    uint8_t palette; /* 1 */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t colsb[16]; /* bytes of a row; of the 16 eight are reserved */
    uint8_t rows[16];
} slm_tile_config;

#ifdef SLM_TILES_MODEL
#include "tiles_model.h"
#else
#include <immintrin.h>

typedef struct slm_tiles {
    unsigned char unused;
} slm_tiles;

/* GCC's intrinsics do not say that they read memory: what they read must be there. */
static inline void slm_tiles_written(const void *memory)
{
    __asm__ volatile("" : : "r"(memory) : "memory");
}

static inline void slm_tiles_configure(slm_tiles *tiles, const slm_tile_config *config)
{
    (void)tiles;
    slm_tiles_written(config);
    _tile_loadconfig(config);
}

static inline void slm_tiles_release(slm_tiles *tiles)
{
    (void)tiles;
    _tile_release();
}

#define slm_tiles_zero(tiles, tile)                                                    \
    do {                                                                               \
        (void)(tiles);                                                                 \
        _tile_zero(tile);                                                              \
    } while (0)
#define slm_tiles_load(tiles, tile, base, stride)                                      \
    do {                                                                               \
        (void)(tiles);                                                                 \
        slm_tiles_written(base);                                                       \
        _tile_loadd(tile, base, stride);                                               \
    } while (0)
#define slm_tiles_store(tiles, tile, base, stride)                                     \
    do {                                                                               \
        (void)(tiles);                                                                 \
        _tile_stored(tile, base, stride);                                              \
    } while (0)
#define slm_tiles_dot(tiles, c, a, b)                                                  \
    do {                                                                               \
        (void)(tiles);                                                                 \
        _tile_dpbf16ps(c, a, b);                                                       \
    } while (0)
#endif

#endif
