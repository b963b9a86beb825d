/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_run.c - slmoe run: judge backends on the vectors. */
#include "builtins.h"
#include "cli.h"
#include "report.h"
#include "runner.h"
#include "xfail.h"
#include "stopwatch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One `slmoe run`: what was asked, and what came of it so far. */
typedef struct session {
    const cli_options *options;
    const vec_set *set;
    const vec_case **cases; /* the selection, or this shard of it */
    size_t n_cases;
    xfail_list xfail;
    report_writer writer[CLI_MAX];
    size_t n_writers;
    report_counts total;
    /* of the backend at hand */
    const report_run *shown;
    report_counts counts;
    size_t n_visited;
    bool stop; /* --max-fail is reached */
    cli_progress progress;
} session;

static int select_cases(session *run)
{
    const cli_options *options = run->options;
    size_t position = 0;

    run->cases = malloc((run->set->n_cases + 1) * sizeof *run->cases);
    if (!run->cases) return 0;
    for (size_t i = 0; i < run->set->n_families; i++)
        for (size_t j = 0; j < run->set->families[i].n_cases; j++) {
            const vec_case *test = &run->set->families[i].cases[j];

            if (!cli_selects(options, test)) continue;
            if (position++ % options->shard_of == options->shard - 1)
                run->cases[run->n_cases++] = test;
        }
    return 1;
}

static void visit(void *user, const vec_case *test, const judge_verdict *judged)
{
    session *run = user;
    judge_verdict verdict = *judged;

    xfail_apply(&run->xfail, test, &verdict);
    run->counts.state[verdict.state]++;
    run->n_visited++;
    run->stop =
        run->options->max_fail && report_failed(&run->counts) >= run->options->max_fail;
    if (verdict.state == JUDGE_PASS) run->counts.provenance[test->provenance]++;
    progress_clear(&run->progress);
    for (size_t i = 0; i < run->n_writers; i++)
        run->writer[i].format->result(&run->writer[i], run->shown, test, &verdict);
    progress_step(&run->progress, test->id);
}

static void within(void *user, size_t done, size_t total)
{
    progress_within(&((session *)user)->progress, done, total);
}

static void add_counts(report_counts *total, const report_counts *counts)
{
    for (int i = 0; i < JUDGE_STATES; i++) total->state[i] += counts->state[i];
    for (int i = 0; i < VEC_PROVENANCES; i++)
        total->provenance[i] += counts->provenance[i];
    total->seconds += counts->seconds;
}

/* What must stand in a command that repeats one case of this run. */
static void write_repeat(const cli_options *options, char *out, size_t size)
{
    out[0] = '\0';
    if (strcmp(options->vectors, options->default_vectors) != 0)
        snprintf(out, size, " --vectors ");
    if (out[0]) report_append_word(out, size, options->vectors);
    if (options->tier > VEC_QUICK && strlen(out) + 16 < size)
        strcat(out, " --tier full");
}

static void add_globs(char *out, size_t size, const char *option, const cli_list *globs)
{
    for (size_t i = 0; i < globs->n; i++) {
        const size_t used = strlen(out);

        snprintf(out + used, size - used, "%s%s '%s'", used ? " " : "", option,
                 globs->item[i]);
    }
}

/* What keeps this run from being that of the whole tier; "" when nothing does. */
static void write_selection(const cli_options *options, char *out, size_t size)
{
    out[0] = '\0';
    add_globs(out, size, "--only", &options->only);
    add_globs(out, size, "--not", &options->not );
    add_globs(out, size, "--tag", &options->tags);
    add_globs(out, size, "--clause", &options->clauses);
    add_globs(out, size, "--provenance", &options->provenances);
    if (options->shard_of > 1)
        snprintf(out + strlen(out), size - strlen(out), "%s--shard %zu/%zu",
                 out[0] ? " " : "", options->shard, options->shard_of);
    if (options->max_fail)
        snprintf(out + strlen(out), size - strlen(out), "%s--max-fail %zu",
                 out[0] ? " " : "", options->max_fail);
    if (options->once)
        snprintf(out + strlen(out), size - strlen(out), "%s--once", out[0] ? " " : "");
}

static int run_cases(session *run, const char *name, slm_testee *testee)
{
    const cli_options *options = run->options;
    const runner_options how = {.testee = options->testee,
                                .jobs = options->jobs,
                                .hygiene = !options->once,
                                .stop = &run->stop};
    char why[TESTEE_WHY];

    progress_begin(&run->progress, run->n_cases);
    progress_step(&run->progress, run->n_cases ? run->cases[0]->id : "");
    if (runner_run(name, testee, run->cases, run->n_cases, &how, visit,
                   options->jobs > 1 ? NULL : within, run, why)) {
        progress_clear(&run->progress);
        if (run->n_visited < run->n_cases)
            fprintf(stderr,
                    "slmoe: %s: stopped by --max-fail %zu; %zu of %zu cases were not "
                    "judged\n",
                    name, options->max_fail, run->n_cases - run->n_visited,
                    run->n_cases);
        return 1;
    }
    progress_clear(&run->progress);
    fprintf(stderr, "slmoe: %s\n", why);
    return 0;
}

/* Exit code for one backend. */
static int judge_backend(session *run, const char *name)
{
    const double start = stopwatch_now();
    char why[TESTEE_WHY], repeat[512], selection[1024];
    machine here;
    slm_testee *testee = testee_open(name, &run->options->testee, why);
    int ok;

    if (!testee) {
        fprintf(stderr, "slmoe: %s\n", why);
        return exit_unopened(name, why);
    }
    if (testee_describe(testee)->note[0])
        fprintf(stderr, "slmoe: %s: %s\n", name, testee_describe(testee)->note);
    write_repeat(run->options, repeat, sizeof repeat);
    write_selection(run->options, selection, sizeof selection);
    machine_describe(&here);

    const report_run shown = {.backend = name,
                              .about = testee_describe(testee),
                              .vectors = run->set,
                              .tier = vec_tier_name(run->options->tier),
                              .repeat = repeat,
                              .verbose = run->options->verbose,
                              .selection = selection,
                              .once = run->options->once,
                              .harness = SLMOE_VERSION,
                              .spec = SLM_SPEC_VERSION,
                              .machine = &here};

    run->shown = &shown;
    memset(&run->counts, 0, sizeof run->counts);
    run->n_visited = 0;
    run->stop = false;
    for (size_t i = 0; i < run->n_writers; i++)
        run->writer[i].format->begin(&run->writer[i], &shown);
    ok = run_cases(run, name, testee);
    run->counts.seconds = stopwatch_now() - start;
    for (size_t i = 0; i < run->n_writers; i++)
        run->writer[i].format->end(&run->writer[i], &shown, &run->counts);
    add_counts(&run->total, &run->counts);
    testee_close(testee);
    if (!ok) return EXIT_HARNESS;
    if (report_failed(&run->counts)) return EXIT_FAILS;
    return run->n_cases == run->counts.state[JUDGE_SKIP] ? EXIT_NOTHING : EXIT_CONFORMS;
}

/* Every built-in backend; says which are left out of this build. */
static int judge_builtins(session *run)
{
    builtin list[BUILTINS_MAX];
    const size_t n = builtins_list(list);
    int code = n ? EXIT_CONFORMS : EXIT_HARNESS;

    if (!n) fputs("slmoe: slmoe-host cannot be asked; it lies beside slmoe\n", stderr);
    for (size_t i = 0; i < n; i++) {
        if (list[i].missing[0])
            fprintf(stderr, "slmoe: %s is left out: %s\n", list[i].name,
                    list[i].missing);
        else
            code = exit_worse(code, judge_backend(run, list[i].name));
    }
    return code;
}

/* Returns an exit code. */
static int open_writers(session *run)
{
    const cli_list *formats = &run->options->formats;
    char why[256];

    if (!report_check(formats->item, formats->n, why)) {
        fprintf(stderr, "slmoe: %s\n", why);
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < formats->n || i == 0; i++) {
        const char *spec = formats->n ? formats->item[i] : "human";

        if (!report_open(&run->writer[run->n_writers], spec, why)) {
            fprintf(stderr, "slmoe: %s\n", why);
            return EXIT_HARNESS;
        }
        run->n_writers++;
    }
    return EXIT_CONFORMS;
}

static int close_writers(session *run)
{
    int ok = 1;

    for (size_t i = 0; i < run->n_writers; i++) {
        run->writer[i].format->total(&run->writer[i], &run->total);
        if (!report_close(&run->writer[i])) ok = 0;
    }
    if (!ok)
        fprintf(stderr, "slmoe: a report could not be written whole: %s\n",
                strerror(errno));
    return ok;
}

static int judge_all(session *run)
{
    const cli_list *backends = &run->options->backends;
    int code = EXIT_CONFORMS;

    if (!backends->n) code = judge_builtins(run);
    for (size_t i = 0; i < backends->n; i++)
        code = exit_worse(code, judge_backend(run, backends->item[i]));
    if (xfail_stale(&run->xfail, run->set, stderr)) code = exit_worse(code, EXIT_FAILS);
    if (!close_writers(run)) code = exit_worse(code, EXIT_HARNESS);
    if (code == EXIT_NOTHING)
        fputs("slmoe: nothing was executed; `slmoe list` shows what a filter selects\n",
              stderr);
    return code;
}

int cli_run(int argc, char **argv)
{
    cli_options options;
    session run = {.options = &options};
    vec_set *set = NULL;
    char why[512];
    int code;

    if (!cli_parse(argc, argv, "bVontcpTfvSWjsxm1", &options)) return EXIT_USAGE;
    if (options.words.n) {
        fprintf(stderr, "slmoe run: takes no '%s'; a selection is --only GLOB\n",
                options.words.item[0]);
        return EXIT_USAGE;
    }
    if (options.xfail && !xfail_load(&run.xfail, options.xfail, why)) {
        fprintf(stderr, "slmoe: %s\n", why);
        return EXIT_USAGE;
    }
    run.set = set = cli_load(&options);
    if (!set) return EXIT_VECTORS;
    code = open_writers(&run);
    if (code == EXIT_CONFORMS)
        code = select_cases(&run) ? judge_all(&run) : EXIT_HARNESS;
    free(run.cases);
    xfail_free(&run.xfail);
    vec_free(set);
    return code;
}
