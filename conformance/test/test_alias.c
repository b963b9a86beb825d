/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_alias.c - ALIAS at the door, from both sides.             X1 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "lawful.h"

static int is_output(const slm_field *field)
{
    return field->role == SLM_ROLE_OUT || field->role == SLM_ROLE_TAP ||
           field->role == SLM_ROLE_INOUT;
}

/* Fields lie 1024 bytes apart, more than any of them has. */
static void an_output_may_not_start_at_any_other_argument(void **state)
{
    static _Alignas(64) unsigned char arena[LAWFUL_FIELDS * 1024];

    (void)state;
    for (slm_op op = (slm_op)0; op < SLM_OP_COUNT; op = (slm_op)(op + 1)) {
        const slm_config config = lawful_config();
        lawful call;

        lawful_open(&call, op, &config, 5);
        for (size_t i = 0; i < call.info->n_fields; i++) {
            assert_true(call.bytes[i] <= 1024);
            if (!call.bytes[i]) continue;
            memcpy(arena + 1024 * i, call.memory[i], call.bytes[i]);
            lawful_at(&call, i)->data = arena + 1024 * i;
        }
        lawful_passes(&call);
        for (size_t out = 0; out < call.info->n_fields; out++) {
            if (!is_output(&call.info->fields[out]) || !call.bytes[out]) continue;
            for (size_t in = 0; in < call.info->n_fields; in++) {
                const int first = is_output(&call.info->fields[in]) && in < out;

                if (in == out || !call.bytes[in]) continue;
                lawful_at(&call, out)->data = arena + 1024 * in;
                lawful_expect(&call, SLM_ERR_ALIAS,
                              call.info->fields[first ? in : out].name, 0);
            }
            lawful_at(&call, out)->data = arena + 1024 * out;
        }
        lawful_close(&call);
    }
}

static void inputs_may_overlap_each_other(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_dense_ffn, &config, 5);
    call.args.dense_ffn.w_up.data = call.args.dense_ffn.w_gate.data;
    call.args.dense_ffn.x.data = call.args.dense_ffn.w_gate.data;
    lawful_passes(&call);
    lawful_close(&call);
}

/* u [2, 3] and r [2, 3] in one array: r right behind u, then one element earlier. */
static void touching_passes_and_one_shared_element_does_not(void **state)
{
    const slm_config config = lawful_config();
    float memory[32] = {0};
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 2);
    call.args.rmsnorm.u.data = memory + 8;
    call.args.rmsnorm.r.data = memory + 14;
    lawful_passes(&call);
    call.args.rmsnorm.r.data = memory + 13;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    call.args.rmsnorm.r.data = memory + 2;
    lawful_passes(&call);
    call.args.rmsnorm.r.data = memory + 3;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    lawful_close(&call);
}

static void one_shared_byte_with_the_workspace_is_an_alias(void **state)
{
    _Alignas(64) unsigned char memory[256] = {0};
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 2);
    call.args.rmsnorm.u.data = memory + 100;
    call.args.call.workspace = memory + 64;
    call.args.call.workspace_size = 36;
    lawful_passes(&call);
    call.args.call.workspace_size = 37;
    lawful_expect(&call, SLM_ERR_ALIAS, "workspace", 0);
    call.args.rmsnorm.u.data = memory + 64 - 24;
    lawful_passes(&call);
    call.args.rmsnorm.u.data = memory + 64 - 20;
    lawful_expect(&call, SLM_ERR_ALIAS, "workspace", 0);
    call.args.call.workspace_size = 0;
    lawful_passes(&call);
    lawful_close(&call);
}

static void a_workspace_must_exist_and_be_aligned_to_64_bytes(void **state)
{
    _Alignas(64) unsigned char memory[128] = {0};
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 2);
    call.args.call.workspace_size = 64;
    lawful_expect(&call, SLM_ERR_SHAPE, "workspace", 0);
    call.args.call.workspace = memory + 32;
    lawful_expect(&call, SLM_ERR_SHAPE, "workspace", 0);
    call.args.call.workspace = memory + 64;
    lawful_passes(&call);
    call.args.call.workspace_size = SIZE_MAX;
    lawful_expect(&call, SLM_ERR_SHAPE, "workspace", 0);
    lawful_close(&call);
}

/* Rows of three in an array of rows of ten. A view covers the gaps between its rows. */
static void strided_views_are_judged_by_their_extent(void **state)
{
    const slm_config config = lawful_config();
    float memory[64] = {0};
    lawful call;
    slm_tensor *u;
    slm_tensor *r;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 2);
    u = &call.args.rmsnorm.u;
    r = &call.args.rmsnorm.r;
    u->data = memory + 20;
    u->stride[0] = 10; /* elements 20..32 */
    r->data = memory + 33;
    lawful_passes(&call);
    r->data = memory + 32;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    r->data = memory + 24; /* in the gap */
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);

    u->data = memory + 30;
    u->stride[0] = -10; /* elements 20..32 again, second row first */
    r->data = memory + 33;
    lawful_passes(&call);
    r->data = memory + 14;
    lawful_passes(&call);
    r->data = memory + 15;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);

    u->data = memory + 32;
    u->stride[1] = -1; /* elements 20..32, backwards */
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    r->data = memory + 14;
    lawful_passes(&call);
    r->data = memory + 33;
    lawful_passes(&call);
    lawful_close(&call);
}

static void an_output_s_elements_may_not_share_memory(void **state)
{
    const slm_config config = lawful_config();
    lawful call;
    slm_tensor *r;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 2);
    r = &call.args.rmsnorm.r;
    r->stride[0] = 0;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    r->stride[0] = 2;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    r->stride[0] = 1;
    r->stride[1] = 2; /* column by column */
    lawful_passes(&call);
    r->stride[1] = 1;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    call.args.rmsnorm.u.stride[0] = 0; /* an input may repeat a row */
    r->stride[0] = 3;
    lawful_passes(&call);
    lawful_close(&call);
}

static void host_and_device_memory_do_not_overlap(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_rmsnorm, &config, 2);
    call.args.rmsnorm.r.data = call.args.rmsnorm.u.data;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    call.args.rmsnorm.r.space = SLM_DEVICE;
    lawful_passes(&call);
    call.args.rmsnorm.u.space = SLM_DEVICE;
    lawful_expect(&call, SLM_ERR_ALIAS, "r", 0);
    lawful_close(&call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_output_may_not_start_at_any_other_argument),
        cmocka_unit_test(inputs_may_overlap_each_other),
        cmocka_unit_test(touching_passes_and_one_shared_element_does_not),
        cmocka_unit_test(one_shared_byte_with_the_workspace_is_an_alias),
        cmocka_unit_test(a_workspace_must_exist_and_be_aligned_to_64_bytes),
        cmocka_unit_test(strided_views_are_judged_by_their_extent),
        cmocka_unit_test(an_output_s_elements_may_not_share_memory),
        cmocka_unit_test(host_and_device_memory_do_not_overlap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
