/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/run_file.h - a run read back from the JSON lines of report_jsonl.c. */
#ifndef SLM_RUN_FILE_H
#define SLM_RUN_FILE_H

#include "judge.h"

/* Texts are never NULL: what a line lacks is "". They live as long as the run_file. */

typedef struct run_stage {
    const char *name;
    size_t checked;
    size_t failed;
    double used; /* INFINITY for "inf" */
} run_stage;

enum { RUN_MAX_CLAUSES = 32 };

typedef struct run_result {
    const char *id;     /* "select/mixture/thirds"                          */
    const char *family; /* "select/mixture"                                 */
    const char *about;  /* of the family                                    */
    const char *note;
    judge_state state;
    const char *op;
    const char *provenance;
    const char *tier;
    size_t n_clauses;
    const char *clauses[RUN_MAX_CLAUSES];
    size_t n_stages;
    run_stage stages[JUDGE_MAX_STAGES];
    size_t forced;
    size_t free;
    size_t tie;
    judge_null controls[JUDGE_CONTROLS];
    double seconds;
    const char *reason;
    /* The finding; place is "" when there is none. */
    const char *clause;
    const char *stage;
    const char *place;
    const char *got;
    const char *want;
    double multiple;
    const char *nearest;
    size_t n_alike;
    const char *output;
    const char *again;
} run_result;

/* What was judged of one backend. */
typedef struct run_part {
    const char *backend;
    const char *name;
    const char *version;
    const char *url;
    const char *note;
    size_t abi_major;
    size_t abi_minor;
    size_t n_levels;
    const char *levels[8];
    bool certifiable;
    slm_arithmetic arithmetic;
    const char *tier;
    const char *selection; /* filters; "" when all cases of the tier ran    */
    const char *vectors;   /* SHA-256                                       */
    const char *harness;
    const char *spec;
    const char *date;
    const char *system;
    const char *cpu;
    size_t cores;
    size_t n_results; /* in the order of the file                           */
    run_result *results;
    size_t passed;
    size_t failed;
    size_t skipped;
    double seconds;
} run_part;

typedef struct run_file {
    const char *path;
    size_t n_parts; /* at least 1 */
    run_part *parts;
    struct run_memory *memory;
} run_file;

enum { RUN_WHY = 1024 };

/* Reads a whole run: every line an object of a known kind, in order, with what its kind
 * must have, in the right type; no case twice; counts that agree with the results; the
 * total at the end. Unknown members are passed over. NULL at the first fault, and
 * "PATH:LINE: what\n  what to do" in `why` (RUN_WHY). `path` must outlive the run. */
run_file *run_file_load(const char *path, char *why);
void run_file_free(run_file *run);

/* Of that id, or NULL. */
const run_result *run_file_find(const run_part *part, const char *id);

/* Largest share of a bound that the case used; 0 when no bound was judged. */
double run_file_share(const run_result *result);

#endif
