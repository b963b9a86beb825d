/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/environment.c - what must stand in the environment before libraries load. */
#include "environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef SLM_WITH_BLAS
#include <cpu.h>

void environment_prepare(char **argv)
{
    const char *wanted = slm_cpu_blas_wanted_core();
    char note[256];

    if (!wanted || getenv("OPENBLAS_CORETYPE")) return;
    snprintf(note, sizeof note,
             "OpenBLAS took this CPU for %s: started again with OPENBLAS_CORETYPE=%s",
             slm_cpu_blas_core(), wanted);
    setenv("OPENBLAS_CORETYPE", wanted, 1);
    setenv(ENVIRONMENT_NOTE, note, 1);
    execv("/proc/self/exe", argv);
}
#else
void environment_prepare(char **argv)
{
    (void)argv;
}
#endif
