/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/situ.c - sigmoid, SiTU-GLU and the control activations; AVX-512, AVX2 or plain C.
 *
 * Clause   L1, L4.  Preconditions are the contract's; none is checked here.
 * Method   one reduction for all: e^x = 2^n (1 + p), x <= 0, where p = e^r - 1 keeps
 *          its relative accuracy near 0. Then tanh t = -m / (2 + m), m = e^-2t - 1 =
 *          2^n p + (2^n - 1), and sigmoid = e^x / (1 + e^x) or 1 / (1 + e^x). SiTU-GLU
 *          is one quotient of products; 2^n, which may underflow, is multiplied last.
 * Error    relative, in units of 2^-24, the worst of every binary32 against binary64
 *          libm, each instruction set, FMA or not: sigmoid 2.97, tanh 2.98 (the table
 *          declares 3.5 for both); SiTU-GLU 8.6 of 10^7 random pairs. A subnormal
 *          result has one more rounding.
 * Bound    |h| <= beta_gate beta_up. */
#include "internal.h"

/* Inlined into a function for one instruction set, it is compiled for that one. */
#define SLM_CPU_INLINE static inline __attribute__((always_inline))

static const float log2_e = 0x1.715476p+0f;
static const float ln2_high = 0x1.62e4p-1f; /* 15 bits: n ln2_high is exact */
static const float ln2_low = 0x1.7f7d1cp-20f;
static const float round_shift = 0x1.8p+23f; /* v + it - it rounds v to an integer */

/* Bounds that a loop reads once. Volatile keeps their values from the compiler, which
 * would fold what follows a bound into a second path and then not vectorise. */
static const volatile float farthest_cap = 40.0f; /* tanh of it is 1 */
static const volatile float farthest_sigmoid = 130.0f;

enum { ROUND_SHIFT_BITS = 0x4b400000, EXPONENT_BIAS = 127, CHUNK = 256 };

SLM_CPU_INLINE float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

SLM_CPU_INLINE uint32_t to_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 2^n for -126 <= n <= 127. */
SLM_CPU_INLINE float power_of_two(int32_t n)
{
    return from_bits((uint32_t)(n + EXPONENT_BIAS) << 23);
}

/* which ? yes : no, by bits: nothing of it becomes a branch, which no compiler could
 * vectorise without masks. */
SLM_CPU_INLINE float pick(int which, float yes, float no)
{
    const uint32_t mask = (uint32_t)-which;

    return from_bits((to_bits(yes) & mask) | (to_bits(no) & ~mask));
}

/* a b + c, rounded once where the instruction set has FMA: a constant in each loop. */
SLM_CPU_INLINE float add_product(int fma, float a, float b, float c)
{
    return fma ? __builtin_fmaf(a, b, c) : a * b + c;
}

typedef struct exponential {
    float p; /* e^x = 2^n (1 + p), |p| < 0.42 */
    int32_t n;
} exponential;

/* Precondition: -200 < x <= 0, or NaN: then p is NaN and n any number. */
SLM_CPU_INLINE exponential reduce(int fma, float x)
{
    const float shifted = add_product(fma, x, log2_e, round_shift);
    const float whole = round_shift - shifted;
    const float near = add_product(fma, whole, ln2_high, x);
    const float r = add_product(fma, whole, ln2_low, near);
    float q = 0x1.a032d8p-13f;

    q = add_product(fma, q, r, 0x1.6d7298p-10f);
    q = add_product(fma, q, r, 0x1.11118ap-7f);
    q = add_product(fma, q, r, 0x1.5554b0p-5f);
    q = add_product(fma, q, r, 0x1.555554p-3f);
    q = add_product(fma, q, r, 0.5f);

    const int32_t n = (int32_t)(to_bits(shifted) - ROUND_SHIFT_BITS);

    return (exponential){add_product(fma, r * r, q, r), n};
}

/* A factor of SiTU-GLU as numerator / denominator, magnitudes. */
typedef struct fraction {
    float num;
    float den;
} fraction;

typedef struct softcap {
    float beta;
    float two_over_beta;
    float linear; /* below it beta tanh(v / beta) = v within 2^-27 */
    float far;    /* v two_over_beta above it counts as it         */
} softcap;

SLM_CPU_INLINE softcap make_softcap(double beta)
{
    return (softcap){(float)beta, (float)(2.0 / beta), (float)(beta * 0x1p-13),
                     farthest_cap};
}

/* beta tanh(v / beta) for v >= 0. */
SLM_CPU_INLINE fraction cap(int fma, float v, softcap c)
{
    const float twice = v * c.two_over_beta;
    const exponential e = reduce(fma, twice > c.far ? -c.far : -twice);
    const float scale = power_of_two(e.n);
    const float m = add_product(fma, scale, e.p, scale - 1.0f);
    const int linear = v < c.linear;

    return (fraction){pick(linear, v, c.beta * -m), pick(linear, 1.0f, 2.0f + m)};
}

/* sigmoid(a) = num / den scale[0] scale[1]. */
typedef struct logistic {
    fraction value;
    float scale[2];
} logistic;

SLM_CPU_INLINE logistic logistic_of(int fma, float a, float far)
{
    const float magnitude = fabsf(a);
    const exponential e = reduce(fma, magnitude > far ? -far : -magnitude);
    const float one = power_of_two(e.n / 2);
    const float two = power_of_two(e.n - e.n / 2);
    const float mantissa = 1.0f + e.p;
    const int negative = a < 0.0f;

    return (logistic){
        {pick(negative, mantissa, 1.0f), add_product(fma, mantissa * one, two, 1.0f)},
        {pick(negative, one, 1.0f), pick(negative, two, 1.0f)}};
}

SLM_CPU_INLINE void sigmoid_loop(int fma, size_t count, const float *in, float *out)
{
    const float far = farthest_sigmoid;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const logistic s = logistic_of(fma, in[i], far);

        out[i] = s.value.num / s.value.den * s.scale[0] * s.scale[1];
    }
}

SLM_CPU_INLINE void situ_loop(int fma, size_t count, const float *gate, const float *up,
                              float *out, double beta_gate, double beta_up)
{
    const softcap of_gate = make_softcap(beta_gate), of_up = make_softcap(beta_up);
    const double product = beta_gate * beta_up;
    const float nearest = (float)product;
    const float far = farthest_sigmoid;
    const float bound = (double)nearest > product ? nextafterf(nearest, 0.0f) : nearest;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const float a = gate[i], b = up[i];
        const fraction g = cap(fma, fabsf(a), of_gate);
        const fraction u = cap(fma, fabsf(b), of_up);
        const logistic s = logistic_of(fma, a, far);
        const float num = g.num * u.num * s.value.num;
        const float den = g.den * u.den * s.value.den;
        const float h = num / den * s.scale[0] * s.scale[1];
        const float magnitude = pick(h > bound, bound, h);

        out[i] = from_bits((to_bits(magnitude) & 0x7fffffffu) |
                           ((to_bits(a) ^ to_bits(b)) & 0x80000000u));
    }
}

static void sigmoid_plain(size_t count, const float *in, float *out)
{
    sigmoid_loop(0, count, in, out);
}

static void situ_plain(size_t count, const float *gate, const float *up, float *out,
                       double beta_gate, double beta_up)
{
    situ_loop(0, count, gate, up, out, beta_gate, beta_up);
}

#if defined(__x86_64__)
#define SLM_CPU_AVX2 __attribute__((target("avx2,fma")))
#define SLM_CPU_AVX512 __attribute__((target("avx2,fma,avx512f,avx512dq")))

SLM_CPU_AVX2 static void sigmoid_avx2(size_t count, const float *in, float *out)
{
    sigmoid_loop(1, count, in, out);
}

SLM_CPU_AVX2 static void situ_avx2(size_t count, const float *gate, const float *up,
                                   float *out, double beta_gate, double beta_up)
{
    situ_loop(1, count, gate, up, out, beta_gate, beta_up);
}

SLM_CPU_AVX512 static void sigmoid_avx512(size_t count, const float *in, float *out)
{
    sigmoid_loop(1, count, in, out);
}

SLM_CPU_AVX512 static void situ_avx512(size_t count, const float *gate, const float *up,
                                       float *out, double beta_gate, double beta_up)
{
    situ_loop(1, count, gate, up, out, beta_gate, beta_up);
}
#endif

const slm_cpu_kernels *slm_cpu_kernels_of(slm_cpu_isa isa)
{
    static const slm_cpu_kernels plain = {sigmoid_plain, situ_plain};
#if defined(__x86_64__)
    static const slm_cpu_kernels avx2 = {sigmoid_avx2, situ_avx2};
    static const slm_cpu_kernels avx512 = {sigmoid_avx512, situ_avx512};

    if (isa >= SLM_ISA_AVX512) return &avx512;
    if (isa == SLM_ISA_AVX2) return &avx2;
#endif
    (void)isa;
    return &plain;
}

/* a sigmoid(a) b in binary64: no product of two factors can leave its range early. */
static float swiglu(float a, float b)
{
    const double wide = (double)a;
    const double e = exp(-fabs(wide));

    if (wide == -INFINITY) return isnan(b) ? b : 0.0f;
    return (float)(wide * ((wide < 0.0 ? e : 1.0) / (1.0 + e)) * (double)b);
}

void slm_cpu_activate(const slm_handle *handle, size_t count, const float *gate,
                      const float *up, float *out)
{
    const slm_config *config = &handle->config;

    switch (config->expert) {
    case SLM_EXPERT_SWIGLU:
        for (size_t i = 0; i < count; i++) out[i] = swiglu(gate[i], up[i]);
        break;
    case SLM_EXPERT_RELU:
        for (size_t i = 0; i < count; i++) out[i] = up[i] < 0.0f ? 0.0f : up[i];
        break;
    default:
        handle->kernels->situ(count, gate, up, out, config->beta_gate, config->beta_up);
    }
}

/* A chunk of one row; views of any stride go through buffers on the stack. */
static void situ_chunk(const slm_handle *handle, const slm_situ_glu_args *args,
                       size_t row, size_t first, size_t count)
{
    const slm_config *config = &handle->config;
    const size_t width = config->d_expert;
    float gate[CHUNK] = {0.0f}, up[CHUNK] = {0.0f};

    for (size_t i = 0; i < count; i++) {
        gate[i] = *slm_cpu_f32(&args->gate_up, row, first + i);
        up[i] = *slm_cpu_f32(&args->gate_up, row, width + first + i);
    }
    handle->kernels->situ(count, gate, up, gate, config->beta_gate, config->beta_up);
    for (size_t i = 0; i < count; i++) *slm_cpu_f32(&args->h, row, first + i) = gate[i];
}

slm_status slm_cpu_situ_glu(slm_handle *handle, const slm_situ_glu_args *args,
                            slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t width = config->d_expert;
    const int direct = args->gate_up.stride[1] == 1 && args->h.stride[1] == 1;

    (void)error;
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        if (direct) {
            const float *row = slm_cpu_f32(&args->gate_up, t, 0);

            handle->kernels->situ(width, row, row + width, slm_cpu_f32(&args->h, t, 0),
                                  config->beta_gate, config->beta_up);
            continue;
        }
        for (size_t first = 0; first < width; first += CHUNK)
            situ_chunk(handle, args, t, first,
                       width - first < CHUNK ? width - first : CHUNK);
    }
    return SLM_OK;
}
