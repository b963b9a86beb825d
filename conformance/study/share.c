/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/share.c - the share of its bound that each stage used, over runs. */
#include "share.h"

#include <stdlib.h>
#include <string.h>

static share_stage *find(share_table *table, const char *op, const char *stage)
{
    for (size_t i = 0; i < table->n; i++)
        if (strcmp(table->stages[i].op, op) == 0 &&
            strcmp(table->stages[i].stage, stage) == 0)
            return &table->stages[i];
    if (table->n == SHARE_STAGES) return NULL;
    table->stages[table->n] = (share_stage){.op = op, .stage = stage};
    return &table->stages[table->n++];
}

int share_add(share_table *table, const char *op, const judge_verdict *verdict)
{
    for (size_t i = 0; i < verdict->n_stages; i++) {
        share_stage *stage = find(table, op, verdict->stages[i].name);

        if (verdict->stages[i].checked == 0) continue;
        if (!stage) return 0;
        if (stage->n == stage->room) {
            const size_t room = stage->room ? 2 * stage->room : 64;
            double *used = realloc(stage->used, room * sizeof *used);

            if (!used) return 0;
            stage->used = used;
            stage->room = room;
        }
        stage->used[stage->n++] = verdict->stages[i].used;
    }
    return 1;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int by_name(const void *a, const void *b)
{
    const share_stage *x = a, *y = b;

    return strcmp(x->op, y->op);
}

void share_sort(share_table *table)
{
    qsort(table->stages, table->n, sizeof *table->stages, by_name);
    for (size_t i = 0; i < table->n; i++)
        if (table->stages[i].n)
            qsort(table->stages[i].used, table->stages[i].n, sizeof(double), ascending);
}

double share_quantile(const share_stage *stage, double share)
{
    return stage->n ? stage->used[(size_t)(share * (double)(stage->n - 1) + 0.5)] : 0;
}

size_t share_above(const share_stage *stage, double limit)
{
    size_t n = 0;

    for (size_t i = 0; i < stage->n; i++) n += !(stage->used[i] <= limit);
    return n;
}

void share_free(share_table *table)
{
    for (size_t i = 0; i < table->n; i++) free(table->stages[i].used);
    memset(table, 0, sizeof *table);
}
