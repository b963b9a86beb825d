/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli.c - options, selection of cases, progress. */
#include "cli.h"
#include "builtins.h"

#include <fnmatch.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int exit_worse(int a, int b)
{
    static const int order[] = {EXIT_USAGE,     EXIT_VECTORS, EXIT_BACKEND,
                                EXIT_NO_DEVICE, EXIT_HARNESS, EXIT_FAILS,
                                EXIT_NOTHING};

    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (a == order[i] || b == order[i]) return order[i];
    return EXIT_CONFORMS;
}

int exit_unopened(const char *name, const char *why)
{
    char begin[TESTEE_WHY];

    snprintf(begin, sizeof begin, "%s: left out: " BUILTINS_NO_DEVICE, name);
    return strncmp(why, begin, strlen(begin)) == 0 ? EXIT_NO_DEVICE : EXIT_BACKEND;
}

static const struct option long_options[] = {
    {"backend", required_argument, NULL, 'b'},
    {"vectors", required_argument, NULL, 'V'},
    {"only", required_argument, NULL, 'o'},
    {"not", required_argument, NULL, 'n'},
    {"tag", required_argument, NULL, 't'},
    {"clause", required_argument, NULL, 'c'},
    {"provenance", required_argument, NULL, 'p'},
    {"tier", required_argument, NULL, 'T'},
    {"format", required_argument, NULL, 'f'},
    {"verbose", no_argument, NULL, 'v'},
    {"check", no_argument, NULL, 'k'},
    {"timeout", required_argument, NULL, 'S'},
    {"slow", required_argument, NULL, 'W'},
    {"jobs", required_argument, NULL, 'j'},
    {"shard", required_argument, NULL, 's'},
    {"xfail", required_argument, NULL, 'x'},
    {"essential", no_argument, NULL, 'e'},
    {"max-fail", required_argument, NULL, 'm'},
    {"once", no_argument, NULL, '1'},
    {"html", optional_argument, NULL, 'H'},
    {NULL, 0, NULL, 0}};

static int append(cli_list *list, const char *item, const char *what)
{
    if (list->n == CLI_MAX) {
        fprintf(stderr, "slmoe: more than %d of %s\n", CLI_MAX, what);
        return 0;
    }
    list->item[list->n++] = item;
    return 1;
}

static int usage(const char *verb)
{
    fprintf(stderr, "  slmoe %s --help lists what it takes\n", verb);
    return 0;
}

static int parse_tier(const char *word, cli_options *options)
{
    for (int tier = 0; tier < VEC_TIERS; tier++)
        if (strcmp(word, vec_tier_name((vec_tier)tier)) == 0) {
            options->tier = (vec_tier)tier;
            options->tier_given = true;
            return 1;
        }
    fprintf(stderr, "slmoe: --tier %s: expected smoke, quick or full\n", word);
    return usage(options->verb);
}

static int parse_factor(const char *word, const char *what, double *out)
{
    char *end;

    *out = strtod(word, &end);
    if (end != word && !*end && *out > 0 && *out < 1e6) return 1;
    fprintf(stderr, "slmoe: %s %s: expected a number above 0 and below 1e6\n", what,
            word);
    return 0;
}

static int parse_provenance(const char *word, cli_options *options)
{
    for (int i = 0; i < VEC_PROVENANCES; i++)
        if (fnmatch(word, vec_provenance_name((vec_provenance)i), 0) == 0)
            return append(&options->provenances, word, "--provenance");
    fprintf(stderr, "slmoe: --provenance %s: expected one of", word);
    for (int i = 0; i < VEC_PROVENANCES; i++)
        fprintf(stderr, " %s", vec_provenance_name((vec_provenance)i));
    fputc('\n', stderr);
    return usage(options->verb);
}

static int parse_jobs(const char *word, cli_options *options)
{
    char *end;
    const long jobs = strtol(word, &end, 10);

    options->jobs = (size_t)jobs;
    if (end != word && !*end && jobs >= 1 && jobs <= 64) return 1;
    fprintf(stderr, "slmoe: -j %s: expected a number from 1 to 64\n", word);
    return 0;
}

static int parse_max_fail(const char *word, cli_options *options)
{
    char *end;
    const long limit = strtol(word, &end, 10);

    options->max_fail = (size_t)limit;
    if (end != word && !*end && limit >= 1) return 1;
    fprintf(stderr, "slmoe: --max-fail %s: expected a number from 1 on\n", word);
    return 0;
}

static int parse_shard(const char *word, cli_options *options)
{
    char rest;

    if (sscanf(word, "%zu/%zu%c", &options->shard, &options->shard_of, &rest) == 2 &&
        options->shard >= 1 && options->shard <= options->shard_of)
        return 1;
    fprintf(stderr, "slmoe: --shard %s: expected I/N with 1 <= I <= N\n", word);
    return 0;
}

static int take(int letter, cli_options *options)
{
    switch (letter) {
    case 'b':
        return append(&options->backends, optarg, "--backend");
    case 'V':
        options->vectors = optarg;
        return 1;
    case 'o':
        return append(&options->only, optarg, "--only");
    case 'n':
        return append(&options->not, optarg, "--not");
    case 't':
        return append(&options->tags, optarg, "--tag");
    case 'c':
        return append(&options->clauses, optarg, "--clause");
    case 'p':
        return parse_provenance(optarg, options);
    case 'T':
        return parse_tier(optarg, options);
    case 'f':
        return append(&options->formats, optarg, "--format");
    case 'v':
        options->verbose = true;
        return 1;
    case 'k':
        options->check = true;
        return 1;
    case 'e':
        options->essential = true;
        return 1;
    case '1':
        options->once = true;
        return 1;
    case 'j':
        return parse_jobs(optarg, options);
    case 's':
        return parse_shard(optarg, options);
    case 'x':
        options->xfail = optarg;
        return 1;
    case 'm':
        return parse_max_fail(optarg, options);
    case 'H':
        options->html = optarg ? optarg : "";
        return 1;
    case 'S':
        return parse_factor(optarg, "--timeout", &options->testee.timeout);
    case 'W':
        return parse_factor(optarg, "--slow", &options->testee.slow);
    default:
        return 0;
    }
}

int cli_parse(int argc, char **argv, const char *allowed, cli_options *options)
{
    int letter;

    memset(options, 0, sizeof *options);
    options->verb = argv[0];
    options->vectors = getenv("SLM_VECTORS");
    slm_vectors_dir(options->default_vectors);
    if (!options->vectors) options->vectors = options->default_vectors;
    options->tier = VEC_QUICK;
    options->testee = (testee_options){.timeout = 120, .slow = 1};
    options->jobs = 1;
    options->shard = options->shard_of = 1;
    opterr = 0;
    optind = 1;
    while ((letter = getopt_long(argc, argv, ":b:vj:", long_options, NULL)) != -1) {
        if (letter == ':') {
            fprintf(stderr, "slmoe %s: %s needs a value\n", argv[0], argv[optind - 1]);
            return usage(argv[0]);
        }
        if (letter == '?' || !strchr(allowed, letter)) {
            fprintf(stderr, "slmoe %s: does not take %s\n", argv[0], argv[optind - 1]);
            return usage(argv[0]);
        }
        if (!take(letter, options)) return 0;
    }
    for (; optind < argc; optind++)
        if (!append(&options->words, argv[optind], "arguments")) return 0;
    return 1;
}

vec_set *cli_load(const cli_options *options)
{
    vec_error error;
    vec_set *set = vec_load(options->vectors, &error);

    if (set && vec_verify(set, &error)) return set;
    if (error.mark.line)
        fprintf(stderr, "slmoe: %s:%zu:%zu: %s\n", error.path, error.mark.line,
                error.mark.column, error.what);
    else
        fprintf(stderr, "slmoe: %s: %s\n", error.path, error.what);
    if (error.remedy[0]) fprintf(stderr, "  %s\n", error.remedy);
    vec_free(set);
    return NULL;
}

static bool matches(const cli_list *globs, const char *text)
{
    for (size_t i = 0; i < globs->n; i++)
        if (fnmatch(globs->item[i], text, 0) == 0) return true;
    return false;
}

static bool has_any(const cli_list *wanted, char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (matches(wanted, words[i])) return true;
    return false;
}

bool cli_selects(const cli_options *options, const vec_case *test)
{
    if (test->superseded_by) return false;
    if (test->tier > options->tier) return false;
    if (options->only.n && !matches(&options->only, test->id)) return false;
    if (matches(&options->not, test->id)) return false;
    if (options->tags.n && !has_any(&options->tags, test->tags, test->n_tags))
        return false;
    if (options->clauses.n &&
        !has_any(&options->clauses, test->clauses, test->n_clauses))
        return false;
    return !options->provenances.n ||
           matches(&options->provenances, vec_provenance_name(test->provenance));
}

const vec_case *cli_find_case(const vec_set *set, const char *id)
{
    const vec_case *found = NULL;
    size_t n = 0;

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++) {
            const vec_case *test = &set->families[i].cases[j];

            if (strcmp(test->id, id) == 0) return test;
            if (fnmatch(id, test->id, 0) == 0) {
                found = test;
                n++;
            }
        }
    if (n == 1) return found;
    if (n)
        fprintf(stderr,
                "slmoe: %s: %zu cases match; `slmoe list --only '%s'` names them\n", id,
                n, id);
    else
        fprintf(stderr, "slmoe: %s: no such case; `slmoe list` names them\n", id);
    return NULL;
}

void progress_begin(cli_progress *progress, size_t total)
{
    progress->shown = isatty(STDERR_FILENO);
    progress->done = 0;
    progress->total = total;
    progress->what = "";
}

static void draw(const cli_progress *progress, double share)
{
    enum { WIDTH = 24 };
    const int full = (int)(share * WIDTH);

    fprintf(stderr, "\r\033[K[%.*s%.*s] %3.0f %%  %.48s", full,
            "########################", WIDTH - full, "                        ",
            100 * share, progress->what);
}

void progress_step(cli_progress *progress, const char *what)
{
    progress->what = what;
    if (progress->shown)
        draw(progress, (double)progress->done / (double)(progress->total + 1));
    progress->done++;
}

void progress_within(void *user, size_t done, size_t total)
{
    const cli_progress *progress = user;
    const double before = (double)(progress->done ? progress->done - 1 : 0);

    if (progress->shown && total)
        draw(progress, (before + (double)done / (double)total) /
                           (double)(progress->total ? progress->total : 1));
}

void progress_clear(cli_progress *progress)
{
    if (progress->shown) fputs("\r\033[K", stderr);
}
