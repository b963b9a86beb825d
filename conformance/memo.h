/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/memo.h - verdicts that were already reached.
 *
 * A verdict is a function of the case, the status, the outputs' bits and the declared
 * arithmetic. Two hundred mutants give mostly the same answers: each distinct answer is
 * judged once. Safe to use from several threads. */
#ifndef SLM_MEMO_H
#define SLM_MEMO_H

#include "judge.h"

typedef struct judge_memo judge_memo;

judge_memo *memo_new(void);
void memo_free(judge_memo *memo);

/* judge_case(), or the verdict reached before for the same answer. memo may be NULL. */
void memo_judge(judge_memo *memo, const vec_case *test, const call_frame *frame,
                slm_status status, const slm_error *error,
                const slm_arithmetic *arithmetic, bool exact, judge_verdict *verdict);

#endif
