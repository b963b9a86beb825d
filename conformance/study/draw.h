/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/draw.h - a random lawful case of any operation, by its seed. */
#ifndef SLM_STUDY_DRAW_H
#define SLM_STUDY_DRAW_H

#include "made.h"

/* A source of random numbers (splitmix64). */
typedef struct draw {
    uint64_t state;
} draw;

uint64_t draw_word(draw *source);

/* Uniform in 0..n-1. */
size_t draw_below(draw *source, size_t n);

/* Make the case: operation, profile, sizes, scales from 2^-20 to 2^10, digits and ties
 * are all drawn from `source`. A strict balancing that ref refuses has that refusal for
 * its outcome. */
void draw_case(made_case *made, draw *source);

#endif
