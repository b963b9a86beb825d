/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_vector.c - golden vectors: what is loaded, found and written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "vector_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const vec_case *find_case(const vec_set *set, const char *id)
{
    for (size_t i = 0; i < set->families[0].n_cases; i++)
        if (strcmp(set->families[0].cases[i].id, id) == 0)
            return &set->families[0].cases[i];
    fail_msg("no case %s", id);
    return NULL;
}

static const vec_tensor *find_in(const vec_case *test, const char *name)
{
    const vec_tensor *tensor = vec_find(test->in, test->n_in, name);

    assert_non_null(tensor);
    return tensor;
}

static const vec_tensor *find_out(const vec_case *test, size_t outcome,
                                  const char *name)
{
    const vec_tensor *tensor =
        vec_find(test->outcomes[outcome].out, test->outcomes[outcome].n_out, name);

    assert_non_null(tensor);
    return tensor;
}

static void a_family_is_loaded_as_it_is_written(void **state)
{
    vec_set *set = text_load(text_select);
    const vec_family *family = &set->families[0];
    char digest[65];

    (void)state;
    assert_int_equal(set->n_families, 1);
    assert_int_equal(set->n_cases, 5);
    assert_string_equal(family->path, "good.yaml");
    assert_string_equal(family->name, "select/good");
    assert_string_equal(family->about, "Größe ∑ ☃");
    vec_sha256(text_select, strlen(text_select), digest);
    assert_string_equal(family->sha256, digest);
    assert_ptr_equal(family->cases[4].family, family);
    vec_free(set);

    set = text_load(text_counts);
    assert_string_equal(set->families[0].about, "Counts are integers, and pooled.");
    vec_free(set);
    vec_free(NULL);
}

static void a_case_extends_its_family(void **state)
{
    vec_set *set = text_load(text_select);
    const vec_case *one = find_case(set, "select/good/one");
    const vec_case *two = find_case(set, "select/good/two");
    const vec_case *three = find_case(set, "select/good/three");
    const vec_case *four = find_case(set, "select/good/four");

    (void)state;
    assert_string_equal(one->note, "weights of ü");
    assert_int_equal(one->op, SLM_OP_select);
    assert_int_equal(one->tier, VEC_SMOKE);
    assert_int_equal(two->tier, VEC_QUICK);
    assert_null(two->note);
    assert_int_equal(one->n_clauses, 2);
    assert_string_equal(one->clauses[1], "R3");
    assert_int_equal(four->n_clauses, 1);
    assert_string_equal(four->clauses[0], "R4");
    assert_string_equal(one->kills[0], "bias-ignored");
    assert_string_equal(four->kills[0], "nan-wins");
    assert_int_equal(one->n_tags, 0);
    assert_string_equal(two->tags[0], "door");
    assert_int_equal(two->provenance, VEC_DOCUMENT);
    assert_string_equal(two->source, "the note, \"Router\"");
    assert_string_equal(two->superseded_by, "three");
    assert_null(three->superseded_by);
    assert_ptr_equal(find_in(one, "bias")->field, find_in(two, "bias")->field);
    assert_int_equal(find_in(one, "bias")->begin.line, 8);
    vec_free(set);
}

static void a_configuration_is_a_profile_and_what_replaces_it(void **state)
{
    vec_set *set = text_load(text_select);
    const vec_case *one = find_case(set, "select/good/one");
    const vec_case *two = find_case(set, "select/good/two");
    const vec_case *three = find_case(set, "select/good/three");

    (void)state;
    assert_string_equal(one->profile, "paper");
    assert_int_equal(one->config.n_experts, 3);
    assert_int_equal(one->config.top_k, 2);
    assert_int_equal(one->config.n_bins, 1000);
    assert_int_equal(one->config.weighting, SLM_WEIGHT_RATIO);
    assert_int_equal(one->call.n_tokens, 1);
    assert_int_equal(two->config.top_k, 0);
    assert_string_equal(three->profile, "release");
    assert_int_equal(three->config.weighting, SLM_WEIGHT_RELEASE);
    assert_true(three->config.eps == 1e-7);
    assert_true(three->config.rate == 0x1p-9);
    assert_int_equal(find_case(set, "select/good/five")->call.n_tokens, 2);
    vec_free(set);

    set = text_load(text_layer);
    one = find_case(set, "layer/good/one");
    assert_int_equal(one->config.dtype, SLM_BF16);
    assert_int_equal(one->config.expert, SLM_EXPERT_LINEAR);
    assert_int_equal(one->config.norm, SLM_NORM_NONE);
    assert_int_equal(one->call.n_tokens, 3);
    vec_free(set);

    set = text_load(text_counts);
    assert_int_equal(find_case(set, "hist/good/merge")->call.n_parts, 2);
    assert_int_equal(find_case(set, "hist/good/merge")->call.n_tokens, 0);
    assert_int_equal(find_case(set, "hist/good/solve")->call.n_tokens, 4);
    assert_int_equal(find_case(set, "hist/good/solve")->config.n_bins, 3);
    vec_free(set);
}

static void floats_have_the_bits_that_are_written(void **state)
{
    static const float bias[] = {-1, 0, 1};
    static const uint32_t words[] = {0x3f800000, 0x40000000, 0xbf800000,
                                     0,          0x80000000, 0x7fc00000};
    static const double weight[] = {0.25, 0.75};
    float got[6];
    vec_set *set = text_load(text_select);
    const vec_case *one = find_case(set, "select/good/one");

    (void)state;
    assert_int_equal(find_in(one, "bias")->form, VEC_DATA);
    assert_int_equal(find_in(one, "bias")->dtype, SLM_F32);
    vec_values(find_in(one, "bias"), got);
    assert_memory_equal(got, bias, sizeof bias);
    vec_values(find_in(one, "score"), got);
    assert_true(got[0] == 0.875f && isnan(got[1]) && got[2] == 0.25f);
    assert_int_equal(find_out(one, 0, "weight")->form, VEC_WORDS);
    assert_int_equal(find_out(one, 0, "weight")->dtype, SLM_F64);
    assert_memory_equal(find_out(one, 0, "weight")->values, weight, sizeof weight);
    assert_int_equal(find_out(one, 0, "cutoff")->dtype, SLM_F32);
    vec_free(set);

    set = text_load(text_layer);
    one = find_case(set, "layer/good/one");
    vec_values_range(find_in(one, "x"), 0, 6, got);
    assert_memory_equal(got, words, sizeof words);
    vec_values_range(find_in(one, "w_lift"), 0, 2, got);
    assert_true(got[0] == 0x1p-133f && got[1] == 0x1.fep+127f);
    vec_values_range(find_in(one, "bias"), 1, 1, got);
    assert_true(got[0] == -INFINITY);
    const double *y = find_out(one, 0, "y")->values;
    assert_true(y[0] == 0x1.123456789abcdp-3 && y[1] == 0x1p-1023);
    assert_true(y[2] == (double)INFINITY && y[3] == -(double)INFINITY && isnan(y[4]));
    assert_true(y[5] == 0 && signbit(y[5]));
    vec_free(set);
}

static void integers_keep_all_their_bits(void **state)
{
    static const int64_t added[] = {0, 1, -1, INT64_MAX, INT64_MIN, 5};
    static const int64_t pooled[] = {1, -1, INT64_MAX, 2, 3, 4};
    static const int32_t ids[] = {0, 1, INT32_MAX, INT32_MIN, 1, 0, 1, 0};
    static const int64_t made[] = {28, 62, 44, 22, 14, 36};
    int64_t got[6];
    vec_set *set = text_load(text_counts);
    const vec_case *add = find_case(set, "hist/good/add");

    (void)state;
    assert_memory_equal(find_in(add, "hist")->values, added, sizeof added);
    assert_memory_equal(find_out(find_case(set, "hist/good/merge"), 0, "hist")->values,
                        pooled, sizeof pooled);
    assert_memory_equal(find_in(find_case(set, "hist/good/misshapen"), "ids")->values,
                        ids, sizeof ids);
    assert_int_equal(find_in(add, "score")->count, 0);
    vec_values(find_in(add, "score"), NULL);
    for (size_t i = 0; i < 6; i++) {
        const int64_t *fill = find_out(add, 0, "hist")->values;

        assert_int_equal(fill[i], 7);
    }
    vec_free(set);

    /* The recipe goes with the name: this one was worked out for "hist". */
    char *text = text_replace(text_counts, "hist: {shape: [2, 3], fill: 1}",
                              "hist: {shape: [2, 3], gen: "
                              "{seed: 3, bits: 4, scale: 0x1p+1, add: 40}}");

    set = text_load(text);
    vec_values(find_in(find_case(set, "hist/good/solve"), "hist"), got);
    assert_memory_equal(got, made, sizeof made);
    vec_free(set);
    free(text);
}

static void outcomes_say_what_may_come_out(void **state)
{
    vec_set *set = text_load(text_select);
    const vec_case *one = find_case(set, "select/good/one");
    const vec_case *two = find_case(set, "select/good/two");
    const vec_case *three = find_case(set, "select/good/three");
    const vec_case *four = find_case(set, "select/good/four");
    const vec_case *five = find_case(set, "select/good/five");

    (void)state;
    assert_int_equal(one->outcomes[0].status, SLM_OK);
    assert_int_equal(find_out(one, 0, "ids")->any[0], 0);
    assert_int_equal(find_out(one, 0, "ids")->any[1], 1);
    assert_null(find_out(one, 0, "weight")->any);
    assert_int_equal(two->outcomes[0].status, SLM_ERR_DOMAIN);
    assert_string_equal(two->outcomes[0].field, "top_k");
    assert_int_equal(two->outcomes[0].n_out, 0);
    assert_int_equal(find_out(three, 0, "ids")->form, VEC_PENDING);
    assert_int_equal(find_out(three, 0, "ids")->rank, 2);
    assert_int_equal(find_out(three, 0, "ids")->count, 2);
    assert_int_equal(find_out(three, 0, "weight")->form, VEC_DIGEST);
    assert_int_equal(strlen(find_out(three, 0, "weight")->sha256), 64);
    assert_int_equal(four->n_outcomes, 2);
    assert_int_equal(four->outcomes[0].status, SLM_ERR_NONFINITE);
    assert_string_equal(four->outcomes[0].field, "logit");
    assert_int_equal(find_out(four, 1, "ids")->any[1], 1);
    assert_string_equal(five->alias_output->name, "weight");
    assert_string_equal(five->alias_with->name, "score");
    assert_null(one->alias_output);
    vec_free(set);
}

static void marks_are_bytes_and_end_with_the_value(void **state)
{
    static const struct {
        const char *id, *name, *text;
        size_t line, column, indent;
    } known[] = {
        {"select/good/one", "ids", " {shape: [1, 2], data: [2, any]}", 18, 12, 6},
        {"select/good/one", "cutoff", " {shape: [1], fill: 0x1p-2}", 26, 15, 6},
        {"select/good/three", "ids", " pending", 47, 12, 6},
        {"select/good/four", "ids", " {shape: [1, 2], fill: any}", 58, 16, 10},
    };
    static const char block[] = "shape: [1, 2]\n"
                                "        words: | # bits\n"
                                "          3fd0000000000000\n"
                                "          3fe8000000000000";
    vec_set *set = text_load(text_select);
    const vec_tensor *weight = find_out(find_case(set, "select/good/one"), 0, "weight");

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const vec_case *test = find_case(set, known[i].id);
        const vec_tensor *out = find_out(test, test->n_outcomes - 1, known[i].name);

        assert_int_equal(out->begin.line, known[i].line);
        assert_int_equal(out->begin.column, known[i].column);
        assert_int_equal(out->indent, known[i].indent);
        assert_int_equal(out->begin.byte, out->after_key + 1);
        assert_int_equal(out->end.byte, out->after_key + strlen(known[i].text));
        assert_memory_equal(text_select + out->after_key, known[i].text,
                            strlen(known[i].text));
    }
    assert_memory_equal(text_select + weight->begin.byte, block, strlen(block));
    assert_int_equal(weight->end.byte, weight->begin.byte + strlen(block));
    assert_int_equal(weight->end.line, 23);
    assert_int_equal(weight->end.column, 27);
    vec_free(set);
}

/* What gen does: the value of a pending output in its place. */
static char *fill_in(const char *text, const char *id, const char *name,
                     const void *values)
{
    vec_set *set = text_load(text);
    const vec_tensor *out = find_out(find_case(set, id), 0, name);
    char *value = vec_format(out->dtype, out->rank, out->shape, values, out->indent);
    char *old = strndup(text + out->after_key, out->end.byte - out->after_key);
    char *before = strndup(text, out->after_key);
    char *rest = text_replace(text + out->after_key, old, value);
    char *whole = malloc(strlen(before) + strlen(rest) + 1);

    assert_non_null(value);
    stpcpy(stpcpy(whole, before), rest);
    free(value);
    free(old);
    free(before);
    free(rest);
    vec_free(set);
    return whole;
}

static const char pending[] = "schema: slm-vector/1\n"
                              "family: a/b\n"
                              "about: ☃\n"
                              "clause: [R1]\n"
                              "cases:\n"
                              "  - id: a\n"
                              "    op: route\n"
                              "    provenance: ref\n"
                              "    config: {n: N, d: 1, k: 1}\n"
                              "    in:\n"
                              "      x: {shape: [2, 1], fill: 0x0p+0}\n"
                              "      w_router: {shape: [N, 1], fill: 0x0p+0}\n"
                              "      bias: {shape: [N], fill: 0x0p+0}\n"
                              "    out:\n"
                              "      logit:   pending\n"
                              "\n"
                              "      # of each expert\n"
                              "      score: pending\n";

static char *pending_of(const char *n)
{
    char *text = strdup(pending);

    while (strstr(text, "N")) {
        char *next = text_replace(text, "N", n);

        free(text);
        text = next;
    }
    return text;
}

static void written_values_load_as_the_same_bits(void **state)
{
    static const char *const sizes[] = {"1", "32", "33", "40000"};
    static const vec_form forms[] = {VEC_DATA, VEC_DATA, VEC_WORDS, VEC_DIGEST};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const size_t n = 2 * strtoul(sizes[i], NULL, 10);
        double *logit = calloc(n, sizeof *logit);
        float *score = calloc(n, sizeof *score);
        char *text = pending_of(sizes[i]), *once, *twice, digest[65];

        for (size_t j = 0; j < n; j++) {
            logit[j] = ldexp(1.0 + (double)j / 3, (int)(j % 2100) - 1074);
            score[j] = j % 2 ? -0.0f : ldexpf(1.0f + (float)j / 3, (int)j - 149);
        }
        once = fill_in(text, "a/b/a", "logit", logit);
        assert_non_null(strstr(once, "\n\n      # of each expert\n"));
        twice = fill_in(once, "a/b/a", "score", score);
        vec_set *set = text_load(twice);
        const vec_tensor *one = find_out(find_case(set, "a/b/a"), 0, "logit");
        const vec_tensor *two = find_out(find_case(set, "a/b/a"), 0, "score");

        assert_int_equal(one->form, forms[i]);
        assert_int_equal(two->form, forms[i]);
        if (forms[i] == VEC_DIGEST) {
            vec_sha256(logit, n * sizeof *logit, digest);
            assert_string_equal(one->sha256, digest);
        } else {
            assert_memory_equal(one->values, logit, n * sizeof *logit);
            assert_memory_equal(two->values, score, n * sizeof *score);
        }
        vec_free(set);
        char *again = fill_in(twice, "a/b/a", "logit", logit);

        assert_string_equal(again, twice);
        free(again);
        free(twice);
        free(once);
        free(text);
        free(score);
        free(logit);
    }
}

static void a_flow_list_is_broken_at_its_rows(void **state)
{
    static const double values[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6};
    static const int32_t ids[] = {1, 0};
    char *text = vec_format(SLM_F64, 2, (size_t[]){2, 3}, values, 6);

    (void)state;
    assert_string_equal(
        text,
        " {shape: [2, 3], data: [\n"
        "          0x1.999999999999ap-4, 0x1.999999999999ap-3, 0x1.3333333333333p-2,\n"
        "          0x1.999999999999ap-2, 0x1p-1, 0x1.3333333333333p-1]}");
    free(text);
    text = vec_format(SLM_I32, 2, (size_t[]){1, 2}, ids, 6);
    assert_string_equal(text, " {shape: [1, 2], data: [1, 0]}");
    free(text);
    text = vec_format(SLM_F32, 1, (size_t[]){4},
                      (float[]){NAN, INFINITY, -INFINITY, 0x1p-149f}, 6);
    assert_string_equal(text, " {shape: [4], data: [nan, inf, -inf, 0x1p-149]}");
    free(text);
    text = vec_format(SLM_I64, 1, (size_t[]){2}, (int64_t[]){-1, INT64_MAX}, 6);
    assert_string_equal(text, " {shape: [2], data: [-1, 9223372036854775807]}");
    free(text);
    text = vec_format(SLM_F32, 2, (size_t[]){0, 2}, NULL, 6);
    assert_string_equal(text, " {shape: [0, 2], data: []}");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_family_is_loaded_as_it_is_written),
        cmocka_unit_test(a_case_extends_its_family),
        cmocka_unit_test(a_configuration_is_a_profile_and_what_replaces_it),
        cmocka_unit_test(floats_have_the_bits_that_are_written),
        cmocka_unit_test(integers_keep_all_their_bits),
        cmocka_unit_test(outcomes_say_what_may_come_out),
        cmocka_unit_test(marks_are_bytes_and_end_with_the_value),
        cmocka_unit_test(written_values_load_as_the_same_bits),
        cmocka_unit_test(a_flow_list_is_broken_at_its_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
