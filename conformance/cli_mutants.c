/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_mutants.c - slmoe mutants, slmoe trace: proof that the suite can fail. */
#include "cli.h"
#include "killing.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

static const vec_case **select_cases(const cli_options *options, const vec_set *set,
                                     size_t *n)
{
    const vec_case **cases = malloc((set->n_cases + 1) * sizeof *cases);

    *n = 0;
    for (size_t i = 0; cases && i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++)
            if (cli_selects(options, &set->families[i].cases[j]))
                cases[(*n)++] = &set->families[i].cases[j];
    return cases;
}

static void print_lines(const kill_matrix *matrix)
{
    for (size_t m = 0; m < matrix->n_mutants; m++) {
        const slm_mutant_info *info = slm_mutant_info_at(m);
        size_t first;
        const size_t n = kill_count(matrix, m, &first);

        if (n)
            printf("killed    %-34s %s  by %zu %s, first %s (%s)\n", info->name,
                   info->clause, n, n == 1 ? "case" : "cases", matrix->cases[first]->id,
                   kill_at(matrix, m, first)->stage[0]
                       ? kill_at(matrix, m, first)->stage
                       : "status");
        else
            printf("SURVIVED  %-34s %s  %s\n", info->name, info->clause,
                   info->sentence);
    }
}

static size_t find_mutant(const char *name)
{
    size_t m = 0;

    while (m < slm_mutant_count() && strcmp(slm_mutant_info_at(m)->name, name) != 0)
        m++;
    return m;
}

/* A word of a family's `kills` must be a mutant that the family kills. */
static size_t check_promise(const kill_matrix *matrix, const vec_family *family,
                            const char *name)
{
    const size_t m = find_mutant(name);
    const char *stage;

    if (m == slm_mutant_count())
        printf("PROMISE   %s: kills names '%s', which is no mutant\n", family->path,
               name);
    else if (!kill_by_family(matrix, m, family, &stage))
        printf("PROMISE   %s: names %s and does not kill it\n", family->path, name);
    else
        return 0;
    return 1;
}

/* Every name once a family: its cases share or replace the list. */
static size_t check_promises(const kill_matrix *matrix, const vec_set *set)
{
    size_t broken = 0;

    for (size_t i = 0; i < set->n_families; i++) {
        const vec_family *family = &set->families[i];
        bool *seen = calloc(slm_mutant_count() + 1, sizeof *seen);

        for (size_t j = 0; seen && j < family->n_cases; j++)
            for (size_t k = 0; k < family->cases[j].n_kills; k++) {
                const size_t m = find_mutant(family->cases[j].kills[k]);

                if (seen[m]) continue;
                seen[m] = true;
                broken += check_promise(matrix, family, family->cases[j].kills[k]);
            }
        free(seen);
    }
    return broken;
}

static size_t count_survivors(const kill_matrix *matrix)
{
    size_t survived = 0, first;

    for (size_t m = 0; m < matrix->n_mutants; m++)
        survived += kill_count(matrix, m, &first) == 0;
    return survived;
}

/* Mutant x family: the stage that gave it away. */
static void print_matrix(const kill_matrix *matrix, const vec_set *set, bool csv)
{
    puts(csv ? "mutant,clause,family,stage"
             : "| mutant | clause | killed by (stage) |\n|---|---|---|");
    for (size_t m = 0; m < matrix->n_mutants; m++) {
        const slm_mutant_info *info = slm_mutant_info_at(m);
        const char *separator = "";

        if (!csv) printf("| %s | %s | ", info->name, info->clause);
        for (size_t i = 0; i < set->n_families; i++) {
            const char *stage;

            if (!kill_by_family(matrix, m, &set->families[i], &stage)) continue;
            if (csv)
                printf("%s,%s,%s,%s\n", info->name, info->clause, set->families[i].name,
                       stage[0] ? stage : "status");
            else
                printf("%s%s (%s)", separator, set->families[i].name,
                       stage[0] ? stage : "status");
            separator = ", ";
        }
        if (!csv) puts(" |");
    }
}

/* Whether a case of the family names the mutant. */
static bool is_named(const vec_family *family, const char *mutant)
{
    for (size_t j = 0; j < family->n_cases; j++)
        for (size_t k = 0; k < family->cases[j].n_kills; k++)
            if (strcmp(family->cases[j].kills[k], mutant) == 0) return true;
    return false;
}

/* Whether that family kills the mutant and no other does. */
static bool kills_alone(const kill_matrix *matrix, const vec_family *family, size_t m)
{
    bool killed = false;

    for (size_t i = 0; i < matrix->n_cases; i++) {
        if (!kill_at(matrix, m, i)->killed) continue;
        if (matrix->cases[i]->family != family) return false;
        killed = true;
    }
    return killed;
}

/* Whether a case of the family was judged at all. */
static bool is_selected(const kill_matrix *matrix, const vec_family *family)
{
    for (size_t i = 0; i < matrix->n_cases; i++)
        if (matrix->cases[i]->family == family) return true;
    return false;
}

static bool names_any(const vec_family *family)
{
    for (size_t j = 0; j < family->n_cases; j++)
        if (family->cases[j].n_kills) return true;
    return false;
}

/* A family that names mutants is essential: without it one of them would live. Returns
 * how many are not. */
static size_t print_essential(const kill_matrix *matrix, const vec_set *set)
{
    size_t redundant = 0, essential = 0;

    for (size_t i = 0; i < set->n_families; i++) {
        const vec_family *family = &set->families[i];
        const char *separator = "";
        bool found = false;

        if (!is_selected(matrix, family) || !names_any(family)) continue;
        for (size_t m = 0; m < matrix->n_mutants; m++) {
            const char *name = slm_mutant_info_at(m)->name;

            if (!is_named(family, name) || !kills_alone(matrix, family, m)) continue;
            if (!found) printf("essential  %-26s ", family->name);
            printf("%s%s", separator, name);
            separator = ", ";
            found = true;
        }
        if (found)
            putchar('\n');
        else
            printf("REDUNDANT  %-26s all that it names die elsewhere too\n",
                   family->name);
        essential += found;
        redundant += !found;
    }
    printf("%zu families name mutants, %zu essential, %zu redundant\n",
           essential + redundant, essential, redundant);
    return redundant;
}

typedef enum mutants_view {
    VIEW_LINES,
    VIEW_MATRIX,
    VIEW_TRACE,
    VIEW_ESSENTIAL
} mutants_view;

static int view_format(const cli_options *options, bool *csv)
{
    const char *format = options->formats.n ? options->formats.item[0] : "md";

    *csv = strcmp(format, "csv") == 0;
    if (*csv || strcmp(format, "md") == 0) return 1;
    fprintf(stderr, "slmoe %s: --format %s: expected md or csv\n", options->verb,
            format);
    return 0;
}

static int run_mutants(const cli_options *options, mutants_view view, bool csv)
{
    kill_matrix matrix = {0};
    vec_set *set = cli_load(options);
    const vec_case **cases;
    cli_progress progress;
    char why[512];
    size_t n, survived, broken = 0; /* promises, families or clauses */
    clause_list spec;

    if (view == VIEW_TRACE && !clauses_read(&spec)) {
        vec_free(set);
        return EXIT_HARNESS;
    }
    if (!set) return EXIT_VECTORS;
    cases = select_cases(options, set, &n);
    if (cases && n == 0) {
        fprintf(stderr, "slmoe %s: no case was selected\n", options->verb);
        free(cases);
        vec_free(set);
        return EXIT_NOTHING;
    }
    progress_begin(&progress, 1);
    progress_step(&progress, "mutants");
    if (!cases ||
        !kill_run(&matrix, cases, n, options->jobs, progress_within, &progress, why)) {
        progress_clear(&progress);
        fprintf(stderr, "slmoe: %s\n", cases ? why : "out of memory");
        kill_free(&matrix);
        free(cases);
        vec_free(set);
        return EXIT_HARNESS;
    }
    progress_clear(&progress);
    if (view == VIEW_LINES) print_lines(&matrix);
    if (view == VIEW_MATRIX) print_matrix(&matrix, set, csv);
    if (view == VIEW_TRACE) broken = trace_print(&spec, &matrix, set, csv);
    if (view == VIEW_ESSENTIAL) broken = print_essential(&matrix, set);
    if (view == VIEW_LINES && !options->only.n && !options->tier_given)
        broken = check_promises(&matrix, set);
    survived = count_survivors(&matrix);
    if (view == VIEW_LINES)
        printf("%zu killed, %zu survived\n", matrix.n_mutants - survived, survived);
    kill_free(&matrix);
    free(cases);
    vec_free(set);
    return survived || broken ? EXIT_FAILS : n ? EXIT_CONFORMS : EXIT_NOTHING;
}

static int takes_no_words(const cli_options *options)
{
    if (options->words.n == 0) return 1;
    fprintf(stderr, "slmoe %s: takes no '%s'\n", options->verb, options->words.item[0]);
    return 0;
}

int cli_mutants(int argc, char **argv)
{
    cli_options options;
    bool csv = false;

    if (!cli_parse(argc, argv, "VontcpTfje", &options)) return EXIT_USAGE;
    if (!takes_no_words(&options)) return EXIT_USAGE;
    if (options.formats.n && !view_format(&options, &csv)) return EXIT_USAGE;
    if (options.essential && options.formats.n) {
        fputs("slmoe mutants: --essential and --format do not go together\n", stderr);
        return EXIT_USAGE;
    }
    return run_mutants(&options,
                       options.essential   ? VIEW_ESSENTIAL
                       : options.formats.n ? VIEW_MATRIX
                                           : VIEW_LINES,
                       csv);
}

int cli_trace(int argc, char **argv)
{
    cli_options options;
    bool csv;

    if (!cli_parse(argc, argv, "VontcpTfj", &options)) return EXIT_USAGE;
    if (!takes_no_words(&options)) return EXIT_USAGE;
    if (!view_format(&options, &csv)) return EXIT_USAGE;
    return run_mutants(&options, VIEW_TRACE, csv);
}
