/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee_local.c - slmoe-inprocess: any backend in the judge's own process. */
#include "builtins.h"
#include "plugin.h"
#include "registry.h"
#include "testee.h"

/* The library stays loaded: the program ends with its one run. */
slm_testee *testee_open(const char *name, const testee_options *options, char *why)
{
    slm_plugin plugin;

    (void)options;
    if (!plugin_open(&plugin, name, why)) return NULL;
    return testee_open_table(&plugin.table, false);
}

size_t builtins_list(builtin list[BUILTINS_MAX])
{
    size_t n = 0;

    for (const char *name; n < BUILTINS_MAX && (name = registry_name(n)) != NULL; n++) {
        const char *missing = registry_missing(name);

        snprintf(list[n].name, sizeof list[n].name, "%s", name);
        snprintf(list[n].missing, sizeof list[n].missing, "%s", missing ? missing : "");
    }
    return n;
}
