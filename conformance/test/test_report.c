/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_report.c - what reports say, and that they say it whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../report.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A run of two cases: one passes and printed, one fails in its second element. */
static char *clauses[] = {(char[]){"L2"}, (char[]){"R5"}};
static const vec_family family = {.name = (char[]){"rmsnorm/made"},
                                  .about = (char[]){"made"}};
static const vec_case good = {.family = &family,
                              .id = (char[]){"rmsnorm/made/good"},
                              .op = SLM_OP_rmsnorm,
                              .provenance = VEC_HAND,
                              .n_clauses = 2,
                              .clauses = clauses};
static const vec_case bad = {.family = &family,
                             .id = (char[]){"rmsnorm/made/bad"},
                             .op = SLM_OP_rmsnorm,
                             .provenance = VEC_ORACLE,
                             .n_clauses = 1,
                             .clauses = clauses};
static const judge_verdict passed = {
    .state = JUDGE_PASS,
    .n_stages = 1,
    .stages = {{.name = "r", .checked = 6, .used = 0.25}},
    .forced = 2,
    .tie = 1,
    .controls = {[JUDGE_ZEROS] = JUDGE_NULL_FAILS, [JUDGE_ROTATED] = JUDGE_NULL_SAME},
    .seconds = 0.5,
    .output = "a \"word\"\nand <another> & more"};
static const judge_verdict failed = {
    .state = JUDGE_FAIL,
    .n_stages = 1,
    .stages = {{.name = "r", .checked = 6, .failed = 1, .used = (double)INFINITY}},
    .clause = "L2",
    .stage = "r",
    .place = "r[0,1]",
    .got = "nan",
    .want = "0x1p-2 (0.25) +- 0x1p-26",
    .multiple = (double)INFINITY,
    .nearest = "norm-missing",
    .n_alike = 2};
static const judge_verdict crashed = {.state = JUDGE_CRASH,
                                      .reason = "died of \"signal\" <11> & more"};
static const testee_about about = {
    .name = "made", .version = "0.1", .abi_major = 1, .certifiable = true};
static const vec_set vectors = {.sha256 = "0123456789abcdef"};
static const report_run run = {.backend = "./made.so",
                               .about = &about,
                               .vectors = &vectors,
                               .tier = "quick",
                               .repeat = " --tier full",
                               .verbose = true};

/* What a format writes about that run. The caller frees it. */
static char *written(const char *format)
{
    char path[] = "/tmp/slm-report-XXXXXX", spec[64], why[256];
    report_counts counts = {.seconds = 1.5};
    report_writer writer;
    char *text;
    FILE *file;
    size_t n;

    close(mkstemp(path));
    snprintf(spec, sizeof spec, "%s=%s", format, path);
    assert_true(report_open(&writer, spec, why));
    counts.state[JUDGE_PASS] = counts.state[JUDGE_FAIL] = counts.state[JUDGE_CRASH] = 1;
    counts.provenance[VEC_HAND] = 1;
    writer.format->begin(&writer, &run);
    writer.format->result(&writer, &run, &good, &passed);
    writer.format->result(&writer, &run, &bad, &failed);
    writer.format->result(&writer, &run, &bad, &crashed);
    writer.format->end(&writer, &run, &counts);
    writer.format->total(&writer, &counts);
    assert_true(report_close(&writer));

    text = calloc(1, 1 << 16);
    assert_non_null(text);
    file = fopen(path, "re");
    assert_non_null(file);
    n = fread(text, 1, (1 << 16) - 1, file);
    assert_true(n > 0 && n < (1 << 16) - 1);
    fclose(file);
    unlink(path);
    return text;
}

static void holds(const char *text, const char *words)
{
    if (!strstr(text, words)) fail_msg("'%s' is not in\n%s", words, text);
}

static void passed_failed_and_skipped_are_every_state_once(void **state)
{
    report_counts counts = {.seconds = 0};

    (void)state;
    for (size_t i = 0; i < JUDGE_STATES; i++) counts.state[i] = (size_t)1 << 4 * i;
    assert_int_equal(report_passed(&counts), (size_t)1 << 4 * JUDGE_PASS);
    assert_int_equal(report_skipped(&counts),
                     (size_t)1 << 4 * JUDGE_SKIP | (size_t)1 << 4 * JUDGE_XFAIL);
    assert_int_equal(report_passed(&counts) + report_failed(&counts) +
                         report_skipped(&counts),
                     ((size_t)1 << 4 * JUDGE_STATES) / 15);
    assert_true(report_failed(&counts) & (size_t)1 << 4 * JUDGE_XPASS);
    assert_true(report_failed(&counts) & (size_t)1 << 4 * JUDGE_VACUOUS);
}

static const char *string(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static json_int_t integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* The next line of a text, parsed by itself. */
static json_t *next_line(char **text)
{
    char *end = strchr(*text, '\n');
    json_t *line;

    assert_non_null(end);
    line = json_loadb(*text, (size_t)(end - *text), JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(line)) fail_msg("no object: %s", *text);
    *text = end + 1;
    return line;
}

static void json_lines_parse_back_with_what_the_verdict_says(void **state)
{
    char *text = written("jsonl"), *at = text;
    json_t *line = next_line(&at), *part;

    (void)state;
    assert_string_equal(string(line, "kind"), "run");
    assert_string_equal(string(line, "backend"), "./made.so");
    assert_string_equal(string(line, "vectors"), "0123456789abcdef");
    json_decref(line);

    line = next_line(&at);
    assert_string_equal(string(line, "kind"), "result");
    assert_string_equal(string(line, "case"), "rmsnorm/made/good");
    assert_string_equal(string(line, "state"), "PASS");
    assert_string_equal(string(line, "op"), "rmsnorm");
    assert_string_equal(string(line, "provenance"), "hand");
    assert_string_equal(string(line, "output"), passed.output);
    assert_int_equal(json_array_size(json_object_get(line, "clauses")), 2);
    assert_true(json_number_value(json_object_get(line, "seconds")) == 0.5);
    part = json_object_get(line, "tokens");
    assert_int_equal(integer(part, "forced"), 2);
    assert_int_equal(integer(part, "free"), 0);
    assert_int_equal(integer(part, "tie"), 1);
    part = json_array_get(json_object_get(line, "stages"), 0);
    assert_string_equal(string(part, "stage"), "r");
    assert_int_equal(integer(part, "checked"), 6);
    assert_true(json_number_value(json_object_get(part, "used")) == 0.25);
    assert_null(json_object_get(line, "finding"));
    assert_null(json_object_get(line, "nearest"));
    part = json_object_get(line, "controls");
    assert_int_equal(json_object_size(part), 2);
    assert_string_equal(string(part, "zeros"), "fails");
    assert_string_equal(string(part, "rotated"), "same");
    json_decref(line);

    line = next_line(&at);
    assert_string_equal(string(line, "state"), "FAIL");
    assert_string_equal(string(line, "clause"), "L2");
    part = json_object_get(line, "finding");
    assert_string_equal(string(part, "place"), "r[0,1]");
    assert_string_equal(string(part, "got"), failed.got);
    assert_string_equal(string(part, "want"), failed.want);
    assert_string_equal(string(part, "multiple"), "inf");
    assert_string_equal(string(line, "nearest"), "norm-missing");
    assert_null(json_object_get(line, "controls"));
    assert_null(json_object_get(line, "output"));
    json_decref(line);

    line = next_line(&at);
    assert_string_equal(string(line, "state"), "CRASH");
    assert_string_equal(string(line, "reason"), crashed.reason);
    json_decref(line);

    line = next_line(&at);
    assert_string_equal(string(line, "kind"), "end");
    assert_int_equal(integer(line, "passed"), 1);
    assert_int_equal(integer(line, "failed"), 2);
    assert_int_equal(integer(json_object_get(line, "passed_by_provenance"), "hand"), 1);
    json_decref(line);
    line = next_line(&at);
    assert_string_equal(string(line, "kind"), "total");
    assert_int_equal(integer(line, "failed"), 2);
    json_decref(line);
    assert_string_equal(at, "");
    free(text);
}

static void people_read_place_bound_reason_output_and_the_command_again(void **state)
{
    char *text = written("human");

    (void)state;
    holds(text,
          "FAIL    ./made.so  rmsnorm/made/bad  L2  stage r\n"
          "      r[0,1] got nan want 0x1p-2 (0.25) +- 0x1p-26: outside every "
          "bound\n"
          "      looks like: norm-missing (r = u (Megatron-LM 94)); no farther: 2 "
          "more of `slmoe mutants`\n");
    holds(text, "1 tie  controls: zeros fails, rotated same\n");
    holds(text,
          "again: slmoe run -b ./made.so --tier full --only 'rmsnorm/made/bad'\n");
    holds(text, "CRASH   ./made.so  rmsnorm/made/bad\n"
                "      died of \"signal\" <11> & more\n");
    holds(text, "      | a \"word\"\n      | and <another> & more\n");
    holds(text, "./made.so: 1 passed, 2 failed, 0 skipped (hand 1)  1.5 s\n"
                "1 passed, 2 failed, 0 skipped\n");
    free(text);
}

static void people_do_not_read_of_what_passed_unless_they_ask(void **state)
{
    char why[256];
    report_run quiet = run;
    report_writer writer;
    char *kept;
    size_t size;

    (void)state;
    quiet.verbose = false;
    assert_true(report_open(&writer, "human", why));
    writer.out = open_memstream(&kept, &size);
    writer.format->begin(&writer, &quiet);
    writer.format->result(&writer, &quiet, &good, &passed);
    assert_true(report_close(&writer));
    assert_int_equal(size, 0);
    free(kept);
}

static void junit_counts_and_escapes(void **state)
{
    char *text = written("junit");

    (void)state;
    holds(text, "tests=\"3\" failures=\"1\" errors=\"1\" skipped=\"0\"");
    holds(text, "died of &quot;signal&quot; &lt;11&gt; &amp; more");
    holds(text, "; looks like norm-missing</failure>");
    holds(text, "</testsuites>\n");
    assert_null(strstr(text, "<11>"));
    free(text);
}

static void tap_numbers_its_results_and_plans_them(void **state)
{
    char *text = written("tap");

    (void)state;
    assert_memory_equal(text, "TAP version 14\n", 15);
    holds(text, "\nok 1 - ");
    holds(text, "\nnot ok 2 - ");
    holds(text, "\n  nearest: \"norm-missing\"\n");
    holds(text, "\nnot ok 3 - ");
    holds(text, "\n1..3\n");
    free(text);
}

static void a_report_that_does_not_fit_is_not_called_written(void **state)
{
    static const char *const formats[] = {"human", "jsonl", "junit", "tap"};

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        char spec[64], why[256];
        report_counts counts = {.seconds = 0};
        report_writer writer;

        snprintf(spec, sizeof spec, "%s=/dev/full", formats[i]);
        assert_true(report_open(&writer, spec, why));
        writer.format->begin(&writer, &run);
        writer.format->result(&writer, &run, &bad, &failed);
        writer.format->end(&writer, &run, &counts);
        writer.format->total(&writer, &counts);
        assert_false(report_close(&writer));
    }
}

static void an_unknown_format_and_a_folder_that_is_not_there_are_refused(void **state)
{
    static const char *const unknown[] = {"",      "jsonlines", "json",
                                          "HUMAN", "=x",        "tap="};
    static const char *const twice[] = {"tap", "jsonl", "tap=x", "jsonl=y", "human=x"};
    report_writer writer;
    char why[256];

    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_false(report_check(&unknown[i], 1, why));
        holds(why, "expected human, jsonl");
    }
    assert_true(report_check(twice, 4, why));
    assert_false(report_check(twice, 5, why));
    holds(why, "--format human=x: that file gets --format tap=x already");
    assert_false(report_open(&writer, "jsonl=/nowhere/at/all", why));
    holds(why, "/nowhere/at/all: cannot be written");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passed_failed_and_skipped_are_every_state_once),
        cmocka_unit_test(json_lines_parse_back_with_what_the_verdict_says),
        cmocka_unit_test(people_read_place_bound_reason_output_and_the_command_again),
        cmocka_unit_test(people_do_not_read_of_what_passed_unless_they_ask),
        cmocka_unit_test(junit_counts_and_escapes),
        cmocka_unit_test(tap_numbers_its_results_and_plans_them),
        cmocka_unit_test(a_report_that_does_not_fit_is_not_called_written),
        cmocka_unit_test(an_unknown_format_and_a_folder_that_is_not_there_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
