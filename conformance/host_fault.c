/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_fault.c - the last word of a host on a faulting access. */
#include "host_fault.h"
#include "protocol.h"

#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
#include <unistd.h>

/* A signal handler has no argument for these. */
static volatile uintptr_t arena_begin;
static volatile size_t arena_size;

/* A member that says whether the access was a write, where the machine tells. */
static const char *say_write(const ucontext_t *context)
{
#if defined(__x86_64__)
    return context->uc_mcontext.gregs[REG_ERR] & 2 ? ",\"write\":true"
                                                   : ",\"write\":false";
#else
    (void)context;
    return "";
#endif
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    const int inside = at - arena_begin < arena_size;
    char line[128];
    const int length =
        snprintf(line, sizeof line, "{\"type\":\"fault\",\"offset\":%lld%s}\n",
                 inside ? (long long)(at - arena_begin) : -1LL, say_write(context));

    if (write(HOST_REPLY_FD, line, (size_t)length) < 0) _exit(127);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

void host_fault_watch(void)
{
    static char stack[1 << 16];
    const stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    const struct sigaction action = {.sa_sigaction = on_fault,
                                     .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};

    sigaltstack(&alternative, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

void host_fault_arena(const void *arena, size_t size)
{
    arena_begin = (uintptr_t)arena;
    arena_size = size;
}
