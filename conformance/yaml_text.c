/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/yaml_text.c - UTF-8 text: what it may hold, and where its characters are.
 *
 * libyaml counts characters; splicing needs bytes. A table of every 64th character
 * makes the way back short for lines of any length. */
#include "yaml_tree.h"

#include <stdarg.h>
#include <string.h>

enum { STEP = 64 };

int vec_fault(vec_error *error, const char *path, const vec_mark *mark,
              const char *what, ...)
{
    va_list list;

    memset(error, 0, sizeof *error);
    snprintf(error->path, sizeof error->path, "%s", path);
    if (mark) error->mark = *mark;
    va_start(list, what);
    vsnprintf(error->what, sizeof error->what, what, list);
    va_end(list);
    return 0;
}

const char *vec_show(char *out, const char *text)
{
    const size_t length = strlen(text);
    size_t n = length < 41 ? length : 40;

    /* Never cut within a character. */
    while (n < length && n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    for (size_t i = 0; i < n; i++) out[i] = text[i] == '\n' ? ' ' : text[i];
    snprintf(out + n, VEC_SHOWN - n, "%s", n < length ? "..." : "");
    return out;
}

/* Bytes that a lead byte announces, and the payload it carries itself; 0 for none. */
static size_t lead(unsigned char byte, unsigned *code)
{
    if (byte < 0x80) {
        *code = byte;
        return 1;
    }
    if (byte >= 0xc2 && byte < 0xe0) {
        *code = byte & 0x1fu;
        return 2;
    }
    if (byte >= 0xe0 && byte < 0xf0) {
        *code = byte & 0x0fu;
        return 3;
    }
    if (byte >= 0xf0 && byte < 0xf5) {
        *code = byte & 0x07u;
        return 4;
    }
    *code = byte;
    return 0;
}

/* Breaks of lines that only some programs see would make line numbers disagree. */
static int allowed(unsigned code)
{
    if (code == '\n') return 1;
    if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return 0;
    return code != 0x2028 && code != 0x2029 && code != 0xfeff && code != 0xfffe &&
           code != 0xffff;
}

size_t tree_character(const char *data, size_t left, unsigned *code)
{
    const unsigned char *byte = (const unsigned char *)data;
    const size_t length = lead(byte[0], code);
    unsigned whole = *code;

    if (length == 0 || length > left) {
        *code = byte[0];
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((byte[i] & 0xc0) != 0x80) {
            *code = byte[0];
            return 0;
        }
        whole = whole << 6 | (byte[i] & 0x3fu);
    }
    if ((length == 3 && (whole < 0x800 || (whole >= 0xd800 && whole < 0xe000))) ||
        (length == 4 && (whole < 0x10000 || whole > 0x10ffff))) {
        *code = byte[0];
        return 0;
    }
    *code = whole;
    return allowed(whole) ? length : 0;
}

static int refuse(const tree_text *text, size_t byte, unsigned code, vec_error *error)
{
    const vec_mark mark = tree_text_mark(text, byte);
    const unsigned char first = (unsigned char)text->data[byte];

    if (first >= 0x80 && code == first)
        return vec_fault(error, text->path, &mark, "byte 0x%02x is not UTF-8", first);
    vec_fault(error, text->path, &mark, "character U+%04X is not allowed", code);
    if (code == '\t') snprintf(error->remedy, sizeof error->remedy, "use spaces");
    if (code == '\r')
        snprintf(error->remedy, sizeof error->remedy,
                 "end lines with a line feed alone");
    return 0;
}

int tree_text_open(tree_text *text, arena *memory, const char *path, const char *data,
                   size_t size, vec_error *error)
{
    size_t at = 0;

    *text = (tree_text){.path = path, .data = data, .size = size};
    if (size > TREE_MAX_BYTES)
        return vec_fault(error, path, NULL, "%zu bytes, at most %d are read", size,
                         TREE_MAX_BYTES);
    text->step = arena_new(memory, size / STEP + 1, sizeof *text->step);
    if (!text->step) return vec_fault(error, path, NULL, "out of memory");
    while (at < size) {
        unsigned code;
        const size_t length = tree_character(data + at, size - at, &code);

        if (length == 0) return refuse(text, at, code, error);
        if (text->n_chars % STEP == 0) text->step[text->n_chars / STEP] = at;
        text->n_chars++;
        at += length;
    }
    return 1;
}

static size_t width(char byte)
{
    unsigned code;
    const size_t length = lead((unsigned char)byte, &code);

    return length ? length : 1;
}

size_t tree_text_byte(const tree_text *text, size_t character)
{
    size_t at;

    if (character >= text->n_chars) return text->size;
    at = text->step[character / STEP];
    for (size_t i = character % STEP; i > 0; i--) at += width(text->data[at]);
    return at;
}

vec_mark tree_text_mark(const tree_text *text, size_t byte)
{
    vec_mark mark = {.line = 1, .column = 1, .byte = byte};

    for (size_t at = 0; at < byte; at += width(text->data[at])) {
        mark.column++;
        if (text->data[at] == '\n') {
            mark.line++;
            mark.column = 1;
        }
    }
    return mark;
}
