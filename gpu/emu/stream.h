/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/stream.h - streams and captures, for stream.cpp and graph.cpp. */
#ifndef SLM_GPU_EMU_STREAM_H
#define SLM_GPU_EMU_STREAM_H

#include <chrono>
#include <deque>
#include "internal.h"

namespace emu
{

struct recording;

struct stream {
    unsigned id;
    bool blocking; /* takes part in the order of the default stream */
    bool alive;
    history last;           /* with all that was submitted to it          */
    std::deque<task> queue; /* not ended                                  */
    uint64_t ended;
    recording *to; /* not NULL: being captured, as this lane     */
    unsigned lane;
};

/* Captured work; lanes stand for streams, lane 0 is where the capture began. */
struct node {
    std::shared_ptr<const job> what;
    unsigned lane;
    history before;
};
struct recording {
    std::vector<node> nodes;
    std::vector<history> last; /* of each lane */
    std::vector<stream *> from;
};

struct event {
    history last;
    recording *in; /* recorded during this capture */
    std::shared_ptr<std::chrono::steady_clock::time_point> when;
};

void join(history &into, const history &other);
void set(history &in, unsigned id, uint64_t number);
stream *make_stream(bool blocking);
stream &find(cudaStream_t handle);
history order_of_default(const stream &s);
void push(stream &s, std::shared_ptr<const job> what, const history &before);

/* graph.cpp */
void record(stream &s, std::shared_ptr<const job> what);
void wait_in_capture(stream &s, const event &e);
void forget_capture(const recording *r); /* its events are no longer of a capture */

} // namespace emu
#endif
