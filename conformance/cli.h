/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli.h - the verbs of slmoe and what they share. */
#ifndef SLM_CLI_H
#define SLM_CLI_H

#include "judge.h"
#include "paths.h"
#include "testee.h"
#include "vector.h"

#define SLMOE_VERSION "0.1.0"
#define SLM_SPEC_VERSION "0.2"

/* Exit codes. When several apply: 2, 6, 4, 77, 3, 1, 5, 0. */
enum {
    EXIT_CONFORMS = 0,
    EXIT_FAILS = 1,
    EXIT_USAGE = 2,
    EXIT_HARNESS = 3,
    EXIT_BACKEND = 4,
    EXIT_NOTHING = 5,
    EXIT_VECTORS = 6,
    EXIT_NO_DEVICE = 77
};

/* The more urgent of two exit codes. */
int exit_worse(int a, int b);

/* The exit code for a backend that testee_open() did not open, by its message: where a
 * built-in one has no device, or not the software that comes with one, it is another. */
int exit_unopened(const char *name, const char *why);

enum { CLI_MAX = 32 };

typedef struct cli_list {
    size_t n;
    const char *item[CLI_MAX];
} cli_list;

/* Options of every verb; each verb says which it takes. */
typedef struct cli_options {
    const char *verb;
    cli_list backends;
    const char *vectors;            /* --vectors, SLM_VECTORS or the default    */
    char default_vectors[SLM_PATH]; /* where they lie when nothing is said      */
    cli_list only;
    cli_list not ;
    cli_list tags;
    cli_list clauses;
    cli_list provenances;
    vec_tier tier;
    bool tier_given;
    cli_list formats; /* "human", "jsonl=FILE", ...                         */
    bool verbose;
    bool check;
    bool essential;
    bool once; /* no repetitions of a case that passed */
    testee_options testee;
    size_t jobs;
    size_t max_fail; /* 0: no limit */
    size_t shard;    /* 1 .. shard_of */
    size_t shard_of;
    const char *xfail;
    const char *html; /* file, "" for stdout; NULL when not asked for       */
    cli_list words;   /* what is left: a case, a clause                       */
} cli_options;

/* One letter an option: b V o n t c p T f v k(check) S(timeout) W(slow)
 * j s(shard) x(xfail) m(max-fail) H(html) e(essential) 1(once). Parse argv of a verb that takes
 * the letters in `allowed`; prints to stderr and returns 0 on a usage error. */
int cli_parse(int argc, char **argv, const char *allowed, cli_options *options);

/* Load the vectors that the options name; on a fault prints it and returns NULL. */
vec_set *cli_load(const cli_options *options);

/* Whether a case passes the filters (--only --not --tag --clause --provenance --tier),
 * and is current. */
bool cli_selects(const cli_options *options, const vec_case *test);

/* The case of a whole id, or the only one that a glob matches; prints and returns NULL
 * otherwise. */
const vec_case *cli_find_case(const vec_set *set, const char *id);

/* Progress on stderr, on a terminal only. */
typedef struct cli_progress {
    bool shown;
    size_t done;
    size_t total;
    const char *what;
} cli_progress;

void progress_begin(cli_progress *progress, size_t total);
void progress_step(cli_progress *progress, const char *what);
void progress_within(void *progress, size_t done, size_t total);
void progress_clear(cli_progress *progress);

int cli_run(int argc, char **argv);
int cli_list_cases(int argc, char **argv);
int cli_show(int argc, char **argv);
int cli_explain(int argc, char **argv);
int cli_gen(int argc, char **argv);
int cli_probe(int argc, char **argv);
int cli_new(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_mutants(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_report(int argc, char **argv);
int cli_diff(int argc, char **argv);

#endif
