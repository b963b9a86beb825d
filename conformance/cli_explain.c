/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_explain.c - slmoe explain: a clause of the specification. */
#include "clauses.h"
#include "cli.h"

#include <string.h>

static int print_headings(void)
{
    clause_list list;

    if (!clauses_read(&list)) return EXIT_HARNESS;
    for (size_t i = 0; i < list.n; i++)
        printf("%s %s\n", list.heading[i].id, list.heading[i].title);
    return EXIT_CONFORMS;
}

/* Print the section of one clause. Returns 0 when there is none. */
static int print_section(FILE *spec, const char *wanted)
{
    clause_heading heading;
    char line[4096];
    int printing = 0, found = 0;

    while (fgets(line, sizeof line, spec)) {
        if (clauses_heading(line, &heading)) {
            printing = strcmp(heading.id, wanted) == 0;
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
    if (options.words.n == 0) return print_headings();

    FILE *spec = clauses_open();

    if (!spec) return EXIT_HARNESS;

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
