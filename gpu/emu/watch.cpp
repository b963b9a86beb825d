/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/watch.cpp - the race build: every access of a kernel is looked at.
 *
 * The .cu files are compiled with -fsanitize=thread,alignment, which calls
 * __tsan_read4() and the like before each access; here are our own. Reported are
 *   race           two accesses to a byte, one a write, not both atomic, by threads
 *                  that nothing orders: a barrier (same block), a chain of __syncwarp
 *                  (same warp), streams and events (different launches, copies, GEMMs)
 *   uninitialised  a read of what nobody wrote
 *   alignment      an address that its type does not allow
 *   bounds         device or shared memory outside every object
 *   host memory    anything else that is neither the thread's own nor constant
 * Each word has a few slots for its last accesses; when they are full one is forgotten,
 * so that a race can be missed, but none is invented. */
#include "internal.h"

#include <link.h>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace emu
{

enum { SLOTS = 4, HOST_THREAD = MAX_THREADS };

struct access {
    const void *pc; /* NULL: the slot is empty              */
    uint32_t block, phase, tick;
    uint32_t number; /* of the task in its stream            */
    uint16_t stream, thread;
    uint8_t bytes; /* of the word, a bit each              */
    bool write, atomic;
};

/* The last accesses to a word, or to each word of a page alike. */
struct cell {
    access slot[SLOTS];
    uint8_t forget; /* the slot to give up next */
};

/* A thread's clock within its warp, and what it knows of the others' clocks. */
struct warp_clock {
    uint32_t now, seen[32];
};

struct traffic {
    uint64_t launches, loaded, stored;
};

/* Shadow memory: a cell and a state a word. The cells of device memory come a page at a
 * time, when a kernel first touches the page; until then copies, fills and GEMMs of
 * whole pages are noted once a page. */
enum : size_t { PAGE_WORDS = 1024 };
struct page {
    cell all;
    bool split;
};
struct shadow {
    cell *cells;
    uint8_t *state; /* bytes that exist, and 4 bits up those that have a value */
    page *pages;    /* NULL for shared memory: always split                    */
};

static warp_clock clocks[MAX_THREADS];
static std::map<std::string, traffic> all_traffic;
static traffic *here;

template <class T> static T *reserve(size_t n)
{
    void *all = mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (all == MAP_FAILED) fault("emulator", "no memory to watch accesses");
    return (T *)all;
}

static const shadow &shadow_of(const void *at)
{
    static const shadow shared = {reserve<cell>(SHARED_BYTES / 4),
                                  reserve<uint8_t>(SHARED_BYTES / 4), nullptr};
    static const shadow device = {reserve<cell>(DEVICE_BYTES / 4),
                                  reserve<uint8_t>(DEVICE_BYTES / 4),
                                  reserve<page>(DEVICE_BYTES / 4 / PAGE_WORDS)};

    return is_shared(at) ? shared : device;
}

/* Call each(word, its bytes) for the words of a span. */
template <class F> static void for_words(const void *at, size_t bytes, F each)
{
    size_t from = is_shared(at) ? shared_offset(at) : device_offset(at);
    const size_t end = from + bytes;

    while (from < end) {
        const size_t stop = (from | 3) + 1 < end ? (from | 3) + 1 : end;

        each(from / 4, (uint8_t)(((1u << (stop - from)) - 1) << (from & 3)));
        from = stop;
    }
}

static cell &cell_of(const shadow &in, size_t word)
{
    if (in.pages && !in.pages[word / PAGE_WORDS].split) {
        page &p = in.pages[word / PAGE_WORDS];
        cell *first = &in.cells[word / PAGE_WORDS * PAGE_WORDS];

        for (size_t i = 0; i < PAGE_WORDS; i++) first[i] = p.all;
        p.split = true;
    }
    return in.cells[word];
}

/* Call whole(page, its first word) for each whole page of a span that is not split, and
 * single(cell, word, bytes) for all other words. */
template <class W, class S>
static void for_cells(const void *at, size_t bytes, W whole, S single)
{
    const shadow &in = shadow_of(at);
    const char *from = (const char *)at, *end = from + bytes;

    while (from < end) {
        const size_t offset = in.pages ? device_offset(from) : shared_offset(from);
        const size_t rest = PAGE_WORDS * 4 - offset % (PAGE_WORDS * 4);
        const size_t part = rest < (size_t)(end - from) ? rest : (size_t)(end - from);
        page *p = in.pages ? &in.pages[offset / 4 / PAGE_WORDS] : nullptr;

        if (p && !p->split && part == PAGE_WORDS * 4)
            whole(*p, offset / 4);
        else
            for_words(from, part, [&](size_t word, uint8_t which) {
                single(cell_of(in, word), word, which);
            });
        from += part;
    }
}

static void renew(const void *at, size_t bytes, bool live)
{
    const shadow &in = shadow_of(at);

    for_words(at, bytes, [&](size_t word, uint8_t which) {
        in.state[word] =
            (uint8_t)((in.state[word] & ~(which * 0x11)) | (live ? which : 0));
    });
    for_cells(
        at, bytes, [](page &p, size_t) { p = page(); },
        [](cell &c, size_t, uint8_t) { c = cell(); });
}

void watch_allocation(const void *at, size_t bytes, bool live)
{
    const shadow &in = shadow_of(at);
    const size_t first = (device_offset(at) + PAGE_WORDS * 4 - 1) / (PAGE_WORDS * 4);
    const size_t last = (device_offset(at) + bytes) / (PAGE_WORDS * 4);

    for (size_t i = first; i < last; i++) in.pages[i].split = false;
    renew(at, bytes, live);
}

static std::vector<std::pair<const void *, size_t>> shared_now;

void watch_shared(const void *at, size_t bytes)
{
    renew(at, bytes, true);
    shared_now.push_back({at, bytes});
}

void watch_block_end()
{
    for (auto &object : shared_now) renew(object.first, object.second, false);
    shared_now.clear();
}

static void print_traffic()
{
    const char *path = getenv("SLM_EMU_BYTES");
    FILE *file = fopen(path, "w");

    if (!file) return;
    fprintf(file, "kernel\tlaunches\tloaded\tstored\n");
    for (auto &entry : all_traffic)
        fprintf(file, "%s\t%llu\t%llu\t%llu\n", entry.first.c_str(),
                (unsigned long long)entry.second.launches,
                (unsigned long long)entry.second.loaded,
                (unsigned long long)entry.second.stored);
    fclose(file);
}

void watch_block_begin()
{
    static const bool at_exit = getenv("SLM_EMU_BYTES") && !atexit(print_traffic);

    (void)at_exit;
    memset(clocks, 0, sizeof clocks);
    for (warp_clock &c : clocks) c.now = 1;
    here = &all_traffic[running->what->name];
    here->launches += running->next == 0;
}

/* Each of these lanes now knows what any of them knew. */
void watch_warp(unsigned warp, unsigned lanes)
{
    warp_clock *of = &clocks[warp * 32];
    uint32_t known[32] = {0};

    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);

        for (unsigned i = 0; i < 32; i++)
            if (known[i] < of[lane].seen[i]) known[i] = of[lane].seen[i];
        if (known[lane] < of[lane].now) known[lane] = of[lane].now;
    }
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);

        memcpy(of[lane].seen, known, sizeof known);
        of[lane].now++;
    }
}

/* Does `a` lie before the access that is being made? */
static bool ordered(const access &a, const access &now)
{
    if (a.stream != now.stream || a.number != now.number)
        return a.stream < running->before.size() &&
               running->before[a.stream] >= a.number;
    if (a.block != now.block) return false;
    if (a.thread == now.thread || a.phase != now.phase) return true;
    return a.thread / 32 == now.thread / 32 &&
           a.tick <= clocks[now.thread].seen[a.thread % 32];
}

static std::string describe(const access &a)
{
    std::string text = a.atomic ? "an atomic" : a.write ? "a write" : "a read";

    text += " at " + place(a.pc);
    if (a.thread == HOST_THREAD) return text + " (copy, fill or GEMM)";
    return text + ", block " + std::to_string(a.block) + ", thread " +
           std::to_string(a.thread);
}

static void report_race(const access &before, const access &now, const void *at)
{
    const bool same_task = before.stream == now.stream && before.number == now.number;

    fault("race", std::string(is_shared(at) ? "shared" : "global") +
                      " memory: " + describe(now) + "\n  after " + describe(before) +
                      (same_task ? "" : ", of other work that no event orders"));
}

/* May `now` stand for the earlier `a` in all later questions? */
static bool covers(const access &now, const access &a)
{
    return !(a.bytes & ~now.bytes) && (now.write || !a.write) &&
           (!now.atomic || a.atomic) && ordered(a, now);
}

static void keep(cell &c, const access &now)
{
    access *place_for = nullptr;

    for (access &a : c.slot)
        if (a.pc && covers(now, a)) a.pc = nullptr;
    for (access &a : c.slot)
        if (!a.pc) place_for = &a;
    for (int tried = 0; !place_for && tried <= SLOTS; tried++) {
        access &a = c.slot[c.forget++ % SLOTS];

        if (!a.write || tried == SLOTS) place_for = &a; /* reads go first */
    }
    *place_for = now;
}

static void check_order(cell &c, const access &now, const void *at)
{
    for (const access &a : c.slot)
        if (a.pc && a.bytes & now.bytes && (a.write || now.write) &&
            !(a.atomic && now.atomic) && !ordered(a, now))
            report_race(a, now, at);
    keep(c, now);
}

/* Bounds and values of one word. */
static void check_state(uint8_t &state, const access &now, const void *at)
{
    const char *where = is_shared(at) ? "shared memory: " : "global memory: ";

    if (now.bytes & ~state)
        fault("bounds", where + describe(now) + ", outside every object");
    if ((!now.write || now.atomic) && now.bytes & ~(state >> 4))
        fault("uninitialised", where + describe(now) + ", which nobody wrote");
    if (now.write) state |= (uint8_t)(now.bytes << 4);
}

static access make_access(const void *pc, unsigned thread, bool write, bool atomic)
{
    access a = access();

    a.pc = pc;
    a.block = (uint32_t)block_index;
    a.phase = block_phase;
    a.tick = thread == HOST_THREAD ? 0 : clocks[thread].now;
    a.number = (uint32_t)running->number;
    a.stream = (uint16_t)running->stream;
    a.thread = (uint16_t)thread;
    a.write = write;
    a.atomic = atomic;
    return a;
}

void watch_bulk(const void *at, size_t bytes, bool write)
{
    const shadow &in = shadow_of(at);
    const bool copies = running->what->name == "copy";
    access now = make_access(running->what->asked_at, HOST_THREAD, write, false);

    now.block = 0;
    for_words(at, bytes, [&](size_t word, uint8_t which) {
        now.bytes = which;
        if (copies && !write) /* copying nothing is no fault */
            in.state[word] |= (uint8_t)(which << 4);
        check_state(in.state[word], now, at);
    });
    for_cells(
        at, bytes,
        [&](page &p, size_t) {
            now.bytes = 15;
            check_order(p.all, now, at);
        },
        [&](cell &c, size_t, uint8_t which) {
            now.bytes = which;
            check_order(c, now, at);
        });
}

/* Constants of the program: in a segment that cannot be written. */
static bool is_constant(const void *at)
{
    auto look = [](dl_phdr_info *info, size_t, void *data) -> int {
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const auto &segment = info->dlpi_phdr[i];
            const uintptr_t offset =
                *(uintptr_t *)data - info->dlpi_addr - segment.p_vaddr;

            if (segment.p_type == PT_LOAD && offset < segment.p_memsz)
                return segment.p_flags & PF_W ? 2 : 1;
        }
        return 0;
    };
    uintptr_t address = (uintptr_t)at;

    return dl_iterate_phdr(look, &address) == 1;
}

static void kernel_access(const void *at, size_t bytes, bool write, bool atomic,
                          const void *pc)
{
    const bool shared = is_shared(at);

    maybe_switch(32);

    access now = make_access(pc, thread_index, write, atomic);

    if (!shared) {
        if (!write || atomic) here->loaded += bytes;
        if (write) here->stored += bytes;
    }
    const shadow &in = shadow_of(at);

    for_words(at, bytes, [&](size_t word, uint8_t which) {
        now.bytes = which;
        check_state(in.state[word], now, at);
        check_order(cell_of(in, word), now, at);
    });
}

static void see(const void *at, size_t bytes, bool write, bool atomic, const void *pc)
{
    if (at == &self) return; /* threadIdx */
    if (stack_owner(__builtin_frame_address(0)) < 0)
        return; /* the host's part of a .cu */

    const int owner = stack_owner(at);

    if (owner == (int)thread_index) return;
    if (owner >= 0)
        fault("bounds", "a local variable of thread " + std::to_string(owner) + " at " +
                            place(pc));
    if (is_shared(at) || is_device(at))
        kernel_access(at, bytes, write, atomic, pc);
    else if (write || !is_constant(at))
        fault("host memory",
              std::string(write ? "written" : "read") + " by a kernel at " + place(pc));
}

void before_atomic(const void *at, unsigned bytes, void *pc)
{
    see(at, bytes, true, true, pc);
}

void before_access(const void *at, unsigned bytes, bool write, void *pc)
{
    see(at, bytes, write, false, pc);
}

} // namespace emu

extern "C" {

void slm_emu_bytes(const char *kernel, uint64_t *loaded, uint64_t *stored)
{
    const emu::entry in;
    const auto found = emu::all_traffic.find(kernel);
    const bool known = found != emu::all_traffic.end();

    *loaded = known ? found->second.loaded : 0;
    *stored = known ? found->second.stored : 0;
}

void slm_emu_writer(const void *device, char *text, size_t size)
{
    const emu::entry in;

    snprintf(text, size, "nobody");
    if (!emu::is_device(device)) return;
    const emu::shadow &of = emu::shadow_of(device);

    for (const emu::access &a : emu::cell_of(of, emu::device_offset(device) / 4).slot)
        if (a.pc && a.write) snprintf(text, size, "%s", emu::describe(a).c_str());
}

/* What -fsanitize=alignment calls before an access whose address its type forbids; the
 * compilers' own layout. */
struct ubsan_place {
    const char *file;
    uint32_t line, column;
};

void __ubsan_handle_type_mismatch_v1(const ubsan_place *at, const void *)
{
    if (emu::self)
        emu::fault("alignment", "an address that its type does not allow, at " +
                                    emu::place({at->file, (int)at->line}));
}

#define SEE(name, bytes, write)                                                        \
    void name(void *at)                                                                \
    {                                                                                  \
        emu::see(at, bytes, write, false, __builtin_return_address(0));                \
    }
#define SEE_SIZE(n)                                                                    \
    SEE(__tsan_read##n, n, false)                                                      \
    SEE(__tsan_write##n, n, true)                                                      \
    SEE(__tsan_unaligned_read##n, n, false)                                            \
    SEE(__tsan_unaligned_write##n, n, true)
SEE_SIZE(1)
SEE_SIZE(2)
SEE_SIZE(4)
SEE_SIZE(8)
SEE_SIZE(16)

void __tsan_read_range(void *at, size_t bytes)
{
    emu::see(at, bytes, false, false, __builtin_return_address(0));
}

void __tsan_write_range(void *at, size_t bytes)
{
    emu::see(at, bytes, true, false, __builtin_return_address(0));
}

void __tsan_init()
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit()
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}
}
