/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_bench.c - slmoe-host as the process in which backends are timed.
 *
 * It holds all of them, and their common tensors, and measures the roof: what is compared
 * has the same process, memory and moment. Its requests are between `slmoe` and this file
 * alone; no other program need know them. */
#include "host_bench.h"
#include "bench_case.h"
#include "host_bench_data.h"
#include "host_bench_roof.h"
#include "plugin.h"
#include "protocol.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 8, TEXT = 512 };

/* A backend, and what it needs for the calls at hand. */
typedef struct bench_slot {
    slm_plugin plugin;
    plugin_session *sessions; /* [layers]                                     */
    plugin_device **devices;  /* [places] of tensors in device memory, or NULL */
    char *args;               /* [places], with its workspace                 */
    void *workspace;
    size_t next; /* call */
} bench_slot;

typedef struct bench_host {
    bench_data data;
    size_t n_slots;
    bench_slot slots[SLOTS];
} bench_host;

static size_t size_of(const json_t *message, const char *key)
{
    return (size_t)json_integer_value(json_object_get(message, key));
}

static json_t *refuse(const char *why)
{
    return json_pack("{s:s, s:o}", "type", "refused", "why", protocol_text(why, TEXT));
}

static json_t *refuse_status(const char *what, slm_status status,
                             const slm_error *error)
{
    char why[TEXT];

    snprintf(why, sizeof why, "%s returned %s (%.31s: %.159s)", what,
             slm_status_name(status), error->field, error->expected);
    return refuse(why);
}

static slm_status dispatch(const bench_slot *slot, slm_op op, slm_handle *handle,
                           const void *args, slm_error *error)
{
    switch (op) {
#define CASE(name, level, purpose)                                                     \
    case SLM_OP_##name:                                                                \
        return slot->plugin.ops.name(handle, args, error);
        SLM_OPS(CASE)
#undef CASE
    default:
        return SLM_ERR_INTERNAL;
    }
}

static slm_call *args_of(const bench_host *host, const bench_slot *slot, size_t place)
{
    return (slm_call *)(void *)(slot->args + place * host->data.args_size);
}

/* ---- a slot opened and closed ---- */

static void shut(bench_host *host, bench_slot *slot)
{
    for (size_t place = 0; slot->devices && place < host->data.places; place++)
        device_release(slot->devices[place], NULL);
    for (size_t layer = 0; slot->sessions && layer < host->data.layers; layer++)
        plugin_end(&slot->plugin, &slot->sessions[layer]);
    free(slot->devices);
    free(slot->sessions);
    free(slot->workspace);
    free(slot->args);
    slot->devices = NULL;
    slot->sessions = NULL;
    slot->workspace = NULL;
    slot->args = NULL;
    slot->next = 0;
}

static json_t *prepare(bench_host *host, bench_slot *slot)
{
    const bench_data *data = &host->data;

    slot->sessions = calloc(data->layers, sizeof *slot->sessions);
    if (!slot->sessions) return refuse("out of memory");
    for (size_t layer = 0; layer < data->layers; layer++) {
        slm_error error = {0};
        const slm_status status =
            plugin_begin(&slot->plugin, &data->config, data->op,
                         data->weights ? &data->weights[layer] : NULL,
                         &slot->sessions[layer], &error);

        if (status != SLM_OK) return refuse_status("prepare()", status, &error);
    }
    return NULL;
}

/* Its own arguments: the common tensors and its workspace, on a device where it has
 * one. */
static json_t *arrange(bench_host *host, bench_slot *slot)
{
    const bench_data *data = &host->data;
    const size_t bytes = plugin_workspace(&slot->plugin, slot->sessions[0].handle,
                                          data->op, bench_data_args(data, 0));

    slot->args = malloc(data->places * data->args_size);
    if (bytes > SIZE_MAX / 2) return refuse("wants too large a workspace");
    slot->workspace = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (!slot->args || !slot->workspace) return refuse("out of memory");
    memset(slot->workspace, 0, bytes);
    memcpy(slot->args, data->args, data->places * data->args_size);
    for (size_t place = 0; place < data->places; place++) {
        slm_call *call = args_of(host, slot, place);

        call->workspace = bytes ? slot->workspace : NULL;
        call->workspace_size = bytes;
    }
    if (!device_is_wanted(&slot->plugin.table)) return NULL;
    slot->devices = calloc(data->places, sizeof *slot->devices);
    for (size_t place = 0; slot->devices && place < data->places; place++) {
        slot->devices[place] =
            device_place(&slot->plugin.table, data->op, args_of(host, slot, place));
        if (!slot->devices[place]) return refuse("out of device memory");
    }
    return slot->devices ? NULL : refuse("out of memory");
}

/* One after the other; a device is waited for at the end. */
static json_t *make_calls(bench_host *host, bench_slot *slot, size_t calls)
{
    const bench_data *data = &host->data;
    slm_error error = {0};

    for (size_t i = 0; i < calls; i++, slot->next++) {
        const slm_status status =
            dispatch(slot, data->op, slot->sessions[slot->next % data->layers].handle,
                     args_of(host, slot, slot->next % data->places), &error);

        if (status != SLM_OK)
            return refuse_status(slm_op_describe(data->op)->name, status, &error);
    }
    if (slot->devices && slot->plugin.table.sync(NULL) != 0)
        return refuse("sync() failed");
    return NULL;
}

/* The experts that the last call chose, or was told. */
static const int32_t *chosen(const bench_host *host, size_t place)
{
    const slm_op_info *info = slm_op_describe(host->data.op);

    if (!info->prepared) return NULL;
    for (size_t i = 0; i < info->n_fields; i++)
        if (strcmp(info->fields[i].name, "ids") == 0)
            return ((const slm_tensor *)(void *)((char *)bench_data_args(&host->data,
                                                                         place) +
                                                 info->fields[i].offset))
                ->data;
    return NULL;
}

/* Every place once: warms up, and counts the experts that calls need. */
static json_t *rehearse(bench_host *host, bench_slot *slot)
{
    const bench_data *data = &host->data;
    const size_t n = data->config.n_experts;
    unsigned char *reached = calloc(data->layers, n + 1);
    double experts = 0, all = 0;
    json_t *failed = reached ? NULL : refuse("out of memory");

    for (size_t place = 0; !failed && place < data->places; place++) {
        const int32_t *ids = chosen(host, place);
        char why[DEVICE_WHY] = "";

        failed = make_calls(host, slot, 1);
        if (!failed && slot->devices &&
            !device_collect(slot->devices[place], NULL, why))
            failed = refuse(why);
        if (!failed && ids)
            experts += (double)bench_count_experts(
                ids, data->n_tokens * data->config.top_k,
                reached + place % data->layers * (n + 1), n);
    }
    for (size_t i = 0; reached && i < data->layers * (n + 1); i++) all += reached[i];
    free(reached);
    if (failed) return failed;
    return json_pack("{s:s, s:f, s:f}", "type", "opened", "experts",
                     experts / (double)data->places, "reached",
                     all / (double)data->layers);
}

/* ---- requests ---- */

static json_t *load(bench_host *host, const json_t *message)
{
    const char *name = json_string_value(json_object_get(message, "backend"));
    char why[PLUGIN_WHY];

    if (!name || host->n_slots == SLOTS) return refuse("load: not understood");
    if (!plugin_open(&host->slots[host->n_slots].plugin, name, why)) return refuse(why);
    host->n_slots++;
    return json_pack("{s:s, s:b, s:I}", "type", "loaded", "device",
                     device_is_wanted(&host->slots[host->n_slots - 1].plugin.table),
                     "slot", (json_int_t)host->n_slots - 1);
}

/* The device that backends were loaded for: the first one's. */
static const slm_plugin *device_of(const bench_host *host)
{
    for (size_t i = 0; i < host->n_slots; i++)
        if (device_is_wanted(&host->slots[i].plugin.table))
            return &host->slots[i].plugin;
    return NULL;
}

static json_t *roof(const bench_host *host, const json_t *message)
{
    const double largest = json_number_value(json_object_get(message, "largest"));
    const slm_plugin *device = device_of(host);

    if (!json_is_true(json_object_get(message, "device")))
        return host_roof_of_cpus(size_of(message, "threads"), largest);
    return device ? host_roof_of_device(device->emulated != NULL, largest)
                  : refuse("roof: no backend has a device");
}

static json_t *work(bench_host *host, const json_t *message)
{
    const char *name = json_string_value(json_object_get(message, "op"));
    const slm_op op = name ? slm_op_find(name) : SLM_OP_COUNT;
    slm_config config;

    for (size_t i = 0; i < host->n_slots; i++) shut(host, &host->slots[i]);
    bench_data_free(&host->data);
    if (op == SLM_OP_COUNT ||
        !protocol_read_config(json_object_get(message, "config"), &config) ||
        size_of(message, "layers") == 0 || size_of(message, "places") == 0)
        return refuse("work: not understood");
    if (!bench_data_make(&host->data, op, &config, size_of(message, "n_tokens"),
                         size_of(message, "layers"), size_of(message, "places")))
        return refuse("out of memory for the tensors");
    return json_pack("{s:s}", "type", "ready");
}

static bench_slot *slot_of(bench_host *host, const json_t *message)
{
    const size_t index = size_of(message, "slot");

    return host->data.args && index < host->n_slots ? &host->slots[index] : NULL;
}

static json_t *open_slot(bench_host *host, const json_t *message)
{
    bench_slot *slot = slot_of(host, message);
    json_t *failed;

    if (!slot) return refuse("open: there is no such slot, or no work");
    failed = prepare(host, slot);
    if (!failed) failed = arrange(host, slot);
    if (!failed) return rehearse(host, slot);
    shut(host, slot);
    return failed;
}

static json_t *batch(bench_host *host, const json_t *message)
{
    bench_slot *slot = slot_of(host, message);
    const double start = stopwatch_now();
    json_t *failed;

    if (!slot || !slot->args) return refuse("batch: nothing is open");
    failed = make_calls(host, slot, size_of(message, "calls"));
    if (failed) return failed;
    return json_pack("{s:s, s:f}", "type", "batch", "seconds", stopwatch_now() - start);
}

static json_t *phase_of(const slm_phase *from)
{
    return json_pack("{s:o, s:f, s:f, s:f}", "name",
                     protocol_text(from->name, sizeof from->name), "seconds",
                     from->seconds, "flops", from->flops, "bytes", from->bytes);
}

/* The account of all calls since it was asked for last: an empty list where the backend
 * keeps none. Sets of weights have a handle each. */
static json_t *phases(bench_host *host, const json_t *message)
{
    bench_slot *slot = slot_of(host, message);
    slm_phase sum[SLM_MAX_PHASES] = {0}, own[SLM_MAX_PHASES];
    json_t *list;
    size_t n = 0;

    if (!slot || !slot->args) return refuse("phases: nothing is open");
    for (size_t layer = 0; slot->plugin.phases && layer < host->data.layers; layer++) {
        const size_t got =
            slot->plugin.phases(slot->sessions[layer].handle, own, SLM_MAX_PHASES);

        for (size_t i = 0; i < got && i < SLM_MAX_PHASES; i++) {
            memcpy(sum[i].name, own[i].name, sizeof sum[i].name);
            sum[i].seconds += own[i].seconds;
            sum[i].flops += own[i].flops;
            sum[i].bytes += own[i].bytes;
        }
        if (got > n) n = got < SLM_MAX_PHASES ? got : SLM_MAX_PHASES;
    }
    list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, phase_of(&sum[i]));
    return json_pack("{s:s, s:o}", "type", "phases", "list", list);
}

static json_t *answer(bench_host *host, const json_t *message)
{
    const char *type = json_string_value(json_object_get(message, "type"));

    if (!type) return refuse("a message without type");
    if (strcmp(type, "load") == 0) return load(host, message);
    if (strcmp(type, "roof") == 0) return roof(host, message);
    if (strcmp(type, "work") == 0) return work(host, message);
    if (strcmp(type, "open") == 0) return open_slot(host, message);
    if (strcmp(type, "batch") == 0) return batch(host, message);
    if (strcmp(type, "phases") == 0) return phases(host, message);
    return refuse("a message of unknown type");
}

int host_bench(void)
{
    static const slm_arithmetic none = {.struct_size = sizeof none};
    const char *core = getenv("OPENBLAS_CORETYPE");
    bench_host *host = calloc(1, sizeof *host);
    protocol_reader reader;
    json_t *message;
    int open;

    if (!host || !protocol_open(&reader, HOST_REQUEST_FD)) return 3;
    open = protocol_send(HOST_REPLY_FD,
                         json_pack("{s:s, s:i, s:s, s:s, s:s, s:[i], s:o, s:o}", "type",
                                   "hello", "protocol", PROTOCOL_VERSION, "name",
                                   "bench", "version", "1", "note", core ? core : "",
                                   "abi", SLM_ABI_MAJOR, "ops", protocol_ops(0),
                                   "arithmetic", protocol_arithmetic(&none)));
    while (open && protocol_receive(&reader, -1, &message) == PROTOCOL_MESSAGE) {
        json_t *reply = answer(host, message);

        json_decref(message);
        fflush(stdout);
        open = protocol_send(HOST_REPLY_FD, reply);
    }
    for (size_t i = 0; i < host->n_slots; i++) shut(host, &host->slots[i]);
    bench_data_free(&host->data);
    protocol_close(&reader);
    free(host);
    return open ? 0 : 3;
}
