/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/situ.h - sigmoid and SiTU-GLU: a table for each instruction set. */
#ifndef SLM_CPU_SITU_H
#define SLM_CPU_SITU_H

#include "internal.h"

/* situ_plain.c and its likes; NULL where the compiler did not make it. */
const slm_cpu_kernels *slm_cpu_situ_plain(void);
const slm_cpu_kernels *slm_cpu_situ_avx2(void);
const slm_cpu_kernels *slm_cpu_situ_avx512(void);

#endif
