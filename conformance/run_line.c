/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/run_line.c - members of a line of a run file, with the type they need. */
#include "run_line.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void line_fault(run_line *line, const char *format, ...)
{
    size_t used;
    va_list list;

    if (!line_is_good(line)) return;
    snprintf(line->why, RUN_WHY, "%.400s:%zu: ", line->path, line->number);
    used = strlen(line->why);
    va_start(list, format);
    vsnprintf(line->why + used, RUN_WHY - used, format, list);
    va_end(list);
}

int line_is_good(const run_line *line)
{
    return line->why[0] == '\0';
}

const char *line_text(run_line *line, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!value) return "";
    if (json_is_string(value)) return json_string_value(value);
    line_fault(line, "%s: expected a text", key);
    return "";
}

const char *line_word(run_line *line, const json_t *object, const char *key)
{
    const char *text = line_text(line, object, key);

    if (!text[0]) line_fault(line, "%s: expected a text, and there is none", key);
    return text;
}

double line_number(run_line *line, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!value) return 0;
    if (json_is_string(value) && strcmp(json_string_value(value), "inf") == 0)
        return (double)INFINITY;
    if (json_is_number(value) && json_number_value(value) >= 0)
        return json_number_value(value);
    line_fault(line, "%s: expected a number, not negative, or \"inf\"", key);
    return 0;
}

double line_amount(run_line *line, const json_t *object, const char *key)
{
    if (!json_object_get(object, key))
        line_fault(line, "%s: expected a number, and there is none", key);
    return line_number(line, object, key);
}

size_t line_count(run_line *line, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!value) return 0;
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        return (size_t)json_integer_value(value);
    line_fault(line, "%s: expected an integer, not negative", key);
    return 0;
}

size_t line_tally(run_line *line, const json_t *object, const char *key)
{
    if (!json_object_get(object, key))
        line_fault(line, "%s: expected an integer, and there is none", key);
    return line_count(line, object, key);
}

const json_t *line_object(run_line *line, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!value || json_is_object(value)) return value;
    line_fault(line, "%s: expected an object", key);
    return NULL;
}

static const json_t *find_array(run_line *line, const json_t *object, const char *key,
                                size_t limit)
{
    const json_t *array = json_object_get(object, key);

    if (!json_is_array(array))
        line_fault(line, "%s: expected an array", key);
    else if (json_array_size(array) > limit)
        line_fault(line, "%s: expected at most %zu elements, got %zu", key, limit,
                   json_array_size(array));
    else
        return array;
    return NULL;
}

size_t line_words(run_line *line, const json_t *object, const char *key,
                  const char **words, size_t limit)
{
    const json_t *array = find_array(line, object, key, limit);

    for (size_t i = 0; i < json_array_size(array); i++) {
        words[i] = json_string_value(json_array_get(array, i));
        if (words[i]) continue;
        line_fault(line, "%s: expected texts", key);
        return 0;
    }
    return json_array_size(array);
}

static judge_state read_state(run_line *line, const json_t *object)
{
    const char *word = line_word(line, object, "state");

    for (int i = 0; i < JUDGE_STATES; i++)
        if (strcmp(judge_state_name((judge_state)i), word) == 0) return (judge_state)i;
    line_fault(line, "state: %.32s: no such state", word);
    return JUDGE_ERROR;
}

static void read_stages(run_line *line, const json_t *object, run_result *result)
{
    const json_t *array = find_array(line, object, "stages", JUDGE_MAX_STAGES);

    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *stage = json_array_get(array, i);

        result->stages[i] = (run_stage){.name = line_word(line, stage, "stage"),
                                        .checked = line_tally(line, stage, "checked"),
                                        .failed = line_tally(line, stage, "failed"),
                                        .used = line_amount(line, stage, "used")};
    }
    result->n_stages = json_array_size(array);
}

static void read_controls(run_line *line, const json_t *object, run_result *result)
{
    const json_t *controls = line_object(line, object, "controls");

    for (int i = 0; i < JUDGE_CONTROLS; i++) {
        const char *key = judge_control_name((judge_control)i);
        const char *word = line_text(line, controls, key);
        int known = word[0] == '\0';

        for (int j = JUDGE_NULL_NONE; j <= JUDGE_NULL_PASSES; j++)
            if (strcmp(judge_null_name((judge_null)j), word) == 0) {
                result->controls[i] = (judge_null)j;
                known = 1;
            }
        if (!known) line_fault(line, "controls: %s: no such outcome", key);
    }
}

void line_result(run_line *line, const json_t *object, run_result *result)
{
    const json_t *finding = line_object(line, object, "finding");
    const json_t *tokens = line_object(line, object, "tokens");

    memset(result, 0, sizeof *result);
    result->id = line_word(line, object, "case");
    result->about = line_text(line, object, "about");
    result->note = line_text(line, object, "note");
    result->state = read_state(line, object);
    result->op = line_word(line, object, "op");
    result->provenance = line_word(line, object, "provenance");
    result->tier = line_text(line, object, "tier");
    result->n_clauses =
        line_words(line, object, "clauses", result->clauses, RUN_MAX_CLAUSES);
    read_stages(line, object, result);
    read_controls(line, object, result);
    result->forced = line_count(line, tokens, "forced");
    result->free = line_count(line, tokens, "free");
    result->tie = line_count(line, tokens, "tie");
    result->seconds = line_amount(line, object, "seconds");
    result->reason = line_text(line, object, "reason");
    result->clause = line_text(line, object, "clause");
    result->stage = line_text(line, finding, "stage");
    result->place = finding ? line_word(line, finding, "place") : "";
    result->got = line_text(line, finding, "got");
    result->want = line_text(line, finding, "want");
    result->multiple = line_number(line, finding, "multiple");
    result->nearest = line_text(line, object, "nearest");
    result->n_alike = line_count(line, object, "alike");
    result->output = line_text(line, object, "output");
    result->again = line_text(line, object, "again");
}
