/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/phases.h - an account of the layer's forward calls, for slm/phases.h. */
#ifndef SLM_CPU_PHASES_H
#define SLM_CPU_PHASES_H

#include <slm/slm.h>

typedef enum slm_cpu_phase {
    SLM_CPU_CHECK,
    SLM_CPU_FIRST, /* what needs x alone, and the choice */
    SLM_CPU_SORT,
    SLM_CPU_EXPERTS,
    SLM_CPU_LAST,
    SLM_CPU_OUTPUTS,
    SLM_CPU_PHASES
} slm_cpu_phase;

/* Sums over the calls since it was read. */
typedef struct slm_cpu_account {
    double since; /* seconds of a clock: the last lap's end; 0: no call since */
    double seconds[SLM_CPU_PHASES];
    double flops[SLM_CPU_PHASES];
    double bytes[SLM_CPU_PHASES];
} slm_cpu_account;

/* A call begins. */
void slm_cpu_start(slm_cpu_account *account);

/* What passed since the start or the last lap was this phase. By one thread, between
 * barriers. */
void slm_cpu_lap(slm_cpu_account *account, slm_cpu_phase phase);

/* A panel of `rows` tokens that chose so many different experts. */
void slm_cpu_count_work(slm_cpu_account *account, const slm_config *config, size_t rows,
                        size_t experts);

#endif
