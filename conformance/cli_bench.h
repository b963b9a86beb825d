/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench.h - what a bench is asked to time, and its processes. */
#ifndef SLM_CLI_BENCH_H
#define SLM_CLI_BENCH_H

#include "bench_judge.h"
#include "bench_report.h"
#include "bench_shape.h"
#include "cli.h"

enum { RIG_SUBJECTS = 8 };

/* ---- cli_bench_rig.c: the processes, and batches of calls in them ---- */

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

/* 1 when it works on a device, else 0: its table has device memory, or its command says so in a
 * note that begins with "device: ". */
int rig_on_device(const bench_rig *rig, size_t subject);

/* The following return 0 and fill `why` when the process crashed, hung or refused. */

/* Measure the roof of the CPUs with so many threads, or of the device. */
int rig_roof(bench_rig *rig, size_t threads, int device, double largest,
             bench_roof *out, char *why);

/* Make the tensors; what was open is closed. */
int rig_prepare(bench_rig *rig, const rig_work *work, char *why);

/* Open a backend for that work and call it once at every place. */
int rig_open(bench_rig *rig, size_t subject, bench_rotation *rotation, char *why);

/* One batch. *seconds: of all calls; *quiet: nobody else disturbed it; *cores: CPUs
 * that were busy for it. */
int rig_batch(bench_rig *rig, size_t subject, size_t calls, size_t threads,
              double *seconds, int *quiet, double *cores, char *why);

/* The account of its calls since it was asked for last: list of `most`, *n of them. *n is
 * 0 where it keeps none. */
int rig_phases(bench_rig *rig, size_t subject, slm_phase *list, size_t most, size_t *n,
               char *why);

/* ---- cli_bench.c: what was asked for ---- */

enum { BENCH_NUMBERS = 16, BENCH_ITEMS = 256, BENCH_ROWS = 4096 };

typedef struct bench_numbers {
    size_t n;
    size_t value[BENCH_NUMBERS];
} bench_numbers;

/* Where the rows go. */
typedef struct bench_outputs {
    FILE *table;
    FILE *jsonl;
    FILE *svg;
} bench_outputs;

typedef struct bench_options {
    cli_list backends;
    cli_list shapes;
    cli_list ops;
    cli_list dtypes;
    cli_list formats;
    bench_numbers tokens;
    bench_numbers experts;
    bench_numbers top_k;
    bench_numbers threads;
    const char *versus;
    int phases;       /* print where each backend's calls spend their time */
    const char *file; /* of shapes */
    double seconds;   /* that a row may take */
    testee_options testee;
} bench_options;

/* What becomes a group of rows, one for each backend. */
typedef struct bench_item {
    const bench_shape *shape;
    slm_op op;
    slm_config config;
    size_t n_tokens;
    bench_sample sample;
    char skipped[RIG_SUBJECTS][256];
} bench_item;

typedef struct bench_run {
    const bench_options *options;
    bench_shapes *shapes;
    bench_outputs to;
    const char *backends[RIG_SUBJECTS];
    size_t n_backends;
    size_t versus; /* index, or n_backends */
    int commands;  /* at least one backend is a command */
    size_t n_items;
    bench_item items[BENCH_ITEMS];
    bench_rig *rig;
    size_t threads;
    bench_roof roof[2]; /* of the CPUs, of the device: what a row is held against */
    size_t n_rows;
    bench_row *rows; /* [BENCH_ROWS] */
} bench_run;

/* cli_bench_items.c: the items of all shapes, operations and sizes that the options ask
 * for. 0, and why is printed, when one cannot be timed. */
int bench_gather_items(bench_run *run);

/* cli_bench_run.c: judge all backends, then time every item, with one number of threads.
 * The exit code; why is printed unless it is that of success. */
int bench_time_all(bench_run *run, size_t threads);

#endif
