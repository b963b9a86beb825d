/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_state_load.c - a balancing state is read whole, or refused.    Q8 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "state_folder.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The bytes of a saved state, changed and with a checksum that is right again. */
static void put_changed(size_t at, const void *value, size_t size)
{
    unsigned char bytes[STATE_SIZE];
    uint64_t rest = UINT64_MAX;

    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(state_get(bytes, STATE_SIZE), STATE_SIZE);
    memcpy(bytes + at, value, size);
    for (size_t i = 0; i < STATE_SIZE - 8; i++) {
        rest ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            rest = rest >> 1 ^ (rest & 1 ? 0xc96c5795d7870f42u : 0);
    }
    rest = ~rest;
    memcpy(bytes + STATE_SIZE - 8, &rest, 8);
    state_put(bytes, STATE_SIZE);
}

static void what_was_saved_comes_back_to_the_bit(void **state)
{
    static const float odd[] = {-0.0f,   0.0f,     0x1p-149f, -0x1p-149f,
                                FLT_MAX, -FLT_MAX, FLT_MIN,   1.0f / 3};
    float many[896];

    (void)state;
    assert_int_equal(state_save(odd, 8, 0, NULL), SLM_STATE_OK);
    state_expect_loaded(odd, 8, 0);
    for (size_t j = 0; j < 896; j++) many[j] = (float)j / 1024 - 0.4f;
    assert_int_equal(state_save(many, 896, INT64_MAX, NULL), SLM_STATE_OK);
    state_expect_loaded(many, 896, INT64_MAX);
    assert_int_equal(state_save(odd, 1, 1, NULL), SLM_STATE_OK);
    state_expect_loaded(odd, 1, 1);
    assert_int_equal(state_files(), 1);
}

/* Whoever writes the file in another language finds it so. */
static void the_format_is_the_one_in_the_header(void **state)
{
    static const unsigned char want[STATE_SIZE] = {
        'S', 'L',     'M', 'S', 'T', 'A',  'T', 'E', 1,    0,    0, 0, 0,    0,   0,
        0,   STATE_N, 0,   0,   0,   0,    0,   0,   0,    7,    1, 0, 0,    0,   0,
        0,   0,       0,   0,   0,   0x3f, 0,   0,   0x80, 0xbe, 0, 0, 0x80, 0xbe};
    unsigned char got[STATE_SIZE + 1];

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 263, NULL), SLM_STATE_OK);
    assert_int_equal(state_get(got, sizeof got), STATE_SIZE);
    assert_memory_equal(got, want, STATE_SIZE - 8);
}

static void a_first_start_is_told_from_a_broken_file(void **state)
{
    (void)state;
    state_expect_refused(STATE_N, SLM_STATE_MISSING, "there is no such file");
    state_put((const unsigned char *)"", 0);
    state_expect_refused(STATE_N, SLM_STATE_DAMAGED, "too short");
    state_put((const unsigned char *)"schema: slm-vector/1\n", 21);
    state_expect_refused(STATE_N, SLM_STATE_DAMAGED, "no balancing state");
}

static void every_flipped_bit_is_refused(void **state)
{
    unsigned char bytes[STATE_SIZE];

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(state_get(bytes, STATE_SIZE), STATE_SIZE);
    for (size_t bit = 0; bit < 8 * STATE_SIZE; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        state_put(bytes, STATE_SIZE);
        state_expect_refused(STATE_N, SLM_STATE_DAMAGED, "");
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    state_put(bytes, STATE_SIZE);
    state_expect_loaded(state_bias, STATE_N, 7);
}

static void every_other_length_is_refused(void **state)
{
    unsigned char bytes[2 * STATE_SIZE] = {0};

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(state_get(bytes, STATE_SIZE), STATE_SIZE);
    for (size_t size = 0; size <= 2 * STATE_SIZE; size++) {
        state_put(bytes, size);
        if (size == STATE_SIZE)
            state_expect_loaded(state_bias, STATE_N, 7);
        else
            state_expect_refused(STATE_N, SLM_STATE_DAMAGED, "");
    }
}

static void a_newer_format_is_told_as_such(void **state)
{
    static const uint32_t newer = 2, none = 0;

    (void)state;
    put_changed(8, &newer, 4);
    state_expect_refused(STATE_N, SLM_STATE_NEWER,
                         "written by a newer version: format 2, expected 1");
    put_changed(8, &none, 4);
    state_expect_refused(STATE_N, SLM_STATE_DAMAGED, "no format");
}

/* Whole by its checksum, and still not to be used. */
static void a_whole_file_must_fit(void **state)
{
    static const uint32_t reserved = 1;
    static const int64_t before_zero = -1, four = 4, far = INT64_MAX;
    const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    state_expect_refused(4, SLM_STATE_OTHER, "expected 4 experts, got 3");
    state_expect_refused(2, SLM_STATE_OTHER, "expected 2 experts, got 3");
    state_expect_refused(0, SLM_STATE_UNLAWFUL, "a state of 0 experts");
    put_changed(16, &four, 8);
    state_expect_refused(STATE_N, SLM_STATE_DAMAGED, "another size");
    put_changed(16, &far, 8);
    state_expect_refused(STATE_N, SLM_STATE_DAMAGED, "another size");
    put_changed(12, &reserved, 4);
    state_expect_refused(STATE_N, SLM_STATE_DAMAGED, "");
    put_changed(24, &before_zero, 8);
    state_expect_refused(STATE_N, SLM_STATE_UNLAWFUL, "version -1");
    for (size_t i = 0; i < 3; i++) {
        put_changed(32 + 4 * i, &bad[i], 4);
        state_expect_refused(STATE_N, SLM_STATE_UNLAWFUL, "expected a finite number");
    }
}

static void what_is_no_regular_file_is_refused_and_does_not_block(void **state)
{
    (void)state;
    assert_int_equal(mkdir(state_path, 0700), 0);
    state_expect_refused(STATE_N, SLM_STATE_SYSTEM, "is no regular file");
    assert_int_equal(rmdir(state_path), 0);
    assert_int_equal(mkfifo(state_path, 0600), 0);
    state_expect_refused(STATE_N, SLM_STATE_SYSTEM, "is no regular file");
}

static void a_path_that_cannot_be_a_state_is_refused(void **state)
{
    char kept[sizeof state_path];

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    strcpy(kept, state_path);
    snprintf(state_path, sizeof state_path, "%s/bias.state/none", state_folder);
    state_expect_refused(STATE_N, SLM_STATE_SYSTEM, "cannot be opened");
    strcpy(state_path, kept);
    assert_int_equal(truncate(state_path, (1 << 30) + 1),
                     0); /* a hole: takes no room */
    state_expect_refused(STATE_N, SLM_STATE_DAMAGED,
                         "is longer than any balancing state");
}

static void every_status_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(slm_state_status_name(SLM_STATE_OK), "SLM_STATE_OK");
    assert_string_equal(slm_state_status_name(SLM_STATE_UNLAWFUL),
                        "SLM_STATE_UNLAWFUL");
    assert_string_equal(slm_state_status_name((slm_state_status)-1), "unknown status");
    assert_string_equal(slm_state_status_name(SLM_STATE_STATUS_COUNT),
                        "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STATE_TEST(what_was_saved_comes_back_to_the_bit),
        STATE_TEST(the_format_is_the_one_in_the_header),
        STATE_TEST(a_first_start_is_told_from_a_broken_file),
        STATE_TEST(every_flipped_bit_is_refused),
        STATE_TEST(every_other_length_is_refused),
        STATE_TEST(a_newer_format_is_told_as_such),
        STATE_TEST(a_whole_file_must_fit),
        STATE_TEST(what_is_no_regular_file_is_refused_and_does_not_block),
        STATE_TEST(a_path_that_cannot_be_a_state_is_refused),
        cmocka_unit_test(every_status_has_a_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
