/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_balance.c - balancing by `cpu-blas`: the examples of the
 * clauses, and the cases that binary64 alone gets wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

/* ---- balancing ---- */

static slm_config balancing(size_t n, size_t k, slm_balance balance)
{
    slm_config config = cpu_tiny();

    config.n_experts = n;
    config.top_k = k;
    config.balance = balance;
    return config;
}

static void exact_update_gives_the_example_of_its_clause(void **state)
{
    static const int table[] = {56, 44, 19, 11, 43, 28, 14, 40, 20, 11, 18,
                                6,  51, 29, 21, 16, 41, 49, 7,  48, 45, 54,
                                35, 28, 45, 56, 14, 37, 43, 39, 57, 17};
    static const int candidate[] = {-3, -1, 8, 8}, centred[] = {-6, -4, 5, 5};
    const float bias[4] = {0.0f};
    float score[32];
    const cpu_given list[] = {{"score", score}, {"bias", bias}, {NULL, NULL}};
    const slm_config config = balancing(4, 1, SLM_BALANCE_STRICT);
    cpu_outcome out;

    (void)state;
    for (size_t i = 0; i < 32; i++) score[i] = (float)table[i] / 64.0f;
    out = cpu_run_plain(SLM_OP_qb_exact, &config, 8, list);
    assert_int_equal(out.status, SLM_OK);
    for (size_t j = 0; j < 4; j++) {
        assert_true(((double *)cpu_output(&out, "candidate"))[j] ==
                    candidate[j] / 64.0);
        assert_true(((float *)cpu_output(&out, "new_bias"))[j] ==
                    (float)centred[j] / 64.0f);
    }
    cpu_release(&out);
}

static void strict_refuses_a_share_that_is_no_integer_and_a_tie(void **state)
{
    const float bias[] = {0x1p-27f, 0.0f},
                score[] = {0.75f, 0.875f, 0.0625f, 0.5f, 0.5f, 0.25f};
    const cpu_given list[] = {{"score", score}, {"bias", bias}, {NULL, NULL}};
    slm_config config = balancing(2, 1, SLM_BALANCE_STRICT);
    cpu_outcome out = cpu_run_plain(SLM_OP_qb_exact, &config, 3, list);

    (void)state;
    assert_int_equal(out.status, SLM_ERR_TARGET);
    assert_string_equal(out.error.field, "n_tokens");
    cpu_release(&out);
    out = cpu_run_plain(SLM_OP_qb_exact, &config, 2, list);
    assert_int_equal(out.status, SLM_ERR_TIE);
    assert_string_equal(out.error.field, "new_bias");
    assert_int_equal(out.error.index, 0);
    for (size_t i = 0; i < out.n; i++)
        for (size_t b = 0; b < out.size[i]; b++)
            assert_int_equal(out.bytes[i][b], CPU_UNTOUCHED);
    cpu_release(&out);
    config.tie_test = SLM_TIE_EQUAL;
    out = cpu_run_plain(SLM_OP_qb_exact, &config, 2, list);
    assert_int_equal(out.status, SLM_OK);
    cpu_release(&out);
}

/* alpha is 2^60: in binary64 all r of a column are one number. */
static void scores_beside_a_huge_cutoff_still_differ(void **state)
{
    const float bias[] = {0x1p60f, 0x1p60f, 0.0f};
    const float score[] = {0.5f, 0.25f, 0.75f, 0.25f, 0.5f, 0.5f, 0.75f, 0.75f, 0.25f};
    const float tied[] = {0.5f, 0.25f, 0.75f, 0.5f, 0.5f, 0.5f, 0.25f, 0.75f, 0.25f};
    const cpu_given apart[] = {{"score", score}, {"bias", bias}, {NULL, NULL}};
    const cpu_given equal[] = {{"score", tied}, {"bias", bias}, {NULL, NULL}};
    slm_config config = balancing(3, 1, SLM_BALANCE_STRICT);
    cpu_outcome out;

    (void)state;
    config.tie_test = SLM_TIE_EQUAL;
    out = cpu_run_plain(SLM_OP_qb_exact, &config, 3, apart);
    assert_int_equal(out.status, SLM_OK);
    cpu_release(&out);
    out = cpu_run_plain(SLM_OP_qb_exact, &config, 3, equal);
    assert_int_equal(out.status, SLM_ERR_TIE);
    cpu_release(&out);
}

/* Gaps of column 0 within 2^-70 of the tolerance, on both sides of it. */
static void the_last_bit_of_an_exact_sum_decides_a_tie(void **state)
{
    static const struct {
        float first, second, above;
        slm_status status;
    } pairs[] = {
        {0x1.6e527cp-50f, 0x1.e3ff52p-25f, 0x1.0000aap-1f, SLM_ERR_TIE},
        {0x1.6e528p-50f, 0x1.e3ff52p-25f, 0x1.0000aap-1f, SLM_OK},
        {0x1.c009c6p-29f, 0x1.73d18p-56f, 0x1.0000a8p-1f, SLM_ERR_TIE},
        {0x1.c009c6p-29f, 0x1.73d17p-56f, 0x1.0000a8p-1f, SLM_OK},
    };
    const float bias[] = {0.0f, 0.0f, 0.0f};
    const slm_config config = balancing(3, 1, SLM_BALANCE_STRICT);

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const float score[] = {pairs[i].first, 0x1.ep-1f, 0x1p-1f, pairs[i].second,
                               pairs[i].above, 0x1.fp-1f, 0.0f,    1.0f,
                               0x1.9p-1f};
        const cpu_given list[] = {{"score", score}, {"bias", bias}, {NULL, NULL}};
        cpu_outcome out = cpu_run_plain(SLM_OP_qb_exact, &config, 3, list);

        assert_int_equal(out.status, pairs[i].status);
        cpu_release(&out);
    }
}

static size_t bin_hit(const float *score, const float *bias, size_t n, size_t expert)
{
    const cpu_given list[] = {
        {"score", score}, {"bias", bias}, {"hist", calloc(n * 1000, 8)}, {NULL, NULL}};
    slm_config config = balancing(n, 1, SLM_BALANCE_RELAXED);
    const int64_t *hist;
    cpu_outcome out;
    size_t bin = 0;

    config.n_bins = 1000;
    out = cpu_run_plain(SLM_OP_qb_hist_accumulate, &config, 1, list);
    hist = cpu_output(&out, "hist");
    while (hist[expert * 1000 + bin] == 0) bin++;
    assert_int_equal(hist[expert * 1000 + bin], 1);
    cpu_release(&out);
    free((void *)list[2].values);
    return bin;
}

static void bins_are_those_of_exact_rationals(void **state)
{
    const float zero[3] = {0.0f}, bias[] = {0.0f, 0.1875f, 0.375f};
    const float tiny_score[] = {0x1.89374cp-34f, 0x1.78d4fep-5f, 0x1p-1f};
    const float on_edge[] = {0.5f, 0.3125f, 0.3125f};

    (void)state;
    assert_int_equal(bin_hit(tiny_score, zero, 3, 0), 522);
    assert_int_equal(bin_hit(tiny_score, zero, 3, 1), 500);
    assert_int_equal(bin_hit(on_edge, bias, 3, 1), 500);
}

static void counts_do_not_depend_on_how_tokens_are_split(void **state)
{
    enum { T = 60, FIRST = 23 };
    const slm_config config = balancing(11, 3, SLM_BALANCE_RELAXED);
    static float score[T * 11];
    static int64_t zero[11 * 50];
    const cpu_given all[] = {{"score", score}, {"hist", zero}, {NULL, NULL}};
    cpu_given rest[] = {{"score", score + FIRST * 11}, {"hist", NULL}, {NULL, NULL}};
    cpu_outcome whole, first, second;

    (void)state;
    for (size_t i = 0; i < T * 11; i++) score[i] = 0.5f + 0.5f * cpu_noise("score", i);
    whole = cpu_run_plain(SLM_OP_qb_hist_accumulate, &config, T, all);
    first = cpu_run_plain(SLM_OP_qb_hist_accumulate, &config, FIRST, all);
    rest[1].values = cpu_output(&first, "hist");
    second = cpu_run_plain(SLM_OP_qb_hist_accumulate, &config, T - FIRST, rest);
    cpu_same_bits(&whole, &second);
    cpu_release(&whole);
    cpu_release(&first);
    cpu_release(&second);
}

static void histogram_solves_the_example_of_its_clause(void **state)
{
    static const int64_t hist[] = {0, 4, 4, 0, 0, 3, 5, 0, 0, 1, 6, 1, 0, 0, 7, 1};
    static const double want[] = {-1.0 / 4, -1.0 / 6, 1.0 / 12, 1.0 / 7};
    const float bias[4] = {0.0f};
    const cpu_given list[] = {{"hist", hist}, {"bias", bias}, {NULL, NULL}};
    slm_config config = balancing(4, 1, SLM_BALANCE_STRICT);
    const double mean = (want[0] + want[1] + want[2] + want[3]) / 4.0;
    cpu_outcome out;

    (void)state;
    config.n_bins = 4;
    out = cpu_run_plain(SLM_OP_qb_hist_solve, &config, 8, list);
    for (size_t j = 0; j < 4; j++) {
        assert_true(fabs(((double *)cpu_output(&out, "candidate"))[j] - want[j]) <=
                    1e-16);
        assert_true(((float *)cpu_output(&out, "new_bias"))[j] ==
                    (float)(want[j] - mean));
    }
    cpu_release(&out);
}

static void sign_step_moves_only_experts_off_the_mean(void **state)
{
    static const int64_t load[] = {4, 2, 2, 0};
    const float bias[] = {0.0f, -0.0f, 0.5f, 0.25f}, step = 0x1p-10f;
    const cpu_given list[] = {{"load", load}, {"bias", bias}, {NULL, NULL}};
    const slm_config config = balancing(4, 1, SLM_BALANCE_STRICT);
    cpu_outcome out = cpu_run_plain(SLM_OP_sign_step, &config, 8, list);
    const float want[] = {-step, -0.0f, 0.5f, 0.25f + step};

    (void)state;
    assert_memory_equal(cpu_output(&out, "new_bias"), want, sizeof want);
    cpu_release(&out);
}

static void load_metrics_give_the_example_of_their_clause(void **state)
{
    static const int32_t ids[] = {0, 0, 0, 0, 1, 1, 1, 2};
    const cpu_given list[] = {{"ids", ids}, {NULL, NULL}};
    const slm_config config = balancing(4, 1, SLM_BALANCE_STRICT);
    cpu_outcome out = cpu_run_plain(SLM_OP_load_metrics, &config, 8, list);
    const double *metric = cpu_output(&out, "metric");

    (void)state;
    assert_true(metric[0] == 1.0 && metric[2] == 1.0 && metric[3] == 0.375);
    assert_true(fabs(metric[1] - sqrt(10.0) / 4.0) <= 1e-15);
    cpu_release(&out);
}

/* Padding rows of NaN and of no ids, in any layout: the outputs are those of the batch
 * without them, bit for bit.                                                      Q5 */
static void a_masked_batch_is_the_batch_without_the_rows(void **state)
{
    static const slm_op ops[] = {SLM_OP_qb_exact, SLM_OP_qb_hist_accumulate,
                                 SLM_OP_load_metrics, SLM_OP_qb_observe};
    enum { T = 45, M = 30, N = 11, K = 3, B = 50 };
    static float score[T * N], packed[M * N], bias[N];
    static int32_t ids[T * K], packed_ids[M * K], mask[T];
    static int64_t hist[N * B];
    const slm_config config = cpu_tiny();

    (void)state;
    for (size_t j = 0; j < N; j++) bias[j] = 0.125f * cpu_noise("bias", j);
    for (size_t t = 0, m = 0; t < T; t++) {
        mask[t] = t % 3 != 1;
        for (size_t j = 0; j < N; j++)
            score[t * N + j] =
                mask[t] ? 0.5f + 0.5f * cpu_noise("score", t * N + j) : NAN;
        for (size_t q = 0; q < K; q++)
            ids[t * K + q] = mask[t] ? (int32_t)((t * t + q * 4) % N) : -9;
        if (!mask[t]) continue;
        memcpy(&packed[m * N], &score[t * N], N * sizeof *score);
        memcpy(&packed_ids[m * K], &ids[t * K], K * sizeof *ids);
        m++;
    }
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const cpu_given without[] = {{"score", packed},
                                     {"bias", bias},
                                     {"ids", packed_ids},
                                     {"hist", hist},
                                     {NULL, NULL}};
        const cpu_given with[] = {{"score", score}, {"bias", bias}, {"ids", ids},
                                  {"hist", hist},   {"mask", mask}, {NULL, NULL}};
        cpu_outcome want = cpu_run_plain(ops[i], &config, M, without);

        assert_int_equal(want.status, SLM_OK);
        for (int how = 0; how < CPU_LAYOUTS; how++) {
            cpu_outcome got =
                cpu_run(ops[i], &config, T, with, (cpu_layout)how, 1 + how % 3, 0xff);

            assert_int_equal(got.status, SLM_OK);
            for (size_t f = 0; f < want.n; f++) {
                const float *cutoff = (const float *)got.bytes[f];

                if (strcmp(want.name[f], "cutoff") != 0) {
                    assert_memory_equal(got.bytes[f], want.bytes[f], want.size[f]);
                    continue;
                }
                for (size_t t = 0, m = 0; t < T; t++) {
                    static const unsigned char left[4] = {CPU_UNTOUCHED, CPU_UNTOUCHED,
                                                          CPU_UNTOUCHED, CPU_UNTOUCHED};
                    const void *expected =
                        mask[t] ? (const void *)(want.bytes[f] + 4 * m++) : left;

                    assert_memory_equal(&cutoff[t], expected, 4);
                }
            }
            cpu_release(&got);
        }
        cpu_release(&want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_update_gives_the_example_of_its_clause),
        cmocka_unit_test(strict_refuses_a_share_that_is_no_integer_and_a_tie),
        cmocka_unit_test(scores_beside_a_huge_cutoff_still_differ),
        cmocka_unit_test(the_last_bit_of_an_exact_sum_decides_a_tie),
        cmocka_unit_test(bins_are_those_of_exact_rationals),
        cmocka_unit_test(counts_do_not_depend_on_how_tokens_are_split),
        cmocka_unit_test(histogram_solves_the_example_of_its_clause),
        cmocka_unit_test(sign_step_moves_only_experts_off_the_mean),
        cmocka_unit_test(load_metrics_give_the_example_of_their_clause),
        cmocka_unit_test(a_masked_batch_is_the_batch_without_the_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
