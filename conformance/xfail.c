/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/xfail.c - strict lists of expected failures. */
#include "xfail.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static int read_state(const char *word, judge_state *state)
{
    static const judge_state expected[] = {JUDGE_FAIL, JUDGE_CRASH, JUDGE_TIMEOUT,
                                           JUDGE_VACUOUS};

    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strcmp(judge_state_name(expected[i]), word) == 0) {
            *state = expected[i];
            return 1;
        }
    return 0;
}

/* A link, or PROJECT#123. */
static int is_tracker(const char *word)
{
    const char *hash = strchr(word, '#'), *slashes = strstr(word, "://");

    if (slashes) return slashes > word && slashes[3];
    return hash && hash > word && hash[1] &&
           strspn(hash + 1, "0123456789") == strlen(hash + 1);
}

static const char *const expected_at[] = {
    [1] = "expected GLOB STATE TRACKER, STATE one of FAIL, CRASH, TIMEOUT, VACUOUS",
    [2] = "no tracker: expected a link or PROJECT#123, so that somebody will come back "
          "to it",
    [3] = "expected GLOB STATE TRACKER and nothing more"};

/* The column of a word that begins at an offset, or where it is missing. */
static size_t column_of(const char *line, int offset)
{
    const size_t end = strcspn(line, "\r\n");

    return ((size_t)offset < end ? (size_t)offset : end) + 1;
}

static int read_entry(xfail_list *list, const char *line, size_t number, char *why)
{
    xfail_entry *entries = realloc(list->entries, (list->n + 1) * sizeof *entries);
    xfail_entry *entry;
    char state[32], rest[2];
    int at[4] = {0}, words, wrong;

    if (!entries) {
        snprintf(why, 512, "%s: out of memory", list->path);
        return 0;
    }
    list->entries = entries;
    entry = &entries[list->n];
    memset(entry, 0, sizeof *entry);
    entry->line = number;
    words = sscanf(line, " %n%255s %n%31s %n%255s %n%1s", &at[0], entry->glob, &at[1],
                   state, &at[2], entry->tracker, &at[3], rest);
    if (words < 2 || !read_state(state, &entry->state))
        wrong = 1;
    else if (words < 3 || !is_tracker(entry->tracker))
        wrong = 2;
    else if (words == 4)
        wrong = 3;
    else {
        list->n++;
        return 1;
    }
    snprintf(why, 512, "%s:%zu:%zu: %s: %s", list->path, number,
             column_of(line, at[wrong]), entry->glob, expected_at[wrong]);
    return 0;
}

int xfail_load(xfail_list *list, const char *path, char *why)
{
    char *line = NULL;
    size_t number = 0, room = 0;
    FILE *file = fopen(path, "re");
    int ok = file != NULL;

    memset(list, 0, sizeof *list);
    list->path = path;
    if (!ok) snprintf(why, 512, "%s: cannot be read: %s", path, strerror(errno));
    while (ok && getline(&line, &room, file) >= 0) {
        number++;
        if (line[0] == '#' || line[strspn(line, " \t\r\n")] == '\0') continue;
        ok = read_entry(list, line, number, why);
    }
    if (ok && ferror(file)) {
        snprintf(why, 512, "%s: cannot be read: %s", path, strerror(errno));
        ok = 0;
    }
    if (file) fclose(file);
    free(line);
    if (!ok) xfail_free(list);
    return ok;
}

void xfail_free(xfail_list *list)
{
    free(list->entries);
    list->entries = NULL;
    list->n = 0;
}

static void expect(const xfail_entry *entry, judge_verdict *verdict)
{
    char reason[sizeof verdict->reason];

    if (verdict->state == entry->state) {
        snprintf(reason, sizeof reason, "expected, %.100s: %.120s", entry->tracker,
                 verdict->reason);
        verdict->state = JUDGE_XFAIL;
    } else if (verdict->state == JUDGE_PASS) {
        snprintf(reason, sizeof reason, "passes, but is listed as %s (%.100s)",
                 judge_state_name(entry->state), entry->tracker);
        verdict->state = JUDGE_XPASS;
    } else {
        return;
    }
    memcpy(verdict->reason, reason, sizeof reason);
}

void xfail_apply(xfail_list *list, const vec_case *test, judge_verdict *verdict)
{
    if (verdict->state == JUDGE_SKIP) return;
    for (size_t i = 0; i < list->n; i++) {
        if (fnmatch(list->entries[i].glob, test->id, 0) != 0) continue;
        list->entries[i].matched++;
        expect(&list->entries[i], verdict);
        return;
    }
}

size_t xfail_stale(const xfail_list *list, const vec_set *set, FILE *out)
{
    size_t stale = 0;

    for (size_t e = 0; e < list->n; e++) {
        bool found = false;

        for (size_t i = 0; i < set->n_families && !found; i++)
            for (size_t j = 0; j < set->families[i].n_cases && !found; j++)
                found = fnmatch(list->entries[e].glob, set->families[i].cases[j].id,
                                0) == 0;
        if (found) continue;
        fprintf(out, "slmoe: %s:%zu:1: %s matches no case: take it out\n", list->path,
                list->entries[e].line, list->entries[e].glob);
        stale++;
    }
    return stale;
}
