/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_handle.c - the handle of `cpu-blas`: its copy of the
 * configuration, what it gives back, what it writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

/* The configuration of a host that is newer than the backend: it has grown. */
typedef struct grown {
    slm_config config;
    unsigned char more[1 << 16];
} grown;

/* One sign step of an underloaded expert on an open handle: 0, or the rate. */
static float step_of(slm_handle *handle)
{
    float bias[] = {0.0f, 0.0f}, new_bias[] = {7.0f, 7.0f};
    int64_t load[] = {0, 2};
    const size_t n = 2;
    slm_sign_step_args args = {.call = {.struct_size = sizeof args},
                               .bias = slm_tensor_packed(bias, SLM_F32, 1, &n),
                               .load = slm_tensor_packed(load, SLM_I64, 1, &n),
                               .new_bias = slm_tensor_packed(new_bias, SLM_F32, 1, &n)};
    slm_error error;

    assert_int_equal(cpu_table()->ops->sign_step(handle, &args, &error), SLM_OK);
    return new_bias[0];
}

static float step_under(const slm_config *config)
{
    slm_handle *handle = NULL;
    slm_error error;
    float step;

    assert_int_equal(cpu_table()->open(config, &handle, &error), SLM_OK);
    step = step_of(handle);
    cpu_table()->close(handle);
    return step;
}

static void a_longer_configuration_is_read_up_to_what_is_known(void **state)
{
    static grown host;
    float step;

    (void)state;
    memset(&host, 0xff, sizeof host);
    assert_int_equal(slm_config_profile("paper", &host.config), 1);
    host.config.struct_size = sizeof host;
    host.config.n_experts = 2;
    step = step_under(&host.config);
    assert_memory_equal(&step, &(float){0x1p-10f}, sizeof step);
}

static void a_shorter_configuration_is_not_read_past_its_end(void **state)
{
    slm_config config;
    float step;

    (void)state;
    assert_int_equal(slm_config_profile("paper", &config), 1);
    config.n_experts = 2;
    config.struct_size = offsetof(slm_config, rate);
    step = step_under(&config);
    assert_memory_equal(&step, &(float){0.0f}, sizeof step);
}

enum { HANDLES = 1000 };

/* Bytes that a handle keeps after close(), on the average of many, weights laid out in
 * that way: the allocator's own caches come and go. Nothing to see where the allocator
 * is not glibc's: a leak checker sees the same leak there. */
static ptrdiff_t kept_after(cpu_layout how)
{
    const slm_backend *backend = cpu_table();
    const slm_config config = cpu_tiny();
    cpu_frame frame;
    size_t before = 0, after;

    cpu_frame_make(&frame, SLM_OP_layer_forward, &config, 2, NULL, how);
    for (int round = 0; round <= HANDLES; round++) {
        slm_handle *handle = NULL;
        slm_error error;

        if (round == 1) before = mallinfo2().uordblks;
        assert_int_equal(backend->open(&config, &handle, &error), SLM_OK);
        assert_int_equal(backend->prepare(handle, &frame.weights, &error), SLM_OK);
        backend->close(handle);
    }
    after = mallinfo2().uordblks;
    for (size_t i = 0; i < frame.n_memory; i++) free(frame.memory[i]);
    return (ptrdiff_t)(after - before) / HANDLES;
}

static void closing_gives_every_byte_back(void **state)
{
    (void)state;
    assert_true(kept_after(CPU_PACKED) < 16);
    assert_true(kept_after(CPU_SPREAD) < 16);
}

/* A tap may be left out (A1), so no vector asks for it; this backend shows them all. */
static void every_output_is_written_taps_too(void **state)
{
    const slm_config config = cpu_tiny();

    (void)state;
    for (int op = 0; op < SLM_OP_COUNT; op++) {
        static int64_t hist[11 * 50];
        const cpu_given list[] = {{op == SLM_OP_qb_hist_solve ? "hist" : "-", hist},
                                  {NULL, NULL}};
        cpu_outcome out;

        memset(hist, 0, sizeof hist);
        cpu_histogram(hist, 20);
        out = cpu_run_plain((slm_op)op, &config, 20, list);
        assert_int_equal(out.status, SLM_OK);
        for (size_t i = 0; i < out.n; i++) {
            size_t untouched = 0;

            while (untouched < out.size[i] && out.bytes[i][untouched] == CPU_UNTOUCHED)
                untouched++;
            assert_true(untouched < out.size[i]);
        }
        cpu_release(&out);
    }
}

static void closing_nothing_is_allowed(void **state)
{
    (void)state;
    cpu_table()->close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_longer_configuration_is_read_up_to_what_is_known),
        cmocka_unit_test(a_shorter_configuration_is_not_read_past_its_end),
        cmocka_unit_test(closing_gives_every_byte_back),
        cmocka_unit_test(closing_nothing_is_allowed),
        cmocka_unit_test(every_output_is_written_taps_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
