/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/plugin_open.c - find a backend's table: built in, or in a library. */
#include "plugin.h"
#include "registry.h"

#include <dlfcn.h>
#include <fenv.h>
#include <stdio.h>
#include <string.h>

static int is_path(const char *name)
{
    const size_t length = strlen(name);

    return strchr(name, '/') || (length > 3 && strcmp(name + length - 3, ".so") == 0);
}

static int open_library(slm_plugin *plugin, const char *path, char *why)
{
    char local[PLUGIN_WHY];
    fenv_t environment;
    slm_backend_getter getter;

    /* dlopen() searches the system's folders for a name without a slash. */
    snprintf(local, sizeof local, "%s%s", strchr(path, '/') ? "" : "./", path);
    fegetenv(&environment);
    plugin->library = dlopen(local, RTLD_NOW | RTLD_LOCAL);
    fesetenv(&environment);
    if (!plugin->library) {
        snprintf(why, PLUGIN_WHY, "%s: cannot be loaded: %s", path, dlerror());
        return 0;
    }
    *(void **)&getter = dlsym(plugin->library, SLM_BACKEND_SYMBOL);
    if (!getter) {
        snprintf(why, PLUGIN_WHY,
                 "%s: has no symbol %s\n"
                 "  export it as spec/include/slm/backend.h says",
                 path, SLM_BACKEND_SYMBOL);
        return 0;
    }

    const slm_backend *table = getter(SLM_ABI_MAJOR);
    const char *(*emulated)(void);

    *(void **)&emulated = dlsym(plugin->library, "slm_backend_emulated");
    if (emulated) plugin->emulated = emulated();
    *(void **)&plugin->phases = dlsym(plugin->library, SLM_PHASES_SYMBOL);
    fesetenv(&environment);
    if (!table) {
        snprintf(why, PLUGIN_WHY, "%s: declines ABI %d", path, SLM_ABI_MAJOR);
        return 0;
    }
    return plugin_adopt(plugin, table, path, why);
}

static void say_what_to_do(char *out, size_t size, const char *name)
{
    if (strncmp(name, "mutant:", 7) == 0 || strncmp(name, "variant:", 8) == 0)
        snprintf(out, size,
                 "\n  spec/bugs.md lists mutants, `slmoe mutants` judges all");
    else if (strchr(name, ','))
        snprintf(out, size, "\n  one backend for each -b: -b ref -b cpu");
    else
        snprintf(out, size, "\n  a plug-in is named by its path: -b ./lib%s.so", name);
}

int plugin_open(slm_plugin *plugin, const char *name, char *why)
{
    memset(plugin, 0, sizeof *plugin);
    if (is_path(name)) {
        if (open_library(plugin, name, why)) return 1;
        plugin_close(plugin);
        return 0;
    }

    const slm_backend *table = registry_find(name);
    const char *missing = table ? NULL : registry_missing(name);

    plugin->phases = registry_phases(name);
    if (table) return plugin_adopt(plugin, table, name, why);
    if (missing) {
        snprintf(why, PLUGIN_WHY, "%s: left out: %s", name, missing);
        return 0;
    }
    if (registry_library(name))
        return open_library(plugin, registry_library(name), why);

    int length = snprintf(why, PLUGIN_WHY, "%s: no such backend; built in:", name);

    for (size_t i = 0; registry_name(i) && length < PLUGIN_WHY - 64; i++)
        length += snprintf(why + length, PLUGIN_WHY - (size_t)length, " %s",
                           registry_name(i));
    say_what_to_do(why + length, PLUGIN_WHY - (size_t)length, name);
    return 0;
}

void plugin_close(slm_plugin *plugin)
{
    if (plugin->library) dlclose(plugin->library);
    memset(plugin, 0, sizeof *plugin);
}
