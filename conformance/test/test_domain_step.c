/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_domain_step.c - DOMAIN and NONFINITE of masks, tickets and stamps,
 * from both sides.                                                             Q5, Q8 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "../../spec/contract.h"
#include "lawful.h"

/* ---- masks ---- */

static void a_mask_is_0_or_1(void **state)
{
    static const slm_op ops[] = {SLM_OP_qb_exact, SLM_OP_qb_hist_accumulate,
                                 SLM_OP_load_metrics, SLM_OP_qb_observe};
    static const int32_t bad[] = {2, -1, INT32_MIN, INT32_MAX, 256};

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const slm_config config = lawful_config();
        lawful call;
        int32_t *mask;

        lawful_open(&call, ops[i], &config, 5);
        mask = lawful_tensor(&call, "mask")->data;
        mask[1] = mask[4] = 0;
        lawful_passes(&call);
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            mask[3] = bad[j];
            lawful_expect(&call, SLM_ERR_DOMAIN, "mask", 3);
            mask[2] = bad[j];
            lawful_expect(&call, SLM_ERR_DOMAIN, "mask", 2);
            mask[2] = 1;
        }
        lawful_tensor(&call, "mask")->space = SLM_DEVICE;
        lawful_passes(&call);
        lawful_close(&call);
    }
}

static void a_token_that_the_mask_leaves_out_is_not_looked_at(void **state)
{
    static const slm_op ops[] = {SLM_OP_qb_exact, SLM_OP_qb_hist_accumulate,
                                 SLM_OP_qb_observe};
    static const float odd[] = {NAN, INFINITY, -1, 2};

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const slm_config config = lawful_config();
        lawful call;
        float *score;
        int32_t *mask;

        lawful_open(&call, ops[i], &config, 5);
        score = lawful_tensor(&call, "score")->data;
        mask = lawful_tensor(&call, "mask")->data;
        mask[2] = 0;
        memcpy(score + 8, odd, sizeof odd);
        lawful_passes(&call);
        lawful_expect_finite(&call, SLM_OK, "", 0);
        mask[2] = 1;
        lawful_expect(&call, SLM_ERR_DOMAIN, "score", 9);
        lawful_expect_finite(&call, SLM_ERR_NONFINITE, "score", 8);
        lawful_tensor(&call, "mask")->space = SLM_DEVICE;
        lawful_passes(&call); /* it may leave out any */
        lawful_expect_finite(&call, SLM_OK, "", 0);
        lawful_tensor(&call, "mask")->rank = 0;
        lawful_expect(&call, SLM_ERR_DOMAIN, "score", 9);
        lawful_expect_finite(&call, SLM_ERR_NONFINITE, "score", 8);
        lawful_close(&call);
    }
}

static void ids_of_a_token_that_is_left_out_may_be_anything(void **state)
{
    const slm_config config = lawful_config();
    lawful call;
    int32_t *ids, *mask;

    (void)state;
    lawful_open(&call, SLM_OP_load_metrics, &config, 5);
    ids = lawful_tensor(&call, "ids")->data;
    mask = lawful_tensor(&call, "mask")->data;
    ids[4] = ids[5] = -7;
    mask[2] = 0;
    lawful_passes(&call);
    mask[2] = 1;
    lawful_expect(&call, SLM_ERR_DOMAIN, "ids", 4);
    lawful_close(&call);
}

/* A mask of any strides: every second element of a wider one, from its end. */
static void a_mask_is_read_by_its_strides(void **state)
{
    const slm_config config = lawful_config();
    int32_t wide[10] = {9, 1, 9, 0, 9, 1, 9, 1, 9, 1};
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_qb_exact, &config, 5);
    ((float *)call.args.qb_exact.score.data)[3 * 4] = NAN; /* of token 3 */
    call.args.qb_exact.mask.data = &wide[9];
    call.args.qb_exact.mask.stride[0] = -2;
    lawful_passes(&call);
    lawful_expect_finite(&call, SLM_OK, "", 0);
    wide[3] = 1;
    lawful_expect_finite(&call, SLM_ERR_NONFINITE, "score", 12);
    wide[7] = 9;
    lawful_expect(&call, SLM_ERR_DOMAIN, "mask", 1);
    lawful_close(&call);
}

static void only_counted_tokens_need_room_in_a_count(void **state)
{
    const slm_config config = lawful_config();
    lawful call;
    int64_t *hist;
    int32_t *mask;

    (void)state;
    lawful_open(&call, SLM_OP_qb_hist_accumulate, &config, 5);
    hist = lawful_tensor(&call, "hist")->data;
    mask = lawful_tensor(&call, "mask")->data;
    hist[20] = INT64_MAX - 4;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 20);
    mask[0] = 0;
    lawful_passes(&call);
    hist[20] = INT64_MAX;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 20);
    for (size_t t = 0; t < 5; t++) mask[t] = 0;
    lawful_passes(&call);
    lawful_close(&call);
}

/* ---- the state of a step ---- */

static void a_ticket_fits_the_stamp(void **state)
{
    static const struct {
        size_t index;
        int64_t change;
        slm_status status;
    } cases[] = {{SLM_TICKET_MODE, 3, SLM_ERR_DOMAIN},
                 {SLM_TICKET_MODE, -1, SLM_ERR_DOMAIN},
                 {SLM_TICKET_MODE, INT64_MIN, SLM_ERR_DOMAIN},
                 {SLM_TICKET_VERSION, 1, SLM_ERR_DOMAIN},
                 {SLM_TICKET_VERSION, -1, SLM_ERR_DOMAIN},
                 {SLM_TICKET_CHECKSUM, 1, SLM_ERR_DOMAIN},
                 {SLM_TICKET_MICRO_BATCH, -1, SLM_OK}, /* 0: a replay */
                 {SLM_TICKET_MICRO_BATCH, -2, SLM_ERR_DOMAIN},
                 {SLM_TICKET_MICRO_BATCH, 1, SLM_ERR_DOMAIN}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const slm_config config = lawful_config();
        lawful call;
        int64_t *ticket;

        lawful_open(&call, SLM_OP_qb_observe, &config, 5);
        ticket = lawful_tensor(&call, "ticket")->data;
        lawful_passes(&call);
        ticket[cases[i].index] += cases[i].change;
        lawful_expect(&call, cases[i].status, "ticket", cases[i].index);
        lawful_close(&call);
    }
}

/* The guilty one is told: a ticket is held against a stamp that is right. */
static void a_stamp_belongs_to_the_bias(void **state)
{
    static const slm_op ops[] = {SLM_OP_qb_observe, SLM_OP_qb_commit};
    static const struct {
        size_t index;
        int64_t value;
        slm_status status;
    } cases[] = {{SLM_STAMP_VERSION, -1, SLM_ERR_DOMAIN},
                 {SLM_STAMP_VERSION, INT64_MAX, SLM_ERR_DOMAIN},
                 {SLM_STAMP_CHECKSUM, 0, SLM_ERR_DOMAIN},
                 {SLM_STAMP_MICRO_BATCHES, -1, SLM_ERR_DOMAIN},
                 {SLM_STAMP_MICRO_BATCHES, INT64_MAX, SLM_ERR_DOMAIN},
                 {SLM_STAMP_MICRO_BATCHES, INT64_MAX - 1, SLM_OK},
                 {SLM_STAMP_TOKENS, -1, SLM_ERR_DOMAIN}};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const slm_config config = lawful_config();
        const size_t c = i / 2;
        lawful call;
        int64_t *stamp;

        lawful_open(&call, ops[i % 2], &config, 5);
        stamp = lawful_tensor(&call, "stamp")->data;
        lawful_passes(&call);
        stamp[cases[c].index] = cases[c].value;
        lawful_expect(&call, cases[c].status, "stamp", cases[c].index);
        lawful_close(&call);
    }
    for (size_t i = 0; i < 2; i++) {
        const slm_config config = lawful_config();
        lawful call;

        lawful_open(&call, ops[i], &config, 5);
        *(float *)lawful_tensor(&call, "bias")->data = -0.0f;
        lawful_expect(&call, SLM_ERR_DOMAIN, "stamp", SLM_STAMP_CHECKSUM);
        lawful_tensor(&call, "bias")->space = SLM_DEVICE;
        lawful_passes(&call);
        lawful_close(&call);
    }
}

static void rows_of_a_step_sum_to_the_stamp(void **state)
{
    const slm_config config = lawful_config();
    lawful call;
    int64_t *hist, *stamp;

    (void)state;
    lawful_open(&call, SLM_OP_qb_observe, &config, 5);
    hist = lawful_tensor(&call, "hist")->data;
    stamp = lawful_tensor(&call, "stamp")->data;
    hist[15] = 1;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 10);
    hist[10]--;
    lawful_passes(&call);
    hist[12] = -1;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 12);
    lawful_tensor(&call, "stamp")->space = SLM_DEVICE;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 12); /* whatever the stamp says */
    hist[12] = 1;
    lawful_passes(&call);
    lawful_tensor(&call, "stamp")->space = SLM_HOST;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 10);
    hist[12] = 0;
    stamp[SLM_STAMP_TOKENS] = INT64_MAX - 4;
    for (size_t j = 0; j < 4; j++) hist[10 * j] = INT64_MAX - 4;
    hist[15] = 0;
    lawful_expect(&call, SLM_ERR_DOMAIN, "hist", 0); /* no room for 5 tokens */
    ((int32_t *)lawful_tensor(&call, "mask")->data)[4] = 0;
    lawful_passes(&call);
    lawful_close(&call);

    lawful_open(&call, SLM_OP_qb_commit, &config, 5);
    *(int64_t *)lawful_tensor(&call, "hist")->data = -3; /* will be 0 */
    lawful_passes(&call);
    lawful_close(&call);
}

static void outside_training_nothing_but_the_mode_is_looked_at(void **state)
{
    static const slm_mode modes[] = {SLM_MODE_RECOMPUTATION, SLM_MODE_EVALUATION};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const slm_config config = lawful_config();
        lawful call;
        int64_t *ticket;

        lawful_open(&call, SLM_OP_qb_observe, &config, 5);
        ticket = lawful_tensor(&call, "ticket")->data;
        *(float *)lawful_tensor(&call, "score")->data = NAN;
        ((float *)lawful_tensor(&call, "score")->data)[1] = 7;
        *(float *)lawful_tensor(&call, "bias")->data = NAN;
        ((int64_t *)lawful_tensor(&call, "stamp")->data)[2] = -9;
        ((int64_t *)lawful_tensor(&call, "hist")->data)[5] = -9;
        ((int32_t *)lawful_tensor(&call, "mask")->data)[1] = 5;
        ticket[1] = ticket[2] = ticket[3] = 77;
        ticket[SLM_TICKET_MODE] = modes[i];
        lawful_passes(&call);
        lawful_expect_finite(&call, SLM_OK, "", 0);
        lawful_tensor(&call, "ticket")->space = SLM_DEVICE;
        lawful_passes(&call); /* nobody can say */
        lawful_expect_finite(&call, SLM_OK, "", 0);
        lawful_tensor(&call, "ticket")->space = SLM_HOST;
        ticket[SLM_TICKET_MODE] = SLM_MODE_TRAINING;
        lawful_expect(&call, SLM_ERR_DOMAIN, "score", 1);
        lawful_expect_finite(&call, SLM_ERR_NONFINITE, "score", 0);
        lawful_close(&call);
    }
}

static void a_commit_needs_finite_biases(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_qb_commit, &config, 5);
    lawful_expect_finite(&call, SLM_OK, "", 0);
    ((float *)lawful_tensor(&call, "bias")->data)[1] = INFINITY;
    lawful_expect_finite(&call, SLM_ERR_NONFINITE, "bias", 1);
    ((float *)lawful_tensor(&call, "new_bias")->data)[2] = NAN;
    lawful_expect_finite(&call, SLM_ERR_NONFINITE, "new_bias", 2);
    lawful_close(&call);
}

/* The check value of CRC-64/XZ in the catalogues is that of "123456789". */
static void the_checksum_is_that_of_the_catalogues(void **state)
{
    const float zeros[2] = {0, 0}, minus[2] = {-0.0f, 0};
    float letters[2];
    uint64_t rest = slm_checksum_more(SLM_CHECKSUM_BEGIN, "1234", 4);

    (void)state;
    rest = slm_checksum_more(rest, "56789", 5);
    assert_int_equal((uint64_t)slm_checksum_end(rest), 0x995dc9bbdf1939fau);
    memcpy(letters, "12345678", sizeof letters);
    assert_int_equal((uint64_t)slm_checksum(letters, 2), 0x5c8b80482bac7809u);
    assert_int_equal(slm_checksum(zeros, 2), INT64_C(-5302298732530578752));
    assert_int_not_equal(slm_checksum(minus, 2), slm_checksum(zeros, 2));
    assert_int_equal(slm_checksum(zeros, 0), 0);
}

/* A bias of more experts than the door takes at once, and with strides. */
static void the_door_sees_the_checksum_of_any_bias(void **state)
{
    enum { N = 1000 };
    slm_config config = lawful_config();
    float packed[N], wide[2 * N];
    lawful call;

    (void)state;
    for (size_t j = 0; j < N; j++) packed[j] = wide[2 * j] = (float)j / 8;
    config.n_experts = N;
    lawful_open(&call, SLM_OP_qb_commit, &config, 5);
    call.args.qb_commit.bias.data = wide;
    call.args.qb_commit.bias.stride[0] = 2;
    ((int64_t *)call.args.qb_commit.stamp.data)[SLM_STAMP_CHECKSUM] =
        slm_checksum(packed, N);
    lawful_passes(&call);
    wide[2 * (N - 1)] = -1;
    lawful_expect(&call, SLM_ERR_DOMAIN, "stamp", SLM_STAMP_CHECKSUM);
    lawful_close(&call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_is_0_or_1),
        cmocka_unit_test(a_token_that_the_mask_leaves_out_is_not_looked_at),
        cmocka_unit_test(ids_of_a_token_that_is_left_out_may_be_anything),
        cmocka_unit_test(a_mask_is_read_by_its_strides),
        cmocka_unit_test(only_counted_tokens_need_room_in_a_count),
        cmocka_unit_test(a_ticket_fits_the_stamp),
        cmocka_unit_test(a_stamp_belongs_to_the_bias),
        cmocka_unit_test(rows_of_a_step_sum_to_the_stamp),
        cmocka_unit_test(outside_training_nothing_but_the_mode_is_looked_at),
        cmocka_unit_test(a_commit_needs_finite_biases),
        cmocka_unit_test(the_checksum_is_that_of_the_catalogues),
        cmocka_unit_test(the_door_sees_the_checksum_of_any_bias),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
