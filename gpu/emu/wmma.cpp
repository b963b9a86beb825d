/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/wmma.cpp - products of tiles, as tensor cores make them.
 *
 * Products are exact; eight of them and the sum so far are added at once and cut off,
 * not rounded, to binary32: what public measurements of devices found, and no more
 * accurate than they are. */
#include <cuda_bf16.h>

#include "internal.h"
#include "wmma.h"

namespace emu
{

enum { SIDE = MATRIX_SIDE, AT_ONCE = 8 };

typedef double matrix[SIDE][SIDE];

/* Element of a lane's part, as lane_part lays it out. */
static double &element(matrix m, unsigned lane, unsigned i, bool by_columns)
{
    const unsigned line = lane / 2, at = lane % 2 * LANE_ELEMENTS + i;

    return by_columns ? m[at][line] : m[line][at];
}

static float cut_off(double value)
{
    const float rounded = (float)value;

    if (isinf(rounded) || !(fabs((double)rounded) > fabs(value))) return rounded;
    return nextafterf(rounded, 0.0f);
}

static float sum_of(const double *row, const matrix b, unsigned column, float sum)
{
    for (unsigned first = 0; first < SIDE; first += AT_ONCE) {
        double part = (double)sum;

        for (unsigned k = first; k < first + AT_ONCE; k++)
            part += row[k] * b[k][column];
        sum = cut_off(part);
    }
    return sum;
}

void multiply_warp(const uint64_t *lanes)
{
    matrix a, b;
    float d[32][LANE_ELEMENTS];
    const auto part = [=](unsigned lane) { return (const lane_product *)lanes[lane]; };

    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < LANE_ELEMENTS; i++) {
            const lane_product &of = *part(lane);

            element(a, lane, i, of.a_by_columns) = (double)__bfloat162float(of.a[i]);
            element(b, lane, i, of.b_by_columns) = (double)__bfloat162float(of.b[i]);
        }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < LANE_ELEMENTS; i++)
            d[lane][i] =
                sum_of(a[lane / 2], b, lane % 2 * LANE_ELEMENTS + i, part(lane)->c[i]);
    for (unsigned lane = 0; lane < 32; lane++)
        memcpy(part(lane)->d, d[lane], sizeof d[lane]);
}

void multiply(const lane_product &part, site at)
{
    meet(WARP_PRODUCT, 0xffffffffu, (uint64_t)(uintptr_t)&part, 0, at);
}

void meet_at_tile(const void *memory, unsigned leading, size_t bytes, site at)
{
    if ((uintptr_t)memory % 32)
        fault("alignment", "a tile that is not 32 bytes aligned, at " + place(at));
    if (leading * bytes % 16)
        fault("alignment", "a leading dimension of " + std::to_string(leading) +
                               ", no multiple of 16 bytes, at " + place(at));
    meet(WARP_TILE, 0xffffffffu, (uint64_t)(uintptr_t)memory, leading, at);
}

} // namespace emu
