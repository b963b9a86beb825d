/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/plugin.h - a backend's table in this process: found, checked, called.
 *
 * The floating-point environment is saved around loading and around every call: a
 * library linked with -ffast-math turns on flush-to-zero when it is loaded. */
#ifndef SLM_PLUGIN_H
#define SLM_PLUGIN_H

#include <slm/phases.h>

#include "plugin_device.h"

typedef struct slm_plugin {
    void *library;     /* of dlopen, NULL for a built-in                          */
    slm_backend table; /* members that an older plug-in lacks are zero        */
    slm_ops ops;
    slm_arithmetic arithmetic;
    const char *emulated; /* what stands in for its hardware, or NULL                */
    slm_phase_getter *phases; /* NULL: it keeps no account                           */
} slm_plugin;

enum { PLUGIN_WHY = 512 };

/* Take a table that is there already: copied, completed, and checked for what every
 * backend must have. Returns 0 and a message for people (`name` begins it). */
int plugin_adopt(slm_plugin *plugin, const slm_backend *table, const char *name,
                 char *why);

/* Open a built-in ("ref", "cpu-blas") or a library by path (anything with a '/' or
 * ending in ".so"). Returns 0 and a message for people when it cannot be used. */
int plugin_open(slm_plugin *plugin, const char *name, char *why);
void plugin_close(slm_plugin *plugin);

/* 1 when the operation is offered under this configuration, else 0 and the reason
 * (256 bytes). */
int plugin_offers(const slm_plugin *plugin, const slm_config *config, slm_op op,
                  size_t n_tokens, char *reason);

/* A handle, and where its weights lie in device memory. */
typedef struct plugin_session {
    slm_handle *handle;
    plugin_device *weights; /* NULL: the host's are used */
} plugin_session;

/* Open a handle and, for operations on prepared weights, prepare it. */
slm_status plugin_begin(const slm_plugin *plugin, const slm_config *config, slm_op op,
                        const slm_weights *weights, plugin_session *session,
                        slm_error *error);
void plugin_end(const slm_plugin *plugin, plugin_session *session);

/* Bytes of workspace for a call. */
size_t plugin_workspace(const slm_plugin *plugin, slm_handle *handle, slm_op op,
                        const slm_call *call);

/* The same, on a handle of its own that needs no weights. */
size_t plugin_ask_workspace(const slm_plugin *plugin, const slm_config *config,
                            slm_op op, const slm_call *call);

/* Mask of 1u << slm_op of the operations in the table. */
uint32_t plugin_offered(const slm_plugin *plugin);

/* What a call did beside its work. */
typedef struct plugin_conduct {
    int environment; /* left another rounding mode or flush-to-zero; it is restored  */
    char broken[DEVICE_WHY]; /* what it did to device memory; "": nothing amiss      */
} plugin_conduct;

/* Call the operation, without any check. A backend with device memory gets its tensors
 * there; `args` is as before afterwards. */
slm_status plugin_call(const slm_plugin *plugin, const plugin_session *session,
                       slm_op op, void *args, slm_error *error,
                       plugin_conduct *conduct);

#endif
