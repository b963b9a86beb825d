/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_vector_yaml.c - what a golden vector's text may not be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../vector_load.h"
#include "vector_text.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static void yaml_beyond_the_subset_is_refused(void **state)
{
    static const text_fault faults[] = {
        {"hand\n    tier", "&a hand\n    tier", 13, 17, "anchors are not allowed"},
        {"in:\n  bias: {", "in: &in\n  bias: {", 7, 5, "anchors are not allowed"},
        {"[bias-ignored]", "&k [bias-ignored]", 5, 8, "anchors are not allowed"},
        {"note: weights of ü", "note: *a", 11, 11, "aliases are not allowed"},
        {"op: select", "op: !!str select", 12, 9, "tags are not allowed"},
        {"[R2, R3]", "!x [R2, R3]", 4, 9, "tags are not allowed"},
        {"{n: 3, k: 2}", "!x {n: 3, k: 2}", 6, 9, "tags are not allowed"},
        {"schema: slm", "%YAML 1.1\n---\nschema: slm", 1, 1,
         "directives are not allowed"},
        {"alias: {output: weight, with: score}\n",
         "alias: {output: weight, with: score}\n---\n- 2\n", 66, 1,
         "a second document is not allowed"},
        {"in:\n  bias", "in:\n  <<: {}\n  bias", 8, 3, "merge keys are not allowed"},
        {"config: {n: 3, k: 2}", "config: {[n]: 3}", 6, 10,
         "a key must be a word, got a list"},
        {"config: {n: 3, k: 2}", "config: {{n: 1}: 3}", 6, 10,
         "a key must be a word, got a mapping"},
        {"tier: smoke", "op: select", 14, 5, "duplicate key 'op', first at line 12"},
        {"      ids: {shape: [1, 2], data: [2, any]}",
         "      \"ids\": pending\n      ids: pending", 19, 7,
         "duplicate key 'ids', first at line 18"},
        {"weights of ü", "\"\\x07\"", 11, 11,
         "an escape makes character U+0007, which is not allowed"},
        {"weights of ü", "\"\\0\"", 11, 11,
         "an escape makes character U+0000, which is not allowed"},
        {"[R2, R3]", "[R2, R3", 5, 6,
         "not YAML: did not find expected ',' or ']' while parsing a flow sequence"},
        {"    tier: smoke", "   tier: smoke", 14, 4,
         "not YAML: did not find expected '-' indicator while parsing a block "
         "collection"},
        {"note: weights", "note: a: weights", 11, 12,
         "not YAML: mapping values are not allowed in this context"},
        {"[bias-ignored]", "[[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]]", 5, 23,
         "nested deeper than 16 levels"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void text_that_editors_would_count_differently_is_refused(void **state)
{
    static const text_fault faults[] = {
        {"weights of ü", "weights of ü\t!", 11, 23, "character U+0009 is not allowed"},
        {"weights of ü", "weights of ü\r", 11, 23, "character U+000D is not allowed"},
        {"schema", "\357\273\277schema", 1, 1, "character U+FEFF is not allowed"},
        {"weights of ü", "ü\342\200\250", 11, 12, "character U+2028 is not allowed"},
        {"weights of ü", "ü\001", 11, 12, "character U+0001 is not allowed"},
        {"weights of ü", "ü\177", 11, 12, "character U+007F is not allowed"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void keys_outside_the_closed_lists_are_refused(void **state)
{
    static const text_fault faults[] = {
        {"kills: [b", "kils: [b", 5, 1,
         "unknown key 'kils' in a family; known: schema, family, about, clause, kills, "
         "tags, in, config, cases"},
        {"    note: weights", "    nota: weights", 11, 5,
         "unknown key 'nota' in a case; known: id, note, op, provenance, source, tier, "
         "clause, kills, tags, config, in, out, status, field, index, either, alias, "
         "superseded_by"},
        {"config: {n: 3,", "config: {N: 3,", 6, 10,
         "unknown key 'N' in config; known: profile, d, l, n, k, f, S, fs, B, T, R, "
         "score, weighting, expert, norm, balance, tie_test, dtype, eps, beta_gate, "
         "beta_up, rate"},
        {"{shape: [1], fill:", "{shape: [1], full:", 26, 28,
         "unknown key 'full' in out.cutoff; known: shape, data, words, fill, gen, "
         "sha256"},
        {"bits: 8", "bit: 8", 44, 24,
         "unknown key 'bit' in in.score.gen; known: seed, bits, scale, add"},
        {"{output: weight", "{out: weight", 65, 13,
         "unknown key 'out' in alias; known: output, with"},
        {"{status: SLM_ERR_NONFINITE, field: logit}",
         "{status: SLM_ERR_NONFINITE, place: 3}", 56, 37,
         "unknown key 'place' in an outcome; known: out, status, field, index"},
        {"{status: SLM_ERR_NONFINITE, field: logit}",
         "{status: SLM_ERR_NONFINITE, index: 3}", 56, 37, "index needs a field"},
        {"      score: {shape: [1, 3], data", "      scores: {shape: [1, 3], data", 16,
         7, "unknown input 'scores' of select; known: score, logit, bias"},
        {"      cutoff: {", "      cutof: {", 26, 7,
         "unknown output 'cutof' of select; known: ids, weight, cutoff"},
        {"      cutoff: {", "      score: {", 26, 7,
         "'score' is an input of select, not an output"},
        {"      score: {shape: [1, 3], data", "      weight: {shape: [1, 3], data", 16,
         7, "'weight' is an output of select, not an input"},
        {"    note: weights",
         "    averyveryverylongkeythatgoesonandonandonandonandon: weights", 11, 5,
         "unknown key 'averyveryverylongkeythatgoesonandonandon...' in a case; known: "
         "id, note, op, provenance, source, tier, clause, kills, tags, config, in, "
         "out, status, field, index, either, alias, superseded_by"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void bytes_that_are_not_utf_8_are_refused_in_their_place(void **state)
{
    static const text_fault faults[] = {
        {NULL, "a: \xff", 1, 4, "byte 0xff is not UTF-8"},
        {NULL, "a: \xc0\x80", 1, 4, "byte 0xc0 is not UTF-8"},
        {NULL, "a: \xe0\x80\x80", 1, 4, "byte 0xe0 is not UTF-8"},
        {NULL, "a: \xed\xa0\x80", 1, 4, "byte 0xed is not UTF-8"},
        {NULL, "a: \xf4\x90\x80\x80", 1, 4, "byte 0xf4 is not UTF-8"},
        {NULL, "a: \xe2\x98x", 1, 4, "byte 0xe2 is not UTF-8"},
        {NULL, "ü☃\nü☃: \xe2\x98", 2, 5, "byte 0xe2 is not UTF-8"},
        {NULL, "a: \x80", 1, 4, "byte 0x80 is not UTF-8"},
    };

    (void)state;
    text_whole_faults(faults, LENGTH(faults));
}

static void a_file_holds_one_mapping(void **state)
{
    static const text_fault faults[] = {
        {NULL, "", 0, 0, "the file is empty"},
        {NULL, "# only a comment\n", 0, 0, "the file is empty"},
        {NULL, "---\n", 2, 1, "a family: expected a mapping, got nothing"},
        {NULL, "- a\n", 1, 1, "a family: expected a mapping, got a list"},
        {NULL, "x", 1, 1, "a family: expected a mapping, got 'x'"},
    };

    (void)state;
    text_whole_faults(faults, LENGTH(faults));
}

/* A text of `head`, n times `part`, `tail`; malloc'ed. */
static char *repeat(const char *head, const char *part, size_t n, const char *tail)
{
    const size_t size = strlen(head) + n * strlen(part) + strlen(tail) + 1;
    char *text = malloc(size);
    char *at = text;

    assert_non_null(text);
    at += snprintf(at, size, "%s", head);
    for (size_t i = 0; i < n; i++) {
        memcpy(at, part, strlen(part));
        at += strlen(part);
    }
    memcpy(at, tail, strlen(tail) + 1);
    return text;
}

static void expect_whole(char *text, size_t line, size_t column, const char *what)
{
    const text_fault fault = {NULL, text, line, column, what};

    text_whole_faults(&fault, 1);
    free(text);
}

static void a_file_stays_within_its_limits(void **state)
{
    char keys[65 * 4 + 1] = "";

    (void)state;
    for (unsigned char i = 0; i < 65; i++)
        snprintf(keys + 4 * i, sizeof keys - 4 * i, "%02u:\n", (unsigned)i);
    expect_whole(strdup(keys), 65, 1, "more than 64 keys in one mapping");
    expect_whole(repeat("a: [", "1,", 1048576, "]"), 1, 4 + 2 * 1048573 + 1,
                 "more than 1048576 values in one file");
    expect_whole(repeat("", "#\n", 1 << 23, "x"), 0, 0,
                 "16777217 bytes, at most 16777216 are read");
    expect_whole(repeat("", "#\n", (1 << 23) - 1, "x:"), 8388608, 1,
                 "unknown key 'x' in a family; known: schema, family, about, clause, "
                 "kills, tags, in, config, cases");
    expect_whole(repeat("schema: slm-vector/1\nfamily: a\nabout: a\nclause: [R1]\n"
                        "cases:\n",
                        "  - {}\n", 4097, ""),
                 6, 3, "cases: expected at most 4096, got 4097");
}

/* libyaml alone needs time quadratic in the depth: seconds here, hours at 16 MiB. */
static void deep_nesting_costs_no_time(void **state)
{
    (void)state;
    expect_whole(repeat("", "[", 1 << 24, ""), 1, 17, "nested deeper than 16 levels");
    expect_whole(repeat("", "- ", 1 << 23, ""), 1, 33, "nested deeper than 16 levels");
    expect_whole(repeat("", "[\n", 1 << 23, ""), 17, 1, "nested deeper than 16 levels");
    expect_whole(repeat("", "{a: ", 1 << 22, ""), 1, 65,
                 "nested deeper than 16 levels");
    expect_whole(repeat("", "? ", 1 << 23, ""), 1, 3,
                 "a key must be a word, got a mapping");
}

static void a_list_of_names_is_cut_where_its_room_ends(void **state)
{
    static const char *const names[] = {"alpha", "beta", "gamma", "delta"};
    char out[24];

    (void)state;
    load_join(out, 24, names, 4);
    assert_string_equal(out, "alpha, beta, gamma, ...");
    load_join(out, 23, names, 4);
    assert_string_equal(out, "alpha, beta, ...");
    load_join(out, 8, names, 4);
    assert_string_equal(out, "...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_beyond_the_subset_is_refused),
        cmocka_unit_test(text_that_editors_would_count_differently_is_refused),
        cmocka_unit_test(keys_outside_the_closed_lists_are_refused),
        cmocka_unit_test(bytes_that_are_not_utf_8_are_refused_in_their_place),
        cmocka_unit_test(a_file_holds_one_mapping),
        cmocka_unit_test(a_file_stays_within_its_limits),
        cmocka_unit_test(deep_nesting_costs_no_time),
        cmocka_unit_test(a_list_of_names_is_cut_where_its_room_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
