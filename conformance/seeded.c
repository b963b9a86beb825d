/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/seeded.c - seeded tensors: a value is a function of seed, name, index. */
#include "seeded.h"

static uint64_t fnv1a(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

static uint64_t mix(uint64_t v)
{
    v ^= v >> 30;
    v *= 0xbf58476d1ce4e5b9u;
    v ^= v >> 27;
    v *= 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

/* start = seed + h. 32 bits times at most 24 bits: no overflow. */
static int32_t integer(uint64_t start, uint64_t index, unsigned bits)
{
    const uint64_t high = mix(start + (index + 1) * 0x9e3779b97f4a7c15u) >> 32;
    const uint64_t span = ((uint64_t)2 << bits) - 1;

    return (int32_t)(high * span >> 32) - (int32_t)((1u << bits) - 1);
}

int32_t seeded_integer(uint64_t seed, const char *name, uint64_t index, unsigned bits)
{
    return integer(seed + fnv1a(name), index, bits);
}

float seeded_value(uint64_t seed, const char *name, uint64_t index, unsigned bits,
                   double scale, double add)
{
    return (float)(add + scale * seeded_integer(seed, name, index, bits));
}

void seeded_values(uint64_t seed, const char *name, uint64_t first, uint64_t n,
                   unsigned bits, double scale, double add, float *out)
{
    const uint64_t start = seed + fnv1a(name);

    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)(add + scale * integer(start, first + i, bits));
}
