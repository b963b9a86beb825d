/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_files.c - the files of a folder of golden vectors. */
#include "vector_files.h"

#include "yaml_tree.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FOLDERS = 8 }; /* one in another; also ends a loop of links */

vec_file_type vec_file_kind(const char *path, vec_error *error)
{
    struct stat info;

    if (stat(path, &info) != 0) {
        vec_fault(error, path, NULL, "cannot be opened: %s", strerror(errno));
        return VEC_FILE_NONE;
    }
    if (S_ISDIR(info.st_mode)) return VEC_FILE_FOLDER;
    if (S_ISREG(info.st_mode)) return VEC_FILE_REGULAR;
    vec_fault(error, path, NULL, "expected a file or a folder");
    return VEC_FILE_NONE;
}

static char *join(const char *folder, const char *name)
{
    const size_t length = strlen(folder);
    const char *slash = length && folder[length - 1] != '/' ? "/" : "";
    char *path;

    return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

static int ends_in(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);

    return length > tail && strcmp(name + length - tail, end) == 0;
}

/* Takes over both texts. */
static int add_file(vec_files *files, char *path, char *name)
{
    if (files->n == files->capacity) {
        const size_t capacity = files->capacity ? 2 * files->capacity : 64;
        vec_file *file = realloc(files->file, capacity * sizeof *file);

        if (!file) {
            free(path);
            free(name);
            return 0;
        }
        files->file = file;
        files->capacity = capacity;
    }
    name[strlen(name) - 5] = 0;
    files->file[files->n++] = (vec_file){path, name};
    return 1;
}

static int list_folder(const char *folder, const char *name, int depth,
                       vec_files *files, vec_error *error);

/* One entry of a folder: `name` is the folder's own name from the root, "" at the root.
 */
static int list_entry(const char *folder, const char *name, const char *entry,
                      int depth, vec_files *files, vec_error *error)
{
    char *path = join(folder, entry);
    char *whole = join(name, entry);
    vec_file_type kind = VEC_FILE_NONE;
    int good = 0;

    if (!path || !whole)
        vec_fault(error, folder, NULL, "out of memory");
    else
        kind = vec_file_kind(path, error);
    if (kind == VEC_FILE_REGULAR && ends_in(entry, ".yml")) {
        vec_fault(error, path, NULL, "would be left out: name it %.*s.yaml",
                  (int)strlen(entry) - 4, entry);
        kind = VEC_FILE_NONE;
    }
    if (kind == VEC_FILE_REGULAR && ends_in(entry, ".yaml")) {
        if (add_file(files, path, whole)) return 1;
        return vec_fault(error, folder, NULL, "out of memory");
    }
    if (kind == VEC_FILE_FOLDER)
        good = strcmp(whole, "perf") == 0 ||
               list_folder(path, whole, depth + 1, files, error);
    else
        good = kind == VEC_FILE_REGULAR;
    free(path);
    free(whole);
    return good;
}

static int list_folder(const char *folder, const char *name, int depth,
                       vec_files *files, vec_error *error)
{
    DIR *stream;
    int good = 1;

    if (depth > MAX_FOLDERS)
        return vec_fault(error, folder, NULL, "folders nested deeper than %d",
                         MAX_FOLDERS);
    stream = opendir(folder);
    if (!stream)
        return vec_fault(error, folder, NULL, "cannot be opened: %s", strerror(errno));
    while (good) {
        const struct dirent *entry;

        errno = 0;
        entry = readdir(stream);
        if (!entry) break;
        if (entry->d_name[0] == '.') continue;
        good = list_entry(folder, name, entry->d_name, depth, files, error);
    }
    if (good && errno)
        good = vec_fault(error, folder, NULL, "cannot be read: %s", strerror(errno));
    closedir(stream);
    return good;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const vec_file *)a)->name, ((const vec_file *)b)->name);
}

int vec_files_list(const char *folder, vec_files *files, vec_error *error)
{
    *files = (vec_files){0};
    if (!list_folder(folder, "", 0, files, error)) {
        vec_files_free(files);
        return 0;
    }
    if (files->n) qsort(files->file, files->n, sizeof *files->file, compare_names);
    return 1;
}

void vec_files_free(vec_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        free(files->file[i].path);
        free(files->file[i].name);
    }
    free(files->file);
    *files = (vec_files){0};
}

char *vec_file_read(const char *path, size_t limit, size_t *size, vec_error *error)
{
    FILE *file = fopen(path, "rbe");
    struct stat info;
    char *data = NULL;

    if (!file || fstat(fileno(file), &info) != 0) {
        vec_fault(error, path, NULL, "cannot be opened: %s", strerror(errno));
    } else if (info.st_size < 0 || (unsigned long long)info.st_size > limit) {
        vec_fault(error, path, NULL, "%lld bytes, at most %zu are read",
                  (long long)info.st_size, limit);
    } else {
        data = malloc((size_t)info.st_size + 1);
        if (!data) vec_fault(error, path, NULL, "out of memory");
    }
    if (data) {
        *size = fread(data, 1, (size_t)info.st_size, file);
        if (*size != (size_t)info.st_size || ferror(file)) {
            vec_fault(error, path, NULL, "cannot be read to its end");
            free(data);
            data = NULL;
        }
    }
    if (file) fclose(file);
    return data;
}
