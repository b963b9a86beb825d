/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/schedule.cpp - the seed decides every order that CUDA leaves open. */
#include "internal.h"

#include <stdlib.h>

namespace emu
{

static unsigned seed_of_environment()
{
    const char *text = getenv("SLM_EMU_SEED");

    return text ? (unsigned)strtoul(text, nullptr, 10) : 0;
}

static unsigned seed = seed_of_environment();
static uint64_t state = seed;

unsigned schedule()
{
    return seed;
}

/* splitmix64; n is small, so that the bias of the remainder does not matter. */
unsigned random_below(unsigned n)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ z >> 31) >> 32) % n;
}

void put_in_order(std::vector<uint32_t> &order, uint64_t n)
{
    order.resize(n);
    for (uint32_t i = 0; i < n; i++) order[i] = seed == 1 ? (uint32_t)n - 1 - i : i;
    if (seed < 2) return;
    for (uint32_t i = (uint32_t)n; i > 1; i--)
        std::swap(order[i - 1], order[random_below(i)]);
}

} // namespace emu

extern "C" void slm_emu_seed(unsigned seed)
{
    const emu::entry in;

    emu::finish_everything();
    emu::seed = seed;
    emu::state = seed;
}
