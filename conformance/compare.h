/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/compare.h - one element against what it must be, and its words.
 *
 * NaN never equals a number and a number never equals NaN; any NaN equals NaN; +0 and
 * -0 are one value. Nothing here knows a tolerance. */
#ifndef SLM_COMPARE_H
#define SLM_COMPARE_H

#include <ref.h>

#include "vector.h"

enum { COMPARE_TEXT = 64, COMPARE_WANT = 96, COMPARE_PLACE = 64 };

/* An element of an integer tensor, by row-major index; exact for every int64. */
int64_t compare_integer(const slm_tensor *tensor, size_t index);

int compare_same(double got, double want);

/* A binary64 rounded once to an element type (to nearest, ties to even), as a
 * double. */
double compare_round(double golden, slm_dtype dtype);

/* A lower bound of the distance of an element from the number in a ball. An infinity
 * stands for everything that overflows to it; INFINITY when got is NaN. The ball must
 * be finite. */
double compare_distance(double got, const arb_t want, slm_dtype dtype);

/* The golden tensor as a view; its values must be present. */
slm_tensor compare_golden_view(const vec_tensor *golden);

/* 1 when the file fixes that element: its values are present and it is not `any`. */
int compare_is_fixed(const vec_tensor *golden, size_t index);

/* 1 when the packed elements have the file's digest. Precondition: same dtype. */
int compare_digest(const slm_tensor *got, const vec_tensor *golden);

/* "0x1.9p-2 (0.390625)" into COMPARE_TEXT bytes. */
void compare_say(char *out, double value);

/* "0x1p-2 (0.25) +- 0x1p-26" into COMPARE_WANT bytes; without "+-" when bound is 0. */
void compare_say_want(char *out, double value, double bound);

/* "weight[0,3]" into COMPARE_PLACE bytes. */
void compare_say_place(char *out, const char *field, const slm_tensor *tensor,
                       size_t index);

#endif
