/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/nearest.h - which known fault a wrong answer looks like.
 *
 * Every mutant answers the same case in this process. The distance of two answers is
 *
 *   1 when one status is not the other, 1/2 when one names another field,
 *   1/4 when one names another index,
 *   plus the mean over the outputs that both wrote of the output's distance: the mean
 *   over its elements of 0 or 1 for integers, for reals min(1, |a - b| / |w|), w the
 *   right implementation's element. Sums of products (logit, z, o, u, r, y) and balancing
 *   results have |w| at least 2^-20 of their row's largest, so that noise around zero
 *   does not count. NaN is equal to NaN and at distance 1 from numbers.
 *
 * A mutant is named when its distance is below NEAREST_SHARE of the right
 * implementation's. Of mutants equally near the one is named that the case says it
 * kills, else one of the verdict's clause, else the first. It is a hint, never part of
 * the verdict. */
#ifndef SLM_NEAREST_H
#define SLM_NEAREST_H

#include "judge.h"

/* A mutant's share of the right implementation's distance; bytes of tensors above which
 * nothing is looked for: mutants are slow. */
#define NEAREST_SHARE 0.25
enum { NEAREST_LIMIT = 1 << 24 };

/* For an answer that failed by its values, its status or its error: fills
 * verdict->nearest and n_alike, or leaves nearest "". */
void nearest_find(const vec_case *test, const call_frame *frame, slm_status status,
                  const slm_error *error, judge_verdict *verdict);

/* For one that failed a memory or reuse check: a mutant that fails the same check with
 * the same words. */
void nearest_by_conduct(const vec_case *test, judge_verdict *verdict);

/* What a mutant does wrong, or "". */
const char *nearest_sentence(const char *mutant);

#endif
