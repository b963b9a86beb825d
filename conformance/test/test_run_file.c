/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_run_file.c - run files: read back whole, or refused where they break. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../report.h"
#include "made_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WHOLE MADE_RUN MADE_PASS MADE_FAIL MADE_SKIP MADE_END MADE_TOTAL

static void a_whole_run_is_read_as_it_was_written(void **state)
{
    char why[RUN_WHY];
    run_file *run = made_load(WHOLE, why);
    const run_part *part;
    const run_result *result;

    (void)state;
    if (!run) fail_msg("%s", why);
    assert_int_equal(run->n_parts, 1);
    part = &run->parts[0];
    assert_string_equal(part->backend, "./a.so");
    assert_string_equal(part->url, "");
    assert_true(part->certifiable);
    assert_true(part->arithmetic.accumulator == 0x1p-24);
    assert_true(part->arithmetic.store[SLM_STAGE_Z] == 0x1p-8);
    assert_true(part->arithmetic.input == 0);
    assert_int_equal(part->n_levels, 1);
    assert_int_equal(part->passed, 1);
    assert_int_equal(part->failed, 1);
    assert_int_equal(part->skipped, 1);
    assert_true(part->seconds == 2.5);
    assert_int_equal(part->n_results, 3);

    result = run_file_find(part, "rmsnorm/made/good");
    assert_non_null(result);
    assert_int_equal(result->state, JUDGE_PASS);
    assert_string_equal(result->family, "rmsnorm/made");
    assert_int_equal(result->n_clauses, 2);
    assert_string_equal(result->clauses[1], "R5");
    assert_int_equal(result->forced, 2);
    assert_int_equal(result->tie, 1);
    assert_int_equal(result->controls[JUDGE_ZEROS], JUDGE_NULL_FAILS);
    assert_int_equal(result->controls[JUDGE_ROTATED], JUDGE_NULL_NONE);
    assert_true(run_file_share(result) == 0.25);

    result = run_file_find(part, "rmsnorm/made/bad");
    assert_string_equal(result->about, "made"); /* of the family's first result */
    assert_string_equal(result->place, "r[0,1]");
    assert_true(isinf(result->multiple) && isinf(run_file_share(result)));
    result = run_file_find(part, "select/made/none");
    assert_string_equal(result->about, "");
    assert_string_equal(result->reason, "no `select`");
    assert_null(run_file_find(part, "select/made"));
    run_file_free(run);
}

/* A prefix ends in a line that is cut short, or before the total. */
static void no_prefix_of_a_run_is_a_run(void **state)
{
    static const char whole[] = WHOLE;
    char text[sizeof whole], why[RUN_WHY];

    (void)state;
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        size_t lines = 1;
        char where[16];

        memcpy(text, whole, n);
        text[n] = '\0';
        for (size_t i = 0; i + 1 < n; i++) lines += text[i] == '\n';
        snprintf(where, sizeof where, ":%zu: ", lines);
        if (made_load(text, why)) fail_msg("%zu bytes are taken for a run", n);
        if (strncmp(why, where, strlen(where)) != 0)
            fail_msg("%zu bytes: '%s' begins not with '%s'", n, why, where);
        if (!strstr(why, "\n  a whole run is written by: slmoe run"))
            fail_msg("%zu bytes: '%s' says not what to do", n, why);
    }
}

/* A text with its first `from` replaced. The caller frees it. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *out = malloc(strlen(text) + strlen(to) + 1);

    if (!at) fail_msg("'%s' is not there", from);
    assert_non_null(out);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void damage_is_refused_with_its_line(void **state)
{
    static const struct {
        const char *from, *to, *why;
    } damages[] = {
        {"slm-run/1", "slm-run/2", ":1: format: expected slm-run/1, got slm-run/2"},
        {"\"format\":\"slm-run/1\",", "", ":1: format: expected slm-run/1, got none"},
        {"\"tier\":\"quick\",", "", ":1: tier: expected a text"},
        {"\"abi\":[1,0]", "\"abi\":[1]", ":1: abi: expected [MAJOR, MINOR]"},
        {"\"certifiable\":true", "\"certifiable\":1", ":1: certifiable: expected"},
        {"\"infer\"", "7", ":1: levels: expected texts"},
        {"\"accumulator\":5", "\"accumulator\":-5",
         ":1: accumulator: expected a number"},
        {"\"kind\":\"run\"", "\"kind\":\"result\"",
         ":1: kind: result cannot stand here"},
        {"\"kind\":\"run\"", "\"kind\":\"dance\"", ":1: kind: dance cannot stand here"},
        {"\"kind\":\"run\",", "", ":1: kind: expected a text"},
        {"{\"kind\":\"run\"", "[\"kind\",\"run\"", ":1: column"},
        {"\"case\":\"rmsnorm/made/good\"", "\"case\":7", ":2: case: expected a text"},
        {"\"PASS\"", "\"PASSED\"", ":2: state: PASSED: no such state"},
        {"[\"L2\",\"R5\"]", "\"L2\"", ":2: clauses: expected an array"},
        {"\"checked\":6", "\"checked\":6.5", ":2: checked: expected an integer"},
        {"\"checked\":6,", "", ":2: checked: expected an integer, and there is none"},
        {"\"used\":0.25", "\"used\":\"nan\"", ":2: used: expected a number"},
        {"\"zeros\":\"fails\"", "\"zeros\":\"x\"", ":2: controls: zeros"},
        {"\"seconds\":0.5", "\"seconds\":null", ":2: seconds: expected a number"},
        {"\"about\":\"made\"", "\"case\":\"b\"", ":2: column"}, /* a key twice */
        {"\"place\":\"r[0,1]\",", "", ":3: place: expected a text"},
        {"\"finding\":{", "\"finding\":7,\"x\":{", ":3: finding: expected an object"},
        {"made/bad", "made/good", ":5: the case rmsnorm/made/good has two results"},
        {"\"FAIL\"", "\"PASS\"", ":5: says 1 passed, 1 failed, 1 skipped; the results"},
        {"{\"kind\":\"end\",\"backend\":\"./a", "{\"kind\":\"end\",\"backend\":\"./b",
         ":5: backend: expected ./a.so, got ./b.so"},
        {"\"kind\":\"total\",\"passed\":1", "\"kind\":\"total\",\"passed\":2",
         ":6: says 2 passed"},
        {MADE_END, MADE_END MADE_END, ":6: kind: end cannot stand here"},
        {MADE_END, "", ":5: kind: total cannot stand here"},
        {MADE_TOTAL, MADE_TOTAL MADE_TOTAL, ":7: kind: total cannot stand here"},
        {MADE_TOTAL, MADE_TOTAL "\n", ":7: column"},
        {MADE_PASS, "\n" MADE_PASS, ":2: column"},
        {MADE_PASS, "7\n" MADE_PASS, ":2: column"},
        {MADE_PASS, "[]\n" MADE_PASS, ":2: expected an object"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        char *text = replaced(WHOLE, damages[i].from, damages[i].to), why[RUN_WHY];

        if (made_load(text, why)) fail_msg("taken: %s", damages[i].to);
        if (strncmp(why, damages[i].why, strlen(damages[i].why)) != 0)
            fail_msg("'%s' begins not with '%s'", why, damages[i].why);
        free(text);
    }
}

static void members_of_a_later_writer_are_passed_over(void **state)
{
    char *text = replaced(WHOLE, "\"about\":", "\"colour\":{\"red\":1},\"about\":");
    char why[RUN_WHY];
    run_file *run = made_load(text, why);

    (void)state;
    if (!run) fail_msg("%s", why);
    run_file_free(run);
    free(text);
}

static void a_file_that_cannot_be_read_is_said_to_be(void **state)
{
    char why[RUN_WHY];

    (void)state;
    assert_null(run_file_load("/nowhere/at/all", why));
    assert_string_equal(why,
                        "/nowhere/at/all: cannot be read: No such file or directory");
    assert_null(run_file_load("/tmp", why));
    assert_non_null(strstr(why, "/tmp:1: cannot be read: Is a directory"));
}

/* A run with every text, and one failure with every text. */
static char *clauses[] = {(char[]){"L2"}};
static const vec_family family = {.name = (char[]){"rmsnorm/made"},
                                  .about = (char[]){"about \"it\""}};
static const vec_case test = {.family = &family,
                              .id = (char[]){"rmsnorm/made/bad"},
                              .note = (char[]){"a note"},
                              .op = SLM_OP_rmsnorm,
                              .tier = VEC_FULL,
                              .n_clauses = 1,
                              .clauses = clauses};
static const judge_verdict verdict = {
    .state = JUDGE_FAIL,
    .reason = "why",
    .n_stages = 1,
    .stages = {{.name = "r", .checked = 1, .failed = 1}},
    .clause = "L2",
    .stage = "r",
    .place = "r[0]",
    .got = "g",
    .want = "w",
    .multiple = 3.5,
    .nearest = "norm-twice",
    .n_alike = 2,
    .output = "said\x01\n<it>"};
static const testee_about about = {.name = "n",
                                   .version = "v",
                                   .url = "u",
                                   .note = "h",
                                   .abi_major = 1,
                                   .abi_minor = 2,
                                   .levels = SLM_LEVEL_INFER | SLM_LEVEL_DIST,
                                   .arithmetic = {.accumulator = 0x1p-23,
                                                  .input = 0x1p-11,
                                                  .store = {[SLM_STAGE_H] = 0x1p-8},
                                                  .sigmoid_ulp = 2,
                                                  .tanh_ulp = 3,
                                                  .tanh_abs = 1.5,
                                                  .rsqrt_ulp = 4,
                                                  .balance = 0x1p-30,
                                                  .flushes_subnormals = 1}};
static const machine place = {.system = "s", .cpu = "c", .cores = 8, .date = "d"};
static const vec_set vectors = {.sha256 = "abc"};
static const report_run written = {.backend = "b",
                                   .about = &about,
                                   .vectors = &vectors,
                                   .tier = "full",
                                   .repeat = " --tier full",
                                   .selection = "--only 'x'",
                                   .harness = "1",
                                   .spec = "2",
                                   .machine = &place};

/* That run through the writer and the reader. */
static run_file *through_a_file(void)
{
    const report_counts counts = {.state = {[JUDGE_FAIL] = 1}};
    char path[MADE_PATH], spec[64], why[RUN_WHY];
    report_writer writer;
    run_file *run;

    made_file(path, "", 0);
    snprintf(spec, sizeof spec, "jsonl=%s", path);
    assert_true(report_open(&writer, spec, why));
    writer.format->begin(&writer, &written);
    writer.format->result(&writer, &written, &test, &verdict);
    writer.format->end(&writer, &written, &counts);
    writer.format->total(&writer, &counts);
    assert_true(report_close(&writer));
    run = run_file_load(path, why);
    unlink(path);
    if (!run) fail_msg("%s", why);
    return run;
}

static void what_the_writer_wrote_the_reader_reads(void **state)
{
    run_file *run = through_a_file();
    const run_part *part = &run->parts[0];
    const run_result *result = &part->results[0];

    const struct {
        const char *got, *want;
    } texts[] = {
        {part->backend, "b"},
        {part->name, "n"},
        {part->version, "v"},
        {part->url, "u"},
        {part->note, "h"},
        {part->levels[1], "dist"},
        {part->tier, "full"},
        {part->selection, "--only 'x'"},
        {part->vectors, "abc"},
        {part->harness, "1"},
        {part->spec, "2"},
        {part->date, "d"},
        {part->system, "s"},
        {part->cpu, "c"},
        {result->id, test.id},
        {result->about, family.about},
        {result->note, "a note"},
        {result->op, "rmsnorm"},
        {result->tier, "full"},
        {result->provenance, "hand"},
        {result->reason, "why"},
        {result->clause, "L2"},
        {result->stage, "r"},
        {result->place, "r[0]"},
        {result->got, "g"},
        {result->want, "w"},
        {result->nearest, verdict.nearest},
        {result->output, verdict.output},
        {result->again, "slmoe run -b b --tier full --only 'rmsnorm/made/bad'"}};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_string_equal(texts[i].got, texts[i].want);
    (void)state;
    assert_int_equal(part->abi_minor, 2);
    assert_int_equal(part->cores, 8);
    assert_false(part->certifiable);
    assert_int_equal(part->n_levels, 2);
    assert_int_equal(result->n_alike, 2);
    assert_true(result->multiple == 3.5);
    assert_true(part->arithmetic.accumulator == 0x1p-23);
    assert_true(part->arithmetic.input == 0x1p-11);
    assert_true(part->arithmetic.store[SLM_STAGE_H] == 0x1p-8);
    assert_true(part->arithmetic.sigmoid_ulp == 2 && part->arithmetic.tanh_ulp == 3);
    assert_true(part->arithmetic.tanh_abs == 1.5 && part->arithmetic.rsqrt_ulp == 4);
    assert_true(part->arithmetic.balance == 0x1p-30);
    assert_int_equal(part->arithmetic.flushes_subnormals, 1);
    run_file_free(run);
}

static void the_date_is_that_of_the_epoch_that_is_given(void **state)
{
    machine here;

    (void)state;
    setenv("SOURCE_DATE_EPOCH", "1767225599", 1);
    machine_describe(&here);
    assert_string_equal(here.date, "2025-12-31T23:59:59Z");
    setenv("SOURCE_DATE_EPOCH", "yesterday", 1);
    machine_describe(&here);
    assert_string_equal(here.date, "");
    unsetenv("SOURCE_DATE_EPOCH");
    machine_describe(&here);
    assert_int_equal(strlen(here.date), 20);
    assert_true(here.system[0] && here.cores > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_run_is_read_as_it_was_written),
        cmocka_unit_test(no_prefix_of_a_run_is_a_run),
        cmocka_unit_test(damage_is_refused_with_its_line),
        cmocka_unit_test(members_of_a_later_writer_are_passed_over),
        cmocka_unit_test(a_file_that_cannot_be_read_is_said_to_be),
        cmocka_unit_test(what_the_writer_wrote_the_reader_reads),
        cmocka_unit_test(the_date_is_that_of_the_epoch_that_is_given),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
