/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/trace.c - which families and mutants stand for a clause. */
#include "trace.h"

#include <string.h>

/* Why nothing can show a clause; "" for all but one. */
static const char *excuse_of(const char *clause)
{
    return strcmp(clause, "A4") == 0 ? "binds the judge, not a backend" : "";
}

/* Items of a cell, or rows of CSV. */
typedef struct cell {
    const char *clause;
    const char *kind;
    bool csv;
    size_t n;
} cell;

static void say(cell *to, const char *name, const char *remark)
{
    if (to->csv)
        printf("%s,%s,%s\n", to->clause, to->kind, name);
    else
        printf("%s%s%s", to->n ? ", " : "", name, remark);
    to->n++;
}

static void close_cell(const cell *of, const char *excuse)
{
    if (of->csv) return;
    if (of->n == 0) printf("%s", excuse[0] ? "-" : "**none**");
    fputs(" | ", stdout);
}

static bool has_clause(const vec_case *test, const char *name)
{
    for (size_t c = 0; c < test->n_clauses; c++)
        if (strcmp(test->clauses[c], name) == 0) return true;
    return false;
}

static bool concerns(const vec_family *family, const char *name)
{
    for (size_t j = 0; j < family->n_cases; j++)
        if (has_clause(&family->cases[j], name)) return true;
    return false;
}

static size_t print_families(const vec_set *set, const char *clause, bool csv)
{
    cell families = {clause, "family", csv, 0};

    for (size_t i = 0; i < set->n_families; i++)
        if (concerns(&set->families[i], clause))
            say(&families, set->families[i].name, "");
    close_cell(&families, excuse_of(clause));
    return families.n;
}

/* Only what dies counts. */
static size_t print_mutants(const kill_matrix *matrix, const char *clause, bool csv)
{
    cell mutants = {clause, "mutant", csv, 0};
    size_t dead = 0;

    for (size_t m = 0; m < matrix->n_mutants; m++) {
        const slm_mutant_info *info = slm_mutant_info_at(m);
        size_t first;

        if (strcmp(info->clause, clause) != 0) continue;
        if (kill_count(matrix, m, &first)) {
            say(&mutants, info->name, "");
            dead++;
        } else {
            say(&mutants, info->name, " (SURVIVED)");
        }
    }
    close_cell(&mutants, excuse_of(clause));
    return dead;
}

static bool is_in(const clause_list *spec, const char *clause)
{
    for (size_t i = 0; i < spec->n; i++)
        if (strcmp(spec->heading[i].id, clause) == 0) return true;
    return false;
}

static size_t miss(const clause_list *spec, const char *what, const char *name,
                   const char *clause)
{
    if (is_in(spec, clause)) return 0;
    fprintf(stderr,
            "slmoe trace: %s %s names %s, which the specification does not have; "
            "`slmoe explain` lists its clauses\n",
            what, name, clause);
    return 1;
}

/* Names of clauses that are none. */
static size_t find_unknown(const clause_list *spec, const kill_matrix *matrix,
                           const vec_set *set)
{
    size_t unknown = 0;

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++) {
            const vec_case *test = &set->families[i].cases[j];

            for (size_t c = 0; c < test->n_clauses; c++)
                if (j == 0 || !has_clause(test - 1, test->clauses[c])) /* told once */
                    unknown += miss(spec, "case", test->id, test->clauses[c]);
        }
    for (size_t m = 0; m < matrix->n_mutants; m++) {
        const slm_mutant_info *info = slm_mutant_info_at(m);

        unknown += miss(spec, "mutant", info->name, info->clause);
    }
    return unknown;
}

size_t trace_print(const clause_list *spec, const kill_matrix *matrix,
                   const vec_set *set, bool csv)
{
    size_t open = find_unknown(spec, matrix, set);

    puts(csv ? "clause,kind,name"
             : "| clause | families | mutants | remark |\n|---|---|---|---|");
    for (size_t c = 0; c < spec->n; c++) {
        const char *clause = spec->heading[c].id, *excuse = excuse_of(clause);

        if (!csv) printf("| %s | ", clause);

        const size_t families = print_families(set, clause, csv);
        const size_t mutants = print_mutants(matrix, clause, csv);
        const bool lacks = !families || !mutants;

        open += lacks && !excuse[0];
        if (csv && excuse[0]) printf("%s,remark,%s\n", clause, excuse);
        if (!csv) printf("%s |\n", excuse[0] ? excuse : lacks ? "NOT COVERED" : "");
    }
    return open;
}
