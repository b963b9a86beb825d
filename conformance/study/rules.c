/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/rules.c - which comparison rule sees which wrong layer.
 *
 *   rules [--matrix] [--seed N] [--seeds N]
 *
 * Every mutant whose y, ids or weights differ from the plain layer's in some case, and
 * every right variant, under the rules in use today and under the judge's. Exit code 1
 * when the judge lets a mutant through whose answer is not lawful, or rejects a right
 * one. */
#include "family.h"
#include "rival.h"

#include "../judge.h"
#include "../mutants/mutants.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ref.h>

/* The judge's rules stand after the others'. */
enum { RULE_BARE = RIVALS, RULE_TAPS, RULES };
enum { PRECISIONS = 2, MAX_SUBJECTS = 512, MAX_CASES = 16, JOBS = 2 };

static const slm_dtype dtypes[PRECISIONS] = {SLM_F32, SLM_BF16};

static const char *rule_name(int rule)
{
    if (rule == RULE_BARE) return "**judge, without taps**";
    if (rule == RULE_TAPS) return "**judge, with taps**";
    return rival_name((study_rival)rule);
}

/* One input in one precision, and the answers that others are held against. */
typedef struct study_case {
    made_case made;
    double *want;     /* [T, d] y of the reference                          */
    call_frame plain; /* of the variant `sequential`                        */
    char digest[65];
} study_case;

/* A mutant or a right variant. */
typedef struct subject {
    const char *name;
    const slm_backend *table;
    bool right;
    bool shows[PRECISIONS][MAX_CASES]; /* y, ids or weight differ            */
    bool taps[PRECISIONS][MAX_CASES];  /* some output differs                */
    bool accepted[PRECISIONS][MAX_CASES][RULES];
} subject;

typedef struct study {
    size_t n_cases;
    study_case cases[PRECISIONS][MAX_CASES];
    size_t n_subjects;
    subject subjects[MAX_SUBJECTS];
    size_t next;
    pthread_mutex_t lock;
} study;

static void die(const char *what)
{
    fprintf(stderr, "rules: %s\n", what);
    exit(3);
}

static double *doubles(const slm_tensor *tensor)
{
    const size_t n = slm_tensor_count(tensor);
    double *out = malloc(n * sizeof *out);

    if (!out) die("out of memory");
    for (size_t i = 0; i < n; i++) out[i] = slm_ref_get(tensor, i);
    return out;
}

static void open_case(study_case *one, size_t index, slm_dtype dtype, uint64_t seed)
{
    slm_testee *plain = testee_open_table(slm_variant_find("sequential"), true);
    slm_status status;
    slm_error error;
    testee_reply reply;
    call_frame frame;

    study_make(&one->made, index, dtype, seed);
    if (!made_ref(&one->made.test, &frame, &status, &error)) die("no frame");
    if (status) die(error.expected);
    one->want = doubles(frame_tensor(&frame, "y"));
    frame_free(&frame);
    if (!plain || !made_call(plain, &one->made.test, true, &one->plain, &reply))
        die("no frame");
    frame_digest(&one->plain, one->digest);
    testee_close(plain);
}

static void close_case(study_case *one)
{
    frame_free(&one->plain);
    free(one->want);
    made_free(&one->made);
}

static bool same_bits(const call_frame *a, const call_frame *b, const char *field)
{
    const slm_tensor *x = frame_tensor(a, field);

    return memcmp(x->data, frame_tensor(b, field)->data,
                  slm_tensor_count(x) * slm_dtype_size(x->dtype)) == 0;
}

static bool judged(const study_case *one, const call_frame *frame,
                   const testee_reply *reply, const slm_arithmetic *arithmetic)
{
    judge_verdict verdict;

    judge_answer(&one->made.test, frame, reply->status, &reply->error, arithmetic,
                 false, &verdict);
    return verdict.state == JUDGE_PASS;
}

static void study_answer(subject *who, size_t p, size_t c, const study_case *one,
                         slm_testee *testee)
{
    const slm_arithmetic *arithmetic = &testee_describe(testee)->arithmetic;
    bool *accepted = who->accepted[p][c];
    testee_reply reply;
    call_frame frame;
    char digest[65];
    double *y;

    if (!made_call(testee, &one->made.test, true, &frame, &reply)) die(reply.why);
    frame_digest(&frame, digest);
    who->taps[p][c] = reply.status || strcmp(digest, one->digest) != 0;
    who->shows[p][c] = reply.status || !same_bits(&frame, &one->plain, "y") ||
                       !same_bits(&frame, &one->plain, "ids") ||
                       !same_bits(&frame, &one->plain, "weight");
    y = doubles(frame_tensor(&frame, "y"));
    for (int rule = 0; rule < RIVALS; rule++)
        accepted[rule] =
            reply.status == SLM_OK &&
            rival_accepts((study_rival)rule, y, one->want,
                          slm_tensor_count(frame_tensor(&frame, "y")), dtypes[p]);
    free(y);
    /* The plain layer's own answer is judged once, as the variant's. */
    accepted[RULE_TAPS] = accepted[RULE_BARE] = true;
    if (who->right || who->taps[p][c]) {
        accepted[RULE_TAPS] = judged(one, &frame, &reply, arithmetic);
        made_drop_taps(&frame);
        accepted[RULE_BARE] = judged(one, &frame, &reply, arithmetic);
    }
    frame_free(&frame);
}

static void *work(void *argument)
{
    study *all = argument;

    slm_ref_use_threads(1);
    for (;;) {
        size_t mine;

        pthread_mutex_lock(&all->lock);
        mine = all->next++;
        pthread_mutex_unlock(&all->lock);
        if (mine >= all->n_subjects) break;

        slm_testee *testee = testee_open_table(all->subjects[mine].table, true);

        if (!testee) die("a table that cannot be opened");
        for (size_t p = 0; p < PRECISIONS; p++)
            for (size_t c = 0; c < all->n_cases; c++)
                study_answer(&all->subjects[mine], p, c, &all->cases[p][c], testee);
        testee_close(testee);
    }
    flint_cleanup();
    return NULL;
}

static void add_subject(study *all, const char *name, const slm_backend *table,
                        bool right)
{
    if (all->n_subjects == MAX_SUBJECTS) die("too many mutants");
    all->subjects[all->n_subjects++] =
        (subject){.name = name, .table = table, .right = right};
}

static void run(study *all, uint64_t seed)
{
    pthread_t threads[JOBS];

    all->n_cases = study_n_cases();
    for (size_t p = 0; p < PRECISIONS; p++)
        for (size_t c = 0; c < all->n_cases; c++)
            open_case(&all->cases[p][c], c, dtypes[p], seed);
    for (size_t i = 0; i < slm_mutant_count(); i++)
        add_subject(all, slm_mutant_info_at(i)->name, slm_mutant_info_at(i)->table,
                    false);
    for (size_t i = 0; i < slm_variant_count(); i++)
        add_subject(all, slm_variant_info_at(i)->name, slm_variant_info_at(i)->table,
                    true);
    pthread_mutex_init(&all->lock, NULL);
    for (int i = 0; i < JOBS; i++)
        if (pthread_create(&threads[i], NULL, work, all)) die("no thread");
    for (int i = 0; i < JOBS; i++) pthread_join(threads[i], NULL);
    for (size_t p = 0; p < PRECISIONS; p++)
        for (size_t c = 0; c < all->n_cases; c++) close_case(&all->cases[p][c]);
}

/* ---- counting ---- */

static bool any(const bool *flags, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (flags[i]) return true;
    return false;
}

/* A wrong layer that shows in this precision. */
static bool counts(const study *all, const subject *who, size_t p)
{
    return !who->right && any(who->shows[p], all->n_cases);
}

/* Whether a rule accepts every answer, or every one of the first family alone. */
static bool survives(const study *all, const subject *who, size_t p, int rule,
                     bool first)
{
    for (size_t c = 0; c < all->n_cases; c++) {
        if (first && study_family_of(c) != STUDY_UNIT) continue;
        if (!who->accepted[p][c][rule]) return false;
    }
    return true;
}

static size_t count_alarms(const study *all, size_t p, int rule)
{
    size_t n = 0;

    for (size_t i = 0; i < all->n_subjects; i++)
        for (size_t c = 0; all->subjects[i].right && c < all->n_cases; c++)
            n += !all->subjects[i].accepted[p][c][rule];
    return n;
}

/* ---- what is lawful ---- */

/* Wrong layers whose answer is lawful all the same in a precision. What they do moves y
 * no further than the rounding that is declared; without taps, or in bf16, nothing else
 * is seen of it. */
static const struct {
    const char *name;
    slm_dtype dtype;
    int rule;
    const char *reason;
} lawful[] = {
    {"bound-exceeded", SLM_F32, RULE_BARE, "2^-22 of h: y may be off by more"},
    {"bound-exceeded", SLM_BF16, RULE_BARE, "2^-22 of h, before h is rounded to 2^-8"},
    {"bound-exceeded", SLM_BF16, RULE_TAPS, "2^-22 of h, before h is rounded to 2^-8"},
    {"nan-at-infinity", SLM_F32, RULE_BARE, "one rounding more where all is finite"},
    {"tanh-in-bf16", SLM_BF16, RULE_BARE, "gate and up values may be stored in bf16"},
    {"inverse-root-in-bf16", SLM_BF16, RULE_BARE, "r is stored in bf16, and so is y"},
    {"combine-in-bf16", SLM_BF16, RULE_BARE, "o and u are stored in bf16"},
    {"bf16-combine-for-bf16", SLM_BF16, RULE_BARE, "o and u are stored in bf16"},
    {"order-by-batch", SLM_F32, RULE_BARE, "any order will do within one call"},
    {"order-by-batch", SLM_F32, RULE_TAPS, "any order will do within one call"},
    {"order-by-batch", SLM_BF16, RULE_BARE, "any order will do within one call"},
    {"order-by-batch", SLM_BF16, RULE_TAPS, "any order will do within one call"},
};

static const char *excuse(const subject *who, size_t p, int rule)
{
    for (size_t i = 0; i < sizeof lawful / sizeof *lawful; i++)
        if (strcmp(lawful[i].name, who->name) == 0 && lawful[i].dtype == dtypes[p] &&
            lawful[i].rule == rule)
            return lawful[i].reason;
    return NULL;
}

/* Survivors of a rule; `excused`: of these the ones whose answer is lawful. */
static size_t count_survivors(const study *all, size_t p, int rule, bool first,
                              bool excused)
{
    size_t n = 0;

    for (size_t i = 0; i < all->n_subjects; i++)
        n += counts(all, &all->subjects[i], p) &&
             survives(all, &all->subjects[i], p, rule, first) &&
             (!excused || excuse(&all->subjects[i], p, rule));
    return n;
}

/* ---- printing ---- */

static void print_table(const study *all)
{
    size_t shown[PRECISIONS] = {0};

    for (size_t p = 0; p < PRECISIONS; p++)
        for (size_t i = 0; i < all->n_subjects; i++)
            shown[p] += counts(all, &all->subjects[i], p);
    printf("| rule | binary32: survivors of %zu, one / four families | false alarms |"
           " bf16: survivors of %zu, one / four | false alarms |\n",
           shown[0], shown[1]);
    printf("|---|---|---|---|---|\n");
    for (int rule = 0; rule < RULES; rule++) {
        printf("| %s", rule_name(rule));
        for (size_t p = 0; p < PRECISIONS; p++) {
            const size_t excused = count_survivors(all, p, rule, false, true);

            printf(" | %zu / %zu", count_survivors(all, p, rule, true, false),
                   count_survivors(all, p, rule, false, false) - excused);
            if (excused) printf(" + %zu lawful", excused);
            printf(" | %zu of %zu", count_alarms(all, p, rule),
                   all->n_cases * slm_variant_count());
        }
        printf(" |\n");
    }
}

/* One line a subject: by case, the rules that accept it as digits (+ and t: the
 * judge without and with taps), `=` when the plain layer's bits came out. */
static void print_matrix(const study *all)
{
    for (size_t p = 0; p < PRECISIONS; p++)
        for (size_t i = 0; i < all->n_subjects; i++) {
            const subject *who = &all->subjects[i];

            if (!who->right && !any(who->taps[p], all->n_cases)) continue;
            printf("%-4s %-30s", slm_dtype_name(dtypes[p]), who->name);
            for (size_t c = 0; c < all->n_cases; c++) {
                char text[RULES + 1] = "";

                for (int rule = 0; rule < RULES; rule++)
                    text[rule] = who->accepted[p][c][rule] ? "01234567+t"[rule] : '.';
                printf(" %-10s", who->taps[p][c] ? text : "=");
            }
            printf("\n");
        }
}

/* Whom the judge lets through, and why; returns how many it should not have, or wrongly
 * rejects. */
static size_t print_failures(const study *all)
{
    size_t n = 0;

    for (size_t i = 0; i < all->n_subjects; i++)
        for (size_t p = 0; p < PRECISIONS; p++)
            for (int rule = RULE_BARE; rule < RULES; rule++) {
                const subject *who = &all->subjects[i];
                const bool kept = survives(all, who, p, rule, false);
                const char *reason = excuse(who, p, rule);
                const char *word = who->right ? "FALSE ALARM" : "SURVIVOR";

                if (!who->right && !counts(all, who, p)) continue;
                if (who->right == kept) continue;
                printf("%s: %s, %s, %s%s%s\n", reason ? "lawful" : word, who->name,
                       slm_dtype_name(dtypes[p]),
                       rule == RULE_TAPS ? "with taps" : "without taps",
                       reason ? ": " : "", reason ? reason : "");
                n += !reason;
            }
    return n;
}

int main(int argc, char **argv)
{
    uint64_t seed = 1, n_seeds = 1;
    bool matrix = false;
    size_t failures = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--matrix") == 0) {
            matrix = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            n_seeds = strtoull(argv[++i], NULL, 0);
        } else {
            fprintf(stderr, "usage: rules [--matrix] [--seed N] [--seeds N]\n");
            return 2;
        }
    }
    for (uint64_t s = seed; s < seed + n_seeds; s++) {
        study *all = calloc(1, sizeof *all);

        if (!all) die("out of memory");
        run(all, s);
        printf("seed %llu\n\n", (unsigned long long)s);
        print_table(all);
        if (matrix) print_matrix(all);
        printf("\n");
        failures += print_failures(all);
        free(all);
    }
    return failures > 0;
}
