/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_report.c - slmoe report, slmoe diff: runs read back. */
#include "balance_load.h"
#include "clauses.h"
#include "cli.h"
#include "golden.h"
#include "report_html.h"
#include "run_diff.h"
#include "run_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Cases of the documents whose step is drawn. */
static const char *const drawn[] = {"qb/documents/4310", "qb/documents/seed-21"};

enum { MAX_DRAWN = sizeof drawn / sizeof *drawn };

/* A page and what it refers to. */
typedef struct page_parts {
    html_page page;
    clause_list spec;
    html_balance balances[MAX_DRAWN];
} page_parts;

static run_file *load(const char *path)
{
    char why[RUN_WHY];
    run_file *run = run_file_load(path, why);

    if (!run) fprintf(stderr, "slmoe: %s\n", why);
    return run;
}

/* ---- what the run file does not hold ---- */

/* Titles of the clauses, as far as the specification can be read. */
static void read_titles(page_parts *parts)
{
    if (!clauses_read(&parts->spec)) return;
    parts->page.n_clauses = parts->spec.n;
    parts->page.clauses = parts->spec.heading;
}

static const vec_case *find_case(const vec_set *set, const char *id)
{
    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++)
            if (strcmp(set->families[i].cases[j].id, id) == 0)
                return &set->families[i].cases[j];
    return NULL;
}

static void draw(page_parts *parts, const vec_case *test, const char *id)
{
    html_balance *balance = &parts->balances[parts->page.n_balances];
    call_frame frame;
    slm_status status;
    slm_error error;
    char why[256];

    if (!test || !golden_run(test, &frame, NULL, NULL, &status, &error, why)) return;
    balance->id = id;
    if (status == SLM_OK && balance_load(&frame, &balance->loads))
        parts->page.n_balances++;
    frame_free(&frame);
}

/* Loads stand in no run file: ref recomputes them, if the vectors are those of the
 * run. */
static void compute_balances(page_parts *parts, const cli_options *options)
{
    vec_error error;
    vec_set *set = vec_load(options->vectors, &error);

    parts->page.balances = parts->balances;
    if (!set)
        parts->page.no_balances = "Left out: the vectors cannot be read here.";
    else if (strcmp(set->sha256, parts->page.run->parts[0].vectors) != 0)
        parts->page.no_balances =
            "Left out: the vectors at hand are not those of this run.";
    else
        for (size_t i = 0; i < MAX_DRAWN; i++)
            draw(parts, find_case(set, drawn[i]), drawn[i]);
    vec_free(set);
}

/* ---- a file that is written whole or not at all ---- */

static int write_page(FILE *out, const html_page *page)
{
    html_write(out, page);
    return fflush(out) == 0 && !ferror(out);
}

static int complain(const char *path)
{
    fprintf(stderr, "slmoe: %s: cannot be written: %s\n", path, strerror(errno));
    return EXIT_HARNESS;
}

/* mkstemp() makes files for their owner alone; a page is for everybody whom the mask
 * lets in. */
static void open_up(int descriptor)
{
    const mode_t mask = umask(0);

    umask(mask);
    (void)!fchmod(descriptor, 0666 & ~mask);
}

/* A device, a pipe: what is there stays, and takes the page. */
static int write_into(const char *path, const html_page *page)
{
    FILE *out = fopen(path, "we");
    int code = EXIT_CONFORMS;

    if (!out || !write_page(out, page)) code = complain(path);
    if (out && fclose(out) != 0 && code == EXIT_CONFORMS) code = complain(path);
    return code;
}

static int replace_file(const char *path, const html_page *page)
{
    const size_t size = strlen(path) + 8;
    char *temporary = malloc(size);
    int descriptor = -1, code = EXIT_CONFORMS;
    FILE *out = NULL;

    if (temporary) {
        snprintf(temporary, size, "%s.XXXXXX", path);
        descriptor = mkstemp(temporary);
    }
    if (descriptor >= 0) {
        open_up(descriptor);
        out = fdopen(descriptor, "w");
    }
    if (!out || !write_page(out, page)) code = complain(path);
    if (out && fclose(out) != 0 && code == EXIT_CONFORMS) code = complain(path);
    if (code == EXIT_CONFORMS && rename(temporary, path) != 0) code = complain(path);
    if (code != EXIT_CONFORMS && descriptor >= 0) unlink(temporary);
    free(temporary);
    return code;
}

/* A link stays one: the file that it names is replaced. */
static int write_file(const char *path, const html_page *page)
{
    struct stat there;
    char *target;
    int code;

    if (stat(path, &there) != 0) return replace_file(path, page);
    if (!S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode))
        return write_into(path, page);
    target = realpath(path, NULL);
    code = replace_file(target ? target : path, page);
    free(target);
    return code;
}

static int write_out(const cli_options *options, const html_page *page)
{
    if (options->html[0]) return write_file(options->html, page);
    return write_page(stdout, page) ? EXIT_CONFORMS : complain("standard output");
}

int cli_report(int argc, char **argv)
{
    page_parts parts = {.page = {.run = NULL}};
    cli_options options;
    run_file *run;
    int code;

    if (!cli_parse(argc, argv, "HV", &options)) return EXIT_USAGE;
    if (options.words.n != 1 || !options.html) {
        fputs("slmoe report: takes one run and a form\n"
              "  slmoe report RUN.jsonl --html=FILE\n",
              stderr);
        return EXIT_USAGE;
    }
    run = load(options.words.item[0]);
    if (!run) return EXIT_USAGE;
    parts.page.run = run;
    read_titles(&parts);
    compute_balances(&parts, &options);
    code = write_out(&options, &parts.page);
    for (size_t i = 0; i < parts.page.n_balances; i++)
        balance_load_free(&parts.balances[i].loads);
    run_file_free(run);
    return code;
}

int cli_diff(int argc, char **argv)
{
    cli_options options;
    run_file *before, *after = NULL;
    int code = EXIT_USAGE;

    if (!cli_parse(argc, argv, "", &options)) return EXIT_USAGE;
    if (options.words.n != 2) {
        fputs("slmoe diff: takes two runs\n  slmoe diff BEFORE.jsonl AFTER.jsonl\n",
              stderr);
        return EXIT_USAGE;
    }
    before = load(options.words.item[0]);
    if (before) after = load(options.words.item[1]);
    if (after)
        code = run_diff(stdout, before, after).worse ? EXIT_FAILS : EXIT_CONFORMS;
    if (after && (fflush(stdout) != 0 || ferror(stdout)))
        code = complain("standard output");
    run_file_free(before);
    run_file_free(after);
    return code;
}
