/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/hist.h - where the bins of a histogram lie.                                 Q3 */
#ifndef SLM_CPU_HIST_H
#define SLM_CPU_HIST_H

#include "balance.h"

/* lo and hi of the clause are least - 1 and most + 1. */
typedef struct slm_cpu_extent {
    double least;
    double most;
} slm_cpu_extent;

/* Of a bias [n]. */
slm_cpu_extent slm_cpu_extent_of(const slm_tensor *bias);

/* hi - lo; lo + position (hi - lo) / bins. */
slm_cpu_pair slm_cpu_width_of(slm_cpu_extent of);
slm_cpu_pair slm_cpu_along(slm_cpu_extent of, slm_cpu_pair position, double bins);

#endif
