/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_contract.c - SHAPE at the door, from both sides.          X1 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <slm/backend.h>

#include "lawful.h"

/* Linear experts have no inner width, relu no backward. */
static int has_no_form(slm_op op, slm_expert_kind expert)
{
    if (op == SLM_OP_dense_ffn || op == SLM_OP_dense_ffn_backward)
        if (expert == SLM_EXPERT_LINEAR) return 1;
    return (op == SLM_OP_dense_ffn_backward || op == SLM_OP_layer_backward) &&
           expert == SLM_EXPERT_RELU;
}

static void a_lawful_call_passes_for_every_operation_expert_norm_and_dtype(void **state)
{
    (void)state;
    for (slm_op op = (slm_op)0; op < SLM_OP_COUNT; op = (slm_op)(op + 1)) {
        for (int way = 0; way < 4 * 2 * 2; way++) {
            slm_config config = lawful_config();
            lawful call;

            config.expert = (slm_expert_kind)(way % 4);
            config.norm = (slm_norm)(way / 4 % 2);
            config.dtype = (slm_dtype)(way / 8);
            lawful_open(&call, op, &config, 5);
            if (has_no_form(op, config.expert))
                lawful_expect(&call, SLM_ERR_DOMAIN, "expert", 0);
            else
                lawful_passes(&call);
            lawful_close(&call);
        }
    }
}

static void
every_required_field_must_be_present_and_every_optional_may_be_absent(void **state)
{
    (void)state;
    for (slm_op op = (slm_op)0; op < SLM_OP_COUNT; op = (slm_op)(op + 1)) {
        const slm_config config = lawful_config();
        lawful call;

        lawful_open(&call, op, &config, 5);
        for (size_t i = 0; i < call.info->n_fields; i++) {
            const slm_field *field = &call.info->fields[i];
            const slm_tensor kept = *lawful_at(&call, i);
            const int optional =
                field->role == SLM_ROLE_OPTIONAL || field->role == SLM_ROLE_TAP;

            if (!kept.rank) continue;
            lawful_at(&call, i)->rank = 0;
            if (optional && op != SLM_OP_select)
                lawful_passes(&call);
            else if (!optional)
                lawful_expect(&call, SLM_ERR_SHAPE, field->name, 0);
            *lawful_at(&call, i) = kept;
        }
        lawful_passes(&call);
        lawful_close(&call);
    }
}

static void a_wrong_rank_size_dtype_space_or_address_is_a_shape_error(void **state)
{
    (void)state;
    for (slm_op op = (slm_op)0; op < SLM_OP_COUNT; op = (slm_op)(op + 1)) {
        const slm_config config = lawful_config();
        lawful call;

        lawful_open(&call, op, &config, 5);
        for (size_t i = 0; i < call.info->n_fields; i++) {
            const char *name = call.info->fields[i].name;
            slm_tensor *tensor = lawful_at(&call, i);
            const slm_tensor kept = *tensor;

            if (!kept.rank) continue;
            for (uint32_t dim = 0; dim < kept.rank; dim++) {
                tensor->shape[dim] = kept.shape[dim] + 1;
                lawful_expect(&call, SLM_ERR_SHAPE, name, 0);
                tensor->shape[dim] = kept.shape[dim] - 1;
                lawful_expect(&call, SLM_ERR_SHAPE, name, 0);
                *tensor = kept;
            }
            tensor->rank = kept.rank + 1;
            lawful_expect(&call, SLM_ERR_SHAPE, name, 0);
            tensor->rank = UINT32_MAX;
            lawful_expect(&call, SLM_ERR_SHAPE, name, 0);
            *tensor = kept;
            for (int type = 0; type <= SLM_DTYPE_COUNT; type++) {
                tensor->dtype = (slm_dtype)type;
                if (tensor->dtype != kept.dtype)
                    lawful_expect(&call, SLM_ERR_SHAPE, name, 0);
            }
            *tensor = kept;
            tensor->space = (slm_space)2;
            lawful_expect(&call, SLM_ERR_SHAPE, name, 0);
            *tensor = kept;
            tensor->data = NULL;
            lawful_expect(&call, SLM_ERR_SHAPE, name, 0);
            tensor->data = (char *)kept.data + 1;
            lawful_expect(&call, SLM_ERR_SHAPE, name, 0);
            *tensor = kept;
        }
        lawful_passes(&call);
        lawful_close(&call);
    }
}

static void a_shape_error_names_the_sizes_it_was_derived_from(void **state)
{
    const slm_config config = lawful_config();
    lawful call;
    slm_error error;

    (void)state;
    lawful_open(&call, SLM_OP_select, &config, 5);
    call.args.select.score.shape[1] = 3;
    assert_int_equal(lawful_check(&call, &error), SLM_ERR_SHAPE);
    assert_string_equal(error.expected,
                        "[5, 4] for n_tokens 5, n_experts 4; got [5, 3]");
    call.args.select.score.rank = 0;
    assert_int_equal(lawful_check(&call, &error), SLM_ERR_SHAPE);
    assert_string_equal(error.expected, "exactly one of score and logit; got neither");
    lawful_close(&call);

    lawful_open(&call, SLM_OP_permute, &config, 5);
    call.args.permute.order.rank = 0;
    assert_int_equal(lawful_check(&call, &error), SLM_ERR_SHAPE);
    assert_string_equal(error.expected, "[10] for n_tokens 5, top_k 2; got none");
    call.args.permute.order.rank = 1;
    call.args.permute.ids.dtype = SLM_I64;
    assert_int_equal(lawful_check(&call, &error), SLM_ERR_SHAPE);
    assert_string_equal(error.expected, "elements of type i32; got i64");
    lawful_close(&call);

    lawful_open(&call, SLM_OP_load_metrics, &config, 5);
    call.args.load_metrics.metric.shape[0] = 3;
    assert_int_equal(lawful_check(&call, &error), SLM_ERR_SHAPE);
    assert_string_equal(error.expected, "[4]; got [3]");
    lawful_close(&call);
}

static void select_takes_exactly_one_of_score_and_logit(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_select, &config, 5);
    call.args.select.logit = call.args.select.score;
    lawful_expect(&call, SLM_ERR_SHAPE, "score", 0);
    call.args.select.score.rank = 0;
    lawful_passes(&call);
    call.args.select.logit.rank = 0;
    lawful_expect(&call, SLM_ERR_SHAPE, "score", 0);
    lawful_close(&call);
}

static void a_field_that_the_configuration_does_not_use_must_be_absent(void **state)
{
    slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_layer_forward, &config, 5);
    call.config.expert = SLM_EXPERT_LINEAR;
    lawful_expect(&call, SLM_ERR_SHAPE, "h", 0);
    call.args.layer_forward.h.rank = 0;
    lawful_expect(&call, SLM_ERR_SHAPE, "hs", 0);
    call.args.layer_forward.hs.rank = 0;
    lawful_passes(&call);
    lawful_close(&call);

    lawful_open(&call, SLM_OP_rmsnorm, &config, 5);
    call.config.norm = SLM_NORM_NONE;
    lawful_expect(&call, SLM_ERR_SHAPE, "gamma", 0);
    call.args.rmsnorm.gamma.rank = 0;
    lawful_passes(&call);
    lawful_close(&call);

    lawful_open(&call, SLM_OP_dense_ffn, &config, 5);
    call.config.expert = SLM_EXPERT_RELU;
    lawful_expect(&call, SLM_ERR_SHAPE, "w_gate", 0);
    call.args.dense_ffn.w_gate.rank = 0;
    lawful_passes(&call);
    lawful_close(&call);
}

static void real_outputs_in_binary64_are_the_reference_s_alone(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 5);
    call.args.rmsnorm.r.dtype = SLM_F64;
    lawful_expect(&call, SLM_ERR_SHAPE, "r", 0);
    lawful_close(&call);
    lawful_open(&call, SLM_OP_select, &config, 5);
    call.args.select.weight.dtype = SLM_F64;
    lawful_expect(&call, SLM_ERR_SHAPE, "weight", 0);
    lawful_close(&call);
}

/* [T, 2 f] with T = 0: no byte is needed, but 2 f itself must be a number. */
static void a_size_that_overflows_64_bits_is_a_shape_error(void **state)
{
    slm_config config = lawful_config();
    lawful call;
    slm_error error;

    (void)state;
    lawful_open(&call, SLM_OP_situ_glu, &config, 0);
    call.config.d_expert = (size_t)1 << 63;
    call.args.situ_glu.gate_up.shape[1] = 0; /* 2 f modulo 2^64 */
    call.args.situ_glu.h.shape[1] = call.config.d_expert;
    lawful_expect(&call, SLM_ERR_SHAPE, "gate_up", 0);
    lawful_check(&call, &error);
    assert_string_equal(error.expected, "a size that fits in 64 bits for n_tokens 0, "
                                        "d_expert 9223372036854775808");
    call.config.d_expert--;
    call.args.situ_glu.gate_up.shape[1] = SIZE_MAX - 1;
    call.args.situ_glu.h.shape[1]--;
    lawful_passes(&call);
    lawful_close(&call);
}

/* Elements are counted even where a stride of 0 lays them on one another; strides alone
 * can leave the address space. */
static void bytes_that_overflow_the_address_space_are_shape_errors(void **state)
{
    slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 1);
    call.config.d_latent = (size_t)1 << 61;
    call.args.rmsnorm.u.shape[1] = (size_t)1 << 61;
    call.args.rmsnorm.u.stride[1] = 0; /* 2^63 bytes */
    lawful_expect(&call, SLM_ERR_SHAPE, "u", 0);
    call.config.d_latent = ((size_t)1 << 61) - 1;
    call.args.rmsnorm.u.shape[1] = ((size_t)1 << 61) - 1;
    lawful_expect(&call, SLM_ERR_SHAPE, "gamma", 0); /* u is over */
    lawful_close(&call);

    lawful_open(&call, SLM_OP_rmsnorm, &config, 2);
    call.args.rmsnorm.u.stride[0] = PTRDIFF_MAX / 4;
    lawful_expect(&call, SLM_ERR_SHAPE, "u", 0);
    call.args.rmsnorm.u.stride[0] = PTRDIFF_MIN;
    lawful_expect(&call, SLM_ERR_SHAPE, "u", 0);
    call.args.rmsnorm.u.stride[0] = 3;
    call.args.rmsnorm.r.stride[0] = -((ptrdiff_t)1 << 60);
    lawful_expect(&call, SLM_ERR_SHAPE, "r", 0); /* runs below address 0 */
    lawful_close(&call);
}

static void no_tokens_pass_with_null_data(void **state)
{
    (void)state;
    for (slm_op op = (slm_op)0; op < SLM_OP_COUNT; op = (slm_op)(op + 1)) {
        const slm_config config = lawful_config();
        lawful call;

        lawful_open(&call, op, &config, 0);
        for (size_t i = 0; i < call.info->n_fields; i++)
            if (call.info->fields[i].dims[0] == 'T')
                assert_null(lawful_at(&call, i)->data);
        lawful_passes(&call);
        lawful_close(&call);
    }
}

static void an_older_caller_is_refused(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 5);
    call.args.call.struct_size--;
    lawful_expect(&call, SLM_ERR_SHAPE, "struct_size", 0);
    call.args.call.struct_size += 2;
    lawful_passes(&call);
    call.config.struct_size--;
    lawful_expect(&call, SLM_ERR_SHAPE, "struct_size", 0);
    lawful_close(&call);
}

/* An argument that a minor version appended is not there, whatever lies behind the
 * struct; without it the first version's must be whole. */
static void a_caller_of_abi_1_0_has_no_mask(void **state)
{
    static const struct {
        slm_op op;
        size_t size; /* of the argument struct in ABI 1.0 */
    } older[] = {
        {SLM_OP_qb_exact, offsetof(slm_qb_exact_args, mask)},
        {SLM_OP_qb_hist_accumulate, offsetof(slm_qb_hist_accumulate_args, mask)},
        {SLM_OP_load_metrics, offsetof(slm_load_metrics_args, mask)}};
    const slm_config config = lawful_config();

    (void)state;
    for (size_t i = 0; i < sizeof older / sizeof *older; i++) {
        lawful call;
        slm_tensor *mask;
        slm_error error;

        lawful_open(&call, older[i].op, &config, 5);
        mask = lawful_tensor(&call, "mask");
        assert_ptr_equal(slm_given(&call.args.call, mask), mask);
        mask->rank = 99; /* rubbish */
        lawful_expect(&call, SLM_ERR_SHAPE, "mask", 0);
        call.args.call.struct_size = older[i].size;
        lawful_passes(&call);
        assert_null(slm_given(&call.args.call, mask));
        assert_int_equal(slm_check_finite(older[i].op, &config, &call.args, &error),
                         SLM_OK);
        call.args.call.struct_size += sizeof *mask - 1; /* not all of it */
        lawful_passes(&call);
        call.args.call.struct_size++;
        lawful_expect(&call, SLM_ERR_SHAPE, "mask", 0);
        mask->rank = 0;
        lawful_passes(&call);
        assert_null(slm_given(&call.args.call, mask));
        call.args.call.struct_size = older[i].size - 1;
        lawful_expect(&call, SLM_ERR_SHAPE, "struct_size", 0);
        lawful_close(&call);
    }
}

/* What 1.0 had stays at its place; only the end of a list may be newer. */
static void newer_fields_are_optional_and_stand_last(void **state)
{
    size_t n = 0;

    (void)state;
    for (slm_op op = (slm_op)0; op < SLM_OP_COUNT; op = (slm_op)(op + 1)) {
        const slm_op_info *info = slm_op_describe(op);

        assert_int_equal(info->fields[0].since, 0);
        for (size_t i = 1; i < info->n_fields; i++) {
            assert_true(info->fields[i].since >= info->fields[i - 1].since);
            assert_true(info->fields[i].since <= SLM_ABI_MINOR);
            if (!info->fields[i].since) continue;
            assert_int_equal(info->fields[i].role, SLM_ROLE_OPTIONAL);
            n++;
        }
    }
    assert_int_equal(n, 3);
}

static void no_check_writes_to_the_arguments(void **state)
{
    (void)state;
    for (slm_op op = (slm_op)0; op < SLM_OP_COUNT; op = (slm_op)(op + 1)) {
        const slm_config config = lawful_config();
        slm_error error;
        lawful call;
        lawful before;
        void *copy[LAWFUL_FIELDS] = {NULL};

        lawful_open(&call, op, &config, 5);
        for (size_t i = 0; i < call.info->n_fields; i++) {
            copy[i] = malloc(call.bytes[i] + 1);
            assert_non_null(copy[i]);
            if (call.bytes[i]) memcpy(copy[i], call.memory[i], call.bytes[i]);
        }
        memcpy(&before, &call, sizeof call);
        assert_int_equal(lawful_check(&call, &error), SLM_OK);
        slm_check_finite(op, &call.config, &call.args, &error);
        call.config.top_k = before.config.top_k = 7;
        lawful_check(&call, &error);
        assert_memory_equal(&before, &call, sizeof call);
        for (size_t i = 0; i < call.info->n_fields; i++) {
            if (call.bytes[i])
                assert_memory_equal(copy[i], call.memory[i], call.bytes[i]);
            free(copy[i]);
        }
        lawful_close(&call);
    }
}

static void an_unknown_operation_is_refused(void **state)
{
    const slm_config config = lawful_config();
    const slm_call call = {.struct_size = sizeof call};

    (void)state;
    assert_int_equal(slm_check(SLM_OP_COUNT, &config, &call, NULL), SLM_ERR_SHAPE);
    assert_int_equal(slm_check(SLM_OP_route, NULL, &call, NULL), SLM_ERR_SHAPE);
    assert_int_equal(slm_check(SLM_OP_route, &config, NULL, NULL), SLM_ERR_SHAPE);
}

static void an_unknown_letter_or_profile_leaves_the_result_alone(void **state)
{
    const slm_call call = {.struct_size = sizeof call};
    slm_config config = lawful_config();
    size_t size = 77;

    (void)state;
    assert_int_equal(slm_dim(&config, &call, 'Z', &size), 0);
    assert_int_equal(slm_dim(&config, &call, 't', &size), 1);
    assert_int_equal(size, 2 * 2 * 4);
    config.n_shared = SIZE_MAX / 4; /* one product fits, its double does not */
    assert_int_equal(slm_dim(&config, &call, 's', &size), 1);
    assert_int_equal(slm_dim(&config, &call, 't', &size), 0);
    assert_int_equal(size, config.n_shared * 4);
    size = config.n_experts;
    assert_int_equal(slm_config_profile("draft", &config), 0);
    assert_int_equal(config.n_experts, size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_lawful_call_passes_for_every_operation_expert_norm_and_dtype),
        cmocka_unit_test(
            every_required_field_must_be_present_and_every_optional_may_be_absent),
        cmocka_unit_test(a_wrong_rank_size_dtype_space_or_address_is_a_shape_error),
        cmocka_unit_test(a_shape_error_names_the_sizes_it_was_derived_from),
        cmocka_unit_test(select_takes_exactly_one_of_score_and_logit),
        cmocka_unit_test(a_field_that_the_configuration_does_not_use_must_be_absent),
        cmocka_unit_test(real_outputs_in_binary64_are_the_reference_s_alone),
        cmocka_unit_test(a_size_that_overflows_64_bits_is_a_shape_error),
        cmocka_unit_test(bytes_that_overflow_the_address_space_are_shape_errors),
        cmocka_unit_test(no_tokens_pass_with_null_data),
        cmocka_unit_test(an_older_caller_is_refused),
        cmocka_unit_test(a_caller_of_abi_1_0_has_no_mask),
        cmocka_unit_test(newer_fields_are_optional_and_stand_last),
        cmocka_unit_test(no_check_writes_to_the_arguments),
        cmocka_unit_test(an_unknown_operation_is_refused),
        cmocka_unit_test(an_unknown_letter_or_profile_leaves_the_result_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
