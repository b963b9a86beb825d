/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/machine.c - where and when a run was made. */
#include "machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* The value of the first line "KEY<blanks>: VALUE" of /proc/cpuinfo. */
static int read_cpuinfo(const char *key, char *out, size_t size)
{
    const size_t length = strlen(key);
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];
    int found = 0;

    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');

        if (strncmp(line, key, length) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        found = 1;
    }
    fclose(file);
    return found;
}

static void describe_cpu(machine *out)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);

    out->cores = cores > 0 && cores < 1 << 20 ? (int)cores : 0;
    if (!read_cpuinfo("model name", out->cpu, sizeof out->cpu))
        read_cpuinfo("CPU part", out->cpu, sizeof out->cpu);
}

static void describe_date(machine *out)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    time_t now = time(NULL);
    struct tm parts;

    if (epoch && *epoch) {
        char *end;

        errno = 0;
        now = (time_t)strtoll(epoch, &end, 10);
        if (errno || *end) return;
    }
    if (!gmtime_r(&now, &parts) ||
        !strftime(out->date, sizeof out->date, "%Y-%m-%dT%H:%M:%SZ", &parts))
        out->date[0] = '\0';
}

void machine_describe(machine *out)
{
    struct utsname name;

    memset(out, 0, sizeof *out);
    if (uname(&name) == 0)
        snprintf(out->system, sizeof out->system, "%.64s %.64s %.64s", name.sysname,
                 name.release, name.machine);
    describe_cpu(out);
    describe_date(out);
}
