/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_fault.h - the last word of a host on a faulting access. */
#ifndef SLM_HOST_FAULT_H
#define SLM_HOST_FAULT_H

#include <stddef.h>

/* On SIGSEGV and SIGBUS send a message `fault`, then die of the signal. */
void host_fault_watch(void);

/* Where the arena lies from now on; NULL, 0: nowhere. */
void host_fault_arena(const void *arena, size_t size);

#endif
