/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host.c - slmoe-host: holds one backend, and nothing else.
 *
 * Reads requests, calls the backend on tensors in the arena, replies. It never sees an
 * expected value. spec/protocol.md describes the messages. */
#include "environment.h"
#include "host_bench.h"
#include "host_fault.h"
#include "host_memory.h"
#include "plugin_neighbour.h"
#include "protocol.h"
#include "registry.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef struct host_state {
    slm_plugin plugin;
    plugin_session session;
    plugin_neighbour *neighbour;
    host_memory memory;
    bool open; /* the session is */
} host_state;

/* What `slmoe` tells from a text that a backend or the system wrote. */
enum { TEXT = 1024 };

static json_t *refusal(const char *why)
{
    return json_pack("{s:s, s:o}", "type", "refused", "why", protocol_text(why, TEXT));
}

static json_t *hello(const host_state *host)
{
    const slm_backend *table = &host->plugin.table;
    const char *note = getenv(ENVIRONMENT_NOTE);
    json_t *message = json_pack(
        "{s:s, s:i, s:o, s:o, s:o, s:o, s:[I,I], s:I, s:I, s:b, s:o, s:o}", "type",
        "hello", "protocol", PROTOCOL_VERSION, "name", protocol_text(table->name, TEXT),
        "version", protocol_text(table->version, TEXT), "url",
        protocol_text(table->url ? table->url : "", TEXT), "note",
        protocol_text(note ? note : "", TEXT), "abi", (json_int_t)table->abi_major,
        (json_int_t)table->abi_minor, "flags", (json_int_t)table->flags, "levels",
        (json_int_t)table->levels, "neighbours", 1, "ops",
        protocol_ops(plugin_offered(&host->plugin)), "arithmetic",
        protocol_arithmetic(&host->plugin.arithmetic));

    if (host->plugin.emulated)
        json_object_set_new(message, "emulated",
                            protocol_text(host->plugin.emulated, TEXT));
    return message;
}

typedef struct call_request {
    slm_op op;
    slm_config config;
    slm_call call;
} call_request;

static int read_request(const json_t *message, call_request *request)
{
    const char *op = json_string_value(json_object_get(message, "op"));

    memset(request, 0, sizeof *request);
    request->op = op ? slm_op_find(op) : SLM_OP_COUNT;
    request->call.struct_size = sizeof request->call;
    request->call.n_tokens =
        (size_t)json_integer_value(json_object_get(message, "n_tokens"));
    request->call.n_parts =
        (size_t)json_integer_value(json_object_get(message, "n_parts"));
    return request->op < SLM_OP_COUNT &&
           protocol_read_config(json_object_get(message, "config"), &request->config);
}

static json_t *reply_status(slm_status status, const slm_error *error)
{
    const int known = (unsigned)status < SLM_STATUS_COUNT;
    char number[24];
    json_t *reply;

    snprintf(number, sizeof number, "%d", (int)status);
    reply = json_pack("{s:s, s:s}", "type", "status", "status",
                      known ? slm_status_name(status) : number);
    if (status == SLM_OK) return reply;
    json_object_set_new(reply, "op", protocol_text(error->op, SLM_NAME));
    json_object_set_new(reply, "field", protocol_text(error->field, SLM_NAME));
    json_object_set_new(reply, "index", json_integer((json_int_t)error->index));
    json_object_set_new(reply, "expected",
                        protocol_text(error->expected, SLM_EXPECTED));
    return reply;
}

/* The arena stays as long as anything is open. */
static void let_go(host_state *host)
{
    if (host->open || host->neighbour) return;
    host_memory_unmap(&host->memory);
    malloc_trim(0); /* what is still resident then was kept */
}

static void close_handle(host_state *host)
{
    if (host->open) plugin_end(&host->plugin, &host->session);
    host->open = false;
    let_go(host);
}

static void close_neighbour(host_state *host)
{
    plugin_neighbour_close(host->neighbour);
    host->neighbour = NULL;
    let_go(host);
}

static json_t *open_handle(host_state *host, const json_t *message)
{
    const bool beside = json_is_true(json_object_get(message, "neighbour"));
    slm_weights weights = {.struct_size = sizeof weights};
    slm_error error = {0};
    call_request request;
    slm_status status;

    if (beside)
        close_neighbour(host);
    else
        close_handle(host);
    if (!read_request(message, &request)) return refusal("open: not understood");
    if (!host->memory.arena && !host_memory_map(&host->memory, message))
        return reply_status(slm_fail(&error, SLM_ERR_MEMORY,
                                     slm_op_describe(request.op)->name, "arena", 0,
                                     "address space for it"),
                            &error);
    if (!host_memory_allow(&host->memory, message) ||
        !host_memory_tensors(&host->memory, message, request.op, NULL, &weights)) {
        let_go(host);
        return refusal("open: the arena is not as the message says");
    }
    if (beside) {
        status = plugin_neighbour_open(&host->plugin, &request.config, request.op,
                                       request.call.n_tokens, &weights,
                                       &host->neighbour, &error);
    } else {
        status = plugin_begin(&host->plugin, &request.config, request.op, &weights,
                              &host->session, &error);
        host->open = status == SLM_OK;
    }
    let_go(host);
    return reply_status(status, &error);
}

/* At most ten a second. */
static void tell_progress(void *user, size_t done, size_t total)
{
    double *last = user;

    if (stopwatch_now() < *last + 0.1) return;
    *last = stopwatch_now();
    protocol_send(HOST_REPLY_FD,
                  json_pack("{s:s, s:I, s:I}", "type", "progress", "done",
                            (json_int_t)done, "total", (json_int_t)total));
}

/* Let the other handle do what a call's message says: one call, or calls until it is told
 * to rest. Returns whether it could. */
static bool start_neighbour(const host_state *host, const json_t *message, slm_op op,
                            const slm_call *args)
{
    const char *when = json_string_value(json_object_get(message, "neighbour"));

    if (!when) return true;
    if (!host->neighbour) return false;
    if (strcmp(when, "before") == 0)
        return plugin_neighbour_call(host->neighbour, op, args);
    return strcmp(when, "during") == 0 &&
           plugin_neighbour_work(host->neighbour, op, args);
}

static json_t *call(const host_state *host, const json_t *message)
{
    slm_error error = {0};
    call_request request;
    plugin_conduct conduct;
    double last = stopwatch_now();
    json_t *reply = NULL;

    if (!host->open || !read_request(message, &request))
        return refusal("call: not understood, or nothing is open");

    const slm_op_info *info = slm_op_describe(request.op);
    slm_call *args = calloc(1, info->args_size);

    if (!args) return refusal("call: out of memory");
    *args = request.call;
    args->struct_size = info->args_size;
    args->progress = tell_progress;
    args->progress_user = &last;
    if (host_memory_workspace(&host->memory, message, args) &&
        host_memory_tensors(&host->memory, message, request.op, args, NULL) &&
        start_neighbour(host, message, request.op, args)) {
        const double start = stopwatch_now();
        const slm_status status = plugin_call(&host->plugin, &host->session, request.op,
                                              args, &error, &conduct);
        const double seconds = stopwatch_now() - start;

        plugin_neighbour_rest(host->neighbour);
        reply = reply_status(status, &error);
        json_object_set_new(reply, "seconds", json_real(seconds));
        json_object_set_new(reply, "environment", json_boolean(conduct.environment));
        if (conduct.broken[0])
            json_object_set_new(reply, "broken",
                                protocol_text(conduct.broken, sizeof conduct.broken));
    }
    free(args);
    return reply ? reply
                 : refusal("call: a tensor or the neighbour was not understood");
}

static json_t *answer(host_state *host, const json_t *message)
{
    const char *type = json_string_value(json_object_get(message, "type"));
    char reason[256] = "";
    call_request request;

    if (!type) return refusal("a message without type");
    if (strcmp(type, "open") == 0) return open_handle(host, message);
    if (strcmp(type, "call") == 0) return call(host, message);
    if (strcmp(type, "close") == 0) {
        if (json_is_true(json_object_get(message, "neighbour")))
            close_neighbour(host);
        else
            close_handle(host);
        return reply_status(SLM_OK, NULL);
    }
    if (!read_request(message, &request)) return refusal("request: not understood");
    if (strcmp(type, "supports") == 0) {
        const int offered = plugin_offers(&host->plugin, &request.config, request.op,
                                          request.call.n_tokens, reason);

        return json_pack("{s:s, s:b, s:o}", "type", "supports", "offered", offered,
                         "reason", protocol_text(reason, sizeof reason));
    }
    if (strcmp(type, "workspace") == 0) {
        const size_t bytes = plugin_ask_workspace(&host->plugin, &request.config,
                                                  request.op, &request.call);

        return json_pack("{s:s, s:I}", "type", "workspace", "bytes", (json_int_t)bytes);
    }
    return refusal("a message of unknown type");
}

/* A testee in another language takes this process and its descriptors over. */
static int become(const char *command)
{
    char *shell = malloc(strlen(command) + sizeof "exec ");

    if (!shell) return 3;
    strcpy(shell, "exec ");
    strcat(shell, command);
    execl("/bin/sh", "sh", "-c", shell, (char *)NULL);
    perror("/bin/sh");
    free(shell);
    return 127;
}

/* A process that the backend forks must not answer in its name. */
static void forget_judge(void)
{
    close(HOST_REQUEST_FD);
    close(HOST_REPLY_FD);
}

/* A line for each built-in: its name and, after a tab, why it was left out. */
static int list_builtins(void)
{
    for (size_t i = 0; registry_name(i); i++) {
        const char *missing = registry_missing(registry_name(i));

        printf("%s%s%s\n", registry_name(i), missing ? "\t" : "",
               missing ? missing : "");
    }
    return 0;
}

static void keep_to_itself(void)
{
    for (int fd = HOST_REQUEST_FD; fd <= HOST_ARENA_FD; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    pthread_atfork(NULL, NULL, forget_judge);
}

/* What is our own and calls no BLAS. */
static int is_ours(const char *name)
{
    return strcmp(name, "ref") == 0 || strncmp(name, "mutant:", 7) == 0 ||
           strncmp(name, "variant:", 8) == 0;
}

int main(int argc, char **argv)
{
    char why[PLUGIN_WHY];
    host_state host = {0};
    protocol_reader reader;
    json_t *message;
    int open;

    if (argc == 2 && strcmp(argv[1], "--list") == 0) return list_builtins();
    if (argc != 2 || !protocol_open(&reader, HOST_REQUEST_FD)) {
        fputs("slmoe-host is started by slmoe\n", stderr);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (strncmp(argv[1], "cmd:", 4) == 0) return become(argv[1] + 4);
    if (!is_ours(argv[1])) environment_prepare(argv);
    keep_to_itself();
    setvbuf(stdout, NULL, _IOLBF,
            BUFSIZ); /* a crash must not swallow what was printed */
    if (strcmp(argv[1], HOST_BENCH) == 0) return host_bench();
    if (!plugin_open(&host.plugin, argv[1], why)) {
        protocol_send(HOST_REPLY_FD, refusal(why));
        return 4;
    }
    host_fault_watch();
    open = protocol_send(HOST_REPLY_FD, hello(&host));
    while (open && protocol_receive(&reader, -1, &message) == PROTOCOL_MESSAGE) {
        json_t *reply = answer(&host, message);

        json_decref(message);
        fflush(stdout);
        open = protocol_send(HOST_REPLY_FD, reply);
    }
    protocol_close(&reader);
    if (open) return 0;
    fputs("slmoe-host: its reply descriptor is closed\n", stderr);
    return 3;
}
