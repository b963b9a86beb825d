/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/faults.cu - planted faults: each must be reported, at its line.
 *
 *   emu-faults                     one line each: name, kind, builds that see it
 *   emu-faults NAME 0|1 SEED       run it without or with the fault
 *
 * Without the fault the same code must run silently under every schedule. The offending
 * line carries the fault's name in a comment; conformance/test/emu.sh compares. */
#include "../../device.h"
#include "../control.h"

#include <cublas_v2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64 };

static int *device_ints(size_t n)
{
    void *memory = nullptr;

    if (cudaMalloc(&memory, n * sizeof(int)) != cudaSuccess) exit(3);
    return (int *)memory;
}

static int *zeros(size_t n)
{
    int *memory = device_ints(n);

    cudaMemset(memory, 0, n * sizeof(int));
    return memory;
}

/* Barriers. */

__global__ void missing_barrier(int fault, int *out)
{
    SLM_SHARED(int, tile, [N]);
    const int t = (int)threadIdx.x;

    tile[t] = t;
    if (!fault) __syncthreads();
    out[t] = tile[N - 1 - t]; /* missing-barrier */
}

__global__ void reuse(int fault, int *out)
{
    SLM_SHARED(int, tile, [N]);
    const int t = (int)threadIdx.x;

    tile[t] = t;
    __syncthreads();
    const int other = tile[N - 1 - t];
    if (!fault) __syncthreads();
    tile[t] = 2 * other; /* reuse-without-barrier */
    __syncthreads();
    out[t] = tile[N - 1 - t];
}

__global__ void divergent(int fault, int *out)
{
    if (!fault || threadIdx.x < 32) __syncthreads(); /* divergent-barrier */
    out[threadIdx.x] = 1;
}

__global__ void two_barriers(int fault, int *out)
{
    if (fault && threadIdx.x < 32)
        __syncthreads(); /* two-barriers */
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}

/* Updates. */

__global__ void lost_update(int fault, int *out)
{
    SLM_SHARED(int, count, [1]);

    if (threadIdx.x == 0) count[0] = 0;
    __syncthreads();
    if (fault)
        count[0] += 1; /* lost-update */
    else
        atomicAdd(&count[0], 1);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = count[0];
}

__global__ void cross_block(int fault, int *out)
{
    if (threadIdx.x > 0) return;
    if (fault)
        out[0] += 1; /* cross-block */
    else
        atomicAdd(&out[0], 1);
}

/* Bounds and values. */

__global__ void beyond_global(int fault, int *out)
{
    out[(int)threadIdx.x + fault] = 1; /* out-of-bounds */
}

__global__ void beyond_shared(int fault, int *out)
{
    SLM_SHARED_DYNAMIC(int, tile);
    const int t = (int)threadIdx.x;

    tile[t] = t;
    tile[t + fault] = t; /* out-of-bounds-shared */
    out[t] = tile[t];
}

__global__ void unwritten_shared(int fault, int *out)
{
    SLM_SHARED(int, tile, [N]);
    const int t = (int)threadIdx.x;

    if (!fault || t > 0) tile[t] = t;
    __syncthreads();
    out[t] = tile[N - 1 - t]; /* uninitialised-shared */
}

__global__ void copy_one(const int *in, int *out)
{
    out[threadIdx.x] =
        in[threadIdx.x]; /* uninitialised-global host-memory use-after-free */
}

__global__ void misaligned(int fault, int *out)
{
    if (threadIdx.x > 0) return;
    *reinterpret_cast<int4 *>(out + fault) = int4{1, 2, 3, 4}; /* misaligned-vector */
}

__device__ __attribute__((noinline)) int large(int i)
{ /* stack-overflow */
    volatile char room[200 << 10];

    room[i] = 1; /* stack-overflow */
    return room[i];
}

__global__ void overflow(int fault, int *out)
{
    out[threadIdx.x] = fault ? large((int)threadIdx.x) : 0;
}

/* Warps. */

__global__ void bad_mask(int fault, int *out)
{
    const int lane = (int)threadIdx.x;
    const unsigned mask = fault && lane >= 16 ? 0xffffu : 0xffffffffu;

    out[lane] = __shfl_sync(mask, lane, 0); /* bad-mask */
}

__global__ void half_a_warp(int fault, int *out)
{
    if (!fault || threadIdx.x < 16) __syncwarp(); /* half-a-warp */
    out[threadIdx.x] = 1;
}

__global__ void foreign_lane(int fault, int *out)
{
    const int lane = (int)threadIdx.x;

    out[lane] = 0;
    if (lane < 16)
        out[lane] = __shfl_sync(0xffffu, lane, fault ? 20 : 3); /* foreign-lane */
}

__global__ void missing_syncwarp(int fault, int *out)
{
    SLM_SHARED(int, tile, [32]);
    const int lane = (int)threadIdx.x;

    tile[lane] = lane;
    if (!fault) __syncwarp();
    out[lane] = tile[31 - lane]; /* missing-syncwarp */
}

/* The lane of the greatest score; equal scores: the lower lane. */
__global__ void greatest(int fault, const int *score, int *out)
{
    int best = (int)threadIdx.x, value = score[best];

    for (int d = 16; d > 0; d /= 2) {
        const int v = __shfl_xor_sync(0xffffffffu, value, d);
        const int b = __shfl_xor_sync(0xffffffffu, best, d);

        if (v > value || (!fault && v == value && b < best)) {
            value = v;
            best = b;
        }
    }
    if (threadIdx.x == 0) out[0] = best; /* forgotten-tie-rule */
}

/* The host's side of each. */

template <class Kernel> static void once(Kernel kernel, int fault, unsigned threads)
{
    int *out = zeros(N);

    SLM_LAUNCH_SHARED(kernel, 2, threads, N * sizeof(int), nullptr, fault, out);
    cudaDeviceSynchronize();
    cudaFree(out);
}

/* One block, where two would race for the same output. */
template <class Kernel> static void alone(Kernel kernel, int fault, unsigned threads)
{
    int *out = zeros(N);

    SLM_LAUNCH_SHARED(kernel, 1, threads, N * sizeof(int), nullptr, fault, out);
    cudaDeviceSynchronize();
    cudaFree(out);
}

static void copied(const int *in)
{
    int *out = zeros(N);

    SLM_LAUNCH(copy_one, 1, N, nullptr, in, out);
    cudaDeviceSynchronize();
    cudaFree(out);
}

static void uninitialised_global(int fault)
{
    copied(fault ? device_ints(N) : zeros(N));
}

static void host_memory(int fault)
{
    static int here[N];

    copied(fault ? here : zeros(N));
}

static void use_after_free(int fault)
{
    int *in = zeros(N);

    if (fault) cudaFree(in);
    copied(in);
}

static void host_touches_device(int fault)
{
    int *out = zeros(N), mine[N] = {0};

    (fault ? out : mine)[3] = 1; /* host-touches-device */
}

static void forgotten_tie_rule(int fault)
{
    int score[32] = {0}, got = -1, *in = zeros(32), *out = zeros(1);
    char writer[256];

    score[5] = score[20] = score[30] = 7;
    cudaMemcpy(in, score, sizeof score, cudaMemcpyHostToDevice);
    SLM_LAUNCH(greatest, 1, 32, nullptr, fault, in, out);
    cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost);
    if (got == 5) return;
    slm_emu_writer(out, writer, sizeof writer);
    fprintf(stderr, "gpu-emu: values: got %d, want 5: %s\n", got, writer);
    abort();
}

/* Streams. */

__global__ void fill_with(int value, int *out)
{
    out[threadIdx.x] = value; /* missing-event */
}

/* What `what` queues on one stream, and then copy_one() from `first` on another. */
template <class What> static void in_two_streams(int fault, int *first, What what)
{
    int *second = zeros(N);
    cudaStream_t one, two;
    cudaEvent_t ready;

    cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking);
    cudaEventCreate(&ready);
    cudaDeviceSynchronize();
    what(one);
    cudaEventRecord(ready, one);
    if (!fault) cudaStreamWaitEvent(two, ready, 0);
    SLM_LAUNCH(copy_one, 1, N, two, first, second);
    cudaDeviceSynchronize();
}

static void missing_event(int fault)
{
    int *from = zeros(N);

    in_two_streams(fault, from,
                   [=](cudaStream_t s) { SLM_LAUNCH(fill_with, 1, N, s, 7, from); });
}

static void missing_event_copy(int fault)
{
    int *from = zeros(N), *to = zeros(N);

    in_two_streams(fault, to, [=](cudaStream_t s) {
        cudaMemcpyAsync(to, from, N * sizeof(int), /* missing-event-copy */
                        cudaMemcpyDeviceToDevice, s);
    });
}

/* Many pages at once are noted in another way than single words. */
static void missing_event_pages(int fault)
{
    int *to = zeros(8192);

    in_two_streams(fault, to + 4096, [=](cudaStream_t s) {
        cudaMemsetAsync(to, 0, 8192 * sizeof(int), s); /* missing-event-pages */
    });
}

static void waits_in_capture(int fault)
{
    int *out = zeros(N);
    cudaStream_t stream;
    cudaGraph_t graph;

    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    SLM_LAUNCH(fill_with, 1, N, stream, 7, out);
    if (fault) cudaStreamSynchronize(stream); /* waits-in-capture */
    cudaStreamEndCapture(stream, &graph);
}

/* Copies and cuBLAS: the place is the host's call. */

static void copy_past_end(int fault)
{
    int here[N + 1], *out = zeros(N);
    const size_t bytes = (size_t)(N + fault) * sizeof(int);

    cudaMemcpy(here, out, bytes, cudaMemcpyDeviceToHost); /* copy-past-end */
}

static void copy_wrong_way(int fault)
{
    int here[N] = {0}, *out = zeros(N);
    const cudaMemcpyKind kind = fault ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;

    cudaMemcpy(out, here, sizeof here, kind); /* copy-wrong-way */
}

static void gemm(int fault_host, int fault_short)
{
    const float one = 1.0f, zero = 0.0f;
    float here[4] = {0}, *a = (float *)zeros(4), *c = (float *)zeros(4);
    cublasHandle_t handle;
    const float *b = fault_host ? here : a;
    const int n = fault_short ? 3 : 2;

    cublasCreate(&handle);
    cublasGemmEx(handle, CUBLAS_OP_N, /* gemm-host-pointer gemm-too-long */
                 CUBLAS_OP_N, 2, n, 2, &one, a, CUDA_R_32F, 2, b, CUDA_R_32F, 2, &zero,
                 c, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    cudaDeviceSynchronize();
    cublasDestroy(handle);
}

static void gemm_host_pointer(int fault)
{
    gemm(fault, 0);
}

static void gemm_too_long(int fault)
{
    gemm(0, fault);
}

/* A batch of one; its pointers lie where they must not, or are off by an element. */
static void batch(int fault_host, int fault_shift)
{
    const float one = 1.0f, zero = 0.0f;
    __nv_bfloat16 *a = (__nv_bfloat16 *)zeros(64);
    void *here[] = {a + fault_shift, a, zeros(8)}, **there = (void **)zeros(6);
    void *const *of = fault_host ? here : there;
    cublasHandle_t handle;

    cudaMemcpy(there, here, sizeof here, cudaMemcpyHostToDevice);
    cublasCreate(&handle);
    cublasGemmBatchedEx(handle, CUBLAS_OP_N, /* batch-host-pointers batch-misaligned */
                        CUBLAS_OP_N, 8, 1, 8, &one, of, CUDA_R_16BF, 8, of + 1,
                        CUDA_R_16BF, 8, &zero, of + 2, CUDA_R_32F, 8, 1,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    cudaDeviceSynchronize();
    cublasDestroy(handle);
}

static void batch_host_pointers(int fault)
{
    batch(fault, 0);
}

static void batch_misaligned(int fault)
{
    batch(0, fault);
}

template <void (*kernel)(int, int *), unsigned threads> static void run(int fault)
{
    alone(kernel, fault, threads);
}

static void cross_blocks(int fault)
{
    once(cross_block, fault, 32);
}

#include "faults_tile.cuh"

static const struct {
    const char *name, *kind, *builds;
    void (*run)(int fault);
} planted[] = {
    {"missing-barrier", "race|uninitialised", "race", run<missing_barrier, N>},
    {"reuse-without-barrier", "race", "race", run<reuse, N>},
    {"divergent-barrier", "barrier", "all", run<divergent, N>},
    {"two-barriers", "barrier", "all", run<two_barriers, N>},
    {"lost-update", "race", "race", run<lost_update, N>},
    {"cross-block", "race", "race", cross_blocks},
    {"out-of-bounds", "bounds", "race,asan", run<beyond_global, N>},
    {"out-of-bounds-shared", "bounds|race", "race,asan", run<beyond_shared, N>},
    {"uninitialised-shared", "uninitialised", "race", run<unwritten_shared, N>},
    {"uninitialised-global", "uninitialised", "race", uninitialised_global},
    {"host-memory", "host memory", "race", host_memory},
    {"use-after-free", "bounds", "race,asan", use_after_free},
    {"host-touches-device", "memory", "all", host_touches_device},
    {"misaligned-vector", "alignment", "race,asan", run<misaligned, 32>},
    {"stack-overflow", "memory", "plain,race", run<overflow, 32>},
    {"bad-mask", "warp", "all", run<bad_mask, 32>},
    {"half-a-warp", "warp", "all", run<half_a_warp, 32>},
    {"foreign-lane", "warp", "all", run<foreign_lane, 32>},
    {"missing-syncwarp", "race|uninitialised", "race", run<missing_syncwarp, 32>},
    {"forgotten-tie-rule", "values", "race", forgotten_tie_rule},
    {"missing-barrier-tile", "race|uninitialised", "race", missing_barrier_tile},
    {"lane-load", "warp", "all", multiplied<LANE_LOADS>},
    {"lane-product", "warp", "all", multiplied<LANE_MULTIPLIES>},
    {"other-tile", "warp", "all", multiplied<OTHER_TILE>},
    {"tile-at", "alignment", "all", multiplied<POINTER>},
    {"tile-leading", "alignment", "all", multiplied<LEADING>},
    {"tile-beyond", "bounds", "race,asan", multiplied<BEYOND>},
    {"missing-event", "race", "race", missing_event},
    {"missing-event-copy", "race", "race", missing_event_copy},
    {"missing-event-pages", "race", "race", missing_event_pages},
    {"waits-in-capture", "capture", "all", waits_in_capture},
    {"copy-past-end", "memory", "all", copy_past_end},
    {"copy-wrong-way", "memory", "all", copy_wrong_way},
    {"gemm-host-pointer", "cublas", "all", gemm_host_pointer},
    {"gemm-too-long", "cublas", "all", gemm_too_long},
    {"batch-host-pointers", "cublas", "all", batch_host_pointers},
    {"batch-misaligned", "cublas", "all", batch_misaligned},
};

int main(int argc, char **argv)
{
    for (const auto &p : planted) {
        if (argc < 4) {
            printf("%s\t%s\t%s\n", p.name, p.kind, p.builds);
        } else if (strcmp(argv[1], p.name) == 0) {
            slm_emu_seed((unsigned)atoi(argv[3]));
            p.run(atoi(argv[2]));
            return 0;
        }
    }
    return argc < 4 ? 0 : 2;
}
