/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_gen.c - slmoe gen: golden values into their files, or checked. */
#include "cli.h"
#include "golden.h"
#include "manifest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct edit {
    size_t begin; /* bytes of the file's text that are replaced */
    size_t end;
    char *text;
} edit;

typedef struct generator {
    const cli_options *options;
    cli_progress progress;
    edit *edits; /* of the family at hand, in file order */
    size_t n_edits;
    size_t compared;
    size_t by_provenance[VEC_PROVENANCES];
    size_t different;
    size_t written;
    bool broken;
} generator;

static void complain(generator *gen, const vec_case *test, const vec_mark *mark,
                     const char *difference)
{
    progress_clear(&gen->progress);
    printf("slmoe: %s:%zu:%zu: case %s: %s\n", test->family->path, mark->line,
           mark->column, test->id, difference);
    gen->different++;
}

static void propose(generator *gen, const vec_tensor *expected,
                    const slm_tensor *golden)
{
    edit *edits = realloc(gen->edits, (gen->n_edits + 1) * sizeof *edits);

    if (!edits) abort();
    gen->edits = edits;
    edits[gen->n_edits++] =
        (edit){expected->after_key, expected->end.byte,
               vec_format(golden->dtype, golden->rank, golden->shape, golden->data,
                          expected->indent)};
}

/* Every expected tensor of a single outcome: compare, or propose new text. */
static void treat_values(generator *gen, const vec_case *test, const call_frame *frame)
{
    const vec_outcome *outcome = &test->outcomes[0];
    const bool write = !gen->options->check && test->provenance == VEC_REF;
    char difference[GOLDEN_TEXT];

    for (size_t i = 0; i < outcome->n_out; i++) {
        const vec_tensor *expected = &outcome->out[i];

        if (golden_agrees(expected, frame, difference)) continue;
        if (write)
            propose(gen, expected, frame_tensor(frame, expected->field->name));
        else
            complain(gen, test, &expected->begin, difference);
    }
}

static void treat_case(generator *gen, const vec_case *test)
{
    char difference[GOLDEN_TEXT] = "", why[256];
    slm_status status;
    slm_error error;
    call_frame frame;

    if (!golden_run(test, &frame, progress_within, &gen->progress, &status, &error,
                    why)) {
        fprintf(stderr, "slmoe: %s\n", why);
        gen->broken = true;
        return;
    }
    gen->compared++;
    gen->by_provenance[test->provenance]++;
    if (test->n_outcomes == 1 && test->outcomes[0].status == SLM_OK &&
        status == SLM_OK) {
        treat_values(gen, test, &frame);
    } else {
        bool agrees = false;

        for (size_t i = 0; i < test->n_outcomes && !agrees; i++)
            agrees = golden_outcome_agrees(&test->outcomes[i], &frame, status, &error,
                                           difference);
        if (!agrees) complain(gen, test, &test->mark, difference);
    }
    frame_free(&frame);
}

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rbe");
    char *text = NULL;
    long end = -1;

    if (file && fseek(file, 0, SEEK_END) == 0) end = ftell(file);
    if (end >= 0) {
        text = malloc((size_t)end + 1);
        rewind(file);
        *size = text ? fread(text, 1, (size_t)end, file) : 0;
        if (text && *size != (size_t)end) {
            free(text);
            text = NULL;
        }
    }
    if (file) fclose(file);
    return text;
}

static int write_edits(const generator *gen, const char *text, size_t size, FILE *file)
{
    size_t at = 0;

    for (size_t i = 0; i < gen->n_edits; i++) {
        const edit *next = &gen->edits[i];

        fwrite(text + at, 1, next->begin - at, file);
        fputs(next->text, file);
        at = next->end;
    }
    fwrite(text + at, 1, size - at, file);
    return fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
}

static int compare_edits(const void *a, const void *b)
{
    const edit *left = a, *right = b;

    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/* Replace the file by an edited copy: whole or not at all. */
static void apply_edits(generator *gen, const vec_family *family)
{
    char path[4096];
    size_t size = 0;
    char *text = read_file(family->path, &size);
    FILE *file = NULL;
    int ok = 0;

    qsort(gen->edits, gen->n_edits, sizeof *gen->edits, compare_edits);
    if (snprintf(path, sizeof path, "%s.new", family->path) < (int)sizeof path && text)
        file = fopen(path, "wbe");
    if (file) {
        ok = write_edits(gen, text, size, file);
        ok = fclose(file) == 0 && ok && rename(path, family->path) == 0;
        if (!ok) unlink(path);
    }
    if (!ok) {
        fprintf(stderr, "slmoe: %s: cannot be written: %s\n", family->path,
                strerror(errno));
        gen->broken = true;
    } else {
        gen->written += gen->n_edits;
    }
    free(text);
}

static void treat_family(generator *gen, const vec_family *family)
{
    for (size_t j = 0; j < family->n_cases; j++) {
        if (!cli_selects(gen->options, &family->cases[j])) continue;
        progress_step(&gen->progress, family->cases[j].id);
        treat_case(gen, &family->cases[j]);
    }
    if (gen->n_edits) apply_edits(gen, family);
    for (size_t i = 0; i < gen->n_edits; i++) free(gen->edits[i].text);
    free(gen->edits);
    gen->edits = NULL;
    gen->n_edits = 0;
}

static void treat_manifest(generator *gen)
{
    char why[512];

    if (gen->options->check) {
        const size_t stale = manifest_check(gen->options->vectors, stdout, why);

        if (stale == SIZE_MAX) {
            fprintf(stderr, "slmoe: %s\n", why);
            gen->broken = true;
        } else {
            gen->different += stale;
        }
    } else if (!manifest_write(gen->options->vectors, why)) {
        fprintf(stderr, "slmoe: %s\n", why);
        gen->broken = true;
    }
}

static void print_summary(const generator *gen)
{
    printf("%s: %zu cases", gen->options->check ? "gen --check" : "gen", gen->compared);
    for (int i = 0; i < VEC_PROVENANCES; i++)
        if (gen->by_provenance[i])
            printf(", %s %zu", vec_provenance_name((vec_provenance)i),
                   gen->by_provenance[i]);
    if (gen->options->check)
        printf(": %zu %s\n", gen->different,
               gen->different == 1 ? "difference" : "differences");
    else
        printf(": %zu values written, %zu %s that gen may not write\n", gen->written,
               gen->different, gen->different == 1 ? "difference" : "differences");
}

int cli_gen(int argc, char **argv)
{
    cli_options options;
    generator gen = {.options = &options};
    size_t n = 0;

    if (!cli_parse(argc, argv, "VontcpTk", &options)) return EXIT_USAGE;
    if (!options.tier_given) options.tier = VEC_FULL;
    if (options.words.n) {
        fprintf(stderr, "slmoe gen: takes no '%s'\n", options.words.item[0]);
        return EXIT_USAGE;
    }

    vec_set *set = cli_load(&options);

    if (!set) return EXIT_VECTORS;
    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++)
            n += cli_selects(&options, &set->families[i].cases[j]);
    progress_begin(&gen.progress, n);
    for (size_t i = 0; i < set->n_families; i++) treat_family(&gen, &set->families[i]);
    progress_clear(&gen.progress);
    vec_free(set);
    if (!gen.broken) treat_manifest(&gen);
    print_summary(&gen);
    if (gen.broken) return EXIT_HARNESS;
    if (gen.different) return EXIT_FAILS;
    return gen.compared ? EXIT_CONFORMS : EXIT_NOTHING;
}
