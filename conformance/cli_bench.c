/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench.c - slmoe bench: how fast a right backend is, and could be. */
#include "cli_bench.h"
#include "machine.h"
#include "report.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

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
                                             {"phases", no_argument, NULL, 'p'},
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
static int parse_numbers(const char *text, const char *option, unsigned long most,
                         bench_numbers *out)
{
    for (const char *at = text;; at++) {
        char *end;
        const unsigned long value = strtoul(at, &end, 10);

        if (end == at || (*end && *end != ',') || value < 1 || value > most ||
            out->n == BENCH_NUMBERS)
            break;
        out->value[out->n++] = value;
        if (!*end) return 1;
        at = end;
    }
    fprintf(
        stderr,
        "slmoe bench: --%s %s: expected up to %d numbers from 1 to %lu, with commas\n",
        option, text, BENCH_NUMBERS, most);
    return 0;
}

static int parse_seconds(const char *text, const char *option, double *out)
{
    char *end;

    *out = strtod(text, &end);
    if (end != text && !*end && *out > 0 && *out < 1e5) return 1;
    fprintf(stderr, "slmoe bench: --%s %s: expected seconds above 0 and below 1e5\n",
            option, text);
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
        return parse_numbers(optarg, "tokens", 1 << 20, &options->tokens);
    case 'n':
        return parse_numbers(optarg, "experts", 1 << 20, &options->experts);
    case 'k':
        return parse_numbers(optarg, "top-k", 1 << 20, &options->top_k);
    case 't':
        return parse_numbers(optarg, "threads", 1024, &options->threads);
    case 'v':
        options->versus = optarg;
        return 1;
    case 'F':
        options->file = optarg;
        return 1;
    case 'p':
        options->phases = 1;
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

enum { OUTPUTS = 3 };

/* Which of table, jsonl and svg a format names: 0 to 2; 3: none. */
static size_t find_output(const char *format)
{
    static const char *const names[OUTPUTS] = {"table", "jsonl", "svg"};
    const size_t length = strcspn(format, "=");
    size_t i = 0;

    while (i < OUTPUTS &&
           (strlen(names[i]) != length || strncmp(names[i], format, length) != 0))
        i++;
    return strcmp(format + length, "=") == 0 ? OUTPUTS : i;
}

/* Nothing is opened before all of them are good. */
static int check_outputs(const cli_list *formats)
{
    int taken[OUTPUTS + 1] = {[OUTPUTS] = 1};
    char why[256];

    for (size_t i = 0; i < formats->n; i++) {
        if (taken[find_output(formats->item[i])]++) {
            fprintf(stderr,
                    "slmoe bench: --format %s: expected table, jsonl or svg, "
                    "once each, with =FILE or without\n",
                    formats->item[i]);
            return 0;
        }
        if (report_shares_file(formats->item, i, why)) {
            fprintf(stderr, "slmoe bench: %s\n", why);
            return 0;
        }
    }
    return 1;
}

static int open_outputs(bench_outputs *to, const cli_list *formats)
{
    FILE **const files[OUTPUTS] = {&to->table, &to->jsonl, &to->svg};

    if (!check_outputs(formats)) return EXIT_USAGE;
    for (size_t i = 0; i < formats->n; i++) {
        const char *path = strchr(formats->item[i], '=');
        FILE *file = path ? fopen(path + 1, "we") : stdout;

        *files[find_output(formats->item[i])] = file;
        if (!file) {
            fprintf(stderr, "slmoe: %s: cannot be written: %s\n", path + 1,
                    strerror(errno));
            return EXIT_HARNESS;
        }
    }
    return EXIT_CONFORMS;
}

static int close_outputs(const bench_outputs *to)
{
    FILE *const files[] = {to->table, to->jsonl, to->svg};
    int ok = 1;

    for (int i = 0; i < 3; i++) {
        if (!files[i]) continue;
        ok &= !ferror(files[i]);
        ok &= files[i] == stdout ? fflush(stdout) == 0 : fclose(files[i]) == 0;
    }
    if (!ok)
        fprintf(stderr, "slmoe bench: not everything could be written: %s\n",
                strerror(errno));
    return ok;
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

static int conclude(const bench_run *run)
{
    size_t timed = 0;

    for (size_t i = 0; i < run->n_rows; i++) timed += !run->rows[i].skipped[0];
    if (run->to.svg) bench_svg(run->to.svg, run->rows, run->n_rows);
    if (run->to.table) bench_table_foot(run->to.table, run->rows, run->n_rows);
    if (timed) return EXIT_CONFORMS;
    fputs("slmoe bench: nothing was timed\n", stderr);
    return EXIT_NOTHING;
}

static int bench(bench_run *run)
{
    const bench_numbers *threads = &run->options->threads;
    int code = EXIT_CONFORMS;

    if (run->n_items * run->n_backends * threads->n > BENCH_ROWS) {
        fprintf(stderr, "slmoe bench: more than %d rows\n", BENCH_ROWS);
        return EXIT_USAGE;
    }
    code = open_outputs(&run->to, &run->options->formats);
    if (code != EXIT_CONFORMS) return code;
    say_origin(run);
    for (size_t i = 0; i < threads->n && code == EXIT_CONFORMS; i++)
        code = bench_time_all(run, threads->value[i]);
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
    if (run) run->rows = calloc(BENCH_ROWS, sizeof *run->rows);
    if (!run || !run->rows) {
        fputs("slmoe bench: out of memory\n", stderr);
        free(run);
        return EXIT_HARNESS;
    }
    run->options = &options;
    if (!load_shapes(run, &options))
        code = EXIT_VECTORS;
    else if (gather_backends(run) && bench_gather_items(run))
        code = bench(run);
    bench_shapes_free(run->shapes);
    free(run->rows);
    free(run);
    return code;
}
