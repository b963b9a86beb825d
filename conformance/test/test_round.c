/* SPDX-License-Identifier: Apache-2.0 */
/* test_round.c - rounding with proof, on both sides of every kind of boundary. */
#include <mpfr.h>

#include "ref.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_f32(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint64_t bits_f64(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* m 2^e + sign 2^tiny; sign 0 gives m 2^e itself. */
static void number(arb_t out, slong m, slong e, int sign, slong tiny)
{
    arb_t term;

    arb_init(term);
    arb_set_si(out, m);
    arb_mul_2exp_si(out, out, e);
    arb_set_si(term, sign);
    arb_mul_2exp_si(term, term, tiny);
    arb_add(out, out, term, ARF_PREC_EXACT);
    arb_clear(term);
}

static float f32_of(slong m, slong e, int sign, slong tiny)
{
    float out = 77;
    arb_t ball;

    arb_init(ball);
    number(ball, m, e, sign, tiny);
    assert_true(slm_ref_f32(&out, ball));
    arb_clear(ball);
    return out;
}

static double f64_of(slong m, slong e, int sign, slong tiny)
{
    double out = 77;
    arb_t ball;

    arb_init(ball);
    number(ball, m, e, sign, tiny);
    assert_true(slm_ref_f64(&out, ball));
    arb_clear(ball);
    return out;
}

static uint16_t bf16_of(slong m, slong e, int sign, slong tiny)
{
    uint16_t out = 77;
    arb_t ball;

    arb_init(ball);
    number(ball, m, e, sign, tiny);
    assert_true(slm_ref_bf16(&out, ball));
    arb_clear(ball);
    return out;
}

static void exact_midpoints_go_to_the_even_neighbour(void **state)
{
    (void)state;
    assert_int_equal(bits_f32(f32_of(0x1000001, -24, 0, 0)), 0x3f800000);
    assert_int_equal(bits_f32(f32_of(0x1000003, -24, 0, 0)), 0x3f800002);
    assert_int_equal(bits_f32(f32_of(-0x1000003, -24, 0, 0)), 0xbf800002);
    assert_int_equal(bits_f64(f64_of((1L << 54) + 2, -54, 0, 0)), 0x3ff0000000000000);
    assert_int_equal(bits_f64(f64_of((1L << 54) + 6, -54, 0, 0)), 0x3ff0000000000002);
    assert_int_equal(bf16_of(257, -8, 0, 0), 0x3f80);
    assert_int_equal(bf16_of(259, -8, 0, 0), 0x3f82);
}

static void a_hair_beside_a_midpoint_decides(void **state)
{
    (void)state;
    assert_int_equal(bits_f32(f32_of(0x1000001, -24, -1, -3000)), 0x3f800000);
    assert_int_equal(bits_f32(f32_of(0x1000001, -24, 1, -3000)), 0x3f800001);
    assert_int_equal(bits_f64(f64_of((1L << 53) + 1, -53, -1, -3000)),
                     0x3ff0000000000000);
    assert_int_equal(bits_f64(f64_of((1L << 53) + 1, -53, 1, -3000)),
                     0x3ff0000000000001);
    assert_int_equal(bf16_of(257, -8, -1, -3000), 0x3f80);
    assert_int_equal(bf16_of(257, -8, 1, -3000), 0x3f81);
}

static void subnormals_have_fewer_digits(void **state)
{
    (void)state;
    /* 10.5 quanta: a tie of the subnormals, an ordinary number at 24 digits. */
    assert_int_equal(bits_f32(f32_of(21, -150, 0, 0)), 10);
    assert_int_equal(bits_f32(f32_of(21, -150, 1, -400)), 11);
    assert_int_equal(bits_f32(f32_of(21, -150, -1, -400)), 10);
    assert_int_equal(bits_f32(f32_of(23, -150, 0, 0)), 12);
    assert_int_equal(bits_f64(f64_of(21, -1075, 0, 0)), 10);
    assert_int_equal(bits_f64(f64_of(21, -1075, 1, -1400)), 11);
    assert_int_equal(bf16_of(21, -134, 0, 0), 10);
    assert_int_equal(bf16_of(21, -134, 1, -400), 11);
}

static void half_the_least_subnormal_is_zero_and_a_hair_more_is_not(void **state)
{
    (void)state;
    assert_int_equal(bits_f32(f32_of(1, -150, 0, 0)), 0);
    assert_int_equal(bits_f32(f32_of(1, -150, 1, -900)), 1);
    assert_int_equal(bits_f32(f32_of(-1, -150, -1, -900)), 0x80000001);
    assert_int_equal(bits_f32(f32_of(1, -151, 0, 0)), 0);
    assert_int_equal(bits_f64(f64_of(1, -1075, 0, 0)), 0);
    assert_int_equal(bits_f64(f64_of(1, -1075, 1, -2000)), 1);
    assert_int_equal(bits_f32(f32_of(-1, -100000, 0, 0)), 0); /* zeros are +0 */
}

static void overflow_begins_at_half_an_ulp_above_the_largest(void **state)
{
    (void)state;
    assert_int_equal(bits_f32(f32_of(0x1ffffff, 103, -1, 0)), bits_f32(FLT_MAX));
    assert_int_equal(bits_f32(f32_of(0x1ffffff, 103, 0, 0)), bits_f32(INFINITY));
    assert_int_equal(bits_f32(f32_of(-0x1ffffff, 103, 0, 0)), bits_f32(-INFINITY));
    assert_int_equal(bits_f64(f64_of((1L << 54) - 1, 970, -1, 0)), bits_f64(DBL_MAX));
    assert_int_equal(bits_f64(f64_of((1L << 54) - 1, 970, 0, 0)),
                     bits_f64((double)INFINITY));
    assert_int_equal(bf16_of(511, 119, -1, 0), 0x7f7f);
    assert_int_equal(bf16_of(511, 119, 0, 0), 0x7f80);
}

/* Golden values are binary64 and may be compared after one more rounding: this number
 * goes one way by way of binary64 and the other way directly. */
static void binary32_is_not_reached_by_way_of_binary64(void **state)
{
    (void)state;
    const float direct = f32_of(0x1000001, -24, 1, -60);
    const double detour = f64_of(0x1000001, -24, 1, -60);

    assert_int_equal(bits_f32(direct), 0x3f800001);
    assert_int_equal(bits_f32((float)detour), 0x3f800000);
}

static void a_ball_across_a_boundary_is_no_proof_and_writes_nothing(void **state)
{
    (void)state;
    float single = 77;
    double wide = 77;
    uint16_t half = 77;
    arb_t ball;

    arb_init(ball);
    number(ball, (1L << 54) + 2, -54, 0, 0);
    mag_set_ui_2exp_si(arb_radref(ball), 1, -3000);
    assert_false(slm_ref_f64(&wide, ball));
    assert_true(slm_ref_f32(&single, ball));
    assert_int_equal(bits_f32(single), 0x3f800000);
    number(ball, 257, -8, 0, 0);
    mag_set_ui_2exp_si(arb_radref(ball), 1, -3000);
    assert_false(slm_ref_bf16(&half, ball));
    assert_true(slm_ref_f64(&wide, ball));
    arb_indeterminate(ball);
    single = 77;
    half = 77;
    wide = 77;
    assert_false(slm_ref_f32(&single, ball));
    assert_false(slm_ref_f64(&wide, ball));
    assert_false(slm_ref_bf16(&half, ball));
    arb_zero_pm_inf(ball);
    assert_false(slm_ref_f32(&single, ball));
    assert_int_equal(bits_f32(single), bits_f32(77));
    assert_int_equal(bits_f64(wide), bits_f64(77));
    assert_int_equal(half, 77);
    arb_clear(ball);
}

static void a_ball_round_zero_is_zero_when_it_is_small_enough(void **state)
{
    (void)state;
    float single;
    double wide;
    arb_t ball;

    arb_init(ball);
    mag_set_ui_2exp_si(arb_radref(ball), 1, -149);
    assert_false(slm_ref_f32(&single, ball));
    mag_set_ui_2exp_si(arb_radref(ball), 1, -151);
    assert_true(slm_ref_f32(&single, ball));
    assert_int_equal(bits_f32(single), 0);
    assert_false(slm_ref_f64(&wide, ball));
    mag_set_ui_2exp_si(arb_radref(ball), 1, -1076);
    assert_true(slm_ref_f64(&wide, ball));
    assert_int_equal(bits_f64(wide), 0);
    arb_clear(ball);
}

static void infinities_and_an_exact_nan_stay_what_they_are(void **state)
{
    (void)state;
    float single;
    arb_t ball;

    arb_init(ball);
    arb_set_d(ball, -(double)INFINITY);
    assert_true(slm_ref_f32(&single, ball));
    assert_int_equal(bits_f32(single), bits_f32(-INFINITY));
    arb_set_d(ball, (double)NAN);
    assert_true(slm_ref_f32(&single, ball));
    assert_true(single != single);
    arb_clear(ball);
}

/* MPFR rounds the same numbers: subnormals, ties and overflow, 200000 of them. */
static void mpfr_rounds_every_number_to_the_same_bits(void **state)
{
    (void)state;
    uint64_t random = 1;
    arb_t ball;
    mpfr_t peer;

    arb_init(ball);
    mpfr_init2(peer, 128);
    for (int i = 0; i < 200000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const slong digits = 1 + (slong)((random >> 58) % 63);
        const slong m = (slong)((random >> 1) >> (63 - digits)) | 1;
        const slong at = i % 2 ? (slong)((random >> 20) % 300) - 170
                               : (slong)((random >> 20) % 2200) - 1120;
        float single;
        double wide;

        number(ball, i % 3 ? m : -m, at - (i % 5 ? digits : 0), 0, 0);
        arf_get_mpfr(peer, arb_midref(ball), MPFR_RNDN);
        assert_true(slm_ref_f32(&single, ball));
        assert_true(slm_ref_f64(&wide, ball));
        const float want = mpfr_get_flt(peer, MPFR_RNDN);
        const double want_wide = mpfr_get_d(peer, MPFR_RNDN);
        assert_int_equal(bits_f32(single), bits_f32(want == 0 ? 0 : want));
        assert_int_equal(bits_f64(wide), bits_f64(want_wide == 0 ? 0 : want_wide));
    }
    mpfr_clear(peer);
    arb_clear(ball);
}

static void rationals_round_once(void **state)
{
    (void)state;
    fmpq_t value;

    fmpq_init(value);
    fmpq_set_si(value, 1, 3);
    assert_int_equal(bits_f32(slm_ref_f32_q(value)), 0x3eaaaaab);
    assert_int_equal(bits_f64(slm_ref_f64_q(value)), 0x3fd5555555555555);
    fmpq_set_si(value, 0x1000001, 0x1000000);
    assert_int_equal(bits_f32(slm_ref_f32_q(value)), 0x3f800000);
    fmpq_set_si(value, 0x1000003, 0x1000000);
    assert_int_equal(bits_f32(slm_ref_f32_q(value)), 0x3f800002);
    fmpq_set_si(value, -0x1000003, 0x1000000);
    assert_int_equal(bits_f32(slm_ref_f32_q(value)), 0xbf800002);
    fmpz_ui_pow_ui(fmpq_denref(value), 10, 400);
    fmpz_one(fmpq_numref(value));
    assert_int_equal(bits_f64(slm_ref_f64_q(value)), 0);
    fmpq_inv(value, value);
    assert_int_equal(bits_f64(slm_ref_f64_q(value)), bits_f64((double)INFINITY));
    fmpq_clear(value);
}

static void the_key_is_the_sum_rounded_once(void **state)
{
    (void)state;
    assert_int_equal(bits_f32(slm_ref_key(0.5f, 0.25f)), bits_f32(0.75f));
    assert_int_equal(bits_f32(slm_ref_key(0x1p-25f, 0x1p-1f)), bits_f32(0x1p-1f));
    assert_int_equal(bits_f32(slm_ref_key(0x1.8p-24f, 1)), bits_f32(0x1.000002p+0f));
    assert_int_equal(bits_f32(slm_ref_key(0x1p-24f, 1)), bits_f32(1));
    assert_int_equal(bits_f32(slm_ref_key(0x1p-149f, 0)), 1);
    assert_int_equal(bits_f32(slm_ref_key(0.5f, -0.5f)), 0);
    assert_int_equal(bits_f32(slm_ref_key(0, -0.0f)), 0);
    assert_int_equal(bits_f32(slm_ref_key(1, -FLT_MAX)), bits_f32(-FLT_MAX));
}

static void check_decimal(double value, const char *want)
{
    fmpq_t got, wanted;

    fmpq_init(got);
    fmpq_init(wanted);
    assert_int_equal(fmpq_set_str(wanted, want, 10), 0);
    slm_ref_decimal(got, value);
    assert_true(fmpq_equal(got, wanted));
    fmpq_clear(wanted);
    fmpq_clear(got);
}

static void a_binary64_denotes_its_shortest_decimal(void **state)
{
    (void)state;
    check_decimal(1e-6, "1/1000000");
    check_decimal(1e-5, "1/100000");
    check_decimal(1e-20, "1/100000000000000000000");
    check_decimal(0.1, "1/10");
    check_decimal(-0.3, "-3/10");
    check_decimal(1234.5, "2469/2");
    check_decimal(0x1.0000000000001p+0, "5000000000000001/5000000000000000");
}

static void elements_are_found_through_strides(void **state)
{
    (void)state;
    const uint16_t half[] = {0x3f80, 0xbf80, 0x4000, 0, 0x0001, 0x7f80};
    slm_tensor tensor = {.data = (void *)(uintptr_t)half,
                         .dtype = SLM_BF16,
                         .rank = 2,
                         .shape = {3, 2},
                         .stride = {1, 3}};
    arb_ptr row = _arb_vec_init(2);

    assert_int_equal(bits_f64(slm_ref_get(&tensor, 1)), bits_f64(0));
    assert_int_equal(bits_f64(slm_ref_get(&tensor, 2)), bits_f64(-1));
    assert_int_equal(bits_f64(slm_ref_get(&tensor, 3)), bits_f64(0x1p-133));
    assert_int_equal(bits_f64(slm_ref_get(&tensor, 5)), bits_f64((double)INFINITY));
    const slm_tensor second = slm_tensor_at(&tensor, 1);
    slm_ref_load(row, &second);
    assert_true(arb_equal_si(row, -1));
    assert_true(arf_cmp_2exp_si(arb_midref(row + 1), -133) == 0);
    _arb_vec_clear(row, 2);

    const int64_t large[] = {-(1L << 53)};
    const size_t shape[] = {1};
    tensor = slm_tensor_packed((void *)(uintptr_t)large, SLM_I64, 1, shape);
    assert_int_equal(bits_f64(slm_ref_get(&tensor, 0)), bits_f64(-0x1p53));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_midpoints_go_to_the_even_neighbour),
        cmocka_unit_test(a_hair_beside_a_midpoint_decides),
        cmocka_unit_test(subnormals_have_fewer_digits),
        cmocka_unit_test(half_the_least_subnormal_is_zero_and_a_hair_more_is_not),
        cmocka_unit_test(overflow_begins_at_half_an_ulp_above_the_largest),
        cmocka_unit_test(binary32_is_not_reached_by_way_of_binary64),
        cmocka_unit_test(a_ball_across_a_boundary_is_no_proof_and_writes_nothing),
        cmocka_unit_test(a_ball_round_zero_is_zero_when_it_is_small_enough),
        cmocka_unit_test(infinities_and_an_exact_nan_stay_what_they_are),
        cmocka_unit_test(mpfr_rounds_every_number_to_the_same_bits),
        cmocka_unit_test(rationals_round_once),
        cmocka_unit_test(the_key_is_the_sum_rounded_once),
        cmocka_unit_test(a_binary64_denotes_its_shortest_decimal),
        cmocka_unit_test(elements_are_found_through_strides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
