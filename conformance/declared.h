/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/declared.h - declared arithmetic in words.                         A1 */
#ifndef SLM_DECLARED_H
#define SLM_DECLARED_H

#include <slm/backend.h>

enum { DECLARED_TEXT = 512 };

/* "accumulator 2^-24, inputs exact, balancing 2^-53, ..." into DECLARED_TEXT bytes. */
void declared_words(const slm_arithmetic *arithmetic, char out[DECLARED_TEXT]);

/* The field of a stage: "logit", ..., "y". */
const char *declared_stage(slm_stage stage);

#endif
