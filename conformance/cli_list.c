/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_list.c - slmoe list: name the cases of a selection. */
#include "cli.h"

static void print_words(const char *label, char *const *words, size_t n)
{
    if (!n) return;
    printf("  %s", label);
    for (size_t i = 0; i < n; i++) printf("%s%s", i ? "," : " ", words[i]);
}

static void print_case(const vec_case *test, bool verbose)
{
    printf("%s", test->id);
    if (verbose) {
        printf("  %s  %s  %s", slm_op_describe(test->op)->name,
               vec_provenance_name(test->provenance), vec_tier_name(test->tier));
        print_words("clause", test->clauses, test->n_clauses);
        print_words("kills", test->kills, test->n_kills);
        if (test->note) printf("  # %s", test->note);
    }
    putchar('\n');
}

int cli_list_cases(int argc, char **argv)
{
    cli_options options;
    size_t n = 0;

    if (!cli_parse(argc, argv, "VontcpTv", &options)) return EXIT_USAGE;
    if (options.words.n) {
        fprintf(stderr, "slmoe list: takes no '%s'; a selection is --only GLOB\n",
                options.words.item[0]);
        return EXIT_USAGE;
    }
    if (!options.tier_given) options.tier = VEC_FULL;

    vec_set *set = cli_load(&options);

    if (!set) return EXIT_VECTORS;
    for (size_t i = 0; i < set->n_families; i++) {
        const vec_family *family = &set->families[i];
        bool first = true;

        for (size_t j = 0; j < family->n_cases; j++) {
            if (!cli_selects(&options, &family->cases[j])) continue;
            if (first && options.verbose)
                printf("# %s: %s\n", family->name, family->about);
            first = false;
            print_case(&family->cases[j], options.verbose);
            n++;
        }
    }
    vec_free(set);
    if (n) return EXIT_CONFORMS;
    fputs("slmoe list: no case was selected\n", stderr);
    return EXIT_NOTHING;
}
