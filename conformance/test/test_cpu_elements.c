/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_elements.c - sigmoid and SiTU-GLU of every instruction set
 * against binary64. With LONG=1 every binary32 is tried, else one of STEP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"
#include "kernels.h"
#include "seeded.h"

enum { STEP = 977, BLOCK = 1024, PAIRS = 200000, LONG_PAIRS = 10000000 };

static const double unit = 0x1p-24;
static const double half_of_least = 0x1p-150; /* what rounding a subnormal may cost */

static int is_long(void)
{
    const char *given = getenv("LONG");

    return given && strcmp(given, "0") != 0;
}

static double sigmoid(double a)
{
    const double e = exp(-fabs(a));

    return (a < 0.0 ? e : 1.0) / (1.0 + e);
}

/* Units by which `got` misses `want`, beyond two roundings of a subnormal. No number is
 * infinitely far from one, and one of the wrong sign. */
static double missed(float got, double want)
{
    const double by = fabs((double)got - want) - 2.0 * half_of_least;

    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want) ? 0.0 : INFINITY;
    if (!signbit(got) != !signbit(want)) return INFINITY;
    return by <= 0.0 ? 0.0 : by / fabs(want) / unit;
}

/* BLOCK numbers from the `first` on of those that are tried. */
static void block_of_numbers(uint64_t first, uint64_t step, float *x)
{
    for (size_t i = 0; i < BLOCK; i++) {
        const uint32_t bits = (uint32_t)((first + i) * step);

        memcpy(&x[i], &bits, sizeof bits);
    }
}

typedef double worst_of_block(const slm_cpu_kernels *of, const float *x);

static double worst_sigmoid(const slm_cpu_kernels *of, const float *x)
{
    float y[BLOCK];
    double worst = 0.0;

    of->sigmoid(BLOCK, x, y);
    for (size_t i = 0; i < BLOCK; i++) {
        worst = fmax(worst, missed(y[i], sigmoid((double)x[i])));
    }
    return worst;
}

/* An infinite gate leaves the softcap of `up` alone. */
static double worst_tanh(const slm_cpu_kernels *of, const float *x)
{
    float gate[BLOCK], y[BLOCK];
    double worst = 0.0;

    for (size_t i = 0; i < BLOCK; i++) gate[i] = INFINITY;
    of->situ(BLOCK, gate, x, y, 1.0, 1.0);
    for (size_t i = 0; i < BLOCK; i++) {
        worst = fmax(worst, missed(y[i], tanh((double)x[i])));
        if (fabsf(y[i]) > 1.0f) worst = INFINITY;
    }
    return worst;
}

static double worst_of_all(const slm_cpu_kernels *of, worst_of_block *block)
{
    const uint64_t step = is_long() ? 1 : STEP, count = (1ull << 32) / step;
    double worst = 0.0;

#pragma omp parallel for schedule(static) reduction(max : worst)
    for (uint64_t i = 0; i < count; i += BLOCK) {
        float x[BLOCK];

        block_of_numbers(i, step, x);
        worst = fmax(worst, block(of, x));
    }
    return worst;
}

/* Below 32 in size, of many sizes. */
static float drawn(const char *name, size_t index)
{
    return seeded_value(11, name, index, 24, ldexp(1.0, (int)(index % 13) - 31), 0.0);
}

/* Pairs at the betas of the released model and at two unlike ones. */
static double worst_pair(const slm_cpu_kernels *of, double beta_gate, double beta_up)
{
    const size_t count = is_long() ? LONG_PAIRS : PAIRS;
    double worst = 0.0;

#pragma omp parallel for schedule(static) reduction(max : worst)
    for (size_t i = 0; i < count; i += BLOCK) {
        float a[BLOCK], b[BLOCK], y[BLOCK];

        for (size_t j = 0; j < BLOCK; j++) {
            a[j] = drawn("gate", i + j);
            b[j] = drawn("up", (i + j) * 5 + 1);
        }
        of->situ(BLOCK, a, b, y, beta_gate, beta_up);
        for (size_t j = 0; j < BLOCK; j++) {
            const double g = (double)a[j], u = (double)b[j];
            const double want = beta_gate * tanh(g / beta_gate) * sigmoid(g) * beta_up *
                                tanh(u / beta_up);

            worst = fmax(worst, missed(y[j], want));
        }
    }
    return worst;
}

/* ---- */

static const char *const names[] = {"plain", "avx2", "avx512"};

static void elements_miss_by_no_more_than_is_written(void **state)
{
    (void)state;
    for (int isa = SLM_ISA_PLAIN; isa <= (int)slm_cpu_best_isa(); isa++) {
        const slm_cpu_kernels *of = slm_cpu_kernels_of((slm_cpu_isa)isa);
        const double s = worst_of_all(of, worst_sigmoid);
        const double t = worst_of_all(of, worst_tanh);
        const double released = worst_pair(of, 4.0, 25.0);
        const double other = worst_pair(of, 0.7, 3.1);

        printf("%s: sigmoid %.2f, tanh %.2f, SiTU-GLU %.2f and %.2f units of 2^-24\n",
               names[isa], s, t, released, other);
        assert_true(s <= 3.0 && t <= 3.0);
        assert_true(released <= 9.0 && other <= 9.0);
        assert_true(s > 0.5 && t > 0.5); /* something was measured */
    }
}

/* Whatever stands beside an element, and in place. */
static void an_element_has_the_same_bits_in_any_row(void **state)
{
    float a[BLOCK], b[BLOCK], want[BLOCK], want_s[BLOCK];

    (void)state;
    block_of_numbers(1, 4194301, a);
    block_of_numbers(7, 2097143, b);
    for (int isa = SLM_ISA_PLAIN; isa <= (int)slm_cpu_best_isa(); isa++) {
        const slm_cpu_kernels *of = slm_cpu_kernels_of((slm_cpu_isa)isa);

        of->situ(BLOCK, a, b, want, 4.0, 25.0);
        of->sigmoid(BLOCK, a, want_s);
        for (size_t count = 0; count < 40; count++) {
            float y[41], s[41];

            memcpy(y, a + count, sizeof y);
            memcpy(s, a + count, sizeof s);
            of->situ(count, y, b + count, y, 4.0, 25.0);
            of->sigmoid(count, s, s);
            assert_memory_equal(y, want + count, count * sizeof *y);
            assert_memory_equal(s, want_s + count, count * sizeof *s);
            assert_memory_equal(y + count, a + 2 * count, sizeof *y);
            assert_memory_equal(s + count, a + 2 * count, sizeof *s);
        }
    }
}

/* Elements have the bits of `situ`, of bf16 those of one rounding; between the rows
 * nothing is written. */
static void assert_tiles(const slm_cpu_kernels *of, const float *a, const float *b,
                         double beta_gate, double beta_up)
{
    enum { ROWS = BLOCK / SLM_CPU_WIDTH, APART = SLM_CPU_WIDTH + 3 };
    float want[BLOCK], wide[ROWS * APART];
    uint16_t half[ROWS * APART];
    /* asking for what is read later writes nothing */
    const slm_cpu_gates tile = {
        ROWS, a, b, beta_gate, beta_up, (const char *)want, sizeof want};

    memset(wide, 0x5a, sizeof wide);
    memset(half, 0x5a, sizeof half);
    of->situ(BLOCK, a, b, want, beta_gate, beta_up);
    of->situ_rows(&tile, wide, APART);
    of->situ_rows_half(&tile, half, APART);
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < APART; j++) {
            const int inside = j < SLM_CPU_WIDTH;
            const size_t at = i * APART + j, from = i * SLM_CPU_WIDTH + j;
            uint32_t bits, expected = 0x5a5a5a5a;

            memcpy(&bits, wide + at, sizeof bits);
            if (inside) memcpy(&expected, want + from, sizeof expected);
            assert_int_equal(bits, expected);
            assert_int_equal(half[at], inside ? slm_cpu_to_bf16(want[from]) : 0x5a5a);
        }
}

static void a_tile_has_the_bits_of_its_elements(void **state)
{
    float a[BLOCK], b[BLOCK], far[BLOCK], ties[BLOCK];

    (void)state;
    block_of_numbers(1, 4194301, a); /* some are not finite */
    block_of_numbers(7, 2097143, b);
    /* an infinite gate leaves a small `up` as it is: half of these are ties */
    for (size_t i = 0; i < BLOCK; i++) {
        const uint32_t bits = 0x3a000000 + (uint32_t)i % 512 * 0x8000;

        far[i] = INFINITY;
        memcpy(&ties[i], &bits, sizeof bits);
    }
    for (int isa = SLM_ISA_PLAIN; isa <= (int)slm_cpu_best_isa(); isa++) {
        const slm_cpu_kernels *of = slm_cpu_kernels_of((slm_cpu_isa)isa);

        assert_tiles(of, a, b, 4.0, 25.0);
        assert_tiles(of, far, ties, 1.0, 25.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_miss_by_no_more_than_is_written),
        cmocka_unit_test(an_element_has_the_same_bits_in_any_row),
        cmocka_unit_test(a_tile_has_the_bits_of_its_elements),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
