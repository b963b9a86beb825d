/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/yaml_tree.c - libyaml events to a tree, within a strict subset of YAML.
 *
 * The parser is stopped at the first event that exceeds a limit, so its own work stays
 * within the limits plus its look-ahead (1024 characters). */
#include "yaml_tree.h"

#include <string.h>
#include <yaml.h>

typedef struct builder {
    yaml_parser_t parser;
    const tree_text *text;
    arena *memory;
    vec_error *error;
    size_t n_documents;
    size_t n_nodes;
    tree_node *root;
    size_t depth;
    tree_node *open[TREE_MAX_DEPTH]; /* lists and mappings not yet at their end */
    tree_node *last[TREE_MAX_DEPTH]; /* their last item or member               */
    tree_node *key[TREE_MAX_DEPTH];  /* key that waits for its value            */
} builder;

static vec_mark locate(const builder *b, const yaml_mark_t *mark)
{
    return (vec_mark){.line = mark->line + 1,
                      .column = mark->column + 1,
                      .byte = tree_text_byte(b->text, mark->index)};
}

static int refuse(builder *b, const yaml_mark_t *mark, const char *what)
{
    const vec_mark at = locate(b, mark);

    return vec_fault(b->error, b->text->path, &at, "%s", what);
}

static int out_of_memory(builder *b)
{
    return vec_fault(b->error, b->text->path, NULL, "out of memory");
}

static int refuse_properties(builder *b, const yaml_event_t *event,
                             const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor) return refuse(b, &event->start_mark, "anchors are not allowed");
    if (tag) return refuse(b, &event->start_mark, "tags are not allowed");
    return 1;
}

/* The end of a literal or folded scalar: the end of its last line that is not blank.
 * libyaml puts it behind the blank lines that follow. */
static void trim_block(const tree_text *text, tree_node *node)
{
    const char *data = text->data;
    size_t at = node->end.byte;
    size_t start;

    while (at > node->begin.byte && (data[at - 1] == ' ' || data[at - 1] == '\n'))
        if (data[--at] == '\n') node->end.line--;
    while (at < node->end.byte && data[at] == ' ') at++;
    node->end.byte = at;
    node->end.column = 1;
    for (start = at; start > 0 && data[start - 1] != '\n'; start--)
        if (((unsigned char)data[start - 1] & 0xc0) != 0x80) node->end.column++;
}

/* Escapes in double quotes can make what the file itself may not hold. */
static int check_scalar(builder *b, const tree_node *node)
{
    size_t at = 0;

    while (at < node->size) {
        unsigned code;
        const size_t length = tree_character(node->text + at, node->size - at, &code);

        if (length == 0)
            return vec_fault(b->error, b->text->path, &node->begin,
                             "an escape makes character U+%04X, which is not allowed",
                             code);
        at += length;
    }
    return 1;
}

static int check_key(builder *b, const tree_node *map, const tree_node *key)
{
    char shown[VEC_SHOWN];

    if (key->style == TREE_PLAIN && strcmp(key->text, "<<") == 0)
        return vec_fault(b->error, b->text->path, &key->begin,
                         "merge keys are not allowed");
    if (map->n >= TREE_MAX_KEYS)
        return vec_fault(b->error, b->text->path, &key->begin,
                         "more than %d keys in one mapping", TREE_MAX_KEYS);
    for (const tree_node *member = map->first; member; member = member->next)
        if (member->key->size == key->size &&
            memcmp(member->key->text, key->text, key->size) == 0)
            return vec_fault(b->error, b->text->path, &key->begin,
                             "duplicate key '%s', first at line %zu",
                             vec_show(shown, key->text), member->key->begin.line);
    return 1;
}

/* Hang a new node where the document has come to. */
static int attach(builder *b, tree_node *node)
{
    const size_t top = b->depth - 1;
    tree_node *parent;

    if (b->depth == 0) {
        b->root = node;
        return 1;
    }
    parent = b->open[top];
    if (parent->kind == TREE_MAP && !b->key[top]) {
        if (node->kind != TREE_SCALAR)
            return vec_fault(b->error, b->text->path, &node->begin,
                             "a key must be a word, got a %s",
                             node->kind == TREE_MAP ? "mapping" : "list");
        b->key[top] = node;
        return check_key(b, parent, node);
    }
    node->key = b->key[top];
    b->key[top] = NULL;
    if (b->last[top])
        b->last[top]->next = node;
    else
        parent->first = node;
    b->last[top] = node;
    parent->n++;
    return 1;
}

static tree_node *new_node(builder *b, const yaml_event_t *event, tree_kind kind,
                           tree_style style)
{
    tree_node *node;

    if (b->n_nodes++ >= TREE_MAX_NODES) {
        const vec_mark at = locate(b, &event->start_mark);

        vec_fault(b->error, b->text->path, &at, "more than %d values in one file",
                  TREE_MAX_NODES);
        return NULL;
    }
    node = arena_new(b->memory, 1, sizeof *node);
    if (!node) {
        out_of_memory(b);
        return NULL;
    }
    node->kind = kind;
    node->style = style;
    node->begin = locate(b, &event->start_mark);
    node->end = locate(b, &event->end_mark);
    return node;
}

static tree_style scalar_style(yaml_scalar_style_t style)
{
    switch (style) {
    case YAML_LITERAL_SCALAR_STYLE:
        return TREE_LITERAL;
    case YAML_FOLDED_SCALAR_STYLE:
        return TREE_FOLDED;
    case YAML_SINGLE_QUOTED_SCALAR_STYLE:
    case YAML_DOUBLE_QUOTED_SCALAR_STYLE:
        return TREE_QUOTED;
    default:
        return TREE_PLAIN;
    }
}

static int on_scalar(builder *b, const yaml_event_t *event)
{
    const tree_style style = scalar_style(event->data.scalar.style);
    tree_node *node;

    if (!refuse_properties(b, event, event->data.scalar.anchor, event->data.scalar.tag))
        return 0;
    node = new_node(b, event, TREE_SCALAR, style);
    if (!node) return 0;
    node->size = event->data.scalar.length;
    node->text =
        arena_text(b->memory, (const char *)event->data.scalar.value, node->size);
    if (!node->text) return out_of_memory(b);
    if (style == TREE_LITERAL || style == TREE_FOLDED) trim_block(b->text, node);
    return check_scalar(b, node) && attach(b, node);
}

static int on_open(builder *b, const yaml_event_t *event, tree_kind kind, int flow)
{
    tree_node *node = new_node(b, event, kind, flow ? TREE_FLOW : TREE_BLOCK);

    if (!node || !attach(b, node)) return 0;
    if (b->depth == TREE_MAX_DEPTH)
        return vec_fault(b->error, b->text->path, &node->begin,
                         "nested deeper than %d levels", TREE_MAX_DEPTH);
    b->open[b->depth] = node;
    b->last[b->depth] = NULL;
    b->key[b->depth] = NULL;
    b->depth++;
    return 1;
}

/* libyaml ends a block where the next token begins; it really ends with its last part. */
static int on_close(builder *b, const yaml_event_t *event)
{
    tree_node *node = b->open[--b->depth];
    const tree_node *last = b->last[b->depth];

    if (node->style == TREE_FLOW)
        node->end = locate(b, &event->end_mark);
    else if (last)
        node->end = last->end;
    return 1;
}

static int on_document(builder *b, const yaml_event_t *event)
{
    if (b->n_documents++ > 0)
        return refuse(b, &event->start_mark, "a second document is not allowed");
    if (event->data.document_start.version_directive ||
        event->data.document_start.tag_directives.start !=
            event->data.document_start.tag_directives.end)
        return refuse(b, &event->start_mark, "directives are not allowed");
    return 1;
}

static int on_event(builder *b, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return on_document(b, event);
    case YAML_ALIAS_EVENT:
        return refuse(b, &event->start_mark, "aliases are not allowed");
    case YAML_SCALAR_EVENT:
        return on_scalar(b, event);
    case YAML_SEQUENCE_START_EVENT:
        return refuse_properties(b, event, event->data.sequence_start.anchor,
                                 event->data.sequence_start.tag) &&
               on_open(b, event, TREE_LIST,
                       event->data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE);
    case YAML_MAPPING_START_EVENT:
        return refuse_properties(b, event, event->data.mapping_start.anchor,
                                 event->data.mapping_start.tag) &&
               on_open(b, event, TREE_MAP,
                       event->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return on_close(b, event);
    default:
        return 1;
    }
}

static int refuse_syntax(builder *b)
{
    const yaml_parser_t *parser = &b->parser;
    const vec_mark at = locate(b, &parser->problem_mark);
    const char *problem = parser->problem ? parser->problem : "unreadable";

    if (parser->error == YAML_MEMORY_ERROR) return out_of_memory(b);
    return vec_fault(b->error, b->text->path, &at, "not YAML: %s%s%s", problem,
                     parser->context ? " " : "",
                     parser->context ? parser->context : "");
}

static int read_events(builder *b)
{
    for (;;) {
        yaml_event_t event;
        yaml_event_type_t type;
        int good;

        if (!yaml_parser_parse(&b->parser, &event)) return refuse_syntax(b);
        type = event.type;
        good = on_event(b, &event);
        yaml_event_delete(&event);
        if (!good) return 0;
        if (type == YAML_STREAM_END_EVENT) break;
    }
    if (!b->root) return vec_fault(b->error, b->text->path, NULL, "the file is empty");
    return 1;
}

tree_node *tree_parse(const tree_text *text, arena *memory, vec_error *error)
{
    builder b = {.text = text, .memory = memory, .error = error};
    int good;

    if (!yaml_parser_initialize(&b.parser)) {
        out_of_memory(&b);
        return NULL;
    }
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b.parser, (const unsigned char *)text->data,
                                 text->size);
    good = read_events(&b);
    yaml_parser_delete(&b.parser);
    return good ? b.root : NULL;
}

const tree_node *tree_member(const tree_node *map, const char *key)
{
    for (const tree_node *member = map->first; member; member = member->next)
        if (strcmp(member->key->text, key) == 0) return member;
    return NULL;
}
