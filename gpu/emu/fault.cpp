/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/fault.cpp - findings: what, where in the source, under which schedule. */
#include "internal.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

namespace emu
{

std::string place(site at)
{
    return std::string(at.file) + ":" + std::to_string(at.line);
}

/* The program that holds pc, as addr2line can open it. */
static std::string image_of(const void *pc, uintptr_t *offset)
{
    Dl_info info;
    link_map *map = nullptr;

    if (!dladdr1(pc, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) return "";
    *offset = (uintptr_t)pc - map->l_addr;
    if (*map->l_name) return map->l_name;

    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);

    return length > 0 ? std::string(path, (size_t)length) : "";
}

std::string place(const void *pc)
{
    uintptr_t offset = 0;
    const std::string image = image_of((const char *)pc - 1, &offset);
    char command[4400], line[4096] = "";

    if (image.empty()) return "unknown code";
    snprintf(command, sizeof command, "addr2line -e '%s' %#zx 2>&1", image.c_str(),
             (size_t)offset);
    if (FILE *answer = popen(command, "r")) {
        if (!fgets(line, sizeof line, answer)) *line = '\0';
        pclose(answer);
    }

    std::string found = line;

    found = found.substr(0, found.find_first_of(" \n"));
    if (found.empty() || found[0] == '?')
        return image + "+" + std::to_string(offset) + " (built without -g?)";
    return found;
}

static const void *called_at; /* the public function, by the host */

void fault(const char *kind, const std::string &text)
{
    fprintf(stderr, "gpu-emu: %s: %s\n", kind, text.c_str());
    if (running && self)
        fprintf(stderr, "  kernel %s, block (%u,%u,%u), thread (%u,%u,%u)\n",
                running->what->name.c_str(), self->block.x, self->block.y,
                self->block.z, self->thread.x, self->thread.y, self->thread.z);
    if (running) called_at = running->what->asked_at;
    if (called_at) fprintf(stderr, "  asked for at %s\n", place(called_at).c_str());
    fprintf(stderr, "  schedule SLM_EMU_SEED=%u\n", schedule());
    fflush(stderr);
    abort();
}

/* A memory fault that the emulator provoked: it says so before the host's own handler,
 * or the default action, has its turn. */
static struct sigaction previous;

static void on_fault(int number, siginfo_t *info, void *context)
{
    const auto *registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
    const char *pc = (const char *)registers[REG_RIP];
    const char *what = nullptr;

    if (is_device(info->si_addr) && !running)
        what = "the host touched device memory";
    else if (is_device(info->si_addr))
        what = "a kernel reached beyond all device memory";
    else if (self && stack_owner(info->si_addr) >= 0)
        what = "a thread's stack overflowed: local arrays or recursion";
    else if (self && is_shared(info->si_addr))
        what = "a kernel reached beyond shared memory";
    sigaction(number, &previous, nullptr);
    if (!running) called_at = nullptr;
    if (what) fault("memory", std::string(what) + " at " + place(pc + 1));
}

/* A stack that has overflowed cannot hold the handler. */
static void give_a_stack_for_signals()
{
    static thread_local char room[1 << 16];
    stack_t stack = {}, present = {};

    stack.ss_sp = room;
    stack.ss_size = sizeof room;
    sigaltstack(nullptr, &present);
    if (present.ss_flags & SS_DISABLE) sigaltstack(&stack, nullptr);
}

static void catch_faults()
{
    struct sigaction action = {};

    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &previous);
}

static std::recursive_mutex one_at_a_time;

entry::entry(const void *pc) : lock(one_at_a_time)
{
    static const bool caught = (catch_faults(), true);
    static thread_local const bool given = (give_a_stack_for_signals(), true);

    (void)caught;
    (void)given;
    called_at = pc;
}

} // namespace emu
