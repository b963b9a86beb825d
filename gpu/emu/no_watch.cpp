/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/no_watch.cpp - builds that do not look at accesses. */
#include "internal.h"

namespace emu
{

void watch_allocation(const void *, size_t, bool)
{
}
void watch_block_begin()
{
}
void watch_block_end()
{
}
void watch_shared(const void *, size_t)
{
}
void watch_warp(unsigned, unsigned)
{
}
void watch_bulk(const void *, size_t, bool)
{
}

void before_atomic(const void *, unsigned, void *)
{
    maybe_switch(4);
}

void before_access(const void *, unsigned, bool, void *)
{
}

} // namespace emu

extern "C" {

void slm_emu_bytes(const char *, uint64_t *loaded, uint64_t *stored)
{
    *loaded = *stored = 0;
}

void slm_emu_writer(const void *, char *text, size_t size)
{
    if (size) *text = '\0';
}
}
