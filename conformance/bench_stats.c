/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_stats.c - quiet batches, and their quartiles. */
#include "bench_stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void bench_quartiles(double *values, size_t n, double out[3])
{
    qsort(values, n, sizeof *values, compare);
    for (int i = 0; i < 3; i++) {
        const double at = (double)(n - 1) * (i + 1) / 4;
        const size_t low = (size_t)at;
        const size_t high = low + 1 < n ? low + 1 : low;

        out[i] = values[low] + (at - (double)low) * (values[high] - values[low]);
    }
}

double bench_busy(const char *stat, double ticks)
{
    enum { USER, NICE, SYSTEM, IDLE, WAIT, IRQ, SOFT_IRQ, STOLEN, N };
    unsigned long long t[N];

    if (sscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[USER], &t[NICE],
               &t[SYSTEM], &t[IDLE], &t[WAIT], &t[IRQ], &t[SOFT_IRQ], &t[STOLEN]) != N)
        return -1;
    return (double)(t[USER] + t[NICE] + t[SYSTEM] + t[IRQ] + t[SOFT_IRQ] + t[STOLEN]) /
           ticks;
}

int bench_is_quiet(double busy, double own, double wall, size_t threads, double ticks)
{
    return busy - own <= BENCH_QUIET * wall * (double)threads + 1.5 / ticks;
}

int bench_has_idle_cpu(double busy, double wall, size_t cpus)
{
    return busy <= (cpus > 1 ? (double)cpus - 1 : 1) * wall;
}

size_t bench_cpus(void)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    return cpus > 0 ? (size_t)cpus : 1;
}

double bench_ticks(void)
{
    const long ticks = sysconf(_SC_CLK_TCK);

    return ticks > 0 ? (double)ticks : 100;
}

double bench_busy_now(void)
{
    FILE *file = fopen("/proc/stat", "re");
    char line[512] = "";

    if (!file) return -1;
    if (!fgets(line, sizeof line, file)) line[0] = '\0';
    fclose(file);
    return bench_busy(line, bench_ticks());
}
