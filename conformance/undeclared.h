/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/undeclared.h - a failure that a declaration would make lawful.       A1 */
#ifndef SLM_UNDECLARED_H
#define SLM_UNDECLARED_H

#include "judge.h"

/* When the guilty stage of a failed answer would be within its bound with coarser storage
 * of that stage (its values all have the digits of bf16) or with shortened factors, or
 * with both, and by enough that it looks like it: put what to declare into
 * verdict->reason, if that is free. Arguments as of judge_answer(). */
void undeclared_find(const vec_case *test, const call_frame *frame,
                     const slm_arithmetic *arithmetic, judge_verdict *verdict);

#endif
