/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_balancing_steps.c - training steps over every built-in backend:
 * however a step is cut, interrupted and repeated, the bias is the same to the bit.
 *                                                                     Q3, Q4, Q5, Q8 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slm/backend.h>
#include <slm/state.h>

#include "../registry.h"

enum { N = 7, K = 2, B = 200, TOKENS = 24, STEPS = 5, ROOM = 64 };

/* A layer in training: the state of its balancing, and a backend to keep it. */
typedef struct trainer {
    const slm_backend *table;
    slm_handle *handle;
    slm_config config;
    float bias[N];
    int64_t stamp[4];
    int64_t hist[N * B];
    void *workspace;
    slm_error error;
} trainer;

static void open_trainer(trainer *t, const slm_backend *table)
{
    memset(t, 0, sizeof *t);
    t->table = table;
    slm_config_profile("paper", &t->config);
    t->config.n_experts = N;
    t->config.top_k = K;
    t->config.n_bins = B;
    assert_int_equal(table->open(&t->config, &t->handle, &t->error), SLM_OK);
    t->stamp[SLM_STAMP_CHECKSUM] = slm_checksum(t->bias, N);
}

static void close_trainer(trainer *t)
{
    t->table->close(t->handle);
}

static void begin_call(trainer *t, slm_op op, slm_call *call, size_t size)
{
    call->struct_size = size;
    call->workspace_size =
        t->table->workspace ? t->table->workspace(t->handle, op, call) : 0;
    call->workspace = aligned_alloc(64, (call->workspace_size + 64) / 64 * 64);
    assert_non_null(call->workspace);
}

static slm_tensor line(void *data, slm_dtype dtype, size_t n)
{
    return slm_tensor_packed(data, dtype, 1, &n);
}

static slm_tensor table_of(void *data, slm_dtype dtype, size_t rows, size_t cols)
{
    return slm_tensor_packed(data, dtype, 2, (size_t[]){rows, cols});
}

/* A batch as a forward pass leaves it: scores, and which rows are padding. */
typedef struct batch {
    size_t n;
    float score[ROOM * N];
    int32_t mask[ROOM];
    int has_mask;
} batch;

/* The same for every bias: what a router makes of tokens does not depend on it. */
static void draw_row(float *row, uint64_t seed)
{
    for (size_t j = 0; j < N; j++) {
        uint64_t word = (seed * N + j + 1) * 0x9e3779b97f4a7c15u;

        word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
        word = (word ^ word >> 27) * 0x94d049bb133111ebu;
        row[j] = (float)(word >> 44) / 0x1p20f * (j < 2 ? 1.0f : 0.75f);
    }
}

/* Tokens first .. first + n - 1 of a step; `padding` rows of NaN among them. */
static batch make_batch(int step, size_t first, size_t n, size_t padding)
{
    batch made = {.has_mask = padding > 0};

    assert_true(n + padding < ROOM);
    for (size_t i = 0; made.n < n + padding; made.n++) {
        const size_t left = n + padding - made.n;

        if (i == n || (made.n % 3 == 1 && left > n - i)) {
            for (size_t j = 0; j < N; j++) made.score[made.n * N + j] = NAN;
            continue;
        }
        draw_row(&made.score[made.n * N], (uint64_t)step * TOKENS + first + i++);
        made.mask[made.n] = 1;
    }
    return made;
}

static slm_status observe(trainer *t, batch *from, slm_mode mode, int64_t version,
                          int64_t checksum, int64_t micro_batch)
{
    int64_t ticket[4] = {mode, version, checksum, micro_batch};
    slm_qb_observe_args args = {.call = {.n_tokens = from->n},
                                .score = table_of(from->score, SLM_F32, from->n, N),
                                .bias = line(t->bias, SLM_F32, N),
                                .ticket = line(ticket, SLM_I64, 4),
                                .stamp = line(t->stamp, SLM_I64, 4),
                                .hist = table_of(t->hist, SLM_I64, N, B)};
    slm_status status;

    if (from->has_mask) args.mask = line(from->mask, SLM_I32, from->n);
    begin_call(t, SLM_OP_qb_observe, &args.call, sizeof args);
    status = slm_check(SLM_OP_qb_observe, &t->config, &args, &t->error);
    if (!status) status = t->table->ops->qb_observe(t->handle, &args, &t->error);
    free(args.call.workspace);
    return status;
}

/* With the ticket of a forward pass that used the bias in force. */
static void pass(trainer *t, batch *from, slm_mode mode, int64_t micro_batch)
{
    if (observe(t, from, mode, t->stamp[SLM_STAMP_VERSION],
                t->stamp[SLM_STAMP_CHECKSUM], micro_batch))
        fail_msg("%s[%zu]: %s", t->error.field, t->error.index, t->error.expected);
}

static void commit(trainer *t)
{
    float new_bias[N];
    slm_qb_hist_solve_args solve = {
        .call = {.n_tokens = (size_t)t->stamp[SLM_STAMP_TOKENS]},
        .hist = table_of(t->hist, SLM_I64, N, B),
        .bias = line(t->bias, SLM_F32, N),
        .new_bias = line(new_bias, SLM_F32, N)};
    slm_qb_commit_args args = {.new_bias = line(new_bias, SLM_F32, N),
                               .bias = line(t->bias, SLM_F32, N),
                               .stamp = line(t->stamp, SLM_I64, 4),
                               .hist = table_of(t->hist, SLM_I64, N, B)};

    begin_call(t, SLM_OP_qb_hist_solve, &solve.call, sizeof solve);
    assert_int_equal(slm_check(SLM_OP_qb_hist_solve, &t->config, &solve, &t->error),
                     SLM_OK);
    assert_int_equal(t->table->ops->qb_hist_solve(t->handle, &solve, &t->error),
                     SLM_OK);
    free(solve.call.workspace);
    begin_call(t, SLM_OP_qb_commit, &args.call, sizeof args);
    assert_int_equal(slm_check(SLM_OP_qb_commit, &t->config, &args, &t->error), SLM_OK);
    assert_int_equal(t->table->ops->qb_commit(t->handle, &args, &t->error), SLM_OK);
    free(args.call.workspace);
    assert_memory_equal(t->bias, new_bias, sizeof new_bias);
    assert_int_equal(t->stamp[SLM_STAMP_CHECKSUM], slm_checksum(new_bias, N));
    assert_int_equal(t->stamp[SLM_STAMP_MICRO_BATCHES], 0);
    assert_int_equal(t->stamp[SLM_STAMP_TOKENS], 0);
    for (size_t i = 0; i < (size_t)N * B; i++) assert_int_equal(t->hist[i], 0);
}

/* A run as it should be thought of: each step one batch, and nothing else. */
static void plain_run(const slm_backend *table, float bias[STEPS][N])
{
    trainer t;

    open_trainer(&t, table);
    for (int step = 0; step < STEPS; step++) {
        batch whole = make_batch(step, 0, TOKENS, 0);

        pass(&t, &whole, SLM_MODE_TRAINING, 0);
        commit(&t);
        memcpy(bias[step], t.bias, sizeof t.bias);
        assert_int_equal(t.stamp[SLM_STAMP_VERSION], step + 1);
    }
    close_trainer(&t);
}

/* An evaluation, far larger than what it falls among, and rubbish in its padding. */
static void evaluate(trainer *t)
{
    batch odd = {.n = ROOM - 1, .has_mask = 1};

    for (size_t i = 0; i < odd.n; i++)
        for (size_t j = 0; j < N; j++)
            odd.score[i * N + j] = i % 5 ? (float)(j == 6) : NAN;
    pass(t, &odd, SLM_MODE_EVALUATION, 0);
}

/* How a step is cut into micro-batches: sizes up to the first -1. */
static const int cuts[][TOKENS + 2] = {
    {TOKENS, -1},
    {1, TOKENS - 1, -1},
    {0, 7, 0, TOKENS - 7, 0, -1},
    {8, 8, 8, -1},
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1}};
enum { CUTS = sizeof cuts / sizeof *cuts };

/* Micro-batches of a step up to `end` of them (all: -1), each evaluated after, run again
 * for its backward pass, and given once more. */
static void pass_step(trainer *t, int step, const int *cut, int end)
{
    size_t first = 0;

    for (int64_t i = 0; cut[i] >= 0 && i != end; i++) {
        batch part = make_batch(step, first, (size_t)cut[i], (size_t)(step + i) % 4);

        evaluate(t);
        pass(t, &part, SLM_MODE_TRAINING, i);
        pass(t, &part, SLM_MODE_RECOMPUTATION, i);
        pass(t, &part, SLM_MODE_TRAINING, i);
        first += (size_t)cut[i];
    }
}

/* The process ends in the middle of a step; another restores the state and begins the
 * step anew. */
static void restart(trainer *t, const char *path)
{
    const slm_backend *table = t->table;
    slm_state_error error;

    if (slm_state_save(path, N, t->bias, t->stamp, &error)) fail_msg("%s", error.text);
    close_trainer(t);
    open_trainer(t, table);
    if (slm_state_load(path, N, t->bias, t->stamp, &error)) fail_msg("%s", error.text);
    assert_int_equal(t->stamp[SLM_STAMP_MICRO_BATCHES], 0);
}

static void any_cut_gives_the_bias_of_the_plain_run(const slm_backend *table)
{
    float want[STEPS][N];
    char path[] = "/tmp/slm-steps-XXXXXX";
    const int file = mkstemp(path);

    assert_true(file >= 0);
    close(file);
    plain_run(table, want);
    for (int step = 1; step < STEPS; step++) /* or nothing would be shown */
        assert_memory_not_equal(want[step], want[step - 1], sizeof *want);
    for (int c = 0; c < CUTS; c++) {
        trainer t;

        open_trainer(&t, table);
        for (int step = 0; step < STEPS; step++) {
            if (step == 2 || step == 3) { /* ends within the step, or at its start */
                pass_step(&t, step, cuts[(c + 1) % CUTS], step == 2 ? 2 : 0);
                restart(&t, path);
            }
            pass_step(&t, step, cuts[(c + step) % CUTS], -1);
            assert_int_equal(t.stamp[SLM_STAMP_TOKENS], TOKENS);
            commit(&t);
            assert_memory_equal(t.bias, want[step], sizeof t.bias);
            assert_int_equal(t.stamp[SLM_STAMP_VERSION], step + 1);
        }
        close_trainer(&t);
    }
    unlink(path);
}

/* The same micro-batch under a new number is a new one: the bias becomes another. */
static void what_is_counted_twice_shows(const slm_backend *table)
{
    batch first = make_batch(0, 0, 8, 0), rest = make_batch(0, 8, 16, 0);
    float want[STEPS][N];
    trainer t;

    plain_run(table, want);
    open_trainer(&t, table);
    pass(&t, &first, SLM_MODE_TRAINING, 0);
    pass(&t, &first, SLM_MODE_TRAINING, 1);
    pass(&t, &rest, SLM_MODE_TRAINING, 2);
    assert_int_equal(t.stamp[SLM_STAMP_TOKENS], TOKENS + 8);
    commit(&t);
    assert_memory_not_equal(t.bias, want[0], sizeof *want);
    close_trainer(&t);
}

/* What was routed with the bias before is refused, and changes nothing. */
static void a_batch_of_the_step_before_is_refused(const slm_backend *table)
{
    batch whole = make_batch(0, 0, TOKENS, 0);
    int64_t stamp[4], old;
    trainer t;

    open_trainer(&t, table);
    old = t.stamp[SLM_STAMP_CHECKSUM];
    pass(&t, &whole, SLM_MODE_TRAINING, 0);
    commit(&t);
    memcpy(stamp, t.stamp, sizeof stamp);
    assert_int_equal(observe(&t, &whole, SLM_MODE_TRAINING, 0, old, 0), SLM_ERR_DOMAIN);
    assert_string_equal(t.error.field, "ticket");
    assert_int_equal(t.error.index, SLM_TICKET_VERSION);
    assert_int_equal(observe(&t, &whole, SLM_MODE_TRAINING, 1, old, 0), SLM_ERR_DOMAIN);
    assert_int_equal(t.error.index, SLM_TICKET_CHECKSUM);
    assert_int_equal(observe(&t, &whole, SLM_MODE_TRAINING, 1, stamp[1], 1),
                     SLM_ERR_DOMAIN);
    assert_int_equal(t.error.index, SLM_TICKET_MICRO_BATCH);
    assert_memory_equal(t.stamp, stamp, sizeof stamp);
    close_trainer(&t);
}

/* The sign of a zero is a bit like any other. */
static void a_commit_keeps_every_bit(const slm_backend *table)
{
    static const float bits[N] = {
        -0.0f, 0x1p-149f, -0x1p-149f, 0x1.fffffep127f, -0x1.fffffep127f, 0.0f, 0.1f};
    float new_bias[N];
    trainer t;

    memcpy(new_bias, bits, sizeof bits);
    open_trainer(&t, table);
    slm_qb_commit_args args = {.new_bias = line(new_bias, SLM_F32, N),
                               .bias = line(t.bias, SLM_F32, N),
                               .stamp = line(t.stamp, SLM_I64, 4),
                               .hist = table_of(t.hist, SLM_I64, N, B)};

    begin_call(&t, SLM_OP_qb_commit, &args.call, sizeof args);
    assert_int_equal(table->ops->qb_commit(t.handle, &args, &t.error), SLM_OK);
    free(args.call.workspace);
    assert_memory_equal(t.bias, bits, sizeof bits);
    assert_int_equal(t.stamp[SLM_STAMP_CHECKSUM], slm_checksum(bits, N));
    close_trainer(&t);
}

static void on_every_backend(void (*test)(const slm_backend *))
{
    size_t n = 0;

    for (size_t i = 0; registry_name(i); i++) {
        const slm_backend *table = registry_find(registry_name(i));

        if (!table || !table->ops->qb_observe || !table->ops->qb_commit) continue;
        test(table);
        n++;
    }
    assert_true(n > 0);
}

#define ON_EVERY_BACKEND(name)                                                         \
    static void name##_on_every_backend(void **state)                                  \
    {                                                                                  \
        (void)state;                                                                   \
        on_every_backend(name);                                                        \
    }

ON_EVERY_BACKEND(any_cut_gives_the_bias_of_the_plain_run)
ON_EVERY_BACKEND(what_is_counted_twice_shows)
ON_EVERY_BACKEND(a_batch_of_the_step_before_is_refused)
ON_EVERY_BACKEND(a_commit_keeps_every_bit)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_gives_the_bias_of_the_plain_run_on_every_backend),
        cmocka_unit_test(what_is_counted_twice_shows_on_every_backend),
        cmocka_unit_test(a_batch_of_the_step_before_is_refused_on_every_backend),
        cmocka_unit_test(a_commit_keeps_every_bit_on_every_backend),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
