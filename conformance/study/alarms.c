/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/alarms.c - right backends on random cases: no alarm, and no slack.
 *
 *   alarms [--long] [--cases N] [--seed N]
 *
 * Case i is made from seed N + i alone, answered by one of the right variants, and
 * judged with all taps, with none, or with some. Then it is counted how many would be
 * rejected if every bound were a hundredth. Without --seed those that once raised an
 * alarm are tried as well. `--cases 1 --seed S` repeats one case. Exit code 1 when a right answer is rejected, or when most bounds could be a hundredth. */
#include "draw.h"
#include "share.h"

#include "../mutants/mutants.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ref.h>

enum { QUICK = 3000, LONG = 200000, JOBS = 2 };

/* Right answers that were rejected: a gate that nobody showed and that may lie anywhere
 * about 0, or where e^a grows faster than its samples saw; scores, slopes and sums below
 * 2^-126. */
static const uint64_t once[] = {10090,  106989, 111894, 147738, 231479, 238686, 334291,
                                403013, 442874, 528201, 534303, 548839, 1114799};
enum { ONCE = sizeof once / sizeof *once };

/* One case and what became of it. */
typedef struct trial_run {
    const char *op;
    const char *variant;
    judge_verdict verdict;
    char about[160];
} trial_run;

typedef struct study {
    uint64_t seed;
    const uint64_t *seeds; /* [n] instead, or NULL */
    size_t n;
    trial_run *runs;
    size_t next;
    pthread_mutex_t lock;
} study;

static uint64_t seed_of(const study *all, size_t i)
{
    return all->seeds ? all->seeds[i] : all->seed + i;
}

static void die(const char *what)
{
    fprintf(stderr, "alarms: %s\n", what);
    exit(3);
}

/* All taps stay, none does, or each with even odds. */
static void drop_taps(call_frame *frame, draw *source)
{
    const size_t how = draw_below(source, 3);

    if (how == 0) return;
    for (size_t i = 0; i < frame->info->n_fields; i++)
        if (frame->info->fields[i].role == SLM_ROLE_TAP &&
            (how == 1 || draw_below(source, 2)))
            frame_tensor(frame, frame->info->fields[i].name)->rank = 0;
}

static void describe(const made_case *made, trial_run *run)
{
    const slm_config *c = &made->test.config;

    run->op = slm_op_describe(made->test.op)->name;
    snprintf(run->about, sizeof run->about,
             "%s %s T %zu d %zu l %zu n %zu k %zu f %zu S %zu fs %zu B %zu",
             made->test.profile, slm_dtype_name(c->dtype), made->test.call.n_tokens,
             c->d_model, c->d_latent, c->n_experts, c->top_k, c->d_expert, c->n_shared,
             c->d_shared, c->n_bins);
}

static void execute(trial_run *run, uint64_t seed)
{
    draw source = {seed};
    made_case made;
    testee_reply reply;
    call_frame frame;

    draw_case(&made, &source);
    snprintf(made.id, sizeof made.id, "study/alarms-%llu", (unsigned long long)seed);
    describe(&made, run);

    const slm_variant_info *variant =
        slm_variant_info_at(draw_below(&source, slm_variant_count()));
    slm_testee *testee = testee_open_table(variant->table, true);

    run->variant = variant->name;
    if (!testee || !made_call(testee, &made.test, true, &frame, &reply))
        die("no frame");
    drop_taps(&frame, &source);
    judge_answer(&made.test, &frame, reply.status, &reply.error,
                 &testee_describe(testee)->arithmetic, false, &run->verdict);
    frame_free(&frame);
    testee_close(testee);
    made_free(&made);
}

static void *work(void *argument)
{
    study *all = argument;

    slm_ref_use_threads(1);
    for (;;) {
        size_t mine;

        pthread_mutex_lock(&all->lock);
        mine = all->next++;
        pthread_mutex_unlock(&all->lock);
        if (mine >= all->n) break;
        execute(&all->runs[mine], seed_of(all, mine));
    }
    flint_cleanup();
    return NULL;
}

/* Returns the number of alarms. */
static size_t print_alarms(const study *all, const char *which)
{
    size_t alarms = 0, vacuous = 0;

    if (all->n == 0) return 0;
    for (size_t i = 0; i < all->n; i++) {
        const trial_run *run = &all->runs[i];
        const judge_verdict *v = &run->verdict;

        if (v->state == JUDGE_VACUOUS) vacuous++;
        if (v->state == JUDGE_PASS || v->state == JUDGE_VACUOUS) continue;
        alarms++;
        printf("ALARM %s %s: %s %s %s got %s want %s (%.3g bounds) %s\n"
               "      %s\n      again: alarms --cases 1 --seed %llu\n",
               run->op, run->variant, judge_state_name(v->state), v->clause, v->place,
               v->got, v->want, v->multiple, v->reason, run->about,
               (unsigned long long)seed_of(all, i));
    }
    printf("%zu right answers %s, %zu variants: %zu alarms, %zu vacuous\n", all->n,
           which, slm_variant_count(), alarms, vacuous);
    return alarms;
}

/* Returns whether most stages that round would raise an alarm at a hundredth. */
static bool print_shares(const study *all)
{
    share_table table = {0};
    size_t rounding = 0, sharp = 0, exact = 0;

    for (size_t i = 0; i < all->n; i++)
        if (!share_add(&table, all->runs[i].op, &all->runs[i].verdict))
            die("out of memory");
    share_sort(&table);
    printf("| stage | answers | least | median | 90 %% | 99 %% | largest |"
           " alarms at bounds / 100 |\n|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < table.n; i++) {
        const share_stage *s = &table.stages[i];
        const size_t above = share_above(s, 0.01);

        exact += share_quantile(s, 1) == 0;
        if (share_quantile(s, 1) == 0) continue;
        rounding++;
        sharp += above > 0;
        printf("| %s %s | %zu | %.2g | %.2g | %.2g | %.2g | %.2g | %zu |\n", s->op,
               s->stage, s->n, share_quantile(s, 0), share_quantile(s, 0.5),
               share_quantile(s, 0.9), share_quantile(s, 0.99), share_quantile(s, 1),
               above);
    }
    printf("\n%zu further stages must match exactly and do. %zu of %zu stages that "
           "round raise alarms at bounds / 100.\n",
           exact, sharp, rounding);
    share_free(&table);
    return 3 * sharp >= 2 * rounding;
}

static void run(study *all)
{
    pthread_t threads[JOBS];

    all->runs = calloc(all->n ? all->n : 1, sizeof *all->runs);
    if (!all->runs) die("out of memory");
    pthread_mutex_init(&all->lock, NULL);
    for (int i = 0; i < JOBS; i++)
        if (pthread_create(&threads[i], NULL, work, all)) die("no thread");
    for (int i = 0; i < JOBS; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    study all = {.seed = 1, .n = QUICK}, past = {.seeds = once, .n = ONCE};
    char from[40];
    bool good;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--long") == 0) {
            all.n = LONG;
        } else if (strcmp(argv[i], "--cases") == 0 && i + 1 < argc) {
            all.n = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            all.seed = strtoull(argv[++i], NULL, 0);
            past.n = 0;
        } else {
            fprintf(stderr, "usage: alarms [--long] [--cases N] [--seed N]\n");
            return 2;
        }
    }
    run(&past);
    run(&all);
    snprintf(from, sizeof from, "from seed %llu", (unsigned long long)all.seed);
    good =
        print_alarms(&past, "that were once rejected") + print_alarms(&all, from) == 0;
    printf("\n");
    if (!print_shares(&all) && all.n >= QUICK) good = false;
    free(past.runs);
    free(all.runs);
    return good ? 0 : 1;
}
