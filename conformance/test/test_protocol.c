/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_protocol.c - messages between slmoe and slmoe-host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../protocol.h"
#include "case.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Over a pipe and back. */
static json_t *carried(json_t *message)
{
    protocol_reader reader;
    json_t *received;
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    assert_true(protocol_open(&reader, ends[0]));
    assert_true(protocol_send(ends[1], message));
    assert_int_equal(protocol_receive(&reader, 10, &received), PROTOCOL_MESSAGE);
    protocol_close(&reader);
    close(ends[0]);
    close(ends[1]);
    return received;
}

static void assert_same_bits(double got, double want)
{
    if (want != want)
        assert_true(got != got);
    else
        assert_memory_equal(&got, &want, sizeof got);
}

static void a_configuration_arrives_to_the_last_bit(void **state)
{
    static const double reals[] = {1e-6,
                                   0x1.5555555555555p-2,
                                   DBL_MAX,
                                   DBL_MIN,
                                   0x0.0000000000001p-1022,
                                   -0.0,
                                   0x1.fffffffffffffp-1,
                                   (double)INFINITY,
                                   25,
                                   -(double)INFINITY,
                                   (double)NAN};

    (void)state;
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        slm_config config, back;
        json_t *message, *again;

        slm_config_profile(i % 2 ? "release" : "vanilla", &config);
        config.d_model = 7168;
        config.d_latent = SIZE_MAX;
        config.n_experts = (size_t)1 << 63;
        config.top_k = (size_t)INT64_MAX;
        config.n_shared = i;
        config.dtype = SLM_BF16;
        config.eps = reals[i];
        config.rate = -reals[i];
        message = carried(protocol_config(&config));
        assert_true(protocol_read_config(message, &back));
        json_decref(message);
        assert_same_bits(back.eps, config.eps);
        assert_same_bits(back.rate, config.rate);
        assert_int_equal(back.struct_size, sizeof back);
        assert_true(back.d_latent == SIZE_MAX && back.top_k == (size_t)INT64_MAX);
        message = protocol_config(&back);
        again = protocol_config(&config);
        assert_true(json_equal(message, again));
        json_decref(message);
        json_decref(again);
    }
}

static void any_double_arrives_to_the_last_bit(void **state)
{
    uint64_t bits = 0x9e3779b97f4a7c15u;

    (void)state;
    for (int i = 0; i < 2000; i++) {
        slm_config config = {.struct_size = sizeof config}, back;
        json_t *message;

        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(&config.eps, &bits, sizeof bits);
        message = carried(protocol_config(&config));
        assert_true(protocol_read_config(message, &back));
        json_decref(message);
        assert_same_bits(back.eps, config.eps);
    }
}

static int reads_config(const char *text)
{
    json_t *object = json_loads(text, JSON_DECODE_ANY, NULL);
    slm_config config;
    int ok;

    assert_non_null(object);
    ok = protocol_read_config(object, &config);
    json_decref(object);
    return ok;
}

static void members_of_another_kind_are_refused_and_missing_ones_are_zero(void **state)
{
    (void)state;
    assert_true(reads_config("{}"));
    assert_true(reads_config("{\"eps\":1,\"l\":3,\"unknown\":[]}"));
    assert_true(reads_config("{\"eps\":\"inf\"}"));
    assert_false(reads_config("{\"eps\":\"infinite\"}"));
    assert_false(reads_config("{\"eps\":null}"));
    assert_false(reads_config("{\"l\":3.0}"));
    assert_false(reads_config("{\"l\":\"3\"}"));
    assert_false(reads_config("{\"dtype\":\"f32\"}"));
    assert_false(reads_config("[]"));
    assert_false(reads_config("3"));
    assert_false(protocol_read_config(NULL, &(slm_config){0}));
}

static void a_declared_arithmetic_arrives_to_the_last_bit(void **state)
{
    static slm_arithmetic arithmetic = {.struct_size = sizeof arithmetic,
                                        .accumulator = 0x1p-24,
                                        .input = 0x1.8p-11,
                                        .sigmoid_ulp = 1.1,
                                        .tanh_ulp = 3,
                                        .tanh_abs = 0.1,
                                        .rsqrt_ulp = 2,
                                        .balance = 0x1p-53,
                                        .flushes_subnormals = 1};
    slm_arithmetic back;
    json_t *message;

    (void)state;
    for (int i = 0; i < SLM_STAGE_COUNT; i += 2) arithmetic.store[i] = 1.0 / (3 + i);
    message = carried(protocol_arithmetic(&arithmetic));
    assert_true(protocol_read_arithmetic(message, &back));
    json_decref(message);
    assert_memory_equal(&back, &arithmetic, sizeof back);
}

static void a_roundoff_that_is_none_is_refused(void **state)
{
    static const double bad[] = {-0x1p-24, (double)INFINITY, (double)NAN};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        slm_arithmetic arithmetic = {.accumulator = bad[i]}, back;
        json_t *message = protocol_arithmetic(&arithmetic);

        assert_false(protocol_read_arithmetic(message, &back));
        json_decref(message);
        arithmetic = (slm_arithmetic){.store[SLM_STAGE_H] = bad[i]};
        message = protocol_arithmetic(&arithmetic);
        assert_false(protocol_read_arithmetic(message, &back));
        json_decref(message);
    }
}

static void operations_go_by_name_and_unknown_names_are_of_a_newer_minor(void **state)
{
    const uint32_t offered = 1u << SLM_OP_rmsnorm | 1u << SLM_OP_load_metrics;
    json_t *array = protocol_ops(offered);
    uint32_t back;

    (void)state;
    assert_int_equal(json_array_size(array), 2);
    json_array_append_new(array, json_string("of_the_future"));
    json_array_append_new(array, json_integer(3));
    assert_true(protocol_read_ops(array, &back));
    assert_int_equal(back, offered);
    json_decref(array);
    assert_false(protocol_read_ops(NULL, &back));
}

static void statuses_go_by_name(void **state)
{
    (void)state;
    for (int i = 0; i < SLM_STATUS_COUNT; i++)
        assert_int_equal(protocol_status(slm_status_name((slm_status)i)), i);
    assert_int_equal(protocol_status("SLM_ERR_NOBODY"), SLM_STATUS_COUNT);
    assert_int_equal(protocol_status(""), SLM_STATUS_COUNT);
    assert_int_equal(protocol_status(NULL), SLM_STATUS_COUNT);
}

static void a_text_need_not_end_nor_be_text(void **state)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *want;
    } texts[] = {
        {"words", 100, "words"},
        {"words", 3, "wor"},
        {"na\xc3\xafve", 100, "na\xc3\xafve"},
        {"na\xc3\xafve", 3, "na?"},
        {"\xff\xfe.", 3, "??."},
        {"", 0, ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *text = protocol_text(texts[i].bytes, texts[i].size);

        assert_string_equal(json_string_value(text), texts[i].want);
        json_decref(text);
    }
}

static void a_frame_names_its_tensors_and_where_they_lie(void **state)
{
    static float u[] = {1, 2, 3, 4, 5, 6};
    char why[256];
    made_case made;
    json_t *message, *tensor;

    (void)state;
    case_begin(&made, SLM_OP_rmsnorm, "paper");
    made.test.config.d_latent = 3;
    made.test.call.n_tokens = 2;
    case_in(&made, "u", u);
    assert_true(frame_build_as(&made.frame, &made.test,
                               &(frame_options){.workspace_size = 100, .arena_fd = -1},
                               why));
    message = carried(protocol_frame(&made.frame));
    assert_string_equal(json_string_value(json_object_get(message, "op")), "rmsnorm");
    assert_int_equal(json_integer_value(json_object_get(message, "n_tokens")), 2);
    assert_int_equal(json_integer_value(json_object_get(message, "arena")),
                     made.frame.arena_size);
    assert_int_equal(json_array_size(json_object_get(message, "tensors")), 2);
    tensor = json_array_get(json_object_get(message, "tensors"), 1);
    assert_string_equal(json_string_value(json_object_get(tensor, "name")), "r");
    assert_string_equal(json_string_value(json_object_get(tensor, "role")), "out");
    assert_string_equal(json_string_value(json_object_get(tensor, "dtype")), "f32");
    assert_int_equal(json_integer_value(json_object_get(tensor, "bytes")), 24);
    assert_ptr_equal(made.frame.arena +
                         json_integer_value(json_object_get(tensor, "offset")),
                     frame_tensor(&made.frame, "r")->data);
    assert_int_equal(
        json_integer_value(json_array_get(json_object_get(tensor, "stride"), 0)), 3);
    tensor = json_object_get(message, "workspace");
    assert_int_equal(json_integer_value(json_object_get(tensor, "bytes")), 100);
    json_decref(message);
    case_free(&made);
}

/* ---- lines ---- */

typedef struct line_pipe {
    int in;
    protocol_reader reader;
} line_pipe;

static void open_lines(line_pipe *lines)
{
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    lines->in = ends[1];
    assert_true(protocol_open(&lines->reader, ends[0]));
}

static void close_lines(line_pipe *lines)
{
    if (lines->in >= 0) close(lines->in);
    close(lines->reader.fd);
    protocol_close(&lines->reader);
}

static void put(line_pipe *lines, const char *text)
{
    assert_int_equal(write(lines->in, text, strlen(text)), strlen(text));
}

static protocol_result next(line_pipe *lines, double seconds, int *value)
{
    json_t *message;
    const protocol_result result = protocol_receive(&lines->reader, seconds, &message);

    if (result != PROTOCOL_MESSAGE) assert_null(message);
    *value = (int)json_integer_value(json_object_get(message, "v"));
    json_decref(message);
    return result;
}

static void lines_come_one_by_one_however_they_were_cut(void **state)
{
    line_pipe lines;
    int value;

    (void)state;
    open_lines(&lines);
    put(&lines, "{\"v\":1}\n{\"v\":2}\n{\"v\"");
    assert_int_equal(next(&lines, 0, &value), PROTOCOL_MESSAGE);
    assert_int_equal(value, 1);
    assert_int_equal(next(&lines, 0, &value), PROTOCOL_MESSAGE);
    assert_int_equal(value, 2);
    assert_int_equal(next(&lines, 0, &value), PROTOCOL_LATE);
    put(&lines, ":3");
    assert_int_equal(next(&lines, 0, &value), PROTOCOL_LATE);
    put(&lines, "}\n");
    assert_int_equal(next(&lines, 0, &value), PROTOCOL_MESSAGE);
    assert_int_equal(value, 3);
    close_lines(&lines);
}

static void what_is_no_object_is_garbage_and_the_next_line_is_read(void **state)
{
    static const char *const garbage[] = {
        "words\n",    "\n",         "[1]\n",
        "3\n",        "{\"v\":}\n", "{\"v\":1} x\n",
        "\xff\xfe\n", "\"a\"\n",    "{\"v\":1,\"v\":2}\n"};

    (void)state;
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        line_pipe lines;
        int value;

        open_lines(&lines);
        put(&lines, garbage[i]);
        put(&lines, "{\"v\":7}\n");
        assert_int_equal(next(&lines, 0, &value), PROTOCOL_GARBAGE);
        assert_int_equal(next(&lines, 0, &value), PROTOCOL_MESSAGE);
        assert_int_equal(value, 7);
        close_lines(&lines);
    }
}

static void a_line_without_end_is_garbage_at_the_limit_and_not_before(void **state)
{
    char *text = malloc(PROTOCOL_LINE);
    line_pipe lines;
    int value;

    (void)state;
    assert_non_null(text);
    memset(text, ' ', PROTOCOL_LINE);
    open_lines(&lines);
    for (size_t sent = 0; sent < PROTOCOL_LINE; sent += 4096) {
        assert_int_equal(next(&lines, 0, &value), PROTOCOL_LATE);
        assert_int_equal(write(lines.in, text, 4096), 4096);
    }
    assert_int_equal(next(&lines, 0, &value), PROTOCOL_GARBAGE);
    close_lines(&lines);

    /* Spaces up to the last byte of the longest line. */
    memcpy(text + PROTOCOL_LINE - 8, "{\"v\":9}\n", 8);
    open_lines(&lines);
    for (size_t sent = 0; sent < PROTOCOL_LINE; sent += 4096) {
        assert_int_equal(next(&lines, 0, &value), PROTOCOL_LATE);
        assert_int_equal(write(lines.in, text + sent, 4096), 4096);
    }
    assert_int_equal(next(&lines, 0, &value), PROTOCOL_MESSAGE);
    assert_int_equal(value, 9);
    close_lines(&lines);
    free(text);
}

static void the_end_comes_after_the_last_whole_line(void **state)
{
    line_pipe lines;
    int value;

    (void)state;
    open_lines(&lines);
    put(&lines, "{\"v\":1}\n{\"v\":2");
    close(lines.in);
    lines.in = -1;
    assert_int_equal(next(&lines, -1, &value), PROTOCOL_MESSAGE);
    assert_int_equal(value, 1);
    assert_int_equal(next(&lines, -1, &value), PROTOCOL_END);
    assert_int_equal(next(&lines, -1, &value), PROTOCOL_END);
    close_lines(&lines);
}

static void a_deadline_is_kept_also_while_half_a_line_lies_there(void **state)
{
    const double start = stopwatch_now();
    line_pipe lines;
    int value;

    (void)state;
    open_lines(&lines);
    put(&lines, "{\"v\":");
    assert_int_equal(next(&lines, 0.05, &value), PROTOCOL_LATE);
    assert_true(stopwatch_now() - start >= 0.05);
    assert_true(stopwatch_now() - start < 5);
    close_lines(&lines);
    lines.reader.fd = -1;
    assert_true(protocol_open(&lines.reader, -1));
    assert_int_equal(next(&lines, -1, &value), PROTOCOL_END);
    protocol_close(&lines.reader);
}

static void waiting_times_fit_poll(void **state)
{
    (void)state;
    assert_int_equal(protocol_milliseconds(-1), 0);
    assert_int_equal(protocol_milliseconds(0), 0);
    assert_true(protocol_milliseconds(1e-9) > 0);
    assert_int_equal(protocol_milliseconds(1.5), 1501);
    assert_true(protocol_milliseconds(1e300) > 0);
}

static void nothing_is_sent_to_a_side_that_is_gone(void **state)
{
    line_pipe lines;

    (void)state;
    signal(SIGPIPE, SIG_IGN);
    open_lines(&lines);
    close(lines.reader.fd);
    assert_false(protocol_send(lines.in, json_object()));
    assert_false(protocol_send(-1, json_object()));
    assert_false(protocol_send(lines.in, NULL));
    close(lines.in);
    protocol_close(&lines.reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_configuration_arrives_to_the_last_bit),
        cmocka_unit_test(any_double_arrives_to_the_last_bit),
        cmocka_unit_test(members_of_another_kind_are_refused_and_missing_ones_are_zero),
        cmocka_unit_test(a_declared_arithmetic_arrives_to_the_last_bit),
        cmocka_unit_test(a_roundoff_that_is_none_is_refused),
        cmocka_unit_test(operations_go_by_name_and_unknown_names_are_of_a_newer_minor),
        cmocka_unit_test(statuses_go_by_name),
        cmocka_unit_test(a_text_need_not_end_nor_be_text),
        cmocka_unit_test(a_frame_names_its_tensors_and_where_they_lie),
        cmocka_unit_test(lines_come_one_by_one_however_they_were_cut),
        cmocka_unit_test(what_is_no_object_is_garbage_and_the_next_line_is_read),
        cmocka_unit_test(a_line_without_end_is_garbage_at_the_limit_and_not_before),
        cmocka_unit_test(the_end_comes_after_the_last_whole_line),
        cmocka_unit_test(a_deadline_is_kept_also_while_half_a_line_lies_there),
        cmocka_unit_test(waiting_times_fit_poll),
        cmocka_unit_test(nothing_is_sent_to_a_side_that_is_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
