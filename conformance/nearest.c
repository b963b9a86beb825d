/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/nearest.c - which known fault a wrong answer looks like. */
#include "nearest.h"
#include "compare.h"
#include "hygiene.h"
#include "mutants/mutants.h"
#include "testee.h"

#include <math.h>
#include <string.h>

/* An answer to the case: its outputs lie in the frame. */
typedef struct answer {
    const call_frame *frame;
    slm_status status;
    const slm_error *error;
} answer;

/* ---- distance ---- */

/* Sums of products, and every gradient: what cancels in one has no digits of its own. */
static bool is_sum(const char *field)
{
    static const char *const sums[] = {
        "logit",          "z",         "o",       "u", "y", "r", "gate_up",
        "shared_gate_up", "candidate", "new_bias"};

    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        if (strcmp(sums[i], field) == 0) return true;
    return field[0] == 'd';
}

static double element_distance(double a, double b, double scale)
{
    if (compare_same(a, b)) return 0;
    if (!isfinite(a) || !isfinite(b)) return 1;
    if (!(scale > 0)) return 1;
    return fmin(1, fabs(a - b) / scale);
}

/* Largest finite magnitude in a row of the right answer. */
static double row_peak(const slm_tensor *right, size_t first, size_t width)
{
    double peak = 0;

    for (size_t i = first; i < first + width; i++) {
        const double value = fabs(slm_ref_get(right, i));

        if (isfinite(value)) peak = fmax(peak, value);
    }
    return peak;
}

static double field_distance(const slm_field *field, const slm_tensor *a,
                             const slm_tensor *b, const slm_tensor *right)
{
    const size_t count = slm_tensor_count(a);
    const size_t width = a->shape[a->rank - 1];
    const bool floors = is_sum(field->name);
    double sum = 0, floor = 0;

    for (size_t i = 0; i < count; i++) {
        double w;

        if (a->dtype == SLM_I32 || a->dtype == SLM_I64) {
            sum += compare_integer(a, i) != compare_integer(b, i);
            continue;
        }
        if (floors && i % width == 0) floor = 0x1p-20 * row_peak(right, i, width);
        w = fabs(slm_ref_get(right, i));
        sum += element_distance(slm_ref_get(a, i), slm_ref_get(b, i),
                                isfinite(w) ? fmax(w, floor) : floor);
    }
    return sum / (double)count;
}

/* The output as both answers wrote it; an optional one that either left alone says
 * nothing. */
static bool is_compared(const slm_field *field, const answer *a, const answer *b)
{
    const slm_tensor *tensor = frame_tensor(a->frame, field->name);

    if (field->role == SLM_ROLE_IN || field->role == SLM_ROLE_OPTIONAL) return false;
    if (!tensor || tensor->rank == 0 || slm_tensor_count(tensor) == 0) return false;
    return field->role != SLM_ROLE_TAP || (!frame_untouched(a->frame, field->name) &&
                                           !frame_untouched(b->frame, field->name));
}

static double distance(const answer *a, const answer *b, const answer *right)
{
    const slm_op_info *info = a->frame->info;
    double sum = 0, said = 0;
    size_t n = 0;

    if (a->status != b->status)
        said = 1;
    else if (a->status != SLM_OK && strcmp(a->error->field, b->error->field) != 0)
        said = 0.5;
    else if (a->status != SLM_OK && a->error->index != b->error->index)
        said = 0.25;
    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];

        if (!is_compared(field, a, b)) continue;
        sum += field_distance(field, frame_tensor(a->frame, field->name),
                              frame_tensor(b->frame, field->name),
                              frame_tensor(right->frame, field->name));
        n++;
    }
    return said + (n ? sum / (double)n : 0);
}

/* ---- the mutants' answers ---- */

/* Let a table answer the case in a frame of its own. Returns whether it did; the frame
 * is then the caller's to free. */
static bool let_answer(const slm_backend *table, const vec_case *test,
                       call_frame *frame, testee_reply *reply)
{
    slm_testee *testee = testee_open_table(table, true);
    char reason[256];
    bool ok = false;

    if (testee && testee_offers(testee, test, reason) &&
        testee_frame(testee, test, NULL, frame, reply->why)) {
        testee_run(testee, frame, reply);
        ok = reply->outcome == TESTEE_RETURNED;
        if (!ok) frame_free(frame);
    }
    testee_close(testee);
    return ok;
}

/* The right answer, from the first variant that is given such cases. */
static bool answer_right(const vec_case *test, call_frame *frame, testee_reply *reply)
{
    for (size_t i = 0; i < slm_variant_count(); i++)
        if (let_answer(slm_variant_info_at(i)->table, test, frame, reply)) return true;
    return false;
}

/* How well a mutant of the same distance suits the case and the verdict. */
static int suits(const slm_mutant_info *info, const vec_case *test,
                 const judge_verdict *verdict)
{
    for (size_t i = 0; i < test->n_kills; i++)
        if (strcmp(test->kills[i], info->name) == 0) return 2;
    return strcmp(info->clause, verdict->clause) == 0;
}

typedef struct search {
    const slm_mutant_info *best;
    double least;
    int suits;
    size_t n_alike;
} search;

static void consider(search *found, const slm_mutant_info *info, double away, int suit)
{
    if (found->best && away > found->least) return;
    if (found->best && away == found->least) {
        found->n_alike++;
        if (suit <= found->suits) return;
    } else {
        found->n_alike = 0;
    }
    found->best = info;
    found->least = away;
    found->suits = suit;
}

void nearest_find(const vec_case *test, const call_frame *frame, slm_status status,
                  const slm_error *error, judge_verdict *verdict)
{
    const answer given = {frame, status, error};
    search found = {.best = NULL};
    testee_reply right_reply, reply;
    call_frame right_frame, other;
    double limit;

    if (frame->arena_size > NEAREST_LIMIT ||
        !answer_right(test, &right_frame, &right_reply))
        return;

    const answer right = {&right_frame, right_reply.status, &right_reply.error};

    limit = NEAREST_SHARE * distance(&given, &right, &right);
    for (size_t i = 0; limit > 0 && i < slm_mutant_count(); i++) {
        const slm_mutant_info *info = slm_mutant_info_at(i);

        if (!let_answer(info->table, test, &other, &reply)) continue;

        const answer mutant = {&other, reply.status, &reply.error};
        const double away = distance(&given, &mutant, &right);

        frame_free(&other);
        if (away < limit) consider(&found, info, away, suits(info, test, verdict));
    }
    frame_free(&right_frame);
    if (!found.best) return;
    snprintf(verdict->nearest, sizeof verdict->nearest, "%s", found.best->name);
    verdict->n_alike = found.n_alike;
}

/* ---- conduct ---- */

/* Judge a mutant on the case, and then its memory and reuse. */
static void judge_conduct(const slm_backend *table, const vec_case *test,
                          judge_verdict *verdict)
{
    slm_testee *testee = testee_open_table(table, true);
    testee_reply reply;
    call_frame frame;
    char digest[65], reason[256];

    memset(verdict, 0, sizeof *verdict);
    if (testee && testee_offers(testee, test, reason) &&
        testee_frame(testee, test, NULL, &frame, reply.why)) {
        testee_run(testee, &frame, &reply);
        judge_answer(test, &frame, reply.status, &reply.error, table->arithmetic, false,
                     verdict);
        frame_digest(&frame, digest);
        frame_free(&frame);
        if (verdict->state == JUDGE_PASS && reply.status == SLM_OK)
            hygiene_check(testee, test, digest, verdict);
        else
            verdict->reason[0] = '\0';
    }
    testee_close(testee);
}

/* Only mutants of clauses on conduct can pass once and fail later. */
void nearest_by_conduct(const vec_case *test, judge_verdict *verdict)
{
    if (!verdict->reason[0]) return;
    for (size_t i = 0; i < slm_mutant_count(); i++) {
        const slm_mutant_info *info = slm_mutant_info_at(i);
        judge_verdict other;

        if (strcmp(info->clause, "A2") != 0 && strcmp(info->clause, "A3") != 0 &&
            strcmp(info->clause, "X2") != 0)
            continue;
        judge_conduct(info->table, test, &other);
        if (strcmp(other.reason, verdict->reason) != 0 ||
            strcmp(other.clause, verdict->clause) != 0)
            continue;
        if (verdict->nearest[0])
            verdict->n_alike++;
        else
            snprintf(verdict->nearest, sizeof verdict->nearest, "%s", info->name);
    }
}

const char *nearest_sentence(const char *mutant)
{
    for (size_t i = 0; i < slm_mutant_count(); i++)
        if (strcmp(slm_mutant_info_at(i)->name, mutant) == 0)
            return slm_mutant_info_at(i)->sentence;
    return "";
}
