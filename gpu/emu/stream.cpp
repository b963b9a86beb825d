/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/stream.cpp - streams and events.
 *
 * Work is only queued until the host waits for something; then the streams take turns,
 * one block at a time, in any order that the histories allow. A task's history says how
 * many tasks of each stream must have ended before it. Streams, events and waits do
 * nothing but join histories, and the race detector reads the same ones. */
#include "stream.h"

#include <map>

namespace emu
{

const task *running;
static std::vector<std::unique_ptr<stream>> streams;
static history host; /* what the host knows to have ended */
static size_t queued;

void join(history &into, const history &other)
{
    if (into.size() < other.size()) into.resize(other.size());
    for (size_t i = 0; i < other.size(); i++)
        if (into[i] < other[i]) into[i] = other[i];
}

void set(history &in, unsigned id, uint64_t number)
{
    if (in.size() <= id) in.resize(id + 1);
    in[id] = number;
}

stream *make_stream(bool blocking)
{
    for (auto &old : streams)
        if (!old->alive) {
            old->alive = true;
            old->blocking = blocking;
            return old.get();
        }
    streams.emplace_back(new stream());
    streams.back()->id = (unsigned)streams.size() - 1;
    streams.back()->blocking = blocking;
    streams.back()->alive = true;
    return streams.back().get();
}

stream &find(cudaStream_t handle)
{
    if (streams.empty()) make_stream(true); /* the default stream */
    if (!handle || handle == cudaStreamLegacy) return *streams[0];
    for (auto &s : streams)
        if (s->alive && s.get() == (stream *)handle) return *s;
    fault("stream", "a handle that is no stream");
}

bool is_recording(cudaStream_t handle)
{
    return find(handle).to != nullptr;
}

static bool may_run(const stream &s)
{
    if (s.queue.empty()) return false;

    const history &before = s.queue.front().before;

    for (size_t i = 0; i < before.size(); i++)
        if (streams[i]->ended < before[i]) return false;
    return true;
}

static stream *choose()
{
    std::vector<stream *> ready;

    for (auto &s : streams)
        if (may_run(*s)) ready.push_back(s.get());
    if (ready.empty()) return nullptr;
    if (schedule() == 1) return ready.back();
    return ready[schedule() ? random_below((unsigned)ready.size()) : 0];
}

static void run_step(stream &s)
{
    task &t = s.queue.front();
    const uint64_t steps = t.what->steps();

    if (t.next == 0) put_in_order(t.order, steps);
    running = &t;
    t.what->step(t.order[t.next]);
    running = nullptr;
    if (++t.next < steps) return;
    s.queue.pop_front();
    s.ended++;
    queued--;
}

static bool has_ended(const history &all)
{
    for (size_t i = 0; i < all.size(); i++)
        if (streams[i]->ended < all[i]) return false;
    return true;
}

static void wait_for(const history &all)
{
    if (!has_ended(all)) {
        const open_device open;

        while (!has_ended(all)) run_step(*choose());
    }
    join(host, all);
}

void finish_everything()
{
    for (auto &s : streams) wait_for(history(s->last));
}

void finish(cudaStream_t handle)
{
    stream &s = find(handle);

    if (s.to) fault("capture", "the host waits for a stream that is being captured");
    if (s.id) return wait_for(history(s.last));
    for (auto &other : streams)
        if (other->blocking) wait_for(history(other->last));
}

/* Append to a stream; its history then includes the new task. */
void push(stream &s, std::shared_ptr<const job> what, const history &before)
{
    join(s.last, before);
    join(s.last, host);

    const uint64_t number = s.ended + s.queue.size() + 1;

    s.queue.push_back({std::move(what), s.id, number, s.last, {}, 0});
    set(s.last, s.id, number);
    if (++queued > 4096) finish_everything();
}

/* The default stream waits for the blocking ones, and they for it. */
history order_of_default(const stream &s)
{
    history before;

    for (auto &other : streams)
        if (s.blocking && other->blocking && (s.id == 0 || other->id == 0))
            join(before, other->last);
    return before;
}

void submit(cudaStream_t handle, std::shared_ptr<const job> what)
{
    stream &s = find(handle);

    if (s.to) return record(s, std::move(what));
    if (s.id == 0 && !nothing_recording())
        fault("capture", "work for the default stream while a stream is captured");
    push(s, std::move(what), order_of_default(s));
}

/* An event's place in its stream. */
struct mark_job final : job {
    std::shared_ptr<std::chrono::steady_clock::time_point> when;
    mark_job(const void *pc, decltype(when) w) : job("event", pc), when(std::move(w))
    {
    }
    void step(uint64_t) const override
    {
        *when = std::chrono::steady_clock::now();
    }
};

static std::map<const event *, std::unique_ptr<event>> events;

static event &find(cudaEvent_t handle)
{
    const auto found = events.find((const event *)handle);

    if (found == events.end()) fault("event", "a handle that is no event");
    return *found->second;
}

void forget_capture(const recording *r)
{
    for (auto &e : events)
        if (e.second->in == r) *e.second = event();
}

} // namespace emu

using namespace emu;

#define CALLER __builtin_return_address(0)

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags)
{
    const entry in;

    find(cudaStream_t());
    *handle = (cudaStream_t)make_stream(!(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *handle)
{
    return cudaStreamCreateWithFlags(handle, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    const entry in;
    stream &s = find(handle);

    if (s.id == 0) return note_error(cudaErrorInvalidResourceHandle);
    finish(handle);
    s.alive = false;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    const entry in;

    finish(handle);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    const entry in;

    if (!nothing_recording())
        fault("capture", "the host waits while a stream is captured");
    finish_everything();
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned)
{
    const entry in;

    stream &s = find(handle);
    const event &until = find(e);

    if (s.to || until.in)
        wait_in_capture(s, until);
    else
        join(s.last, until.last);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned)
{
    const entry in;
    event *made = new event();

    events[made].reset(made);
    *handle = (cudaEvent_t)made;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *handle)
{
    return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    const entry in;

    events.erase(&find(handle));
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t in_stream)
{
    const entry in;
    event &e = find(handle);
    stream &s = find(in_stream);

    e.when = std::make_shared<std::chrono::steady_clock::time_point>();
    submit(in_stream, std::make_shared<mark_job>(CALLER, e.when));
    e.in = s.to;
    e.last = s.to ? s.to->last[s.lane] : s.last;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    const entry in;
    event &e = find(handle);

    if (e.in) fault("capture", "the host waits for an event of a capture");
    wait_for(e.last);
    return cudaSuccess;
}

/* A host that asks again and again must see work go on. */
cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    const entry in;
    event &e = find(handle);

    if (e.in) fault("capture", "the host asks for an event of a capture");
    if (!has_ended(e.last)) {
        const open_device open;

        run_step(*choose());
    }
    if (!has_ended(e.last)) return cudaErrorNotReady;
    join(host, e.last);
    return cudaSuccess;
}

/* Time of the emulation, for programs that want to print one. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    const entry in;
    const event &a = find(from), &b = find(to);

    if (!a.when || !b.when) return note_error(cudaErrorInvalidResourceHandle);
    if (!has_ended(a.last) || !has_ended(b.last)) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(*b.when - *a.when).count();
    return cudaSuccess;
}
}
