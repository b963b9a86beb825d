/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_shape.c - the shapes that a bench times, from YAML. */
#include "bench_shape.h"
#include "vector_files.h"
#include "vector_load.h"

#include <stdlib.h>
#include <string.h>

/* The shapes and the memory behind their texts. */
typedef struct stored_shapes {
    bench_shapes shapes;
    arena memory;
} stored_shapes;

enum { MAX_TOKENS = 1 << 20, MAX_LAYERS = 64, MAX_FILE = 1 << 20 };

enum { KEY_ID, KEY_ABOUT, KEY_CONFIG, KEY_TOKENS, KEY_LAYERS, KEY_JUDGED, N_KEYS };

static const char *const keys[N_KEYS] = {"id",     "about",  "config",
                                         "tokens", "layers", "judged"};

static int load_between(loader *ld, const tree_node *node, const char *what,
                        size_t most, size_t *out)
{
    uint64_t value;

    if (!load_size(ld, node, what, &value)) return 0;
    if (value < 1 || value > most)
        return load_fault(ld, &node->begin, "%s: expected 1 to %zu", what, most);
    *out = (size_t)value;
    return 1;
}

static int load_tokens(loader *ld, const tree_node *node, bench_shape *out)
{
    if (node->kind != TREE_LIST || node->n == 0)
        return load_unexpected(ld, node, "tokens", "a list of batch sizes");
    if (node->n > BENCH_MAX_LIST)
        return load_fault(ld, &node->begin, "tokens: expected at most %d, got %zu",
                          BENCH_MAX_LIST, node->n);
    for (const tree_node *item = node->first; item; item = item->next)
        if (!load_between(ld, item, "tokens", MAX_TOKENS,
                          &out->tokens[out->n_tokens++]))
            return 0;
    return 1;
}

static int load_shape(loader *ld, const tree_node *node, bench_shape *out)
{
    const tree_node *found[N_KEYS] = {NULL};
    bool has_T, has_R;
    vec_case test = {0};

    if (node->kind != TREE_MAP)
        return load_unexpected(ld, node, "a shape", "a mapping");
    if (!load_keys(ld, node, "a shape", keys, N_KEYS, found)) return 0;
    for (int i = 0; i < N_KEYS; i++)
        if (!found[i])
            return load_fault(ld, &node->begin, "a shape needs `%s`", keys[i]);
    if (!load_word(ld, found[KEY_ID], "id", false, 32, &out->id) ||
        !load_line(ld, found[KEY_ABOUT], "about", &out->about) ||
        !load_config(ld, NULL, found[KEY_CONFIG], &test, &has_T, &has_R) ||
        !load_tokens(ld, found[KEY_TOKENS], out) ||
        !load_between(ld, found[KEY_LAYERS], "layers", MAX_LAYERS, &out->layers) ||
        !load_between(ld, found[KEY_JUDGED], "judged", MAX_TOKENS, &out->judged))
        return 0;
    if (has_T || has_R)
        return load_fault(ld, &found[KEY_CONFIG]->begin,
                          "config: T and R are no part of a shape; `tokens` lists T");
    out->config = test.config;
    return 1;
}

static int load_shapes(loader *ld, const tree_node *root, bench_shapes *out)
{
    static const char *const names[] = {"schema", "shapes"};
    const tree_node *found[2] = {NULL};

    if (root->kind != TREE_MAP)
        return load_unexpected(ld, root, "the file", "a mapping");
    if (!load_keys(ld, root, "the file", names, 2, found)) return 0;
    if (!found[0] || !load_is(found[0], "slm-shapes/1"))
        return load_fault(ld, found[0] ? &found[0]->begin : &root->begin,
                          "schema: expected slm-shapes/1");
    if (!found[1] || found[1]->kind != TREE_LIST || found[1]->n == 0)
        return load_fault(ld, found[1] ? &found[1]->begin : &root->begin,
                          "shapes: expected a list of shapes");
    if (found[1]->n > BENCH_MAX_SHAPES)
        return load_fault(ld, &found[1]->begin, "shapes: expected at most %d, got %zu",
                          BENCH_MAX_SHAPES, found[1]->n);
    for (const tree_node *item = found[1]->first; item; item = item->next) {
        bench_shape *shape = &out->shape[out->n];

        if (!load_shape(ld, item, shape)) return 0;
        if (bench_shape_find(out, shape->id))
            return load_fault(ld, &item->begin, "shape %s is there already", shape->id);
        out->n++;
    }
    return 1;
}

bench_shapes *bench_shapes_parse(const char *path, const char *data, size_t size,
                                 vec_error *error)
{
    stored_shapes *stored = calloc(1, sizeof *stored);
    const tree_node *root = NULL;
    tree_text text;

    memset(error, 0, sizeof *error);
    if (!stored) {
        vec_fault(error, path, NULL, "out of memory");
        return NULL;
    }

    loader ld = {.text = &text, .memory = &stored->memory, .error = error};

    if (tree_text_open(&text, &stored->memory, path, data, size, error))
        root = tree_parse(&text, &stored->memory, error);
    if (root && load_shapes(&ld, root, &stored->shapes)) return &stored->shapes;
    bench_shapes_free(&stored->shapes);
    return NULL;
}

bench_shapes *bench_shapes_load(const char *path, vec_error *error)
{
    size_t size = 0;
    char *data;
    bench_shapes *shapes;

    memset(error, 0, sizeof *error);
    data = vec_file_read(path, MAX_FILE, &size, error);
    if (!data) return NULL;
    shapes = bench_shapes_parse(path, data, size, error);
    free(data);
    return shapes;
}

void bench_shapes_free(bench_shapes *shapes)
{
    stored_shapes *stored = (stored_shapes *)(void *)shapes;

    if (!stored) return;
    arena_free(&stored->memory);
    free(stored);
}

const bench_shape *bench_shape_find(const bench_shapes *shapes, const char *id)
{
    for (size_t i = 0; i < shapes->n; i++)
        if (strcmp(shapes->shape[i].id, id) == 0) return &shapes->shape[i];
    return NULL;
}
