/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_memory.h - the arena in a host: mapped, guarded, read as arguments. */
#ifndef SLM_HOST_MEMORY_H
#define SLM_HOST_MEMORY_H

#include <jansson.h>
#include <slm/ops.h>

typedef struct host_memory {
    unsigned char *arena; /* NULL: not mapped */
    size_t size;
} host_memory;

/* Map the arena, everything out of reach. Returns 0 when address space for it lacks. */
int host_memory_map(host_memory *memory, const json_t *message);
void host_memory_unmap(host_memory *memory);

/* Open the spans of a message's tensors and workspace, those of inputs for reading alone.
 * Returns 0 when one does not lie in the arena. */
int host_memory_allow(const host_memory *memory, const json_t *message);

/* Put every tensor of a message where it belongs: an argument or a weight. Either target
 * may be NULL. Returns 0 when one is not understood. */
int host_memory_tensors(const host_memory *memory, const json_t *message, slm_op op,
                        void *args, slm_weights *weights);

/* The workspace of a message into a call. Returns 0 when it is not understood. */
int host_memory_workspace(const host_memory *memory, const json_t *message,
                          slm_call *call);

#endif
