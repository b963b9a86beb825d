/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench.h - the processes of a bench, and batches of calls in them. */
#ifndef SLM_CLI_BENCH_H
#define SLM_CLI_BENCH_H

#include "bench_report.h"
#include "testee.h"

enum { RIG_SUBJECTS = 8 };

/* What is timed together: the same tensors, all backends. */
typedef struct rig_work {
    slm_op op;
    slm_config config;
    size_t n_tokens;
    size_t layers;
    size_t places;
} rig_work;

/* Where backends are timed. Tables lie in one process of slmoe-host with the roof; a
 * command has a process of its own and says itself how long a call took. */
typedef struct bench_rig bench_rig;

/* Start the processes. Sets OPENBLAS_CORETYPE for commands where it must be set and is
 * not. NULL and a message for people (TESTEE_WHY) when one does not start. */
bench_rig *rig_start(const char *const *backends, size_t n,
                     const testee_options *options, char *why);
void rig_stop(bench_rig *rig); /* accepts NULL */

/* What a backend calls itself if it is a command, else the name that it was given. */
const char *rig_name(const bench_rig *rig, size_t subject);

/* The following return 0 and fill `why` when the process crashed, hung or refused. */

int rig_roof(bench_rig *rig, size_t threads, double largest, bench_roof *out,
             char *why);

/* Make the tensors; what was open is closed. */
int rig_prepare(bench_rig *rig, const rig_work *work, char *why);

/* Open a backend for that work and call it once at every place. */
int rig_open(bench_rig *rig, size_t subject, bench_rotation *rotation, char *why);

/* One batch. *seconds: of all calls; *quiet: nobody else disturbed it; *cores: CPUs
 * that were busy for it. */
int rig_batch(bench_rig *rig, size_t subject, size_t calls, size_t threads,
              double *seconds, int *quiet, double *cores, char *why);

#endif
