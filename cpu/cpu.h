/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/cpu.h - the backends that run on a CPU. */
#ifndef SLM_CPU_H
#define SLM_CPU_H

#include <slm/phases.h>

/* `cpu`: its own kernels on packed weights, every operation, binary32 and bf16. A
 * token's bits depend on the instruction set alone. The environment variable
 * SLM_CPU_LEVEL (plain, avx2, avx512, amx; amx-model: the tiles of amx in C, for tests)
 * forces one; open() refuses a name that is none of these, or that this CPU has not. */
const slm_backend *slm_cpu_backend(void);

/* Of a handle of `cpu`: where its layer_forward spends the time. */
slm_phase_getter slm_cpu_phases;

/* `cpu-blas`: OpenBLAS inside OpenMP tasks, binary32, every operation. Opening a handle
 * sets OpenBLAS, for the whole process, to one thread a call. */
const slm_backend *slm_cpu_blas_backend(void);

/* Name of the kernels that OpenBLAS picked when it was loaded: "Haswell", ... Static
 * storage. */
const char *slm_cpu_blas_core(void);

/* What OPENBLAS_CORETYPE should have been when OpenBLAS was loaded, since it took this
 * CPU for an older one (0.3.21 takes new Xeons for "Prescott", 3-5 times slower); NULL
 * when the pick is fine or cannot be improved. OpenBLAS reads the variable only once,
 * before main(): set it and execute the process again. */
const char *slm_cpu_blas_wanted_core(void);

#endif
