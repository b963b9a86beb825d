/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/registry.h - the built-in backends by name. */
#ifndef SLM_REGISTRY_H
#define SLM_REGISTRY_H

#include <slm/phases.h>

/* The table of a built-in backend, or NULL. */
const slm_backend *registry_find(const char *name);

/* The account that a built-in backend keeps of its calls, or NULL. */
slm_phase_getter *registry_phases(const char *name);

/* Name number `index`, left out or not, or NULL past the last. Peers that are there to be
 * compared with (gpu-loop) are found by name and not among these. */
const char *registry_name(size_t index);

/* Path of the library that holds a built-in backend, or NULL: the parts that need a
 * device's own libraries are loaded, not linked. */
const char *registry_library(const char *name);

/* Path of the library that measures what a device does at best, or NULL; emulated: of
 * the one on the emulator, for tests. */
const char *registry_roof(int emulated);

/* Why a name that people may expect is not built in, or NULL ("cpu-blas: OpenBLAS was
 * not found when this was built"). Where only a device, or the software that comes with
 * one, is missing it begins with BUILTINS_NO_DEVICE. */
const char *registry_missing(const char *name);

#endif
