/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_bench_roof.h - answers to the question for a roof. */
#ifndef SLM_HOST_BENCH_ROOF_H
#define SLM_HOST_BENCH_ROOF_H

#include <jansson.h>
#include <stddef.h>

/* Of the CPUs with that many threads: see bench_roof.h. */
json_t *host_roof_of_cpus(size_t threads, double largest);

/* Of the device, by the library that registry_roof() names (gpu/roof). Where it cannot
 * be measured the answer has no sizes, and `missing` says why. */
json_t *host_roof_of_device(int emulated, double largest);

#endif
