/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee_child.c - the process that holds a backend: started, heard, ended. */
#include "testee_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int child_descriptor(int fd)
{
    const int moved = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 10);

    if (fd >= 0) close(fd);
    return moved;
}

static int make_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC)) return 0;
    ends[0] = child_descriptor(ends[0]);
    ends[1] = child_descriptor(ends[1]);
    return ends[0] >= 0 && ends[1] >= 0;
}

/* The host lies beside this program. */
static void host_path(char *path, size_t size)
{
    const ssize_t length = readlink("/proc/self/exe", path, size - 16);
    char *slash;

    path[length > 0 ? length : 0] = '\0';
    slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "slmoe-host");
}

/* 0, or the number of the error. The pipes lie above the descriptors that they become. */
static int spawn(child_testee *testee, const char *path, int request, int reply,
                 int output)
{
    char *argv[] = {(char *)(uintptr_t)path, testee->name, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, ignored;
    int failed;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_adddup2(&actions, output, 2);
    posix_spawn_file_actions_adddup2(&actions, request, HOST_REQUEST_FD);
    posix_spawn_file_actions_adddup2(&actions, reply, HOST_REPLY_FD);
    posix_spawn_file_actions_adddup2(&actions, testee->arena, HOST_ARENA_FD);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP |
                                              POSIX_SPAWN_SETSIGMASK |
                                              POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    sigemptyset(&none);
    sigemptyset(&ignored);
    sigaddset(&ignored, SIGPIPE);
    sigaddset(&ignored, SIGXFSZ);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &ignored);
    failed = posix_spawn(&testee->pid, path, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) testee->pid = 0;
    return failed;
}

static void close_end(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void child_stop(child_testee *testee)
{
    int status;

    if (testee->pid) {
        kill(-testee->pid, SIGKILL);
        while (waitpid(testee->pid, &status, 0) < 0 && errno == EINTR) {
        }
    }
    testee->pid = 0;
    testee->open = false;
    close_end(&testee->process);
    close_end(&testee->request);
    close_end(&testee->output);
    close_end(&testee->reader.fd);
    protocol_close(&testee->reader);
}

void child_leave(child_testee *testee)
{
    const double deadline = stopwatch_now() + 5;
    json_t *message;

    close_end(&testee->request);
    while (testee->pid && child_hear(testee, deadline, &message) == PROTOCOL_MESSAGE)
        json_decref(message);
    child_stop(testee);
}

/* Take in what the testee printed; of more than fits the beginning is kept. */
static void drain(child_testee *testee)
{
    char text[4096];
    ssize_t n;

    while (testee->output >= 0) {
        n = read(testee->output, text, sizeof text);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) close_end(&testee->output);
        if (n <= 0) return;

        const size_t room = sizeof testee->printed - 1 - testee->n_printed;
        const size_t taken = (size_t)n < room ? (size_t)n : room;

        for (size_t i = 0; i < taken; i++)
            testee->printed[testee->n_printed++] = text[i] ? text[i] : '?';
        if ((size_t)n < sizeof text) return;
    }
}

protocol_result child_hear(child_testee *testee, double deadline, json_t **message)
{
    for (;;) {
        protocol_result result = protocol_receive(&testee->reader, 0, message);
        struct pollfd wait[] = {{.fd = testee->reader.fd, .events = POLLIN},
                                {.fd = testee->process, .events = POLLIN},
                                {.fd = testee->output, .events = POLLIN}};
        const double left = deadline - stopwatch_now();

        if (result != PROTOCOL_LATE || left <= 0) return result;
        if (poll(wait, 3, protocol_milliseconds(left)) < 0 && errno != EINTR)
            return PROTOCOL_END;
        if (wait[2].revents) drain(testee);
        if (wait[1].revents && !wait[0].revents) return PROTOCOL_END;
    }
}

const char *child_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

void child_output(child_testee *testee, testee_reply *reply)
{
    json_t *text;

    drain(testee);
    testee->printed[testee->n_printed] = '\0';
    text = protocol_text(testee->printed, sizeof testee->printed);
    snprintf(reply->output, sizeof reply->output, "%s",
             text ? json_string_value(text) : "");
    json_decref(text);
    for (size_t i = strlen(reply->output); i && reply->output[i - 1] == '\n'; i--)
        reply->output[i - 1] = '\0';
    for (char *at = reply->output; *at; at++)
        if (((unsigned char)*at < ' ' && *at != '\n') || *at == 0x7f) *at = '?';
}

static int read_hello(child_testee *testee, const json_t *message, char *why)
{
    testee_about *about = &testee->base.about;
    const json_t *abi = json_object_get(message, "abi");

    if (strcmp(child_text(message, "type"), "refused") == 0) {
        /* our own host names the backend itself */
        if (strncmp(testee->name, "cmd:", 4) == 0)
            snprintf(why, TESTEE_WHY, "%s: refused to run: %s", testee->name,
                     child_text(message, "why"));
        else
            snprintf(why, TESTEE_WHY, "%s", child_text(message, "why"));
        return 0;
    }
    if (strcmp(child_text(message, "type"), "hello") != 0 ||
        json_integer_value(json_object_get(message, "protocol")) != PROTOCOL_VERSION) {
        snprintf(why, TESTEE_WHY,
                 "%s: its first message is not a hello of protocol %d\n"
                 "  spec/protocol.md describes it",
                 testee->name, PROTOCOL_VERSION);
        return 0;
    }
    about->abi_major = (uint32_t)json_integer_value(json_array_get(abi, 0));
    about->abi_minor = (uint32_t)json_integer_value(json_array_get(abi, 1));
    if (about->abi_major != SLM_ABI_MAJOR) {
        snprintf(why, TESTEE_WHY,
                 "%s: its hello says `abi` [%u, %u]; this suite judges [%d, N]",
                 testee->name, about->abi_major, about->abi_minor, SLM_ABI_MAJOR);
        return 0;
    }
    snprintf(about->name, sizeof about->name, "%s", child_text(message, "name"));
    snprintf(about->version, sizeof about->version, "%s",
             child_text(message, "version"));
    snprintf(about->url, sizeof about->url, "%s", child_text(message, "url"));
    snprintf(about->note, sizeof about->note, "%s", child_text(message, "note"));
    about->flags = (uint32_t)json_integer_value(json_object_get(message, "flags"));
    about->levels = (uint32_t)json_integer_value(json_object_get(message, "levels"));
    snprintf(about->emulated, sizeof about->emulated, "%s",
             child_text(message, "emulated"));
    about->certifiable = !about->emulated[0];
    about->neighbours = json_is_true(json_object_get(message, "neighbours"));
    if (about->name[0] && about->version[0] &&
        protocol_read_ops(json_object_get(message, "ops"), &about->offered) &&
        protocol_read_arithmetic(json_object_get(message, "arithmetic"),
                                 &about->arithmetic))
        return 1;
    snprintf(why, TESTEE_WHY,
             "%s: its hello lacks name, version, ops or arithmetic, or declares a "
             "roundoff\n  that is negative or not finite",
             testee->name);
    return 0;
}

/* Everything but the hello: 0, or the number of the error. */
static int launch(child_testee *testee, const char *path)
{
    int request[2] = {-1, -1}, reply[2] = {-1, -1}, output[2] = {-1, -1};
    int failed = EMFILE;

    if (make_pipe(request) && make_pipe(reply) && make_pipe(output))
        failed = spawn(testee, path, request[0], reply[1], output[1]);
    close_end(&request[0]);
    close_end(&reply[1]);
    close_end(&output[1]);
    testee->request = request[1];
    testee->output = output[0];
    if (!protocol_open(&testee->reader, reply[0])) failed = ENOMEM;
    if (failed) return failed;
    fcntl(testee->request, F_SETFL, O_NONBLOCK);
    fcntl(testee->output, F_SETFL, O_NONBLOCK);
    testee->process = (int)syscall(SYS_pidfd_open, testee->pid, 0);
    return 0;
}

/* The first message is no hello, or there is none. */
static void say_silence(child_testee *testee, protocol_result result, double seconds,
                        char *why)
{
    testee_reply end = {0};

    if (result == PROTOCOL_END) {
        child_bury(testee, NULL, NULL, &end);
    } else {
        snprintf(end.why, sizeof end.why,
                 result == PROTOCOL_LATE ? "nothing within %g s"
                                         : "its first line is not JSON",
                 seconds);
        child_output(testee, &end);
        child_stop(testee);
    }
    snprintf(why, TESTEE_WHY, "%s: did not say hello: %.120s%s%.200s", testee->name,
             end.why, end.output[0] ? "; it printed: " : "", end.output);
}

int child_start(child_testee *testee, char *why)
{
    const double seconds = 60 * (testee->options.slow > 1 ? testee->options.slow : 1);
    char path[4096];
    protocol_result result;
    json_t *message;
    int failed, ok = 0;

    if (testee->failed_starts == 3) {
        snprintf(why, TESTEE_WHY, "%s: its process could not be started three times",
                 testee->name);
        return 0;
    }
    testee->failed_starts++;
    testee->n_printed = 0;
    host_path(path, sizeof path);
    failed = launch(testee, path);
    if (failed) {
        snprintf(why, TESTEE_WHY, "%s: %.200s cannot be started: %s", testee->name,
                 path, strerror(failed));
        child_stop(testee);
        return 0;
    }
    result = child_hear(testee, stopwatch_now() + seconds, &message);
    if (result == PROTOCOL_MESSAGE) {
        ok = read_hello(testee, message, why);
        json_decref(message);
        if (!ok) child_stop(testee);
    } else {
        say_silence(testee, result, seconds, why);
    }
    if (ok) testee->failed_starts = 0;
    return ok;
}
