/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/plugin_neighbour.h - a second handle, alive beside the one that is judged.
 *
 * It has the same sizes, other numbers in its configuration where the backend takes them,
 * and weights of its own: the first handle's, last element first. Its calls work on
 * copies of their own, so that nothing but what the backend itself shares between
 * handles can reach the judged answer.                                           A3 */
#ifndef SLM_PLUGIN_NEIGHBOUR_H
#define SLM_PLUGIN_NEIGHBOUR_H

#include "plugin.h"

typedef struct plugin_neighbour plugin_neighbour;

/* Open one beside a handle of this configuration and these weights, which are only read.
 * *out is NULL unless SLM_OK is returned; close it before the plug-in. n_tokens is for
 * supports(). Errors: MEMORY, and what open() and prepare() return. */
slm_status plugin_neighbour_open(const slm_plugin *plugin, const slm_config *config,
                                 slm_op op, size_t n_tokens, const slm_weights *weights,
                                 plugin_neighbour **out, slm_error *error);

/* One call of the operation on copies of these arguments, whatever it returns. Returns 0
 * without memory. */
int plugin_neighbour_call(plugin_neighbour *neighbour, slm_op op, const void *args);

/* The same again and again, a few times, in a thread of its own, at most until
 * plugin_neighbour_rest(). It returns once the first call is about to begin; 0 without memory or a thread: it rests
 * then. */
int plugin_neighbour_work(plugin_neighbour *neighbour, slm_op op, const void *args);
void plugin_neighbour_rest(plugin_neighbour *neighbour);

/* NULL is nothing. */
void plugin_neighbour_close(plugin_neighbour *neighbour);

#endif
