/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/control.h - what tests may ask of the emulator. */
#ifndef SLM_GPU_EMU_CONTROL_H
#define SLM_GPU_EMU_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The schedule. 0: threads, blocks and streams in ascending order, a thread runs until
 * it waits; 1: in descending order; else shuffled by the seed, and threads also change
 * at atomics and, in the race build, at any access. Before the first call it is
 * SLM_EMU_SEED of the environment, or 0. */
void slm_emu_seed(unsigned seed);

/* Race build only, else 0: bytes that all launches of a kernel so far loaded from and
 * stored to global memory. The kernel is named as in its SLM_LAUNCH. */
void slm_emu_bytes(const char *kernel, uint64_t *loaded, uint64_t *stored);

/* Race build only, else "": who wrote this word of device memory last,
 * "gpu/select.cu:41, kernel select_rows, block 3, thread 12". */
void slm_emu_writer(const void *device, char *text, size_t size);

/* Work done so far: kernels, their threads, switches between threads. */
typedef struct slm_emu_work {
    uint64_t kernels, threads, switches;
} slm_emu_work;
slm_emu_work slm_emu_done(void);

#ifdef __cplusplus
}
#endif
#endif
