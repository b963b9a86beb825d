/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_bench_case.c - the arguments of a timed call, and the judged part. */
#include "bench_case.h"
#include "bench_judge.h"
#include "vector_fill.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <ref.h>
#include <stdlib.h>
#include <string.h>

static slm_config small(void)
{
    slm_config config;

    assert_true(slm_config_profile("paper", &config));
    config.d_model = 8;
    config.d_latent = 4;
    config.n_experts = 6;
    config.top_k = 3;
    config.d_expert = 4;
    config.n_shared = 1;
    config.d_shared = 4;
    config.n_bins = 10;
    return config;
}

static void weights_follow_the_layer_and_inputs_the_place(void **state)
{
    (void)state;
    const slm_config config = small();
    bench_case a, b;
    float x[2], y[2];

    assert_true(bench_case_make(&a, SLM_OP_layer_forward, &config, 5, 0, 0));
    assert_true(bench_case_make(&b, SLM_OP_layer_forward, &config, 5, 0, 1));
    for (size_t i = 0; i < a.test.n_in; i++) {
        vec_fill(&a.in[i], SLM_F32, 0, 2, x);
        vec_fill(&b.in[i], SLM_F32, 0, 2, y);
        assert_int_equal(memcmp(x, y, sizeof x) == 0, bench_is_weight(&a.in[i]));
    }
    bench_case_free(&b);
    bench_case_free(&a);
}

static void every_operation_accepts_what_is_made(void **state)
{
    (void)state;
    static const slm_op ops[] = {SLM_OP_layer_forward,
                                 SLM_OP_layer_backward,
                                 SLM_OP_route,
                                 SLM_OP_select,
                                 SLM_OP_permute,
                                 SLM_OP_situ_glu,
                                 SLM_OP_situ_glu_backward,
                                 SLM_OP_dense_ffn,
                                 SLM_OP_dense_ffn_backward,
                                 SLM_OP_rmsnorm,
                                 SLM_OP_rmsnorm_backward,
                                 SLM_OP_qb_exact,
                                 SLM_OP_qb_hist_accumulate,
                                 SLM_OP_load_metrics};
    const slm_config config = small();

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        slm_testee *ref = testee_open_table(slm_ref_backend(), true);
        bench_case made;
        call_frame frame;
        testee_reply reply;

        assert_true(bench_case_make(&made, ops[i], &config, 7, 0, 0));
        assert_true(testee_frame(ref, &made.test, NULL, &frame, reply.why));
        testee_run(ref, &frame, &reply);
        if (reply.outcome != TESTEE_RETURNED || reply.status != SLM_OK)
            fail_msg("%s: %s %s", slm_op_describe(ops[i])->name,
                     slm_status_name(reply.status), reply.error.expected);
        frame_free(&frame);
        bench_case_free(&made);
        testee_close(ref);
    }
}

static void bf16_inputs_are_bf16_numbers(void **state)
{
    (void)state;
    slm_config config = small();
    bench_case made;
    uint16_t narrow[40];
    float wide[40];

    config.dtype = SLM_BF16;
    assert_true(bench_case_make(&made, SLM_OP_layer_forward, &config, 5, 0, 0));
    for (size_t i = 0; i < made.test.n_in; i++) {
        const size_t n = made.in[i].count < 40 ? made.in[i].count : 40;

        if (slm_field_dtype(made.in[i].field, &config) != SLM_BF16) continue;
        vec_fill(&made.in[i], SLM_BF16, 0, n, narrow);
        vec_fill(&made.in[i], SLM_F32, 0, n, wide);
        for (size_t j = 0; j < n; j++) {
            const uint32_t bits = (uint32_t)narrow[j] << 16;

            assert_memory_equal(&bits, &wide[j], 4);
        }
    }
    bench_case_free(&made);
}

static void many_threads_make_what_one_makes(void **state)
{
    (void)state;
    enum { MANY = (1 << 24) + 3, SOME = 1000 };
    slm_config config = small();
    bench_case made;
    uint16_t *all = malloc(MANY * sizeof *all), some[SOME];

    config.d_model = 1 << 22;
    assert_non_null(all);
    assert_true(bench_case_make(&made, SLM_OP_layer_forward, &config, 5, 0, 0));

    const vec_tensor *x = vec_find(made.in, made.test.n_in, "x");

    vec_fill(x, SLM_BF16, 1, MANY, all);
    for (size_t at = 0; at + SOME <= MANY; at += SOME * 97) {
        vec_fill(x, SLM_BF16, 1 + at, SOME, some);
        assert_memory_equal(all + at, some, sizeof some);
    }
    vec_fill(x, SLM_BF16, 1 + MANY - SOME, SOME, some);
    assert_memory_equal(all + MANY - SOME, some, sizeof some);
    bench_case_free(&made);
    free(all);
}

/* So many weights that a frame makes those of the chosen experts alone. */
static void large_bf16_weights_lie_where_their_expert_is(void **state)
{
    (void)state;
    slm_config config = small();
    const frame_options options = {.arena_fd = -1};
    uint16_t want[64];
    size_t filled = 0;
    bench_case made;
    call_frame frame;
    char why[256];

    config.dtype = SLM_BF16;
    config.n_experts = 4200;
    config.top_k = 2;
    config.d_latent = config.d_expert = 128;
    assert_true(bench_case_make(&made, SLM_OP_layer_forward, &config, 1, 0, 0));
    assert_true(frame_build_as(&frame, &made.test, &options, why));

    const slm_tensor *w = frame_tensor(&frame, "w_gate");
    const vec_tensor *source = vec_find(made.in, made.test.n_in, "w_gate");

    assert_true(slm_tensor_count(w) > FRAME_SPARSE);
    for (size_t e = 0; e < config.n_experts; e++) {
        const uint16_t *slice = (const uint16_t *)w->data + e * 128 * 128;

        if (slice[0] == 0 && slice[1] == 0) continue;
        vec_fill(source, SLM_BF16, e * 128 * 128, 64, want);
        assert_memory_equal(slice, want, sizeof want);
        filled++;
    }
    assert_int_equal(filled, 2);
    frame_free(&frame);
    bench_case_free(&made);
}

static void different_experts_are_counted_once(void **state)
{
    (void)state;
    const int32_t ids[] = {3, 1, 3, 5, 1};
    unsigned char seen[6] = {0, 0, 1, 0, 0, 0};

    assert_int_equal(bench_count_experts(ids, 5, seen, 6), 3);
    assert_memory_equal(seen, ((unsigned char[]){0, 1, 1, 1, 0, 1}), 6);
}

/* x[t] of a frame is row t of the batch; what is cut keeps first, middle and last. */
static void a_cut_keeps_rows_of_the_whole_batch(void **state)
{
    (void)state;
    const slm_config config = small();
    bench_case made;
    call_frame frame;
    char why[256];
    const char *changed;
    float rows[9][8];

    assert_true(bench_case_make(&made, SLM_OP_layer_forward, &config, 9, 0, 0));
    assert_true(frame_build(&frame, &made.test, false, 0, -1, why));
    memcpy(rows, frame_tensor(&frame, "x")->data, sizeof rows);
    bench_cut(&frame, 3);
    assert_int_equal(frame.call->n_tokens, 3);
    assert_int_equal(frame_tensor(&frame, "x")->shape[0], 3);
    assert_int_equal(frame_tensor(&frame, "y")->shape[0], 3);
    assert_int_equal(frame_tensor(&frame, "w_lift")->shape[0], 8);
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal((const float *)frame_tensor(&frame, "x")->data + 8 * i,
                            rows[4 * i], sizeof rows[0]);
    assert_true(frame_inputs_intact(&frame, &changed));
    frame_free(&frame);
    bench_case_free(&made);
}

static void a_sample_is_of_the_timed_batch_where_rows_stand_alone(void **state)
{
    (void)state;
    bench_sample sample = bench_sample_of(SLM_OP_layer_forward, 4096, 4);

    assert_int_equal(sample.n_tokens, 4096);
    assert_int_equal(sample.judged, 4);
    sample = bench_sample_of(SLM_OP_layer_forward, 1, 4);
    assert_int_equal(sample.judged, 1);
    sample = bench_sample_of(SLM_OP_layer_backward, 4096, 4);
    assert_int_equal(sample.n_tokens, BENCH_WHOLE);
    assert_int_equal(sample.judged, BENCH_WHOLE);
}

/* Right in every row but the last. */
static slm_status wrong_in_the_end(slm_handle *handle, const slm_situ_glu_args *args,
                                   slm_error *error)
{
    const slm_status status = slm_ref_backend()->ops->situ_glu(handle, args, error);
    const slm_tensor last = slm_tensor_at(&args->h, args->call.n_tokens - 1);

    if (status == SLM_OK) *(float *)last.data += 1;
    return status;
}

static void a_mistake_at_the_end_of_the_batch_is_seen(void **state)
{
    (void)state;
    const slm_config config = small();
    const bench_sample sample = bench_sample_of(SLM_OP_situ_glu, 100, 3);
    slm_backend table = *slm_ref_backend();
    slm_ops ops = *table.ops;
    slm_testee *right, *wrong;
    judge_verdict verdict;

    table.name = "wrong-in-the-end";
    table.ops = &ops;
    right = testee_open_table(&table, true);
    ops.situ_glu = wrong_in_the_end;
    wrong = testee_open_table(&table, true);
    bench_judge(right, SLM_OP_situ_glu, &config, &sample, &verdict);
    assert_int_equal(verdict.state, JUDGE_PASS);
    bench_judge(wrong, SLM_OP_situ_glu, &config, &sample, &verdict);
    assert_int_equal(verdict.state, JUDGE_FAIL);
    assert_string_equal(verdict.place, "h[2,0]");
    testee_close(wrong);
    testee_close(right);
}

static void what_is_not_offered_is_skipped(void **state)
{
    (void)state;
    const slm_config config = small();
    const bench_sample sample = bench_sample_of(SLM_OP_situ_glu, 4, 4);
    slm_backend table = *slm_ref_backend();
    slm_ops ops = *table.ops;
    slm_testee *testee;
    judge_verdict verdict;

    ops.situ_glu = NULL;
    table.ops = &ops;
    testee = testee_open_table(&table, true);
    bench_judge(testee, SLM_OP_situ_glu, &config, &sample, &verdict);
    assert_int_equal(verdict.state, JUDGE_SKIP);
    assert_non_null(strstr(verdict.reason, "situ_glu"));
    testee_close(testee);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_follow_the_layer_and_inputs_the_place),
        cmocka_unit_test(every_operation_accepts_what_is_made),
        cmocka_unit_test(bf16_inputs_are_bf16_numbers),
        cmocka_unit_test(many_threads_make_what_one_makes),
        cmocka_unit_test(large_bf16_weights_lie_where_their_expert_is),
        cmocka_unit_test(different_experts_are_counted_once),
        cmocka_unit_test(a_cut_keeps_rows_of_the_whole_batch),
        cmocka_unit_test(a_sample_is_of_the_timed_batch_where_rows_stand_alone),
        cmocka_unit_test(a_mistake_at_the_end_of_the_batch_is_seen),
        cmocka_unit_test(what_is_not_offered_is_skipped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
