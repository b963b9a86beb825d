/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/backward_case.h - cases of backward passes, for tests of the judge. */
#ifndef SLM_TEST_BACKWARD_CASE_H
#define SLM_TEST_BACKWARD_CASE_H

#include <testee.h>

#include "case.h"

/* Sizes, by the documents' letters; T tokens. */
enum { D = 22, L = 12, N = 8, K = 2, F = 10, S = 2, FS = 6, T = 12 };

/* What a case looks like. */
typedef struct look {
    const char *profile;
    size_t k;
    double scale; /* of gate and up: their sums grow with it  */
    double out;   /* of the experts' last matrix              */
    double dy;
    double router;
    slm_dtype dtype;
} look;

enum { LOOKS = 12, ROOM = 64 };
extern const look looks[LOOKS];

/* A case, its values, and what holds its frame. */
typedef struct run {
    made_case made;
    slm_testee *testee;
    float *values[ROOM];
    size_t n_values;
} run;

/* A case of that look with seeded values, and its frame for a backend. */
typedef void opener(run *, const slm_backend *, const look *);
void open_layer(run *at, const slm_backend *table, const look *how);
void open_dense(run *at, const slm_backend *table, const look *how);
void open_slopes(run *at, const slm_backend *table, const look *how);
void open_norm(run *at, const slm_backend *table, const look *how);
void open_choice(run *at, const slm_backend *table, const look *how);
void close_run(run *at);

/* The testee and the frame alone: once more, after a size was changed. */
void hold_frame(run *at, const slm_backend *table);

/* A network has no linear form, and a norm that is none nothing to differentiate. */
int is_odd(opener *open, const look *how);

#endif
