/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/lanes.h - vectors of LANES elements, which the including file defines before: the
 * compiler's own, for any instruction set. */
#ifndef SLM_CPU_LANES_H
#define SLM_CPU_LANES_H

#include <stdint.h>
#include <string.h>

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

static inline vec load(const float *from)
{
    vec v;

    memcpy(&v, from, sizeof v);
    return v;
}

static inline void store(float *to, vec v)
{
    memcpy(to, &v, sizeof v);
}

static inline vec all(float x)
{
    return x - (vec){0};
}

#endif
