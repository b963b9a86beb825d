/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_audit.c - what a layer that cannot be measured says.         A1 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../audit.h"
#include "../mutants/mutants.h"

static slm_status gives_up(slm_handle *handle, const slm_layer_forward_args *args,
                           slm_error *error)
{
    (void)handle, (void)args;
    return slm_fail(error, SLM_ERR_INTERNAL, "layer_forward", "y", 0, "a result");
}

static size_t audit(const slm_backend *table, char why[TESTEE_WHY])
{
    slm_testee *testee = testee_open_table(table, true);
    audit_line lines[AUDIT_LINES];
    size_t n;

    assert_non_null(testee);
    why[0] = '\0';
    n = audit_run(testee, lines, why);
    for (size_t i = 0; i < n; i++) assert_int_equal(lines[i].finding, AUDIT_TRUE);
    testee_close(testee);
    return n;
}

static void a_layer_that_gives_up_is_said_and_has_no_lines(void **state)
{
    slm_backend table = *slm_variant_find("sequential");
    slm_ops ops = *table.ops;
    char why[TESTEE_WHY];

    (void)state;
    assert_true(audit(&table, why) >= 5);
    assert_string_equal(why, "");
    ops.layer_forward = gives_up;
    table.ops = &ops;
    assert_int_equal(audit(&table, why), 0);
    assert_string_equal(why, "SLM_ERR_INTERNAL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_that_gives_up_is_said_and_has_no_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
