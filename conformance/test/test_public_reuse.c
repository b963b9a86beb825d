/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_public_reuse.c - one handle called again and again: the same
 * bits, whatever lay in memory, after an empty batch, under a bias that changes no
 * choice. Public reports of A2, A3, R5 and R3. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "every_backend.h"

#include "../mutants/mutants.h"

#include <stdlib.h>
#include <string.h>

enum { CALLS = 20 };

static int is_deterministic(const slm_backend *table)
{
    return (table->flags & SLM_DETERMINISTIC) != 0;
}

/* ---- the same bits on each of twenty calls ---- */

static int same_bits_of_twenty(const slm_backend *table, const vec_case *test)
{
    open_case at;
    char first[65], again[65];
    int same = 1;

    if (!open_case_begin(&at, table, test)) return 1;
    for (int i = 0; i < CALLS; i++) {
        assert_int_equal(open_case_call(&at), SLM_OK);
        frame_digest(&at.frame, i == 0 ? first : again);
        if (i && strcmp(first, again) != 0) same = 0;
    }
    open_case_end(&at);
    return same;
}

static void twenty_calls_give_the_same_bits(const slm_backend *table)
{
    static const char *const ids[] = {
        "layer/public-combine-order/t256", "select/public-choice/zeros-n384-k6",
        "select/public-choice/four-equal-k4", "route/integer-ties/rows-in-pairs"};

    if (!is_deterministic(table)) skip();
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        assert_true(same_bits_of_twenty(table, golden_case(ids[i])));
}

static void a_sum_in_another_order_is_noticed(const slm_backend *table)
{
    (void)table;
    assert_false(same_bits_of_twenty(slm_mutant_find("order-by-call"),
                                     golden_case("layer/public-combine-order/t24")));
}

/* ---- the same tokens inside another batch ---- */

/* Rows of x turned by one: row t moves to (t + 1) mod T. */
static void turn(open_case *at, const char *field)
{
    const slm_tensor *tensor = frame_tensor(&at->frame, field);
    const size_t rows = tensor->shape[0];
    const size_t row = slm_tensor_count(tensor) / rows * slm_dtype_size(tensor->dtype);
    unsigned char *data = tensor->data, *last = malloc(row);

    assert_non_null(last);
    memcpy(last, data + (rows - 1) * row, row);
    memmove(data + row, data, (rows - 1) * row);
    memcpy(data, last, row);
    free(last);
}

static int same_bits_in_another_batch(const slm_backend *table)
{
    open_case at;
    char before[65], after[65];

    if (!open_case_begin(&at, table, golden_case("layer/public-combine-order/t24")))
        return 1;
    assert_int_equal(open_case_call(&at), SLM_OK);
    for (size_t i = 0; i < at.frame.n_buffers; i++)
        if (at.frame.buffers[i].output && at.frame.buffers[i].field)
            turn(&at, at.frame.buffers[i].field->name);
    frame_digest(&at.frame, before);
    turn(&at, "x");
    assert_int_equal(open_case_call(&at), SLM_OK);
    frame_digest(&at.frame, after);
    open_case_end(&at);
    return strcmp(before, after) == 0;
}

static void a_token_keeps_its_bits_in_another_batch(const slm_backend *table)
{
    if (!(table->flags & SLM_BATCH_INVARIANT)) skip();
    assert_true(same_bits_in_another_batch(table));
}

static void swapped_rows_are_noticed(const slm_backend *table)
{
    (void)table;
    assert_false(same_bits_in_another_batch(slm_mutant_find("tokens-swapped")));
}

/* ---- old bytes of outputs and workspace ---- */

static int bits_depend_on_old_bytes(const slm_backend *table, const vec_case *test)
{
    static const int old[] = {0xff, 0x00, 0x7f, 0x3f};
    open_case at;
    char first[65], again[65];
    int depend = 0;

    if (!open_case_begin(&at, table, test)) return 0;
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        assert_int_equal(open_case_call_onto(&at, old[i]), SLM_OK);
        frame_digest(&at.frame, i == 0 ? first : again);
        if (i && strcmp(first, again) != 0) depend = 1;
    }
    open_case_end(&at);
    return depend;
}

/* Each operation that it offers, on a vector of its own; how many there were. */
static int each_operation(const slm_backend *table,
                          int check(const slm_backend *, const vec_case *), int want)
{
    slm_testee *testee = testee_open_table(table, false);
    int n = 0;

    assert_non_null(testee);
    for (int op = 0; op < SLM_OP_COUNT; op++) {
        const vec_case *test = golden_case_of(testee, (slm_op)op);

        if (!test) continue;
        n++;
        if (check(table, test) != want)
            fail_msg("%s: %s", slm_op_describe((slm_op)op)->name, test->id);
    }
    testee_close(testee);
    return n;
}

static void old_bytes_do_not_matter_in_any_operation(const slm_backend *table)
{
    if (!is_deterministic(table)) skip();
    assert_true(each_operation(table, bits_depend_on_old_bytes, 0) > 0);
}

static void old_bytes_that_matter_are_noticed(const slm_backend *table)
{
    (void)table;
    assert_true(bits_depend_on_old_bytes(slm_mutant_find("stale-workspace"),
                                         golden_case("layer/profiles/paper")));
    assert_true(bits_depend_on_old_bytes(slm_mutant_find("output-accumulated"),
                                         golden_case("layer/profiles/paper")));
}

/* ---- no tokens, then tokens ---- */

static int is_of_tokens(const slm_field *field)
{
    return field && (field->dims[0] == 'T' || field->dims[0] == 'q');
}

/* Tell the callee of no tokens and no memory for them; returns how many tensors. */
static size_t hide_tokens(open_case *at)
{
    size_t n = 0;

    at->frame.call->n_tokens = 0;
    for (size_t i = 0; i < at->frame.n_buffers; i++) {
        slm_tensor *tensor;

        if (!is_of_tokens(at->frame.buffers[i].field)) continue;
        tensor = frame_tensor(&at->frame, at->frame.buffers[i].field->name);
        tensor->shape[0] = 0;
        tensor->data = NULL;
        n++;
    }
    return n;
}

static void show_tokens(open_case *at)
{
    at->frame.call->n_tokens = at->test->call.n_tokens;
    for (size_t i = 0; i < at->frame.n_buffers; i++)
        if (is_of_tokens(at->frame.buffers[i].field))
            *frame_tensor(&at->frame, at->frame.buffers[i].field->name) =
                at->frame.buffers[i].tensor;
}

/* Counts and biases in force that an empty batch must leave alone. */
static int keeps_its_state(const open_case *at)
{
    for (size_t i = 0; i < at->frame.n_buffers; i++) {
        const frame_buffer *buffer = &at->frame.buffers[i];

        if (at->given[i] && strcmp(buffer->field->name, "stamp") != 0 &&
            memcmp(buffer->tensor.data, at->given[i], buffer->bytes) != 0)
            return 0;
    }
    return 1;
}

static int survives_an_empty_batch(const slm_backend *table, const vec_case *test)
{
    open_case at;
    char fresh[65], after[65];
    int ok = 1;

    if (!fresh_digest(table, test, fresh) || !open_case_begin(&at, table, test))
        return 1;
    if (hide_tokens(&at) > 0)
        ok = open_case_call(&at) == SLM_OK && keeps_its_state(&at);
    show_tokens(&at);
    ok = ok && open_case_call(&at) == SLM_OK;
    frame_digest(&at.frame, after);
    open_case_end(&at);
    return ok && (!is_deterministic(table) || strcmp(fresh, after) == 0);
}

static void no_tokens_then_tokens_in_every_operation(const slm_backend *table)
{
    assert_true(each_operation(table, survives_an_empty_batch, 1) > 0);
}

static void refusing_an_empty_batch_is_noticed(const slm_backend *table)
{
    (void)table;
    assert_false(survives_an_empty_batch(slm_mutant_find("empty-batch-fails"),
                                         golden_case("layer/profiles/paper")));
}

/* ---- a bias that changes no choice ---- */

static void *copy_of(const open_case *at, const char *field, size_t *bytes)
{
    const slm_tensor *tensor = frame_tensor(&at->frame, field);
    void *copy;

    *bytes = slm_tensor_count(tensor) * slm_dtype_size(tensor->dtype);
    copy = malloc(*bytes + 1);
    assert_non_null(copy);
    memcpy(copy, tensor->data, *bytes);
    return copy;
}

/* Whether each bias that is raised by 1e-4 without another choice keeps the bits of
 * weight and y; *n counts those biases. */
static int gradient_of_bias_is_zero(const slm_backend *table, size_t *n)
{
    open_case at;
    size_t size[3];
    void *first[3];
    float *bias;
    int zero = 1;
    static const char *const fields[] = {"ids", "weight", "y"};

    *n = 0;
    if (!open_case_begin(&at, table, golden_case("layer/loads/bias-zero"))) return 1;
    assert_int_equal(open_case_call(&at), SLM_OK);
    for (int f = 0; f < 3; f++) first[f] = copy_of(&at, fields[f], &size[f]);
    bias = frame_tensor(&at.frame, "bias")->data;
    for (size_t e = 0; e < at.frame.config.n_experts; e++) {
        const float old = bias[e];

        bias[e] = old + 1e-4f;
        assert_int_equal(open_case_call(&at), SLM_OK);
        bias[e] = old;
        if (memcmp(frame_tensor(&at.frame, "ids")->data, first[0], size[0]) != 0)
            continue;
        ++*n;
        for (int f = 1; f < 3; f++)
            zero &= memcmp(frame_tensor(&at.frame, fields[f])->data, first[f],
                           size[f]) == 0;
    }
    for (int f = 0; f < 3; f++) free(first[f]);
    open_case_end(&at);
    return zero;
}

static void a_bias_that_changes_no_choice_changes_no_bit(const slm_backend *table)
{
    size_t n;

    if (!is_deterministic(table)) skip();
    assert_true(gradient_of_bias_is_zero(table, &n));
    assert_true(n > 0);
}

static void a_bias_in_the_weights_is_noticed(const slm_backend *table)
{
    size_t n;

    (void)table;
    assert_false(
        gradient_of_bias_is_zero(slm_mutant_find("bias-leaks-into-weights"), &n));
}

int main(void)
{
    const named_backend_test tests[] = {
        EVERY_BACKEND(twenty_calls_give_the_same_bits),
        EVERY_BACKEND(a_sum_in_another_order_is_noticed),
        EVERY_BACKEND(a_token_keeps_its_bits_in_another_batch),
        EVERY_BACKEND(swapped_rows_are_noticed),
        EVERY_BACKEND(old_bytes_do_not_matter_in_any_operation),
        EVERY_BACKEND(old_bytes_that_matter_are_noticed),
        EVERY_BACKEND(no_tokens_then_tokens_in_every_operation),
        EVERY_BACKEND(refusing_an_empty_batch_is_noticed),
        EVERY_BACKEND(a_bias_that_changes_no_choice_changes_no_bit),
        EVERY_BACKEND(a_bias_in_the_weights_is_noticed),
    };

    return every_backend(SLM_VECTORS_DIR, tests, sizeof tests / sizeof *tests);
}
