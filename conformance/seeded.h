/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/seeded.h - seeded tensors: a value is a function of seed, name, index. */
#ifndef SLM_SEEDED_H
#define SLM_SEEDED_H

#include <stdint.h>

/* The integer j of element `index`, -2^bits < j < 2^bits, uniform.
 *
 *   h = FNV-1a-64 of the tensor's name
 *   w = splitmix64 finaliser of (seed + h + (index + 1) 0x9e3779b97f4a7c15)
 *   j = floor((w / 2^32) (2^(bits+1) - 1) / 2^32) - (2^bits - 1)
 *
 * Integers only, so every machine and language makes the same tensor. */
int32_t seeded_integer(uint64_t seed, const char *name, uint64_t index, unsigned bits);

/* add + scale * seeded_integer(), exact in binary32 when add and scale allow it. */
float seeded_value(uint64_t seed, const char *name, uint64_t index, unsigned bits,
                   double scale, double add);

/* seeded_value() of first..first+n-1. */
void seeded_values(uint64_t seed, const char *name, uint64_t first, uint64_t n,
                   unsigned bits, double scale, double add, float *out);

#endif
