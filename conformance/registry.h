/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/registry.h - the built-in backends by name. */
#ifndef SLM_REGISTRY_H
#define SLM_REGISTRY_H

#include <slm/backend.h>

/* The table of a built-in backend, or NULL. */
const slm_backend *registry_find(const char *name);

/* Name number `index`, left out or not, or NULL past the last. */
const char *registry_name(size_t index);

/* Why a name that people may expect is not built in, or NULL ("cpu-blas: OpenBLAS was
 * not found when this was built"). */
const char *registry_missing(const char *name);

#endif
