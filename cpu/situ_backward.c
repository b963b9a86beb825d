/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/situ_backward.c - gradients of SiTU-GLU and SwiGLU; AVX-512, AVX2 or plain C.
 *
 * Clause   G1, L4.  Preconditions are the contract's; none is checked here.
 * Method   binary64 inside, rounded once: three factors of very different size are
 *          multiplied, and G' is a difference where a < 0. t = e^-2v = 2^n (1 + p)
 *          gives m = t - 1 = 2^n p + (2^n - 1), tanh v = -m / (2 + m) and sech^2 v =
 *          4 t / (2 + m)^2; sigma(a), sigma(-a) are 1 / (1 + e) and e / (1 + e), e =
 *          e^-|a|. Nothing is 1 minus a rounded value, so saturation stays relative.
 * Error    before the last rounding within 2^-36 of |dh U| (sech^2 sigma(a) + |beta
 *          tanh sigma(a) sigma(-a)|) and of |dh G U'|: the polynomial. Against the
 *          80-bit libm, 3 10^6 triples over all exponents for each instruction set:
 *          never more than 2 10^-5 2^-24 of these beyond the half ulp of the result,
 *          subnormal ones too. No product leaves the range of binary64.
 * Aliasing outputs may be inputs, element by element. */
#include <float.h>

#include "internal.h"

/* Inlined into a function for one instruction set, it is compiled for that one. */
#define SLM_CPU_INLINE static inline __attribute__((always_inline))

static const double log2_e = 0x1.71547652b82fep+0;
static const double ln2_high = 0x1.62e42feep-1; /* 32 bits: n ln2_high is exact */
static const double ln2_low = 0x1.a39ef35793c76p-33;
static const double round_shift = 0x1.8p+52; /* v + it - it rounds v to an integer */

/* Bounds that a loop reads once. Volatile keeps their values from the compiler, which
 * would fold what follows a bound into a second path and then not vectorise. */
static const volatile double farthest = 700.0; /* e^-700 of any binary32 is nothing */
static const volatile double largest = (double)FLT_MAX;

enum { EXPONENT_BIAS = 1023, CHUNK = 256 };
#define ROUND_SHIFT_BITS 0x4338000000000000u

SLM_CPU_INLINE double from_bits(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

SLM_CPU_INLINE uint64_t to_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

typedef struct exponential {
    double p; /* e^-v = scale (1 + p), |p| < 0.42 */
    double scale;
} exponential;

/* v >= 0, or NaN: then p is NaN. What is above `far` counts as it. */
SLM_CPU_INLINE exponential exponential_of(double v, double far)
{
    const double x = v > far ? -far : -v;
    const double shifted = x * log2_e + round_shift;
    const double whole = shifted - round_shift;
    const double r = (x - whole * ln2_high) - whole * ln2_low;
    double q = 1.0 / 362880.0;

    q = q * r + 1.0 / 40320.0;
    q = q * r + 1.0 / 5040.0;
    q = q * r + 1.0 / 720.0;
    q = q * r + 1.0 / 120.0;
    q = q * r + 1.0 / 24.0;
    q = q * r + 1.0 / 6.0;
    q = q * r + 0.5;
    return (exponential){
        r + r * r * q,
        from_bits((to_bits(shifted) - ROUND_SHIFT_BITS + EXPONENT_BIAS) << 52)};
}

typedef struct softcap {
    double beta;
    double two_over_beta;
    double linear; /* below it beta tanh(v / beta) = v within 2^-40 */
} softcap;

static softcap softcap_of(double beta)
{
    return (softcap){beta, fmin(2.0 / beta, DBL_MAX), beta * 0x1p-20};
}

/* beta tanh(v / beta) = num / den, sech^2(v / beta) = slope / den^2; 1 < den <= 2. */
typedef struct capped {
    double num;
    double den;
    double slope;
} capped;

/* v >= 0. */
SLM_CPU_INLINE capped cap(double v, softcap c, double far)
{
    const exponential e = exponential_of(v * c.two_over_beta, far);
    const double m = e.scale * e.p + (e.scale - 1.0);
    const double den = 2.0 + m;
    const int linear = v < c.linear;
    const double one = linear ? v : c.beta, two = linear ? den : -m;

    return (capped){one * two, den, 4.0 * (e.scale + e.scale * e.p)};
}

SLM_CPU_INLINE void situ_loop(size_t count, slm_cpu_glu at, double beta_gate,
                              double beta_up)
{
    const softcap of_gate = softcap_of(beta_gate), of_up = softcap_of(beta_up);
    const double far = farthest;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const double a = (double)at.gate[i], b = (double)at.up[i];
        const double dh = (double)at.dh[i];
        const capped g = cap(fabs(a), of_gate, far), u = cap(fabs(b), of_up, far);
        const exponential x = exponential_of(fabs(a), far);
        const double e = x.scale + x.scale * x.p, one_plus = 1.0 + e;
        const double inverse = 1.0 / (g.den * u.den * one_plus); /* one division */
        const double of_g = inverse * u.den * one_plus;
        const double of_u = inverse * g.den * one_plus;
        const double more = inverse * g.den * u.den;
        const double less = more * e; /* sigma(-|a|) */
        const double sigma = a < 0.0 ? less : more;
        const double other = a < 0.0 ? more : less;
        const double gate = copysign(g.num * of_g, a);
        const double up = copysign(u.num * of_u, b);
        const double slope = g.slope * of_g * of_g + gate * other;

        at.dgate[i] = (float)(dh * up * (sigma * slope));
        at.dup[i] = (float)(dh * (gate * sigma) * (u.slope * of_u * of_u));
    }
}

/* An infinite gate counts as the largest number: its sigma is then 0 or 1. */
SLM_CPU_INLINE void swiglu_loop(size_t count, slm_cpu_glu at)
{
    const double far = farthest, most = largest;

#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        const double given = (double)at.gate[i], b = (double)at.up[i];
        const double dh = (double)at.dh[i];
        const double size = fabs(given) > most ? most : fabs(given);
        const double a = copysign(size, given);
        const exponential x = exponential_of(size, far);
        const double e = x.scale + x.scale * x.p, inverse = 1.0 / (1.0 + e);
        const double less = inverse * e; /* sigma(-|a|) */
        const double sigma = a < 0.0 ? less : inverse;
        const double other = a < 0.0 ? inverse : less;

        at.dgate[i] = (float)(dh * b * (sigma * (1.0 + a * other)));
        at.dup[i] = (float)(dh * (a * sigma));
    }
}

static void situ_plain(size_t count, slm_cpu_glu at, double beta_gate, double beta_up)
{
    situ_loop(count, at, beta_gate, beta_up);
}

static void swiglu_plain(size_t count, slm_cpu_glu at)
{
    swiglu_loop(count, at);
}

#if defined(__x86_64__)
#define SLM_CPU_AVX2 __attribute__((target("avx2,fma")))
#define SLM_CPU_AVX512 __attribute__((target("avx2,fma,avx512f,avx512dq")))

SLM_CPU_AVX2 static void situ_avx2(size_t count, slm_cpu_glu at, double beta_gate,
                                   double beta_up)
{
    situ_loop(count, at, beta_gate, beta_up);
}

SLM_CPU_AVX2 static void swiglu_avx2(size_t count, slm_cpu_glu at)
{
    swiglu_loop(count, at);
}

SLM_CPU_AVX512 static void situ_avx512(size_t count, slm_cpu_glu at, double beta_gate,
                                       double beta_up)
{
    situ_loop(count, at, beta_gate, beta_up);
}

SLM_CPU_AVX512 static void swiglu_avx512(size_t count, slm_cpu_glu at)
{
    swiglu_loop(count, at);
}
#endif

const slm_cpu_slopes *slm_cpu_slopes_of(slm_cpu_isa isa)
{
    static const slm_cpu_slopes plain = {situ_plain, swiglu_plain};
#if defined(__x86_64__)
    static const slm_cpu_slopes avx2 = {situ_avx2, swiglu_avx2};
    static const slm_cpu_slopes avx512 = {situ_avx512, swiglu_avx512};

    if (isa >= SLM_ISA_AVX512) return &avx512;
    if (isa == SLM_ISA_AVX2) return &avx2;
#endif
    (void)isa;
    return &plain;
}

void slm_cpu_activate_backward(const slm_handle *handle, size_t count, slm_cpu_glu at)
{
    const slm_config *config = &handle->config;

    if (config->expert == SLM_EXPERT_SWIGLU)
        handle->slopes->swiglu(count, at);
    else
        handle->slopes->situ(count, at, config->beta_gate, config->beta_up);
}

/* A chunk of one row; views of any stride go through buffers on the stack. */
static void situ_chunk(const slm_handle *handle, const slm_situ_glu_backward_args *args,
                       size_t row, size_t first, size_t count)
{
    const slm_config *config = &handle->config;
    const size_t width = config->d_expert;
    float gate[CHUNK] = {0.0f}, up[CHUNK] = {0.0f}, dh[CHUNK] = {0.0f};

    for (size_t i = 0; i < count; i++) {
        gate[i] = *slm_cpu_f32(&args->gate_up, row, first + i);
        up[i] = *slm_cpu_f32(&args->gate_up, row, width + first + i);
        dh[i] = *slm_cpu_f32(&args->dh, row, first + i);
    }
    handle->slopes->situ(count, (slm_cpu_glu){gate, up, dh, gate, up},
                         config->beta_gate, config->beta_up);
    for (size_t i = 0; i < count; i++) {
        *slm_cpu_f32(&args->dgate_up, row, first + i) = gate[i];
        *slm_cpu_f32(&args->dgate_up, row, width + first + i) = up[i];
    }
}

slm_status slm_cpu_situ_glu_backward(slm_handle *handle,
                                     const slm_situ_glu_backward_args *args,
                                     slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t width = config->d_expert;
    const int direct = args->gate_up.stride[1] == 1 && args->dh.stride[1] == 1 &&
                       args->dgate_up.stride[1] == 1;
    const slm_status status =
        slm_check_finite(SLM_OP_situ_glu_backward, config, args, error);

    if (status) return status;
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        if (direct) {
            const float *gate = slm_cpu_f32(&args->gate_up, t, 0);
            float *dgate = slm_cpu_f32(&args->dgate_up, t, 0);
            const slm_cpu_glu row = {gate, gate + width, slm_cpu_f32(&args->dh, t, 0),
                                     dgate, dgate + width};

            handle->slopes->situ(width, row, config->beta_gate, config->beta_up);
            continue;
        }
        for (size_t first = 0; first < width; first += CHUNK)
            situ_chunk(handle, args, t, first,
                       width - first < CHUNK ? width - first : CHUNK);
    }
    return SLM_OK;
}
