/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/trace.c - which families and mutants stand for a clause. */
#include "trace.h"

#include <string.h>

typedef struct clause {
    const char *name;
    const char *excuse; /* why nothing can show it, or little; "" for the others */
} clause;

static const clause clauses[] = {{"R1", ""},
                                 {"R2", ""},
                                 {"R3", ""},
                                 {"R4", ""},
                                 {"R5", ""},
                                 {"L1", ""},
                                 {"L2", ""},
                                 {"L3", ""},
                                 {"L4", ""},
                                 {"L5", ""},
                                 {"L6", ""},
                                 {"Q1", ""},
                                 {"Q2", ""},
                                 {"Q3", ""},
                                 {"Q4", "no operation yet"},
                                 {"Q5", "no operation yet"},
                                 {"Q6", ""},
                                 {"Q7", ""},
                                 {"X1", ""},
                                 {"X2", ""},
                                 {"X3", ""},
                                 {"A1", ""},
                                 {"A2", ""},
                                 {"A3", ""},
                                 {"A4", "binds the judge, not a backend"},
                                 {"C1", ""}};

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

static bool concerns(const vec_family *family, const char *name)
{
    for (size_t j = 0; j < family->n_cases; j++)
        for (size_t c = 0; c < family->cases[j].n_clauses; c++)
            if (strcmp(family->cases[j].clauses[c], name) == 0) return true;
    return false;
}

static size_t print_families(const vec_set *set, const clause *of, bool csv)
{
    cell families = {of->name, "family", csv, 0};

    for (size_t i = 0; i < set->n_families; i++)
        if (concerns(&set->families[i], of->name))
            say(&families, set->families[i].name, "");
    close_cell(&families, of->excuse);
    return families.n;
}

/* Only what dies counts. */
static size_t print_mutants(const kill_matrix *matrix, const clause *of, bool csv)
{
    cell mutants = {of->name, "mutant", csv, 0};
    size_t dead = 0;

    for (size_t m = 0; m < matrix->n_mutants; m++) {
        const slm_mutant_info *info = slm_mutant_info_at(m);
        size_t first;

        if (strcmp(info->clause, of->name) != 0) continue;
        if (kill_count(matrix, m, &first)) {
            say(&mutants, info->name, "");
            dead++;
        } else {
            say(&mutants, info->name, " (SURVIVED)");
        }
    }
    close_cell(&mutants, of->excuse);
    return dead;
}

size_t trace_print(const kill_matrix *matrix, const vec_set *set, bool csv)
{
    size_t open = 0;

    puts(csv ? "clause,kind,name"
             : "| clause | families | mutants | remark |\n|---|---|---|---|");
    for (size_t c = 0; c < sizeof clauses / sizeof *clauses; c++) {
        const clause *of = &clauses[c];

        if (!csv) printf("| %s | ", of->name);

        const size_t families = print_families(set, of, csv);
        const size_t mutants = print_mutants(matrix, of, csv);
        const bool lacks = !families || !mutants;

        open += lacks && !of->excuse[0];
        if (csv && of->excuse[0]) printf("%s,remark,%s\n", of->name, of->excuse);
        if (!csv)
            printf("%s |\n", of->excuse[0] ? of->excuse : lacks ? "NOT COVERED" : "");
    }
    return open;
}
