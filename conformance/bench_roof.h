/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_roof.h - what this machine does at best, measured. */
#ifndef SLM_BENCH_ROOF_H
#define SLM_BENCH_ROOF_H

#include "bench_cost.h"

/* Measure with that many threads; reading, of sizes up to the first that holds `largest`
 * bytes. The best of several short runs each, as it is a bound. Costs a second or two.
 * Returns 0 without memory or threads. */
int bench_roof_measure(bench_roof *out, size_t threads, double largest);

#endif
