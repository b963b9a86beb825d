/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/plugin_neighbour.c - a second handle, alive beside the judged one.      A3 */
#include "plugin_neighbour.h"

#include "frame.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 64 };

struct plugin_neighbour {
    const slm_plugin *plugin;
    plugin_session session;
    unsigned char *weights; /* what the session's tensors refer to              */

    /* The call at hand: an argument struct whose tensors lie in `live`, and what lay
     * there before a call. */
    slm_op op;
    slm_call *args;
    unsigned char *live;
    unsigned char *pristine;
    size_t bytes;

    pthread_t thread;
    bool working;
    atomic_bool begun;
    atomic_bool rest;
};

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static slm_tensor *member(void *of, const slm_field *field)
{
    return (slm_tensor *)((char *)of + field->offset);
}

static size_t bytes_of(const slm_tensor *tensor)
{
    return tensor->rank ? slm_tensor_count(tensor) * slm_dtype_size(tensor->dtype) : 0;
}

/* Bytes that copies of all tensors take. */
static size_t room_for(void *of, const slm_field *fields, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += whole_lines(bytes_of(member(of, fields + i)));
    return bytes;
}

/* Where the element of a row-major index lies. */
static const unsigned char *element(const slm_tensor *tensor, size_t index)
{
    ptrdiff_t at = 0;

    for (uint32_t i = tensor->rank; i-- > 0; index /= tensor->shape[i])
        at += (ptrdiff_t)(index % tensor->shape[i]) * tensor->stride[i];
    return (const unsigned char *)tensor->data +
           at * (ptrdiff_t)slm_dtype_size(tensor->dtype);
}

/* Put packed copies of all tensors one after the other, inputs turned, and point the
 * struct at them. */
static void move_in(void *of, const slm_field *fields, size_t n, unsigned char *to)
{
    for (size_t i = 0; i < n; i++) {
        slm_tensor *tensor = member(of, fields + i);
        const size_t count = tensor->rank ? slm_tensor_count(tensor) : 0;
        const size_t size = slm_dtype_size(tensor->dtype);
        const bool turned = frame_can_turn(fields + i);

        if (tensor->rank == 0) continue;
        for (size_t j = 0; j < count; j++)
            memcpy(to + (turned ? count - 1 - j : j) * size, element(tensor, j), size);
        *tensor = slm_tensor_packed(to, tensor->dtype, tensor->rank, tensor->shape);
        to += whole_lines(count * size);
    }
}

static void forget_call(plugin_neighbour *neighbour)
{
    free(neighbour->args);
    free(neighbour->live);
    free(neighbour->pristine);
    neighbour->args = NULL;
    neighbour->live = neighbour->pristine = NULL;
}

/* Copies of an argument struct's tensors and a workspace of its own. */
static int take_call(plugin_neighbour *neighbour, slm_op op, const void *args)
{
    const slm_op_info *info = slm_op_describe(op);
    size_t tensors, space;

    forget_call(neighbour);
    neighbour->op = op;
    neighbour->args = malloc(info->args_size);
    if (!neighbour->args) return 0;
    memcpy(neighbour->args, args, info->args_size);
    neighbour->args->progress = NULL;
    neighbour->args->progress_user = NULL;
    tensors = room_for(neighbour->args, info->fields, info->n_fields);
    space = plugin_workspace(neighbour->plugin, neighbour->session.handle, op,
                             neighbour->args);
    neighbour->bytes = tensors + whole_lines(space) + LINE;
    neighbour->live = aligned_alloc(LINE, neighbour->bytes);
    neighbour->pristine = malloc(neighbour->bytes);
    if (!neighbour->live || !neighbour->pristine) {
        forget_call(neighbour);
        return 0;
    }
    memset(neighbour->live, 0xff, neighbour->bytes);
    move_in(neighbour->args, info->fields, info->n_fields, neighbour->live);
    neighbour->args->workspace = space ? neighbour->live + tensors : NULL;
    neighbour->args->workspace_size = space;
    memcpy(neighbour->pristine, neighbour->live, neighbour->bytes);
    return 1;
}

/* Nobody asks what it comes to. */
static void call_once(plugin_neighbour *neighbour)
{
    plugin_conduct conduct;
    slm_error error;

    memcpy(neighbour->live, neighbour->pristine, neighbour->bytes);
    plugin_call(neighbour->plugin, &neighbour->session, neighbour->op, neighbour->args,
                &error, &conduct);
}

int plugin_neighbour_call(plugin_neighbour *neighbour, slm_op op, const void *args)
{
    if (!take_call(neighbour, op, args)) return 0;
    call_once(neighbour);
    return 1;
}

/* Calls beside one call of the same size: enough to cover it, few enough for a backend
 * that leaves something behind at each. */
enum { MOST_CALLS = 16 };

static void *work(void *user)
{
    plugin_neighbour *neighbour = user;
    const pid_t process = getpid();

    for (int i = 0; i < MOST_CALLS && !(i && atomic_load(&neighbour->rest)); i++) {
        atomic_store(&neighbour->begun, true);
        call_once(neighbour);
        if (getpid() != process) _exit(0); /* it forked, and this is the child */
    }
    return NULL;
}

int plugin_neighbour_work(plugin_neighbour *neighbour, slm_op op, const void *args)
{
    if (!take_call(neighbour, op, args)) return 0;
    atomic_store(&neighbour->begun, false);
    atomic_store(&neighbour->rest, false);
    if (pthread_create(&neighbour->thread, NULL, work, neighbour) != 0) return 0;
    neighbour->working = true;
    while (!atomic_load(&neighbour->begun)) sched_yield();
    return 1;
}

void plugin_neighbour_rest(plugin_neighbour *neighbour)
{
    if (!neighbour || !neighbour->working) return;
    atomic_store(&neighbour->rest, true);
    pthread_join(neighbour->thread, NULL);
    neighbour->working = false;
}

/* Other numbers, of the same sizes. */
static slm_config varied(const slm_config *config)
{
    slm_config other = *config;

    other.eps *= 2;
    other.beta_gate *= 2;
    other.beta_up *= 2;
    other.rate *= 2;
    return other;
}

/* Weights of its own; 0 without memory. */
static int take_weights(plugin_neighbour *neighbour, slm_weights *weights)
{
    size_t n;
    const slm_field *fields = slm_weight_fields(&n);

    neighbour->weights = aligned_alloc(LINE, room_for(weights, fields, n) + LINE);
    if (!neighbour->weights) return 0;
    move_in(weights, fields, n, neighbour->weights);
    return 1;
}

static slm_status open_with(plugin_neighbour *neighbour, const slm_config *config,
                            slm_op op, size_t n_tokens, const slm_weights *weights,
                            slm_error *error)
{
    const slm_plugin *plugin = neighbour->plugin;
    const slm_config other = varied(config);
    char reason[256];

    if (plugin_offers(plugin, &other, op, n_tokens, reason) &&
        plugin_begin(plugin, &other, op, weights, &neighbour->session, error) == SLM_OK)
        return SLM_OK;
    return plugin_begin(plugin, config, op, weights, &neighbour->session, error);
}

slm_status plugin_neighbour_open(const slm_plugin *plugin, const slm_config *config,
                                 slm_op op, size_t n_tokens, const slm_weights *weights,
                                 plugin_neighbour **out, slm_error *error)
{
    plugin_neighbour *neighbour = calloc(1, sizeof *neighbour);
    slm_weights own = *weights;
    slm_status status = SLM_ERR_MEMORY;

    *out = NULL;
    if (!neighbour || !take_weights(neighbour, &own)) {
        slm_fail(error, status, "open", "", 0, "memory");
    } else {
        neighbour->plugin = plugin;
        status = open_with(neighbour, config, op, n_tokens, &own, error);
    }
    if (status == SLM_OK) {
        *out = neighbour;
    } else if (neighbour) {
        free(neighbour->weights);
        free(neighbour);
    }
    return status;
}

void plugin_neighbour_close(plugin_neighbour *neighbour)
{
    if (!neighbour) return;
    plugin_neighbour_rest(neighbour);
    plugin_end(neighbour->plugin, &neighbour->session);
    forget_call(neighbour);
    free(neighbour->weights);
    free(neighbour);
}
