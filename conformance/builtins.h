/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/builtins.h - the names of the built-in backends, as the judge sees them. */
#ifndef SLM_BUILTINS_H
#define SLM_BUILTINS_H

#include <stddef.h>

enum { BUILTINS_MAX = 16 };

/* How the reason begins where only a device is missing. */
#define BUILTINS_NO_DEVICE "no CUDA device"

typedef struct builtin {
    char name[32];
    char missing[160]; /* why it is left out of this build; "" when it is not */
} builtin;

/* Fill the list from slmoe-host (or from this program, where it holds them itself).
 * Returns the number of entries, 0 when the host cannot be asked. */
size_t builtins_list(builtin list[BUILTINS_MAX]);

#endif
