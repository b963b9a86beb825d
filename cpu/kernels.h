/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/kernels.h - what is done to elements and rows: a table for each
 * instruction set. */
#ifndef SLM_CPU_KERNELS_H
#define SLM_CPU_KERNELS_H

#include "internal.h"

/* kernels_plain.c and its likes; NULL where the compiler did not make it. */
const slm_cpu_kernels *slm_cpu_kernels_plain(void);
const slm_cpu_kernels *slm_cpu_kernels_avx2(void);
const slm_cpu_kernels *slm_cpu_kernels_avx512(void);

#endif
