/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_run_diff.c - what counts as worse between two runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../run_diff.h"
#include "made_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A run of one backend and two cases: x/a/one as given, x/a/two passes. */
typedef struct tiny_run {
    run_result results[2];
    run_part part;
    run_file run;
} tiny_run;

static run_result made(const char *id, judge_state state, double used)
{
    return (run_result){.id = id,
                        .state = state,
                        .n_stages = 1,
                        .stages = {{.name = "y", .checked = 1, .used = used}},
                        .clause = "",
                        .stage = "",
                        .place = "",
                        .reason = "",
                        .again = ""};
}

static void make(tiny_run *tiny, judge_state state, double used)
{
    tiny->results[0] = made("x/a/one", state, used);
    tiny->results[1] = made("x/a/two", JUDGE_PASS, 0.5);
    tiny->part = (run_part){.backend = "b",
                            .version = "1",
                            .vectors = "abc",
                            .tier = "quick",
                            .selection = "",
                            .harness = "",
                            .cpu = "",
                            .n_results = 2,
                            .results = tiny->results,
                            .passed = 1u + (state == JUDGE_PASS)};
    tiny->run = (run_file){.n_parts = 1, .parts = &tiny->part};
}

/* The difference, and what is said of it; the caller frees `said`. */
static run_difference compare(const tiny_run *before, const tiny_run *after,
                              char **said)
{
    size_t size;
    FILE *out = open_memstream(said, &size);
    run_difference found;

    assert_non_null(out);
    found = run_diff(out, &before->run, &after->run);
    fclose(out);
    return found;
}

static void a_state_that_falls_is_worse_and_one_that_rises_is_better(void **state)
{
    static const struct {
        judge_state before, after;
        size_t worse, better, changed;
    } changes[] = {
        {JUDGE_PASS, JUDGE_PASS, 0, 0, 0},   {JUDGE_PASS, JUDGE_FAIL, 1, 0, 0},
        {JUDGE_PASS, JUDGE_SKIP, 1, 0, 0},   {JUDGE_PASS, JUDGE_VACUOUS, 1, 0, 0},
        {JUDGE_SKIP, JUDGE_FAIL, 1, 0, 0},   {JUDGE_FAIL, JUDGE_CRASH, 1, 0, 0},
        {JUDGE_FAIL, JUDGE_PASS, 0, 1, 0},   {JUDGE_CRASH, JUDGE_FAIL, 0, 1, 0},
        {JUDGE_XFAIL, JUDGE_XPASS, 0, 1, 0}, {JUDGE_CRASH, JUDGE_TIMEOUT, 0, 0, 1},
        {JUDGE_SKIP, JUDGE_XFAIL, 0, 0, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        tiny_run before, after;
        run_difference found;
        char *said;

        make(&before, changes[i].before, 0);
        make(&after, changes[i].after, 0);
        found = compare(&before, &after, &said);
        if (found.worse != changes[i].worse || found.better != changes[i].better ||
            found.changed != changes[i].changed)
            fail_msg("%s to %s: %s", judge_state_name(changes[i].before),
                     judge_state_name(changes[i].after), said);
        assert_int_equal(found.added + found.gone, 0);
        free(said);
    }
}

static void a_share_that_doubles_is_worse_unless_it_is_far_inside(void **state)
{
    static const struct {
        double before, after;
        size_t worse, better;
    } shares[] = {{0.1, 0.2, 0, 0},
                  {0.1, 0.21, 1, 0},
                  {0.21, 0.1, 0, 1},
                  {0.0001, 0.0099, 0, 0},
                  {0.0001, 0.01, 1, 0},
                  {0, 0.5, 1, 0},
                  {(double)INFINITY, (double)INFINITY, 0, 0},
                  {0.5, (double)INFINITY, 1, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        tiny_run before, after;
        run_difference found;
        char *said;

        make(&before, JUDGE_PASS, shares[i].before);
        make(&after, JUDGE_PASS, shares[i].after);
        found = compare(&before, &after, &said);
        if (found.worse != shares[i].worse || found.better != shares[i].better)
            fail_msg("%g to %g: %s", shares[i].before, shares[i].after, said);
        free(said);
    }
}

static void a_passed_case_that_is_gone_is_worse_and_a_new_failure_is_told(void **state)
{
    tiny_run whole, part;
    run_difference found;
    char *said;

    (void)state;
    make(&whole, JUDGE_FAIL, 0);
    make(&part, JUDGE_FAIL, 0);
    part.part.n_results = 1;
    found = compare(&whole, &part, &said);
    assert_int_equal(found.gone, 1);
    assert_int_equal(found.worse, 1);
    assert_non_null(strstr(said, "gone    x/a/two, was PASS"));
    free(said);

    part.results[0] = made("x/a/two", JUDGE_PASS, 0.5);
    found = compare(&part, &whole, &said);
    assert_int_equal(found.added, 1);
    assert_int_equal(found.worse, 0);
    assert_non_null(strstr(said, "new     x/a/one: FAIL\n"));
    assert_non_null(strstr(said, "0 worse, 0 better, 0 changed, 1 new, 0 gone\n"));
    free(said);
}

static void what_makes_two_runs_unlike_is_said_first(void **state)
{
    tiny_run before, after;
    run_difference found;
    char *said;

    (void)state;
    make(&before, JUDGE_PASS, 0);
    make(&after, JUDGE_PASS, 0);
    after.part.vectors = "xyz";
    after.part.arithmetic.accumulator = 0x1p-23;
    found = compare(&before, &after, &said);
    assert_int_equal(found.worse, 0);
    assert_non_null(strstr(said, "note    vectors: abc -> xyz\n"));
    assert_non_null(strstr(said, "accumulator exact"));
    assert_non_null(strstr(said, "accumulator 2^-23"));
    free(said);
}

static void backends_are_compared_by_name_when_there_are_several(void **state)
{
    tiny_run one, two, before;
    run_part parts[2];
    run_difference found;
    char *said;
    size_t size;
    FILE *out;

    (void)state;
    make(&one, JUDGE_PASS, 0);
    make(&two, JUDGE_FAIL, 0);
    make(&before, JUDGE_PASS, 0);
    parts[0] = two.part;
    parts[0].backend = "other";
    parts[1] = one.part;

    const run_file after = {.n_parts = 2, .parts = parts};

    out = open_memstream(&said, &size);
    found = run_diff(out, &before.run, &after);
    fclose(out);
    assert_int_equal(found.worse, 0);
    assert_int_equal(found.added, 2);
    free(said);
    out = open_memstream(&said, &size);
    found = run_diff(out, &after, &before.run);
    fclose(out);
    assert_int_equal(found.gone, 2);
    assert_int_equal(found.worse, 1); /* of them one had passed */
    assert_non_null(strstr(said, "backend other, which the second run has not\n"));
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_that_falls_is_worse_and_one_that_rises_is_better),
        cmocka_unit_test(a_share_that_doubles_is_worse_unless_it_is_far_inside),
        cmocka_unit_test(a_passed_case_that_is_gone_is_worse_and_a_new_failure_is_told),
        cmocka_unit_test(what_makes_two_runs_unlike_is_said_first),
        cmocka_unit_test(backends_are_compared_by_name_when_there_are_several),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
