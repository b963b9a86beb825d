/* SPDX-License-Identifier: Apache-2.0 */
/* test_judge_backward.c - the judge on backward passes: right ones pass, each known fault
 * is found in its own stage, with taps and without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <mutants/mutants.h>

#include <math.h>
#include <string.h>

#include "backward_case.h"

/* Call the backend, with its taps or without. */
static void call(run *at, int taps)
{
    testee_reply reply;

    frame_poison(&at->made.frame, false);
    frame_hide_taps(&at->made.frame, taps ? 0 : UINT64_MAX);
    testee_run(at->testee, &at->made.frame, &reply);
    frame_hide_taps(&at->made.frame, 0);
    if (reply.outcome != TESTEE_RETURNED || reply.status != SLM_OK)
        fail_msg("the call failed: %s %s %s", reply.why, reply.error.field,
                 reply.error.expected);
}

static judge_state judge(run *at)
{
    return case_judge_under(&at->made, &testee_describe(at->testee)->arithmetic);
}

static void passes(run *at, const char *what, size_t i, int taps)
{
    const judge_verdict *verdict = &at->made.verdict;

    if (judge(at) != JUDGE_PASS)
        fail_msg("%s look %zu taps %d: %s %s got %s want %s (%g bounds) %s", what, i,
                 taps, verdict->clause, verdict->place, verdict->got, verdict->want,
                 verdict->multiple, verdict->reason);
}

static int offers(run *at)
{
    char reason[256];

    return testee_offers(at->testee, &at->made.test, reason);
}

static void right_ones_pass(opener *open, size_t n_looks)
{
    for (size_t v = 0; v < slm_variant_count(); v++) {
        const slm_variant_info *info = slm_variant_info_at(v);

        for (size_t i = 0; i < n_looks; i++) {
            run at;

            if (is_odd(open, &looks[i]) || (open == open_layer && i % 2 != v % 2))
                continue; /* the layer is dear: every other look for each */
            open(&at, info->table, &looks[i]);
            for (int taps = 0; taps < 2 && offers(&at); taps++) {
                call(&at, taps);
                passes(&at, info->name, i, taps);
            }
            close_run(&at);
        }
    }
}

static void right_layers_pass(void **state)
{
    (void)state;
    right_ones_pass(open_layer, LOOKS);
}

static void right_networks_pass(void **state)
{
    (void)state;
    right_ones_pass(open_dense, LOOKS);
}

static void right_activations_norms_and_choices_pass(void **state)
{
    (void)state;
    right_ones_pass(open_slopes, LOOKS);
    right_ones_pass(open_norm, LOOKS);
    right_ones_pass(open_choice, LOOKS);
}

/* No bound of a gradient is so slack that a hundredth of it would do, at this size. */
static void the_bounds_are_used(void **state)
{
    static const char *const stages[] = {
        "dr",     "du",      "dweight", "dlogit",          "dh",       "dgate_up",
        "dz",     "dx",      "dhs",     "dw_down",         "dw_gate",  "dw_up",
        "dw_out", "dw_lift", "dgamma",  "dshared_gate_up", "dw_router"};
    enum { STAGES = sizeof stages / sizeof *stages };
    const slm_backend *table = slm_variant_find("sequential");
    double most[STAGES] = {0};

    (void)state;
    for (size_t i = 0; i < LOOKS; i++) {
        const judge_verdict *verdict;
        run at;

        open_layer(&at, table, &looks[i]);
        call(&at, 1);
        passes(&at, "sequential", i, 1);
        verdict = &at.made.verdict;
        for (size_t s = 0; s < STAGES && looks[i].dtype == SLM_F32; s++)
            for (size_t n = 0; n < verdict->n_stages; n++)
                if (strcmp(verdict->stages[n].name, stages[s]) == 0)
                    most[s] = fmax(most[s], verdict->stages[n].used);
        close_run(&at);
    }
    for (size_t s = 0; s < STAGES; s++)
        if (!(most[s] > 0.01)) fail_msg("%s uses %g of its bound", stages[s], most[s]);
}

/* Looks at a backend until one shows a fault under a clause (NULL: any). */
static int is_found(const slm_backend *table, int taps, const char *clause)
{
    static opener *const openers[] = {open_slopes, open_norm, open_choice, open_dense,
                                      open_layer};

    for (size_t i = 0; i < 5 * LOOKS; i++) {
        const look *how = &looks[i % LOOKS];
        opener *const open = openers[i / LOOKS];
        int found;
        run at;

        if (is_odd(open, how)) continue;
        open(&at, table, how);
        call(&at, taps);
        found = judge(&at) == JUDGE_FAIL &&
                (!clause || strcmp(at.made.verdict.clause, clause) == 0);
        close_run(&at);
        if (found) return 1;
    }
    return 0;
}

/* Under its own clause, but for what spoils something else first: another choice spoils
 * the weights, and an output that was not written is that field's fault. */
static const char *clause_of(const slm_mutant_info *info)
{
    static const char *const elsewhere[] = {
        "choice-recomputed", "weight-gradient-not-reset", "idle-experts-unwritten"};

    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(info->name, elsewhere[i]) == 0) return NULL;
    return info->clause;
}

/* Gradients, but for what shows at sizes and values that the looks do not have. Vectors
 * have them: there every mutant dies. */
static int is_looked_at(const slm_mutant_info *info)
{
    static const char *const elsewhere[] = {
        "gamma-gradient-of-32-tokens",  "gamma-gradient-needs-gamma",
        "gradient-of-256-experts",      "gradient-of-512-experts",
        "gradient-without-release-eps", "idle-weights-in-dz",
        "bf16-gradient-for-bf16"};

    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(info->name, elsewhere[i]) == 0) return 0;
    return info->clause[0] == 'G';
}

static void every_fault_is_found_under_its_clause(void **state)
{
    (void)state;
    for (size_t i = 0; i < slm_mutant_count(); i++) {
        const slm_mutant_info *info = slm_mutant_info_at(i);

        if (is_looked_at(info) && !is_found(info->table, 1, clause_of(info)))
            fail_msg("survives: %s", info->name);
    }
}

/* dbias is a tap: who does not write it says nothing of it. */
static void every_fault_is_found_without_taps(void **state)
{
    (void)state;
    for (size_t i = 0; i < slm_mutant_count(); i++) {
        const slm_mutant_info *info = slm_mutant_info_at(i);

        if (is_looked_at(info) && strcmp(info->name, "gradient-into-bias") != 0 &&
            !is_found(info->table, 0, NULL))
            fail_msg("survives: %s", info->name);
    }
}

static const char *const outputs[] = {"logit",
                                      "weight",
                                      "z",
                                      "gate_up",
                                      "h",
                                      "o",
                                      "u",
                                      "r",
                                      "hs",
                                      "shared_gate_up",
                                      "dr",
                                      "du",
                                      "dweight",
                                      "dlogit",
                                      "dh",
                                      "dgate_up",
                                      "dz",
                                      "dhs",
                                      "dx",
                                      "dshared_gate_up",
                                      "dw_router",
                                      "dw_down",
                                      "dw_gate",
                                      "dw_up",
                                      "dw_out",
                                      "dw_lift",
                                      "dgamma",
                                      "dbias",
                                      "dw_shared_gate",
                                      "dw_shared_up",
                                      "dw_shared_out"};

enum { OUTPUTS = sizeof outputs / sizeof *outputs };

/* Without any one of its taps a right layer passes, and half a tap is none. */
static void missing_taps_one_by_one_still_pass(void **state)
{
    run at, bare;

    (void)state;
    open_layer(&at, slm_variant_find("sequential"), &looks[0]);
    open_layer(&bare, slm_variant_find("sequential"), &looks[0]);
    frame_poison(&bare.made.frame, false);
    for (size_t i = 0; i < OUTPUTS; i++) {
        const size_t bytes =
            4 * slm_tensor_count(frame_tensor(&at.made.frame, outputs[i]));

        if (strncmp(outputs[i], "dw_", 3) == 0 || strcmp(outputs[i], "dx") == 0 ||
            strcmp(outputs[i], "dgamma") == 0)
            continue;
        call(&at, 1);
        memcpy(case_f32(&at.made, outputs[i]), case_f32(&bare.made, outputs[i]), bytes);
        passes(&at, outputs[i], 0, 1);
        memset(case_f32(&at.made, outputs[i]), 0, 4);
        assert_int_equal(judge(&at), JUDGE_FAIL);
    }
    close_run(&bare);
    close_run(&at);
}

/* One element of one output, off by a thousand units of its last place, or no number. */
static void one_wrong_element_of_any_output_fails(void **state)
{
    run at;

    (void)state;
    open_layer(&at, slm_variant_find("sequential"), &looks[0]);
    for (size_t i = 0; i < 2 * OUTPUTS; i++) {
        const char *field = outputs[i / 2];
        const size_t count = slm_tensor_count(frame_tensor(&at.made.frame, field));
        size_t last;

        call(&at, 1);
        last = count - 1;
        while (last > 0 && fabsf(case_f32(&at.made, field)[last]) < 0x1p-6f) last--;
        case_f32(&at.made, field)[last] =
            i % 2 ? NAN : case_f32(&at.made, field)[last] * (1 + 0x1p-10f) + 0x1p-40f;
        assert_int_equal(judge(&at), JUDGE_FAIL);
        if (strcmp(at.made.verdict.stage, field) != 0)
            fail_msg("%s: %s is blamed", field, at.made.verdict.stage);
    }
    close_run(&at);
}

/* Without a token every gradient of a weight is 0, and written.                   G5 */
static void an_empty_batch_has_gradients_of_zero(void **state)
{
    run at;

    (void)state;
    open_layer(&at, slm_variant_find("sequential"), &looks[0]);
    frame_free(&at.made.frame);
    testee_close(at.testee);
    at.made.test.call.n_tokens = 0;
    for (size_t i = 0; i < at.made.test.n_in; i++)
        if (at.made.in[i].field->dims[0] == 'T')
            at.made.in[i].shape[0] = at.made.in[i].count = 0;
    hold_frame(&at, slm_variant_find("sequential"));
    call(&at, 1);
    passes(&at, "empty", 0, 1);
    case_f32(&at.made, "dw_lift")[3] = 0x1p-149f;
    assert_int_equal(judge(&at), JUDGE_FAIL);
    assert_string_equal(at.made.verdict.stage, "dw_lift");
    close_run(&at);
}

/* A slice that no token chose is no place for a small number either.              G5 */
static void an_idle_expert_has_exact_zeros(void **state)
{
    run at;

    (void)state;
    open_layer(&at, slm_variant_find("sequential"), &looks[0]);
    for (int taps = 0; taps < 2; taps++) {
        call(&at, taps);
        passes(&at, "idle", 0, taps);
        case_f32(&at.made, "dw_out")[7 * L * F + 5] = 0x1p-149f;
        assert_int_equal(judge(&at), JUDGE_FAIL);
        assert_string_equal(at.made.verdict.clause, "G5");
        assert_string_equal(at.made.verdict.place, "dw_out[7,0,5]");
    }
    close_run(&at);
}

static void coarse_gradients_pass_only_when_declared(void **state)
{
    const slm_arithmetic plain = {.struct_size = sizeof plain,
                                  .accumulator = 0x1p-24,
                                  .sigmoid_ulp = 4,
                                  .tanh_ulp = 4,
                                  .rsqrt_ulp = 4};
    run at;

    (void)state;
    open_layer(&at, slm_variant_find("bf16-gradients"), &looks[0]);
    for (int taps = 0; taps < 2; taps++) {
        call(&at, taps);
        passes(&at, "coarse", 0, taps);
        assert_int_equal(case_judge_under(&at.made, &plain), JUDGE_FAIL);
        for (size_t i = 0; i < L * D; i++) case_f32(&at.made, "dw_down")[i] *= 1.25f;
        assert_int_equal(judge(&at), JUDGE_FAIL);
        assert_string_equal(at.made.verdict.stage, "dw_down");
    }
    close_run(&at);
}

/* Whatever a backend leaves behind, the judge answers. */
static void any_bits_are_judged_and_refused(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3, 0x1p-149f, 0x1p127f};
    enum { ODD = sizeof odd / sizeof *odd };
    run at;

    (void)state;
    open_layer(&at, slm_variant_find("sequential"), &looks[0]);
    for (size_t i = 0; i < OUTPUTS * ODD; i++) {
        const char *field = outputs[i % OUTPUTS];
        const size_t count = slm_tensor_count(frame_tensor(&at.made.frame, field));

        call(&at, 1);
        for (size_t j = 0; j < count; j++)
            case_f32(&at.made, field)[j] = odd[i / OUTPUTS];
        assert_int_equal(judge(&at), JUDGE_FAIL);
    }
    close_run(&at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_layers_pass),
        cmocka_unit_test(right_networks_pass),
        cmocka_unit_test(right_activations_norms_and_choices_pass),
        cmocka_unit_test(the_bounds_are_used),
        cmocka_unit_test(every_fault_is_found_under_its_clause),
        cmocka_unit_test(every_fault_is_found_without_taps),
        cmocka_unit_test(missing_taps_one_by_one_still_pass),
        cmocka_unit_test(one_wrong_element_of_any_output_fails),
        cmocka_unit_test(an_empty_batch_has_gradients_of_zero),
        cmocka_unit_test(an_idle_expert_has_exact_zeros),
        cmocka_unit_test(coarse_gradients_pass_only_when_declared),
        cmocka_unit_test(any_bits_are_judged_and_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
