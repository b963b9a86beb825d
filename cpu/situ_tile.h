/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/situ_tile.h - sigmoid and SiTU-GLU, for one instruction set.
 *
 * Included once by each kernels_LEVEL.c, which defines before
 *   LANES                    of a vector: 4, 8 or 16
 *   VEC_FMA(a, b, c)         a b + c
 *   VEC_MIN(a, b), VEC_MAX   of two vectors; b where either is a NaN
 *   VEC_LESS(a, b, yes, no)  a < b ? yes : no, in each lane
 * and where an instruction does it
 *   VEC_SCALE(x, n)          x 2^n, for whole numbers -200 < n <= 0
 *
 * Method   one reduction for all: e^x = 2^n (1 + p), x <= 0, where p = e^r - 1 keeps
 *          its relative accuracy near 0. Then tanh t = -m / (2 + m), m = e^-2t - 1 =
 *          2^n p + (2^n - 1), and sigmoid = e^x / (1 + e^x) or 1 / (1 + e^x). SiTU-GLU
 *          is one quotient of products; 2^n, which may underflow, is multiplied last.
 * Error    relative, in units of 2^-24, the worst of every binary32 against binary64
 *          libm, each instruction set, FMA or not: sigmoid 2.97, tanh 2.98 (the table
 *          declares 3.5 for both); SiTU-GLU 8.8 of 10^7 pairs. A subnormal
 *          result has one more rounding.
 * Bound    |h| <= beta_gate beta_up. */

#include "gemm.h"
#include "lanes.h"

enum { EXPONENT_BIAS = 127, FRACTION_BITS = 23 };

static const float log2_e = 0x1.715476p+0f;
static const float ln2_high = 0x1.62e4p-1f; /* 15 bits: n ln2_high is exact */
static const float ln2_low = 0x1.7f7d1cp-20f;
static const float round_shift = 0x1.8p+23f; /* v + it - it rounds v to an integer */

/* -|v| */
static inline vec below_zero(vec v)
{
    return (vec)((ints)v | INT32_MIN);
}

#ifdef VEC_SCALE
#define VEC_POWER(n) VEC_SCALE(all(1.0f), n)
#else
static inline vec power_of_two(ints n)
{
    return (vec)((n + EXPONENT_BIAS) << FRACTION_BITS);
}

static inline vec scale_twice(vec x, vec n)
{
    const ints whole = __builtin_convertvector(n, ints), half = whole >> 1;

    return x * power_of_two(half) * power_of_two(whole - half);
}

#define VEC_SCALE(x, n) scale_twice(x, n)
#define VEC_POWER(n) power_of_two(__builtin_convertvector(n, ints)) /* n >= -126 */
#endif

typedef struct exponential {
    vec p; /* e^x = 2^n (1 + p), |p| < 0.42 */
    vec n;
} exponential;

/* x <= 0, or NaN: then p is NaN and n any number. What is below `far` counts as it. */
static inline exponential exponential_of(vec x, float far)
{
    const vec near = VEC_MAX(all(far), x);
    const vec n = VEC_FMA(near, all(log2_e), all(round_shift)) - round_shift;
    const vec r = VEC_FMA(n, all(-ln2_low), VEC_FMA(n, all(-ln2_high), near));
    vec q = all(0x1.a032d8p-13f);

    q = VEC_FMA(q, r, all(0x1.6d7298p-10f));
    q = VEC_FMA(q, r, all(0x1.11118ap-7f));
    q = VEC_FMA(q, r, all(0x1.5554b0p-5f));
    q = VEC_FMA(q, r, all(0x1.555554p-3f));
    q = VEC_FMA(q, r, all(0.5f));
    return (exponential){VEC_FMA(r * r, q, r), n};
}

typedef struct softcap {
    float beta;
    float two_over_beta;
    float linear; /* above it, negative, beta tanh(v / beta) = v within 2^-27 */
} softcap;

static softcap softcap_of(double beta)
{
    return (softcap){(float)beta, (float)(2.0 / beta), (float)(-beta * 0x1p-13)};
}

/* A factor of SiTU-GLU as numerator / denominator. */
typedef struct fraction {
    vec num;
    vec den;
} fraction;

/* beta tanh(v / beta) for v <= 0. */
static inline fraction cap(vec v, softcap c)
{
    const exponential e = exponential_of(v * c.two_over_beta, -40.0f); /* tanh: -1 */
    const vec scale = VEC_POWER(e.n);
    const vec m = VEC_FMA(scale, e.p, scale - 1.0f);
    const vec linear = all(c.linear);

    return (fraction){VEC_LESS(linear, v, v, m * c.beta),
                      VEC_LESS(linear, v, all(1.0f), m + 2.0f)};
}

/* sigmoid(a) = num / den 2^n. */
typedef struct logistic {
    vec num;
    vec den;
    vec n;
} logistic;

static inline logistic logistic_of(vec a)
{
    const exponential e = exponential_of(below_zero(a), -130.0f);
    const vec mantissa = e.p + 1.0f, zero = all(0.0f);

    return (logistic){VEC_LESS(a, zero, mantissa, all(1.0f)),
                      VEC_SCALE(mantissa, e.n) + 1.0f, VEC_LESS(a, zero, e.n, zero)};
}

static inline vec sigmoid_of(vec a)
{
    const logistic s = logistic_of(a);

    return VEC_SCALE(s.num / s.den, s.n);
}

typedef struct situ_curve {
    softcap gate;
    softcap up;
    float bound;
} situ_curve;

static inline __attribute__((always_inline)) vec situ_of(vec a, vec b, situ_curve c)
{
    const fraction g = cap(below_zero(a), c.gate), u = cap(below_zero(b), c.up);
    const logistic s = logistic_of(a);
    const vec quotient = g.num * u.num * s.num / (g.den * u.den * s.den);
    const vec h = VEC_MIN(all(c.bound), VEC_SCALE(quotient, s.n));

    return (vec)((ints)h | (((ints)a ^ (ints)b) & INT32_MIN));
}

/* Whole vectors; the rest of a row goes through buffers. */
static void sigmoid_vectors(size_t count, const float *in, float *out)
{
    for (size_t i = 0; i < count; i += LANES) store(out + i, sigmoid_of(load(in + i)));
}

static void sigmoid(size_t count, const float *in, float *out)
{
    const size_t whole = count / LANES * LANES, rest = (count - whole) * sizeof *in;
    float x[LANES] = {0};

    sigmoid_vectors(whole, in, out);
    if (!rest) return;
    memcpy(x, in + whole, rest);
    sigmoid_vectors(LANES, x, x);
    memcpy(out + whole, x, rest);
}

static void situ_vectors(size_t count, const float *gate, const float *up, float *out,
                         const situ_curve *curve)
{
    const situ_curve c = *curve;

    for (size_t i = 0; i < count; i += LANES)
        store(out + i, situ_of(load(gate + i), load(up + i), c));
}

static situ_curve situ_curve_of(double beta_gate, double beta_up)
{
    const double product = beta_gate * beta_up;
    const float nearest = (float)product;

    return (situ_curve){softcap_of(beta_gate), softcap_of(beta_up),
                        (double)nearest > product ? nextafterf(nearest, 0.0f)
                                                  : nearest};
}

static void situ(size_t count, const float *gate, const float *up, float *out,
                 double beta_gate, double beta_up)
{
    const situ_curve curve = situ_curve_of(beta_gate, beta_up);
    const size_t whole = count / LANES * LANES, rest = (count - whole) * sizeof *gate;
    float a[LANES] = {0}, b[LANES] = {0};

    situ_vectors(whole, gate, up, out, &curve);
    if (!rest) return;
    memcpy(a, gate + whole, rest);
    memcpy(b, up + whole, rest);
    situ_vectors(LANES, a, b, a, &curve);
    memcpy(out + whole, a, rest);
}

/* ---- tiles [rows, 32], to where they are stored ---- */

typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

/* To the nearest, ties to even; a NaN, of arithmetic, keeps its upper half. */
static inline halves half_of(vec v)
{
    const words bits = (words)v, is_number = (words)(v == v);

    return __builtin_convertvector(
        (bits + ((0x7fff + (bits >> 16 & 1)) & is_number)) >> 16, halves);
}

/* Rows that begin `ld` bytes apart. The width is a constant: with any width a layer of
 * bf16 took 6 % longer. So is `half`. */
static inline __attribute__((always_inline)) void
tile_rows(const slm_cpu_gates *of, char *out, size_t ld, int half)
{
    enum { LINE = 64 };
    const situ_curve c = situ_curve_of(of->beta_gate, of->beta_up);
    const size_t each = slm_cpu_ceil_div(of->bytes, LINE * of->rows) * LINE;
    const float *gate = of->gate, *up = of->up;
    size_t asked = 0;

    for (size_t i = 0; i < of->rows; i++, out += ld) {
        const size_t due = of->bytes - asked < each ? of->bytes : asked + each;

        for (; asked < due; asked += LINE) __builtin_prefetch(of->ahead + asked, 0, 2);
        for (size_t j = 0; j < SLM_CPU_WIDTH; j += LANES, gate += LANES, up += LANES) {
            const vec value = situ_of(load(gate), load(up), c);
            const halves rounded = half_of(value);

            if (half)
                memcpy(out + j * sizeof(uint16_t), &rounded, sizeof rounded);
            else
                memcpy(out + j * sizeof(float), &value, sizeof value);
        }
    }
}

static void situ_rows(const slm_cpu_gates *of, float *out, size_t ld)
{
    tile_rows(of, (char *)out, ld * sizeof *out, 0);
}

static void situ_rows_half(const slm_cpu_gates *of, uint16_t *out, size_t ld)
{
    tile_rows(of, (char *)out, ld * sizeof *out, 1);
}
