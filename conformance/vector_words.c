/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_words.c - tensors as hexadecimal words, the bits of each element.
 *
 * The words are read from the file's own bytes, so that a fault has its exact place. */
#include "vector_load.h"

#include "vector_number.h"

#include <string.h>

/* The next word from *at: its length, 0 at the end. *at is then its first byte. */
static size_t next_word(const char *data, size_t *at, size_t end)
{
    size_t length = 0;

    while (*at < end && (data[*at] == ' ' || data[*at] == '\n')) ++*at;
    while (*at + length < end && data[*at + length] != ' ' &&
           data[*at + length] != '\n')
        length++;
    return length;
}

static int read_bits(const char *word, size_t length, uint64_t *bits)
{
    *bits = 0;
    for (size_t i = 0; i < length; i++) {
        const char c = word[i];

        if (c >= '0' && c <= '9')
            *bits = *bits << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            *bits = *bits << 4 | (uint64_t)(c - 'a' + 10);
        else
            return 0;
    }
    return 1;
}

/* bf16 alone is narrower than what its words hold. */
static int fits(const vec_tensor *tensor, slm_dtype fit, uint64_t bits)
{
    return tensor->dtype != SLM_F32 || fit != SLM_BF16 || (bits & 0xffff) == 0;
}

static int refuse(loader *ld, size_t at, size_t length, const char *what,
                  const char *expected)
{
    const vec_mark mark = tree_text_mark(ld->text, at);
    char word[VEC_SHOWN], shown[VEC_SHOWN];

    snprintf(word, sizeof word, "%.*s", (int)length, ld->text->data + at);
    return load_fault(ld, &mark, "%s: expected %s, got '%s%s'", what, expected,
                      vec_show(shown, word), length >= sizeof word ? "..." : "");
}

int load_hex_words(loader *ld, const tree_node *node, const char *what, slm_dtype fit,
                   vec_tensor *out)
{
    const char *data = ld->text->data;
    const size_t size = slm_dtype_size(out->dtype), end = node->end.byte;
    size_t first = node->begin.byte, n = 0, length;
    char shape[LOAD_SHAPE];

    out->form = VEC_WORDS;
    if (node->kind != TREE_SCALAR || node->style != TREE_LITERAL)
        return load_unexpected(ld, node, what, "a literal block (|) of words");
    while (first < end && data[first] != '\n') first++;
    for (size_t at = first; (length = next_word(data, &at, end)) > 0; at += length) n++;
    if (n != out->count)
        return load_fault(ld, &node->begin, "%s: shape %s needs %zu word%s, got %zu",
                          what, load_shape_text(shape, out->rank, out->shape),
                          out->count, out->count == 1 ? "" : "s", n);
    if (!load_allocate(ld, node, what, out)) return 0;
    n = 0;
    for (size_t at = first; (length = next_word(data, &at, end)) > 0; at += length) {
        uint64_t bits;

        if (length != 2 * size || !read_bits(data + at, length, &bits))
            return refuse(ld, at, length, what,
                          size == 8 ? "16 lower-case hexadecimal digits"
                                    : "8 lower-case hexadecimal digits");
        if (!fits(out, fit, bits))
            return refuse(ld, at, length, what, "a bf16: a word that ends in 0000");
        memcpy((char *)out->values + n++ * size, &bits, size);
    }
    return 1;
}
