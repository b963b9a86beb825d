/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/golden.h - golden values of a case, from ref; and their comparison. */
#ifndef SLM_GOLDEN_H
#define SLM_GOLDEN_H

#include "frame.h"

/* Run a case through the contract and ref with binary64 outputs. Returns 0 and fills
 * `why` (256 bytes) when the frame could not be built; else the caller frees it. */
int golden_run(const vec_case *test, call_frame *frame,
               void (*progress)(void *, size_t, size_t), void *user, slm_status *status,
               slm_error *error, char *why);

enum { GOLDEN_TEXT = 512 };

/* Whether an expected tensor agrees to the last bit with what ref left in the frame
 * (`any` agrees, NaN agrees with NaN, +0 with -0). If not, `difference` (GOLDEN_TEXT)
 * says where: "weight[0,1]: file 0x1p-2, ref 0x1.8p-2". PENDING never agrees. */
bool golden_agrees(const vec_tensor *expected, const call_frame *frame,
                   char *difference);

/* Whether an outcome as a whole agrees; else `difference` names the field. */
bool golden_outcome_agrees(const vec_outcome *outcome, const call_frame *frame,
                           slm_status status, const slm_error *error, char *difference);

/* "[0,1]" of a row-major index. */
void golden_place(uint32_t rank, const size_t *shape, size_t index, char *out,
                  size_t size);

#endif
