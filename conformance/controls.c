/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/controls.c - null answers: would an answer that knows nothing pass?   A4 */
#include "controls.h"
#include "compare.h"
#include "mutants/mutants.h"
#include "testee.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An output that a null answer replaces, and what it held. The frame's are packed. */
typedef struct held {
    slm_tensor *tensor;
    slm_tensor right; /* the same with the answer that passed */
    size_t count;
    size_t bytes;
} held;

typedef struct control_work {
    const vec_case *test;
    const call_frame *frame;
    const slm_arithmetic *arithmetic;
    bool exact;
    bool routing;
    const char *name; /* of the result                                     */
    held result;
    held beside; /* ids of routing, a candidate that was written; else no data */
    char rows;   /* what the result's first dimension counts */
} control_work;

static const char *result_of(slm_op op)
{
    switch (op) {
    case SLM_OP_route:
    case SLM_OP_select:
        return "weight";
    case SLM_OP_permute:
        return "order";
    case SLM_OP_situ_glu:
        return "h";
    case SLM_OP_rmsnorm:
        return "r";
    case SLM_OP_dense_ffn:
    case SLM_OP_layer_forward:
        return "y";
    case SLM_OP_situ_glu_backward:
        return "dgate_up";
    case SLM_OP_rmsnorm_backward:
        return "du";
    case SLM_OP_select_backward:
        return "dlogit";
    case SLM_OP_dense_ffn_backward:
    case SLM_OP_layer_backward:
        return "dx";
    case SLM_OP_qb_hist_accumulate:
    case SLM_OP_qb_hist_merge:
    case SLM_OP_qb_observe:
        return "hist";
    case SLM_OP_qb_commit:
        return "bias";
    case SLM_OP_load_metrics:
        return "metric";
    default:
        return "new_bias";
    }
}

/* ---- outputs kept and set back ---- */

static bool hold(held *out, const call_frame *frame, const char *field)
{
    out->tensor = frame_tensor(frame, field);
    if (!out->tensor || out->tensor->rank == 0) return false;
    out->count = slm_tensor_count(out->tensor);
    out->bytes = out->count * slm_dtype_size(out->tensor->dtype);
    out->right = *out->tensor;
    out->right.data = malloc(out->bytes + 1);
    if (!out->right.data) return false;
    memcpy(out->right.data, out->tensor->data, out->bytes);
    return true;
}

static void set_back(const held *output)
{
    if (output->right.data)
        memcpy(output->tensor->data, output->right.data, output->bytes);
}

static bool is_integer(const held *output)
{
    return output->tensor->dtype == SLM_I32 || output->tensor->dtype == SLM_I64;
}

/* Store a real number, rounded as the conversion does; 0 is stored in any type. */
static void put(const held *output, size_t index, double value)
{
    const slm_dtype dtype = output->tensor->dtype;
    unsigned char *at =
        (unsigned char *)output->tensor->data + index * slm_dtype_size(dtype);
    const float narrow = (float)value;
    uint32_t bits;

    memcpy(&bits, &narrow, sizeof bits);
    if (dtype == SLM_F64)
        memcpy(at, &value, sizeof value);
    else if (dtype == SLM_F32)
        memcpy(at, &bits, sizeof bits);
    else if (dtype == SLM_BF16)
        memcpy(at, &(uint16_t){(uint16_t)(bits >> 16)}, sizeof(uint16_t));
}

/* ---- null answers: each returns whether it has a meaning here ---- */

static bool make_zeros(const control_work *work)
{
    memset(work->result.tensor->data, 0, work->result.bytes);
    if (!work->routing && work->beside.right.data)
        memset(work->beside.tensor->data, 0, work->beside.bytes);
    return true;
}

static bool make_constant_choice(const control_work *work)
{
    const size_t k = work->frame->config.top_k;
    int32_t *ids = work->beside.tensor->data;

    for (size_t i = 0; i < work->beside.count; i++) ids[i] = (int32_t)(i % k);
    for (size_t i = 0; i < work->result.count; i++)
        put(&work->result, i, 1 / (double)k);
    return true;
}

/* Its first finite element everywhere; false when there is none. */
static bool repeat(const held *output)
{
    const size_t size = slm_dtype_size(output->tensor->dtype);
    size_t first = 0;

    while (!is_integer(output) && first < output->count &&
           !isfinite(slm_ref_get(&output->right, first)))
        first++;
    if (first == output->count) return false;
    for (size_t i = 0; i < output->count; i++)
        memcpy((char *)output->tensor->data + i * size,
               (const char *)output->right.data + first * size, size);
    return true;
}

static bool make_constant(const control_work *work)
{
    if (work->routing) return make_constant_choice(work);
    return repeat(&work->result) && (!work->beside.right.data || repeat(&work->beside));
}

static void rotate(const held *output)
{
    const size_t row = output->bytes / output->tensor->shape[0];
    char *to = output->tensor->data;
    const char *from = output->right.data;

    memcpy(to, from + row, output->bytes - row);
    memcpy(to + output->bytes - row, from, row);
}

static bool make_rotated(const control_work *work)
{
    if ((work->rows != 'T' && work->rows != 'n') || work->result.tensor->shape[0] < 2)
        return false;
    rotate(&work->result);
    if (work->beside.right.data) rotate(&work->beside);
    return true;
}

static bool make_dropped(const control_work *work)
{
    testee_reply reply;
    slm_testee *testee;
    call_frame frame;
    bool made = false;

    if (work->test->op != SLM_OP_layer_forward) return false;
    testee = testee_open_table(slm_mutant_find("last-slot-dropped"), true);
    if (testee && testee_frame(testee, work->test, NULL, &frame, reply.why)) {
        testee_run(testee, &frame, &reply);
        made = reply.outcome == TESTEE_RETURNED && reply.status == SLM_OK;
        for (size_t i = 0; made && i < work->result.count; i++) {
            const double y = slm_ref_get(frame_tensor(&frame, "y"), i);

            /* giving a row up is lawful where a weight is no number  R4 */
            made = !isnan(y) || isnan(slm_ref_get(&work->result.right, i));
            put(&work->result, i, y);
        }
        frame_free(&frame);
    }
    testee_close(testee);
    return made;
}

/* ---- what becomes of them ---- */

/* Whether some element of a field's rows first .. first + n - 1 is NaN or, when
 * `infinite`, an infinity. */
static bool has_no_number(const call_frame *frame, const char *field, size_t first,
                          size_t n, bool infinite)
{
    const slm_tensor *tensor = frame_tensor(frame, field);
    size_t width;

    if (!tensor || tensor->rank == 0) return false;
    width = slm_tensor_count(tensor) / tensor->shape[0];
    for (size_t i = first * width; i < (first + n) * width; i++) {
        const double value = slm_ref_get(tensor, i);

        if (isnan(value) || (infinite && isinf(value))) return true;
    }
    return false;
}

/* A token whose ids and weights say nothing.                                      R4 */
static bool is_poisoned(const control_work *work, size_t t)
{
    const call_frame *frame = work->frame;

    if (work->test->op == SLM_OP_select)
        return has_no_number(frame, "score", t, 1, false) ||
               has_no_number(frame, "logit", t, 1, false);
    return has_no_number(frame, "x", t, 1, true) ||
           has_no_number(frame, "w_router", 0, frame->config.n_experts, true);
}

/* Largest finite magnitude of the answer that passed. */
static double peak_of(const held *output)
{
    double peak = 0;

    if (!output->right.data || is_integer(output)) return 0;
    for (size_t i = 0; i < output->count; i++) {
        const double right = fabs(slm_ref_get(&output->right, i));

        if (isfinite(right)) peak = fmax(peak, right);
    }
    return peak;
}

/* Whether an output is plainly another than the one that passed. */
static bool is_other(const control_work *work, const held *output)
{
    const size_t width = output->count / output->tensor->shape[0];
    const double peak = fmax(peak_of(&work->result), peak_of(&work->beside));

    for (size_t i = 0; i < output->count; i++) {
        double right, now;

        if (work->routing && i % width == 0 && is_poisoned(work, i / width)) {
            i += width - 1;
            continue;
        }
        if (is_integer(output)) {
            if (compare_integer(&output->right, i) !=
                compare_integer(output->tensor, i))
                return true;
            continue;
        }
        right = slm_ref_get(&output->right, i);
        now = slm_ref_get(output->tensor, i);
        if (compare_same(now, right) || peak < 0x1p-59) continue;
        if (!(fabs(now - right) <= 0x1p-6 * peak)) return true;
    }
    return false;
}

static size_t n_judged(const judge_verdict *verdict, const char *field)
{
    for (size_t i = 0; i < verdict->n_stages; i++)
        if (strcmp(verdict->stages[i].name, field) == 0)
            return verdict->stages[i].checked;
    return 0;
}

/* A constant choice is another answer by its ids: its weights of 1/k may be lawful ones
 * of the right choice (R3). */
static bool is_other_answer(const control_work *work, judge_control control)
{
    if (work->beside.right.data && is_other(work, &work->beside)) return true;
    return !(work->routing && control == JUDGE_CONSTANT) &&
           is_other(work, &work->result);
}

static judge_null judge_null_answer(const control_work *work, judge_control control)
{
    const slm_error error = {.status = SLM_OK};
    judge_verdict verdict;

    if (!is_other_answer(work, control)) return JUDGE_NULL_SAME;
    judge_answer(work->test, work->frame, SLM_OK, &error, work->arithmetic, work->exact,
                 &verdict);
    if (verdict.state != JUDGE_PASS) return JUDGE_NULL_FAILS;
    /* Where the file itself wants this, it is right. */
    judge_answer(work->test, work->frame, SLM_OK, &error, work->arithmetic, true,
                 &verdict);
    return verdict.state == JUDGE_PASS &&
                   n_judged(&verdict, work->name) == work->result.count
               ? JUDGE_NULL_SAME
               : JUDGE_NULL_PASSES;
}

static char first_dimension(const slm_op_info *info, const char *field)
{
    for (size_t i = 0; i < info->n_fields; i++)
        if (strcmp(info->fields[i].name, field) == 0) return info->fields[i].dims[0];
    return '\0';
}

static void judge_all(const control_work *work, judge_verdict *verdict)
{
    static bool (*const make[JUDGE_CONTROLS])(const control_work *) = {
        make_zeros, make_constant, make_rotated, make_dropped};
    static const char *const passed[JUDGE_CONTROLS] = {
        "an answer of zeros", "a constant answer", "another row's answer",
        "an answer without the last chosen expert"};

    const int n = work->frame->arena_size > CONTROLS_LIMIT ? 1 : JUDGE_CONTROLS;

    for (int i = 0; i < n; i++) {
        if (make[i](work))
            verdict->controls[i] = judge_null_answer(work, (judge_control)i);
        set_back(&work->result);
        set_back(&work->beside);
        if (verdict->controls[i] != JUDGE_NULL_PASSES ||
            verdict->state == JUDGE_VACUOUS)
            continue;
        verdict->state = JUDGE_VACUOUS;
        snprintf(verdict->clause, sizeof verdict->clause, "A4");
        snprintf(verdict->reason, sizeof verdict->reason, "%s would pass as well",
                 passed[i]);
    }
}

/* What belongs to the result. Returns false when memory ran out. */
static bool hold_beside(control_work *work)
{
    if (work->routing) return hold(&work->beside, work->frame, "ids");
    if (strcmp(work->name, "new_bias") != 0 ||
        frame_untouched(work->frame, "candidate"))
        return true;
    return hold(&work->beside, work->frame, "candidate");
}

void controls_judge(const vec_case *test, const call_frame *frame,
                    const slm_arithmetic *arithmetic, bool exact,
                    judge_verdict *verdict)
{
    const char *result = result_of(test->op);
    control_work work = {.test = test,
                         .frame = frame,
                         .arithmetic = arithmetic,
                         .exact = exact,
                         .name = result,
                         .rows = first_dimension(frame->info, result),
                         .routing =
                             test->op == SLM_OP_route || test->op == SLM_OP_select};

    if (n_judged(verdict, result) == 0) return;
    if (hold(&work.result, frame, result) && work.result.count > 0 &&
        hold_beside(&work))
        judge_all(&work, verdict);
    free(work.result.right.data);
    free(work.beside.right.data);
}
