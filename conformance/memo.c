/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/memo.c - verdicts that were already reached. */
#include "memo.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 14 };

typedef struct memo_entry {
    struct memo_entry *next;
    char key[65];
    judge_verdict verdict;
} memo_entry;

struct judge_memo {
    pthread_mutex_t lock;
    memo_entry *bucket[BUCKETS];
};

judge_memo *memo_new(void)
{
    judge_memo *memo = calloc(1, sizeof *memo);

    if (memo) pthread_mutex_init(&memo->lock, NULL);
    return memo;
}

void memo_free(judge_memo *memo)
{
    if (!memo) return;
    for (size_t i = 0; i < BUCKETS; i++)
        for (memo_entry *entry = memo->bucket[i], *next; entry; entry = next) {
            next = entry->next;
            free(entry);
        }
    pthread_mutex_destroy(&memo->lock);
    free(memo);
}

/* Everything that a verdict depends on. */
static void make_key(const vec_case *test, const call_frame *frame, slm_status status,
                     const slm_error *error, const slm_arithmetic *arithmetic,
                     bool exact, char key[65])
{
    struct {
        char outputs[65];
        char test[256];
        slm_status status;
        slm_error error;
        slm_arithmetic arithmetic;
        bool exact;
        bool intact;
    } all;
    const char *changed;

    memset(&all, 0, sizeof all);
    frame_digest(frame, all.outputs);
    snprintf(all.test, sizeof all.test, "%s", test->id);
    all.status = status;
    if (status != SLM_OK) all.error = *error;
    all.arithmetic = *arithmetic;
    all.exact = exact;
    all.intact = frame_inputs_intact(frame, &changed);
    vec_sha256(&all, sizeof all, key);
}

static memo_entry **bucket_of(judge_memo *memo, const char *key)
{
    return &memo->bucket[strtoul((char[]){key[0], key[1], key[2], key[3], '\0'}, NULL,
                                 16) %
                         BUCKETS];
}

static int recall(judge_memo *memo, const char *key, judge_verdict *verdict)
{
    int found = 0;

    pthread_mutex_lock(&memo->lock);
    for (const memo_entry *entry = *bucket_of(memo, key); entry; entry = entry->next)
        if (strcmp(entry->key, key) == 0) {
            *verdict = entry->verdict;
            found = 1;
            break;
        }
    pthread_mutex_unlock(&memo->lock);
    return found;
}

static void remember(judge_memo *memo, const char *key, const judge_verdict *verdict)
{
    memo_entry *entry = malloc(sizeof *entry);

    if (!entry) return;
    strcpy(entry->key, key);
    entry->verdict = *verdict;
    pthread_mutex_lock(&memo->lock);
    entry->next = *bucket_of(memo, key);
    *bucket_of(memo, key) = entry;
    pthread_mutex_unlock(&memo->lock);
}

void memo_judge(judge_memo *memo, const vec_case *test, const call_frame *frame,
                slm_status status, const slm_error *error,
                const slm_arithmetic *arithmetic, bool exact, judge_verdict *verdict)
{
    char key[65];

    if (memo) {
        make_key(test, frame, status, error, arithmetic, exact, key);
        if (recall(memo, key, verdict)) return;
    }
    judge_case(test, frame, status, error, arithmetic, exact, verdict);
    if (memo) remember(memo, key, verdict);
}
