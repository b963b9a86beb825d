/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/block.cpp - one block: a fiber per thread, barriers, warps.
 *
 * A thread runs until it waits; then the next ready one of `turn` does. There is no
 * scheduler to return to: the thread that waits picks its successor. Stacks lie side by
 * side with guard pages between. x86-64, System V. */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

namespace emu
{

identity *self;
uint64_t block_index;
unsigned block_phase, thread_index;

enum fiber_state { READY, AT_BARRIER, IN_WARP, ENDED };

struct fiber {
    void *stack_pointer;
    void *fake_stack; /* AddressSanitizer's */
    identity *who;
    fiber_state state;
    site at; /* where it waits */
    warp_kind kind;
    unsigned mask, source;
    uint64_t value, result;
};

static fiber fibers[MAX_THREADS], home;
static unsigned n_threads, n_ended, n_at_barrier;
/* The lanes of each warp that wait for others, and those that have returned. */
static unsigned in_warp[MAX_THREADS / 32], gone[MAX_THREADS / 32];
static std::vector<uint32_t> turn;
static unsigned position;
static const body *kernel;
static slm_emu_work done;

/* Save the callee-saved registers and the stack pointer in *save, then go to `to`. */
extern "C" void emu_switch(void **save, void *to);
asm(".text\n"
    ".globl emu_switch\n"
    "emu_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n"
    "    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n"
    "    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n");

enum : size_t { GUARD = 4096, STACK = 128 << 10, STRIDE = GUARD + STACK };
static char *stacks;

static char *stack_of(unsigned thread)
{
    return stacks + thread * STRIDE + GUARD;
}

int stack_owner(const void *at)
{
    const uintptr_t offset = (uintptr_t)at - (uintptr_t)stacks;

    return stacks && offset < MAX_THREADS * STRIDE ? (int)(offset / STRIDE) : -1;
}

static void need_stacks(unsigned n)
{
    static unsigned mapped;

    if (!stacks)
        stacks = (char *)mmap(nullptr, MAX_THREADS * STRIDE, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fault("emulator", "no memory for stacks");
    for (; mapped < n; mapped++)
        mprotect(stack_of(mapped), STACK, PROT_READ | PROT_WRITE);
}

#ifdef __SANITIZE_ADDRESS__
static const void *home_stack;
static size_t home_size;

static void go(fiber *from, fiber *to)
{
    const bool home_next = to == &home;
    const void *bottom = home_next ? home_stack : stack_of((unsigned)(to - fibers));

    __sanitizer_start_switch_fiber(from->state == ENDED ? nullptr : &from->fake_stack,
                                   bottom, home_next ? home_size : (size_t)STACK);
    emu_switch(&from->stack_pointer, to->stack_pointer);
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
}
#else
static void go(fiber *from, fiber *to)
{
    emu_switch(&from->stack_pointer, to->stack_pointer);
}
#endif

/* Where the threads are that wait, one line a place. */
static std::string who_waits()
{
    std::string text;

    for (unsigned i = 0; i < n_threads; i++) {
        const fiber &f = fibers[i];
        bool first = f.state == AT_BARRIER || f.state == IN_WARP;

        for (unsigned j = 0; j < i; j++)
            if (fibers[j].state == f.state && fibers[j].at.line == f.at.line)
                first = false;
        if (first) text += "\n  thread " + std::to_string(i) + " at " + place(f.at);
    }
    return text;
}

static fiber *next_ready()
{
    for (unsigned tried = 0; tried <= n_threads; tried++) {
        if (++position >= n_threads) {
            position = 0;
            if (schedule() >= 2) put_in_order(turn, n_threads);
        }
        if (fibers[turn[position]].state == READY) return &fibers[turn[position]];
    }
    if (schedule() >= 2) /* the new order may have hidden one from this walk */
        for (unsigned i = 0; i < n_threads; i++)
            if (fibers[i].state == READY) return &fibers[i];
    fault("deadlock", "every thread of the block waits" + who_waits());
}

static void run_another(fiber *from)
{
    fiber *to = n_ended == n_threads ? &home : next_ready();

    if (to == from) return;
    if (to != &home) {
        self = to->who;
        thread_index = (unsigned)(to - fibers);
    }
    done.switches++;
    go(from, to);
}

void maybe_switch(unsigned one_in)
{
    if (schedule() >= 2 && self && random_below(one_in) == 0)
        run_another(&fibers[thread_index]);
}

static void ended_beside_barrier(const fiber &waiting, unsigned thread)
{
    fault("barrier", "thread " + std::to_string(thread) +
                         " has returned, others wait at __syncthreads at " +
                         place(waiting.at));
}

/* Does a lane that waits name one that has just returned? */
static void ended_beside_lanes()
{
    for (unsigned rest = in_warp[self->warp]; rest; rest &= rest - 1) {
        const fiber &waiting = fibers[self->warp * 32 + (unsigned)__builtin_ctz(rest)];

        if (waiting.mask >> self->lane & 1)
            fault("warp", "lane " + std::to_string(self->lane) +
                              " has returned, others wait for it at " +
                              place(waiting.at));
    }
}

static void enter()
{
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;

    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (stack_owner(bottom) < 0) home_stack = bottom, home_size = size;
#endif
    fiber &me = fibers[thread_index];

    kernel->run();
    if (n_at_barrier)
        for (unsigned i = 0; i < n_threads; i++)
            if (fibers[i].state == AT_BARRIER)
                ended_beside_barrier(fibers[i], thread_index);
    me.state = ENDED;
    gone[self->warp] |= 1u << self->lane;
    if (in_warp[self->warp]) ended_beside_lanes();
    n_ended++;
    run_another(&me);
    __builtin_unreachable();
}

int barrier(barrier_kind kind, int predicate, site at)
{
    static site met;
    static barrier_kind met_kind;
    static unsigned sum;
    static int answer;
    fiber &me = fibers[thread_index];

    me.at = at;
    if (n_at_barrier == 0) {
        met = at;
        met_kind = kind;
        sum = 0;
    } else if (at.line != met.line || kind != met_kind) {
        fault("barrier", "threads of one block are at different barriers, " +
                             place(met) + " and " + place(at));
    }
    if (n_ended)
        for (unsigned i = 0; i < n_threads; i++)
            if (fibers[i].state == ENDED) ended_beside_barrier(me, i);
    sum += predicate != 0;
    me.state = AT_BARRIER;
    if (++n_at_barrier == n_threads) {
        answer = kind == BARRIER_COUNT ? (int)sum
                 : kind == BARRIER_AND ? sum == n_threads
                                       : sum != 0;
        n_at_barrier = 0;
        block_phase++;
        for (unsigned i = 0; i < n_threads; i++) fibers[i].state = READY;
    }
    run_another(&me);
    return answer;
}

static uint64_t combine(warp_kind kind, uint64_t a, uint64_t b)
{
    const unsigned x = (unsigned)a, y = (unsigned)b;

    switch (kind) {
    case WARP_ADD:
        return x + y;
    case WARP_MIN:
        return x < y ? x : y;
    case WARP_MAX:
        return x > y ? x : y;
    case WARP_MIN_SIGNED:
        return (int)x < (int)y ? x : y;
    case WARP_MAX_SIGNED:
        return (int)x > (int)y ? x : y;
    case WARP_AND:
        return x & y;
    case WARP_OR:
        return x | y;
    default:
        return x ^ y;
    }
}

/* What all lanes of the mask get alike: the ballot or the reduction. */
static uint64_t common_answer(const fiber *warp, warp_kind kind, unsigned mask)
{
    const unsigned first = (unsigned)__builtin_ctz(mask);
    uint64_t answer = kind >= WARP_ADD ? warp[first].value : 0;

    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);

        if (kind == WARP_BALLOT) answer |= (warp[lane].value & 1) << lane;
        if (kind >= WARP_ADD && lane != first)
            answer = combine(kind, answer, warp[lane].value);
    }
    return answer;
}

static uint64_t shuffled(const fiber *warp, const fiber &me)
{
    if (me.source > 31 || !(me.mask >> me.source & 1))
        fault("warp", "a lane reads lane " + std::to_string((int)me.source) +
                          ", which its mask leaves out, at " + place(me.at));
    return warp[me.source].value;
}

static uint64_t matched(const fiber *warp, const fiber &me)
{
    uint64_t answer = 0;

    for (unsigned rest = me.mask; rest; rest &= rest - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);

        answer |= (uint64_t)(warp[lane].value == me.value) << lane;
    }
    return answer;
}

/* A warp has one tile. */
static void check_tile(const fiber *warp)
{
    for (unsigned lane = 1; lane < 32; lane++)
        if (warp[lane].value != warp[0].value || warp[lane].source != warp[0].source)
            fault("warp", "lanes 0 and " + std::to_string(lane) +
                              " give other pointers or leading dimensions, at " +
                              place(warp[0].at));
}

static void make_product(const fiber *warp)
{
    uint64_t lanes[32];

    for (unsigned lane = 0; lane < 32; lane++) lanes[lane] = warp[lane].value;
    multiply_warp(lanes);
}

/* All lanes of the mask are here. */
static void release(fiber *warp, unsigned index, warp_kind kind, unsigned mask)
{
    const uint64_t common = common_answer(warp, kind, mask);

    if (kind == WARP_SYNC) watch_warp(index, mask);
    if (kind == WARP_TILE) check_tile(warp);
    if (kind == WARP_PRODUCT) make_product(warp);
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        fiber &lane = warp[__builtin_ctz(rest)];

        lane.result = kind == WARP_SHUFFLE ? shuffled(warp, lane)
                      : kind == WARP_MATCH ? matched(warp, lane)
                                           : common;
        lane.state = READY;
    }
    in_warp[index] &= ~mask;
}

static void check_meeting(const fiber *warp, const fiber &me)
{
    const unsigned lane = me.who->lane, index = me.who->warp;
    const unsigned others = in_warp[index] & me.mask & ~(1u << lane);

    if (!(me.mask >> lane & 1))
        fault("warp", "lane " + std::to_string(lane) +
                          " is not in the mask it names, at " + place(me.at));
    if (gone[index] & me.mask)
        fault("warp", "the mask names lane " +
                          std::to_string(__builtin_ctz(gone[index] & me.mask)) +
                          ", which has returned, at " + place(me.at));
    if (!others) return;

    const fiber &other = warp[__builtin_ctz(others)];

    if (other.at.line != me.at.line || other.kind != me.kind || other.mask != me.mask)
        fault("warp", "lanes are at different places or name different masks, at " +
                          place(me.at) + " and at " + place(other.at));
}

uint64_t meet(warp_kind kind, unsigned mask, uint64_t value, unsigned source, site at)
{
    fiber &me = fibers[thread_index];
    fiber *warp = &fibers[self->warp * 32];

    me.at = at;
    me.kind = kind;
    me.mask = mask;
    me.value = value;
    me.source = source;
    check_meeting(warp, me);
    me.state = IN_WARP;
    in_warp[self->warp] |= 1u << self->lane;
    if ((in_warp[self->warp] & mask) == mask)
        release(warp, self->warp, kind, mask);
    else
        run_another(&me);
    return me.result;
}

/* A new thread: who it is, and a stack that begins in enter(). Tops are staggered, else
 * those of all threads would share a few sets of the cache. */
static void make_fiber(unsigned i, uint3 block, dim3 grid_extent, dim3 block_extent)
{
    char *top = stack_of(i) + STACK - 64 - i % 16 * 192;
    void **slot = (void **)(top - 16);
    fiber &f = fibers[i];

    static_assert(sizeof(identity) <= 64, "it lies above top");
    ASAN_UNPOISON_MEMORY_REGION(top - 8192, 8192 + 64);
    f = fiber();
    f.who = new (top) identity();
    f.who->thread = {i % block_extent.x, i / block_extent.x % block_extent.y,
                     i / (block_extent.x * block_extent.y)};
    f.who->block = block;
    f.who->block_extent = block_extent;
    f.who->grid_extent = grid_extent;
    f.who->lane = i % 32;
    f.who->warp = i / 32;
    slot[1] = nullptr; /* the return address of enter() */
    slot[0] = (void *)enter;
    f.stack_pointer = slot - 6;
    memset(f.stack_pointer, 0, 6 * sizeof *slot);
}

void run_block(const body &what, dim3 grid, dim3 block, uint64_t index,
               size_t shared_bytes, size_t shared_limit)
{
    const uint3 at = {(unsigned)(index % grid.x), (unsigned)(index / grid.x % grid.y),
                      (unsigned)(index / grid.x / grid.y)};

    n_threads = block.x * block.y * block.z;
    n_ended = n_at_barrier = 0;
    block_index = index;
    block_phase = 0;
    kernel = &what;
    need_stacks(n_threads);
    watch_block_begin();
    begin_shared(shared_bytes, shared_limit);
    for (unsigned i = 0; i < n_threads; i++) make_fiber(i, at, grid, block);
    put_in_order(turn, n_threads);
    memset(in_warp, 0, sizeof in_warp);
    memset(gone, 0, sizeof gone);
    position = 0;
    self = fibers[turn[0]].who;
    thread_index = turn[0];
    go(&home, &fibers[turn[0]]);
    self = nullptr;
    watch_block_end();
    done.threads += n_threads;
    done.kernels += index == 0;
}

} // namespace emu

extern "C" slm_emu_work slm_emu_done(void)
{
    return emu::done;
}
