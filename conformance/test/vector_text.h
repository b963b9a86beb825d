/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/vector_text.h - lawful golden vectors as text, for tests to break. */
#ifndef SLM_VECTOR_TEXT_H
#define SLM_VECTOR_TEXT_H

#include "../vector.h"

/* Small families: choices, with every form of a tensor but words of f32; a whole layer
 * of linear experts; operations on integers. */
extern const char text_select[];
extern const char text_layer[];
extern const char text_counts[];

/* The text with its first `old` replaced; malloc'ed. `old` must be there. */
char *text_replace(const char *text, const char *old, const char *new);

/* Load a text that must be good. */
vec_set *text_load(const char *text);

/* One edit of a text and the fault that the loader must find. */
typedef struct text_fault {
    const char *old;
    const char *new;
    size_t line;
    size_t column;
    const char *what;
} text_fault;

/* Every edit alone must give its fault, to the letter. */
void text_faults(const char *text, const text_fault *faults, size_t n);

/* The same for texts as a whole (`new`; `old` is not used). */
void text_whole_faults(const text_fault *faults, size_t n);

#endif
