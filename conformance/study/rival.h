/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/rival.h - rules that tests of such layers use today, on y alone. */
#ifndef SLM_STUDY_RIVAL_H
#define SLM_STUDY_RIVAL_H

#include <slm/slm.h>

#include <stdbool.h>
#include <stddef.h>

typedef enum study_rival {
    RIVAL_TORCH,      /* |y - r| <= atol + rtol |r|, defaults of the dtype         */
    RIVAL_KERNEL,     /* the same with 1e-2 and 1e-2                               */
    RIVAL_SERVING,    /* the same with 3e-2 and 3e-2                               */
    RIVAL_MOST,       /* the same with 0.1 and 0.85, for 92.5 % of the elements    */
    RIVAL_SCALED,     /* atol 1.5 std(r) or relative 0.5, for 97 % of the elements */
    RIVAL_COSINE,     /* 1 - 2 y.r / (y.y + r.r) < 1e-3                            */
    RIVAL_NMSE_TIGHT, /* |y - r|^2 / |r|^2 <= 1e-7                                 */
    RIVAL_NMSE,       /* the same with 5e-4                                        */
    RIVALS
} study_rival;

const char *rival_name(study_rival rival);

/* Whether a rule accepts n elements y, stored in dtype, for the real r. */
bool rival_accepts(study_rival rival, const double *y, const double *r, size_t n,
                   slm_dtype dtype);

#endif
