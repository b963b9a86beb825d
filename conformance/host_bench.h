/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_bench.h - slmoe-host as the process in which backends are timed. */
#ifndef SLM_HOST_BENCH_H
#define SLM_HOST_BENCH_H

/* The name that stands for it instead of a backend's. */
#define HOST_BENCH "--bench"

/* Answer the requests of `slmoe bench` until there are no more. Returns the exit code. The
 * note of its hello is OpenBLAS's core type, as it should be set here. */
int host_bench(void);

#endif
