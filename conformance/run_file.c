/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/run_file.c - a run read back from its JSON lines, strictly. */
#include "run_file.h"
#include "arena.h"
#include "report.h"
#include "run_line.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Texts point into the parsed lines. */
struct run_memory {
    arena texts;
    json_t *lines;
};

/* Where in the order run (result ...) end ... total the reader is. */
typedef enum run_place { AT_START, IN_PART, AFTER_PART, AT_END } run_place;

typedef struct run_reader {
    run_file *run;
    run_line line;
    run_place place;
    size_t passed; /* of all parts */
    size_t failed;
    size_t skipped;
} run_reader;

/* Room for one more: sizes double. */
static void *grow(void *array, size_t n, size_t size)
{
    if (n & (n - 1)) return array;
    return realloc(array, (n ? 2 * n : 1) * size);
}

static void take_run(run_reader *reader, const json_t *object)
{
    run_file *run = reader->run;
    run_part *parts = grow(run->parts, run->n_parts, sizeof *parts);

    if (!parts) {
        line_fault(&reader->line, "out of memory");
        return;
    }
    run->parts = parts;
    line_part(&reader->line, object, &parts[run->n_parts++]);
}

static run_part *current(run_reader *reader)
{
    return &reader->run->parts[reader->run->n_parts - 1];
}

static void check_backend(run_reader *reader, const json_t *object)
{
    const char *backend = line_word(&reader->line, object, "backend");

    if (strcmp(backend, current(reader)->backend) != 0)
        line_fault(&reader->line, "backend: expected %.64s, got %.64s",
                   current(reader)->backend, backend);
}

static const char *family_of(run_reader *reader, const char *id)
{
    const char *slash = strrchr(id, '/');
    const char *family = arena_text(&reader->run->memory->texts, id,
                                    slash ? (size_t)(slash - id) : strlen(id));

    if (!family) line_fault(&reader->line, "out of memory");
    return family ? family : "";
}

/* Count a result as `run` does. */
static void count(run_part *part, const run_result *result)
{
    switch (report_classify(result->state)) {
    case REPORT_PASSED:
        part->passed++;
        break;
    case REPORT_FAILED:
        part->failed++;
        break;
    default:
        part->skipped++;
    }
}

static void take_result(run_reader *reader, const json_t *object)
{
    run_part *part = current(reader);
    run_result *results = grow(part->results, part->n_results, sizeof *results);
    run_result *result, *before;

    if (!results) {
        line_fault(&reader->line, "out of memory");
        return;
    }
    part->results = results;
    result = &results[part->n_results];
    before = part->n_results ? result - 1 : NULL;
    check_backend(reader, object);
    line_result(&reader->line, object, result);
    result->family =
        before && strncmp(before->family, result->id, strlen(before->family)) == 0 &&
                strrchr(result->id, '/') == result->id + strlen(before->family)
            ? before->family
            : family_of(reader, result->id);
    if (!result->about[0] && before && before->family == result->family)
        result->about = before->about;
    if (!line_is_good(&reader->line)) return;
    part->n_results++;
    count(part, result);
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void check_unique(run_reader *reader, const run_part *part)
{
    const char **ids = malloc((part->n_results + 1) * sizeof *ids);

    if (!ids) {
        line_fault(&reader->line, "out of memory");
        return;
    }
    for (size_t i = 0; i < part->n_results; i++) ids[i] = part->results[i].id;
    qsort(ids, part->n_results, sizeof *ids, compare_ids);
    for (size_t i = 1; i < part->n_results; i++)
        if (strcmp(ids[i - 1], ids[i]) == 0)
            line_fault(&reader->line, "the case %.128s has two results", ids[i]);
    free(ids);
}

static void check_counts(run_reader *reader, const json_t *object, size_t passed,
                         size_t failed, size_t skipped)
{
    const size_t said[] = {line_tally(&reader->line, object, "passed"),
                           line_tally(&reader->line, object, "failed"),
                           line_tally(&reader->line, object, "skipped")};

    if (said[0] != passed || said[1] != failed || said[2] != skipped)
        line_fault(&reader->line,
                   "says %zu passed, %zu failed, %zu skipped; the results above are "
                   "%zu, %zu, %zu",
                   said[0], said[1], said[2], passed, failed, skipped);
}

static void take_end(run_reader *reader, const json_t *object)
{
    run_part *part = current(reader);

    check_backend(reader, object);
    check_counts(reader, object, part->passed, part->failed, part->skipped);
    check_unique(reader, part);
    part->seconds = line_amount(&reader->line, object, "seconds");
    reader->passed += part->passed;
    reader->failed += part->failed;
    reader->skipped += part->skipped;
}

static void take_total(run_reader *reader, const json_t *object)
{
    check_counts(reader, object, reader->passed, reader->failed, reader->skipped);
}

/* What may stand where, and what stands after it. */
static const struct run_kind {
    const char *name;
    unsigned places; /* mask of 1u << run_place */
    run_place next;
    void (*take)(run_reader *reader, const json_t *object);
} kinds[] = {{"run", 1u << AT_START | 1u << AFTER_PART, IN_PART, take_run},
             {"result", 1u << IN_PART, IN_PART, take_result},
             {"end", 1u << IN_PART, AFTER_PART, take_end},
             {"total", 1u << AFTER_PART, AT_END, take_total}};

static void take_object(run_reader *reader, const json_t *object)
{
    const char *kind = line_word(&reader->line, object, "kind");

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, kind) != 0) continue;
        if (!(kinds[i].places & 1u << reader->place)) break;
        kinds[i].take(reader, object);
        reader->place = kinds[i].next;
        return;
    }
    line_fault(&reader->line, "kind: %.32s cannot stand here", kind);
}

static void take_line(run_reader *reader, const char *text, size_t length)
{
    json_error_t error;
    json_t *object;

    if (text[length - 1] != '\n') {
        line_fault(&reader->line, "the line is cut short");
        return;
    }
    object = json_loadb(text, length - 1, JSON_REJECT_DUPLICATES, &error);
    if (!object)
        line_fault(&reader->line, "column %d: %.100s", error.column, error.text);
    else if (json_array_append_new(reader->run->memory->lines, object) != 0)
        line_fault(&reader->line, "out of memory");
    else if (!json_is_object(object))
        line_fault(&reader->line, "expected an object");
    else
        take_object(reader, object);
}

static void read_lines(run_reader *reader, FILE *file)
{
    char *text = NULL;
    size_t room = 0;
    ssize_t length;

    while (line_is_good(&reader->line) && (length = getline(&text, &room, file)) > 0) {
        reader->line.number++;
        take_line(reader, text, (size_t)length);
    }
    free(text);
    reader->line.number += reader->line.number == 0;
    if (ferror(file)) line_fault(&reader->line, "cannot be read: %s", strerror(errno));
    if (reader->place != AT_END)
        line_fault(&reader->line, "the file ends before its total");
}

static run_file *new_run(const char *path)
{
    run_file *run = calloc(1, sizeof *run);
    struct run_memory *memory = calloc(1, sizeof *memory);

    if (memory) memory->lines = json_array();
    if (!run || !memory || !memory->lines) {
        if (memory) json_decref(memory->lines);
        free(memory);
        free(run);
        return NULL;
    }
    run->path = path;
    run->memory = memory;
    return run;
}

run_file *run_file_load(const char *path, char *why)
{
    run_reader reader = {.run = new_run(path), .line = {.path = path, .why = why}};
    FILE *file = fopen(path, "re");

    why[0] = '\0';
    if (!file)
        snprintf(why, RUN_WHY, "%.400s: cannot be read: %s", path, strerror(errno));
    else if (!reader.run)
        snprintf(why, RUN_WHY, "%.400s: out of memory", path);
    else
        read_lines(&reader, file);
    if (file) fclose(file);
    if (!why[0]) return reader.run;
    if (file)
        snprintf(why + strlen(why), RUN_WHY - strlen(why),
                 "\n  a whole run is written by: slmoe run ... --format jsonl=FILE");
    run_file_free(reader.run);
    return NULL;
}

void run_file_free(run_file *run)
{
    if (!run) return;
    for (size_t i = 0; i < run->n_parts; i++) free(run->parts[i].results);
    free(run->parts);
    json_decref(run->memory->lines);
    arena_free(&run->memory->texts);
    free(run->memory);
    free(run);
}

const run_result *run_file_find(const run_part *part, const char *id)
{
    for (size_t i = 0; i < part->n_results; i++)
        if (strcmp(part->results[i].id, id) == 0) return &part->results[i];
    return NULL;
}

double run_file_share(const run_result *result)
{
    double share = 0;

    for (size_t i = 0; i < result->n_stages; i++)
        share = fmax(share, result->stages[i].used);
    return share;
}
