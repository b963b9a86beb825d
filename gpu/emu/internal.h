/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/internal.h - what the emulator's files share. None is built with
 * -fsanitize=thread: that is for the .cu files of the race build. */
#ifndef SLM_GPU_EMU_INTERNAL_H
#define SLM_GPU_EMU_INTERNAL_H

#include <cuda_runtime.h>
#include <memory>
#include <mutex>
#include <stdint.h>
#include <string>
#include <vector>
#include "control.h"
#include "emu.h"

namespace emu
{

/* fault.cpp: findings. Every one is final: it is printed and the process aborts. */
[[noreturn]] void fault(const char *kind, const std::string &text);
std::string place(const void *pc); /* "gpu/permute.cu:41" */
std::string place(site at);

/* Every function of the public interface holds this while it runs; the default is the
 * place where the host called it. */
struct entry {
    std::lock_guard<std::recursive_mutex> lock;
    explicit entry(const void *called_at = __builtin_return_address(0));
};

/* A moment in the history of all streams: how many tasks of each stream lie before. */
using history = std::vector<uint64_t>;

/* A piece of device work; a graph may run the same one many times. */
struct job {
    std::string name;
    const void *asked_at; /* in the host's code */
    job(std::string n, const void *pc) : name(std::move(n)), asked_at(pc)
    {
    }
    virtual ~job() = default;
    virtual uint64_t steps() const
    {
        return 1;
    }
    virtual void step(uint64_t index) const = 0;
};

/* A job in the queue of a stream. */
struct task {
    std::shared_ptr<const job> what;
    unsigned stream;
    uint64_t number;             /* in its stream, from 1                     */
    history before;              /* what must have ended, and so is ordered   */
    std::vector<uint32_t> order; /* of its steps                              */
    uint64_t next;               /* steps done                                */
};

/* stream.cpp */
extern const task *running; /* its step is being executed, else NULL */
void submit(cudaStream_t stream, std::shared_ptr<const job> what);
void finish(cudaStream_t stream); /* the host waits for it */
void finish_everything();
bool is_recording(cudaStream_t stream);
bool nothing_recording();
cudaError_t note_error(cudaError_t error); /* for cudaGetLastError() */

/* schedule.cpp: the seed and its stream of numbers. */
unsigned schedule();
unsigned random_below(unsigned n);
void put_in_order(std::vector<uint32_t> &order, uint64_t n);

/* memory.cpp */
bool is_device(const void *at);                    /* in the device's address range */
bool device_holds(const void *at, uint64_t bytes); /* one allocation holds all      */
size_t device_offset(const void *at);              /* for shadow memory             */
enum : size_t { DEVICE_BYTES = (size_t)16 << 30 };
/* Device memory can be touched as long as one of these lives. */
struct open_device {
    open_device();
    ~open_device();
};

/* block.cpp: the block that runs. */
enum : size_t { SHARED_BYTES = 256 << 10, MAX_THREADS = 1024 };
extern uint64_t block_index;
extern unsigned block_phase;  /* barriers passed                                 */
extern unsigned thread_index; /* of the running thread                           */
void run_block(const body &kernel, dim3 grid, dim3 block, uint64_t index,
               size_t shared_bytes, size_t shared_limit);
void maybe_switch(unsigned one_in); /* let another thread run, by the schedule    */
int stack_owner(const void *at); /* the thread whose stack that is, else -1         */

/* wmma.cpp: the product of a warp, `lanes` 32 addresses of lane_product. */
void multiply_warp(const uint64_t *lanes);

/* shared.cpp */
void begin_shared(size_t dynamic_bytes, size_t allowed); /* a new block */
bool is_shared(const void *at);
size_t shared_offset(const void *at);

/* watch.cpp in the race build, no_watch.cpp in the others. */
void watch_allocation(const void *at, size_t bytes, bool live);
void watch_block_begin();
void watch_block_end();
void watch_shared(const void *at, size_t bytes);
void watch_warp(unsigned warp, unsigned lanes); /* these lanes met in __syncwarp    */
void watch_bulk(const void *at, size_t bytes, bool write); /* copy, fill, GEMM       */

} // namespace emu
#endif
