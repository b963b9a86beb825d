/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/paths.c - where an installed or a just built slmoe finds its data. */
#include "paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From the build: SLM_SOURCE_DIR; SLM_DATA_FROM_BIN and SLM_PREFIX_FROM_BIN, relative
 * paths in the installation. */

void slm_program_dir(char out[SLM_PATH])
{
    const ssize_t length = readlink("/proc/self/exe", out, SLM_PATH - 1);
    char *slash;

    out[length > 0 ? length : 0] = '\0';
    slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
    else
        out[0] = '\0';
}

/* program folder / relative, without symbolic links. Returns 0 when there is no such
 * thing. */
static int beside(const char *relative, char out[SLM_PATH])
{
    char program[SLM_PATH], path[2 * SLM_PATH];
    char *resolved;

    slm_program_dir(program);
    snprintf(path, sizeof path, "%s/%s", program, relative);
    resolved = program[0] ? realpath(path, NULL) : NULL;
    if (!resolved || strlen(resolved) >= SLM_PATH) {
        free(resolved);
        return 0;
    }
    strcpy(out, resolved);
    free(resolved);
    return 1;
}

/* Installed means: the data lies where the installation put it. */
static int is_installed(void)
{
    char path[SLM_PATH];

    return beside(SLM_DATA_FROM_BIN "/vectors/MANIFEST", path);
}

void slm_prefix_dir(char out[SLM_PATH])
{
    if (!is_installed() || !beside(SLM_PREFIX_FROM_BIN, out)) slm_program_dir(out);
}

void slm_vectors_dir(char out[SLM_PATH])
{
    if (!is_installed() || !beside(SLM_DATA_FROM_BIN "/vectors", out))
        strcpy(out, SLM_SOURCE_DIR "/vectors");
}

void slm_spec_file(char out[SLM_PATH])
{
    if (!is_installed() || !beside(SLM_DATA_FROM_BIN "/spec.md", out))
        strcpy(out, SLM_SOURCE_DIR "/spec/spec.md");
}
