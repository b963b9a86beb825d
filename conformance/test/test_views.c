/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_views.c - tensors with gaps, transposed, backwards; no taps. X2 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "case.h"

#include "../hygiene.h"
#include "../testee.h"

#include <ref.h>

#include <fenv.h>
#include <math.h>
#include <string.h>

enum { TOKENS = 3, WIDTH = 5 };

static float u_values[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static float gamma_values[] = {0.5f, 1.5f, -2, 4, 1};

/* rmsnorm of three rows of five, as views of that set. */
static void begin_with(made_case *made, unsigned set, float *u, float *gamma)
{
    char why[256];

    case_begin(made, SLM_OP_rmsnorm, "paper");
    made->test.config.d_latent = WIDTH;
    made->test.call.n_tokens = TOKENS;
    case_in(made, "u", u);
    case_in(made, "gamma", gamma);
    assert_true(frame_build_as(&made->frame, &made->test,
                               &(frame_options){.arena_fd = -1, .views = set}, why));
}

static void begin_views(made_case *made, unsigned set)
{
    begin_with(made, set, u_values, gamma_values);
}

static float *element(const slm_tensor *tensor, size_t i, size_t j)
{
    return (float *)tensor->data + (ptrdiff_t)i * tensor->stride[0] +
           (ptrdiff_t)j * tensor->stride[1];
}

static int is_packed(const slm_tensor *tensor)
{
    return tensor->stride[1] == 1 && tensor->stride[0] == WIDTH;
}

static void a_view_holds_what_the_packed_tensor_held(void **state)
{
    (void)state;
    for (unsigned set = 1; set <= FRAME_VIEW_ROWS; set++) {
        made_case made;
        const slm_tensor *u;

        begin_views(&made, set);
        assert_int_equal(frame_spread(&made.frame), 1);
        u = frame_tensor(&made.frame, "u");
        assert_false(is_packed(u));
        for (size_t i = 0; i < TOKENS; i++)
            for (size_t j = 0; j < WIDTH; j++)
                assert_memory_equal(element(u, i, j), &u_values[i * WIDTH + j], 4);
        assert_int_equal(
            slm_check(SLM_OP_rmsnorm, &made.frame.config, made.frame.args, NULL),
            SLM_OK);
        assert_null(frame_gather(&made.frame));
        assert_true(is_packed(frame_tensor(&made.frame, "u")));
        assert_memory_equal(frame_tensor(&made.frame, "u")->data, u_values,
                            sizeof u_values);
        case_free(&made);
    }
}

static void what_is_written_through_a_view_is_gathered(void **state)
{
    (void)state;
    for (unsigned set = 1; set <= FRAME_VIEW_ROWS; set++) {
        made_case made;
        const slm_tensor *r;

        begin_views(&made, set);
        assert_int_equal(frame_spread(&made.frame), 1);
        r = frame_tensor(&made.frame, "r");
        for (size_t i = 0; i < TOKENS; i++)
            for (size_t j = 0; j < WIDTH; j++)
                *element(r, i, j) = u_values[i * WIDTH + j];
        assert_null(frame_gather(&made.frame));
        assert_memory_equal(case_f32(&made, "r"), u_values, sizeof u_values);
        case_free(&made);
    }
}

/* u: each row one number, and the rows of one, both and neither; gamma: one number. */
static void what_repeats_itself_has_a_stride_of_0(void **state)
{
    static const struct {
        float row, column;
        ptrdiff_t stride[2];
    } cases[] = {
        {1, 0, {WIDTH, 0}}, {0, 1, {0, 1}}, {0, 0, {0, 0}}, {1, 1, {WIDTH, 1}}};
    static float same[] = {2, 2, 2, 2, 2};
    float u_given[TOKENS * WIDTH];

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        made_case made;
        const slm_tensor *u, *gamma;

        for (size_t i = 0; i < TOKENS * WIDTH; i++)
            u_given[i] = 1 + cases[c].row * (float)(i / WIDTH) +
                         cases[c].column * (float)(i % WIDTH);
        begin_with(&made, FRAME_VIEW_REPEATS, u_given, same);
        assert_int_equal(frame_spread(&made.frame), 1);
        u = frame_tensor(&made.frame, "u");
        gamma = frame_tensor(&made.frame, "gamma");
        assert_int_equal(u->stride[0], cases[c].stride[0]);
        assert_int_equal(u->stride[1], cases[c].stride[1]);
        assert_int_equal(gamma->stride[0], 0);
        assert_true(is_packed(frame_tensor(&made.frame, "r")));
        for (size_t i = 0; i < TOKENS * WIDTH; i++)
            assert_memory_equal(element(u, i / WIDTH, i % WIDTH), &u_given[i], 4);
        /* who takes it for a packed one reads no number */
        assert_true(isnan(((const float *)gamma->data)[1]));
        assert_int_equal(
            slm_check(SLM_OP_rmsnorm, &made.frame.config, made.frame.args, NULL),
            SLM_OK);
        assert_null(frame_gather(&made.frame));
        assert_memory_equal(frame_tensor(&made.frame, "u")->data, u_given,
                            sizeof u_given);
        assert_memory_equal(frame_tensor(&made.frame, "gamma")->data, same,
                            sizeof same);
        case_free(&made);
    }
    made_case made;

    begin_views(&made, FRAME_VIEW_REPEATS); /* nothing does */
    assert_int_equal(frame_spread(&made.frame), 0);
    case_free(&made);
}

/* The test is skipped where address space for them lacks. */
static void begin_far(made_case *made)
{
    char why[256];

    begin_views(made, 0);
    frame_free(&made->frame);
    if (!frame_build_as(&made->frame, &made->test,
                        &(frame_options){.arena_fd = -1, .views = FRAME_VIEW_FAR}, why))
        skip();
    assert_int_equal(frame_spread(&made->frame), 1);
}

static void rows_lie_further_apart_than_32_bits_count(void **state)
{
    const ptrdiff_t cut = WIDTH + 3;
    made_case made;
    const slm_tensor *u, *r;

    (void)state;
    begin_far(&made);
    u = frame_tensor(&made.frame, "u");
    r = frame_tensor(&made.frame, "r");
    assert_int_equal(u->stride[0], ((ptrdiff_t)1 << 32) + cut);
    assert_int_equal(u->stride[1], 1);
    for (size_t i = 0; i < TOKENS; i++)
        for (size_t j = 0; j < WIDTH; j++) {
            assert_memory_equal(element(u, i, j), &u_values[i * WIDTH + j], 4);
            *element(r, i, j) = -u_values[i * WIDTH + j];
            /* what 32 bits of an offset lead to */
            if (i > 0)
                assert_true(
                    isnan(((float *)u->data)[(ptrdiff_t)i * cut + (ptrdiff_t)j]));
        }
    assert_int_equal(
        slm_check(SLM_OP_rmsnorm, &made.frame.config, made.frame.args, NULL), SLM_OK);
    assert_null(frame_gather(&made.frame));
    assert_true(is_packed(frame_tensor(&made.frame, "u")));
    assert_memory_equal(frame_tensor(&made.frame, "u")->data, u_values,
                        sizeof u_values);
    for (size_t i = 0; i < TOKENS * WIDTH; i++)
        assert_true(case_f32(&made, "r")[i] == -u_values[i]);
    case_free(&made);

    begin_far(&made);
    r = frame_tensor(&made.frame, "r");
    ((float *)r->data)[cut * (TOKENS - 1)] = 1;
    assert_string_equal(frame_gather(&made.frame), "r");
    case_free(&made);
}

static void a_write_between_the_elements_names_the_tensor(void **state)
{
    made_case made;

    (void)state;
    begin_views(&made, FRAME_VIEW_ROWS);
    assert_int_equal(frame_spread(&made.frame), 1);
    *element(frame_tensor(&made.frame, "r"), 1, WIDTH) = 0.0f;
    assert_string_equal(frame_gather(&made.frame), "r");
    case_free(&made);
}

/* rmsnorm that reads rows as if they were packed, exact otherwise. */
static slm_status reads_packed(slm_handle *handle, const slm_rmsnorm_args *args,
                               slm_error *error)
{
    slm_rmsnorm_args wrong = *args;

    wrong.u.stride[0] = (ptrdiff_t)wrong.u.shape[1];
    return slm_ref_backend()->ops->rmsnorm(handle, &wrong, error);
}

/* rmsnorm that takes 32 bits of a row's offset, exact otherwise. */
static slm_status cuts_offsets(slm_handle *handle, const slm_rmsnorm_args *args,
                               slm_error *error)
{
    slm_rmsnorm_args wrong = *args;

    wrong.u.stride[0] = (int32_t)(uint32_t)wrong.u.stride[0];
    return slm_ref_backend()->ops->rmsnorm(handle, &wrong, error);
}

/* rmsnorm that makes packed copies, gaps and all. */
static slm_status copies_the_gaps(slm_handle *handle, const slm_rmsnorm_args *args,
                                  slm_error *error)
{
    if (args->u.stride[0] > INT32_MAX)
        return slm_fail(error, SLM_ERR_MEMORY, "rmsnorm", "u", 0, "memory for a copy");
    return slm_ref_backend()->ops->rmsnorm(handle, args, error);
}

/* The same, for any gap. */
static slm_status copies_no_gap(slm_handle *handle, const slm_rmsnorm_args *args,
                                slm_error *error)
{
    if (args->u.stride[0] != (ptrdiff_t)args->u.shape[1])
        return slm_fail(error, SLM_ERR_MEMORY, "rmsnorm", "u", 0, "memory for a copy");
    return slm_ref_backend()->ops->rmsnorm(handle, args, error);
}

/* select that works only where the cutoff is asked for. */
static slm_status needs_the_cutoff(slm_handle *handle, const slm_select_args *args,
                                   slm_error *error)
{
    if (args->cutoff.rank == 0)
        return slm_fail(error, SLM_ERR_UNSUPPORTED, "select", "cutoff", 0, "a cutoff");
    return slm_ref_backend()->ops->select(handle, args, error);
}

static float score_values[] = {0.5f, 0.25f};
static float bias_values[] = {0, 0};

/* select of one of two experts. */
static void begin_select(made_case *made)
{
    case_begin(made, SLM_OP_select, "paper");
    made->test.config.n_experts = 2;
    made->test.config.top_k = 1;
    made->test.call.n_tokens = 1;
    case_in(made, "score", score_values);
    case_in(made, "bias", bias_values);
    case_build(made);
}

static size_t asks_for_100_bytes(slm_handle *handle, slm_op op, const slm_call *call)
{
    (void)handle, (void)op, (void)call;
    return 100;
}

/* What the checks of memory and reuse say to a table that is ref's but for `ops` and a
 * workspace of 100 bytes. */
static judge_state judged(made_case *made, uint32_t flags, const slm_ops *ops,
                          const char **clause)
{
    static judge_verdict verdict;
    slm_backend table = *slm_ref_backend();
    slm_testee *testee;
    testee_reply reply;
    call_frame frame;
    char digest[65];

    table.name = "another";
    table.flags = flags;
    table.ops = ops;
    table.workspace = asks_for_100_bytes;
    testee = testee_open_table(&table, true);
    assert_non_null(testee);
    assert_true(testee_frame(testee, &made->test, NULL, &frame, reply.why));
    testee_run(testee, &frame, &reply);
    assert_int_equal(reply.status, SLM_OK);
    frame_digest(&frame, digest);
    frame_free(&frame);
    memset(&verdict, 0, sizeof verdict);
    verdict.state = JUDGE_PASS;
    hygiene_check(testee, &made->test, digest, &verdict);
    testee_close(testee);
    case_free(made);
    *clause = verdict.clause;
    return verdict.state;
}

static void who_claims_strides_and_reads_packed_rows_fails(void **state)
{
    slm_ops ops = *slm_ref_backend()->ops;
    const char *clause;
    made_case made;

    (void)state;
    begin_views(&made, 0);
    assert_int_equal(judged(&made, SLM_STRIDED, &ops, &clause), JUDGE_PASS);
    ops.rmsnorm = reads_packed;
    begin_views(&made, 0);
    assert_int_equal(judged(&made, SLM_STRIDED, &ops, &clause), JUDGE_FAIL);
    assert_string_equal(clause, "L2");
}

static void who_cuts_offsets_to_32_bits_fails(void **state)
{
    slm_ops ops = *slm_ref_backend()->ops;
    const char *clause;
    made_case made;

    (void)state;
    begin_far(&made);
    assert_null(frame_gather(&made.frame));
    ops.rmsnorm = cuts_offsets;
    assert_int_equal(judged(&made, SLM_STRIDED, &ops, &clause), JUDGE_FAIL);
}

static void memory_for_rows_far_apart_may_lack(void **state)
{
    slm_ops ops = *slm_ref_backend()->ops;
    const char *clause;
    made_case made;

    (void)state;
    ops.rmsnorm = copies_the_gaps;
    begin_views(&made, 0);
    assert_int_equal(judged(&made, SLM_STRIDED, &ops, &clause), JUDGE_PASS);
    ops.rmsnorm = copies_no_gap;
    begin_views(&made, 0);
    assert_int_equal(judged(&made, SLM_STRIDED, &ops, &clause), JUDGE_FAIL);
}

static void who_does_not_claim_them_gets_packed_tensors(void **state)
{
    slm_ops ops = *slm_ref_backend()->ops;
    const char *clause;
    made_case made;

    (void)state;
    ops.rmsnorm = reads_packed;
    begin_views(&made, 0);
    assert_int_equal(judged(&made, 0, &ops, &clause), JUDGE_PASS);
}

static void who_cannot_do_without_its_taps_fails(void **state)
{
    slm_ops ops = *slm_ref_backend()->ops;
    const char *clause;
    made_case made;

    (void)state;
    begin_select(&made);
    assert_int_equal(judged(&made, 0, &ops, &clause), JUDGE_PASS);
    ops.select = needs_the_cutoff;
    begin_select(&made);
    assert_int_equal(judged(&made, 0, &ops, &clause), JUDGE_FAIL);
}

/* rmsnorm that is right, and writes into a gap where rows have one. */
static slm_status writes_into_gaps(slm_handle *handle, const slm_rmsnorm_args *args,
                                   slm_error *error)
{
    const slm_tensor *r = &args->r;

    if (r->stride[1] == 1 && r->stride[0] > (ptrdiff_t)r->shape[1])
        *element(r, 0, r->shape[1]) = 1;
    return slm_ref_backend()->ops->rmsnorm(handle, args, error);
}

static void who_writes_between_the_elements_fails(void **state)
{
    slm_ops ops = *slm_ref_backend()->ops;
    const char *clause;
    made_case made;

    (void)state;
    ops.rmsnorm = writes_into_gaps;
    begin_views(&made, 0);
    assert_int_equal(judged(&made, 0, &ops, &clause), JUDGE_PASS);
    begin_views(&made, 0);
    assert_int_equal(judged(&made, SLM_STRIDED, &ops, &clause), JUDGE_FAIL);
    assert_string_equal(clause, "X2");
}

/* select that is right, and fills the workspace that it was given. */
static slm_status fills_workspace(slm_handle *handle, const slm_select_args *args,
                                  slm_error *error)
{
    memset(args->call.workspace, 0, args->call.workspace_size);
    return slm_ref_backend()->ops->select(handle, args, error);
}

/* The same, and one byte more. */
static slm_status overruns_workspace(slm_handle *handle, const slm_select_args *args,
                                     slm_error *error)
{
    ((unsigned char *)args->call.workspace)[args->call.workspace_size] = 0;
    return fills_workspace(handle, args, error);
}

static void who_writes_behind_its_workspace_fails(void **state)
{
    slm_ops ops = *slm_ref_backend()->ops;
    const char *clause;
    made_case made;

    (void)state;
    ops.select = fills_workspace;
    begin_select(&made);
    assert_int_equal(judged(&made, 0, &ops, &clause), JUDGE_PASS);
    ops.select = overruns_workspace;
    begin_select(&made);
    assert_int_equal(judged(&made, 0, &ops, &clause), JUDGE_FAIL);
    assert_string_equal(clause, "A3");
}

/* select that changes the rounding mode where no cutoff is asked for. */
static slm_status rounds_up_without_taps(slm_handle *handle,
                                         const slm_select_args *args, slm_error *error)
{
    const slm_status status = slm_ref_backend()->ops->select(handle, args, error);

    if (args->cutoff.rank == 0) fesetround(FE_UPWARD);
    return status;
}

/* rmsnorm that changes it after the second row alone. */
static slm_status rounds_up_after_a_row(slm_handle *handle,
                                        const slm_rmsnorm_args *args, slm_error *error)
{
    const slm_status status = slm_ref_backend()->ops->rmsnorm(handle, args, error);

    if (args->call.n_tokens == 1 && ((const float *)args->u.data)[0] == u_values[WIDTH])
        fesetround(FE_UPWARD);
    return status;
}

static void who_breaks_a_rule_in_a_repetition_alone_fails(void **state)
{
    slm_ops ops = *slm_ref_backend()->ops;
    const char *clause;
    made_case made;

    (void)state;
    ops.select = rounds_up_without_taps;
    begin_select(&made);
    assert_int_equal(judged(&made, 0, &ops, &clause), JUDGE_FAIL);
    assert_string_equal(clause, "X2");
    assert_int_equal(fegetround(), FE_TONEAREST);
    ops.rmsnorm = rounds_up_after_a_row;
    begin_views(&made, 0);
    assert_int_equal(judged(&made, 0, &ops, &clause), JUDGE_PASS);
    begin_views(&made, 0);
    assert_int_equal(judged(&made, SLM_BATCH_INVARIANT, &ops, &clause), JUDGE_FAIL);
    assert_string_equal(clause, "A2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_view_holds_what_the_packed_tensor_held),
        cmocka_unit_test(what_is_written_through_a_view_is_gathered),
        cmocka_unit_test(what_repeats_itself_has_a_stride_of_0),
        cmocka_unit_test(rows_lie_further_apart_than_32_bits_count),
        cmocka_unit_test(a_write_between_the_elements_names_the_tensor),
        cmocka_unit_test(who_claims_strides_and_reads_packed_rows_fails),
        cmocka_unit_test(who_cuts_offsets_to_32_bits_fails),
        cmocka_unit_test(memory_for_rows_far_apart_may_lack),
        cmocka_unit_test(who_does_not_claim_them_gets_packed_tensors),
        cmocka_unit_test(who_cannot_do_without_its_taps_fails),
        cmocka_unit_test(who_writes_between_the_elements_fails),
        cmocka_unit_test(who_writes_behind_its_workspace_fails),
        cmocka_unit_test(who_breaks_a_rule_in_a_repetition_alone_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
