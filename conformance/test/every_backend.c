/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/every_backend.c - tests that run once for each built-in backend. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "every_backend.h"

#include "../registry.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 128 };

typedef struct pairing {
    const slm_backend *table;
    backend_test *run;
    char name[96];
} pairing;

static void run_pairing(void **state)
{
    const pairing *at = *state;

    if (!at->table) skip();
    at->run(at->table);
}

static const char *folder;

int every_backend(const char *vectors, const named_backend_test *tests, size_t n)
{
    static pairing pairs[MOST];
    struct CMUnitTest list[MOST] = {0};
    size_t count = 0;
    const char *name;
    int failed;

    folder = vectors;
    for (size_t i = 0; (name = registry_name(i)); i++) {
        const slm_backend *table = registry_find(name);

        for (size_t j = 0; j < n && count < MOST; j++, count++) {
            pairs[count] = (pairing){.table = table, .run = tests[j].run};
            snprintf(pairs[count].name, sizeof pairs[count].name, "%s %s", name,
                     tests[j].name);
            list[count] = (struct CMUnitTest){.name = pairs[count].name,
                                              .test_func = run_pairing,
                                              .initial_state = &pairs[count]};
        }
    }
    failed = _cmocka_run_group_tests("every_backend", list, count, NULL, NULL);
    return count == 0 || failed != 0;
}

static const vec_set *golden_set(void)
{
    static vec_set *set;
    vec_error error;

    if (!set) set = vec_load(folder, &error);
    if (!set) fail_msg("%s: %s", error.path, error.what);
    return set;
}

const vec_case *golden_case(const char *id)
{
    const vec_set *set = golden_set();

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++)
            if (strcmp(set->families[i].cases[j].id, id) == 0)
                return &set->families[i].cases[j];
    fail_msg("no vector %s", id);
    return NULL;
}

static int has_tokens(slm_op op)
{
    const slm_op_info *info = slm_op_describe(op);

    for (size_t i = 0; i < info->n_fields; i++)
        if (info->fields[i].dims[0] == 'T') return 1;
    return 0;
}

const vec_case *golden_case_of(slm_testee *testee, slm_op op)
{
    const vec_set *set = golden_set();
    const size_t least = has_tokens(op) ? 2 : 0;
    char reason[256];

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++) {
            const vec_case *test = &set->families[i].cases[j];

            if (test->op == op && test->tier != VEC_FULL && test->n_outcomes == 1 &&
                test->outcomes->status == SLM_OK && test->call.n_tokens >= least &&
                testee_offers(testee, test, reason))
                return test;
        }
    return NULL;
}

/* Whether an output is input, too. */
static int is_inout(const frame_buffer *buffer)
{
    return buffer->field && buffer->field->role == SLM_ROLE_INOUT;
}

int open_case_begin(open_case *at, const slm_backend *table, const vec_case *test)
{
    char reason[256];

    memset(at, 0, sizeof *at);
    at->testee = testee_open_table(table, false);
    assert_non_null(at->testee);
    at->test = test;
    if (!test || !testee_offers(at->testee, test, reason)) {
        testee_close(at->testee);
        return 0;
    }
    assert_true(testee_frame(at->testee, test, NULL, &at->frame, at->reply.why));
    for (size_t i = 0; i < at->frame.n_buffers; i++) {
        const frame_buffer *buffer = &at->frame.buffers[i];

        if (!is_inout(buffer)) continue;
        at->given[i] = malloc(buffer->bytes + 1);
        assert_non_null(at->given[i]);
        memcpy(at->given[i], buffer->tensor.data, buffer->bytes);
    }
    testee_begin(at->testee, &at->frame, &at->reply);
    assert_int_equal(at->reply.outcome, TESTEE_RETURNED);
    assert_int_equal(at->reply.status, SLM_OK);
    return 1;
}

void open_case_end(open_case *at)
{
    testee_end(at->testee, &at->frame, &at->reply);
    for (size_t i = 0; i < FRAME_MAX_BUFFERS; i++) free(at->given[i]);
    frame_free(&at->frame);
    testee_close(at->testee);
}

static slm_status call_now(open_case *at)
{
    for (size_t i = 0; i < at->frame.n_buffers; i++) {
        const frame_buffer *buffer = &at->frame.buffers[i];

        if (at->given[i] && buffer->tensor.data)
            memcpy(buffer->tensor.data, at->given[i], buffer->bytes);
    }
    testee_call(at->testee, &at->frame, &at->reply);
    assert_int_equal(at->reply.outcome, TESTEE_RETURNED);
    return at->reply.status;
}

slm_status open_case_call(open_case *at)
{
    frame_poison(&at->frame, false);
    return call_now(at);
}

slm_status open_case_call_onto(open_case *at, int old_byte)
{
    for (size_t i = 0; i < at->frame.n_buffers; i++) {
        const frame_buffer *buffer = &at->frame.buffers[i];

        if (buffer->field && (!buffer->output || is_inout(buffer))) continue;
        if (buffer->tensor.data) memset(buffer->tensor.data, old_byte, buffer->bytes);
    }
    return call_now(at);
}

int fresh_digest(const slm_backend *table, const vec_case *test, char *digest)
{
    open_case at;

    if (!open_case_begin(&at, table, test)) return 0;
    assert_int_equal(open_case_call(&at), SLM_OK);
    frame_digest(&at.frame, digest);
    open_case_end(&at);
    return 1;
}
