/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/family.h - the four input families that rules are compared on. */
#ifndef SLM_STUDY_FAMILY_H
#define SLM_STUDY_FAMILY_H

#include "made.h"

/* UNIT   what tests mostly use: all stages of the order of 1
 * TINY   an aggregate u near sqrt(eps), where eps decides
 * LARGE  saturated activations; and scores far below 1
 * NEAR   keys that tie or nearly tie, under a large bias, a negative one, one near the
 *        end of binary32 */
typedef enum study_family {
    STUDY_UNIT,
    STUDY_TINY,
    STUDY_LARGE,
    STUDY_NEAR,
    STUDY_FAMILIES
} study_family;

const char *study_family_name(study_family family);

/* How many cases there are in all; they are ordered by family. */
size_t study_n_cases(void);
study_family study_family_of(size_t index);

/* Make case `index`: layer_forward, d 100, l 52, n 24, k 4, f 20, two shared experts of
 * 20. Widths leave something over after tiles of 8, and so do the tokens. bf16: of x, y
 * and the weights. */
void study_make(made_case *made, size_t index, slm_dtype dtype, uint64_t seed);

#endif
