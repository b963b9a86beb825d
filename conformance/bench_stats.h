/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_stats.h - which batches count, and what they say together. */
#ifndef SLM_BENCH_STATS_H
#define SLM_BENCH_STATS_H

#include <stddef.h>

/* First quartile, median, third quartile of n > 0 values, interpolated linearly between
 * neighbours; the values are sorted. */
void bench_quartiles(double *values, size_t n, double out[3]);

/* Seconds that all CPUs were busy since the start, stolen ones too, of the text of
 * /proc/stat; negative when it is not understood. `ticks` are those of a second. */
double bench_busy(const char *stat, double ticks);

/* Others may take this share of what a batch's threads could have. */
#define BENCH_QUIET 0.06

/* Whether a batch counts. busy: seconds of all CPUs during it; own: those of the
 * processes that belong to the bench. One and a half ticks are not seen. */
int bench_is_quiet(double busy, double own, double wall, size_t threads, double ticks);

/* The same of a batch on a device, whose host needs a CPU now and then: one of all `cpus`
 * was idle. `busy` includes what the bench itself took. */
int bench_has_idle_cpu(double busy, double wall, size_t cpus);

/* The same of this machine, now; negative where there is no /proc/stat. */
double bench_busy_now(void);
double bench_ticks(void);
size_t bench_cpus(void);

#endif
