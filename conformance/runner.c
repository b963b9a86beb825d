/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/runner.c - cases through one backend, in several processes at once. */
#include "runner.h"
#include "hygiene.h"
#include "nearest.h"
#include "undeclared.h"
#include "stopwatch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <ref.h>

static void settle(judge_verdict *verdict, judge_state state, const char *why)
{
    verdict->state = state;
    snprintf(verdict->reason, sizeof verdict->reason, "%.255s", why);
}

static bool is_ref(const slm_testee *testee)
{
    return strcmp(testee_describe(testee)->name, "ref") == 0;
}

/* Failures of a run that still get a hint at a known fault; NULL: none does. */
typedef atomic_int hint_purse;

enum { HINTS = 10 };

static bool may_hint(hint_purse *hints, const vec_case *test,
                     const judge_verdict *verdict)
{
    return hints && verdict->state == JUDGE_FAIL && test->tier <= VEC_QUICK &&
           atomic_fetch_sub(hints, 1) > 0;
}

/* The call and its verdict. Returns true when the answer was right and `digest` holds
 * its bits. */
static bool judge_once(slm_testee *testee, const vec_case *test, judge_memo *memo,
                       runner_progress progress, void *user, hint_purse *hints,
                       judge_verdict *verdict, char *digest)
{
    testee_reply reply;
    call_frame frame;

    if (!testee_frame(testee, test, NULL, &frame, reply.why)) {
        settle(verdict, JUDGE_ERROR, reply.why);
        return false;
    }
    frame.call->progress = progress;
    frame.call->progress_user = user;
    testee_run(testee, &frame, &reply);

    const double start = stopwatch_now();

    switch (reply.outcome) {
    case TESTEE_RETURNED:
        memo_judge(memo, test, &frame, reply.status, &reply.error,
                   &testee_describe(testee)->arithmetic, is_ref(testee), verdict);
        break;
    case TESTEE_CRASHED:
        settle(verdict, JUDGE_CRASH, reply.why);
        break;
    case TESTEE_TIMED_OUT:
        settle(verdict, JUDGE_TIMEOUT, reply.why);
        break;
    case TESTEE_BROKEN:
        settle(verdict, JUDGE_FAIL, reply.why);
        break;
    }
    verdict->seconds = reply.seconds;
    verdict->judge_seconds = stopwatch_now() - start;
    if (reply.outcome == TESTEE_RETURNED && may_hint(hints, test, verdict)) {
        undeclared_find(test, &frame, &testee_describe(testee)->arithmetic, verdict);
        if (!verdict->reason[0])
            nearest_find(test, &frame, reply.status, &reply.error, verdict);
    }
    snprintf(verdict->output, sizeof verdict->output, "%.1023s", reply.output);
    frame_digest(&frame, digest);
    if (reply.outcome == TESTEE_RETURNED && reply.status == SLM_OK)
        snprintf(verdict->bits, sizeof verdict->bits, "%.16s", digest);
    frame_free(&frame);
    return verdict->state == JUDGE_PASS && reply.status == SLM_OK;
}

static void execute(slm_testee *testee, const vec_case *test, bool hygiene,
                    judge_memo *memo, runner_progress progress, void *user,
                    hint_purse *hints, judge_verdict *verdict)
{
    char reason[256] = "", digest[65];

    memset(verdict, 0, sizeof *verdict);
    if (is_ref(testee) && test->provenance == VEC_REF) {
        settle(verdict, JUDGE_SKIP,
               "ref wrote this value; `slmoe gen --check` holds it");
        return;
    }
    if (!testee_offers(testee, test, reason)) {
        settle(verdict, JUDGE_SKIP, reason);
        return;
    }
    if (judge_once(testee, test, memo, progress, user, hints, verdict, digest) &&
        hygiene && test->tier <= VEC_QUICK) {
        hygiene_check(testee, test, digest, verdict);
        if (may_hint(hints, test, verdict)) nearest_by_conduct(test, verdict);
    }
}

void runner_execute(slm_testee *testee, const vec_case *test, bool hygiene,
                    judge_memo *memo, runner_progress progress, void *user,
                    judge_verdict *verdict)
{
    execute(testee, test, hygiene, memo, progress, user, NULL, verdict);
}

typedef struct job {
    judge_verdict verdict;
    bool done;
} job;

typedef struct job_pool {
    const vec_case *const *cases;
    job *jobs;
    size_t n;
    size_t next;
    bool hygiene;
    hint_purse hints;
    pthread_mutex_t lock;
    pthread_cond_t finished;
} job_pool;

typedef struct pool_worker {
    job_pool *pool;
    slm_testee *testee;
    pthread_t thread;
} pool_worker;

static void *work(void *argument)
{
    const pool_worker *worker = argument;
    job_pool *pool = worker->pool;

    slm_ref_use_threads(1);
    for (;;) {
        size_t mine;

        pthread_mutex_lock(&pool->lock);
        mine = pool->next++;
        pthread_mutex_unlock(&pool->lock);
        if (mine >= pool->n) return NULL;
        execute(worker->testee, pool->cases[mine], pool->hygiene, NULL, NULL, NULL,
                &pool->hints, &pool->jobs[mine].verdict);
        pthread_mutex_lock(&pool->lock);
        pool->jobs[mine].done = true;
        pthread_cond_broadcast(&pool->finished);
        pthread_mutex_unlock(&pool->lock);
    }
}

/* Without more cases the workers end after the one that they are at. */
static void take_back(job_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->next = pool->n;
    pthread_mutex_unlock(&pool->lock);
}

static bool stopped(const runner_options *options)
{
    return options->stop && *options->stop;
}

static void collect(job_pool *pool, const runner_options *options, runner_visit visit,
                    void *user)
{
    for (size_t i = 0; i < pool->n && !stopped(options); i++) {
        pthread_mutex_lock(&pool->lock);
        while (!pool->jobs[i].done) pthread_cond_wait(&pool->finished, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
        visit(user, pool->cases[i], &pool->jobs[i].verdict);
    }
    take_back(pool);
}

enum { MAX_WORKERS = 64 };

/* Start the workers; the first uses the testee that is already open. */
static size_t start(job_pool *pool, const char *backend, slm_testee *first,
                    const runner_options *options, pool_worker workers[MAX_WORKERS],
                    char *why)
{
    const size_t wanted = options->jobs < MAX_WORKERS ? options->jobs : MAX_WORKERS;
    size_t n = 0;

    for (; n < wanted; n++) {
        workers[n].pool = pool;
        workers[n].testee = n ? testee_open(backend, &options->testee, why) : first;
        if (!workers[n].testee) break;
        if (pthread_create(&workers[n].thread, NULL, work, &workers[n])) {
            snprintf(why, TESTEE_WHY, "%s: no thread for it", backend);
            if (n) testee_close(workers[n].testee);
            break;
        }
    }
    return n;
}

static int run_parallel(const char *backend, slm_testee *first,
                        const vec_case *const *cases, size_t n,
                        const runner_options *options, runner_visit visit, void *user,
                        char *why)
{
    pool_worker workers[MAX_WORKERS];
    job_pool pool = {.cases = cases,
                     .jobs = calloc(n ? n : 1, sizeof(job)),
                     .n = n,
                     .hygiene = options->hygiene,
                     .hints = HINTS,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .finished = PTHREAD_COND_INITIALIZER};
    size_t started = 0;

    if (!pool.jobs) {
        snprintf(why, TESTEE_WHY, "%s: out of memory", backend);
        return 0;
    }
    started = start(&pool, backend, first, options, workers, why);
    if (started) collect(&pool, options, visit, user);
    for (size_t i = 0; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
        if (i) testee_close(workers[i].testee);
    }
    free(pool.jobs);
    return started > 0;
}

int runner_run(const char *backend, slm_testee *first, const vec_case *const *cases,
               size_t n, const runner_options *options, runner_visit visit,
               runner_progress progress, void *user, char *why)
{
    hint_purse hints = HINTS;

    if (options->jobs > 1)
        return run_parallel(backend, first, cases, n, options, visit, user, why);
    for (size_t i = 0; i < n && !stopped(options); i++) {
        judge_verdict verdict;

        execute(first, cases[i], options->hygiene, NULL, progress, user, &hints,
                &verdict);
        visit(user, cases[i], &verdict);
    }
    return 1;
}
