/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/killing.c - which case kills which mutant, and at which stage. */
#include "killing.h"
#include "memo.h"
#include "runner.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ref.h>

typedef struct kill_pool {
    kill_matrix *matrix;
    judge_memo *memo;
    size_t next;
    size_t done;
    size_t working;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} kill_pool;

static void judge_mutant(kill_pool *pool, size_t mutant)
{
    const kill_matrix *matrix = pool->matrix;
    slm_testee *testee = testee_open_table(slm_mutant_info_at(mutant)->table, true);
    kill_mark *marks = matrix->marks + mutant * matrix->n_cases;

    for (size_t i = 0; testee && i < matrix->n_cases; i++) {
        judge_verdict verdict;

        runner_execute(testee, matrix->cases[i], true, pool->memo, NULL, NULL,
                       &verdict);
        marks[i].executed = verdict.state != JUDGE_SKIP;
        marks[i].killed = verdict.state != JUDGE_SKIP && verdict.state != JUDGE_PASS &&
                          verdict.state != JUDGE_VACUOUS;
        memcpy(marks[i].clause, verdict.clause, sizeof marks[i].clause);
        memcpy(marks[i].stage, verdict.stage, sizeof marks[i].stage);
    }
    testee_close(testee);
}

static void *work(void *argument)
{
    kill_pool *pool = argument;

    slm_ref_use_threads(1);
    for (;;) {
        size_t mine;

        pthread_mutex_lock(&pool->lock);
        mine = pool->next++;
        pthread_mutex_unlock(&pool->lock);
        if (mine < pool->matrix->n_mutants) judge_mutant(pool, mine);
        pthread_mutex_lock(&pool->lock);
        if (mine < pool->matrix->n_mutants)
            pool->done++;
        else
            pool->working--;
        pthread_cond_broadcast(&pool->changed);
        pthread_mutex_unlock(&pool->lock);
        if (mine >= pool->matrix->n_mutants) return NULL;
    }
}

/* A suite that the right implementation fails says nothing about wrong ones. */
static int right_passes(kill_pool *pool, char *why)
{
    slm_testee *testee = testee_open_table(slm_variant_info_at(0)->table, true);
    int ok = testee != NULL;

    for (size_t i = 0; ok && i < pool->matrix->n_cases; i++) {
        judge_verdict verdict;

        runner_execute(testee, pool->matrix->cases[i], true, pool->memo, NULL, NULL,
                       &verdict);
        if (verdict.state == JUDGE_PASS || verdict.state == JUDGE_SKIP) continue;
        snprintf(why, 512, "%s: the right implementation fails it: %s %s %s",
                 pool->matrix->cases[i]->id, verdict.clause, verdict.place,
                 verdict.reason);
        ok = 0;
    }
    testee_close(testee);
    return ok;
}

static void wait_for(kill_pool *pool, void (*progress)(void *, size_t, size_t),
                     void *user)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->working) {
        if (progress) progress(user, pool->done, pool->matrix->n_mutants);
        pthread_cond_wait(&pool->changed, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

enum { MAX_JOBS = 64 };

int kill_run(kill_matrix *matrix, const vec_case *const *cases, size_t n_cases,
             size_t jobs, void (*progress)(void *, size_t, size_t), void *user,
             char *why)
{
    kill_pool pool = {.matrix = matrix,
                      .memo = memo_new(),
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .changed = PTHREAD_COND_INITIALIZER};
    pthread_t threads[MAX_JOBS];
    size_t started = 0;
    int ok;

    matrix->n_mutants = slm_mutant_count();
    matrix->n_cases = n_cases;
    matrix->cases = cases;
    matrix->marks = calloc(matrix->n_mutants * n_cases + 1, sizeof *matrix->marks);
    ok = matrix->marks && pool.memo;
    if (!ok) snprintf(why, 512, "out of memory");
    ok = ok && right_passes(&pool, why);
    if (ok) {
        pool.working = jobs < MAX_JOBS ? jobs : MAX_JOBS;
        for (size_t i = 0, n = pool.working; i < n; i++) {
            if (pthread_create(&threads[started], NULL, work, &pool) == 0) {
                started++;
            } else {
                pthread_mutex_lock(&pool.lock);
                pool.working--;
                pthread_mutex_unlock(&pool.lock);
            }
        }
        ok = started > 0;
        if (!ok) snprintf(why, 512, "no thread could be started");
    }
    if (ok) wait_for(&pool, progress, user);
    for (size_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    memo_free(pool.memo);
    return ok;
}

void kill_free(kill_matrix *matrix)
{
    free(matrix->marks);
    matrix->marks = NULL;
}

const kill_mark *kill_at(const kill_matrix *matrix, size_t mutant, size_t test)
{
    return &matrix->marks[mutant * matrix->n_cases + test];
}

size_t kill_count(const kill_matrix *matrix, size_t mutant, size_t *first)
{
    size_t n = 0;

    *first = matrix->n_cases;
    for (size_t i = 0; i < matrix->n_cases; i++) {
        if (!kill_at(matrix, mutant, i)->killed) continue;
        if (n++ == 0) *first = i;
    }
    return n;
}

bool kill_by_family(const kill_matrix *matrix, size_t mutant, const vec_family *family,
                    const char **stage)
{
    for (size_t i = 0; i < matrix->n_cases; i++) {
        const kill_mark *mark = kill_at(matrix, mutant, i);

        if (matrix->cases[i]->family != family || !mark->killed) continue;
        *stage = mark->stage;
        return true;
    }
    return false;
}
