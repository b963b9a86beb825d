/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_roof.c - peak of FMA, bf16 products and tiles; read bandwidth. */
#include "bench_roof.h"
#include "bench_stats.h"
#include "stopwatch.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define SLM_X86 1
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#endif

enum { AHEAD = 16, MAX_THREADS = 1024, TRIES = 15, HUGE = 1 << 21 };

/* Seconds that the runs of one rate may take when others keep the CPUs busy. */
static const double LONGEST = 0.25;

static volatile float sink;

/* Chains of sums that do not wait for each other. Variables, not an array: that would lie
 * in memory. KEEP lets no value be known, so that the loops stay. */
#define CHAINS 12
#define FIRST_SIX(X, a) X(0, a) X(1, a) X(2, a) X(3, a) X(4, a) X(5, a)
#define LAST_SIX(X, a) X(6, a) X(7, a) X(8, a) X(9, a) X(10, a) X(11, a)
#define EACH_CHAIN(X, a) FIRST_SIX(X, a) LAST_SIX(X, a)
#define KEEP(kind, value) __asm__ volatile("" : "+" kind(value))

/* Makes `all`, the sum of the chains after `times` rounds of `step`, which changes `sum`.
 * They begin with different numbers, or they could be one. */
#define SUM_CHAINS(vector, all, times, step)                                           \
    vector all = {0};                                                                  \
    EACH_CHAIN(BEGIN, vector)                                                          \
    for (size_t i = 0; i < times; i++) {                                               \
        EACH_CHAIN(ADD, step)                                                          \
    }                                                                                  \
    EACH_CHAIN(END, all)
#define BEGIN(j, vector) vector sum##j = {j};
#define ADD(j, step)                                                                   \
    {                                                                                  \
        __typeof__(sum##j) sum = sum##j;                                               \
        step;                                                                          \
        sum##j = sum;                                                                  \
    }
#define END(j, all) all += sum##j;

/* ---- loops of arithmetic: each returns the FLOPs of `times` rounds ---- */

typedef float four __attribute__((vector_size(16)));

/* Products and sums as the compiler makes them for any machine. */
static double run_plain(size_t times)
{
    const four factor = {1.0000001f, 1.0000001f, 1.0000001f, 1.0000001f};
    const four addend = {1e-9f, 1e-9f, 1e-9f, 1e-9f};

    SUM_CHAINS(four, all, times, sum = sum * factor + addend)
    sink = all[0];
    return (double)times * CHAINS * 4 * 2;
}

#ifdef SLM_X86
__attribute__((target("avx2,fma"))) static double run_avx2(size_t times)
{
    const __m256 factor = _mm256_set1_ps(1.0000001f), addend = _mm256_set1_ps(1e-9f);

    SUM_CHAINS(__m256, all, times, sum = _mm256_fmadd_ps(sum, factor, addend);
               KEEP("x", sum))
    sink = _mm256_cvtss_f32(all);
    return (double)times * CHAINS * 8 * 2;
}

__attribute__((target("avx512f"))) static double run_avx512(size_t times)
{
    const __m512 factor = _mm512_set1_ps(1.0000001f), addend = _mm512_set1_ps(1e-9f);

    SUM_CHAINS(__m512, all, times, sum = _mm512_fmadd_ps(sum, factor, addend);
               KEEP("v", sum))
    sink = _mm512_reduce_add_ps(all);
    return (double)times * CHAINS * 16 * 2;
}

/* The same products as the kernel of a matrix makes them: 12 rows by two vectors of sums,
 * for which each step loads two vectors and 12 numbers, here from the first cache. CPUs
 * were seen that make a tenth less FMA a second beside loads. */
#define LOADED(instruction, to, from)                                                  \
    __asm__ volatile(instruction " %1, %0" : "=v"(to) : "m"(from))
#define BEGIN_ROW(j, vector) vector left##j = {j}, right##j = {j};
#define ADD_ROW(j, row)                                                                \
    LOADED("vbroadcastss", one, (row)[j]);                                             \
    left##j = _mm512_fmadd_ps(one, left, left##j);                                     \
    right##j = _mm512_fmadd_ps(one, right, right##j);
#define END_ROW(j, all) all += left##j + right##j;

__attribute__((target("avx512f"))) static double run_tile(size_t times)
{
    enum { LANES = 16, STEPS = 8 };
    float x[STEPS * CHAINS], w[STEPS * 2 * LANES] __attribute__((aligned(64)));
    __m512 all = {0}, one, left, right;

    for (size_t i = 0; i < STEPS * CHAINS; i++) x[i] = 1e-3f * (float)i;
    for (size_t i = 0; i < STEPS * 2 * LANES; i++) w[i] = 1.0f - 1e-3f * (float)i;
    EACH_CHAIN(BEGIN_ROW, __m512)
    for (size_t i = 0; i < times; i++) {
        const float *row = x + i % STEPS * CHAINS;
        const __m512 *at = (const __m512 *)(const void *)(w + i % STEPS * 2 * LANES);

        LOADED("vmovaps", left, at[0]);
        LOADED("vmovaps", right, at[1]);
        EACH_CHAIN(ADD_ROW, row)
    }
    EACH_CHAIN(END_ROW, all)
    sink = _mm512_reduce_add_ps(all);
    return (double)times * CHAINS * 2 * LANES * 2;
}

/* Numbers of bf16 in 1 <= |v| < 2 whose bits follow no pattern, as those of weights: of
 * zeros a CPU's tiles made up to a quarter more products a second: less power. */
static void fill_with_noise(uint16_t *values, size_t n)
{
    uint32_t state = 1;

    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (uint16_t)(0x3f80 | (state >> 16 & 0x807f));
    }
}

__attribute__((target("avx512f,avx512bf16"))) static double run_dot(size_t times)
{
    uint16_t values[64];

    fill_with_noise(values, 64);

    const __m512bh a = (__m512bh)_mm512_loadu_si512(values);
    const __m512bh b = (__m512bh)_mm512_loadu_si512(values + 32);

    SUM_CHAINS(__m512, all, times, sum = _mm512_dpbf16_ps(sum, a, b); KEEP("v", sum))
    sink = _mm512_reduce_add_ps(all);
    return (double)times * CHAINS * 32 * 2;
}

/* What LDTILECFG reads: rows and bytes a row of the eight tiles. */
typedef struct tile_shapes {
    unsigned char palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    unsigned char rows[16];
} tile_shapes;

/* Four sums of tiles 16 x 32 by 32 x 16. */
__attribute__((target("amx-tile,amx-bf16"))) static double run_amx(size_t times)
{
    tile_shapes shapes = {.palette = 1};
    uint16_t values[4][512];
    float rows[256];

    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = 64;
        shapes.rows[i] = 16;
    }
    fill_with_noise(values[0], sizeof values / sizeof values[0][0]);
    _tile_loadconfig(&shapes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, values[0], 64);
    _tile_loadd(5, values[1], 64);
    _tile_loadd(6, values[2], 64);
    _tile_loadd(7, values[3], 64);
    for (size_t i = 0; i < times; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, rows, 64);
    _tile_release();
    sink = rows[0];
    return (double)times * 4 * 16 * 16 * 32 * 2;
}

/* Bits of a leaf's subleaf; 0 where there is no such leaf. */
static int has_bits(unsigned leaf, unsigned subleaf, int reg, unsigned bits)
{
    unsigned r[4];

    return __get_cpuid_count(leaf, subleaf, &r[0], &r[1], &r[2], &r[3]) &&
           (r[reg] & bits) == bits;
}

static int has_dot(void)
{
    return __builtin_cpu_supports("avx512f") && has_bits(7, 1, 0, 1u << 5);
}

/* Tiles and their bf16 products; and the system lets this process use them. */
static int has_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };

    return has_bits(7, 0, 3, 1u << 22 | 1u << 24) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

/* ---- reading ---- */

typedef struct line {
    unsigned char bytes[64];
} line;
typedef uint32_t part16 __attribute__((vector_size(16), may_alias));
typedef uint32_t part32 __attribute__((vector_size(32), may_alias));
typedef uint32_t part64 __attribute__((vector_size(64), may_alias));

/* What is read of a line, in parts that a register holds, is gathered in one. */
#define GATHER(part, all, from)                                                        \
    {                                                                                  \
        const part *at = (const part *)(const void *)(from);                           \
        part found = at[0];                                                            \
                                                                                       \
        for (size_t p = 1; p < sizeof(line) / sizeof(part); p++) found ^= at[p];       \
        all ^= found;                                                                  \
    }

/* How: one stream, four at once, or four that are asked for ahead. CPUs differ. */
enum { ONE_STREAM, FOUR_STREAMS, FOUR_AHEAD, WAYS };
#define READ(part)                                                                     \
    const size_t step = streams ? n / 4 : 1, stride = streams ? 1 : 4;                 \
    const line *here = data;                                                           \
    part a = {0}, b = {0}, c = {0}, d = {0};                                           \
                                                                                       \
    for (size_t i = 0; i < n / 4; i++, here += stride) {                               \
        if (streams == FOUR_AHEAD) {                                                   \
            __builtin_prefetch(here + AHEAD);                                          \
            __builtin_prefetch(here + step + AHEAD);                                   \
            __builtin_prefetch(here + 2 * step + AHEAD);                               \
            __builtin_prefetch(here + 3 * step + AHEAD);                               \
        }                                                                              \
        GATHER(part, a, here)                                                          \
        GATHER(part, b, here + step)                                                   \
        GATHER(part, c, here + 2 * step)                                               \
        GATHER(part, d, here + 3 * step)                                               \
    }                                                                                  \
    a ^= b ^ c ^ d;                                                                    \
    return a[0];

static uint32_t read_plain(const line *data, size_t n, int streams)
{
    READ(part16)
}

#ifdef SLM_X86
__attribute__((target("avx2"))) static uint32_t read_avx2(const line *data, size_t n,
                                                          int streams)
{
    READ(part32)
}

__attribute__((target("avx512f"))) static uint32_t read_avx512(const line *data,
                                                               size_t n, int streams)
{
    READ(part64)
}
#endif

/* ---- threads that begin and end together ---- */

typedef struct crew {
    pthread_barrier_t together;
    double (*compute)(size_t times); /* or, if NULL, */
    uint32_t (*read)(const line *data, size_t n, int streams);
    int streams;
    size_t times;
} crew;

typedef struct member {
    crew *all;
    const line *data;
    size_t n;
    double seconds;
    double busy; /* of them on a CPU */
    double work; /* FLOPs or bytes   */
    pthread_t thread;
} member;

static double own_busy(void)
{
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *run_member(void *argument)
{
    member *own = argument;
    crew *all = own->all;
    double start, busy;

    pthread_barrier_wait(&all->together);
    start = stopwatch_now();
    busy = own_busy();
    if (all->compute) {
        own->work = all->compute(all->times);
    } else {
        for (size_t i = 0; i < all->times; i++)
            sink = (float)all->read(own->data, own->n, all->streams);
        own->work = (double)(all->times * own->n * sizeof *own->data);
    }
    own->busy = own_busy() - busy;
    pthread_barrier_wait(&all->together);
    own->seconds = stopwatch_now() - start;
    return NULL;
}

/* Work a second of all threads together; 0 without memory. *busy: of the first. What only
 * computes is slowed down by others only while it is off its CPU, so those seconds do not
 * count, but no more threads are on CPUs at once than there are CPUs; what reads shares
 * the memory with the other threads, so all count. */
static double run_crew(crew *all, const line *data, size_t n_words, size_t threads,
                       double *busy)
{
    member *members = calloc(threads, sizeof *members);
    size_t started = 0;
    double work = 0, longest = 0, rates = 0;

    *busy = 1;
    if (!members) return 0;
    pthread_barrier_init(&all->together, NULL, (unsigned)threads);
    for (; started < threads; started++) {
        members[started].all = all;
        members[started].n = n_words / threads;
        members[started].data = data ? data + started * (n_words / threads) : NULL;
        /* Those that wait for one that cannot come wait for ever: end here. */
        if (pthread_create(&members[started].thread, NULL, run_member,
                           &members[started]))
            abort();
    }
    for (size_t i = 0; i < threads; i++) {
        pthread_join(members[i].thread, NULL);
        work += members[i].work;
        if (members[i].busy > 0) rates += members[i].work / members[i].busy;
        if (members[i].seconds > longest) longest = members[i].seconds;
    }
    pthread_barrier_destroy(&all->together);
    *busy = members[0].busy;
    free(members);
    if (all->compute) return rates * fmin(1.0, (double)bench_cpus() / (double)threads);
    return longest > 0 ? work / longest : 0;
}

/* Of several runs of about two milliseconds: the best, a slice of time that others leave
 * alone now and then, and the median. */
typedef struct rates {
    double best;
    double usual;
} rates;

static rates measure_rates(crew *all, const line *data, size_t n_words, size_t threads)
{
    const double end = stopwatch_now() + LONGEST;
    double rate[TRIES], quartiles[3], busy = 0;
    size_t n = 0;

    all->times = 1;
    run_crew(all, data, n_words, threads, &busy);
    while (busy < 2e-3 && all->times < (size_t)1 << 40) {
        all->times *= 2;
        run_crew(all, data, n_words, threads, &busy);
    }
    while (n < TRIES && (n < 3 || stopwatch_now() < end))
        rate[n++] = run_crew(all, data, n_words, threads, &busy);
    bench_quartiles(rate, n, quartiles);
    return (rates){rate[n - 1], quartiles[1]};
}

static double peak_of(double (*compute)(size_t times), size_t threads)
{
    crew all = {.compute = compute};

    return measure_rates(&all, NULL, 0, threads).best;
}

typedef struct kernels {
    const char *name;
    double (*compute)(size_t times);
    uint32_t (*read)(const line *data, size_t n, int streams);
} kernels;

static kernels pick(void)
{
#ifdef SLM_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return (kernels){"avx512", run_avx512, read_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (kernels){"avx2", run_avx2, read_avx2};
#endif
    return (kernels){"plain", run_plain, read_plain};
}

/* No more than a quarter of the machine's memory, or a gibibyte. */
static size_t most_bytes(void)
{
    const double memory =
        (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double most = memory / 4 < 0x1p30 ? memory / 4 : 0x1p30;

    return most > 0x1p24 ? (size_t)most : (size_t)1 << 24;
}

/* From 16 KiB a thread on, each twice the one before; from 16 MiB a thread on, where the
 * last cache ends for some part of the data, the one between, too. Up to the first that
 * is no smaller than `largest`; returns how many. */
static size_t sizes_of(size_t threads, double largest, size_t sizes[BENCH_SIZES])
{
    const size_t fine = threads << 24, most = most_bytes();
    size_t n = 0, whole = threads << 14, next = whole;

    do {
        sizes[n++] = next;
        if (next == whole && whole >= fine)
            next = whole / 2 * 3;
        else
            next = whole *= 2;
    } while (n < BENCH_SIZES && (double)sizes[n - 1] < largest && next <= most);
    return n;
}

/* Words without a pattern, as weights are. */
static void fill(line *data, size_t bytes)
{
    uint64_t *word = (uint64_t *)(void *)data, state = 1;

    for (size_t i = 0; i < bytes / sizeof *word; i++)
        word[i] = state = state * 6364136223846793005u + 1442695040888963407u;
}

static int measure_reading(bench_roof *out, const kernels *use, double largest)
{
    size_t sizes[BENCH_SIZES];
    const size_t n = sizes_of(out->threads, largest, sizes);
    const size_t bytes = (sizes[n - 1] + HUGE - 1) / HUGE * HUGE;
    line *data;

    data = aligned_alloc(HUGE, bytes);
    if (!data) return 0;
    madvise(data, bytes, MADV_HUGEPAGE);
    fill(data, bytes);
    for (size_t i = 0; i < n; i++) {
        out->size[i] = (double)sizes[i];
        for (int streams = 0; streams < WAYS; streams++) {
            crew all = {.read = use->read, .streams = streams};
            const rates found =
                measure_rates(&all, data, sizes[i] / sizeof *data, out->threads);

            if (found.best > out->bandwidth[i]) out->bandwidth[i] = found.best;
            if (found.usual > out->usual[i]) out->usual[i] = found.usual;
        }
    }
    free(data);
    out->n_sizes = n;
    /* What is smaller is not read more slowly: a dip is a disturbance. */
    for (size_t i = n; i-- > 1;)
        if (out->bandwidth[i - 1] < out->bandwidth[i])
            out->bandwidth[i - 1] = out->bandwidth[i];
    return 1;
}

int bench_roof_measure(bench_roof *out, size_t threads, double largest)
{
    const kernels use = pick();

    memset(out, 0, sizeof *out);
    if (threads == 0 || threads > MAX_THREADS) return 0;
    out->threads = threads;
    strcpy(out->kernel, use.name);
    out->fma = peak_of(use.compute, threads);
#ifdef SLM_X86
    if (use.compute == run_avx512) out->tile = peak_of(run_tile, threads);
    if (has_dot()) out->dot = peak_of(run_dot, threads);
    if (has_amx()) out->amx = peak_of(run_amx, threads);
#endif
    return measure_reading(out, &use, largest);
}
