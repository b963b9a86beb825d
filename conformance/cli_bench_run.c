/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench_run.c - judges every backend of a bench, then times it. */
#include "cli_bench.h"
#include "stopwatch.h"

#include <stdlib.h>

/* Seconds of a batch; quiet rounds that are enough. */
static const double BATCH = 0.12;
enum { QUIET_ROUNDS = 7 };

/* ---- judging ---- */

/* Of a backend that must not be timed. */
static void print_failure(const char *backend, const bench_item *item,
                          const judge_verdict *verdict)
{
    printf("%s  %s  %s %s T = %zu", judge_state_name(verdict->state), backend,
           item->shape->id, slm_op_describe(item->op)->name, item->n_tokens);
    if (verdict->clause[0]) printf("  %s", verdict->clause);
    if (verdict->stage[0]) printf("  stage %s", verdict->stage);
    putchar('\n');
    if (verdict->place[0])
        printf("      %s got %s want %s\n", verdict->place, verdict->got,
               verdict->want);
    if (verdict->reason[0]) printf("      %s\n", verdict->reason);
    if (verdict->output[0]) printf("      it printed: %s\n", verdict->output);
    printf("      nothing is timed: judge it with `slmoe run -b '%s'`\n", backend);
}

static int judge_backend(bench_run *run, size_t index)
{
    const char *name = run->backends[index];
    char why[TESTEE_WHY];
    slm_testee *testee = testee_open(name, &run->options->testee, why);
    int code = EXIT_CONFORMS;

    if (!testee) {
        fprintf(stderr, "slmoe: %s\n", why);
        return exit_unopened(name, why);
    }
    for (size_t i = 0; i < run->n_items && code == EXIT_CONFORMS; i++) {
        bench_item *item = &run->items[i];
        judge_verdict verdict;

        bench_judge(testee, item->op, &item->config, &item->sample, &verdict);
        item->skipped[index][0] = '\0';
        if (verdict.state == JUDGE_SKIP) {
            snprintf(item->skipped[index], sizeof item->skipped[index], "%s",
                     verdict.reason);
        } else if (verdict.state != JUDGE_PASS) {
            print_failure(name, item, &verdict);
            code = verdict.state == JUDGE_ERROR ? EXIT_HARNESS : EXIT_FAILS;
        }
    }
    testee_close(testee);
    return code;
}

static int judge_all(bench_run *run)
{
    int code = EXIT_CONFORMS;

    for (size_t i = 0; i < run->n_backends && code == EXIT_CONFORMS; i++)
        code = judge_backend(run, i);
    return code;
}

/* ---- timing ---- */

/* One token does not choose all experts: it gets more places, so that calls do not come
 * back to the same ones at once. */
static size_t places_of(size_t layers, size_t n_tokens)
{
    return layers * (n_tokens <= 4 ? 8 : n_tokens <= 64 ? 4 : n_tokens <= 512 ? 2 : 1);
}

static rig_work work_of(const bench_run *run, const bench_item *item)
{
    const size_t layers = run->commands ? 1 : item->shape->layers;

    return (rig_work){.op = item->op,
                      .config = item->config,
                      .n_tokens = item->n_tokens,
                      .layers = layers,
                      .places = places_of(layers, item->n_tokens)};
}

/* The largest working set of all items: every expert is chosen. */
static double largest_set(const bench_run *run)
{
    double largest = 0;

    for (size_t i = 0; i < run->n_items; i++) {
        const rig_work work = work_of(run, &run->items[i]);
        const double all = (double)work.config.n_experts;
        const bench_rotation rotation = {.layers = work.layers,
                                         .places = work.places,
                                         .experts = all,
                                         .reached = all};
        const bench_cost cost =
            bench_cost_of(work.op, &work.config, work.n_tokens, &rotation);

        if (cost.working_set > largest) largest = cost.working_set;
    }
    return largest;
}

static bench_row *new_row(bench_run *run, const bench_item *item, size_t index)
{
    bench_row *row = &run->rows[run->n_rows++];

    row->shape = item->shape->id;
    row->op = slm_op_describe(item->op)->name;
    row->config = item->config;
    row->n_tokens = item->n_tokens;
    row->threads = run->threads;
    row->judged = item->sample.judged;
    row->layers = work_of(run, item).layers;
    snprintf(row->backend, sizeof row->backend, "%s", rig_name(run->rig, index));
    snprintf(row->skipped, sizeof row->skipped, "%s", item->skipped[index]);
    return row;
}

/* Calls of a batch: of as many as were needed to tell how long one is. */
static int count_calls(bench_run *run, size_t index, size_t *calls, char *why)
{
    double seconds = 0, cores;
    int quiet;

    for (*calls = 1;; *calls *= 4) {
        if (!rig_batch(run->rig, index, *calls, run->threads, &seconds, &quiet, &cores,
                       why))
            return 0;
        if (seconds > BATCH / 8 || *calls >= 1 << 20) break;
    }
    *calls = (size_t)((double)*calls * BATCH / seconds);
    if (*calls == 0) *calls = 1;
    return 1;
}

/* A group of rows while it is timed. */
typedef struct contest {
    bench_row *row[RIG_SUBJECTS]; /* NULL: not timed */
    size_t calls[RIG_SUBJECTS];
} contest;

static int open_one(bench_run *run, const bench_item *item, contest *on, size_t index,
                    char *why)
{
    bench_row *row = on->row[index];
    const bench_roof *roof = &run->roof[rig_on_device(run->rig, index)];
    bench_rotation rotation;

    if (!rig_open(run->rig, index, &rotation, why) ||
        !count_calls(run, index, &on->calls[index], why))
        return 0;
    row->cost = bench_cost_of(item->op, &item->config, item->n_tokens, &rotation);
    row->roof = bench_roof_seconds(roof, &row->cost, item->config.dtype);
    row->usual = bench_usual_seconds(roof, &row->cost, item->config.dtype);
    row->moving = bench_is_moving(roof, &row->cost, item->config.dtype);
    return 1;
}

static int is_enough(const bench_run *run, const contest *on)
{
    for (size_t i = 0; i < run->n_backends; i++) {
        size_t quiet = 0;

        for (size_t j = 0; on->row[i] && j < on->row[i]->n; j++)
            quiet += (size_t)on->row[i]->batch[j].quiet;
        if (on->row[i] && quiet < QUIET_ROUNDS) return 0;
    }
    return 1;
}

/* A batch of each, in an order that turns round from round to round. */
static int play_round(bench_run *run, contest *on, size_t round, char *why)
{
    for (size_t i = 0; i < run->n_backends; i++) {
        const size_t index = round % 2 ? run->n_backends - 1 - i : i;
        bench_row *row = on->row[index];
        double seconds, cores;
        int quiet;

        if (!row) continue;
        if (!rig_batch(run->rig, index, on->calls[index], run->threads, &seconds,
                       &quiet, &cores, why))
            return 0;
        row->batch[row->n++] = (bench_batch){seconds / (double)on->calls[index], quiet};
        row->cores += (cores - row->cores) / (double)row->n;
    }
    return 1;
}

/* Forget what the calls so far spent: those that warm up and count. */
static int forget(bench_run *run, const contest *on, char *why)
{
    slm_phase list[SLM_MAX_PHASES];
    size_t n;

    for (size_t i = 0; run->options->phases && i < run->n_backends; i++)
        if (on->row[i] && !rig_phases(run->rig, i, list, SLM_MAX_PHASES, &n, why))
            return 0;
    return 1;
}

/* What a call of each row spent where, on the average over all its batches. */
static int take_accounts(bench_run *run, const contest *on, char *why)
{
    for (size_t i = 0; run->options->phases && i < run->n_backends; i++) {
        bench_row *row = on->row[i];
        const bench_roof *roof = &run->roof[rig_on_device(run->rig, i)];
        const double calls = row ? (double)(row->n * on->calls[i]) : 0;

        if (!row || calls == 0) continue;
        if (!rig_phases(run->rig, i, row->phase, SLM_MAX_PHASES, &row->n_phases, why))
            return 0;
        for (size_t j = 0; j < row->n_phases; j++) {
            slm_phase *phase = &row->phase[j];

            phase->seconds /= calls;
            phase->flops /= calls;
            phase->bytes /= calls;
            row->phase_roof[j] =
                bench_roof_seconds(roof,
                                   &(bench_cost){.flops = phase->flops,
                                                 .weights = phase->bytes,
                                                 .working_set = row->cost.working_set},
                                   row->config.dtype);
        }
    }
    return 1;
}

static const char *versus_name(const bench_run *run)
{
    return run->versus < run->n_backends ? rig_name(run->rig, run->versus) : NULL;
}

static void settle(const bench_run *run, const contest *on)
{
    const bench_row *other =
        run->versus < run->n_backends ? on->row[run->versus] : NULL;

    for (size_t i = 0; i < run->n_backends; i++) {
        if (!on->row[i]) continue;
        bench_settle(on->row[i]);
        if (other && other != on->row[i]) bench_compare(on->row[i], other);
    }
}

/* The exit code; why, unless it is that of success. */
static int time_item(bench_run *run, const bench_item *item, char *why)
{
    const rig_work work = work_of(run, item);
    const size_t first = run->n_rows;
    contest on = {0};
    double end;
    size_t n = 0;

    if (!rig_prepare(run->rig, &work, why)) return EXIT_HARNESS;
    for (size_t i = 0; i < run->n_backends; i++) {
        bench_row *row = new_row(run, item, i);

        if (row->skipped[0]) continue;
        on.row[i] = row;
        n++;
        if (!open_one(run, item, &on, i, why)) return EXIT_FAILS;
    }
    if (!forget(run, &on, why)) return EXIT_FAILS;
    end = stopwatch_now() + run->options->seconds * (double)n;
    for (size_t round = 0; n && round < BENCH_SAMPLES; round++) {
        if (round && (is_enough(run, &on) || stopwatch_now() > end)) break;
        if (!play_round(run, &on, round, why)) return EXIT_FAILS;
    }
    if (!take_accounts(run, &on, why)) return EXIT_FAILS;
    settle(run, &on);
    for (size_t i = first; i < run->n_rows; i++) {
        if (run->to.table) bench_table_row(run->to.table, &run->rows[i]);
        if (run->to.table) bench_table_phases(run->to.table, &run->rows[i]);
        if (run->to.jsonl)
            bench_json_row(run->to.jsonl, &run->rows[i], versus_name(run));
    }
    if (run->to.table) fflush(run->to.table);
    if (run->to.jsonl) fflush(run->to.jsonl);
    return EXIT_CONFORMS;
}

/* Measure and print what a row is held against, and nothing else. */
static int find_roofs(bench_run *run, char *why)
{
    int wanted[2] = {0, 0};

    for (size_t i = 0; i < run->n_backends; i++) wanted[rig_on_device(run->rig, i)] = 1;
    for (int device = 0; device < 2; device++) {
        bench_roof *roof = &run->roof[device];

        if (!wanted[device]) continue;
        if (!rig_roof(run->rig, run->threads, device, largest_set(run), roof, why))
            return 0;
        if (run->to.table) bench_table_roof(run->to.table, roof);
        if (run->to.jsonl) bench_json_roof(run->to.jsonl, roof);
    }
    return 1;
}

/* A thread that sleeps at once is woken later than a decoded token takes; one that never
 * sleeps keeps the threads of the other backends from their CPUs. */
static const char *const rounds_awake = "10000";

int bench_time_all(bench_run *run, size_t threads)
{
    char number[24], why[TESTEE_WHY];
    int code;

    run->threads = threads;
    snprintf(number, sizeof number, "%zu", threads);
    setenv("OMP_NUM_THREADS", number, 1);
    code = judge_all(run);
    if (code != EXIT_CONFORMS) return code;
    setenv("GOMP_SPINCOUNT", rounds_awake, 0);
    run->rig = rig_start(run->backends, run->n_backends, &run->options->testee, why);
    if (!run->rig) {
        fprintf(stderr, "slmoe: %s\n", why);
        return EXIT_BACKEND;
    }
    if (!find_roofs(run, why)) code = EXIT_HARNESS;
    if (run->to.table && code == EXIT_CONFORMS)
        bench_table_head(run->to.table, versus_name(run));
    for (size_t i = 0; i < run->n_items && code == EXIT_CONFORMS; i++)
        code = time_item(run, &run->items[i], why);
    if (code != EXIT_CONFORMS) fprintf(stderr, "slmoe bench: %s\n", why);
    rig_stop(run->rig);
    run->rig = NULL;
    return code;
}
