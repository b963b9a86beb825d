/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector.c - golden vectors: files to families, families to a set. */
#include "vector_load.h"

#include "vector_files.h"

#include <stdlib.h>
#include <string.h>

/* A set and the memory of everything in it. */
typedef struct stored_set {
    vec_set set; /* first: vec_free() gets its address */
    arena memory;
} stored_set;

enum {
    KEY_SCHEMA,
    KEY_FAMILY,
    KEY_ABOUT,
    KEY_CLAUSE,
    KEY_KILLS,
    KEY_TAGS,
    KEY_IN,
    KEY_CONFIG,
    KEY_CASES,
    N_KEYS
};

static const char *const keys[N_KEYS] = {
    "schema", "family", "about", "clause", "kills", "tags", "in", "config", "cases"};

/* What the family must be called: `whole` for a file found under a folder, the last part
 * for a file that was opened alone, anything for a text in memory. */
typedef struct expected_name {
    const char *whole;
    const char *last;
} expected_name;

static int load_name(loader *ld, const tree_node *node, const expected_name *expected,
                     vec_family *out)
{
    const char *last;

    if (!load_word(ld, node, "family", true, 128, &out->name)) return 0;
    if (expected->whole && strcmp(out->name, expected->whole) != 0)
        return load_unexpected(ld, node, "family", expected->whole);
    last = strrchr(out->name, '/');
    last = last ? last + 1 : out->name;
    if (expected->last && strcmp(last, expected->last) != 0) {
        char text[160];

        snprintf(text, sizeof text, "a name that ends in %s, as the file",
                 expected->last);
        return load_unexpected(ld, node, "family", text);
    }
    return 1;
}

static int check_new(loader *ld, const tree_node *map, const vec_family *family,
                     size_t n)
{
    const size_t before = strlen(family->name) + 1;

    for (size_t i = 0; i < n; i++)
        if (strcmp(family->cases[i].id, family->cases[n].id) == 0)
            return load_fault(ld, &tree_member(map, "id")->begin,
                              "id '%s' is taken, by the case at line %zu",
                              family->cases[n].id + before, family->cases[i].mark.line);
    return 1;
}

/* A successor without a slash is a case of the same family, and another one. */
static int check_successors(loader *ld, const tree_node *list, const vec_family *family)
{
    const size_t before = strlen(family->name) + 1;
    const tree_node *map = list->first;

    for (size_t i = 0; i < family->n_cases; i++, map = map->next) {
        const char *to = family->cases[i].superseded_by;
        bool found = !to || strchr(to, '/');

        for (size_t j = 0; j < family->n_cases && !found; j++)
            found = j != i && strcmp(to, family->cases[j].id + before) == 0;
        if (found) continue;
        return load_unexpected(ld, tree_member(map, "superseded_by"), "superseded_by",
                               "another case of this family");
    }
    return 1;
}

static int load_cases(loader *ld, const load_defaults *defaults, const tree_node *list,
                      vec_family *out)
{
    if (list->kind != TREE_LIST || list->n == 0)
        return load_unexpected(ld, list, "cases", "a list of cases");
    if (list->n > LOAD_MAX_CASES)
        return load_fault(ld, &list->begin, "cases: expected at most %d, got %zu",
                          LOAD_MAX_CASES, list->n);
    out->cases = arena_new(ld->memory, list->n, sizeof *out->cases);
    if (!out->cases) return load_no_memory(ld);
    for (const tree_node *item = list->first; item; item = item->next) {
        const size_t n = out->n_cases;

        if (!load_case(ld, defaults, item, out, &out->cases[n]) ||
            !check_new(ld, item, out, n))
            return 0;
        out->n_cases++;
    }
    return check_successors(ld, list, out);
}

static int load_family(loader *ld, const tree_node *root, const expected_name *expected,
                       vec_family *out)
{
    static const size_t required[] = {KEY_SCHEMA, KEY_FAMILY, KEY_ABOUT, KEY_CLAUSE,
                                      KEY_CASES};
    const tree_node *found[N_KEYS];
    char **list;
    size_t n;

    if (!load_keys(ld, root, "a family", keys, N_KEYS, found)) return 0;
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!found[required[i]])
            return load_fault(ld, &root->begin, "a family needs %s", keys[required[i]]);
    if (!load_is(found[KEY_SCHEMA], "slm-vector/1"))
        return load_unexpected(ld, found[KEY_SCHEMA], "schema", "slm-vector/1");
    if (!load_name(ld, found[KEY_FAMILY], expected, out) ||
        !load_line(ld, found[KEY_ABOUT], "about", &out->about) ||
        !load_words(ld, found[KEY_CLAUSE], "clause", true, &n, &list) ||
        (found[KEY_KILLS] &&
         !load_words(ld, found[KEY_KILLS], "kills", false, &n, &list)) ||
        (found[KEY_TAGS] && !load_words(ld, found[KEY_TAGS], "tags", false, &n, &list)))
        return 0;

    const load_defaults defaults = {.in = found[KEY_IN],
                                    .config = found[KEY_CONFIG],
                                    .clause = found[KEY_CLAUSE],
                                    .kills = found[KEY_KILLS],
                                    .tags = found[KEY_TAGS]};

    return load_cases(ld, &defaults, found[KEY_CASES], out);
}

/* One family from the bytes of its file. */
static int load_bytes(stored_set *stored, const char *path, const char *data,
                      size_t size, const expected_name *expected, vec_family *out,
                      vec_error *error)
{
    arena trees = {0};
    tree_text text;
    const tree_node *root = NULL;
    int good = 0;
    loader ld = {.text = &text, .memory = &stored->memory, .error = error};

    out->path = arena_text(&stored->memory, path, strlen(path));
    if (!out->path) return vec_fault(error, path, NULL, "out of memory");
    if (tree_text_open(&text, &trees, path, data, size, error))
        root = tree_parse(&text, &trees, error);
    if (root) good = load_family(&ld, root, expected, out);
    arena_free(&trees);
    vec_sha256(data, size, out->sha256);
    stored->set.n_cases += out->n_cases;
    return good;
}

static int load_file(stored_set *stored, const char *path,
                     const expected_name *expected, vec_family *out, vec_error *error)
{
    size_t size;
    char *data = vec_file_read(path, TREE_MAX_BYTES, &size, error);
    int good;

    if (!data) return 0;
    good = load_bytes(stored, path, data, size, expected, out, error);
    free(data);
    return good;
}

static int digest_set(stored_set *stored, vec_error *error, const char *path)
{
    vec_set *set = &stored->set;
    size_t size = 0, used = 0;
    char *text;

    for (size_t i = 0; i < set->n_families; i++)
        size += strlen(set->families[i].name) + 64 + 3;
    text = malloc(size + 1);
    if (!text) return vec_fault(error, path, NULL, "out of memory");
    for (size_t i = 0; i < set->n_families; i++)
        used += (size_t)snprintf(text + used, size + 1 - used, "%s  %s\n",
                                 set->families[i].sha256, set->families[i].name);
    vec_sha256(text, used, set->sha256);
    free(text);
    return 1;
}

static stored_set *new_set(size_t n, const char *path, vec_error *error)
{
    stored_set *stored = calloc(1, sizeof *stored);

    if (stored) {
        stored->set.families =
            arena_new(&stored->memory, n, sizeof *stored->set.families);
        stored->set.n_families = n;
        if (stored->set.families) return stored;
        free(stored);
    }
    vec_fault(error, path, NULL, "out of memory");
    return NULL;
}

static vec_set *finish(stored_set *stored, int good, const char *path, vec_error *error)
{
    if (good && digest_set(stored, error, path)) return &stored->set;
    vec_free(&stored->set);
    return NULL;
}

static vec_set *load_folder(const char *path, vec_error *error)
{
    vec_files files;
    stored_set *stored = NULL;
    int good = 1;

    if (!vec_files_list(path, &files, error)) return NULL;
    stored = new_set(files.n, path, error);
    for (size_t i = 0; stored && good && i < files.n; i++)
        good = load_file(stored, files.file[i].path,
                         &(expected_name){.whole = files.file[i].name},
                         &stored->set.families[i], error);
    vec_files_free(&files);
    return stored ? finish(stored, good, path, error) : NULL;
}

static vec_set *load_single(const char *path, vec_error *error)
{
    const char *slash = strrchr(path, '/');
    char *base = strdup(slash ? slash + 1 : path);
    stored_set *stored = base ? new_set(1, path, error) : NULL;
    size_t length = base ? strlen(base) : 0;
    int good;

    if (!base) vec_fault(error, path, NULL, "out of memory");
    if (!stored) {
        free(base);
        return NULL;
    }
    if (length > 5 && strcmp(base + length - 5, ".yaml") == 0) base[length - 5] = 0;
    good = load_file(stored, path, &(expected_name){.last = base}, stored->set.families,
                     error);
    free(base);
    return finish(stored, good, path, error);
}

vec_set *vec_load(const char *path, vec_error *error)
{
    switch (vec_file_kind(path, error)) {
    case VEC_FILE_FOLDER:
        return load_folder(path, error);
    case VEC_FILE_REGULAR:
        return load_single(path, error);
    default:
        return NULL;
    }
}

vec_set *vec_load_memory(const char *name, const char *data, size_t size,
                         vec_error *error)
{
    stored_set *stored = new_set(1, name, error);

    if (!stored) return NULL;
    return finish(stored,
                  load_bytes(stored, name, data, size, &(expected_name){0},
                             stored->set.families, error),
                  name, error);
}

void vec_free(vec_set *set)
{
    stored_set *stored = (stored_set *)(void *)set;

    if (!stored) return;
    arena_free(&stored->memory);
    free(stored);
}
