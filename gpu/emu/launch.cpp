/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/launch.cpp - launches, and what CUDA refuses about them. */
#include "internal.h"

#include <map>

namespace emu
{

static std::map<const void *, int> shared_limits;

struct launch_job final : job {
    std::unique_ptr<const body> kernel;
    dim3 grid, block;
    size_t shared, limit;
    launch_job(const char *called, const void *pc, const body *made)
        : job(called, pc), kernel(made)
    {
    }
    uint64_t steps() const override
    {
        return (uint64_t)grid.x * grid.y * grid.z;
    }
    void step(uint64_t index) const override
    {
        run_block(*kernel, grid, block, index, shared, limit);
    }
};

void launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared,
            cudaStream_t stream, const body *made, void *asked_at)
{
    const entry in;
    auto what = std::make_shared<launch_job>(name, asked_at, made);
    const auto own = shared_limits.find(kernel);
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;

    what->grid = grid;
    what->block = block;
    what->shared = shared;
    what->limit = 48 << 10;
    if (own != shared_limits.end() && (size_t)own->second > what->limit)
        what->limit = (size_t)own->second;
    if (threads == 0 || threads > MAX_THREADS || block.z > 64 || what->steps() == 0 ||
        grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
        note_error(cudaErrorInvalidConfiguration);
        return;
    }
    if (shared > what->limit) {
        note_error(cudaErrorInvalidValue);
        return;
    }
    if (threads % 32)
        fault("launch", "a block of " + std::to_string(threads) +
                            " threads is no whole number of warps, at " +
                            place(asked_at));
    if (what->steps() > 0xffffffff) fault("launch", "more than 2^32 blocks");
    submit(stream, what);
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute what, int value)
{
    const entry in;

    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > 227 << 10)
        return note_error(cudaErrorInvalidValue);
    shared_limits[kernel] = value;
    return cudaSuccess;
}
}
