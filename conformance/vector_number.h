/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_number.h - numbers as golden vectors write them.
 *
 * The readers return 1, or 0 and `why` (NUMBER_WHY bytes): what was expected and what
 * was found. */
#ifndef SLM_VECTOR_NUMBER_H
#define SLM_VECTOR_NUMBER_H

#include <slm/slm.h>

enum { NUMBER_WHY = 192, NUMBER_TEXT = 32 };

/* [-]0xH[.H]p[+-]D, nan, inf, -inf, exactly representable in `type` (f32, bf16, f64). */
int number_real(const char *text, slm_dtype type, double *value, char *why);

/* [-]D within `type` (i32, i64); no leading zeros, no -0. */
int number_integer(const char *text, slm_dtype type, int64_t *value, char *why);

/* D below 2^64. */
int number_size(const char *text, uint64_t *value, char *why);

/* [-]D[.D][e[+-]D] that is the shortest decimal of its binary64 (X3), nan, inf, -inf. */
int number_decimal(const char *text, double *value, char *why);

/* The canonical hexadecimal float: 0x1.8p-1, 0x0p+0, nan; NUMBER_TEXT bytes. */
void number_write(double value, char *out);

#endif
