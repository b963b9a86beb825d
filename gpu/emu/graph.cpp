/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/graph.cpp - capture of streams into graphs, and their repetition.
 *
 * A graph is the list of captured jobs with their histories. To run it is to queue them
 * again, the lanes' own counts moved to those of the streams that run them. */
#include "stream.h"

#include <map>

namespace emu
{

/* A graph ready to run, with streams of its own for the lanes after the first. */
struct executable {
    recording graph;
    std::vector<stream *> lanes;
};

static std::map<const recording *, std::unique_ptr<recording>> recordings, graphs;

bool nothing_recording()
{
    return recordings.empty();
}

void record(stream &s, std::shared_ptr<const job> what)
{
    recording &to = *s.to;

    to.nodes.push_back({std::move(what), s.lane, to.last[s.lane]});
    const history &last = to.last[s.lane];

    set(to.last[s.lane], s.lane, 1 + (last.size() > s.lane ? last[s.lane] : 0));
}

void wait_in_capture(stream &s, const event &e)
{
    if (!e.in) fault("capture", "a captured stream waits for an event outside");
    if (!s.to) { /* joins the capture */
        s.to = e.in;
        s.lane = (unsigned)e.in->last.size();
        e.in->last.emplace_back();
        e.in->from.push_back(&s);
    }
    if (s.to != e.in) fault("capture", "an event of another capture");
    join(s.to->last[s.lane], e.last);
}

/* Have all lanes been joined to the first? */
static bool is_whole(const recording &r)
{
    for (unsigned lane = 1; lane < r.last.size(); lane++) {
        const uint64_t all = lane < r.last[lane].size() ? r.last[lane][lane] : 0;

        if (all && (r.last[0].size() <= lane || r.last[0][lane] < all)) return false;
    }
    return true;
}

/* The lanes' own histories, moved to the streams that run them. */
static history translate(const executable &e, const std::vector<uint64_t> &ended,
                         const history &lanes)
{
    history moved;

    for (unsigned lane = 0; lane < lanes.size(); lane++)
        if (lanes[lane]) set(moved, e.lanes[lane]->id, ended[lane] + lanes[lane]);
    return moved;
}

static void run_graph(executable &e, stream &s)
{
    std::vector<uint64_t> ended;
    history begin = order_of_default(s);

    join(begin, s.last);
    e.lanes[0] = &s;
    for (const stream *lane : e.lanes)
        ended.push_back(lane->ended + lane->queue.size());
    for (const node &n : e.graph.nodes) {
        history before = translate(e, ended, n.before);

        join(before, begin);
        push(*e.lanes[n.lane], n.what, before);
    }
    for (const stream *lane : e.lanes) join(s.last, lane->last);
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode)
{
    const entry in;
    stream &s = find(handle);

    if (s.id == 0) return note_error(cudaErrorStreamCaptureUnsupported);
    if (s.to) return note_error(cudaErrorIllegalState);

    auto *made = new recording();

    recordings[made].reset(made);
    made->last.emplace_back();
    made->from.push_back(&s);
    s.to = made;
    s.lane = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status)
{
    const entry in;

    *status = is_recording(handle) ? cudaStreamCaptureStatusActive
                                   : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    const entry in;
    stream &s = find(handle);

    *graph = nullptr;
    if (!s.to) return note_error(cudaErrorIllegalState);
    if (s.lane != 0) return note_error(cudaErrorStreamCaptureUnmatched);

    recording *made = s.to;
    auto owner = std::move(recordings[made]);

    recordings.erase(made);
    for (stream *from : made->from) from->to = nullptr;
    forget_capture(made);
    if (!is_whole(*made)) return note_error(cudaErrorStreamCaptureUnjoined);
    graphs[made] = std::move(owner);
    *graph = (cudaGraph_t)made;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *handle, cudaGraph_t graph,
                                 unsigned long long)
{
    const entry in;
    const auto found = graphs.find((const recording *)graph);

    if (found == graphs.end()) return note_error(cudaErrorInvalidValue);

    auto *made = new executable{*found->second, {nullptr}};

    while (made->lanes.size() < made->graph.last.size())
        made->lanes.push_back(make_stream(false));
    *handle = (cudaGraphExec_t)made;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t in_stream)
{
    const entry in;
    stream &s = find(in_stream);

    if (s.to) fault("capture", "a graph inside a graph is not known to the emulator");
    run_graph(*(executable *)handle, s);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle)
{
    const entry in;
    auto *e = (executable *)handle;

    finish_everything();
    for (size_t lane = 1; lane < e->lanes.size(); lane++) e->lanes[lane]->alive = false;
    delete e;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    const entry in;

    return graphs.erase((const recording *)graph) ? cudaSuccess
                                                  : note_error(cudaErrorInvalidValue);
}
}
