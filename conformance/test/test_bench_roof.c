/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_bench_roof.c - what must hold of a roof on any machine. */
#include "bench_roof.h"
#include "bench_stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <string.h>

static bench_roof measured(size_t threads, double largest)
{
    bench_roof roof;

    assert_true(bench_roof_measure(&roof, threads, largest));
    assert_int_equal(roof.threads, threads);
    return roof;
}

static void rates_are_ordered(void **state)
{
    (void)state;
    const bench_roof roof = measured(1, 100e3);

    assert_true(roof.fma > 0);
    assert_true((roof.tile > 0) == (strcmp(roof.kernel, "avx512") == 0));
    assert_true(roof.n_sizes > 1);
    for (size_t i = 0; i < roof.n_sizes; i++) {
        assert_true(roof.usual[i] > 0);
        assert_true(roof.usual[i] <= roof.bandwidth[i]);
        assert_true(i == 0 || roof.size[i - 1] < roof.size[i]);
        assert_true(i == 0 || roof.bandwidth[i - 1] >= roof.bandwidth[i]);
    }
}

static void sizes_end_with_the_first_that_holds_the_largest(void **state)
{
    (void)state;
    const bench_roof one = measured(1, 100e3), two = measured(2, 1);

    assert_true(one.size[one.n_sizes - 1] >= 100e3);
    assert_true(one.size[one.n_sizes - 2] < 100e3);
    assert_int_equal(two.n_sizes, 1);
    assert_true(two.size[0] == 2 * one.size[0]);
}

static void threads_beyond_the_cpus_add_nothing(void **state)
{
    const size_t cpus = bench_cpus();

    (void)state;
    assert_true(measured(4 * cpus, 1).fma < 2 * measured(cpus, 1).fma);
}

static void no_threads_have_no_roof(void **state)
{
    bench_roof roof;

    (void)state;
    assert_false(bench_roof_measure(&roof, 0, 1));
    assert_false(bench_roof_measure(&roof, SIZE_MAX, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_ordered),
        cmocka_unit_test(sizes_end_with_the_first_that_holds_the_largest),
        cmocka_unit_test(threads_beyond_the_cpus_add_nothing),
        cmocka_unit_test(no_threads_have_no_roof),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
