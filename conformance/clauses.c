/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/clauses.c - the clauses that the specification has, by its headings. */
#include "clauses.h"

#include "paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *spec_path(char place[SLM_PATH])
{
    const char *path = getenv("SLM_SPEC");

    slm_spec_file(place);
    return path ? path : place;
}

FILE *clauses_open(void)
{
    char place[SLM_PATH];
    const char *path = spec_path(place);
    FILE *spec = fopen(path, "re");

    if (!spec)
        fprintf(stderr, "slmoe: %s: cannot be read: %s\n  set SLM_SPEC to spec.md\n",
                path, strerror(errno));
    return spec;
}

int clauses_heading(const char *line, clause_heading *out)
{
    return sscanf(line, "### %7[A-Z0-9] %87[^\n]", out->id, out->title) == 2 &&
           strpbrk(out->id, "0123456789") != NULL;
}

int clauses_read(clause_list *out)
{
    char line[4096], place[SLM_PATH];
    FILE *spec = clauses_open();

    out->n = 0;
    if (!spec) return 0;
    while (out->n < CLAUSES_MAX && fgets(line, sizeof line, spec))
        out->n += clauses_heading(line, &out->heading[out->n]) != 0;
    fclose(spec);
    if (out->n) return 1;
    fprintf(stderr,
            "slmoe: %s: has no clause: expected headings like '### R2 Choice'\n"
            "  set SLM_SPEC to spec.md\n",
            spec_path(place));
    return 0;
}
