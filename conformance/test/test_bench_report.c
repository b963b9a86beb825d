/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_bench_report.c - a bench as table, JSON lines and picture. */
#include "bench_report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static bench_row make_row(const char *backend, size_t n_tokens, double seconds)
{
    bench_row row = {.shape = "mini",
                     .op = "layer_forward",
                     .n_tokens = n_tokens,
                     .threads = 2,
                     .cost = {.flops = 100, .weights = 50, .inputs = 10, .outputs = 5},
                     .roof = seconds / 2,
                     .usual = seconds / 4 * 3,
                     .n = 5};

    row.config.n_experts = 64;
    row.config.top_k = 2;
    snprintf(row.backend, sizeof row.backend, "%s", backend);
    for (size_t i = 0; i < row.n; i++) row.batch[i] = (bench_batch){seconds, 1};
    bench_settle(&row);
    return row;
}

typedef void print_rows(FILE *out, const bench_row *rows, size_t n);

/* What a function wrote; the caller's. */
static char *written_rows(print_rows *print, const bench_row *rows, size_t n)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    print(out, rows, n);
    fclose(out);
    return text;
}

static char *picture(const bench_row *rows, size_t n)
{
    return written_rows(bench_svg, rows, n);
}

/* Every element is closed by its own name, in order; no stray < or &. */
static void is_well_formed(const char *at)
{
    const char *open[64];
    size_t length[64], depth = 0;

    for (; (at = strpbrk(at, "<&")) != NULL; at++) {
        if (*at == '&') {
            assert_true(strncmp(at, "&lt;", 4) == 0 || strncmp(at, "&gt;", 4) == 0 ||
                        strncmp(at, "&amp;", 5) == 0);
            continue;
        }
        if (at[1] == '?') continue;

        const char *end = strchr(at, '>');

        assert_non_null(end);
        if (at[1] == '/') {
            assert_true(depth > 0);
            depth--;
            assert_int_equal((size_t)(end - at - 2), length[depth]);
            assert_memory_equal(at + 2, open[depth], length[depth]);
        } else if (end[-1] != '/') {
            assert_true(depth < 64);
            open[depth] = at + 1;
            length[depth++] = strcspn(at + 1, " >");
        }
    }
    assert_int_equal(depth, 0);
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;

    for (; (text = strstr(text, part)) != NULL; text++) n++;
    return n;
}

static void a_picture_has_a_line_for_each_backend(void **state)
{
    (void)state;
    const bench_row rows[] = {make_row("cpu", 1, 1), make_row("cpu", 16, 2),
                              make_row("other", 1, 1), make_row("other", 16, 4)};
    char *svg = picture(rows, 4);

    is_well_formed(svg);
    assert_int_equal(count(svg, "<polyline"), 2);
    assert_int_equal(count(svg, "<circle"), 4);
    assert_int_equal(count(svg, "<g "), 1);
    free(svg);
}

static void what_was_disturbed_or_not_timed_is_not_drawn(void **state)
{
    (void)state;
    bench_row rows[] = {make_row("cpu", 1, 1), make_row("cpu", 16, 2),
                        make_row("other", 1, 1)};
    char *svg;

    rows[1].disturbed = 1;
    strcpy(rows[2].skipped, "has none");
    svg = picture(rows, 3);
    is_well_formed(svg);
    assert_int_equal(count(svg, "<circle"), 1);
    free(svg);
    svg = picture(rows + 1, 2);
    is_well_formed(svg);
    assert_int_equal(count(svg, "<circle"), 0);
    free(svg);
}

static void names_of_strangers_stay_text(void **state)
{
    (void)state;
    const bench_row row = make_row("<b>&\x01\xff", 1, 1);
    char *svg = picture(&row, 1);

    is_well_formed(svg);
    assert_non_null(strstr(svg, "&lt;b&gt;&amp;??"));
    free(svg);
}

static void a_line_of_json_has_every_batch(void **state)
{
    (void)state;
    bench_row row = make_row("cpu", 16, 2);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    json_t *object;

    row.batch[0].quiet = 0;
    bench_settle(&row);
    row.ratio = 1.5;
    bench_json_row(out, &row, "other");
    fclose(out);
    object = json_loads(text, 0, NULL);
    assert_non_null(object);
    assert_int_equal(count(text, "\n"), 1);
    assert_int_equal(json_array_size(json_object_get(object, "quiet")), 4);
    assert_int_equal(json_array_size(json_object_get(object, "loud")), 1);
    assert_true(json_is_true(json_object_get(object, "disturbed")));
    assert_string_equal(json_string_value(json_object_get(object, "versus")), "other");
    json_decref(object);
    free(text);
}

/* One line of the table. */
static char *line_of(const bench_row *row)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    bench_table_row(out, row);
    fclose(out);
    assert_int_equal(count(text, "\n"), 1);
    return text;
}

static void the_table_shows_no_share_of_a_disturbed_row(void **state)
{
    (void)state;
    bench_row row = make_row("cpu", 16, 2);
    char *line = line_of(&row);

    assert_non_null(strstr(line, " 50 %   75 %\n"));
    free(line);
    row.usual = 0;
    line = line_of(&row);
    assert_non_null(strstr(line, " 50 %      -\n"));
    free(line);
    row.batch[0].quiet = 0;
    bench_settle(&row);
    line = line_of(&row);
    assert_null(strstr(line, "50 %"));
    assert_non_null(strstr(line, "disturbed: 4 of 5 batches were quiet"));
    free(line);
}

/* What a roof becomes; the caller's. */
static char *roof_text(const bench_roof *roof,
                       void (*print)(FILE *, const bench_roof *))
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    print(out, roof);
    fclose(out);
    return text;
}

static char *foot(const bench_row *rows, size_t n)
{
    return written_rows(bench_table_foot, rows, n);
}

static void the_foot_counts_rows_that_are_no_evidence_or_beat_their_roof(void **state)
{
    bench_row rows[] = {make_row("cpu", 1, 1e-3), make_row("cpu", 16, 1e-3),
                        make_row("cpu", 128, 1e-3), make_row("cpu", 256, 1e-3)};
    char *text;

    (void)state;
    text = foot(rows, 4);
    assert_string_equal(text, "4 timed, 0 of them disturbed by other load\n");
    free(text);
    rows[0].roof = 1.04e-3; /* as near as it is known */
    rows[1].roof = 1.06e-3;
    rows[2].roof = 2e-3;
    rows[2].disturbed = 1;
    snprintf(rows[3].skipped, sizeof rows[3].skipped, "no");
    text = foot(rows, 4);
    assert_non_null(strstr(text, "3 timed, 1 of them disturbed by other load: no"));
    assert_non_null(strstr(text, "\n1 above 105 % of the roof, which"));
    free(text);
}

static void a_roof_says_of_which_device_it_is(void **state)
{
    (void)state;
    bench_roof roof = {.device = "H200",
                       .kernel = "cublas",
                       .fma = 50e12,
                       .dot = 780e12,
                       .copy = 4.3e12,
                       .n_sizes = 2,
                       .size = {0x1p22, 0x1p32},
                       .bandwidth = {9e12, 4.4e12}};
    char *text = roof_text(&roof, bench_table_roof);

    assert_non_null(strstr(text, "roof of H200 (cublas): binary32 50000 GFLOP/s, bf16 "
                                 "780000; copy 4.3e+03 GB/s"));
    assert_non_null(strstr(text, "  read, GB/s:  4 MiB 9e+03  4 GiB 4.4e+03\n"));
    free(text);
    text = roof_text(&roof, bench_json_roof);
    assert_non_null(strstr(text, "\"device\":\"H200\""));
    assert_non_null(strstr(text, "\"emulated\":false"));
    free(text);
    roof.emulated = 1;
    text = roof_text(&roof, bench_table_roof);
    assert_non_null(strstr(text, "says nothing"));
    free(text);
    roof = (bench_roof){.missing = "no library"};
    text = roof_text(&roof, bench_table_roof);
    assert_string_equal(text, "roof of the device: not known: no library\n");
    free(text);
    text = roof_text(&roof, bench_json_roof);
    assert_non_null(strstr(text, "\"missing\":\"no library\""));
    free(text);
    roof = (bench_roof){.n_sizes = 1, .size = {32}, .bandwidth = {9e9}, .usual = {8e9}};
    text = roof_text(&roof, bench_table_roof);
    assert_non_null(strstr(text, "  read, GB/s, best (usual):  0 KiB 9 (8)\n"));
    assert_null(strstr(text, "beside"));
    free(text);
    roof.fma = 400e9;
    roof.tile = 368e9;
    text = roof_text(&roof, bench_table_roof);
    assert_non_null(strstr(text,
                           "FMA 400 GFLOP/s, 368 beside the loads of a tile of 12 "
                           "x 32; bf16 products not available"));
    free(text);
    text = roof_text(&roof, bench_json_roof);
    assert_non_null(strstr(text, "\"read\":[[32.0,9000000000.0,8000000000.0]]"));
    assert_non_null(strstr(text, "\"tile\":368000000000.0"));
    assert_non_null(strstr(text, "\"device\":\"cpu\""));
    assert_null(strstr(text, "missing"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_picture_has_a_line_for_each_backend),
        cmocka_unit_test(what_was_disturbed_or_not_timed_is_not_drawn),
        cmocka_unit_test(names_of_strangers_stay_text),
        cmocka_unit_test(a_line_of_json_has_every_batch),
        cmocka_unit_test(the_table_shows_no_share_of_a_disturbed_row),
        cmocka_unit_test(the_foot_counts_rows_that_are_no_evidence_or_beat_their_roof),
        cmocka_unit_test(a_roof_says_of_which_device_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
