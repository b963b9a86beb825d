/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/hygiene.h - memory and reuse: what a right answer alone does not show. */
#ifndef SLM_HYGIENE_H
#define SLM_HYGIENE_H

#include "judge.h"
#include "testee.h"

/* Repeat a case that passed under other circumstances, and demand a passing answer each
 * time (the same bits where the backend declares them):
 *
 *   other poison in outputs and workspace, on a fresh handle     A3
 *   buffers against the guard before them                        X2
 *   inputs, then outputs, one element off their page             X2
 *   no taps, some of them, the others                            X2
 *   views: gaps, either sign, 0, where strides are claimed       X2
 *   views with rows 2^32 elements apart, there too               X2
 *   twelve calls on one handle: T, other contents, T = 0, 1      A3
 *   beside another handle, opened before it, after it, in use    A3
 *   each token alone, where batch invariance is declared         A2
 *
 * `digest` is frame_digest() of the answer that passed: equal bits are not judged again.
 * On a fault the verdict becomes FAIL, CRASH or TIMEOUT and says which repetition. */
void hygiene_check(slm_testee *testee, const vec_case *test, const char *digest,
                   judge_verdict *verdict);

#endif
