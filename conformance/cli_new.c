/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_new.c - slmoe new: a plug-in project that builds and has a verdict. */
#include "cli.h"
#include "new_files.h"
#include "paths.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int usage(const char *what)
{
    fprintf(stderr, "slmoe new: %s\n  slmoe new backend DIR\n", what);
    return EXIT_USAGE;
}

static int broken(const char *path)
{
    fprintf(stderr, "slmoe new: %s: %s\n", path, strerror(errno));
    return EXIT_HARNESS;
}

/* The last part of a path, without slashes at its end. Returns 0 when it cannot be the
 * name of a library and a project. */
static int name_of(const char *path, char name[SLM_NAME])
{
    size_t end = strlen(path), begin;

    while (end && path[end - 1] == '/') end--;
    for (begin = end; begin && path[begin - 1] != '/'; begin--) {
    }
    if (!isalpha((unsigned char)path[begin]) || end - begin >= SLM_NAME) return 0;
    for (size_t i = begin; i < end; i++)
        if (!isalnum((unsigned char)path[i]) && !strchr("_-", path[i])) return 0;
    memcpy(name, path + begin, end - begin);
    name[end - begin] = '\0';
    return 1;
}

/* Make the folder, or take one that is empty. Returns an exit code. */
static int take_folder(const char *path, int *made)
{
    const struct dirent *entry;
    DIR *folder;
    int n = 0;

    *made = mkdir(path, 0777) == 0;
    if (*made) return EXIT_CONFORMS;
    if (errno != EEXIST) return broken(path);
    folder = opendir(path);
    if (!folder) return broken(path);
    while ((entry = readdir(folder)))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(folder);
    if (n == 0) return EXIT_CONFORMS;
    fprintf(stderr,
            "slmoe new: %s: is not empty\n  nothing was written; name a new folder\n",
            path);
    return EXIT_USAGE;
}

/* The text of a template with the project's name in it. */
static int write_file(const char *folder, const new_file *from, const char *name)
{
    static const char mark[] = "@NAME@";
    char path[SLM_PATH];
    const char *text = from->text, *next;
    FILE *file;
    int ok;

    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, from->name) >= SLM_PATH) {
        errno = ENAMETOOLONG;
        return broken(folder);
    }
    file = fopen(path, "wxe");
    if (!file) return broken(path);
    while ((next = strstr(text, mark))) {
        fprintf(file, "%.*s%s", (int)(next - text), text, name);
        text = next + strlen(mark);
    }
    fputs(text, file);
    ok = !ferror(file);
    if (fclose(file) || !ok) return broken(path);
    return EXIT_CONFORMS;
}

/* What a project has so far, without half of a file; the folder, too, if it is ours. */
static void take_back(const char *folder, const new_file *last, int made)
{
    char path[SLM_PATH];

    for (const new_file *file = new_files; file <= last; file++)
        if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, file->name) < SLM_PATH)
            unlink(path);
    if (made) rmdir(folder);
}

/* A word of a command, quoted where a shell would take it apart. */
static void print_word(const char *before, const char *word, const char *after)
{
    const char *quote = word[strspn(word, "abcdefghijklmnopqrstuvwxyz"
                                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                          "_-+=:,./@%")]
                            ? "'"
                            : "";

    printf("%s%s%s%s%s", before, quote, word, quote, after);
}

static void print_next(const char *folder, const char *name)
{
    char prefix[SLM_PATH], program[SLM_PATH], path[2 * SLM_PATH];

    slm_prefix_dir(prefix);
    slm_program_dir(program);
    snprintf(path, sizeof path, "%s/build", folder);
    print_word("  cmake -S ", folder, "");
    print_word(" -B ", path, "");
    print_word(" -DCMAKE_PREFIX_PATH=", prefix, "\n");
    print_word("  cmake --build ", path, "\n");
    snprintf(path, sizeof path, "%s/slmoe", program);
    print_word("  ", path, " run");
    snprintf(path, sizeof path, "%s/build/lib%s.so", folder, name);
    print_word(" -b ", path, "\n");
}

static int new_backend(const char *folder)
{
    char name[SLM_NAME];
    int code, made;

    if (!name_of(folder, name)) {
        fprintf(stderr,
                "slmoe new: %s: the last part names the library: a letter, then "
                "letters, digits,\n  - and _, at most %d\n",
                folder, SLM_NAME - 1);
        return EXIT_USAGE;
    }
    if ((code = take_folder(folder, &made))) return code;
    for (const new_file *file = new_files; file->name; file++) {
        if (!(code = write_file(folder, file, name))) continue;
        take_back(folder, file, made);
        return code;
    }
    printf("%s: a backend that implements select, situ_glu and rmsnorm:", folder);
    for (const new_file *file = new_files; file->name; file++)
        printf(" %s", file->name);
    puts("\nbuild it, judge it:");
    print_next(folder, name);
    return EXIT_CONFORMS;
}

int cli_new(int argc, char **argv)
{
    cli_options options;

    if (!cli_parse(argc, argv, "", &options)) return EXIT_USAGE;
    if (!options.words.n || strcmp(options.words.item[0], "backend") != 0)
        return usage("makes a backend and nothing else");
    if (options.words.n != 2) return usage("takes one folder");
    return new_backend(options.words.item[1]);
}
