/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_frame.c - a case laid out in guarded memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "case.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Whether reading (or writing) this byte ends a process. */
static int faults(volatile unsigned char *at, int write)
{
    const pid_t child = fork();
    int status = 0;

    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        if (write)
            *at = 1;
        else
            (void)*at;
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) &&
           (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
}

static float u_values[] = {1, 2, 3, 4, 5, 6};
static float gamma_values[] = {0.5f, 1.5f, -2};

/* rmsnorm of two rows of three. */
static void begin_rmsnorm(made_case *made)
{
    case_begin(made, SLM_OP_rmsnorm, "paper");
    made->test.config.d_latent = 3;
    made->test.call.n_tokens = 2;
    case_in(made, "u", u_values);
    case_in(made, "gamma", gamma_values);
}

static void build(made_case *made, const frame_options *options)
{
    char why[256];

    assert_true(frame_build_as(&made->frame, &made->test, options, why));
}

static const frame_buffer *buffer_of(const made_case *made, const char *name)
{
    for (size_t i = 0; i < made->frame.n_buffers; i++) {
        const slm_field *field = made->frame.buffers[i].field;

        if (field ? strcmp(field->name, name) == 0 : name[0] == '\0')
            return &made->frame.buffers[i];
    }
    fail();
    return NULL;
}

static void one_element_past_the_end_faults_and_the_last_does_not(void **state)
{
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = -1});
    for (size_t i = 0; i < made.frame.n_buffers; i++) {
        const frame_buffer *buffer = &made.frame.buffers[i];
        unsigned char *data = buffer->tensor.data;

        assert_false(faults(data, 1));
        assert_false(faults(data + buffer->bytes - 1, 1));
        assert_true(faults(data + buffer->bytes, 0));
        assert_true(faults(data + buffer->bytes, 1));
    }
    case_free(&made);
}

static void one_byte_before_the_start_faults_where_it_was_asked_for(void **state)
{
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){
                     .arena_fd = -1, .inputs = FRAME_START, .outputs = FRAME_START});
    for (size_t i = 0; i < made.frame.n_buffers; i++) {
        unsigned char *data = made.frame.buffers[i].tensor.data;

        assert_false(faults(data, 1));
        assert_true(faults(data - 1, 0));
        assert_true(faults(data - 1, 1));
    }
    case_free(&made);
}

static void a_shifted_buffer_is_aligned_to_its_element_and_no_more(void **state)
{
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = -1, .outputs = FRAME_SHIFTED});
    assert_int_equal((uintptr_t)buffer_of(&made, "r")->tensor.data % 64, 4);
    assert_int_equal(
        ((uintptr_t)buffer_of(&made, "u")->tensor.data + sizeof u_values) % 64, 0);
    case_free(&made);
}

static void inputs_lie_where_the_arguments_say_with_their_values(void **state)
{
    const slm_rmsnorm_args *args;
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = -1});
    args = made.frame.args;
    assert_int_equal(args->call.struct_size, sizeof *args);
    assert_int_equal(args->call.n_tokens, 2);
    assert_memory_equal(args->u.data, u_values, sizeof u_values);
    assert_memory_equal(args->gamma.data, gamma_values, sizeof gamma_values);
    assert_int_equal(args->r.rank, 2);
    assert_int_equal(args->r.shape[0], 2);
    assert_int_equal(args->r.shape[1], 3);
    assert_int_equal(args->r.stride[0], 3);
    assert_ptr_equal(frame_tensor(&made.frame, "r"), &args->r);
    assert_null(frame_tensor(&made.frame, "w_lift"));
    case_free(&made);
}

static void an_optional_input_that_is_not_given_has_rank_0(void **state)
{
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    made.test.n_in = 1;
    build(&made, &(frame_options){.arena_fd = -1});
    assert_int_equal(frame_tensor(&made.frame, "gamma")->rank, 0);
    assert_int_equal(made.frame.n_buffers, 2);
    case_free(&made);
}

static void a_call_without_tokens_has_empty_tensors(void **state)
{
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_rmsnorm, "paper");
    made.test.config.d_latent = 3;
    case_in(&made, "u", u_values);
    build(&made, &(frame_options){.arena_fd = -1});
    assert_int_equal(frame_tensor(&made.frame, "r")->rank, 2);
    assert_int_equal(frame_tensor(&made.frame, "r")->shape[0], 0);
    assert_int_equal(buffer_of(&made, "r")->bytes, 0);
    assert_true(frame_untouched(&made.frame, "r"));
    assert_int_equal(frame_first_poison(&made.frame, "r"), 0);
    assert_true(faults(frame_tensor(&made.frame, "r")->data, 1));
    case_free(&made);
}

/* Outputs of every element type: select has i32 and f32, load_metrics i64 and f64. */
static void every_element_of_an_output_is_poison_until_it_is_written(void **state)
{
    static float score[] = {0.5f, 0.25f, 0.75f, 0.125f}, bias[] = {0, 0};
    static int32_t ids[] = {1, 0};
    made_case made;
    double smallest = 0;
    int64_t none = 0;

    (void)state;
    case_begin(&made, SLM_OP_select, "paper");
    made.test.config.n_experts = made.test.call.n_tokens = 2;
    made.test.config.top_k = 1;
    case_in(&made, "score", score);
    case_in(&made, "bias", bias);
    case_build(&made);
    assert_true(frame_untouched(&made.frame, "ids"));
    assert_true(frame_untouched(&made.frame, "weight"));
    assert_int_equal(frame_first_poison(&made.frame, "weight"), 0);
    case_f32(&made, "weight")[0] = 1;
    assert_false(frame_untouched(&made.frame, "weight"));
    assert_int_equal(frame_first_poison(&made.frame, "weight"), 1);
    case_f32(&made, "weight")[1] = 1;
    assert_int_equal(frame_first_poison(&made.frame, "weight"), 2);
    case_i32(&made, "ids")[1] = 0;
    assert_int_equal(frame_first_poison(&made.frame, "ids"), 0);
    assert_false(frame_untouched(&made.frame, "ids"));
    frame_poison(&made.frame, false);
    assert_true(frame_untouched(&made.frame, "ids"));
    case_free(&made);

    case_begin(&made, SLM_OP_load_metrics, "paper");
    made.test.config.n_experts = made.test.call.n_tokens = 2;
    made.test.config.top_k = 1;
    case_in(&made, "ids", ids);
    case_build(&made);
    assert_true(frame_untouched(&made.frame, "load"));
    assert_true(frame_untouched(&made.frame, "metric"));
    memcpy(&case_i64(&made, "load")[0], &none, sizeof none);
    memcpy(&case_f64(&made, "metric")[0], &smallest, sizeof smallest);
    assert_int_equal(frame_first_poison(&made.frame, "load"), 1);
    assert_int_equal(frame_first_poison(&made.frame, "metric"), 1);
    case_free(&made);
}

static void bfloat16_inputs_are_upper_halves_and_outputs_are_poison(void **state)
{
    static const uint16_t want[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    made.test.config.dtype = SLM_BF16;
    build(&made, &(frame_options){.arena_fd = -1});
    assert_int_equal(buffer_of(&made, "u")->bytes, sizeof want);
    assert_memory_equal(frame_tensor(&made.frame, "u")->data, want, sizeof want);
    assert_true(frame_untouched(&made.frame, "r"));
    ((uint16_t *)frame_tensor(&made.frame, "r")->data)[5] = 0;
    assert_false(frame_untouched(&made.frame, "r"));
    assert_int_equal(frame_first_poison(&made.frame, "r"), 0);
    case_free(&made);
}

static void poison_is_not_a_number_and_other_poison_is(void **state)
{
    made_case made;
    float value;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = -1});
    value = case_f32(&made, "r")[0];
    assert_true(value != value);
    frame_poison(&made.frame, true);
    value = case_f32(&made, "r")[0];
    assert_true(value > 1 && value < 2);
    assert_memory_equal(frame_tensor(&made.frame, "u")->data, u_values,
                        sizeof u_values);
    case_free(&made);
}

static void an_input_that_changed_is_named(void **state)
{
    const char *field = NULL;
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = -1});
    case_f32(&made, "r")[0] = 1;
    assert_true(frame_inputs_intact(&made.frame, &field));
    ((unsigned char *)frame_tensor(&made.frame, "gamma")->data)[11] ^= 1;
    assert_false(frame_inputs_intact(&made.frame, &field));
    assert_string_equal(field, "gamma");
    ((unsigned char *)frame_tensor(&made.frame, "gamma")->data)[11] ^= 1;
    assert_true(frame_inputs_intact(&made.frame, &field));
    case_free(&made);
}

static void the_workspace_is_aligned_and_exact(void **state)
{
    made_case made;
    unsigned char *workspace;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = -1, .workspace_size = 100});
    workspace = made.frame.call->workspace;
    assert_int_equal(made.frame.call->workspace_size, 100);
    assert_int_equal((uintptr_t)workspace % 64, 0);
    assert_true(faults(workspace + 128, 1));
    workspace[99] = 0;
    assert_true(frame_workspace_intact(&made.frame));
    workspace[100] = 0;
    assert_false(frame_workspace_intact(&made.frame));
    case_free(&made);
}

static void an_output_over_an_input_shares_its_memory_and_leaves_it_whole(void **state)
{
    const slm_op_info *info = slm_op_describe(SLM_OP_rmsnorm);
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    made.test.alias_with = &info->fields[0];
    made.test.alias_output = &info->fields[2];
    build(&made, &(frame_options){.arena_fd = -1});
    assert_ptr_equal(frame_tensor(&made.frame, "r")->data,
                     frame_tensor(&made.frame, "u")->data);
    assert_int_equal(buffer_of(&made, "r")->offset, buffer_of(&made, "u")->offset);
    assert_memory_equal(frame_tensor(&made.frame, "u")->data, u_values,
                        sizeof u_values);
    assert_true(frame_untouched(&made.frame, "r"));
    case_free(&made);
}

/* Reading 48 bytes where the input has 12 would end the process. */
static void an_output_larger_than_the_input_under_it_is_not_read(void **state)
{
    const slm_op_info *info = slm_op_describe(SLM_OP_rmsnorm);
    char first[65], second[65];
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    made.test.alias_with = &info->fields[1];
    made.test.alias_output = &info->fields[2];
    build(&made, &(frame_options){.arena_fd = -1, .golden = true});
    frame_digest(&made.frame, first);
    *(float *)frame_tensor(&made.frame, "gamma")->data = 9;
    frame_digest(&made.frame, second);
    assert_string_equal(first, second);
    assert_true(frame_untouched(&made.frame, "r"));
    case_free(&made);
}

static void another_mapping_of_the_descriptor_has_the_bytes_at_the_offsets(void **state)
{
    const int arena = memfd_create("arena", MFD_CLOEXEC);
    made_case made;
    unsigned char *other;

    (void)state;
    assert_true(arena >= 0);
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = arena});
    other = mmap(NULL, made.frame.arena_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                 made.frame.arena_fd, 0);
    assert_ptr_not_equal(other, MAP_FAILED);
    assert_memory_equal(other + buffer_of(&made, "u")->offset, u_values,
                        sizeof u_values);
    memset(other + buffer_of(&made, "r")->offset, 0, buffer_of(&made, "r")->bytes);
    assert_true(case_f32(&made, "r")[5] == 0);
    for (size_t i = 0; i < made.frame.n_buffers; i++) {
        const frame_buffer *buffer = &made.frame.buffers[i];

        assert_true(buffer->offset >= buffer->span_offset);
        assert_true(buffer->offset + buffer->bytes <=
                    buffer->span_offset + buffer->span);
        assert_int_equal(buffer->span_offset % 4096, 0);
    }
    munmap(other, made.frame.arena_size);
    case_free(&made);
    close(arena);
}

static void an_arena_of_the_callers_is_emptied_and_used_again(void **state)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);
    struct stat about;

    (void)state;
    for (int i = 0; i < 2; i++) {
        made_case made;

        begin_rmsnorm(&made);
        build(&made, &(frame_options){.arena_fd = fd});
        assert_int_equal(fstat(fd, &about), 0);
        assert_int_equal(about.st_size, made.frame.arena_size);
        assert_memory_equal(frame_tensor(&made.frame, "u")->data, u_values,
                            sizeof u_values);
        frame_free(&made.frame);
        assert_int_equal(fstat(fd, &about), 0);
        assert_int_equal(about.st_size, 0);
    }
    close(fd);
}

static void taps_of_a_mask_are_absent_and_come_back(void **state)
{
    static const char *const taps[] = {"cutoff", "logit", "score"};
    static float zeros[1];
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_route, "paper");
    made.test.config.d_model = made.test.config.n_experts = made.test.config.top_k = 1;
    made.test.call.n_tokens = 1;
    case_in(&made, "x", zeros);
    case_in(&made, "w_router", zeros);
    case_in(&made, "bias", zeros);
    build(&made, &(frame_options){.arena_fd = -1});
    for (unsigned mask = 8; mask-- > 0;) {
        assert_int_equal(frame_hide_taps(&made.frame, mask), 3);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(!frame_tensor(&made.frame, taps[i])->rank, mask >> i & 1);
    }
    frame_free(&made.frame);
}

static void a_golden_frame_has_real_outputs_in_binary64(void **state)
{
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = -1, .golden = true});
    assert_int_equal(frame_tensor(&made.frame, "r")->dtype, SLM_F64);
    assert_int_equal(frame_tensor(&made.frame, "u")->dtype, SLM_F32);
    assert_int_equal(buffer_of(&made, "r")->bytes, 48);
    case_free(&made);
}

static void a_digest_is_of_every_bit_of_the_outputs_and_of_nothing_else(void **state)
{
    char first[65], second[65];
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    build(&made, &(frame_options){.arena_fd = -1});
    memset(case_f32(&made, "r"), 0, 24);
    frame_digest(&made.frame, first);
    case_f32(&made, "r")[5] = -0.0f;
    frame_digest(&made.frame, second);
    assert_string_not_equal(first, second);
    case_f32(&made, "r")[5] = 0;
    *(float *)frame_tensor(&made.frame, "u")->data = 9;
    frame_digest(&made.frame, second);
    assert_string_equal(first, second);
    case_free(&made);
}

static void a_case_that_no_memory_holds_is_refused_in_words(void **state)
{
    char why[256] = "";
    made_case made;

    (void)state;
    begin_rmsnorm(&made);
    made.in[0].shape[0] = (size_t)1 << 50;
    assert_false(
        frame_build_as(&made.frame, &made.test, &(frame_options){.arena_fd = -1}, why));
    assert_non_null(strstr(why, "not enough memory"));
}

/* Whether to refuse such a configuration is for the contract, which sees no tensor. */
static void an_output_of_no_possible_size_is_absent(void **state)
{
    made_case made;

    (void)state;
    case_begin(&made, SLM_OP_layer_forward, "paper");
    made.test.config.d_model = made.test.config.d_latent = 1;
    made.test.config.n_experts = made.test.config.top_k = 1;
    made.test.config.d_expert = made.test.config.d_shared = 2;
    made.test.config.n_shared = 1;
    made.test.call.n_tokens = 1;
    case_build(&made);
    assert_int_equal(frame_tensor(&made.frame, "hs")->shape[1], 2);
    case_free(&made);
    made.test.config.n_shared = SIZE_MAX;
    case_build(&made);
    assert_int_equal(frame_tensor(&made.frame, "hs")->rank, 0);
    assert_int_equal(frame_tensor(&made.frame, "h")->rank, 3);
    case_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_element_past_the_end_faults_and_the_last_does_not),
        cmocka_unit_test(one_byte_before_the_start_faults_where_it_was_asked_for),
        cmocka_unit_test(a_shifted_buffer_is_aligned_to_its_element_and_no_more),
        cmocka_unit_test(inputs_lie_where_the_arguments_say_with_their_values),
        cmocka_unit_test(an_optional_input_that_is_not_given_has_rank_0),
        cmocka_unit_test(a_call_without_tokens_has_empty_tensors),
        cmocka_unit_test(every_element_of_an_output_is_poison_until_it_is_written),
        cmocka_unit_test(bfloat16_inputs_are_upper_halves_and_outputs_are_poison),
        cmocka_unit_test(poison_is_not_a_number_and_other_poison_is),
        cmocka_unit_test(an_input_that_changed_is_named),
        cmocka_unit_test(the_workspace_is_aligned_and_exact),
        cmocka_unit_test(an_output_over_an_input_shares_its_memory_and_leaves_it_whole),
        cmocka_unit_test(an_output_larger_than_the_input_under_it_is_not_read),
        cmocka_unit_test(
            another_mapping_of_the_descriptor_has_the_bytes_at_the_offsets),
        cmocka_unit_test(an_arena_of_the_callers_is_emptied_and_used_again),
        cmocka_unit_test(taps_of_a_mask_are_absent_and_come_back),
        cmocka_unit_test(a_golden_frame_has_real_outputs_in_binary64),
        cmocka_unit_test(a_digest_is_of_every_bit_of_the_outputs_and_of_nothing_else),
        cmocka_unit_test(a_case_that_no_memory_holds_is_refused_in_words),
        cmocka_unit_test(an_output_of_no_possible_size_is_absent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
