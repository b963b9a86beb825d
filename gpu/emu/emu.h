/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/emu.h - what a kernel sees of the emulator: CUDA's device language for g++.
 *
 * Comes in through gpu/device.h after NVIDIA's own headers: types, bf16 arithmetic and
 * every host prototype are NVIDIA's; only what they leave to the compiler is here. What
 * is not here (cooperative groups, __activemask, inline PTX, __constant__, ...) does
 * not compile, which is how the emulator says that it does not know it. */
#ifndef SLM_GPU_EMU_H
#define SLM_GPU_EMU_H

#include <math.h>
#include <string.h>
#include <type_traits>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __forceinline__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ use_SLM_SHARED_instead
#define __constant__ no_constant_memory
#define __managed__ no_managed_memory
#define __forceinline__ inline
#define __launch_bounds__(...)

/* The race build sees every load and store of a .cu except those of such a function. */
#define EMU_UNSEEN __attribute__((no_sanitize("thread")))

namespace emu
{

/* A place in a .cu file. */
struct site {
    const char *file;
    int line;
};

/* Who a thread is; lies on its own stack. */
struct identity {
    uint3 thread, block;
    dim3 block_extent, grid_extent;
    unsigned lane, warp;
};
extern identity *self; /* the running thread */

/* A kernel with its arguments. */
struct body {
    virtual ~body() = default;
    virtual void run() const = 0;
};

template <class F> struct bound final : body {
    F call;
    explicit bound(F f) : call(f)
    {
    }
    EMU_UNSEEN void run() const override
    {
        call();
    }
};

void launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared,
            cudaStream_t stream, const body *made, void *asked_at);

template <class... P, class... A>
__attribute__((noinline)) void launch(const char *name, void (*kernel)(P...), dim3 grid,
                                      dim3 block, size_t shared, cudaStream_t stream,
                                      A... args)
{
    auto call = [=]() EMU_UNSEEN { kernel(static_cast<P>(args)...); };

    launch(name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream,
           new bound<decltype(call)>(call), __builtin_return_address(0));
}

/* Shared memory of the running block. The key is the declaration's own. */
void *shared_object(const void *key, size_t bytes, site at);
void *shared_dynamic();

enum barrier_kind { BARRIER_SYNC, BARRIER_COUNT, BARRIER_AND, BARRIER_OR };
int barrier(barrier_kind kind, int predicate, site at);

enum warp_kind {
    WARP_SYNC,
    WARP_SHUFFLE,
    WARP_BALLOT,
    WARP_MATCH,
    WARP_TILE,    /* value and source are the same for all */
    WARP_PRODUCT, /* value: a lane_product of wmma.h       */
    WARP_ADD,     /* from here on: reductions              */
    WARP_MIN,
    WARP_MAX,
    WARP_MIN_SIGNED,
    WARP_MAX_SIGNED,
    WARP_AND,
    WARP_OR,
    WARP_XOR
};
uint64_t meet(warp_kind kind, unsigned mask, uint64_t value, unsigned source, site at);

/* An atomic operation is about to happen: a place to switch threads, and in the race
 * build an access to check. */
void before_atomic(const void *at, unsigned bytes, void *pc);

/* The same for an access that a function of the emulator makes for the kernel. */
void before_access(const void *at, unsigned bytes, bool write, void *pc);

template <class To, class From> inline To bits(From from)
{
    static_assert(sizeof(From) <= 8, "warp operations carry at most 8 bytes");
    uint64_t word = 0;
    To to;

    memcpy(&word, &from, sizeof from);
    memcpy(&to, &word, sizeof to);
    return to;
}

template <class T>
inline T shuffle(site at, unsigned mask, T value, unsigned source, int inside)
{
    const uint64_t word = bits<uint64_t>(value);

    return bits<T>(meet(WARP_SHUFFLE, mask, word, inside ? source : self->lane, at));
}

/* The lanes of a shuffle stay within segments of `width` lanes, a power of two. */
template <class T>
inline T shuffle_index(site at, unsigned mask, T value, int lane, int width = 32)
{
    const unsigned w = (unsigned)width, first = self->lane & ~(w - 1);

    return shuffle(at, mask, value, first + ((unsigned)lane & (w - 1)), 1);
}
template <class T>
inline T shuffle_xor(site at, unsigned mask, T value, int flip, int width = 32)
{
    const unsigned w = (unsigned)width, first = self->lane & ~(w - 1);
    const unsigned source = self->lane ^ (unsigned)flip;

    return shuffle(at, mask, value, source, source < first + w);
}
template <class T>
inline T shuffle_down(site at, unsigned mask, T value, unsigned step, int width = 32)
{
    const unsigned w = (unsigned)width, first = self->lane & ~(w - 1);

    return shuffle(at, mask, value, self->lane + step, self->lane + step < first + w);
}
template <class T>
inline T shuffle_up(site at, unsigned mask, T value, unsigned step, int width = 32)
{
    const unsigned w = (unsigned)width, first = self->lane & ~(w - 1);

    return shuffle(at, mask, value, self->lane - step, self->lane >= first + step);
}

inline unsigned reduce(site at, warp_kind kind, unsigned mask, unsigned value)
{
    return (unsigned)meet(kind, mask, value, 0, at);
}
inline int reduce(site at, warp_kind kind, unsigned mask, int value)
{
    const warp_kind with_sign = kind == WARP_MIN   ? WARP_MIN_SIGNED
                                : kind == WARP_MAX ? WARP_MAX_SIGNED
                                                   : kind;

    return (int)meet(with_sign, mask, (unsigned)value, 0, at);
}

/* __syncwarp() means all lanes. */
struct sync_warp {
    site at;
    void operator()(unsigned mask = 0xffffffffu) const
    {
        meet(WARP_SYNC, mask, 0, 0, at);
    }
};

/* The type of an atomic's operand, so that atomicAdd(&an_unsigned, 1) compiles. */
template <class T> using same = std::common_type_t<T>;

} // namespace emu

#define threadIdx (emu::self->thread)
#define blockIdx (emu::self->block)
#define blockDim (emu::self->block_extent)
#define gridDim (emu::self->grid_extent)
static constexpr int warpSize = 32;

#define EMU_SITE (emu::site{__FILE__, __LINE__})
#define __syncthreads() ((void)emu::barrier(emu::BARRIER_SYNC, 0, EMU_SITE))
#define __syncthreads_count(p) emu::barrier(emu::BARRIER_COUNT, !!(p), EMU_SITE)
#define __syncthreads_and(p) emu::barrier(emu::BARRIER_AND, !!(p), EMU_SITE)
#define __syncthreads_or(p) emu::barrier(emu::BARRIER_OR, !!(p), EMU_SITE)
#define __syncwarp(...) emu::sync_warp{EMU_SITE}(__VA_ARGS__)
#define __shfl_sync(...) emu::shuffle_index(EMU_SITE, __VA_ARGS__)
#define __shfl_xor_sync(...) emu::shuffle_xor(EMU_SITE, __VA_ARGS__)
#define __shfl_down_sync(...) emu::shuffle_down(EMU_SITE, __VA_ARGS__)
#define __shfl_up_sync(...) emu::shuffle_up(EMU_SITE, __VA_ARGS__)
#define __ballot_sync(mask, p)                                                         \
    ((unsigned)emu::meet(emu::WARP_BALLOT, mask, !!(p), 0, EMU_SITE))
#define __any_sync(mask, p) ((int)(__ballot_sync(mask, p) != 0))
#define __all_sync(mask, p) ((int)(__ballot_sync(mask, !(p)) == 0))
#define __match_any_sync(mask, v)                                                      \
    ((unsigned)emu::meet(emu::WARP_MATCH, mask, emu::bits<uint64_t>(v), 0, EMU_SITE))
#define __reduce_add_sync(mask, v) emu::reduce(EMU_SITE, emu::WARP_ADD, mask, v)
#define __reduce_min_sync(mask, v) emu::reduce(EMU_SITE, emu::WARP_MIN, mask, v)
#define __reduce_max_sync(mask, v) emu::reduce(EMU_SITE, emu::WARP_MAX, mask, v)
#define __reduce_and_sync(mask, v) emu::reduce(EMU_SITE, emu::WARP_AND, mask, v)
#define __reduce_or_sync(mask, v) emu::reduce(EMU_SITE, emu::WARP_OR, mask, v)
#define __reduce_xor_sync(mask, v) emu::reduce(EMU_SITE, emu::WARP_XOR, mask, v)

/* One thread runs at a time, so that a plain read-modify-write is atomic. Never
 * inlined: the return address is the place in the kernel. */
#define EMU_ATOMIC(name, next)                                                         \
    template <class T>                                                                 \
    EMU_UNSEEN __attribute__((noinline)) T name(T *at, emu::same<T> v)                 \
    {                                                                                  \
        emu::before_atomic(at, sizeof(T), __builtin_return_address(0));                \
        const T old = *at;                                                             \
        *at = (T)(next);                                                               \
        return old;                                                                    \
    }
EMU_ATOMIC(atomicAdd, old + v)
EMU_ATOMIC(atomicSub, old - v)
EMU_ATOMIC(atomicMax, old > v ? old : v)
EMU_ATOMIC(atomicMin, old < v ? old : v)
EMU_ATOMIC(atomicAnd, old &v)
EMU_ATOMIC(atomicOr, old | v)
EMU_ATOMIC(atomicXor, old ^ v)
EMU_ATOMIC(atomicExch, v)
#undef EMU_ATOMIC

template <class T>
EMU_UNSEEN __attribute__((noinline)) T atomicCAS(T *at, emu::same<T> compare,
                                                 emu::same<T> v)
{
    emu::before_atomic(at, sizeof(T), __builtin_return_address(0));
    const T old = *at;

    if (old == compare) *at = v;
    return old;
}

/* Memory is sequentially consistent here: a missing fence goes unseen. */
inline void __threadfence_block()
{
}
inline void __threadfence()
{
}

#define EMU_FUNCTION(result, name, type, value)                                        \
    inline result name(type x)                                                         \
    {                                                                                  \
        return value;                                                                  \
    }
EMU_FUNCTION(int, __popc, unsigned, __builtin_popcount(x))
EMU_FUNCTION(int, __popcll, unsigned long long, __builtin_popcountll(x))
EMU_FUNCTION(int, __clz, int, x ? __builtin_clz((unsigned)x) : 32)
EMU_FUNCTION(int, __clzll, long long, x ? __builtin_clzll((unsigned long long)x) : 64)
EMU_FUNCTION(int, __ffs, int, __builtin_ffs(x))
EMU_FUNCTION(int, __ffsll, long long, __builtin_ffsll(x))
EMU_FUNCTION(unsigned, __float_as_uint, float, emu::bits<unsigned>(x))
EMU_FUNCTION(float, __uint_as_float, unsigned, emu::bits<float>(x))
EMU_FUNCTION(int, __float_as_int, float, emu::bits<int>(x))
EMU_FUNCTION(float, __int_as_float, int, emu::bits<float>(x))
EMU_FUNCTION(long long, __double_as_longlong, double, emu::bits<long long>(x))
EMU_FUNCTION(double, __longlong_as_double, long long, emu::bits<double>(x))
EMU_FUNCTION(float, rsqrtf, float, 1.0f / sqrtf(x))
EMU_FUNCTION(double, rsqrt, double, 1.0 / sqrt(x))
#undef EMU_FUNCTION

template <class T> inline T __ldg(const T *at)
{
    return *at;
}

namespace emu
{
/* Shared memory by declaration: `key` is one per declaration and template instance. */
template <class T> inline T &shared(const void *key, site at)
{
    return *static_cast<T *>(shared_object(key, sizeof(T), at));
}
} // namespace emu

#define SLM_LAUNCH_SHARED(kernel, grid, block, bytes, stream, ...)                     \
    emu::launch(#kernel, kernel, grid, block, bytes, stream, __VA_ARGS__)
#define SLM_SHARED(type, name, extent)                                                 \
    static char name##_key;                                                            \
    typedef type name##_object extent;                                                 \
    name##_object &name = emu::shared<name##_object>(&name##_key, EMU_SITE)
#define SLM_SHARED_DYNAMIC(type, name)                                                 \
    type *name = static_cast<type *>(emu::shared_dynamic())

#endif
