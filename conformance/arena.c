/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/arena.c - pieces of memory that are released all at once. */
#include "arena.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

struct arena_piece {
    struct arena_piece *next;
    alignas(max_align_t) unsigned char data[];
};

void *arena_new(arena *memory, size_t n, size_t size)
{
    struct arena_piece *piece;
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    if (__builtin_add_overflow(bytes, sizeof *piece, &bytes)) return NULL;
    piece = calloc(1, bytes);
    if (!piece) return NULL;
    piece->next = memory->first;
    memory->first = piece;
    return piece->data;
}

char *arena_text(arena *memory, const char *text, size_t size)
{
    char *copy = arena_new(memory, size + 1, 1);

    if (copy) memcpy(copy, text, size);
    return copy;
}

void arena_free(arena *memory)
{
    while (memory->first) {
        struct arena_piece *piece = memory->first;

        memory->first = piece->next;
        free(piece);
    }
}
