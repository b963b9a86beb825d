/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench_rig.h - what the files of the rig share. */
#ifndef SLM_CLI_BENCH_RIG_H
#define SLM_CLI_BENCH_RIG_H

#include "cli_bench.h"
#include "testee_child.h"

/* A backend. The inputs of a command's calls are copied into its frame one by one, as
 * its process has one handle. */
typedef struct subject {
    const char *name;
    size_t slot;         /* in the timer                                     */
    int device;          /* its work is not done by the CPUs                 */
    child_testee *child; /* of a command, else NULL                          */
    call_frame frame;
    bool framed;
    unsigned char *inputs; /* [places] of all that is no weight                */
    size_t place;
} subject;

struct bench_rig {
    child_testee *timer;
    testee_options options;
    rig_work work;
    size_t n;
    subject subjects[RIG_SUBJECTS];
};

/* Ask a process. The answer, the caller's; NULL and why, which names `who`, when there is
 * none of that type. */
json_t *rig_ask(child_testee *child, const char *who, json_t *question,
                const char *wanted, char *why);

/* The same, when nothing is to be read from the answer. */
int rig_tell(child_testee *child, json_t *question, const char *wanted, char *why);

/* ---- cli_bench_command.c: a backend that is a command ---- */

/* Lay its frame out, open it and call it once at every place. Returns 0 and why. */
int command_open(const bench_rig *rig, subject *one, bench_rotation *rotation,
                 char *why);

/* One call; *seconds are those that its process tells, else those until its answer. */
int command_call(const bench_rig *rig, subject *one, double *seconds, char *why);

/* Give the memory of its calls back. */
void command_let_go(subject *one);

#endif
