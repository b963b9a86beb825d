/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_mutants.c - slmoe mutants, slmoe trace: proof that the suite can fail. */
#include "cli.h"
#include "killing.h"

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

static bool concerns(const vec_family *family, const char *clause)
{
    for (size_t j = 0; j < family->n_cases; j++)
        for (size_t c = 0; c < family->cases[j].n_clauses; c++)
            if (strcmp(family->cases[j].clauses[c], clause) == 0) return true;
    return false;
}

/* Clause x vectors x mutants. */
static void print_trace(const kill_matrix *matrix, const vec_set *set, bool csv)
{
    static const char *const clauses[] = {
        "R1", "R2", "R3", "R4", "R5", "L1", "L2", "L3", "L4", "L5", "L6", "Q1", "Q2",
        "Q3", "Q4", "Q5", "Q6", "Q7", "X1", "X2", "X3", "A1", "A2", "A3", "C1"};

    puts(csv ? "clause,kind,name" : "| clause | families | mutants |\n|---|---|---|");
    for (size_t c = 0; c < sizeof clauses / sizeof *clauses; c++) {
        const char *separator = "";

        if (!csv) printf("| %s | ", clauses[c]);
        for (size_t i = 0; i < set->n_families; i++) {
            if (!concerns(&set->families[i], clauses[c])) continue;
            if (csv)
                printf("%s,family,%s\n", clauses[c], set->families[i].name);
            else
                printf("%s%s", separator, set->families[i].name);
            separator = ", ";
        }
        if (!csv) fputs(" | ", stdout);
        separator = "";
        for (size_t m = 0; m < matrix->n_mutants; m++) {
            size_t first;

            if (strcmp(slm_mutant_info_at(m)->clause, clauses[c]) != 0) continue;
            if (csv)
                printf("%s,mutant,%s\n", clauses[c], slm_mutant_info_at(m)->name);
            else
                printf("%s%s%s", separator, slm_mutant_info_at(m)->name,
                       kill_count(matrix, m, &first) ? "" : " (SURVIVED)");
            separator = ", ";
        }
        if (!csv) puts(" |");
    }
}

typedef enum mutants_view { VIEW_LINES, VIEW_MATRIX, VIEW_TRACE } mutants_view;

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
    size_t n, survived, broken = 0;

    if (!set) return EXIT_VECTORS;
    cases = select_cases(options, set, &n);
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
    if (view == VIEW_TRACE) print_trace(&matrix, set, csv);
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

int cli_mutants(int argc, char **argv)
{
    cli_options options;
    bool csv = false;

    if (!cli_parse(argc, argv, "VontcpTfj", &options)) return EXIT_USAGE;
    if (options.formats.n && !view_format(&options, &csv)) return EXIT_USAGE;
    return run_mutants(&options, options.formats.n ? VIEW_MATRIX : VIEW_LINES, csv);
}

int cli_trace(int argc, char **argv)
{
    cli_options options;
    bool csv;

    if (!cli_parse(argc, argv, "VontcpTfj", &options)) return EXIT_USAGE;
    if (!view_format(&options, &csv)) return EXIT_USAGE;
    return run_mutants(&options, VIEW_TRACE, csv);
}
