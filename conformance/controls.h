/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/controls.h - null answers: would an answer that knows nothing pass?   A4
 *
 * A null answer is the answer that passed with its last result, in order of the data
 * flow, replaced; everything before it stays, taps too. A case that cannot tell a null
 * answer from a right one is no evidence: it is VACUOUS.
 *
 *   zeros     the result is 0
 *   constant  the result's first finite element everywhere; in routing experts
 *             0 .. k-1 with weights 1/k, for every token
 *   rotated   each token, else each expert, has the answer of the next one (routing:
 *             ids and weights together); not of fewer than two
 *   dropped   layer_forward: y of the right implementation without the expert of the
 *             last slot
 *
 * The result is y, h, r, dx, dgate_up, du, dlogit, hist, order, metric, bias of a commit,
 * new_bias together with a candidate that was written, or weight in routing. A null answer counts only
 *   where it is plainly another: an integer differs, or a real number by more than 2^-6
 *   of the answer's largest magnitude, which is at least 2^-59; in routing poisoned
 *   tokens are left out (R4), and a constant choice must differ in an id, for 1/k may be
 *   lawful (R3);
 *   where no outcome of the file wants this very answer;
 *   where some element of the result was judged.
 * Above CONTROLS_LIMIT bytes of tensors zeros alone are judged: the judge is slow. */
#ifndef SLM_CONTROLS_H
#define SLM_CONTROLS_H

#include "judge.h"

enum { CONTROLS_LIMIT = 1 << 26 };

/* Judge every null answer beside a successful answer that passed, in its place in the
 * frame; the outputs are set back. Fills verdict->controls, and turns the verdict to
 * VACUOUS when one of them would pass. */
void controls_judge(const vec_case *test, const call_frame *frame,
                    const slm_arithmetic *arithmetic, bool exact,
                    judge_verdict *verdict);

#endif
