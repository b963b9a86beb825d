/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_public_sweep.c - every number of tokens about the sizes of
 * blocks: 1..130, 255..258, 511..513, for two and for all of eight experts a token. L5 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "case.h"
#include "every_backend.h"

#include "../mutants/mutants.h"
#include "../seeded.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 8, MOST = 513 };

static size_t next_count(size_t tokens)
{
    return tokens == 130 ? 255 : tokens == 258 ? 511 : tokens + 1;
}

/* k distinct ids a token: a seeded shuffle of all. */
static void invent_ids(int32_t *ids, size_t tokens, size_t k)
{
    for (size_t t = 0; t < tokens; t++) {
        int32_t all[EXPERTS];

        for (int e = 0; e < EXPERTS; e++) all[e] = e;
        for (size_t q = 0; q < k; q++) {
            const int32_t j = seeded_integer(22, "ids", t * EXPERTS + q, 20);
            const size_t other = q + (size_t)(j + (1 << 20)) % (EXPERTS - q);
            const int32_t id = all[other];

            all[other] = all[q];
            ids[t * k + q] = all[q] = id;
        }
    }
}

/* What L5 says, expert by expert. */
static int is_grouped(const made_case *made, const int32_t *ids, size_t pairs)
{
    const int64_t *counts = frame_tensor(&made->frame, "counts")->data;
    const int64_t *offsets = frame_tensor(&made->frame, "offsets")->data;
    const int64_t *order = frame_tensor(&made->frame, "order")->data;
    int64_t at = 0;

    for (int e = 0; e < EXPERTS; e++) {
        const int64_t first = at;

        if (offsets[e] != at) return 0;
        for (size_t i = 0; i < pairs; i++) {
            if (ids[i] != e) continue;
            if (order[at++] != (int64_t)i) return 0;
        }
        if (counts[e] != at - first) return 0;
    }
    return offsets[EXPERTS] == (int64_t)pairs;
}

static int groups_them(const slm_backend *table, size_t tokens, size_t k)
{
    static int32_t ids[MOST * EXPERTS];
    slm_testee *testee = testee_open_table(table, true);
    testee_reply reply;
    made_case made;
    char why[TESTEE_WHY];
    int right;

    assert_non_null(testee);
    invent_ids(ids, tokens, k);
    case_begin(&made, SLM_OP_permute, "paper");
    made.test.config.n_experts = EXPERTS;
    made.test.config.top_k = k;
    made.test.call.n_tokens = tokens;
    case_in(&made, "ids", ids);
    assert_true(testee_frame(testee, &made.test, NULL, &made.frame, why));
    testee_run(testee, &made.frame, &reply);
    right = reply.status == SLM_OK && is_grouped(&made, ids, tokens * k);
    case_free(&made);
    testee_close(testee);
    return right;
}

/* The first number of tokens that goes wrong, or 0. */
static size_t first_wrong_group(const slm_backend *table)
{
    for (size_t T = 1; T <= MOST; T = next_count(T))
        if (!groups_them(table, T, 2) || !groups_them(table, T, EXPERTS)) return T;
    return 0;
}

static void permute_is_stable_for_every_number_of_tokens(const slm_backend *table)
{
    assert_int_equal(first_wrong_group(table), 0);
}

static void a_list_of_balanced_groups_is_noticed(const slm_backend *table)
{
    (void)table;
    assert_int_not_equal(first_wrong_group(slm_mutant_find("capacity-drops")), 0);
}

/* ---- layer_forward: the first T tokens of 513 ---- */

static size_t row_bytes(const open_case *at, const char *field)
{
    const slm_tensor *tensor = frame_tensor(&at->frame, field);

    return slm_tensor_count(tensor) / MOST * slm_dtype_size(tensor->dtype);
}

static void tell_of(open_case *at, size_t tokens)
{
    at->frame.call->n_tokens = tokens;
    for (size_t i = 0; i < at->frame.n_buffers; i++) {
        const frame_buffer *buffer = &at->frame.buffers[i];

        if (buffer->field && buffer->field->dims[0] == 'T')
            frame_tensor(&at->frame, buffer->field->name)->shape[0] = tokens;
    }
}

/* ids and y of T tokens of a batch of 513 against those of the whole: ids the same, y
 * the same bits or, where they may depend on the batch, within 2^-18 of the largest. */
static int rows_agree(const open_case *at, const unsigned char *const whole[2],
                      size_t tokens, int bits)
{
    const float *y = frame_tensor(&at->frame, "y")->data, *of_whole;
    const size_t n = tokens * row_bytes(at, "y") / sizeof *y;
    float largest = 0.0f;

    if (memcmp(frame_tensor(&at->frame, "ids")->data, whole[0],
               tokens * row_bytes(at, "ids")) != 0)
        return 0;
    if (bits) return memcmp(y, whole[1], n * sizeof *y) == 0;
    of_whole = (const float *)(const void *)whole[1];
    for (size_t i = 0; i < n; i++) {
        const float size = of_whole[i] < 0 ? -of_whole[i] : of_whole[i];

        if (size > largest) largest = size;
    }
    for (size_t i = 0; i < n; i++) {
        const float off = y[i] - of_whole[i];

        if (!(off <= 0x1p-18f * largest && -off <= 0x1p-18f * largest)) return 0;
    }
    return 1;
}

/* The first number of tokens whose rows are not those of the whole batch, or 0. */
static size_t first_wrong_layer(const slm_backend *table, const char *id)
{
    static const char *const fields[] = {"ids", "y"};
    const int bits = (table->flags & SLM_BATCH_INVARIANT) != 0;
    unsigned char *whole[2];
    size_t wrong = 0;
    open_case at;

    if (!open_case_begin(&at, table, golden_case(id))) return 0;
    assert_int_equal(at.test->call.n_tokens, MOST);
    assert_int_equal(open_case_call(&at), SLM_OK);
    for (int f = 0; f < 2; f++) {
        const size_t bytes = MOST * row_bytes(&at, fields[f]);

        whole[f] = malloc(bytes);
        assert_non_null(whole[f]);
        memcpy(whole[f], frame_tensor(&at.frame, fields[f])->data, bytes);
    }
    for (size_t T = 1; T <= MOST && !wrong; T = next_count(T)) {
        slm_status status;

        tell_of(&at, T);
        status = open_case_call(&at);
        tell_of(&at, MOST);
        if (status ||
            !rows_agree(&at, (const unsigned char *const[]){whole[0], whole[1]}, T,
                        bits))
            wrong = T;
    }
    for (int f = 0; f < 2; f++) free(whole[f]);
    open_case_end(&at);
    return wrong;
}

static void every_row_of_y_for_every_number_of_tokens(const slm_backend *table)
{
    assert_int_equal(
        first_wrong_layer(table, "permute/public-token-counts/layer-t513-k2"), 0);
    assert_int_equal(
        first_wrong_layer(table, "permute/public-token-counts/layer-t513-k8"), 0);
}

static void a_tail_of_a_tile_left_out_is_noticed(const slm_backend *table)
{
    (void)table;
    assert_int_equal(first_wrong_layer(slm_mutant_find("tile-tail-unwritten"),
                                       "permute/public-token-counts/layer-t513-k2"),
                     9);
}

int main(void)
{
    const named_backend_test tests[] = {
        EVERY_BACKEND(permute_is_stable_for_every_number_of_tokens),
        EVERY_BACKEND(a_list_of_balanced_groups_is_noticed),
        EVERY_BACKEND(every_row_of_y_for_every_number_of_tokens),
        EVERY_BACKEND(a_tail_of_a_tile_left_out_is_noticed),
    };

    return every_backend(SLM_VECTORS_DIR, tests, sizeof tests / sizeof *tests);
}
