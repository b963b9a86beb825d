/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_explain.c - slmoe explain: a clause of the specification. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_spec(void)
{
    char place[SLM_PATH];
    const char *path = getenv("SLM_SPEC");
    FILE *spec;

    slm_spec_file(place);
    if (!path) path = place;
    spec = fopen(path, "re");
    if (!spec)
        fprintf(stderr, "slmoe: %s: cannot be read: %s\n  set SLM_SPEC to spec.md\n",
                path, strerror(errno));
    return spec;
}

/* "### R2 Choice": the clause of a heading line, or 0. */
static int heading_clause(const char *line, char clause[8])
{
    return sscanf(line, "### %7[A-Z0-9]", clause) == 1 && strpbrk(clause, "0123456789");
}

static int print_headings(FILE *spec)
{
    char line[4096], clause[8];

    while (fgets(line, sizeof line, spec))
        if (heading_clause(line, clause)) fputs(line + 4, stdout);
    return EXIT_CONFORMS;
}

/* Print the section of one clause. Returns 0 when there is none. */
static int print_section(FILE *spec, const char *wanted)
{
    char line[4096], clause[8];
    int printing = 0, found = 0;

    while (fgets(line, sizeof line, spec)) {
        if (heading_clause(line, clause)) {
            printing = strcmp(clause, wanted) == 0;
            found |= printing;
            if (printing) {
                fputs(line + 4, stdout);
                continue;
            }
        } else if (line[0] == '#' && (line[1] == ' ' || line[1] == '#')) {
            printing = 0;
        }
        if (printing) fputs(line, stdout);
    }
    return found;
}

static bool concerns(const vec_case *test, const char *clause)
{
    for (size_t i = 0; i < test->n_clauses; i++)
        if (strcmp(test->clauses[i], clause) == 0) return true;
    return false;
}

static void print_vectors(const vec_set *set, const char *clause)
{
    printf("Vectors of %s\n", clause);
    for (size_t i = 0; i < set->n_families; i++) {
        const vec_family *family = &set->families[i];
        size_t n = 0;

        for (size_t j = 0; j < family->n_cases; j++)
            n += concerns(&family->cases[j], clause);
        if (n)
            printf("  %s (%zu %s): %s\n", family->name, n, n == 1 ? "case" : "cases",
                   family->about);
    }
    printf("  slmoe run -b BACKEND --clause %s\n", clause);
}

int cli_explain(int argc, char **argv)
{
    cli_options options;
    int code = EXIT_CONFORMS;

    if (!cli_parse(argc, argv, "V", &options)) return EXIT_USAGE;

    FILE *spec = open_spec();

    if (!spec) return EXIT_HARNESS;
    if (options.words.n == 0) {
        code = print_headings(spec);
        fclose(spec);
        return code;
    }

    vec_set *set = cli_load(&options);

    if (!set) code = EXIT_VECTORS;
    for (size_t i = 0; set && i < options.words.n; i++) {
        rewind(spec);
        if (!print_section(spec, options.words.item[i])) {
            fprintf(stderr, "slmoe: %s: no such clause; `slmoe explain` lists them\n",
                    options.words.item[i]);
            code = EXIT_USAGE;
            continue;
        }
        print_vectors(set, options.words.item[i]);
    }
    fclose(spec);
    vec_free(set);
    return code;
}
