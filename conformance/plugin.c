/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/plugin.c - call through a backend's table. */
#include "plugin.h"

#include <fenv.h>
#include <stdio.h>
#include <string.h>

static void take(void *to, size_t to_size, const void *from, size_t from_size)
{
    memset(to, 0, to_size);
    memcpy(to, from, from_size < to_size ? from_size : to_size);
}

/* The size up to which ABI 1.0 defined the table: shorter is not a table. */
enum { TABLE_1_0 = offsetof(slm_backend, sync) + sizeof(void *) };

int plugin_adopt(slm_plugin *plugin, const slm_backend *table, const char *name,
                 char *why)
{
    if (table->abi_major != SLM_ABI_MAJOR) {
        snprintf(why, PLUGIN_WHY,
                 "%s: speaks ABI %u, this harness ABI %d\n"
                 "  rebuild it against spec/include/slm/backend.h of this checkout",
                 name, table->abi_major, SLM_ABI_MAJOR);
        return 0;
    }
    if (table->struct_size < TABLE_1_0 || !table->name || !table->version ||
        !table->arithmetic || !table->ops) {
        snprintf(why, PLUGIN_WHY,
                 "%s: its table lacks struct_size, name, version, arithmetic or ops\n"
                 "  fill them as spec/include/slm/backend.h says",
                 name);
        return 0;
    }
    if (table->ops->struct_size <= sizeof(size_t) ||
        table->arithmetic->struct_size <= sizeof(size_t)) {
        snprintf(why, PLUGIN_WHY,
                 "%s: struct_size of its ops or arithmetic is not set\n"
                 "  it is the sizeof of the struct, for each of the three",
                 name);
        return 0;
    }
    take(&plugin->table, sizeof plugin->table, table, table->struct_size);
    take(&plugin->ops, sizeof plugin->ops, table->ops, table->ops->struct_size);
    take(&plugin->arithmetic, sizeof plugin->arithmetic, table->arithmetic,
         table->arithmetic->struct_size);
    if (plugin->ops.layer_forward && !plugin->table.prepare) {
        snprintf(why, PLUGIN_WHY, "%s: offers layer_forward without prepare()", name);
        return 0;
    }
    plugin->table.ops = &plugin->ops;
    plugin->table.arithmetic = &plugin->arithmetic;
    return 1;
}

static int has_op(const slm_ops *ops, slm_op op)
{
    switch (op) {
#define CASE(name, level, purpose)                                                     \
    case SLM_OP_##name:                                                                \
        return ops->name != NULL;
        SLM_OPS(CASE)
#undef CASE
    default:
        return 0;
    }
}

int plugin_offers(const slm_plugin *plugin, const slm_config *config, slm_op op,
                  size_t n_tokens, char *reason)
{
    const slm_op_info *info = slm_op_describe(op);

    if (!has_op(&plugin->ops, op)) {
        snprintf(reason, 256, "the backend has no `%s`", info->name);
        return 0;
    }
    if (!(plugin->table.levels & info->level)) {
        snprintf(reason, 256, "the backend does not claim the level of `%s`",
                 info->name);
        return 0;
    }
    if (!plugin->table.supports) return 1;
    reason[0] = '\0';
    if (plugin->table.supports(config, op, n_tokens, reason, 256)) return 1;
    reason[255] = '\0';
    if (!reason[0]) snprintf(reason, 256, "the backend gives no reason");
    return 0;
}

/* Weights in device memory stay there until the handle is closed. */
static slm_status prepare(const slm_plugin *plugin, const slm_weights *weights,
                          plugin_session *session, slm_error *error)
{
    slm_weights placed = *weights;

    if (device_is_wanted(&plugin->table)) {
        session->weights = device_place(&plugin->table, SLM_OP_COUNT, &placed);
        if (!session->weights)
            return slm_fail(error, SLM_ERR_MEMORY, "prepare", "", 0,
                            "device memory for the weights");
    }
    return plugin->table.prepare(session->handle, &placed, error);
}

slm_status plugin_begin(const slm_plugin *plugin, const slm_config *config, slm_op op,
                        const slm_weights *weights, plugin_session *session,
                        slm_error *error)
{
    slm_status status = SLM_OK;
    fenv_t environment;

    *session = (plugin_session){NULL, NULL};
    fegetenv(&environment);
    if (plugin->table.open)
        status = plugin->table.open(config, &session->handle, error);
    if (status != SLM_OK) session->handle = NULL;
    if (status == SLM_OK && op < SLM_OP_COUNT && slm_op_describe(op)->prepared) {
        status = prepare(plugin, weights, session, error);
        if (status != SLM_OK) plugin_end(plugin, session);
    }
    fesetenv(&environment);
    return status;
}

void plugin_end(const slm_plugin *plugin, plugin_session *session)
{
    if (plugin->table.close) plugin->table.close(session->handle);
    device_release(session->weights, NULL);
    *session = (plugin_session){NULL, NULL};
}

size_t plugin_workspace(const slm_plugin *plugin, slm_handle *handle, slm_op op,
                        const slm_call *call)
{
    return plugin->table.workspace ? plugin->table.workspace(handle, op, call) : 0;
}

size_t plugin_ask_workspace(const slm_plugin *plugin, const slm_config *config,
                            slm_op op, const slm_call *call)
{
    plugin_session session;
    size_t size;

    if (plugin_begin(plugin, config, SLM_OP_COUNT, NULL, &session, NULL) != SLM_OK)
        return 0;
    size = plugin_workspace(plugin, session.handle, op, call);
    plugin_end(plugin, &session);
    return size;
}

uint32_t plugin_offered(const slm_plugin *plugin)
{
    uint32_t offered = 0;

    for (int op = 0; op < SLM_OP_COUNT; op++)
        if (has_op(&plugin->ops, (slm_op)op)) offered |= 1u << op;
    return offered;
}

/* Rounding mode and, where the hardware shows it, flush-to-zero: does arithmetic still
 * do what IEEE 754 says? */
static int environment_changed(int rounding)
{
    volatile float smallest = 0x1p-126f;

    return fegetround() != rounding || smallest / 2 == 0;
}

static slm_status dispatch(const slm_plugin *plugin, slm_handle *handle, slm_op op,
                           const void *args, slm_error *error)
{
    switch (op) {
#define CASE(name, level, purpose)                                                     \
    case SLM_OP_##name:                                                                \
        return plugin->ops.name(handle, args, error);
        SLM_OPS(CASE)
#undef CASE
    default:
        return SLM_ERR_INTERNAL;
    }
}

/* With tensors in device memory. What is broken there counts more than the status. */
static slm_status dispatch_on_device(const slm_plugin *plugin,
                                     const plugin_session *session, slm_op op,
                                     void *args, slm_error *error, char *broken)
{
    plugin_device *device = device_place(&plugin->table, op, args);
    slm_status status;

    if (!device)
        return slm_fail(error, SLM_ERR_MEMORY, slm_op_describe(op)->name, "", 0,
                        "device memory for the tensors");
    status = dispatch(plugin, session->handle, op, args, error);
    if (device_collect(device, ((const slm_call *)args)->stream, broken) &&
        session->weights)
        device_collect(session->weights, NULL, broken);
    device_release(device, args);
    return status;
}

slm_status plugin_call(const slm_plugin *plugin, const plugin_session *session,
                       slm_op op, void *args, slm_error *error, plugin_conduct *conduct)
{
    const int rounding = fegetround();
    slm_status status;
    fenv_t saved;

    memset(conduct, 0, sizeof *conduct);
    fegetenv(&saved);
    if (device_is_wanted(&plugin->table))
        status = dispatch_on_device(plugin, session, op, args, error, conduct->broken);
    else
        status = dispatch(plugin, session->handle, op, args, error);
    conduct->environment = environment_changed(rounding);
    fesetenv(&saved);
    return status;
}
