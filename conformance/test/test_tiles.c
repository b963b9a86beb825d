/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_tiles.c - the model of AMX tiles does what the manual says:
 * sizes, zeros, the order of TDPBF16PS and its roundings, subnormals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLM_TILES_MODEL
#include "tiles.h"

enum { PAIRS = 16, COLS = 16, ROWS = 16 };

/* Tile 0 of sums [m, n], 1 of rows [m, 2 k], 2 of pairs of columns [k, 2 n]. */
static slm_tile_config sizes(int m, int n, int k)
{
    slm_tile_config config = {.palette = 1};

    config.rows[0] = config.rows[1] = (uint8_t)m;
    config.rows[2] = (uint8_t)k;
    config.colsb[0] = config.colsb[2] = (uint16_t)(4 * n);
    config.colsb[1] = (uint16_t)(4 * k);
    return config;
}

static uint16_t half(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    assert_int_equal(bits & 0xffff, 0); /* a bf16 */
    return (uint16_t)(bits >> 16);
}

/* One sum: c + the products of the n elements, n even. */
static float one_sum(float c, const float *a, const float *b, int n)
{
    const slm_tile_config config = sizes(1, 1, n / 2);
    uint16_t left[2 * PAIRS], right[2 * PAIRS];
    slm_tiles tiles;

    for (int k = 0; k < n; k++) {
        left[k] = half(a[k]);
        right[k] = half(b[k]);
    }
    slm_tiles_configure(&tiles, &config);
    slm_tiles_load(&tiles, 0, &c, 4);
    slm_tiles_load(&tiles, 1, left, sizeof left);
    slm_tiles_load(&tiles, 2, right, 4);
    slm_tiles_dot(&tiles, 0, 1, 2);
    slm_tiles_store(&tiles, 0, &c, 4);
    slm_tiles_release(&tiles);
    return c;
}

/* ---- sizes ---- */

static void a_tile_takes_and_gives_its_rows_and_bytes_alone(void **state)
{
    unsigned char from[16][80], to[16][80];
    slm_tile_config config = {.palette = 1};
    slm_tiles tiles;

    (void)state;
    for (size_t i = 0; i < sizeof from; i++)
        from[i / 80][i % 80] = (unsigned char)(i % 251 + 1);
    memset(to, 0xa5, sizeof to);
    config.rows[3] = 5;
    config.colsb[3] = 20;
    slm_tiles_configure(&tiles, &config);
    memset(tiles.bytes[3], 0xff, sizeof tiles.bytes[3]);
    slm_tiles_load(&tiles, 3, from, sizeof from[0]);
    slm_tiles_store(&tiles, 3, to, sizeof to[0]);
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 80; j++) {
            const int inside = i < 5 && j < 20;

            assert_int_equal(to[i][j], inside ? from[i][j] : 0xa5);
            if (j < SLM_TILE_BYTES)
                assert_int_equal(tiles.bytes[3][i][j], inside ? from[i][j] : 0);
        }
    slm_tiles_zero(&tiles, 3);
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < SLM_TILE_BYTES; j++)
            assert_int_equal(tiles.bytes[3][i][j], 0);
}

static void a_configuration_makes_every_tile_zero(void **state)
{
    const slm_tile_config config = sizes(16, 16, 16);
    slm_tiles tiles;

    (void)state;
    memset(&tiles, 0xff, sizeof tiles);
    slm_tiles_configure(&tiles, &config);
    for (size_t i = 0; i < sizeof tiles.bytes; i++)
        assert_int_equal(((unsigned char *)tiles.bytes)[i], 0);
}

/* ---- TDPBF16PS ---- */

/* A bf16 in +-[1, 2) 2^-8 .. 2^7, whatever `at` is. */
static float some(uint32_t at)
{
    uint32_t bits = at * 2654435761u;

    bits ^= bits >> 15;
    bits *= 2246822519u;
    bits ^= bits >> 13;
    return ldexpf((float)(128 + bits % 128) * (bits & 0x1000 ? -0x1p-7f : 0x1p-7f),
                  (int)(bits >> 16 & 15) - 8);
}

/* The manual's loop. A product has 16 digits and lies within 2^-16 .. 2^16, a chain's
 * sum below 2^20: in binary64 each addition is exact, so it is rounded once. */
static float straight(float c, size_t m, size_t n, size_t pairs)
{
    float even = 0.0f, odd = 0.0f;

    for (size_t k = 0; k < pairs; k++) {
        const size_t a = m * 64 + 2 * k, b = 4096 + k * 64 + 2 * n;

        even = (float)((double)even +
                       (double)some((uint32_t)a) * (double)some((uint32_t)b));
        odd = (float)((double)odd +
                      (double)some((uint32_t)a + 1) * (double)some((uint32_t)b + 1));
    }
    return c + (even + odd);
}

static void assert_as_straight(int m, int n, int pairs)
{
    const slm_tile_config config = sizes(m, n, pairs);
    uint16_t a[ROWS][32], b[PAIRS][32];
    float c[ROWS][COLS + 3];
    slm_tiles tiles;

    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t k = 0; k < 32; k++) {
            a[i][k] = half(some(i * 64 + k));
            b[i][k] = half(some(4096 + i * 64 + k));
        }
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < COLS + 3; j++) c[i][j] = some(9999 + i * 32 + j);
    slm_tiles_configure(&tiles, &config);
    slm_tiles_load(&tiles, 0, c, sizeof c[0]);
    slm_tiles_load(&tiles, 1, a, sizeof a[0]);
    slm_tiles_load(&tiles, 2, b, sizeof b[0]);
    slm_tiles_dot(&tiles, 0, 1, 2);
    slm_tiles_store(&tiles, 0, c, sizeof c[0]);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < COLS + 3; j++) {
            const float old = some(9999 + i * 32 + j);
            const int inside = i < (uint32_t)m && j < (uint32_t)n;

            assert_true(c[i][j] == (inside ? straight(old, i, j, (size_t)pairs) : old));
        }
}

static void products_are_those_of_a_straight_loop(void **state)
{
    (void)state;
    assert_as_straight(16, 16, 16);
    assert_as_straight(1, 16, 16);
    assert_as_straight(16, 3, 16);
    assert_as_straight(7, 16, 1);
    assert_as_straight(3, 5, 9);
}

/* In one chain from c on each of these sums would be another. */
static void even_and_odd_are_apart_and_c_comes_last(void **state)
{
    static const float large[] = {0x1p24f, 1.0f, -0x1p24f, 0.0f};
    static const float ones[] = {1.0f, 1.0f, 1.0f, 1.0f};
    static const float small[] = {0x1p-24f, 0x1p-24f};

    (void)state;
    assert_true(one_sum(0.0f, large, ones, 4) == 1.0f);
    assert_true(one_sum(1.0f, large, ones, 4) == 2.0f);
    assert_true(one_sum(1.0f, small, ones, 2) == 1.0f + 0x1p-23f);
}

static void ties_go_to_even(void **state)
{
    static const float one[] = {1.0f, 0.0f, 0x1p-24f, 0.0f};
    static const float ones[] = {1.0f, 1.0f, 1.0f, 1.0f};

    (void)state;
    assert_true(one_sum(0.0f, one, ones, 4) == 1.0f);
    assert_true(one_sum(1.0f + 0x1p-23f, one + 2, ones, 2) == 1.0f + 0x1p-22f);
}

static void an_operand_below_the_least_normal_is_zero(void **state)
{
    static const float tiny[] = {0x1p-127f, 0.0f};
    static const float large[] = {0x1p100f, 0.0f};
    static const float zero[] = {0.0f, 0.0f};
    float minus;

    (void)state;
    assert_true(one_sum(1.0f, tiny, large, 2) == 1.0f);
    assert_true(one_sum(1.0f, large, tiny, 2) == 1.0f);
    assert_true(one_sum(0x1p-127f, zero, zero, 2) == 0.0f);
    minus = one_sum(-0x1.fffffcp-127f, zero, zero, 2);
    assert_true(minus == 0.0f && !signbit(minus)); /* -0 + 0 */
}

static void a_result_below_the_least_normal_is_zero(void **state)
{
    static const float a[] = {0x1p-63f, 0.0f, -0x1p-75f, 0.0f};
    static const float b[] = {0x1p-63f, 0.0f, 0x1p-75f, 0.0f};
    static const float further[] = {0x1p-63f, 0.0f, 0x1p-77f, 0.0f};
    static const float halves[] = {0x1p-64f, 0.0f, 0x1p-63f, 0.0f};
    static const float mixed[] = {0x1p-63f, 0x1.8p-63f};
    static const float signs[] = {0x1p-63f, -0x1p-63f};

    (void)state;
    assert_true(one_sum(0.0f, a, b, 2) == FLT_MIN);
    assert_true(one_sum(0.0f, halves, b, 2) == 0.0f);
    /* 2^-126 - 2^-150 is below it at 24 digits, 2^-126 - 2^-152 is not. */
    assert_true(one_sum(0.0f, a, b, 4) == 0.0f);
    assert_true(one_sum(0.0f, a, further, 4) == FLT_MIN);
    /* The product of each chain is normal, their sum, or that with c, is not. */
    assert_true(one_sum(0.0f, mixed, signs, 2) == 0.0f);
    assert_true(one_sum(-0x1.8p-126f, a, b, 2) == 0.0f);
}

static void what_is_not_finite_spreads(void **state)
{
    static const float infinite[] = {INFINITY, 0.0f};
    static const float zero[] = {0.0f, 0.0f};
    static const float two[] = {2.0f, 0.0f};
    static const float large[] = {0x1p127f, 0.0f};

    (void)state;
    assert_true(isnan(one_sum(1.0f, infinite, zero, 2)));
    assert_true(isinf(one_sum(1.0f, infinite, two, 2)));
    assert_true(isinf(one_sum(1.0f, large, two, 2)));
    assert_true(isnan(one_sum(-INFINITY, infinite, two, 2)));
}

/* ---- what the instructions refuse ---- */

static void configure(const slm_tile_config *config, int dots)
{
    slm_tiles tiles;

    slm_tiles_configure(&tiles, config);
    if (dots) slm_tiles_dot(&tiles, 0, 1, 2);
}

static int traps(const slm_tile_config *config, int dots)
{
    const pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGILL, SIG_DFL);
        signal(SIGTRAP, SIG_DFL);
        configure(config, dots);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void a_fault_of_the_instructions_is_one_of_the_model(void **state)
{
    slm_tile_config config = sizes(4, 4, 4);

    (void)state;
    assert_false(traps(&config, 1));
    config.rows[1] = 5;
    assert_true(traps(&config, 1));
    config = sizes(4, 4, 4);
    config.colsb[2] = 12;
    assert_true(traps(&config, 1));
    config = sizes(4, 4, 4);
    config.rows[2] = 3;
    assert_true(traps(&config, 1));
    config = sizes(4, 4, 4);
    config.rows[7] = 17;
    config.colsb[7] = 64;
    assert_true(traps(&config, 0));
    config = sizes(4, 4, 4);
    config.palette = 2;
    assert_true(traps(&config, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tile_takes_and_gives_its_rows_and_bytes_alone),
        cmocka_unit_test(a_configuration_makes_every_tile_zero),
        cmocka_unit_test(products_are_those_of_a_straight_loop),
        cmocka_unit_test(even_and_odd_are_apart_and_c_comes_last),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(an_operand_below_the_least_normal_is_zero),
        cmocka_unit_test(a_result_below_the_least_normal_is_zero),
        cmocka_unit_test(what_is_not_finite_spreads),
        cmocka_unit_test(a_fault_of_the_instructions_is_one_of_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
