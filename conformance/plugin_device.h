/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/plugin_device.h - tensors of a call in a backend's own device memory.
 *
 * For a backend with alloc(): each tensor and the workspace get a piece of their own,
 * with 4 KiB of canary on both sides, at the same distance from a cache line as on the
 * host. Contents go in before a call; outputs, with the poison that nobody wrote over,
 * come back after it. What nobody may write is compared.
 *
 * SLM_CANARY=0 in the environment: no canaries, for a device that checks bounds itself
 * and for which they would be memory like any other (the race build of gpu/emu). */
#ifndef SLM_PLUGIN_DEVICE_H
#define SLM_PLUGIN_DEVICE_H

#include <slm/backend.h>

enum { DEVICE_WHY = 256 };

typedef struct plugin_device plugin_device;

/* 1 when the table has the four functions for device memory. */
int device_is_wanted(const slm_backend *table);

/* Place the tensors of an argument struct, or (op SLM_OP_COUNT) of weights, and point
 * the struct at them. NULL without device memory: the struct is as before then. */
plugin_device *device_place(const slm_backend *table, slm_op op, void *args);

/* Wait, compare, bring the outputs back. Returns 0 and says what was done to memory that
 * is nobody's, or to an input. */
int device_collect(const plugin_device *device, void *stream, char *why);

/* Give the memory back, point the struct at the host again if there is one. NULL is
 * nothing. */
void device_release(plugin_device *device, void *args);

#endif
