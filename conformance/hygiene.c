/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/hygiene.c - memory and reuse: what a right answer alone does not show. */
#include "hygiene.h"

#include "hygiene_beside.h"

#include <stdlib.h>
#include <string.h>

static bool repeat(const repetition *check, const frame_options *layout, bool finite,
                   const char *clause, const char *circumstance)
{
    testee_reply reply;
    call_frame frame;
    bool ok;

    if (!testee_frame(check->testee, check->test, layout, &frame, reply.why))
        return true;
    frame_poison(&frame, finite);
    testee_run(check->testee, &frame, &reply);
    ok = repetition_accept(check, &frame, &reply, clause, circumstance);
    if (ok && finite) ok = repetition_same_bits(check, &frame, circumstance);
    frame_free(&frame);
    return ok;
}

/* "without h, r": the taps of a mask that are there. */
static void name_hidden(const call_frame *frame, char *text, size_t size)
{
    const char *separator = "without ";
    size_t used = 0;

    for (size_t i = 0; i < frame->n_buffers && used < size; i++) {
        if (!frame->buffers[i].absent) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", separator,
                                 frame->buffers[i].field->name);
        separator = ", ";
    }
}

typedef enum tap_share { ALL_TAPS, SOME_TAPS, OTHER_TAPS } tap_share;

/* Which of n taps to hide. Some are those whose number has one bit set, another bit from
 * case to case, so that of any two one is often asked for without the other. */
static uint64_t hidden_taps(tap_share share, size_t n, const char *id)
{
    static const uint64_t with_bit[] = {0xaaaaaaaaaaaaaaaa, 0xcccccccccccccccc,
                                        0xf0f0f0f0f0f0f0f0, 0xff00ff00ff00ff00,
                                        0xffff0000ffff0000, 0xffffffff00000000};
    size_t n_bits = 0, sum = 0;

    while (n > (size_t)1 << n_bits) n_bits++;
    if (share == ALL_TAPS) return UINT64_MAX;
    if (n_bits == 0) return 0;
    while (*id) sum = sum * 31 + (unsigned char)*id++;
    return share == SOME_TAPS ? with_bit[sum % n_bits] : ~with_bit[sum % n_bits];
}

/* What must be written still is, and right. */
static bool without(const repetition *check, tap_share share)
{
    testee_reply reply;
    call_frame frame;
    char circumstance[160] = "";
    bool ok = true;

    if (!testee_frame(check->testee, check->test, NULL, &frame, reply.why)) return true;
    frame_hide_taps(&frame,
                    hidden_taps(share, frame_hide_taps(&frame, 0), check->test->id));
    name_hidden(&frame, circumstance, sizeof circumstance);
    if (circumstance[0]) {
        testee_run(check->testee, &frame, &reply);
        frame_hide_taps(&frame, 0);
        ok = repetition_accept(check, &frame, &reply, "X2", circumstance);
    }
    frame_free(&frame);
    return ok;
}

/* Not for ref, of whom every output is compared with the file. */
static bool without_taps(const repetition *check)
{
    if (strcmp(testee_describe(check->testee)->name, "ref") == 0) return true;
    return without(check, ALL_TAPS) && without(check, SOME_TAPS) &&
           without(check, OTHER_TAPS);
}

/* What rows far apart do not fit into is no fault: address space, memory of a device. */
static bool is_too_far(unsigned set, const testee_reply *reply)
{
    return set == FRAME_VIEW_FAR && reply->outcome == TESTEE_RETURNED &&
           reply->status == SLM_ERR_MEMORY;
}

/* Every tensor a view: gaps between rows or elements, transposed, backwards. */
static bool as_views(const repetition *check, unsigned set)
{
    const frame_options layout = {.views = set};
    char circumstance[48];
    const char *touched;
    testee_reply reply;
    call_frame frame;
    bool ok = true;

    if (!testee_frame(check->testee, check->test, &layout, &frame, reply.why))
        return true;
    if (set == FRAME_VIEW_REPEATS)
        snprintf(circumstance, sizeof circumstance,
                 "with strides of 0 where an input repeats");
    else if (set == FRAME_VIEW_FAR)
        snprintf(circumstance, sizeof circumstance, "with rows 2^32 elements apart");
    else
        snprintf(circumstance, sizeof circumstance, "with views of strides, set %u",
                 set);
    if (frame_spread(&frame)) {
        testee_run(check->testee, &frame, &reply);
        touched = frame_gather(&frame);
        ok = is_too_far(set, &reply) ||
             repetition_accept(check, &frame, &reply, "X2", circumstance);
        if (ok && touched) {
            snprintf(reply.why, sizeof reply.why, "wrote between the elements of %s",
                     touched);
            repetition_fail(check, JUDGE_FAIL, "X2", circumstance, reply.why);
            ok = false;
        }
    }
    frame_free(&frame);
    return ok;
}

static bool has_tokens(const slm_field *field)
{
    return field->dims[0] == 'T' || field->dims[0] == 'q';
}

/* Show the callee `tokens` rows from row `first` on. */
static void show_rows(call_frame *frame, size_t first, size_t tokens)
{
    frame->call->n_tokens = tokens;
    for (size_t i = 0; i < frame->n_buffers; i++) {
        frame_buffer *buffer = &frame->buffers[i];

        if (!buffer->field || !has_tokens(buffer->field)) continue;

        const size_t step = buffer->field->dims[0] == 'q' ? frame->config.top_k : 1;
        const size_t row = step * (size_t)buffer->tensor.stride[0] *
                           slm_dtype_size(buffer->tensor.dtype);
        const size_t home = buffer->home_offset + first * row;

        buffer->offset = home;
        buffer->bytes = tokens * row;
        buffer->tensor.data = frame->arena + home;
        buffer->tensor.shape[0] = tokens * step;
        *frame_tensor(frame, buffer->field->name) = buffer->tensor;
    }
}

/* The last element first. */
static void turn(unsigned char *data, size_t bytes, size_t size)
{
    unsigned char element[sizeof(double)];

    for (size_t a = 0, b = bytes; a + size < b; a += size) {
        b -= size;
        memcpy(element, data + a, size);
        memcpy(data + a, data + b, size);
        memcpy(data + b, element, size);
    }
}

/* Other lawful contents in the same place: every input backwards. The weights of a prepared
 * layer may not change while the handle is open. */
static void vary(const call_frame *frame)
{
    for (size_t i = 0; i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];

        if (!contents_vary(buffer)) continue;
        if (frame->info->prepared && strcmp(buffer->field->name, "x") != 0 &&
            strcmp(buffer->field->name, "bias") != 0 &&
            strcmp(buffer->field->name, "ids") != 0 &&
            strcmp(buffer->field->name, "dy") != 0)
            continue;
        turn(buffer->tensor.data, buffer->bytes, slm_dtype_size(buffer->tensor.dtype));
    }
}

/* Operations whose refusal or meaning depends on the whole batch are not cut. */
static bool can_be_cut(const vec_case *test)
{
    return test->op != SLM_OP_qb_hist_solve && test->op != SLM_OP_qb_exact &&
           test->call.n_tokens > 1;
}

/* Twelve calls on one handle. The first is small and of other contents, for what a handle
 * keeps of its first call; before each everything is set back. */
static bool in_a_row(const repetition *check)
{
    static const struct {
        enum { FULL, VARIED, NONE, ONE, ONE_VARIED } kind;
        bool finite;
    } calls[] = {{ONE_VARIED, false}, {VARIED, true}, {FULL, false},  {VARIED, true},
                 {FULL, true},        {NONE, false},  {FULL, false},  {ONE, true},
                 {VARIED, false},     {NONE, true},   {VARIED, true}, {FULL, true}};
    enum { N_CALLS = sizeof calls / sizeof *calls };
    const size_t tokens = check->test->call.n_tokens;
    testee_reply reply;
    call_frame frame;
    contents saved;
    bool ok = true;

    if (!testee_frame(check->testee, check->test, NULL, &frame, reply.why)) return true;
    contents_keep(&frame, &saved);
    testee_begin(check->testee, &frame, &reply);
    if (reply.outcome != TESTEE_RETURNED)
        ok = repetition_accept(check, &frame, &reply, "A3",
                               "opening a handle once more");
    for (int i = 0; ok && reply.status == SLM_OK && i < N_CALLS; i++) {
        char circumstance[64];

        if (calls[i].kind >= NONE && !can_be_cut(check->test)) continue;
        snprintf(circumstance, sizeof circumstance, "call %d of %d on one handle",
                 i + 1, N_CALLS);
        contents_restore(&frame, &saved);
        if (calls[i].kind == VARIED || calls[i].kind == ONE_VARIED) vary(&frame);
        show_rows(&frame, 0,
                  calls[i].kind == NONE  ? 0
                  : calls[i].kind >= ONE ? 1
                                         : tokens);
        frame_poison(&frame, calls[i].finite);
        testee_call(check->testee, &frame, &reply);
        show_rows(&frame, 0, tokens);
        if (reply.outcome != TESTEE_RETURNED || calls[i].kind == FULL)
            ok = repetition_accept(check, &frame, &reply, "A3", circumstance) &&
                 repetition_same_bits(check, &frame, circumstance);
        reply.status = SLM_OK;
    }
    testee_end(check->testee, &frame, &reply);
    contents_free(&saved);
    frame_free(&frame);
    return ok;
}

/* Whether the output rows that were just written, alone, are those of the whole batch. */
static bool same_row(const call_frame *frame, const contents *batch, size_t token)
{
    for (size_t i = 0; i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];

        if (!batch->bytes[i] || !buffer->output) continue;

        const size_t row =
            (size_t)buffer->tensor.stride[0] * slm_dtype_size(buffer->tensor.dtype);

        if (memcmp(buffer->tensor.data, batch->bytes[i] + token * row, row) != 0)
            return false;
    }
    return true;
}

static bool is_row_wise(slm_op op)
{
    return op == SLM_OP_route || op == SLM_OP_select || op == SLM_OP_situ_glu ||
           op == SLM_OP_dense_ffn || op == SLM_OP_rmsnorm ||
           op == SLM_OP_layer_forward || op == SLM_OP_situ_glu_backward ||
           op == SLM_OP_select_backward;
}

enum { ALONE_TOKENS = 4 };

/* Where batch invariance is declared: a token alone gives the bits it had in the batch. */
static bool alone(const repetition *check)
{
    const size_t tokens = check->test->call.n_tokens;
    testee_reply reply;
    call_frame frame;
    contents batch = {0};
    bool ok = true;

    if (!testee_frame(check->testee, check->test, NULL, &frame, reply.why)) return true;
    testee_begin(check->testee, &frame, &reply);
    if (reply.outcome == TESTEE_RETURNED && reply.status == SLM_OK)
        testee_call(check->testee, &frame, &reply);
    ok = repetition_accept(check, &frame, &reply, "A2", "the batch once more");
    for (size_t i = 0; i < frame.n_buffers; i++) {
        const frame_buffer *buffer = &frame.buffers[i];

        if (!buffer->output || !buffer->field || !has_tokens(buffer->field)) continue;
        batch.bytes[i] = malloc(buffer->bytes + 1);
        if (batch.bytes[i]) memcpy(batch.bytes[i], buffer->tensor.data, buffer->bytes);
    }
    for (size_t i = 0; ok && reply.status == SLM_OK && i < ALONE_TOKENS + 2; i++) {
        /* the first ones, one amid the batch, the last one */
        const size_t t = i < ALONE_TOKENS    ? i
                         : i == ALONE_TOKENS ? tokens / 2
                                             : tokens - 1;
        char circumstance[48];

        if (t >= tokens) continue;

        snprintf(circumstance, sizeof circumstance, "token %zu alone", t);
        show_rows(&frame, t, 1);
        frame_poison(&frame, false);
        testee_call(check->testee, &frame, &reply);
        if (reply.outcome != TESTEE_RETURNED) {
            ok = repetition_accept(check, &frame, &reply, "A2", circumstance);
        } else if (!same_row(&frame, &batch, t)) {
            repetition_fail(
                check, JUDGE_FAIL, "A2", circumstance,
                "other bits than in the batch, though it declares batch invariance");
            ok = false;
        }
        show_rows(&frame, 0, tokens);
    }
    testee_end(check->testee, &frame, &reply);
    contents_free(&batch);
    frame_free(&frame);
    return ok;
}

void hygiene_check(slm_testee *testee, const vec_case *test, const char *digest,
                   judge_verdict *verdict)
{
    const repetition check = {testee, test, digest, verdict};
    const frame_options before = {.inputs = FRAME_START, .outputs = FRAME_START};
    const frame_options inputs = {.inputs = FRAME_SHIFTED};
    const frame_options outputs = {.outputs = FRAME_SHIFTED};

    if (!repeat(&check, NULL, true, "A3", "with finite poison in the outputs") ||
        !repeat(&check, &before, false, "X2", "with guards before every buffer") ||
        !repeat(&check, &inputs, false, "X2", "with inputs one element off") ||
        !repeat(&check, &outputs, false, "X2", "with outputs one element off") ||
        !without_taps(&check) || !in_a_row(&check) || !hygiene_beside(&check))
        return;
    for (unsigned set = 1; set <= FRAME_VIEW_SETS; set++)
        if ((testee_describe(testee)->flags & SLM_STRIDED) && !as_views(&check, set))
            return;
    if ((testee_describe(testee)->flags & SLM_BATCH_INVARIANT) &&
        is_row_wise(test->op) && test->call.n_tokens > 1)
        alone(&check);
}
