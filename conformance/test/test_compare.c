/* SPDX-License-Identifier: Apache-2.0 */
/* test_compare.c - the comparator can say no. */
#include "../compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static double distance(double got, double want, slm_dtype dtype)
{
    double result;
    arb_t ball;

    arb_init(ball);
    arb_set_d(ball, want);
    result = compare_distance(got, ball, dtype);
    arb_clear(ball);
    return result;
}

static void nan_never_equals_a_number(void **state)
{
    (void)state;
    assert_false(compare_same(NAN, 1));
    assert_false(compare_same(1, NAN));
    assert_false(compare_same(NAN, INFINITY));
    assert_true(compare_same(NAN, -NAN));
    assert_true(isinf(distance(NAN, 1, SLM_F32)));
}

static void the_two_zeros_are_one_value(void **state)
{
    (void)state;
    assert_true(compare_same(0.0, -0.0));
    assert_false(compare_same(0.0, 0x1p-149));
}

static void infinities_differ_by_sign_and_from_numbers(void **state)
{
    (void)state;
    assert_true(compare_same(INFINITY, INFINITY));
    assert_false(compare_same(INFINITY, -INFINITY));
    assert_false(compare_same(INFINITY, 0x1.fffffep127));
}

static void golden_values_are_rounded_once_ties_to_even(void **state)
{
    (void)state;
    assert_true(compare_round(1 + 0x1p-24, SLM_F32) == 1);
    assert_true(compare_round(1 + 0x3p-24, SLM_F32) == 1 + 0x1p-22);
    assert_true(compare_round(1 + 0x1.8p-24, SLM_F32) == 1 + 0x1p-23);
    assert_true(compare_round(1 + 0x1p-8, SLM_BF16) == 1);
    assert_true(compare_round(1 + 0x1p-8 + 0x1p-30, SLM_BF16) == 1 + 0x1p-7);
    assert_true(compare_round(0x1p-150, SLM_F32) == 0);
    assert_true(compare_round(0x1.8p-149, SLM_F32) == 0x1p-148);
    assert_true(compare_round(0x1.fffffffffffffp1023, SLM_F64) ==
                0x1.fffffffffffffp1023);
    assert_true(isnan(compare_round(NAN, SLM_BF16)));
}

static void distance_is_exact_for_numbers_apart(void **state)
{
    (void)state;
    assert_true(distance(1, 1, SLM_F32) == 0);
    assert_true(distance(1 + 0x1p-23, 1, SLM_F32) == 0x1p-23);
    assert_true(distance(0x1p-149, 0, SLM_F32) == 0x1p-149);
    assert_true(distance(0x1p127, -0x1p127, SLM_F32) == 0x1p128);
}

static void an_infinity_stands_for_what_overflows_to_it(void **state)
{
    (void)state;
    assert_true(distance(INFINITY, 0x1p128, SLM_F32) == 0);
    assert_true(distance(INFINITY, 0x1.ffffffp127, SLM_F32) == 0);
    assert_true(distance(INFINITY, 0x1.fffffep127, SLM_F32) > 0);
    assert_true(distance(-INFINITY, 0x1p128, SLM_F32) > 0x1p128);
    assert_true(distance(-INFINITY, -0x1p130, SLM_F32) == 0);
    assert_true(distance(INFINITY, 0x1p128, SLM_F64) > 0);
}

static void a_ball_gives_the_nearest_point(void **state)
{
    arb_t ball;

    (void)state;
    arb_init(ball);
    arb_set_d(ball, 1);
    mag_set_d(arb_radref(ball), 0x1p-10);
    assert_true(compare_distance(1 + 0x1p-11, ball, SLM_F32) == 0);
    assert_true(compare_distance(1 + 0x1p-9, ball, SLM_F32) > 0x1.ffp-11);
    assert_true(compare_distance(1 + 0x1p-9, ball, SLM_F32) <= 0x1p-10);
    arb_clear(ball);
}

static void integers_keep_all_their_bits(void **state)
{
    int64_t wide[] = {(INT64_C(1) << 53) + 1, INT64_MIN};
    int32_t narrow[] = {-1, INT32_MIN};
    const size_t shape[] = {2};
    const slm_tensor wides = slm_tensor_packed(wide, SLM_I64, 1, shape);
    const slm_tensor narrows = slm_tensor_packed(narrow, SLM_I32, 1, shape);

    (void)state;
    assert_true(compare_integer(&wides, 0) == wide[0]);
    assert_true(compare_integer(&wides, 1) == INT64_MIN);
    assert_true(compare_integer(&narrows, 0) == -1);
    assert_true(compare_integer(&narrows, 1) == INT32_MIN);
}

static void strides_are_followed(void **state)
{
    int32_t table[] = {0, 1, 2, 3, 4, 5};
    const size_t shape[] = {3, 2};
    slm_tensor view = slm_tensor_packed(table, SLM_I32, 2, shape);

    (void)state;
    view.shape[0] = 2;
    view.shape[1] = 3;
    view.stride[0] = 1;
    view.stride[1] = 2; /* transposed */
    assert_true(compare_integer(&view, 1) == 2);
    assert_true(compare_integer(&view, 3) == 1);
}

static void the_file_fixes_what_it_gives_and_is_not_any(void **state)
{
    double values[] = {1, 2};
    unsigned char any[] = {0, 1};
    vec_tensor golden = {.count = 2, .values = values, .any = any};

    (void)state;
    assert_true(compare_is_fixed(&golden, 0));
    assert_false(compare_is_fixed(&golden, 1));
    assert_false(compare_is_fixed(&golden, 2));
    assert_false(compare_is_fixed(NULL, 0));
    golden.values = NULL;
    assert_false(compare_is_fixed(&golden, 0));
}

static void a_digest_covers_every_byte(void **state)
{
    double got[2] = {1, 2};
    const size_t shape[] = {2};
    const slm_tensor view = slm_tensor_packed(got, SLM_F64, 1, shape);
    vec_tensor golden = {.form = VEC_DIGEST, .dtype = SLM_F64};

    (void)state;
    vec_sha256(got, sizeof got, golden.sha256);
    assert_true(compare_digest(&view, &golden));
    got[1] = nextafter(2, 3);
    assert_false(compare_digest(&view, &golden));
}

static void words_name_place_value_and_bound(void **state)
{
    const size_t shape[] = {2, 3};
    float values[6] = {0};
    const slm_tensor view = slm_tensor_packed(values, SLM_F32, 2, shape);
    char text[COMPARE_WANT];

    (void)state;
    compare_say_place(text, "weight", &view, 5);
    assert_string_equal(text, "weight[1,2]");
    compare_say(text, 0.25);
    assert_string_equal(text, "0x1p-2 (0.25)");
    compare_say(text, NAN);
    assert_string_equal(text, "nan");
    compare_say_want(text, 0.25, 0x1p-10);
    assert_string_equal(text, "0x1p-2 (0.25) +- 0.000977");
    compare_say_want(text, 0.25, 0);
    assert_string_equal(text, "0x1p-2 (0.25)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_never_equals_a_number),
        cmocka_unit_test(the_two_zeros_are_one_value),
        cmocka_unit_test(infinities_differ_by_sign_and_from_numbers),
        cmocka_unit_test(golden_values_are_rounded_once_ties_to_even),
        cmocka_unit_test(distance_is_exact_for_numbers_apart),
        cmocka_unit_test(an_infinity_stands_for_what_overflows_to_it),
        cmocka_unit_test(a_ball_gives_the_nearest_point),
        cmocka_unit_test(integers_keep_all_their_bits),
        cmocka_unit_test(strides_are_followed),
        cmocka_unit_test(the_file_fixes_what_it_gives_and_is_not_any),
        cmocka_unit_test(a_digest_covers_every_byte),
        cmocka_unit_test(words_name_place_value_and_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
