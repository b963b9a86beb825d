/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/arena.h - pieces of memory that are released all at once. */
#ifndef SLM_ARENA_H
#define SLM_ARENA_H

#include <stddef.h>

typedef struct arena {
    struct arena_piece *first;
} arena; /* {0} is empty */

/* n elements of `size` bytes, zeroed; NULL when memory ran out or n * size overflows.
 * n or size may be 0: the pointer is then valid and holds nothing. */
void *arena_new(arena *memory, size_t n, size_t size);

/* Copy of a text, ended with NUL; NULL when memory ran out. */
char *arena_text(arena *memory, const char *text, size_t size);

void arena_free(arena *memory);

#endif
