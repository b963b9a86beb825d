/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_report.h - rows of a bench: a table, JSON lines, a picture. */
#ifndef SLM_BENCH_REPORT_H
#define SLM_BENCH_REPORT_H

#include "bench_cost.h"

#include <slm/phases.h>

#include <stdio.h>

enum { BENCH_SAMPLES = 64, BENCH_NAME = 128 };

/* A batch of one backend. */
typedef struct bench_batch {
    double seconds; /* a call                                               */
    int quiet;
} bench_batch;

typedef struct bench_row {
    const char *shape;
    const char *op;
    slm_config config;
    size_t n_tokens;
    char backend[BENCH_NAME];
    size_t threads;
    size_t judged; /* tokens that were judged before                        */
    size_t layers;
    double cores; /* CPUs that were busy for it, on the average            */
    bench_cost cost;
    double roof;  /* seconds; 0: not known                                  */
    double usual; /* the same where bytes move as they usually did          */
    int moving;   /* of moving bytes, not of arithmetic                      */
    size_t n;
    bench_batch batch[BENCH_SAMPLES];
    char skipped[256]; /* why it was not timed, or ""                       */
    size_t n_phases;   /* 0: no account was asked for, or none is kept      */
    slm_phase phase[SLM_MAX_PHASES];   /* of a call, the mean over all           */
    double phase_roof[SLM_MAX_PHASES]; /* seconds below which it cannot be; 0: none */

    /* By bench_settle(). */
    size_t n_quiet;
    int disturbed;  /* fewer quiet batches than BENCH_ENOUGH: no evidence     */
    double time[3]; /* quartiles of the seconds of a call                     */
    double ratio;   /* seconds of the other one / its own; 0: none            */
} bench_row;

enum { BENCH_ENOUGH = 5 };

/* Quartiles of the quiet batches; where there are none, of all, and it is disturbed. */
void bench_settle(bench_row *row);

/* How many times as long the other one takes: the median over pairs of neighbouring
 * batches that are quiet both. 0 when fewer than BENCH_ENOUGH are. */
void bench_compare(bench_row *row, const bench_row *other);

/* Where it was made. */
typedef struct bench_origin {
    const char *slmoe;
    const char *spec;
    const char *system;
    const char *cpu;
    const char *date;
} bench_origin;

void bench_table_roof(FILE *out, const bench_roof *roof);
void bench_table_head(FILE *out, const char *versus);
void bench_table_row(FILE *out, const bench_row *row);
void bench_table_phases(FILE *out, const bench_row *row);

/* What a reader must know of the table: rows that are no evidence, and rows that beat
 * their roof by more than it is off by itself. */
void bench_table_foot(FILE *out, const bench_row *rows, size_t n);

void bench_json_head(FILE *out, const bench_origin *origin);
void bench_json_roof(FILE *out, const bench_roof *roof);
void bench_json_row(FILE *out, const bench_row *row, const char *versus);

/* Share of the roof over the batch size, a line for each backend, a panel for each shape,
 * operation and number of threads. Rows that are disturbed or skipped are left out. */
void bench_svg(FILE *out, const bench_row *rows, size_t n);

#endif
