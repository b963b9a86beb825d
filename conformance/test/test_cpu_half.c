/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_half.c - layer_backward of `cpu` in bf16: weights are
 * widened, values rounded where they are stored.
 *
 * One result for any threads and strides; the values of the forward; experts that are
 * met late. That the numbers are right is the vectors' to say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"
#include "native.h"

static void every_kind_has_one_result(void **state)
{
    static const slm_expert_kind kinds[] = {SLM_EXPERT_SITU, SLM_EXPERT_SWIGLU,
                                            SLM_EXPERT_LINEAR};
    slm_config config = cpu_tiny();

    (void)state;
    config.dtype = SLM_BF16;
    for (size_t kind = 0; kind < 3; kind++)
        for (size_t n_shared = 0; n_shared < 3; n_shared += 2) {
            config.expert = kinds[kind];
            config.n_shared = n_shared;
            cpu_one_result(SLM_OP_layer_backward, &config, 33);
            cpu_one_result(SLM_OP_layer_backward, &config, 1);
        }
}

/* The very bits of what is made of x; h is made of gate and up as they are stored,
 * which the forward keeps in binary32. */
static void taps_of_the_forward_are_those_of_layer_forward(void **state)
{
    static const char *const both[] = {"logit", "weight", "z"};
    slm_config config = cpu_tiny();
    cpu_outcome forward, out;

    (void)state;
    config.dtype = SLM_BF16;
    forward = cpu_run_plain(SLM_OP_layer_forward, &config, 33, NULL);

    const cpu_given list[] = {{"ids", cpu_output(&forward, "ids")}, {NULL, NULL}};

    out = cpu_run_plain(SLM_OP_layer_backward, &config, 33, list);
    assert_int_equal(out.status, SLM_OK);
    for (size_t i = 0; i < out.n; i++)
        for (size_t j = 0; j < sizeof both / sizeof *both; j++)
            if (strcmp(out.name[i], both[j]) == 0)
                assert_memory_equal(out.bytes[i], cpu_output(&forward, both[j]),
                                    out.size[i]);
    cpu_release(&forward);
    cpu_release(&out);
}

/* Expert 4 is chosen in the second call alone, and widened then. */
static void an_expert_is_widened_when_it_is_first_chosen(void **state)
{
    static int32_t without[20 * 3], with[20 * 3];
    slm_config config = cpu_tiny();
    cpu_outcome fresh;
    cpu_frame made;
    slm_handle *handle;

    (void)state;
    config.dtype = SLM_BF16;
    for (int32_t t = 0; t < 20; t++)
        for (int32_t q = 0; q < 3; q++) {
            without[t * 3 + q] = 5 + (t + q) % 6;
            with[t * 3 + q] = q == 0 ? 4 : 5 + (t + q) % 6;
        }

    const cpu_given list[] = {{"ids", with}, {NULL, NULL}};

    fresh = cpu_run_plain(SLM_OP_layer_backward, &config, 20, list);
    cpu_frame_make(&made, SLM_OP_layer_backward, &config, 20, list, CPU_PACKED);
    handle = cpu_frame_open(&made, SLM_OP_layer_backward, &config);
    for (int call = 0; call < 2; call++) {
        for (size_t i = 0; i < made.info->n_fields; i++)
            if (strcmp(made.info->fields[i].name, "ids") == 0)
                memcpy(cpu_field(&made, &made.info->fields[i])->data,
                       call ? with : without, sizeof with);
        assert_int_equal(cpu_invoke(handle, SLM_OP_layer_backward, &made.args, NULL),
                         SLM_OK);
    }
    cpu_same_outputs(&made, &fresh);
    cpu_frame_close(&made, handle);
    cpu_release(&fresh);
}

/* The copies are gone: what later lies at their addresses is no weight. */
static void prepare_forgets_what_was_widened(void **state)
{
    slm_config config = cpu_tiny();
    cpu_frame made;
    slm_handle *handle;

    (void)state;
    config.dtype = SLM_BF16;
    cpu_frame_make(&made, SLM_OP_layer_backward, &config, 20, NULL, CPU_PACKED);
    handle = cpu_frame_open(&made, SLM_OP_layer_backward, &config);
    assert_int_equal(cpu_invoke(handle, SLM_OP_layer_backward, &made.args, NULL),
                     SLM_OK);
    assert_non_null(handle->weights.router.data);
    assert_int_equal(cpu_table()->prepare(handle, &made.weights, NULL), SLM_OK);
    assert_null(handle->weights.router.data);
    cpu_frame_close(&made, handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_one_result),
        cmocka_unit_test(taps_of_the_forward_are_those_of_layer_forward),
        cmocka_unit_test(an_expert_is_widened_when_it_is_first_chosen),
        cmocka_unit_test(prepare_forgets_what_was_widened),
    };

    setenv("SLM_TEST_BACKEND", "cpu", 1);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
