/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/share.h - the share of its bound that each stage used, over runs. */
#ifndef SLM_STUDY_SHARE_H
#define SLM_STUDY_SHARE_H

#include "../judge.h"

enum { SHARE_STAGES = 160 };

typedef struct share_stage {
    const char *op;
    const char *stage;
    size_t n;
    size_t room;
    double *used; /* [n] largest share in a run */
} share_stage;

typedef struct share_table {
    size_t n;
    share_stage stages[SHARE_STAGES];
} share_table;

/* Add the stages of a verdict. Returns 0 when memory ran out. */
int share_add(share_table *table, const char *op, const judge_verdict *verdict);

/* Sort every stage's values; share_quantile() and share_above() need that. */
void share_sort(share_table *table);

/* The value that a share of the runs does not pass: 0 the least, 1 the largest. */
double share_quantile(const share_stage *stage, double share);

/* Runs that used more than `limit` of the bound. */
size_t share_above(const share_stage *stage, double limit);

void share_free(share_table *table);

#endif
