/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/memory.cpp - device memory, pinned memory, copies and fills.
 *
 * Device memory is one range of addresses that nobody can touch except while device
 * work runs: a host that dereferences a device pointer dies here as it does there.
 * Between allocations lie gaps; new memory holds 0xff bytes: NaN, -1. Huge pages, since
 * protection changes whenever the host waits, and its price is one by the page. */
#include "internal.h"

#include <map>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

namespace emu
{

enum : size_t { GAP = 256, PAGE = 2 << 20, WINDOW = 64 << 20 };
static char *base;
static size_t top, cursor = GAP; /* touched so far; where the next search begins */
static std::map<size_t, size_t> allocations; /* offset to bytes */
static std::map<const char *, size_t> pinned;
static int opened;

bool is_device(const void *at)
{
    return base && (size_t)((const char *)at - base) < DEVICE_BYTES;
}

size_t device_offset(const void *at)
{
    return (size_t)((const char *)at - base);
}

bool device_holds(const void *at, uint64_t bytes)
{
    if (!is_device(at)) return false;

    const size_t offset = device_offset(at);
    auto after = allocations.upper_bound(offset);

    if (after == allocations.begin()) return false;
    --after;
    return offset - after->first <= after->second &&
           bytes <= after->second - (offset - after->first);
}

static bool is_pinned(const void *at, size_t bytes)
{
    auto after = pinned.upper_bound((const char *)at);

    if (after == pinned.begin()) return false;
    --after;
    return (const char *)at + bytes <= after->first + after->second;
}

open_device::open_device()
{
    if (opened++ == 0 && top) mprotect(base, top, PROT_READ | PROT_WRITE);
}

open_device::~open_device()
{
    if (--opened == 0 && top) mprotect(base, top, PROT_NONE);
}

/* Next fit: freed memory is not given out again at once, so that its users are seen. From
 * the start again after 64 MiB: touched memory is protected and kept by the page. */
static size_t find_room(size_t bytes)
{
    if (cursor > WINDOW) cursor = GAP;
    for (int round = 0; round < 2; round++, cursor = GAP) {
        auto after = allocations.lower_bound(cursor);

        for (;; ++after) {
            const size_t end =
                after == allocations.end() ? (size_t)DEVICE_BYTES : after->first;

            if (end > cursor && end - cursor >= bytes + GAP) return cursor;
            if (after == allocations.end()) break;
            cursor = (after->first + after->second + GAP - 1) / GAP * GAP + GAP;
        }
    }
    return 0;
}

static void reserve()
{
    void *all = mmap(nullptr, DEVICE_BYTES + PAGE, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (all == MAP_FAILED) fault("emulator", "no address space for device memory");
    base = (char *)(((uintptr_t)all + PAGE - 1) / PAGE * PAGE);
    madvise(base, DEVICE_BYTES, MADV_HUGEPAGE);
}

static cudaError_t allocate(void **memory, size_t bytes)
{
    if (!nothing_recording()) fault("capture", "cudaMalloc while a stream is captured");
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (!base) reserve();

    const size_t at = bytes < DEVICE_BYTES ? find_room(bytes) : 0;

    if (!at) return note_error(cudaErrorMemoryAllocation);

    const size_t end = (at + bytes + GAP - 1) / GAP * GAP;

    cursor = end + GAP;
    if (cursor > top) top = (cursor + PAGE - 1) / PAGE * PAGE;
    allocations[at] = bytes;
    *memory = base + at;

    const open_device open;

    ASAN_UNPOISON_MEMORY_REGION(base + at, bytes);
    ASAN_POISON_MEMORY_REGION(base + at - GAP, (size_t)GAP);
    ASAN_POISON_MEMORY_REGION(base + at + bytes, cursor - at - bytes);
    memset(base + at, 0xff, bytes);
    watch_allocation(base + at, bytes, true);
    return cudaSuccess;
}

static void release(void *memory)
{
    auto found = allocations.end();

    if (is_device(memory)) found = allocations.find(device_offset(memory));
    if (found == allocations.end())
        fault("memory", "cudaFree of what cudaMalloc did not give");
    if (!nothing_recording()) fault("capture", "cudaFree while a stream is captured");
    finish_everything();

    char *at = base + found->first, *end = at + found->second;
    char *first_page = base + (found->first + PAGE - 1) / PAGE * PAGE;
    char *last_page = base + (size_t)(end - base) / PAGE * PAGE;

    watch_allocation(at, found->second, false);
    ASAN_POISON_MEMORY_REGION(at, found->second);
    if (first_page < last_page)
        madvise(first_page, (size_t)(last_page - first_page), MADV_DONTNEED);
    allocations.erase(found);
}

struct copy_job final : job {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, rows;
    std::vector<char> staged; /* what a host that may not wait had to say */
    copy_job(const void *pc) : job("copy", pc)
    {
    }
    void step(uint64_t) const override
    {
        for (size_t row = 0; row < rows; row++) {
            if (is_device(from)) watch_bulk(from + row * from_pitch, width, false);
            if (is_device(to)) watch_bulk(to + row * to_pitch, width, true);
            memmove(to + row * to_pitch, from + row * from_pitch, width);
        }
    }
};

struct fill_job final : job {
    char *to;
    int value;
    size_t bytes;
    fill_job(const void *pc) : job("fill", pc)
    {
    }
    void step(uint64_t) const override
    {
        watch_bulk(to, bytes, true);
        memset(to, value, bytes);
    }
};

static void check_span(const char *what, const void *at, size_t bytes, int device,
                       const void *pc)
{
    if (device ? device_holds(at, bytes) : !is_device(at)) return;
    fault("memory", std::string("a copy or fill: its ") + what +
                        (!device         ? " should be host memory"
                         : is_device(at) ? " leaves its allocation"
                                         : " should be device memory") +
                        ", at " + place(pc));
}

/* Into or out of pageable memory the call itself waits for the bytes, as CUDA says. */
static void copy(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                 size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t stream,
                 const void *pc)
{
    const int guess = kind == cudaMemcpyDefault;
    const int to_device =
        guess ? is_device(to)
              : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const int from_device =
        guess ? is_device(from)
              : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;

    if (width == 0 || rows == 0) return;
    check_span("destination", to, (rows - 1) * to_pitch + width, to_device, pc);
    check_span("source", from, (rows - 1) * from_pitch + width, from_device, pc);

    auto what = std::make_shared<copy_job>(pc);
    const bool recorded = is_recording(stream);

    what->to = (char *)to;
    what->from = (const char *)from;
    what->to_pitch = to_pitch;
    what->from_pitch = from_pitch;
    what->width = width;
    what->rows = rows;
    if (!from_device && !recorded && !is_pinned(from, width)) {
        what->staged.resize(rows * width);
        for (size_t row = 0; row < rows; row++)
            memcpy(&what->staged[row * width], what->from + row * from_pitch, width);
        what->from = what->staged.data();
        what->from_pitch = width;
    }
    submit(stream, what);
    if (!to_device && !recorded && !is_pinned(to, width)) finish(stream);
}

static void fill(void *to, int value, size_t bytes, cudaStream_t stream, const void *pc)
{
    if (bytes == 0) return;
    check_span("destination", to, bytes, 1, pc);

    auto what = std::make_shared<fill_job>(pc);

    what->to = (char *)to;
    what->value = value;
    what->bytes = bytes;
    submit(stream, what);
}

} // namespace emu

using namespace emu;

#define CALLER __builtin_return_address(0)

extern "C" {

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    const entry in;

    return allocate(memory, bytes);
}

cudaError_t cudaFree(void *memory)
{
    const entry in;

    if (memory) release(memory);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    const entry in;

    *memory = malloc(bytes ? bytes : 1);
    if (!*memory) return note_error(cudaErrorMemoryAllocation);
    memset(*memory, 0xff, bytes);
    pinned[(const char *)*memory] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    const entry in;

    if (memory && !pinned.erase((const char *)memory))
        fault("memory", "cudaFreeHost of what cudaMallocHost did not give");
    finish_everything();
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream)
{
    const entry in;

    copy(to, bytes, from, bytes, bytes, 1, kind, stream, CALLER);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const entry in;

    copy(to, bytes, from, bytes, bytes, 1, kind, nullptr, CALLER);
    finish(nullptr);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                              size_t from_pitch, size_t width, size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream)
{
    const entry in;

    if (width > to_pitch || width > from_pitch)
        return note_error(cudaErrorInvalidPitchValue);
    copy(to, to_pitch, from, from_pitch, width, rows, kind, stream, CALLER);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    const entry in;

    fill(to, value, bytes, stream, CALLER);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    const entry in;

    fill(to, value, bytes, nullptr, CALLER);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *at)
{
    const entry in;

    *attributes = cudaPointerAttributes();
    attributes->type = is_device(at)      ? cudaMemoryTypeDevice
                       : is_pinned(at, 0) ? cudaMemoryTypeHost
                                          : cudaMemoryTypeUnregistered;
    if (is_device(at)) attributes->devicePointer = const_cast<void *>(at);
    return cudaSuccess;
}
}
