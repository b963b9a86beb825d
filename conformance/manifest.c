/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/manifest.c - vectors/MANIFEST: version of the set, digest of each file.
 *
 *   slm-manifest/1
 *   version 0.2
 *   9c1f...  select/tie.yaml */
#include "manifest.h"
#include "vector.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int digest_of(const char *vectors, const char *name, char digest[65])
{
    char path[4096];
    FILE *file;
    char *text;
    long size;
    int ok = 0;

    snprintf(path, sizeof path, "%s/%s", vectors, name);
    file = fopen(path, "rbe");
    if (!file) return 0;
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 &&
        (text = malloc((size_t)size + 1)) != NULL) {
        rewind(file);
        ok = fread(text, 1, (size_t)size, file) == (size_t)size;
        if (ok) vec_sha256(text, (size_t)size, digest);
        free(text);
    }
    fclose(file);
    return ok;
}

static FILE *open_manifest(const char *vectors)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/MANIFEST", vectors);
    return fopen(path, "re");
}

static int is_folder(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

size_t manifest_check(const char *vectors, FILE *out, char *why)
{
    FILE *manifest = is_folder(vectors) ? open_manifest(vectors) : NULL;
    char line[4096], listed[65], name[2048], digest[65];
    size_t stale = 0, number = 0;

    if (!manifest) return 0;
    while (fgets(line, sizeof line, manifest)) {
        number++;
        if (number == 1 && strcmp(line, "slm-manifest/1\n") == 0) continue;
        if (number == 2 && strncmp(line, "version ", 8) == 0) continue;
        if (sscanf(line, "%64[0-9a-f] %2047[^\n]", listed, name) != 2) {
            snprintf(why, 512,
                     "%s/MANIFEST:%zu:1: expected a digest and a file\n"
                     "  `slmoe gen` writes it anew",
                     vectors, number);
            fclose(manifest);
            return SIZE_MAX;
        }
        if (!digest_of(vectors, name, digest)) {
            fprintf(out, "slmoe: %s/MANIFEST:%zu:1: %s is listed and gone\n", vectors,
                    number, name);
            stale++;
        } else if (strcmp(listed, digest) != 0) {
            fprintf(out,
                    "slmoe: %s/MANIFEST:%zu:1: %s is not the released file: sha256 "
                    "%.12s..., listed %.12s...\n",
                    vectors, number, name, digest, listed);
            stale++;
        }
    }
    fclose(manifest);
    return stale;
}

static void read_version(const char *vectors, char version[64])
{
    FILE *manifest = open_manifest(vectors);
    char line[256];

    strcpy(version, "0.2");
    if (!manifest) return;
    while (fgets(line, sizeof line, manifest))
        if (sscanf(line, "version %63s", version) == 1) break;
    fclose(manifest);
}

int manifest_write(const char *vectors, char *why)
{
    const size_t prefix = strlen(vectors);
    char path[4096], next[4104], version[64];
    vec_error error;
    vec_set *set;
    FILE *file;
    int ok = 0;

    if (!is_folder(vectors)) return 1;
    set = vec_load(vectors, &error);
    if (!set) {
        snprintf(why, 512, "%.300s:%zu: %.150s", error.path, error.mark.line,
                 error.what);
        return 0;
    }
    read_version(vectors, version);
    snprintf(path, sizeof path, "%s/MANIFEST", vectors);
    snprintf(next, sizeof next, "%s.new", path);
    file = fopen(next, "we");
    if (file) {
        fprintf(file, "slm-manifest/1\nversion %s\n", version);
        for (size_t i = 0; i < set->n_families; i++) {
            const char *name = set->families[i].path + prefix;

            fprintf(file, "%s  %s\n", set->families[i].sha256,
                    name + strspn(name, "/"));
        }
        ok = fflush(file) == 0 && !ferror(file);
        ok = fclose(file) == 0 && ok && rename(next, path) == 0;
        if (!ok) unlink(next);
    }
    if (!ok) snprintf(why, 512, "%.400s: cannot be written: %s", path, strerror(errno));
    vec_free(set);
    return ok;
}
