/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/threads.h - how many threads a parallel region may have, how many this one has, and
 * which one this is; without OpenMP there is one. */
#ifndef SLM_CPU_THREADS_H
#define SLM_CPU_THREADS_H

#include <stddef.h>

#ifdef _OPENMP
#include <omp.h>

static inline size_t slm_cpu_most_threads(void)
{
    return (size_t)omp_get_max_threads();
}

static inline size_t slm_cpu_n_threads(void)
{
    return (size_t)omp_get_num_threads();
}

static inline size_t slm_cpu_this_thread(void)
{
    return (size_t)omp_get_thread_num();
}
#else
static inline size_t slm_cpu_most_threads(void)
{
    return 1;
}

static inline size_t slm_cpu_n_threads(void)
{
    return 1;
}

static inline size_t slm_cpu_this_thread(void)
{
    return 0;
}
#endif

#endif
