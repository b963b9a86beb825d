/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/run_line.h - members of a line of a run file, with the type they need. */
#ifndef SLM_RUN_LINE_H
#define SLM_RUN_LINE_H

#include <jansson.h>

#include "run_file.h"

/* The line at hand. The first fault is kept in `why`; after it every reading gives an
 * empty value. */
typedef struct run_line {
    const char *path;
    size_t number;
    char *why; /* RUN_WHY; "" while all is well */
} run_line;

/* Keeps "PATH:LINE: ..." unless a fault was kept before. */
__attribute__((format(printf, 2, 3))) void line_fault(run_line *line,
                                                      const char *format, ...);
int line_is_good(const run_line *line);

/* "" when absent; line_word() must be there and not be empty. */
const char *line_text(run_line *line, const json_t *object, const char *key);
const char *line_word(run_line *line, const json_t *object, const char *key);

/* Not negative; 0 when absent. line_amount() must be there. "inf" is INFINITY. */
double line_number(run_line *line, const json_t *object, const char *key);
double line_amount(run_line *line, const json_t *object, const char *key);
size_t line_count(run_line *line, const json_t *object, const char *key);
size_t line_tally(run_line *line, const json_t *object, const char *key);

/* NULL when absent. */
const json_t *line_object(run_line *line, const json_t *object, const char *key);

/* An array that must be there, of at most `limit` words. Returns how many. */
size_t line_words(run_line *line, const json_t *object, const char *key,
                  const char **words, size_t limit);

/* Everything of a result but its family. */
void line_result(run_line *line, const json_t *object, run_result *result);

/* Everything of a part but its results and counts. */
void line_part(run_line *line, const json_t *object, run_part *part);

#endif
