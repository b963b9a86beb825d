/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/shared.cpp - shared memory of the block that runs.
 *
 * Objects with room between them, poisoned at the start of a block: 0xff bytes are NaN
 * as floating point and -1 as integers. */
#include "internal.h"

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

struct object {
    const void *key;
    char *at;
};
static char *shared_base;
static size_t shared_end, shared_used, shared_dynamic_bytes, shared_allowed;
static std::vector<object> objects;

bool is_shared(const void *at)
{
    return shared_base && (size_t)((const char *)at - shared_base) < SHARED_BYTES;
}

size_t shared_offset(const void *at)
{
    return (size_t)((const char *)at - shared_base);
}

static char *add_object(const void *key, size_t bytes)
{
    char *at = shared_base + shared_end;

    shared_end += (bytes + 63) / 64 * 64 + 64;
    if (shared_end > SHARED_BYTES) fault("shared", "no room for so many objects");
    ASAN_UNPOISON_MEMORY_REGION(at, bytes);
    memset(at, 0xff, bytes);
    watch_shared(at, bytes);
    objects.push_back({key, at});
    return at;
}

void *shared_object(const void *key, size_t bytes, site at)
{
    for (const object &o : objects)
        if (o.key == key) return o.at;
    shared_used += bytes;
    if (shared_used - shared_dynamic_bytes > 48 << 10 || shared_used > shared_allowed)
        fault("shared", "more shared memory than the launch allows, " +
                            std::to_string(shared_used) + " bytes, at " + place(at));
    return add_object(key, bytes);
}

void *shared_dynamic()
{
    return objects[0].at;
}

void begin_shared(size_t dynamic_bytes, size_t allowed)
{
    if (!shared_base)
        shared_base = (char *)mmap(nullptr, SHARED_BYTES, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (shared_base == MAP_FAILED) fault("emulator", "no shared memory");
    ASAN_POISON_MEMORY_REGION(shared_base, (size_t)SHARED_BYTES);
    objects.clear();
    shared_end = 64;
    shared_used = shared_dynamic_bytes = dynamic_bytes;
    shared_allowed = allowed;
    add_object(nullptr, dynamic_bytes);
}

} // namespace emu
