/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/cut.h - sizes cut into parts, by the sizes alone. */
#ifndef SLM_CPU_CUT_H
#define SLM_CPU_CUT_H

#include "internal.h"

typedef struct range {
    size_t first;
    size_t end;
} range;

/* Part `index` of `parts` of [0, size), which begin at multiples of `unit`. */
static inline range part_of(size_t size, size_t unit, size_t parts, size_t index)
{
    const size_t n = slm_cpu_ceil_div(size, unit);
    const size_t first = n * index / parts * unit, end = n * (index + 1) / parts * unit;

    return (range){first, end < size ? end : size};
}

/* Blocks of at most `most` tokens, a multiple of SLM_CPU_ROWS: selection's scratch
 * belongs to that many. */
static inline size_t blocks_of(size_t rows, size_t most)
{
    return slm_cpu_ceil_div(rows, most);
}

static inline range block_of(size_t rows, size_t most, size_t index)
{
    return part_of(rows, SLM_CPU_ROWS, blocks_of(rows, most), index);
}

#endif
