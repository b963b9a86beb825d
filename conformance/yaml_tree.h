/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/yaml_tree.h - a strict subset of YAML as a tree of marked nodes.
 *
 * Refused: other encodings than UTF-8, control characters (tab and carriage return
 * too), anchors, aliases, tags, directives, merge keys, keys that are no scalars,
 * duplicate keys, a second document, and whatever exceeds the limits below. A node's
 * text is what is written: nothing is resolved to a number, a boolean or a null. */
#ifndef SLM_YAML_TREE_H
#define SLM_YAML_TREE_H

#include "arena.h"
#include "vector.h"

enum {
    TREE_MAX_BYTES = 1 << 24,
    TREE_MAX_DEPTH = 16,
    TREE_MAX_NODES = 1 << 20,
    TREE_MAX_KEYS = 64 /* of one mapping */
};

typedef enum tree_kind { TREE_SCALAR, TREE_LIST, TREE_MAP } tree_kind;

typedef enum tree_style {
    TREE_PLAIN, /* of scalars */
    TREE_QUOTED,
    TREE_LITERAL,
    TREE_FOLDED,
    TREE_BLOCK, /* of lists and mappings */
    TREE_FLOW
} tree_style;

typedef struct tree_node tree_node;
struct tree_node {
    tree_kind kind;
    tree_style style;
    const char *text; /* of a scalar: valid UTF-8, ended with NUL, holds none        */
    size_t size;      /* bytes of text                                               */
    size_t n;         /* items of a list, members of a mapping                       */
    tree_node *first;
    tree_node *next;      /* the next item or member of the same parent              */
    const tree_node *key; /* of a member; NULL for an item and for the root          */
    vec_mark begin;
    vec_mark end; /* one past the last byte that belongs to the node: no line break,
                   * blank line or comment after it                                  */
};

/* The bytes of a file, and where its characters are. */
typedef struct tree_text {
    const char *path; /* for messages */
    const char *data;
    size_t size;
    size_t n_chars;
    size_t *step; /* byte offset of every 64th character */
} tree_text;

/* Look through `size` bytes that the caller keeps. Returns 0 and fills error at the
 * first character that is not allowed. */
int tree_text_open(tree_text *text, arena *memory, const char *path, const char *data,
                   size_t size, vec_error *error);

/* Byte offset of a character counted from 0; the size for one past the end. */
size_t tree_text_byte(const tree_text *text, size_t character);

/* Line and column of a byte offset. Walks from the beginning: for messages. */
vec_mark tree_text_mark(const tree_text *text, size_t byte);

/* Length in bytes of the character at `data`, or 0 when it is not UTF-8, or is a
 * control character other than a line feed; *code is then the character or byte. */
size_t tree_character(const char *data, size_t left, unsigned *code);

/* The root of the one document. NULL and error on the first fault. */
tree_node *tree_parse(const tree_text *text, arena *memory, vec_error *error);

/* Member of a mapping, or NULL. */
const tree_node *tree_member(const tree_node *map, const char *key);

/* Fill an error; returns 0. mark NULL: the file as a whole. */
__attribute__((format(printf, 4, 5))) int vec_fault(vec_error *error, const char *path,
                                                    const vec_mark *mark,
                                                    const char *what, ...);

/* Text of strangers as it may stand in a message: on one line, at most 40 bytes. */
enum { VEC_SHOWN = 48 };
const char *vec_show(char *out, const char *text);

#endif
