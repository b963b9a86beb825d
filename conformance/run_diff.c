/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/run_diff.c - what changed between two runs. */
#include "run_diff.h"
#include "declared.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct differ {
    FILE *out;
    run_difference found;
} differ;

/* Higher is better. */
static int rank(judge_state state)
{
    switch (state) {
    case JUDGE_PASS:
    case JUDGE_XPASS:
        return 3;
    case JUDGE_SKIP:
    case JUDGE_XFAIL:
        return 2;
    case JUDGE_FAIL:
    case JUDGE_VACUOUS:
        return 1;
    default:
        return 0;
    }
}

static void say_why(FILE *out, const run_result *result)
{
    if (result->place[0])
        fprintf(out, "        %s%s%s: %s got %s want %s\n", result->clause,
                result->stage[0] ? " stage " : "", result->stage, result->place,
                result->got, result->want);
    if (result->reason[0]) fprintf(out, "        %s\n", result->reason);
    if (result->again[0]) fprintf(out, "        again: %s\n", result->again);
}

static void compare_states(differ *diff, const run_result *before,
                           const run_result *after)
{
    const int change = rank(after->state) - rank(before->state);

    *(change < 0   ? &diff->found.worse
      : change > 0 ? &diff->found.better
                   : &diff->found.changed) += 1;
    fprintf(diff->out, "%-7s %s: %s -> %s\n",
            change < 0   ? "worse"
            : change > 0 ? "better"
                         : "changed",
            after->id, judge_state_name(before->state), judge_state_name(after->state));
    if (change < 0) say_why(diff->out, after);
}

static const run_stage *find_stage(const run_result *result, const char *name)
{
    for (size_t i = 0; i < result->n_stages; i++)
        if (strcmp(result->stages[i].name, name) == 0) return &result->stages[i];
    return NULL;
}

/* 1 when b is more than DIFF_FACTOR times a, and enough to matter. */
static int is_larger(double a, double b)
{
    return b >= DIFF_FLOOR && (isinf(b) ? !isinf(a) : b > DIFF_FACTOR * a);
}

static void compare_shares(differ *diff, const run_result *before,
                           const run_result *after)
{
    for (size_t i = 0; i < after->n_stages; i++) {
        const run_stage *now = &after->stages[i], *was = find_stage(before, now->name);

        if (!was) continue;
        if (is_larger(was->used, now->used))
            diff->found.worse++;
        else if (is_larger(now->used, was->used))
            diff->found.better++;
        else
            continue;
        fprintf(diff->out, "%-7s %s: stage %s used %.2g of its bound, now %.2g\n",
                now->used > was->used ? "worse" : "better", after->id, now->name,
                was->used, now->used);
    }
}

static void compare_text(FILE *out, const char *what, const char *before,
                         const char *after)
{
    if (strcmp(before, after) == 0) return;
    fprintf(out, "note    %s: %s -> %s\n", what, before[0] ? before : "none",
            after[0] ? after : "none");
}

/* What makes two runs unlike before a case is looked at. */
static void compare_heads(FILE *out, const run_part *before, const run_part *after)
{
    char was[DECLARED_TEXT], is[DECLARED_TEXT];

    declared_words(&before->arithmetic, was);
    declared_words(&after->arithmetic, is);
    compare_text(out, "backend", before->backend, after->backend);
    compare_text(out, "version", before->version, after->version);
    compare_text(out, "declared arithmetic, so that bounds differ", was, is);
    compare_text(out, "vectors", before->vectors, after->vectors);
    compare_text(out, "tier", before->tier, after->tier);
    compare_text(out, "selection", before->selection, after->selection);
    compare_text(out, "slmoe", before->harness, after->harness);
    compare_text(out, "processor", before->cpu, after->cpu);
}

/* Results of a part by id. */
typedef struct case_index {
    size_t n;
    const run_result **by_id;
} case_index;

static int compare_results(const void *a, const void *b)
{
    return strcmp((*(const run_result *const *)a)->id,
                  (*(const run_result *const *)b)->id);
}

static case_index index_cases(const run_part *part)
{
    case_index index = {.n = part->n_results,
                        .by_id = malloc((part->n_results + 1) * sizeof *index.by_id)};

    if (!index.by_id) return (case_index){.n = 0};
    for (size_t i = 0; i < index.n; i++) index.by_id[i] = &part->results[i];
    qsort(index.by_id, index.n, sizeof *index.by_id, compare_results);
    return index;
}

static const run_result *look_up(const case_index *index, const run_result *like)
{
    const run_result *const *found =
        index->n ? bsearch(&like, index->by_id, index->n, sizeof *index->by_id,
                           compare_results)
                 : NULL;

    return found ? *found : NULL;
}

static void tell_gone(differ *diff, const run_result *before)
{
    const int passed = rank(before->state) == 3;

    diff->found.gone++;
    if (passed) diff->found.worse++;
    fprintf(diff->out, "gone    %s, was %s%s\n", before->id,
            judge_state_name(before->state),
            passed ? ": a case that passed proves nothing any more" : "");
}

static void tell_new(differ *diff, const run_result *after)
{
    diff->found.added++;
    fprintf(diff->out, "new     %s: %s\n", after->id, judge_state_name(after->state));
    if (rank(after->state) < 2) say_why(diff->out, after);
}

static void compare_parts(differ *diff, const run_part *before, const run_part *after)
{
    case_index old = index_cases(before), new = index_cases(after);

    compare_heads(diff->out, before, after);
    for (size_t i = 0; i < after->n_results; i++) {
        const run_result *was = look_up(&old, &after->results[i]);

        if (!was) {
            tell_new(diff, &after->results[i]);
            continue;
        }
        if (was->state != after->results[i].state)
            compare_states(diff, was, &after->results[i]);
        else
            compare_shares(diff, was, &after->results[i]);
    }
    for (size_t i = 0; i < before->n_results; i++)
        if (!look_up(&new, &before->results[i])) tell_gone(diff, &before->results[i]);
    free(old.by_id);
    free(new.by_id);
}

static const run_part *find_part(const run_file *run, const run_part *like)
{
    for (size_t i = 0; i < run->n_parts; i++)
        if (strcmp(run->parts[i].backend, like->backend) == 0) return &run->parts[i];
    return NULL;
}

run_difference run_diff(FILE *out, const run_file *before, const run_file *after)
{
    const int one_each = before->n_parts == 1 && after->n_parts == 1;
    differ diff = {.out = out};

    for (size_t i = 0; i < after->n_parts; i++) {
        const run_part *part = &after->parts[i];
        const run_part *was = one_each ? &before->parts[0] : find_part(before, part);

        if (before->n_parts > 1 || after->n_parts > 1)
            fprintf(out, "backend %s%s\n", part->backend,
                    was ? "" : ", which the first run has not");
        if (was)
            compare_parts(&diff, was, part);
        else
            diff.found.added += part->n_results;
    }
    for (size_t i = 0; i < before->n_parts && !one_each; i++) {
        const run_part *part = &before->parts[i];

        if (find_part(after, part)) continue;
        fprintf(out, "backend %s, which the second run has not\n", part->backend);
        diff.found.gone += part->n_results;
        diff.found.worse += part->passed;
    }
    fprintf(out, "%zu worse, %zu better, %zu changed, %zu new, %zu gone\n",
            diff.found.worse, diff.found.better, diff.found.changed, diff.found.added,
            diff.found.gone);
    return diff.found;
}
