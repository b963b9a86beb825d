/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_bench_cost.c - FLOPs, bytes and the roof against hand-made sums. */
#include "bench_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <string.h>

/* d 8, l 4, n 4, k 2, f 3, one shared expert of 5. An expert has 3 x 3 x 4 = 36 weights;
 * everything else 8 (4 + 4 + 4) + 4 + 3 x 5 x 8 = 220. */
static slm_config small(void)
{
    slm_config config;

    assert_true(slm_config_profile("paper", &config));
    config.d_model = 8;
    config.d_latent = 4;
    config.n_experts = 4;
    config.top_k = 2;
    config.d_expert = 3;
    config.n_shared = 1;
    config.d_shared = 5;
    return config;
}

/* Two layers, six places; a call needs three experts, a layer's rotation all four. */
static const bench_rotation rotation = {2, 6, 3, 4};

static void same(double got, double want)
{
    if (got != want) fail_msg("got %.17g, want %.17g", got, want);
}

static void a_forward_pass_is_counted(void **state)
{
    (void)state;
    const slm_config config = small();
    const bench_cost cost = bench_cost_of(SLM_OP_layer_forward, &config, 2, &rotation);

    /* Two tokens, two FLOPs: 96 dense, 120 shared, 2 x 36 of experts. */
    same(cost.flops, 2 * 2 * (96 + 120 + 72));
    same(cost.weights, 4 * (220 + 3 * 36));
    same(cost.inputs, 4 * (2 * 8 + 4));
    same(cost.outputs, 4 * (2 * 8 + 2 * 2 + 2 * 2));
    same(bench_bytes(&cost), 1312 + 80 + 96);
    /* The fourth expert is not read by every call, but comes back. */
    same(cost.working_set, 2 * 4 * (220 + 4 * 36) + 6 * 80 + 96);
}

static void bf16_halves_weights_and_activations_only(void **state)
{
    (void)state;
    slm_config config = small();

    config.dtype = SLM_BF16;

    const bench_cost cost = bench_cost_of(SLM_OP_layer_forward, &config, 2, &rotation);

    same(cost.weights, 2 * (220 + 3 * 36));
    same(cost.inputs, 2 * 2 * 8 + 4 * 4);
    same(cost.outputs, 2 * 2 * 8 + 4 * (2 * 2 + 2 * 2));
}

static void a_linear_layer_has_one_matrix_an_expert(void **state)
{
    (void)state;
    slm_config config = small();

    config.expert = SLM_EXPERT_LINEAR;

    const bench_cost cost = bench_cost_of(SLM_OP_layer_forward, &config, 1, &rotation);

    same(cost.flops, 2 * (8 * (4 + 8) + 8 * 8 + 2 * 4 * 4));
    same(cost.weights, 4 * (8 * (4 + 8) + 4 + 8 * 8 + 3 * 4 * 4));
}

static void a_backward_pass_is_counted(void **state)
{
    (void)state;
    const slm_config config = small();
    const bench_cost cost = bench_cost_of(SLM_OP_layer_backward, &config, 2, &rotation);
    const double router = 2 * 4 * 8 + 4 * 2 * 8; /* again; dx and dw of the chosen  */
    const double down = 6 * 4 * 8;               /* again, dx, dw                   */
    const double lift = 4 * 8 * 4;               /* dr, dw                          */
    const double experts = 18 * 2 * 3 * 4;       /* again, dx, dw of three matrices */
    const double shared = 16 * 5 * 8;            /* as such, but hs W_out is not made */

    same(cost.flops, 2 * (router + down + lift + experts + shared));
    same(cost.inputs, 4 * (2 * 2 * 8 + 2 * 2));
    same(cost.outputs, 4 * (2 * 8) + 4 * (220 + 4 * 36));
}

static void other_operations_move_their_arguments(void **state)
{
    (void)state;
    const slm_config config = small();
    bench_cost cost = bench_cost_of(SLM_OP_qb_exact, &config, 10, &rotation);

    same(cost.flops, 0);
    same(bench_bytes(&cost), 4 * (10 * 4 + 4 + 4));
    cost = bench_cost_of(SLM_OP_route, &config, 10, &rotation);
    same(cost.flops, 2 * 10 * 4 * 8);
    same(bench_bytes(&cost), 4 * (4 * 8 + 10 * 8 + 4 + 10 * 4));
    cost = bench_cost_of(SLM_OP_situ_glu_backward, &config, 10, &rotation);
    same(bench_bytes(&cost), 4 * 10 * 5 * 3);
}

static void what_changes_its_arguments_cannot_be_timed(void **state)
{
    (void)state;
    slm_config config = small();

    assert_null(bench_cannot_time(SLM_OP_layer_backward, &config));
    assert_non_null(bench_cannot_time(SLM_OP_qb_observe, &config));
    assert_non_null(bench_cannot_time(SLM_OP_qb_commit, &config));
    assert_null(bench_cannot_time(SLM_OP_qb_exact, &config));
    config.top_k = config.n_experts;
    assert_non_null(bench_cannot_time(SLM_OP_qb_exact, &config));
    assert_non_null(bench_cannot_time(SLM_OP_qb_hist_accumulate, &config));
    config.expert = SLM_EXPERT_RELU;
    assert_null(bench_cannot_time(SLM_OP_layer_forward, &config));
    assert_non_null(bench_cannot_time(SLM_OP_layer_backward, &config));
}

static const bench_roof machine = {.threads = 2,
                                   .fma = 100,
                                   .dot = 150,
                                   .amx = 1600,
                                   .n_sizes = 3,
                                   .size = {64, 256, 1024},
                                   .bandwidth = {80, 40, 10},
                                   .usual = {80, 32, 5}};

static void the_bandwidth_is_that_of_the_largest_size_not_larger(void **state)
{
    (void)state;
    same(bench_bandwidth(&machine, 1), 80);
    same(bench_bandwidth(&machine, 255), 80);
    same(bench_bandwidth(&machine, 256), 40);
    same(bench_bandwidth(&machine, 1e9), 10);
    same(bench_usual_bandwidth(&machine, 255), 80);
    same(bench_usual_bandwidth(&machine, 256), 32);
}

static void the_roof_is_the_slower_of_moving_and_computing(void **state)
{
    (void)state;
    bench_cost cost = {.flops = 1000, .weights = 300, .inputs = 60, .outputs = 40};

    cost.working_set = 300;
    same(bench_roof_seconds(&machine, &cost, SLM_F32), 10); /* 1000 / 100 */
    cost.working_set = 2000;
    same(bench_roof_seconds(&machine, &cost, SLM_F32), 40); /* 400 / 10 */
    cost.working_set = 64;
    same(bench_roof_seconds(&machine, &cost, SLM_BF16), 5); /* 400 / 80 */
    assert_true(bench_is_moving(&machine, &cost, SLM_BF16));
    assert_false(bench_is_moving(&machine, &cost, SLM_F32));
}

static void the_usual_roof_differs_where_bytes_move(void **state)
{
    (void)state;
    bench_cost cost = {.flops = 1000, .weights = 300, .inputs = 60, .outputs = 40};
    bench_roof unknown = machine;

    cost.working_set = 300;
    same(bench_usual_seconds(&machine, &cost, SLM_F32), 12.5); /* 400 / 32 */
    cost.working_set = 64;
    same(bench_usual_seconds(&machine, &cost, SLM_F32), 10); /* 1000 / 100 */
    unknown.usual[0] = 0;
    same(bench_usual_seconds(&unknown, &cost, SLM_F32), 0);
}

static void what_is_emulated_or_missing_is_no_roof(void **state)
{
    (void)state;
    const bench_cost cost = {.flops = 1000, .weights = 300, .working_set = 64};
    const bench_roof nothing = {.missing = "no library"};
    bench_roof emulated = machine;

    emulated.emulated = 1;
    same(bench_roof_seconds(&emulated, &cost, SLM_F32), 0);
    same(bench_usual_seconds(&emulated, &cost, SLM_F32), 0);
    same(bench_roof_seconds(&nothing, &cost, SLM_F32), 0);
}

static void bf16_has_the_best_peak_there_is(void **state)
{
    (void)state;
    bench_roof without = machine;

    same(bench_peak(&machine, SLM_F32), 100);
    same(bench_peak(&machine, SLM_BF16), 1600);
    without.amx = 0;
    same(bench_peak(&without, SLM_BF16), 150);
    without.dot = 0;
    same(bench_peak(&without, SLM_BF16), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forward_pass_is_counted),
        cmocka_unit_test(bf16_halves_weights_and_activations_only),
        cmocka_unit_test(a_linear_layer_has_one_matrix_an_expert),
        cmocka_unit_test(a_backward_pass_is_counted),
        cmocka_unit_test(other_operations_move_their_arguments),
        cmocka_unit_test(what_changes_its_arguments_cannot_be_timed),
        cmocka_unit_test(the_bandwidth_is_that_of_the_largest_size_not_larger),
        cmocka_unit_test(the_roof_is_the_slower_of_moving_and_computing),
        cmocka_unit_test(the_usual_roof_differs_where_bytes_move),
        cmocka_unit_test(what_is_emulated_or_missing_is_no_roof),
        cmocka_unit_test(bf16_has_the_best_peak_there_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
