/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_bench_stats.c - quartiles, quiet batches, pairs, the roof. */
#include "bench_report.h"
#include "bench_roof.h"
#include "bench_stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <string.h>

static void same(double got, double want)
{
    if (got != want) fail_msg("got %.17g, want %.17g", got, want);
}

static void quartiles_of_an_odd_number_are_values(void **state)
{
    (void)state;
    double values[] = {5, 1, 4, 2, 3}, out[3];

    bench_quartiles(values, 5, out);
    same(out[0], 2);
    same(out[1], 3);
    same(out[2], 4);
}

static void quartiles_between_values_are_interpolated(void **state)
{
    (void)state;
    double four[] = {4, 3, 2, 1}, one[] = {7}, out[3];

    bench_quartiles(four, 4, out);
    same(out[0], 1.75);
    same(out[1], 2.5);
    same(out[2], 3.25);
    bench_quartiles(one, 1, out);
    same(out[0], 7);
    same(out[2], 7);
}

static void busy_is_all_but_idle_and_waiting(void **state)
{
    (void)state;
    /* user nice system idle iowait irq softirq steal guest guest_nice */
    same(bench_busy("cpu  100 20 30 4000 500 6 7 37 9 9\ncpu0 1 1 1 1\n", 100), 2);
    same(bench_busy("cpu  100 20 30 4000 500 6 7\n", 100), -1);
    same(bench_busy("intr 1 2 3\n", 100), -1);
    same(bench_busy("", 100), -1);
}

static void others_may_take_six_percent_of_the_threads(void **state)
{
    (void)state;
    /* 0.06 x 0.5 s x 2 threads, and the 0.015 s of a tick and a half. */
    assert_true(bench_is_quiet(1.0 + 0.074, 1.0, 0.5, 2, 100));
    assert_false(bench_is_quiet(1.0 + 0.076, 1.0, 0.5, 2, 100));
    assert_false(bench_is_quiet(0.5 + 0.06, 0.5, 0.5, 1, 100));
    /* Its own load is none, however much. */
    assert_true(bench_is_quiet(64, 64, 1, 1, 100));
}

static void a_device_needs_one_idle_cpu(void **state)
{
    (void)state;
    assert_true(bench_has_idle_cpu(1.49, 0.1, 16));
    assert_false(bench_has_idle_cpu(1.51, 0.1, 16));
    assert_true(bench_has_idle_cpu(0.09, 0.1, 1));
    assert_false(bench_has_idle_cpu(0.11, 0.1, 1));
    assert_true(bench_cpus() >= 1);
}

static void give(bench_row *row, const bench_batch *batches, size_t n)
{
    memcpy(row->batch, batches, n * sizeof *batches);
    row->n = n;
}

static void only_quiet_batches_are_counted(void **state)
{
    (void)state;
    const bench_batch batches[] = {{9, 0}, {1, 1}, {2, 1}, {3, 1},
                                   {8, 0}, {4, 1}, {5, 1}};
    bench_row row = {0};

    give(&row, batches, 7);
    bench_settle(&row);
    same((double)row.n_quiet, 5);
    assert_false(row.disturbed);
    same(row.time[1], 3);
    give(&row, batches, 6);
    bench_settle(&row);
    assert_true(row.disturbed);
    same(row.time[1], 2.5);
}

static void without_a_quiet_batch_all_are_shown_and_none_is_evidence(void **state)
{
    (void)state;
    const bench_batch batches[] = {{9, 0}, {1, 0}, {2, 0}};
    bench_row row = {0};

    give(&row, batches, 3);
    bench_settle(&row);
    assert_true(row.disturbed);
    same((double)row.n_quiet, 0);
    same(row.time[1], 2);
}

static void a_ratio_is_of_pairs_that_are_quiet_both(void **state)
{
    (void)state;
    /* A drift that both follow leaves the ratio alone; loud neighbours do not count. */
    const bench_batch own[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {1, 0}, {1, 1}};
    const bench_batch other[] = {{2, 1},  {4, 1},  {6, 1}, {8, 1},
                                 {10, 1}, {90, 1}, {90, 0}};
    bench_row a = {0}, b = {0};

    give(&a, own, 7);
    give(&b, other, 7);
    bench_compare(&a, &b);
    same(a.ratio, 2);
    give(&a, own, 4);
    bench_compare(&a, &b);
    same(a.ratio, 0);
}

static void the_roof_is_measured_and_falls_with_the_size(void **state)
{
    (void)state;
    bench_roof roof;

    assert_true(bench_roof_measure(&roof, 1, 1 << 18));
    assert_true(roof.fma > 0);
    assert_true(roof.n_sizes >= 2);
    assert_true(roof.size[roof.n_sizes - 1] >= 1 << 18);
    for (size_t i = 1; i < roof.n_sizes; i++) {
        assert_true(roof.size[i] > roof.size[i - 1]);
        assert_true(roof.bandwidth[i] > 0 &&
                    roof.bandwidth[i] <= roof.bandwidth[i - 1]);
    }
    /* Cores load at least a vector for two products of one: a byte for each FLOP. */
#ifndef __SANITIZE_ADDRESS__
    assert_true(roof.bandwidth[0] > 0.25 * roof.fma);
#endif
    assert_false(bench_roof_measure(&roof, 0, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quartiles_of_an_odd_number_are_values),
        cmocka_unit_test(quartiles_between_values_are_interpolated),
        cmocka_unit_test(busy_is_all_but_idle_and_waiting),
        cmocka_unit_test(others_may_take_six_percent_of_the_threads),
        cmocka_unit_test(a_device_needs_one_idle_cpu),
        cmocka_unit_test(only_quiet_batches_are_counted),
        cmocka_unit_test(without_a_quiet_batch_all_are_shown_and_none_is_evidence),
        cmocka_unit_test(a_ratio_is_of_pairs_that_are_quiet_both),
        cmocka_unit_test(the_roof_is_measured_and_falls_with_the_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
