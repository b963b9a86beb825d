/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/report.h - writers of results: one table of functions a format. */
#ifndef SLM_REPORT_H
#define SLM_REPORT_H

#include <stdio.h>

#include "judge.h"
#include "machine.h"
#include "testee.h"

typedef struct report_counts {
    size_t state[JUDGE_STATES];
    size_t provenance[VEC_PROVENANCES]; /* of passed cases                  */
    double seconds;
} report_counts;

size_t report_passed(const report_counts *counts);
size_t report_failed(const report_counts *counts);
size_t report_skipped(const report_counts *counts);

/* Which of the three a state counts as. */
typedef enum report_class { REPORT_PASSED, REPORT_FAILED, REPORT_SKIPPED } report_class;
report_class report_classify(judge_state state);

typedef struct report_run {
    const char *backend; /* as named by the user                            */
    const testee_about *about;
    const vec_set *vectors;
    const char *tier;
    const char *repeat; /* options that repeat the selection of vectors, "" */
    bool verbose;
    const char *selection;  /* filters of the cases; "" or NULL: all        */
    bool once;              /* no case was repeated                         */
    const char *harness;    /* version of slmoe and of the specification;   */
    const char *spec;       /*   NULL when unknown                          */
    const machine *machine; /* NULL when unknown                            */
} report_run;

typedef struct report_writer report_writer;

typedef struct report_format {
    const char *name;
    void (*begin)(report_writer *report, const report_run *run);
    void (*result)(report_writer *report, const report_run *run, const vec_case *test,
                   const judge_verdict *verdict);
    void (*end)(report_writer *report, const report_run *run,
                const report_counts *counts);
    void (*total)(report_writer *report, const report_counts *counts);
} report_format;

struct report_writer {
    const report_format *format;
    FILE *out;
    bool broken;   /* something could not be written                        */
    bool started;  /* the head is written                                   */
    size_t number; /* results so far                                        */
    const vec_family *family; /* of the last result                         */
    FILE *body; /* of the backend at hand, into `kept`                   */
    char *kept;
    size_t kept_size;
};

extern const report_format report_human;
extern const report_format report_jsonl;
extern const report_format report_junit;
extern const report_format report_tap;
extern const report_format report_tap13;

/* Why a run of this kind certifies nothing, whatever passes; NULL: it may. */
const char *report_uncertifiable(const report_run *run);

enum { REPORT_COMMAND = 2048 };

/* Append a word to a command of the shell, cut off where `size` ends; in quotes if it
 * needs them. */
void report_append_word(char *command, size_t size, const char *word);

/* The shell command that repeats one case of a run. */
void report_again(const report_run *run, const vec_case *test,
                  char out[REPORT_COMMAND]);

/* Whether specs[i], "name=FILE", has the FILE of one before it; `why` (256 bytes) says of
 * which. */
int report_shares_file(const char *const *specs, size_t i, char *why);

/* Whether each of n is "name" or "name=FILE", and no two have one FILE; else 0 and why
 * (256 bytes). Opens nothing. */
int report_check(const char *const *specs, size_t n, char *why);

/* What report_check() found good. Returns 0 when the file cannot be written; `why` (256
 * bytes) says so. */
int report_open(report_writer *report, const char *spec, char *why);

/* 0 when the file could not be written whole. */
int report_close(report_writer *report);

#endif
