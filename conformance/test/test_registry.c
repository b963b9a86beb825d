/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_registry.c - finding backends and adopting their tables.
 *
 * The plug-ins are built from plugin/tables.c by the compiler that CC names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../plugin.h"
#include "../registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SOURCE SLM_VECTORS_DIR "/.."

static char folder[] = "/tmp/slm-registry-XXXXXX";

/* Build one of the tables and open it. */
static int open_table(slm_plugin *plugin, int table, char *why)
{
    const char *cc = getenv("CC");
    char command[2048], path[128];

    snprintf(path, sizeof path, "%s/table%d.so", folder, table);
    snprintf(command, sizeof command,
             "%s -std=c17 -fPIC -shared -DTABLE=%d -I'%s/spec/include' -o '%s' "
             "'%s/conformance/test/plugin/tables.c'",
             cc && *cc ? cc : "cc", table, SOURCE, path, SOURCE);
    assert_int_equal(system(command), 0);
    return plugin_open(plugin, path, why);
}

static void refused(int table, const char *words)
{
    char why[PLUGIN_WHY] = "";
    slm_plugin plugin;

    assert_false(open_table(&plugin, table, why));
    if (!strstr(why, words)) fail_msg("'%s' is not in '%s'", words, why);
    plugin_close(&plugin);
}

static void every_listed_backend_is_found_or_says_why_it_is_left_out(void **state)
{
    size_t n = 0;

    (void)state;
    for (; registry_name(n); n++) {
        const slm_backend *table = registry_find(registry_name(n));

        assert_true((table == NULL) == (registry_missing(registry_name(n)) != NULL ||
                                        registry_library(registry_name(n)) != NULL));
        if (table) assert_string_equal(table->name, registry_name(n));
    }
    assert_true(n >= 2);
    assert_non_null(registry_find("ref"));
    assert_null(registry_find("nobody"));
    assert_null(registry_missing("nobody"));
}

static void a_peer_is_found_by_name_and_not_listed(void **state)
{
    (void)state;
    for (size_t n = 0; registry_name(n); n++)
        assert_null(strstr(registry_name(n), "-loop"));
    assert_null(registry_find("gpu-loop"));
    assert_true(registry_missing("gpu-loop") || registry_library("gpu-loop"));
    assert_true(registry_missing("gpu-loop-emu") || registry_library("gpu-loop-emu"));
    assert_null(registry_library("gpu-loop-none"));
}

static void a_built_in_opens_by_name_and_offers_what_its_table_has(void **state)
{
    char why[PLUGIN_WHY];
    slm_plugin plugin;

    (void)state;
    assert_true(plugin_open(&plugin, "ref", why));
    assert_null(plugin.library);
    assert_int_equal(plugin_offered(&plugin), (1u << SLM_OP_COUNT) - 1);
    plugin_close(&plugin);
}

static void an_unknown_name_is_answered_with_the_known_ones(void **state)
{
    char why[PLUGIN_WHY];
    slm_plugin plugin;

    (void)state;
    assert_false(plugin_open(&plugin, "nobody", why));
    assert_non_null(strstr(why, "nobody: no such backend"));
    assert_non_null(strstr(why, " ref"));
    assert_non_null(strstr(why, "./libnobody.so"));
}

static void a_library_that_is_not_there_or_is_none_is_refused(void **state)
{
    char why[PLUGIN_WHY];
    slm_plugin plugin;

    (void)state;
    assert_false(plugin_open(&plugin, "./missing.so", why));
    assert_non_null(strstr(why, "cannot be loaded"));
    assert_false(plugin_open(&plugin, "missing.so", why));
    assert_non_null(strstr(why, "cannot be loaded"));
    assert_false(plugin_open(&plugin, SOURCE "/LICENSE", why));
    assert_non_null(strstr(why, "cannot be loaded"));
}

static void a_whole_table_is_taken_over(void **state)
{
    char why[PLUGIN_WHY], reason[256];
    slm_plugin plugin;
    slm_config config = {.struct_size = sizeof config};

    (void)state;
    assert_true(open_table(&plugin, 0, why));
    assert_int_equal(plugin_offered(&plugin), 1u << SLM_OP_rmsnorm);
    assert_true(plugin.arithmetic.balance == 0x1p-30);
    assert_true(plugin_offers(&plugin, &config, SLM_OP_rmsnorm, 1, reason));
    assert_false(plugin_offers(&plugin, &config, SLM_OP_select, 1, reason));
    assert_string_equal(reason, "the backend has no `select`");
    plugin_close(&plugin);
}

static void what_is_no_table_of_this_abi_is_refused_in_words(void **state)
{
    (void)state;
    refused(10, "has no symbol slm_backend_get");
    refused(1, "speaks ABI 99, this harness ABI 1");
    refused(2, "its table lacks struct_size");
    refused(3, "declines ABI 1");
    refused(4, "its table lacks struct_size, name");
    refused(7, "struct_size of its ops or arithmetic is not set");
    refused(8, "offers layer_forward without prepare()");
}

static void operations_behind_the_end_of_an_older_table_are_absent(void **state)
{
    char why[PLUGIN_WHY];
    slm_plugin plugin;

    (void)state;
    assert_true(open_table(&plugin, 5, why));
    assert_int_equal(plugin_offered(&plugin), 1u << SLM_OP_rmsnorm);
    assert_true(plugin.arithmetic.accumulator == 0x1p-24);
    assert_true(plugin.arithmetic.balance == 0);
    plugin_close(&plugin);
    assert_true(open_table(&plugin, 9, why)); /* nor do they need prepare() */
    assert_null(plugin.ops.layer_forward);
    plugin_close(&plugin);
}

static void what_a_newer_table_has_at_its_end_is_left_alone(void **state)
{
    char why[PLUGIN_WHY];
    slm_plugin plugin;

    (void)state;
    assert_true(open_table(&plugin, 6, why));
    assert_int_equal(plugin.table.abi_minor, 7);
    assert_int_equal(plugin_offered(&plugin), 1u << SLM_OP_rmsnorm);
    plugin_close(&plugin);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char path[128];

    (void)state;
    for (int table = 0; table <= 10; table++) {
        snprintf(path, sizeof path, "%s/table%d.so", folder, table);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_listed_backend_is_found_or_says_why_it_is_left_out),
        cmocka_unit_test(a_peer_is_found_by_name_and_not_listed),
        cmocka_unit_test(a_built_in_opens_by_name_and_offers_what_its_table_has),
        cmocka_unit_test(an_unknown_name_is_answered_with_the_known_ones),
        cmocka_unit_test(a_library_that_is_not_there_or_is_none_is_refused),
        cmocka_unit_test(a_whole_table_is_taken_over),
        cmocka_unit_test(what_is_no_table_of_this_abi_is_refused_in_words),
        cmocka_unit_test(operations_behind_the_end_of_an_older_table_are_absent),
        cmocka_unit_test(what_a_newer_table_has_at_its_end_is_left_alone),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
