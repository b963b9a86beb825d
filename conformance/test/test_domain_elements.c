/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_domain_elements.c - DOMAIN and NONFINITE of elements, from both
 * sides.                                                                         X1 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "lawful.h"

static void scores_lie_in_0_to_1_and_a_nan_is_not_outside(void **state)
{
    static const slm_op ops[] = {SLM_OP_select, SLM_OP_qb_exact,
                                 SLM_OP_qb_hist_accumulate, SLM_OP_qb_observe};
    static const float inside[] = {0.0f, -0.0f, 1.0f, 0x1p-149f, NAN};

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const slm_config config = lawful_config();
        const float outside[] = {-0x1p-149f, nextafterf(1.0f, 2.0f), INFINITY,
                                 -INFINITY};
        lawful call;
        float *score;

        lawful_open(&call, ops[i], &config, 5);
        score = lawful_tensor(&call, "score")->data;
        for (size_t j = 0; j < sizeof inside / sizeof *inside; j++) {
            score[19] = inside[j];
            lawful_passes(&call);
        }
        for (size_t j = 0; j < sizeof outside / sizeof *outside; j++) {
            score[19] = outside[j];
            lawful_expect(&call, SLM_ERR_DOMAIN, "score", 19);
            score[7] = outside[j];
            lawful_expect(&call, SLM_ERR_DOMAIN, "score", 7);
            score[7] = 0;
        }
        lawful_tensor(&call, "score")->space = SLM_DEVICE;
        lawful_passes(&call); /* device memory is not looked into */
        lawful_close(&call);
    }
}

static void an_index_is_row_major_whatever_the_strides(void **state)
{
    const slm_config config = lawful_config();
    float by_column[4][5] = {{0}};
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_select, &config, 5);
    by_column[3][1] = 2; /* token 1, expert 3 */
    by_column[0][2] = 2; /* token 2, expert 0: earlier in memory, later in order */
    call.args.select.score.data = by_column;
    call.args.select.score.stride[0] = 1;
    call.args.select.score.stride[1] = 5;
    lawful_expect(&call, SLM_ERR_DOMAIN, "score", 7);
    lawful_close(&call);
}

static void ids_are_in_range_and_distinct_within_a_token(void **state)
{
    static const slm_op ops[] = {SLM_OP_permute, SLM_OP_load_metrics};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const slm_config config = lawful_config();
        lawful call;
        int32_t *ids;

        lawful_open(&call, ops[i], &config, 5);
        ids = lawful_tensor(&call, "ids")->data;
        ids[4] = 3;
        lawful_passes(&call);
        ids[4] = 4;
        lawful_expect(&call, SLM_ERR_DOMAIN, "ids", 4);
        ids[4] = -1;
        lawful_expect(&call, SLM_ERR_DOMAIN, "ids", 4);
        ids[4] = 1;
        lawful_expect(&call, SLM_ERR_DOMAIN, "ids", 5); /* 1 1: the later one */
        ids[3] = INT32_MIN;
        lawful_expect(&call, SLM_ERR_DOMAIN, "ids", 3); /* the lowest of two */
        ids[3] = 1;
        ids[4] = 0;
        ids[9] = 2;
        lawful_passes(&call); /* the same expert for two tokens is no repeat */
        lawful_close(&call);
    }
}

static void rows_of_a_histogram_sum_to_the_number_of_tokens(void **state)
{
    const slm_config config = lawful_config();
    lawful call;
    int64_t *hist;

    (void)state;
    lawful_open(&call, SLM_OP_qb_hist_solve, &config, 5);
    hist = call.args.qb_hist_solve.hist.data;
    hist[10] = 2;
    hist[19] = 3;
    lawful_passes(&call);
    hist[19] = 4;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 10);
    hist[10] = 6;
    hist[19] = -1; /* the sum is right */
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 19);
    hist[10] = 5;
    hist[19] = 0;
    hist[30] = 4;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 30);
    hist[30] = INT64_MAX;
    hist[31] = INT64_MAX;
    hist[32] = 7; /* 5 modulo 2^64 */
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 30);
    lawful_close(&call);
}

static void counts_that_would_overflow_are_refused(void **state)
{
    const slm_config config = lawful_config();
    lawful call;
    int64_t *counts;

    (void)state;
    lawful_open(&call, SLM_OP_qb_hist_accumulate, &config, 5);
    counts = call.args.qb_hist_accumulate.hist.data;
    counts[10] = INT64_MAX - 6;
    counts[11] = 1;
    lawful_passes(&call);
    counts[11] = 2;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 10);
    counts[10] = -1;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 10);
    lawful_close(&call);

    lawful_open(&call, SLM_OP_qb_hist_merge, &config, 5);
    counts = call.args.qb_hist_merge.parts.data;
    counts[3] = INT64_MAX - 1;
    counts[40 + 3] = 1;
    lawful_passes(&call);
    counts[80 + 3] = 1;
    lawful_expect(&call, SLM_ERR_DOMAIN, "parts", 83);
    counts[50] = -1;
    lawful_expect(&call, SLM_ERR_DOMAIN, "parts", 50);
    lawful_close(&call);
}

static void loads_are_not_negative(void **state)
{
    const slm_config config = lawful_config();
    lawful call;
    int64_t *load;

    (void)state;
    lawful_open(&call, SLM_OP_sign_step, &config, 5);
    load = call.args.sign_step.load.data;
    load[2] = INT64_MAX;
    lawful_passes(&call);
    load[2] = -1;
    lawful_expect(&call, SLM_ERR_DOMAIN, "load", 2);
    lawful_close(&call);
}

static void the_first_status_in_order_of_precedence_is_reported(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_select, &config, 5);
    *(float *)call.args.select.score.data = 2; /* DOMAIN */
    lawful_expect(&call, SLM_ERR_DOMAIN, "score", 0);
    call.args.select.weight.data = call.args.select.score.data; /* and ALIAS */
    lawful_expect(&call, SLM_ERR_ALIAS, "weight", 0);
    call.args.select.bias.shape[0] = 5; /* and SHAPE */
    lawful_expect(&call, SLM_ERR_SHAPE, "bias", 0);
    lawful_close(&call);

    lawful_open(&call, SLM_OP_qb_exact, &config, 5);
    *(float *)call.args.qb_exact.bias.data = NAN;
    lawful_passes(&call); /* NONFINITE is the operation's own */
    call.config.top_k = 4;
    lawful_expect(&call, SLM_ERR_DOMAIN, "top_k", 0);
    call.config.n_bins = 0;
    *(float *)call.args.qb_exact.score.data = 2;
    lawful_expect(&call, SLM_ERR_DOMAIN, "top_k",
                  0); /* the configuration before tensors */
    call.args.qb_exact.cutoff.data = call.args.qb_exact.score.data;
    lawful_expect(&call, SLM_ERR_ALIAS, "cutoff", 0);
    lawful_close(&call);
}

static void a_bias_is_finite_in_every_operation_that_has_one(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    size_t with_bias = 0;

    (void)state;
    for (slm_op op = (slm_op)0; op < SLM_OP_COUNT; op = (slm_op)(op + 1)) {
        const slm_config config = lawful_config();
        lawful call;

        lawful_open(&call, op, &config, 5);
        lawful_expect_finite(&call, SLM_OK, "", 0);
        for (size_t i = 0; i < call.info->n_fields; i++) {
            float *bias = lawful_at(&call, i)->data;

            if (strcmp(call.info->fields[i].name, "bias") != 0) continue;
            with_bias++;
            bias[1] = 0x1.fffffep127f;
            bias[2] = -0x1.fffffep127f;
            lawful_expect_finite(&call, SLM_OK, "", 0);
            for (size_t j = 0; j < 3; j++) {
                bias[3] = bad[j];
                lawful_expect_finite(&call, SLM_ERR_NONFINITE, "bias", 3);
            }
            lawful_at(&call, i)->space = SLM_DEVICE;
            lawful_expect_finite(&call, SLM_OK, "", 0);
        }
        lawful_close(&call);
    }
    assert_int_equal(with_bias, 9);
}

static void scores_of_balancing_are_finite_and_those_of_select_may_be_nan(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_qb_exact, &config, 5);
    ((float *)call.args.qb_exact.score.data)[6] = NAN;
    ((float *)call.args.qb_exact.bias.data)[0] = NAN;
    lawful_expect_finite(&call, SLM_ERR_NONFINITE, "score", 6);
    lawful_close(&call);
    lawful_open(&call, SLM_OP_qb_hist_accumulate, &config, 5);
    ((float *)call.args.qb_hist_accumulate.score.data)[6] = NAN;
    lawful_expect_finite(&call, SLM_ERR_NONFINITE, "score", 6);
    lawful_close(&call);
    lawful_open(&call, SLM_OP_select, &config, 5);
    ((float *)call.args.select.score.data)[6] = NAN;
    lawful_expect_finite(&call, SLM_OK, "", 0);
    lawful_close(&call);
}

static void a_bf16_element_is_told_by_its_bits(void **state)
{
    slm_config config = lawful_config();
    slm_error error;
    lawful call;

    (void)state;
    config.dtype = SLM_BF16;
    lawful_open(&call, SLM_OP_rmsnorm_backward, &config, 5);
    ((uint16_t *)lawful_tensor(&call, "dr")->data)[4] = 0x7f7f; /* the largest */
    lawful_expect_finite(&call, SLM_OK, "", 0);
    ((uint16_t *)lawful_tensor(&call, "dr")->data)[4] = 0xff80;
    lawful_expect_finite(&call, SLM_ERR_NONFINITE, "dr", 4);
    slm_check_finite(SLM_OP_rmsnorm_backward, &call.config, &call.args, &error);
    assert_string_equal(error.expected, "finite; got the bf16 0xff80");
    lawful_close(&call);
}

static void elements_are_not_looked_at_without_arguments(void **state)
{
    const slm_config config = lawful_config();
    slm_error error;

    (void)state;
    assert_int_equal(slm_check_finite(SLM_OP_route, &config, NULL, &error),
                     SLM_ERR_SHAPE);
    assert_string_equal(error.op, "route");
    assert_int_equal(slm_check_finite(SLM_OP_COUNT, &config, &config, &error),
                     SLM_ERR_SHAPE);
    assert_string_equal(error.op, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_lie_in_0_to_1_and_a_nan_is_not_outside),
        cmocka_unit_test(an_index_is_row_major_whatever_the_strides),
        cmocka_unit_test(ids_are_in_range_and_distinct_within_a_token),
        cmocka_unit_test(rows_of_a_histogram_sum_to_the_number_of_tokens),
        cmocka_unit_test(counts_that_would_overflow_are_refused),
        cmocka_unit_test(loads_are_not_negative),
        cmocka_unit_test(the_first_status_in_order_of_precedence_is_reported),
        cmocka_unit_test(a_bias_is_finite_in_every_operation_that_has_one),
        cmocka_unit_test(scores_of_balancing_are_finite_and_those_of_select_may_be_nan),
        cmocka_unit_test(a_bf16_element_is_told_by_its_bits),
        cmocka_unit_test(elements_are_not_looked_at_without_arguments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
