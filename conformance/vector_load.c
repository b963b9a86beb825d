/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_load.c - the loader's faults, closed lists of keys, and words. */
#include "vector_load.h"

#include "vector_number.h"

#include <stdarg.h>
#include <string.h>

int load_fault(loader *ld, const vec_mark *mark, const char *what, ...)
{
    char text[sizeof ld->error->what];
    va_list list;

    va_start(list, what);
    vsnprintf(text, sizeof text, what, list);
    va_end(list);
    return vec_fault(ld->error, ld->text->path, mark, "%s", text);
}

int load_no_memory(loader *ld)
{
    return load_fault(ld, NULL, "out of memory");
}

int load_unexpected(loader *ld, const tree_node *node, const char *what,
                    const char *expected)
{
    char shown[VEC_SHOWN], got[VEC_SHOWN + 16];

    if (node->kind == TREE_LIST)
        snprintf(got, sizeof got, "%s list", node->n ? "a" : "an empty");
    else if (node->kind == TREE_MAP)
        snprintf(got, sizeof got, "a mapping");
    else if (node->size == 0)
        snprintf(got, sizeof got, "nothing");
    else
        snprintf(got, sizeof got, "'%s'%s", vec_show(shown, node->text),
                 node->style == TREE_QUOTED ? " in quotes" : "");
    return load_fault(ld, &node->begin, "%s: expected %s, got %s", what, expected, got);
}

void load_join(char *out, size_t size, const char *const *names, size_t n)
{
    size_t used = 0;

    out[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t need = strlen(names[i]) + (i ? 2 : 0);
        const size_t spare = i + 1 < n ? 5 : 0; /* ", ..." */

        if (used + need + spare >= size) {
            snprintf(out + used, size - used, "%s...", i ? ", " : "");
            return;
        }
        snprintf(out + used, size - used, "%s%s", i ? ", " : "", names[i]);
        used += need;
    }
}

int load_keys(loader *ld, const tree_node *map, const char *what,
              const char *const *names, size_t n, const tree_node **found)
{
    char known[160], shown[VEC_SHOWN];

    for (size_t i = 0; i < n; i++) found[i] = NULL;
    if (map->kind != TREE_MAP) return load_unexpected(ld, map, what, "a mapping");
    for (const tree_node *member = map->first; member; member = member->next) {
        size_t i = 0;

        while (i < n && strcmp(names[i], member->key->text) != 0) i++;
        if (i < n) {
            found[i] = member;
            continue;
        }
        load_join(known, sizeof known, names, n);
        return load_fault(ld, &member->key->begin, "unknown key '%s' in %s; known: %s",
                          vec_show(shown, member->key->text), what, known);
    }
    return 1;
}

bool load_is(const tree_node *node, const char *word)
{
    return node->kind == TREE_SCALAR && node->style == TREE_PLAIN &&
           strcmp(node->text, word) == 0;
}

int load_line(loader *ld, const tree_node *node, const char *what, char **out)
{
    if (node->kind != TREE_SCALAR || node->size == 0)
        return load_unexpected(ld, node, what, "one line of text");
    if (memchr(node->text, '\n', node->size))
        return load_fault(ld, &node->begin,
                          "%s: expected one line of text, got a line break (for long "
                          "text write >-)",
                          what);
    *out = arena_text(ld->memory, node->text, node->size);
    return *out ? 1 : load_no_memory(ld);
}

static bool is_word(const char *text, bool path)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";

    for (;;) {
        const size_t length = strspn(text, letters);

        if (length == 0) return false;
        text += length;
        if (*text == 0) return true;
        if (!path || *text != '/') return false;
        text++;
    }
}

int load_word(loader *ld, const tree_node *node, const char *what, bool path,
              size_t limit, char **out)
{
    const char *expected =
        path ? "words of a-z, 0-9, - and _ joined by /" : "a word of a-z, 0-9, - and _";

    if (node->kind != TREE_SCALAR || !is_word(node->text, path))
        return load_unexpected(ld, node, what, expected);
    if (node->size > limit)
        return load_fault(ld, &node->begin, "%s: expected at most %zu bytes, got %zu",
                          what, limit, node->size);
    *out = arena_text(ld->memory, node->text, node->size);
    return *out ? 1 : load_no_memory(ld);
}

int load_choice(loader *ld, const tree_node *node, const char *what,
                const char *const *names, size_t n, size_t *out)
{
    char known[360], expected[376];

    for (size_t i = 0; i < n; i++) {
        if (!load_is(node, names[i])) continue;
        *out = i;
        return 1;
    }
    load_join(known, sizeof known, names, n);
    snprintf(expected, sizeof expected, "one of %s", known);
    return load_unexpected(ld, node, what, expected);
}

/* R2, X1: one or two capitals, one to three digits. */
static bool is_clause(const char *text)
{
    const size_t letters = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    const size_t digits = strspn(text + letters, "0123456789");

    return letters >= 1 && letters <= 2 && digits >= 1 && digits <= 3 &&
           text[letters + digits] == 0;
}

static int load_item(loader *ld, const tree_node *node, const char *what, bool clauses,
                     char **out)
{
    if (!clauses) return load_word(ld, node, what, false, 64, out);
    if (node->kind != TREE_SCALAR || !is_clause(node->text))
        return load_unexpected(ld, node, what, "a clause like R2");
    *out = arena_text(ld->memory, node->text, node->size);
    return *out ? 1 : load_no_memory(ld);
}

int load_words(loader *ld, const tree_node *node, const char *what, bool clauses,
               size_t *n, char ***out)
{
    char **list;

    if (node->kind != TREE_LIST || node->n == 0)
        return load_unexpected(ld, node, what,
                               clauses ? "a list of clauses" : "a list of words");
    if (node->n > LOAD_MAX_LIST)
        return load_fault(ld, &node->begin, "%s: expected at most %d words, got %zu",
                          what, LOAD_MAX_LIST, node->n);
    list = arena_new(ld->memory, node->n, sizeof *list);
    if (!list) return load_no_memory(ld);
    *n = 0;
    for (const tree_node *item = node->first; item; item = item->next)
        if (!load_item(ld, item, what, clauses, &list[(*n)++])) return 0;
    *out = list;
    return 1;
}

int load_size(loader *ld, const tree_node *node, const char *what, uint64_t *out)
{
    char why[NUMBER_WHY];

    if (node->kind != TREE_SCALAR || node->style != TREE_PLAIN || node->size == 0)
        return load_unexpected(ld, node, what, "a decimal integer >= 0");
    if (number_size(node->text, out, why)) return 1;
    return load_fault(ld, &node->begin, "%s: %s", what, why);
}
