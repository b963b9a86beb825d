/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench.c - slmoe bench: how fast a right backend is, and could be. */
#include "cli_bench.h"
#include "bench_judge.h"
#include "bench_shape.h"
#include "cli.h"
#include "machine.h"
#include "stopwatch.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NUMBERS = 16, MAX_ITEMS = 256, MAX_ROWS = 4096 };

/* Seconds of a batch; quiet rounds that are enough. */
static const double BATCH = 0.12;
enum { QUIET_ROUNDS = 7 };

typedef struct numbers {
    size_t n;
    size_t value[MAX_NUMBERS];
} numbers;

/* Where the rows go. */
typedef struct outputs {
    FILE *table;
    FILE *jsonl;
    FILE *svg;
} outputs;

typedef struct bench_options {
    cli_list backends;
    cli_list shapes;
    cli_list ops;
    cli_list dtypes;
    cli_list formats;
    numbers tokens;
    numbers experts;
    numbers top_k;
    numbers threads;
    const char *versus;
    const char *file; /* of shapes */
    double seconds;   /* that a row may take */
    testee_options testee;
} bench_options;

/* What becomes a group of rows, one for each backend. */
typedef struct bench_item {
    const bench_shape *shape;
    slm_op op;
    slm_config config;
    size_t n_tokens;
    bench_sample sample;
    char skipped[RIG_SUBJECTS][256];
} bench_item;

typedef struct bench_run {
    const bench_options *options;
    bench_shapes *shapes;
    outputs to;
    const char *backends[RIG_SUBJECTS];
    size_t n_backends;
    size_t versus; /* index, or n_backends */
    int commands;  /* at least one backend is a command */
    size_t n_items;
    bench_item items[MAX_ITEMS];
    bench_rig *rig;
    bench_roof roof;
    size_t n_rows;
    bench_row *rows; /* [MAX_ROWS] */
} bench_run;

/* ---- options ---- */

static const struct option long_options[] = {{"backend", required_argument, NULL, 'b'},
                                             {"shape", required_argument, NULL, 's'},
                                             {"op", required_argument, NULL, 'o'},
                                             {"dtype", required_argument, NULL, 'd'},
                                             {"tokens", required_argument, NULL, 'T'},
                                             {"experts", required_argument, NULL, 'n'},
                                             {"top-k", required_argument, NULL, 'k'},
                                             {"threads", required_argument, NULL, 't'},
                                             {"vs", required_argument, NULL, 'v'},
                                             {"format", required_argument, NULL, 'f'},
                                             {"shapes", required_argument, NULL, 'F'},
                                             {"seconds", required_argument, NULL, 'S'},
                                             {"timeout", required_argument, NULL, 'W'},
                                             {NULL, 0, NULL, 0}};

static int append(cli_list *list, const char *item)
{
    if (list->n == CLI_MAX) {
        fprintf(stderr, "slmoe bench: more than %d of an option\n", CLI_MAX);
        return 0;
    }
    list->item[list->n++] = item;
    return 1;
}

/* "1,16,128" */
static int parse_numbers(const char *text, const char *option, numbers *out)
{
    for (const char *at = text;; at++) {
        char *end;
        const unsigned long value = strtoul(at, &end, 10);

        if (end == at || (*end && *end != ',') || value < 1 || value > 1 << 20 ||
            out->n == MAX_NUMBERS)
            break;
        out->value[out->n++] = value;
        if (!*end) return 1;
        at = end;
    }
    fprintf(
        stderr,
        "slmoe bench: --%s %s: expected up to %d numbers from 1 to %d, with commas\n",
        option, text, MAX_NUMBERS, 1 << 20);
    return 0;
}

static int parse_seconds(const char *text, const char *option, double *out)
{
    char *end;

    *out = strtod(text, &end);
    if (end != text && !*end && *out > 0 && *out < 1e5) return 1;
    fprintf(stderr, "slmoe bench: --%s %s: expected a positive number\n", option, text);
    return 0;
}

static int take(int letter, bench_options *options)
{
    switch (letter) {
    case 'b':
        return append(&options->backends, optarg);
    case 's':
        return append(&options->shapes, optarg);
    case 'o':
        return append(&options->ops, optarg);
    case 'd':
        return append(&options->dtypes, optarg);
    case 'f':
        return append(&options->formats, optarg);
    case 'T':
        return parse_numbers(optarg, "tokens", &options->tokens);
    case 'n':
        return parse_numbers(optarg, "experts", &options->experts);
    case 'k':
        return parse_numbers(optarg, "top-k", &options->top_k);
    case 't':
        return parse_numbers(optarg, "threads", &options->threads);
    case 'v':
        options->versus = optarg;
        return 1;
    case 'F':
        options->file = optarg;
        return 1;
    case 'S':
        return parse_seconds(optarg, "seconds", &options->seconds);
    default:
        return parse_seconds(optarg, "timeout", &options->testee.timeout);
    }
}

/* CPUs that this process may use. */
static size_t n_cpus(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) ? 1 : (size_t)CPU_COUNT(&set);
}

static int parse(int argc, char **argv, bench_options *options)
{
    int letter;

    *options = (bench_options){.seconds = 6, .testee = {.timeout = 600, .slow = 1}};
    opterr = 0;
    optind = 1;
    while ((letter = getopt_long(argc, argv, ":b:", long_options, NULL)) != -1) {
        if (letter == ':' || letter == '?') {
            fprintf(stderr,
                    "slmoe bench: %s %s\n  slmoe bench --help lists what it takes\n",
                    letter == ':' ? "this needs a value:" : "does not take",
                    argv[optind - 1]);
            return 0;
        }
        if (!take(letter, options)) return 0;
    }
    if (optind < argc) {
        fprintf(stderr, "slmoe bench: does not take %s\n", argv[optind]);
        return 0;
    }
    if (!options->backends.n) append(&options->backends, "cpu");
    if (!options->shapes.n) append(&options->shapes, "mini");
    if (!options->ops.n) append(&options->ops, "layer_forward");
    if (!options->formats.n) append(&options->formats, "table");
    if (!options->threads.n) options->threads.value[options->threads.n++] = n_cpus();
    return 1;
}

/* ---- what is to be timed ---- */

/* Backends in order, the one to compare with among them, each once. */
static int gather_backends(bench_run *run)
{
    const bench_options *options = run->options;
    cli_list all = options->backends;

    if (options->versus && !append(&all, options->versus)) return 0;
    for (size_t i = 0; i < all.n; i++) {
        size_t j = 0;

        while (j < run->n_backends && strcmp(run->backends[j], all.item[i]) != 0) j++;
        if (j == RIG_SUBJECTS) {
            fprintf(stderr, "slmoe bench: more than %d backends\n", RIG_SUBJECTS);
            return 0;
        }
        if (j == run->n_backends) run->backends[run->n_backends++] = all.item[i];
        run->commands |= strncmp(all.item[i], "cmd:", 4) == 0;
    }
    run->versus = run->n_backends;
    for (size_t i = 0; options->versus && i < run->n_backends; i++)
        if (strcmp(run->backends[i], options->versus) == 0) run->versus = i;
    return 1;
}

static int add_item(bench_run *run, const bench_shape *shape, slm_op op,
                    const slm_config *config, size_t n_tokens)
{
    bench_item *item = &run->items[run->n_items];
    const char *why = bench_cannot_time(op, config);

    if (why || config->top_k > config->n_experts) {
        fprintf(stderr, "slmoe bench: %s %s: cannot be timed: %s\n", shape->id,
                slm_op_describe(op)->name, why ? why : "k exceeds n");
        return 0;
    }
    if (run->n_items++ == MAX_ITEMS) {
        fprintf(stderr, "slmoe bench: more than %d rows of a table\n", MAX_ITEMS);
        return 0;
    }
    item->shape = shape;
    item->op = op;
    item->config = *config;
    item->n_tokens = n_tokens;
    item->sample = bench_sample_of(op, n_tokens, shape->judged);
    return 1;
}

/* All sizes of one shape, operation and element type. */
static int add_sizes(bench_run *run, const bench_shape *shape, slm_op op,
                     const slm_config *base)
{
    const bench_options *options = run->options;
    const numbers none = {.n = 1, .value = {0}};
    const numbers *experts = options->experts.n ? &options->experts : &none;
    const numbers *top_k = options->top_k.n ? &options->top_k : &none;
    const size_t n_tokens = options->tokens.n ? options->tokens.n : shape->n_tokens;
    const size_t *tokens = options->tokens.n ? options->tokens.value : shape->tokens;

    for (size_t i = 0; i < experts->n; i++)
        for (size_t j = 0; j < top_k->n; j++)
            for (size_t t = 0; t < n_tokens; t++) {
                slm_config config = *base;

                if (experts->value[i]) config.n_experts = experts->value[i];
                if (top_k->value[j]) config.top_k = top_k->value[j];
                if (!add_item(run, shape, op, &config, tokens[t])) return 0;
            }
    return 1;
}

static int add_dtypes(bench_run *run, const bench_shape *shape, slm_op op)
{
    const cli_list *dtypes = &run->options->dtypes;
    slm_config config = shape->config;

    if (!dtypes->n) return add_sizes(run, shape, op, &config);
    for (size_t i = 0; i < dtypes->n; i++) {
        if (strcmp(dtypes->item[i], "f32") != 0 &&
            strcmp(dtypes->item[i], "bf16") != 0) {
            fprintf(stderr, "slmoe bench: --dtype %s: expected f32 or bf16\n",
                    dtypes->item[i]);
            return 0;
        }
        config.dtype = strcmp(dtypes->item[i], "bf16") == 0 ? SLM_BF16 : SLM_F32;
        if (!add_sizes(run, shape, op, &config)) return 0;
    }
    return 1;
}

static int gather_items(bench_run *run)
{
    const bench_options *options = run->options;

    for (size_t s = 0; s < options->shapes.n; s++) {
        const bench_shape *shape =
            bench_shape_find(run->shapes, options->shapes.item[s]);

        if (!shape) {
            fprintf(stderr,
                    "slmoe bench: --shape %s: there is none of that name; there are:",
                    options->shapes.item[s]);
            for (size_t i = 0; i < run->shapes->n; i++)
                fprintf(stderr, " %s", run->shapes->shape[i].id);
            fputc('\n', stderr);
            return 0;
        }
        for (size_t i = 0; i < options->ops.n; i++) {
            const slm_op op = slm_op_find(options->ops.item[i]);

            if (op == SLM_OP_COUNT) {
                fprintf(stderr, "slmoe bench: --op %s: no such operation\n",
                        options->ops.item[i]);
                return 0;
            }
            if (!add_dtypes(run, shape, op)) return 0;
        }
    }
    return 1;
}

static int load_shapes(bench_run *run, const bench_options *options)
{
    char path[SLM_PATH + 32];
    vec_error error;

    if (options->file)
        snprintf(path, sizeof path, "%s", options->file);
    else if (getenv("SLM_VECTORS"))
        snprintf(path, sizeof path, "%.4000s/perf/shapes.yaml", getenv("SLM_VECTORS"));
    else {
        slm_vectors_dir(path);
        strcat(path, "/perf/shapes.yaml");
    }
    run->shapes = bench_shapes_load(path, &error);
    if (run->shapes) return 1;
    if (error.mark.line)
        fprintf(stderr, "slmoe: %s:%zu:%zu: %s\n", error.path, error.mark.line,
                error.mark.column, error.what);
    else
        fprintf(stderr, "slmoe: %s: %s\n", error.path, error.what);
    return 0;
}

/* ---- where it goes ---- */

static int open_outputs(outputs *to, const cli_list *formats)
{
    static const char *const names[] = {"table", "jsonl", "svg"};
    FILE **const files[] = {&to->table, &to->jsonl, &to->svg};

    for (size_t i = 0; i < formats->n; i++) {
        const char *text = formats->item[i], *path = strchr(text, '=');
        const size_t length = path ? (size_t)(path - text) : strlen(text);
        size_t j = 0;

        while (j < 3 && (strlen(names[j]) != length || strncmp(names[j], text, length)))
            j++;
        if (j == 3 || *files[j] || (path && !path[1])) {
            fprintf(stderr,
                    "slmoe bench: --format %s: expected table, jsonl or svg, "
                    "once each, with =FILE or without\n",
                    text);
            return EXIT_USAGE;
        }
        *files[j] = path ? fopen(path + 1, "we") : stdout;
        if (!*files[j]) {
            fprintf(stderr, "slmoe: %s: cannot be written: %s\n", path + 1,
                    strerror(errno));
            return EXIT_HARNESS;
        }
    }
    return EXIT_CONFORMS;
}

static int close_outputs(const outputs *to)
{
    FILE *const files[] = {to->table, to->jsonl, to->svg};
    int ok = 1;

    for (int i = 0; i < 3; i++) {
        if (!files[i]) continue;
        ok &= !ferror(files[i]);
        ok &= files[i] == stdout ? fflush(stdout) == 0 : fclose(files[i]) == 0;
    }
    if (!ok) fputs("slmoe bench: not everything could be written\n", stderr);
    return ok;
}

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
        return EXIT_BACKEND;
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
    row->threads = run->roof.threads;
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
        if (!rig_batch(run->rig, index, *calls, run->roof.threads, &seconds, &quiet,
                       &cores, why))
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
    bench_rotation rotation;

    if (!rig_open(run->rig, index, &rotation, why) ||
        !count_calls(run, index, &on->calls[index], why))
        return 0;
    row->cost = bench_cost_of(item->op, &item->config, item->n_tokens, &rotation);
    row->roof = bench_roof_seconds(&run->roof, &row->cost, item->config.dtype);
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
        if (!rig_batch(run->rig, index, on->calls[index], run->roof.threads, &seconds,
                       &quiet, &cores, why))
            return 0;
        row->batch[row->n++] = (bench_batch){seconds / (double)on->calls[index], quiet};
        row->cores += (cores - row->cores) / (double)row->n;
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
    end = stopwatch_now() + run->options->seconds * (double)n;
    for (size_t round = 0; n && round < BENCH_SAMPLES; round++) {
        if (round && (is_enough(run, &on) || stopwatch_now() > end)) break;
        if (!play_round(run, &on, round, why)) return EXIT_FAILS;
    }
    settle(run, &on);
    for (size_t i = first; i < run->n_rows; i++) {
        if (run->to.table) bench_table_row(run->to.table, &run->rows[i]);
        if (run->to.jsonl)
            bench_json_row(run->to.jsonl, &run->rows[i], versus_name(run));
    }
    if (run->to.table) fflush(run->to.table);
    return EXIT_CONFORMS;
}

/* Everything with one number of threads. */
static int time_all(bench_run *run, size_t threads)
{
    char number[24], why[TESTEE_WHY];
    int code;

    snprintf(number, sizeof number, "%zu", threads);
    setenv("OMP_NUM_THREADS", number, 1);
    code = judge_all(run);
    if (code != EXIT_CONFORMS) return code;
    run->rig = rig_start(run->backends, run->n_backends, &run->options->testee, why);
    if (!run->rig) {
        fprintf(stderr, "slmoe: %s\n", why);
        return EXIT_BACKEND;
    }
    if (rig_roof(run->rig, threads, largest_set(run), &run->roof, why)) {
        if (run->to.table) {
            bench_table_roof(run->to.table, &run->roof);
            bench_table_head(run->to.table, versus_name(run));
        }
        if (run->to.jsonl) bench_json_roof(run->to.jsonl, &run->roof);
        for (size_t i = 0; i < run->n_items && code == EXIT_CONFORMS; i++)
            code = time_item(run, &run->items[i], why);
    } else {
        code = EXIT_HARNESS;
    }
    if (code != EXIT_CONFORMS) fprintf(stderr, "slmoe bench: %s\n", why);
    rig_stop(run->rig);
    run->rig = NULL;
    return code;
}

static void say_origin(const bench_run *run)
{
    machine here;
    bench_origin origin;

    machine_describe(&here);
    origin = (bench_origin){.slmoe = SLMOE_VERSION,
                            .spec = SLM_SPEC_VERSION,
                            .system = here.system,
                            .cpu = here.cpu,
                            .date = here.date};
    if (run->to.table)
        fprintf(run->to.table, "%s, %d CPUs, %s\n", here.cpu[0] ? here.cpu : "CPU",
                here.cores, here.system);
    if (run->to.jsonl) bench_json_head(run->to.jsonl, &origin);
}

/* What a reader of the table must know of it. */
static int conclude(const bench_run *run)
{
    size_t timed = 0, disturbed = 0;

    for (size_t i = 0; i < run->n_rows; i++) {
        timed += !run->rows[i].skipped[0];
        disturbed += (size_t)run->rows[i].disturbed && !run->rows[i].skipped[0];
    }
    if (run->to.svg) bench_svg(run->to.svg, run->rows, run->n_rows);
    if (run->to.table)
        fprintf(run->to.table, "%zu timed, %zu of them disturbed by other load%s\n",
                timed, disturbed,
                disturbed ? ": no evidence; repeat them on a quiet machine" : "");
    if (timed) return EXIT_CONFORMS;
    fputs("slmoe bench: nothing was timed\n", stderr);
    return EXIT_NOTHING;
}

static int bench(bench_run *run)
{
    const numbers *threads = &run->options->threads;
    int code = EXIT_CONFORMS;

    if (run->n_items * run->n_backends * threads->n > MAX_ROWS) {
        fprintf(stderr, "slmoe bench: more than %d rows\n", MAX_ROWS);
        return EXIT_USAGE;
    }
    code = open_outputs(&run->to, &run->options->formats);
    if (code != EXIT_CONFORMS) return code;
    say_origin(run);
    for (size_t i = 0; i < threads->n && code == EXIT_CONFORMS; i++)
        code = time_all(run, threads->value[i]);
    if (code == EXIT_CONFORMS) code = conclude(run);
    return close_outputs(&run->to) ? code : exit_worse(code, EXIT_HARNESS);
}

int cli_bench(int argc, char **argv)
{
    bench_options options;
    bench_run *run;
    int code = EXIT_USAGE;

    if (!parse(argc, argv, &options)) return EXIT_USAGE;
    run = calloc(1, sizeof *run);
    if (run) run->rows = calloc(MAX_ROWS, sizeof *run->rows);
    if (!run || !run->rows) {
        fputs("slmoe bench: out of memory\n", stderr);
        free(run);
        return EXIT_HARNESS;
    }
    run->options = &options;
    if (!load_shapes(run, &options))
        code = EXIT_VECTORS;
    else if (gather_backends(run) && gather_items(run))
        code = bench(run);
    bench_shapes_free(run->shapes);
    free(run->rows);
    free(run);
    return code;
}
