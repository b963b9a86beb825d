/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/roof/roof.cu - what a device does at best, measured: reading, copying, products.
 *
 * A library of its own, which knows no backend: slmoe-host loads it beside those that it
 * times, so that roof and times are of one process and one device. Everything is the
 * best of several runs of a few milliseconds between two events, since it is a bound.
 *
 *   reading   16-byte loads of all threads, from buffers of 4 MiB on, each twice the one
 *             before: the second level of the cache, then the device's memory
 *   copying   cudaMemcpy within the device's memory; bytes read and written
 *   products  cuBLAS, square: bf16 factors and results, binary32 ones without TF32; the
 *             factors are random, since zeros take less current and higher clocks */
#include <cublas_v2.h>
#include <stdio.h>
#include <string.h>

#include "../device.h"

namespace
{

enum { THREADS = 256, AHEAD = 4, LEVELS = 20, TRIES = 12 };

const size_t SMALLEST = (size_t)4 << 20;

/* On the emulator everything is small and once: its numbers say nothing. */
bool is_emulated()
{
    return strcmp(SLM_DEVICE_NAME, "gpu") != 0;
}

/* Words of which a half is a bf16 number, and the whole a binary32 one, from 1 to 2 or
 * from -2 to -1.
 *
 *   launch   grid any, block 256; data [n] out */
__global__ void __launch_bounds__(THREADS) roof_fill(uint4 *data, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        unsigned part[4];

        SLM_UNROLL
        for (int j = 0; j < 4; j++) {
            unsigned v = (unsigned)i * 4u + (unsigned)j;

            v = (v ^ v >> 16) * 0x7feb352du;
            v = (v ^ v >> 15) * 0x846ca68bu;
            part[j] = ((v ^ v >> 16) & 0x807f807fu) | 0x3f803f80u;
        }
        data[i] = make_uint4(part[0], part[1], part[2], part[3]);
    }
}

__device__ inline unsigned fold(uint4 v)
{
    return v.x ^ v.y ^ v.z ^ v.w;
}

/* Reads all of data `times` times. A block takes another block's part each time: what
 * lies in the first level of its multiprocessor's cache is of no use to it, as between
 * two kernels.
 *
 *   launch   grid any, block 256
 *   data     [n] of roof_fill; sink [1], written only to keep the loads */
__global__ void __launch_bounds__(THREADS)
    roof_read(const uint4 *data, size_t n, int times, unsigned *sink)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    unsigned sum = 0;

    for (int r = 0; r < times; r++) {
        const unsigned part = (blockIdx.x + (unsigned)r) % gridDim.x;
        size_t i = (size_t)part * blockDim.x + threadIdx.x;

        for (; i + (AHEAD - 1) * step < n; i += AHEAD * step) {
            const uint4 a = data[i], b = data[i + step];
            const uint4 c = data[i + 2 * step], d = data[i + 3 * step];

            sum ^= fold(a) ^ fold(b) ^ fold(c) ^ fold(d);
        }
        for (; i < n; i += step) sum ^= fold(data[i]);
    }
    if (sum == 1) *sink = sum;
}

/* What is measured with: the device's memory, events, cuBLAS. */
struct bench {
    char *data;
    size_t bytes;
    unsigned *sink;
    cudaEvent_t begin, end;
    cublasHandle_t blas;
    unsigned blocks; /* that keep all multiprocessors busy */
    cudaDeviceProp device;
};

/* Something to be timed, `times` times; 0 when it cannot be launched. */
struct work {
    int (*run)(const bench &on, const work &of, int times);
    size_t size; /* bytes of a level, or rows of a matrix */
    cudaDataType type;
};

/* Seconds of the runs between two events; 0 when the device fails. */
double seconds_of(const bench &on, const work &of, int times)
{
    float milliseconds = 0;

    if (cudaEventRecord(on.begin, NULL) != cudaSuccess || !of.run(on, of, times) ||
        cudaEventRecord(on.end, NULL) != cudaSuccess ||
        cudaEventSynchronize(on.end) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, on.begin, on.end) != cudaSuccess)
        return 0;
    return milliseconds / 1e3;
}

/* Shortest seconds of one run: of tries of at least four milliseconds each. */
double best_of(const bench &on, const work &of)
{
    double best = seconds_of(on, of, 1);
    int times = 1;

    if (is_emulated()) return best;
    for (double all = best; all > 0 && all < 4e-3 && times < 1 << 20;
         all = seconds_of(on, of, times))
        times *= 2;
    for (int i = 0; i < TRIES && best > 0; i++) {
        const double one = seconds_of(on, of, times) / times;

        if (one < best) best = one;
    }
    return best;
}

int run_read(const bench &on, const work &of, int times)
{
    const size_t n = of.size / sizeof(uint4), most = n / (THREADS * AHEAD);
    const unsigned blocks = most < on.blocks ? (unsigned)most : on.blocks;

    SLM_LAUNCH(roof_read, blocks ? blocks : 1, THREADS, NULL,
               (const uint4 *)(const void *)on.data, n, times, on.sink);
    return cudaGetLastError() == cudaSuccess;
}

/* The lower half of the buffer to the upper one. */
int run_copy(const bench &on, const work &of, int times)
{
    cudaError_t error = cudaSuccess;

    for (int i = 0; i < times && !error; i++)
        error = cudaMemcpyAsync(on.data + of.size, on.data, of.size,
                                cudaMemcpyDeviceToDevice, NULL);
    return error == cudaSuccess;
}

/* Three square matrices, one after the other in the buffer. */
int run_product(const bench &on, const work &of, int times)
{
    const float one = 1.0f, zero = 0.0f;
    const size_t element = of.type == CUDA_R_16BF ? 2 : 4;
    const size_t bytes = of.size * of.size * element;
    const int n = (int)of.size;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    for (int i = 0; i < times && !status; i++)
        status = cublasGemmEx(on.blas, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, on.data,
                              of.type, n, on.data + bytes, of.type, n, &zero,
                              on.data + 2 * bytes, of.type, n, CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT);
    return status == CUBLAS_STATUS_SUCCESS;
}

/* FLOP/s of the best of a few sizes; 0: none could be run. */
double products(const bench &on, cudaDataType type)
{
    const size_t sizes[] = {4096, 8192, 16384}, element = type == CUDA_R_16BF ? 2 : 4;
    double best = 0;

    for (const size_t size : sizes) {
        const size_t n = is_emulated() ? 64 : size;
        const double flops = 2.0 * (double)n * (double)n * (double)n;
        double seconds;

        if (3 * n * n * element > on.bytes || (element == 4 && n > 8192)) continue;
        seconds = best_of(on, {run_product, n, type});
        if (seconds > 0 && flops / seconds > best) best = flops / seconds;
    }
    return best;
}

void close(bench *on)
{
    if (on->blas) cublasDestroy(on->blas);
    if (on->begin) cudaEventDestroy(on->begin);
    if (on->end) cudaEventDestroy(on->end);
    cudaFree(on->sink);
    cudaFree(on->data);
}

/* Bytes of the largest level: the first that holds `largest`, at least eight times the
 * cache, at most 4 GiB and a quarter of the memory. */
size_t most_bytes(const cudaDeviceProp &device, double largest)
{
    const double cache = 8.0 * device.l2CacheSize;
    const double want = largest > cache ? largest : cache;
    size_t bytes = SMALLEST;

    while ((double)bytes < want && bytes < (size_t)4 << 30 &&
           2 * bytes <= device.totalGlobalMem / 4)
        bytes *= 2;
    return bytes;
}

cudaError_t open(bench *on, double largest)
{
    const size_t matrices = is_emulated() ? 0 : (size_t)3 * 16384 * 16384 * 2;
    cudaError_t error = cudaGetDeviceProperties(&on->device, 0);

    if (error) return error;
    on->bytes = most_bytes(on->device, largest);
    if (on->bytes < matrices && matrices <= on->device.totalGlobalMem / 4)
        on->bytes = matrices;
    on->blocks = 8 * (unsigned)on->device.multiProcessorCount;
    error = cudaMalloc((void **)&on->data, on->bytes);
    if (!error) error = cudaMalloc((void **)&on->sink, sizeof *on->sink);
    if (!error) error = cudaEventCreate(&on->begin);
    if (!error) error = cudaEventCreate(&on->end);
    if (!error && cublasCreate(&on->blas) != CUBLAS_STATUS_SUCCESS)
        error = cudaErrorInitializationError;
    if (error) return error;
    SLM_LAUNCH(roof_fill, on->blocks, THREADS, NULL, (uint4 *)(void *)on->data,
               on->bytes / sizeof(uint4));
    error = cudaGetLastError();
    return error ? error : cudaDeviceSynchronize();
}

/* Text that grows at the end of a buffer. */
struct line {
    char *text;
    size_t size, used;
};

template <class... A> void say(line *to, const char *format, A... args)
{
    const size_t left = to->used < to->size ? to->size - to->used : 0;

    to->used +=
        (size_t)snprintf(left ? to->text + to->used : NULL, left, format, args...);
}

/* Pairs of bytes and bytes/s, ascending. What is smaller is not read more slowly. */
bool say_reading(const bench &on, double largest, line *to)
{
    const size_t most = most_bytes(on.device, largest);
    double rate[LEVELS];
    int n = 0;

    for (size_t size = SMALLEST; size <= most && n < LEVELS; size *= 2, n++) {
        const double seconds = best_of(on, {run_read, size, CUDA_R_32F});

        if (!(seconds > 0)) return false;
        rate[n] = (double)size / seconds;
    }
    for (int i = n - 1; i-- > 0;)
        if (rate[i] < rate[i + 1]) rate[i] = rate[i + 1];
    for (int i = 0; i < n; i++)
        say(to, "%s[%.0f,%.6g]", i ? "," : "", (double)(SMALLEST << i), rate[i]);
    return true;
}

bool measure(const bench &on, double largest, line *to)
{
    const size_t half = on.bytes / 2;
    double seconds;

    say(to, "{\"device\":\"%s\",\"emulated\":%s,\"read\":[", on.device.name,
        is_emulated() ? "true" : "false");
    if (!say_reading(on, largest, to)) return false;
    seconds = best_of(on, {run_copy, half, CUDA_R_32F});
    if (!(seconds > 0)) return false;
    say(to, "],\"copy\":%.6g", 2.0 * (double)half / seconds);
    say(to, ",\"bf16\":%.6g", products(on, CUDA_R_16BF));
    say(to, ",\"f32\":%.6g}", products(on, CUDA_R_32F));
    return to->used < to->size;
}

} // namespace

/* Measure device 0. Into json [size] goes one object:
 *
 *   device    its name            emulated  true: the numbers say nothing
 *   read      pairs of bytes and bytes/s, ascending; up to the first that holds `largest`
 *             bytes, or 4 GiB, and far beyond the cache in any case
 *   copy      bytes/s, read and written
 *   bf16, f32 FLOP/s of cuBLAS's products, 0: there are none
 *
 * Returns 1; or 0, and json is why not, for people. Takes a second or two and up to
 * 4 GiB of the device's memory, which it gives back. */
extern "C" __attribute__((visibility("default"))) int
slm_roof_measure(double largest, char *json, size_t size)
{
    bench on = {};
    line to = {json, size, 0};
    const cudaError_t error = open(&on, largest);
    const bool ok = !error && measure(on, largest, &to);

    if (!ok)
        snprintf(json, size, "the device's roof cannot be measured: %s",
                 cudaGetErrorString(error ? error : cudaGetLastError()));
    close(&on);
    return ok;
}
