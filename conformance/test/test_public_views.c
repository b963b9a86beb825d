/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_public_views.c - rows far apart, columns of wider tables, two
 * weights in one table, sizes past 32 bits. Public reports of X2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "every_backend.h"

#include "../judge.h"

#include <ref.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A tensor laid out anew: its first dimension has another stride. */
typedef struct relaid {
    slm_tensor *tensor; /* the argument */
    slm_tensor packed;  /* as it was    */
    unsigned char *memory;
    size_t bytes;
    size_t row; /* bytes of an element of the first dimension, packed */
} relaid;

typedef struct relaid_call {
    open_case at;
    relaid list[FRAME_MAX_BUFFERS];
    size_t n;
} relaid_call;

static void *reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* Element `i` of the first dimension, where the callee finds it. */
static unsigned char *row_at(const relaid *one, size_t i)
{
    return (unsigned char *)one->tensor->data +
           (ptrdiff_t)i * one->tensor->stride[0] *
               (ptrdiff_t)slm_dtype_size(one->packed.dtype);
}

/* Move a tensor to rows that are `stride` elements apart (of its packed width or more),
 * from `data` on. */
static void move(relaid_call *call, slm_tensor *tensor, unsigned char *data,
                 ptrdiff_t stride)
{
    relaid *one = &call->list[call->n++];

    one->tensor = tensor;
    one->packed = *tensor;
    one->row =
        slm_tensor_count(tensor) / tensor->shape[0] * slm_dtype_size(tensor->dtype);
    tensor->data = data;
    tensor->stride[0] = stride;
    for (size_t i = 0; i < tensor->shape[0]; i++)
        memcpy(row_at(one, i), (const unsigned char *)one->packed.data + i * one->row,
               one->row);
}

/* The tensor of a buffer in memory of its own, `gap` elements between its rows. 0
 * without address space. */
static int spread(relaid_call *call, const frame_buffer *buffer, size_t gap)
{
    slm_tensor *tensor;
    size_t width, bytes;
    unsigned char *memory;

    if (!buffer->field) return 1;
    tensor = frame_tensor(&call->at.frame, buffer->field->name);
    if (tensor->rank == 0 || slm_tensor_count(tensor) == 0) return 1;
    width = slm_tensor_count(tensor) / tensor->shape[0] + gap;
    bytes = tensor->shape[0] * width * slm_dtype_size(tensor->dtype);
    memory = reserve(bytes);
    if (!memory) return 0;
    if (gap < 64) memset(memory, 0xff, bytes);
    call->list[call->n].memory = memory;
    call->list[call->n].bytes = bytes;
    move(call, tensor, memory, (ptrdiff_t)width);
    return 1;
}

/* Whether nothing was written between rows that lie close. */
static int gaps_are_untouched(const relaid *one)
{
    const size_t step =
        (size_t)one->tensor->stride[0] * slm_dtype_size(one->packed.dtype);

    for (size_t i = 0; i < one->packed.shape[0]; i++)
        for (size_t b = one->row; b < step && one->memory; b++)
            if (one->memory[i * step + b] != 0xff) return 0;
    return 1;
}

/* Back to packed rows. */
static int gather(relaid_call *call, int close)
{
    int untouched = 1;

    while (call->n) {
        relaid *one = &call->list[--call->n];

        for (size_t i = 0; i < one->packed.shape[0]; i++)
            memcpy((unsigned char *)one->packed.data + i * one->row, row_at(one, i),
                   one->row);
        if (close) untouched &= gaps_are_untouched(one);
        *one->tensor = one->packed;
        if (one->memory) munmap(one->memory, one->bytes);
        one->memory = NULL;
    }
    return untouched;
}

static int is_right(relaid_call *call, const slm_backend *table)
{
    judge_verdict verdict = {0};

    judge_answer(call->at.test, &call->at.frame, call->at.reply.status,
                 &call->at.reply.error, &testee_describe(call->at.testee)->arithmetic,
                 strcmp(table->name, "ref") == 0, &verdict);
    return verdict.state == JUDGE_PASS || verdict.state == JUDGE_VACUOUS;
}

typedef enum outcome { RIGHT, WRONG, NO_MEMORY, NOT_GIVEN } outcome;

/* The case with `gap` elements between the rows of every tensor, weights too. */
static outcome judged_apart(const slm_backend *table, const vec_case *test, size_t gap)
{
    static relaid_call call;
    outcome result = RIGHT;

    memset(&call, 0, sizeof call);
    if (!open_case_begin(&call.at, table, test)) return NOT_GIVEN;
    testee_end(call.at.testee, &call.at.frame, &call.at.reply);
    frame_poison(&call.at.frame, false);
    for (size_t i = 0; i < call.at.frame.n_buffers && result == RIGHT; i++)
        if (!spread(&call, &call.at.frame.buffers[i], gap)) result = NO_MEMORY;
    testee_begin(call.at.testee, &call.at.frame, &call.at.reply);
    if (result == RIGHT) testee_call(call.at.testee, &call.at.frame, &call.at.reply);
    if (!gather(&call, gap < 64)) result = WRONG;
    if (result == RIGHT && !is_right(&call, table)) result = WRONG;
    open_case_end(&call.at);
    return result;
}

/* Every operation of a backend; how many it was given, or -1 without address space. */
static int each_apart(const slm_backend *table, size_t gap)
{
    slm_testee *testee = testee_open_table(table, false);
    int n = 0;

    assert_non_null(testee);
    for (int op = 0; op < SLM_OP_COUNT && n >= 0; op++) {
        const vec_case *test = golden_case_of(testee, (slm_op)op);
        const outcome result = test ? judged_apart(table, test, gap) : NOT_GIVEN;

        if (result == WRONG)
            fail_msg("%s: %s", slm_op_describe((slm_op)op)->name, test->id);
        if (result == RIGHT) n++;
        if (result == NO_MEMORY) n = -1;
    }
    testee_close(testee);
    return n;
}

static void columns_of_wider_tables_in_every_operation(const slm_backend *table)
{
    if (!(table->flags & SLM_STRIDED)) skip();
    assert_true(each_apart(table, 5) > 0);
}

/* ids and weights as columns 0 and 1 of a [5, 7] table; sums over 2 to 5 slots. */
static void columns_of_a_5_by_7_table(const slm_backend *table)
{
    static const char *const ids[] = {
        "permute/stable/two-slots",      "select/public-choice/four-equal-k2",
        "layer/public-combine-order/k2", "layer/public-combine-order/k3",
        "layer/public-combine-order/k4", "layer/public-combine-order/k5"};

    if (!(table->flags & SLM_STRIDED)) skip();
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        assert_int_equal(judged_apart(table, golden_case(ids[i]), 5), RIGHT);
}

enum { FAR_COUNT = 37450 };
static const size_t FAR = ((size_t)1 << 32) + 64; /* modulo 2^32 a lawful stride */

static void rows_past_32_bits_in_every_operation(const slm_backend *table)
{
    int n;

    if (!(table->flags & SLM_STRIDED)) skip();
    n = each_apart(table, FAR);
    if (n < 0) skip();
    assert_true(n > 0);
}

/* ref, but for a row stride of rmsnorm that is cut to 32 bits. */
static slm_status cut_stride(slm_handle *handle, const slm_rmsnorm_args *args,
                             slm_error *error)
{
    slm_rmsnorm_args wrong = *args;

    wrong.u.stride[0] = (int32_t)wrong.u.stride[0];
    return slm_ref_backend()->ops->rmsnorm(handle, &wrong, error);
}

/* ref, but for rows of u that are read as packed. */
static slm_status packed_rows(slm_handle *handle, const slm_rmsnorm_args *args,
                              slm_error *error)
{
    slm_rmsnorm_args wrong = *args;

    wrong.u.stride[0] = (ptrdiff_t)wrong.u.shape[1];
    return slm_ref_backend()->ops->rmsnorm(handle, &wrong, error);
}

static outcome
judged_wrong(slm_status (*rmsnorm)(slm_handle *, const slm_rmsnorm_args *, slm_error *),
             size_t gap)
{
    slm_ops ops = *slm_ref_backend()->ops;
    slm_backend table = *slm_ref_backend();

    ops.rmsnorm = rmsnorm;
    table.name = "wrong";
    table.ops = &ops;
    return judged_apart(&table, golden_case("rmsnorm/values/six-eight"), gap);
}

static void a_stride_cut_to_32_bits_is_noticed(const slm_backend *table)
{
    const outcome result = judged_wrong(cut_stride, FAR);

    (void)table;
    if (result == NO_MEMORY) skip();
    assert_int_equal(result, WRONG);
}

static void a_view_read_as_packed_is_noticed(const slm_backend *table)
{
    (void)table;
    assert_int_equal(judged_wrong(packed_rows, 5), WRONG);
}

/* ---- gate and up of one table [n, 2f, l] ---- */

static outcome judged_in_one_table(const slm_backend *table)
{
    static relaid_call call;
    float whole[3 * 4 * 4];
    slm_tensor *gate, *up;
    outcome result = WRONG;

    memset(&call, 0, sizeof call);
    if (!open_case_begin(&call.at, table,
                         golden_case("layer/public-widths/gate-and-up-of-one-table")))
        return NOT_GIVEN;
    testee_end(call.at.testee, &call.at.frame, &call.at.reply);
    frame_poison(&call.at.frame, false);
    gate = frame_tensor(&call.at.frame, "w_gate");
    up = frame_tensor(&call.at.frame, "w_up");
    move(&call, gate, (unsigned char *)whole, 2 * gate->stride[0]);
    move(&call, up, (unsigned char *)(whole + 8), 2 * up->stride[0]);
    for (int j = 0; j < 4; j++)
        assert_memory_equal(&whole[16 + j], &(float){100.0f + (float)j}, 4);
    testee_begin(call.at.testee, &call.at.frame, &call.at.reply);
    testee_call(call.at.testee, &call.at.frame, &call.at.reply);
    gather(&call, 0);
    if (is_right(&call, table)) result = RIGHT;
    open_case_end(&call.at);
    return result;
}

static void gate_and_up_may_share_a_table(const slm_backend *table)
{
    if (!(table->flags & SLM_STRIDED)) skip();
    assert_int_equal(judged_in_one_table(table), RIGHT);
}

/* ---- sizes past 32 bits ---- */

static slm_config wide(void)
{
    slm_config config;

    slm_config_profile("paper", &config);
    config.d_model = 7168;
    config.d_latent = 3584;
    config.n_experts = 896;
    config.top_k = 8;
    config.d_expert = 3072;
    config.n_shared = 2;
    config.d_shared = 3072;
    return config;
}

/* Bytes for twice the tokens are never fewer: a product that wraps would show. */
static void a_workspace_grows_past_32_bits(const slm_backend *table)
{
    const slm_config config = wide();
    slm_handle *handle = NULL;
    slm_error error;

    if (!table->workspace || !table->open) skip();
    assert_int_equal(table->open(&config, &handle, &error), SLM_OK);
    for (int op = 0; op < SLM_OP_COUNT; op++) {
        size_t before = 0;

        for (int shift = 0; shift < 12; shift++) {
            const slm_call call = {.struct_size =
                                       slm_op_describe((slm_op)op)->args_size,
                                   .n_tokens = (size_t)FAR_COUNT << shift,
                                   .n_parts = 1};
            const size_t bytes = table->workspace(handle, (slm_op)op, &call);

            assert_true(bytes >= before);
            before = bytes;
        }
    }
    table->close(handle);
}

static void counts_of_elements_are_64_bit(const slm_backend *table)
{
    static const struct {
        size_t shape[3];
        size_t count;
    } reported[] = {{{38000, 8, 7168}, 2179072000u},
                    {{896, 2048, 2048}, 3758096384u},
                    {{896, 3584, 3072}, 9865003008u},
                    {{FAR_COUNT, 8, 7168}, 2147532800u}};

    (void)table;
    for (size_t i = 0; i < sizeof reported / sizeof *reported; i++) {
        static float element;
        const slm_tensor tensor =
            slm_tensor_packed(&element, SLM_F32, 3, reported[i].shape);

        assert_int_equal(slm_tensor_count(&tensor), reported[i].count);
        assert_int_equal(tensor.stride[0], reported[i].shape[1] * reported[i].shape[2]);
    }
}

int main(void)
{
    const named_backend_test tests[] = {
        EVERY_BACKEND(columns_of_wider_tables_in_every_operation),
        EVERY_BACKEND(columns_of_a_5_by_7_table),
        EVERY_BACKEND(a_view_read_as_packed_is_noticed),
        EVERY_BACKEND(rows_past_32_bits_in_every_operation),
        EVERY_BACKEND(a_stride_cut_to_32_bits_is_noticed),
        EVERY_BACKEND(gate_and_up_may_share_a_table),
        EVERY_BACKEND(a_workspace_grows_past_32_bits),
        EVERY_BACKEND(counts_of_elements_are_64_bit),
    };

    return every_backend(SLM_VECTORS_DIR, tests, sizeof tests / sizeof *tests);
}
