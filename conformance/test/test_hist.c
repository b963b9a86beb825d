/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_hist.c - the reference's histograms, bin by bin.          Q3 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "balancing.h"

typedef struct bounds {
    fmpq_t lo;
    fmpq_t hi;
    fmpq_t r;
} bounds;

static void range_open(bounds *range, const float *bias, size_t n)
{
    fmpq_init(range->lo);
    fmpq_init(range->hi);
    fmpq_init(range->r);
    slm_ref_hist_range(range->lo, range->hi, bias, n);
}

static void range_close(bounds *range)
{
    fmpq_clear(range->r);
    fmpq_clear(range->hi);
    fmpq_clear(range->lo);
}

/* Bin of num / den. */
static size_t bin(bounds *range, long num, unsigned long den, size_t bins)
{
    fmpq_set_si(range->r, num, den);
    return slm_ref_hist_bin(range->r, range->lo, range->hi, bins);
}

static void the_range_is_one_wider_than_the_bias_on_each_side(void **state)
{
    bounds range;
    fmpq_t want;

    (void)state;
    fmpq_init(want);
    range_open(&range, (float[]){0x1p-149f, 0.5f, -0.25f, 0}, 4);
    fmpq_set_si(want, -5, 4);
    assert_true(fmpq_equal(range.lo, want));
    fmpq_set_si(want, 3, 2);
    assert_true(fmpq_equal(range.hi, want));
    range_close(&range);

    range_open(&range, (float[]){0x1.fffffep127f}, 1); /* far beyond binary64 */
    fmpq_sub(want, range.hi, range.lo);
    assert_true(fmpq_equal_si(want, 2));
    range_close(&range);
    fmpq_clear(want);
}

static void no_margin_is_an_edge_and_belongs_to_the_upper_bin(void **state)
{
    bounds range;

    (void)state;
    range_open(&range, (float[]){0, 0, 0, 0}, 4);
    assert_int_equal(bin(&range, 0, 1, 1000), 500);
    assert_int_equal(bin(&range, -1, 1ul << 60, 1000), 499);
    assert_int_equal(bin(&range, 1, 1ul << 60, 1000), 500);
    assert_int_equal(bin(&range, 0, 1, 1), 0);
    assert_int_equal(bin(&range, 0, 1, 3), 1);
    range_close(&range);
}

static void the_range_s_ends_lie_in_the_first_and_last_bin(void **state)
{
    bounds range;

    (void)state;
    range_open(&range, (float[]){0, 0.5f}, 2);
    assert_int_equal(bin(&range, -1, 1, 1000), 0);
    assert_int_equal(bin(&range, 3, 2, 1000), 999);
    assert_int_equal(bin(&range, -7, 1, 1000), 0);
    assert_int_equal(bin(&range, 7, 1, 1000), 999);
    range_close(&range);
}

/* b = (0, 3/16, 3/8), r = 3/16 is the edge 500; multiplied in binary64 it is 499. */
static void a_representable_edge_is_not_lost_to_rounding(void **state)
{
    volatile double scale = 1000 / (1.375 - -1.0);
    volatile double place = 0.1875 - -1.0;
    bounds range;

    (void)state;
    place *= scale;
    assert_true(floor(place) == 499);
    range_open(&range, (float[]){0, 0.1875f, 0.375f}, 3);
    assert_int_equal(bin(&range, 3, 16, 1000), 500);
    range_close(&range);
}

static void every_edge_starts_its_own_bin(void **state)
{
    static const float biases[][2] = {
        {0, 0}, {-0.3f, 0.7f}, {0x1p-149f, 0x1p-120f}, {-1e30f, 1e-30f}};
    fmpq_t width;
    fmpz_t bins;

    (void)state;
    fmpq_init(width);
    fmpz_init_set_ui(bins, 1000);
    for (size_t i = 0; i < 4; i++) {
        bounds range;

        range_open(&range, biases[i], 2);
        fmpq_sub(width, range.hi, range.lo);
        fmpq_div_fmpz(width, width, bins);
        fmpq_set(range.r, range.lo);
        for (size_t t = 0; t <= 1000; t++) {
            fmpq_t below;

            assert_int_equal(slm_ref_hist_bin(range.r, range.lo, range.hi, 1000),
                             t < 1000 ? t : 999);
            fmpq_init(below);
            fmpq_div_2exp(below, width, 300);
            fmpq_sub(below, range.r, below);
            assert_int_equal(slm_ref_hist_bin(below, range.lo, range.hi, 1000),
                             t ? t - 1 : 0);
            fmpq_clear(below);
            fmpq_add(range.r, range.r, width);
        }
        range_close(&range);
    }
    fmpz_clear(bins);
    fmpq_clear(width);
}

static void rows_sum_to_the_tokens(const balancing *b)
{
    for (size_t j = 0; j < b->config.n_experts; j++) {
        int64_t sum = 0;

        for (size_t t = 0; t < b->config.n_bins; t++)
            sum += b->hist[j * b->config.n_bins + t];
        assert_int_equal(sum, (int64_t)b->m);
    }
}

static void loads_4310_become_2222_with_bins_fine_enough(void **state)
{
    balancing b = balancing_4310();

    (void)state;
    assert_int_equal(balancing_accumulate(&b, 0, 8), SLM_OK);
    rows_sum_to_the_tokens(&b);
    assert_int_equal(b.hist[500], 3); /* expert 0: three margins of exactly 0 */
    assert_int_equal(b.hist[406], 1); /* -12/64 */
    assert_int_equal(balancing_solve(&b), SLM_OK);
    balancing_gives(&b, (float[]){-0.1055f, -0.0595f, 0.0825f, 0.0825f},
                    (double[]){-0.186, -0.14, 0.002, 0.002});
    balancing_loads(&b, b.new_bias, (int64_t[]){2, 2, 2, 2});

    b = balancing_4310();
    b.config.n_bins = 4;
    assert_int_equal(balancing_accumulate(&b, 0, 8), SLM_OK);
    assert_int_equal(balancing_solve(&b), SLM_OK);
    balancing_loads(&b, b.new_bias, (int64_t[]){2, 1, 2, 3});

    b = balancing_4310();
    b.config.n_bins = 64;
    assert_int_equal(balancing_accumulate(&b, 0, 8), SLM_OK);
    assert_int_equal(balancing_solve(&b), SLM_OK);
    balancing_gives(&b, (float[]){-0.1015625f, -0.0703125f, 0.0859375f, 0.0859375f},
                    (double[]){-0.15625, -0.125, 0.03125, 0.03125});
}

/* The histogram aims at the q-th required bias, the exact rule at the next one. */
static void seed_21_shows_that_the_histogram_is_another_estimator(void **state)
{
    balancing b = balancing_seed_21();

    (void)state;
    assert_int_equal(balancing_accumulate(&b, 0, 8), SLM_OK);
    rows_sum_to_the_tokens(&b);
    assert_int_equal(balancing_solve(&b), SLM_OK);
    balancing_gives(&b, (float[]){-0.0505f, 0.0395f, -0.0065f, 0.0175f},
                    (double[]){-0.088, 0.002, -0.044, -0.02});
    balancing_loads(&b, b.new_bias, (int64_t[]){1, 1, 2, 4});
}

static void any_split_of_the_tokens_gives_the_same_counts(void **state)
{
    balancing whole = balancing_seed_21();

    (void)state;
    whole.bias[1] = 0.1f;
    whole.bias[2] = -0.3f;
    assert_int_equal(balancing_accumulate(&whole, 0, 8), SLM_OK);
    for (size_t part = 1; part < 8; part++) {
        balancing split = balancing_seed_21();

        memcpy(split.bias, whole.bias, sizeof whole.bias);
        for (size_t first = 0; first < 8; first += part)
            assert_int_equal(balancing_accumulate(&split, first,
                                                  first + part < 8 ? part : 8 - first),
                             SLM_OK);
        assert_memory_equal(split.hist, whole.hist, sizeof whole.hist);
    }
}

static void no_tokens_add_no_counts(void **state)
{
    balancing b = balancing_open(0, 4, 1);

    (void)state;
    b.hist[17] = 5;
    assert_int_equal(balancing_accumulate(&b, 0, 0), SLM_OK);
    for (size_t i = 0; i < BALANCING_N * BALANCING_B; i++)
        assert_int_equal(b.hist[i], i == 17 ? 5 : 0);
}

static void nothing_is_counted_when_a_value_is_not_finite(void **state)
{
    balancing b = balancing_4310();

    (void)state;
    b.score[31] = NAN;
    assert_int_equal(balancing_accumulate(&b, 0, 8), SLM_ERR_NONFINITE);
    assert_string_equal(b.error.field, "score");
    assert_int_equal(b.error.index, 31);
    b.score[31] = 0;
    b.bias[2] = -INFINITY;
    assert_int_equal(balancing_accumulate(&b, 0, 8), SLM_ERR_NONFINITE);
    assert_string_equal(b.error.field, "bias");
    assert_int_equal(b.error.index, 2);
    for (size_t i = 0; i < BALANCING_N * BALANCING_B; i++)
        assert_int_equal(b.hist[i], 0);
    b.m = 0;
    memset(b.new_bias, 0, sizeof b.new_bias);
    assert_int_equal(balancing_solve(&b), SLM_ERR_NONFINITE);
    assert_int_equal(b.error.index, 2);
    for (size_t j = 0; j < 4; j++) assert_true(b.new_bias[j] == 0);
}

/* lo = -1, w = 2/1000. */
static void the_bin_of_the_rounded_up_target_is_entered_by_the_real_one(void **state)
{
    balancing b = balancing_open(5, 2, 1); /* q = 5/2, target 3 */

    (void)state;
    b.hist[3] = 2; /* expert 0: one of the three in bin 7 is the third, (5/2 - 2) / 3 */
    b.hist[7] = 3;
    b.hist[1000 + 3] = 3; /* expert 1: all three in bin 3, (5/2) / 3 */
    b.hist[1000 + 999] = 2;
    assert_int_equal(balancing_solve(&b), SLM_OK);
    /* -1 + (7 + 1/6)/500 and -1 + (3 + 5/6)/500; centred +- (3 + 1/3)/1000 */
    balancing_gives(&b, (float[]){(float)(1.0 / 300), -(float)(1.0 / 300)},
                    (double[]){-2957.0 / 3000, -2977.0 / 3000});
}

/* q = 2^60: one count less in the first bin moves the boundary. Neither m k nor the
 * cumulative count is a binary64. */
static void counts_beyond_binary64_are_exact(void **state)
{
    const int64_t q = (int64_t)1 << 60;
    balancing b = balancing_open((size_t)1 << 62, 4, 1);

    (void)state;
    for (size_t j = 0; j < 4; j++) {
        b.hist[1000 * j] = q - (j == 0);
        b.hist[1000 * j + 999] = 3 * q + (j == 0);
    }
    assert_int_equal(balancing_solve(&b), SLM_OK);
    /* expert 0: just past 999 bins; the others: all of the first bin */
    balancing_gives(&b, (float[]){1.497f, -0.499f, -0.499f, -0.499f},
                    (double[]){0.998, -0.998, -0.998, -0.998});
}

static void no_tokens_keep_every_bit_of_the_bias(void **state)
{
    static const float kept[] = {-0.0f, 0x1p-149f, -0x1.fffffep127f, 0.0f};
    balancing b = balancing_open(0, 4, 1);

    (void)state;
    memcpy(b.bias, kept, sizeof kept);
    assert_int_equal(balancing_solve(&b), SLM_OK);
    balancing_gives(&b, kept, (double[]){-0.0, 0x1p-149, -0x1.fffffep127, 0.0});
}

static void merge(const int64_t *parts, size_t n_parts, int64_t *hist, size_t n,
                  size_t bins)
{
    struct slm_handle handle = {.config = {.struct_size = sizeof handle.config}};
    const slm_qb_hist_merge_args args = {
        .call = {.struct_size = sizeof args, .n_parts = n_parts},
        .parts = slm_tensor_packed((void *)(uintptr_t)parts, SLM_I64, 3,
                                   (size_t[]){n_parts, n, bins}),
        .hist = slm_tensor_packed(hist, SLM_I64, 2, (size_t[]){n, bins})};

    handle.config.n_experts = n;
    handle.config.n_bins = bins;
    assert_int_equal(slm_check(SLM_OP_qb_hist_merge, &handle.config, &args, NULL),
                     SLM_OK);
    assert_int_equal(slm_ref_op_qb_hist_merge(&handle, &args, NULL), SLM_OK);
}

static void merging_adds_whole_integers(void **state)
{
    static const int64_t parts[] = {
        1, (int64_t)1 << 53, INT64_MAX - 1, 2, 1, 0, 4, (int64_t)1 << 61, 1};
    int64_t hist[3] = {-1, -1, -1};

    (void)state;
    merge(parts, 3, hist, 1, 3);
    assert_true(hist[0] == 7);
    assert_true(hist[1] == ((int64_t)1 << 61) + ((int64_t)1 << 53) + 1);
    assert_true(hist[2] == INT64_MAX);
    merge(parts, 1, hist, 3, 1);
    assert_true(hist[0] == 1 && hist[2] == INT64_MAX - 1);
    merge(parts, 0, hist, 1, 3);
    assert_true(hist[0] == 0 && hist[1] == 0 && hist[2] == 0);
}

/* Two shards of four tokens, k 1: pooled, expert 0's target is the second of eight;
 * alone, each shard has its own first. */
static void the_quantile_of_the_union_is_not_the_mean_of_quantiles(void **state)
{
    static int64_t parts[2][4 * 1000];
    double sum = 0;
    balancing pooled = balancing_open(8, 4, 1);

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        balancing shard = balancing_open(4, 4, 1);

        shard.hist[100] = i == 0 ? 3 : 0;
        shard.hist[900] = i == 0 ? 1 : 4;
        for (size_t j = 1; j < 4; j++) shard.hist[1000 * j + 500] = 4;
        assert_int_equal(balancing_solve(&shard), SLM_OK);
        sum += shard.candidate[0];
        memcpy(parts[i], shard.hist, sizeof parts[i]);
    }
    merge(&parts[0][0], 2, pooled.hist, 4, 1000);
    assert_int_equal(balancing_solve(&pooled), SLM_OK);
    /* bin 100 and 2/3; alone bin 100 and 1/3, bin 900 and 1/4 */
    assert_true(pooled.candidate[0] == -1198.0 / 1500);
    assert_true(sum / 2 - pooled.candidate[0] > 0.79);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_range_is_one_wider_than_the_bias_on_each_side),
        cmocka_unit_test(no_margin_is_an_edge_and_belongs_to_the_upper_bin),
        cmocka_unit_test(the_range_s_ends_lie_in_the_first_and_last_bin),
        cmocka_unit_test(a_representable_edge_is_not_lost_to_rounding),
        cmocka_unit_test(every_edge_starts_its_own_bin),
        cmocka_unit_test(loads_4310_become_2222_with_bins_fine_enough),
        cmocka_unit_test(seed_21_shows_that_the_histogram_is_another_estimator),
        cmocka_unit_test(any_split_of_the_tokens_gives_the_same_counts),
        cmocka_unit_test(no_tokens_add_no_counts),
        cmocka_unit_test(nothing_is_counted_when_a_value_is_not_finite),
        cmocka_unit_test(the_bin_of_the_rounded_up_target_is_entered_by_the_real_one),
        cmocka_unit_test(counts_beyond_binary64_are_exact),
        cmocka_unit_test(no_tokens_keep_every_bit_of_the_bias),
        cmocka_unit_test(merging_adds_whole_integers),
        cmocka_unit_test(the_quantile_of_the_union_is_not_the_mean_of_quantiles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
