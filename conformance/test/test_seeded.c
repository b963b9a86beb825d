/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_seeded.c - the generator of seeded tensors.
 *
 * The fixed values come from a separate program in arbitrary-precision integers, written
 * from spec/vectors.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../seeded.h"

#include <string.h>

static void integers_are_those_of_the_formula(void **state)
{
    static const struct {
        uint64_t seed;
        const char *name;
        uint64_t index;
        unsigned bits;
        int32_t want;
    } known[] = {
        {0, "x", 0, 8, -153},
        {1, "score", 0, 8, 144},
        {1, "score", 1, 8, 102},
        {1, "score", 2, 8, 31},
        {UINT64_MAX, "w_gate", 0, 23, -7733024},
        {UINT64_MAX, "w_gate", 10000000000, 23, 6606232},
        {12345, "w_router", 7, 1, -1},
        {12345, "w_router", (uint64_t)1 << 40, 1, 1},
        {7, "", 0, 16, 56671},
        {7, "é", 3, 16, -47825},
        {7, "x", UINT64_MAX, 16, -56004},
    };

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_int_equal(
            seeded_integer(known[i].seed, known[i].name, known[i].index, known[i].bits),
            known[i].want);
}

static void values_are_add_plus_scale_times_the_integer(void **state)
{
    static const float want[] = {0x1.48p-1f, 0x1.33p-1f, 0x1.0f8p-1f};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const float got = seeded_value(1, "score", i, 8, 0x1p-10, 0x1p-1);

        assert_memory_equal(&got, &want[i], sizeof got);
    }
}

static void a_single_element_equals_that_of_the_whole_tensor(void **state)
{
    float whole[1000], part[10];

    (void)state;
    seeded_values(42, "w_out", 0, 1000, 12, 0x1p-12, 0, whole);
    for (size_t i = 0; i < 1000; i++) {
        const float one = seeded_value(42, "w_out", i, 12, 0x1p-12, 0);

        assert_memory_equal(&one, &whole[i], sizeof one);
    }
    seeded_values(42, "w_out", 637, 10, 12, 0x1p-12, 0, part);
    assert_memory_equal(part, whole + 637, sizeof part);
}

/* 7000 draws of 7 values: each 1000 +- 29 (one sigma). */
static void every_integer_of_the_range_comes_as_often(void **state)
{
    int count[7] = {0};

    (void)state;
    for (uint64_t i = 0; i < 7000; i++) {
        const int32_t j = seeded_integer(9, "u", i, 2);

        assert_true(j >= -3 && j <= 3);
        count[j + 3]++;
    }
    for (int i = 0; i < 7; i++) assert_in_range(count[i], 880, 1120);
}

static void integers_stay_below_two_to_the_bits(void **state)
{
    (void)state;
    for (unsigned bits = 1; bits <= 23; bits++) {
        const int32_t most = (int32_t)((1u << bits) - 1);
        int32_t least = 0, largest = 0;

        for (uint64_t i = 0; i < 1000; i++) {
            const int32_t j = seeded_integer(9, "x", i, bits);

            assert_true(j >= -most && j <= most);
            if (j < least) least = j;
            if (j > largest) largest = j;
        }
        assert_true(largest > most - most / 50 - 1 && least < -(most - most / 50 - 1));
    }
}

static void seed_and_name_and_index_all_matter(void **state)
{
    const int32_t j = seeded_integer(1, "w_up", 5, 23);

    (void)state;
    assert_int_not_equal(j, seeded_integer(2, "w_up", 5, 23));
    assert_int_not_equal(j, seeded_integer(1, "w_uq", 5, 23));
    assert_int_not_equal(j, seeded_integer(1, "w_up", 6, 23));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_those_of_the_formula),
        cmocka_unit_test(values_are_add_plus_scale_times_the_integer),
        cmocka_unit_test(a_single_element_equals_that_of_the_whole_tensor),
        cmocka_unit_test(every_integer_of_the_range_comes_as_often),
        cmocka_unit_test(integers_stay_below_two_to_the_bits),
        cmocka_unit_test(seed_and_name_and_index_all_matter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
