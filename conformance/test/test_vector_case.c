/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_vector_case.c - families and cases that the loader refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "vector_text.h"

#include <stdlib.h>

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static void what_a_family_must_have_is_asked_for(void **state)
{
    static const text_fault faults[] = {
        {"schema: slm-vector/1\n", "", 1, 1, "a family needs schema"},
        {"about: ", "# ", 1, 1, "a family needs about"},
        {"clause: [R2, R3]\n", "", 1, 1, "a family needs clause"},
        {"slm-vector/1", "slm-vector/2", 1, 9,
         "schema: expected slm-vector/1, got 'slm-vector/2'"},
        {"slm-vector/1", "\"slm-vector/1\"", 1, 9,
         "schema: expected slm-vector/1, got 'slm-vector/1' in quotes"},
        {"select/good", "select/Good", 2, 9,
         "family: expected words of a-z, 0-9, - and _ joined by /, got 'select/Good'"},
        {"select/good", "select//good", 2, 9,
         "family: expected words of a-z, 0-9, - and _ joined by /, got 'select//good'"},
        {"select/good", "/select", 2, 9,
         "family: expected words of a-z, 0-9, - and _ joined by /, got '/select'"},
        {"select/good", "", 2, 8,
         "family: expected words of a-z, 0-9, - and _ joined by /, got nothing"},
        {"select/good",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         2, 9, "family: expected at most 128 bytes, got 129"},
        {"\"Größe ∑ ☃\"", "[a]", 3, 8, "about: expected one line of text, got a list"},
        {"\"Größe ∑ ☃\"", "", 3, 7, "about: expected one line of text, got nothing"},
        {"\"Größe ∑ ☃\"", "|\n  two\n  lines", 3, 8,
         "about: expected one line of text, got a line break (for long text write >-)"},
        {"[R2, R3]", "[]", 4, 9,
         "clause: expected a list of clauses, got an empty list"},
        {"[R2, R3]", "R2", 4, 9, "clause: expected a list of clauses, got 'R2'"},
        {"[R2, R3]", "[R2, r3]", 4, 14, "clause: expected a clause like R2, got 'r3'"},
        {"[R2, R3]", "[R2, [R3]]", 4, 14,
         "clause: expected a clause like R2, got a list"},
        {"[R2, R3]", "[R1234]", 4, 10,
         "clause: expected a clause like R2, got 'R1234'"},
        {"[bias-ignored]", "[Bias]", 5, 9,
         "kills: expected a word of a-z, 0-9, - and _, got 'Bias'"},
        {"[bias-ignored]", "{a: b}", 5, 8,
         "kills: expected a list of words, got a mapping"},
        {"[bias-ignored]",
         "[a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, "
         "a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, "
         "a, a, a, a, a, a, a, a, a, a, a, a, a, a, a]",
         5, 8, "kills: expected at most 64 words, got 65"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void what_a_case_must_have_is_asked_for(void **state)
{
    static const text_fault faults[] = {
        {"  - id: one\n    note", "  - note", 10, 5, "a case needs id"},
        {"    op: select\n", "", 10, 5, "a case needs op"},
        {"    provenance: hand\n", "", 10, 5, "a case needs provenance"},
        {"id: two", "id: one", 27, 9, "id 'one' is taken, by the case at line 10"},
        {"id: two", "id: Two", 27, 9,
         "id: expected a word of a-z, 0-9, - and _, got 'Two'"},
        {"id: two", "id: [two]", 27, 9,
         "id: expected a word of a-z, 0-9, - and _, got a list"},
        {"id: two",
         "id: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 27, 9,
         "id: expected at most 64 bytes, got 65"},
        {"weights of ü", "", 11, 10, "note: expected one line of text, got nothing"},
        {"weights of ü", "{a: b}", 11, 11,
         "note: expected one line of text, got a mapping"},
        {"weights of ü", "|\n      ü\n", 11, 11,
         "note: expected one line of text, got a line break (for long text write >-)"},
        {"op: select", "op: sellect", 12, 9,
         "op: expected one of route, select, permute, situ_glu, dense_ffn, rmsnorm, "
         "layer_forward, qb_exact, qb_hist_accumulate, qb_hist_merge, qb_hist_solve, "
         "sign_step, load_metrics, situ_glu_backward, rmsnorm_backward, "
         "select_backward, "
         "dense_ffn_backward, layer_backward, qb_observe, qb_commit, got 'sellect'"},
        {"op: select", "op: \"select\"", 12, 9,
         "op: expected one of route, select, permute, situ_glu, dense_ffn, rmsnorm, "
         "layer_forward, qb_exact, qb_hist_accumulate, qb_hist_merge, qb_hist_solve, "
         "sign_step, load_metrics, situ_glu_backward, rmsnorm_backward, "
         "select_backward, "
         "dense_ffn_backward, layer_backward, qb_observe, qb_commit, got 'select' in "
         "quotes"},
        {"provenance: hand", "provenance: hands", 13, 17,
         "provenance: expected one of hand, document, oracle, ref, public-report, got "
         "'hands'"},
        {"    source: the note, \"Router\"\n", "", 29, 17,
         "provenance document needs a source"},
        {"    source: https://example.org/issues/1\n", "", 61, 17,
         "provenance public-report needs a source"},
        {"https://example.org/issues/1", "example.org", 62, 13,
         "source: expected a link (https://...), got 'example.org'"},
        {"tier: smoke", "tier: slow", 14, 11,
         "tier: expected one of smoke, quick, full, got 'slow'"},
        {"superseded_by: three", "superseded_by: two", 36, 20,
         "superseded_by: expected another case of this family, got 'two'"},
        {"superseded_by: three", "superseded_by: sechs", 36, 20,
         "superseded_by: expected another case of this family, got 'sechs'"},
        {"superseded_by: three", "superseded_by: 3 x", 36, 20,
         "superseded_by: expected words of a-z, 0-9, - and _ joined by /, got '3 x'"},
        {"[R4]", "[4]", 52, 14, "clause: expected a clause like R2, got '4'"},
        {"[nan-wins]", "nan-wins", 53, 12,
         "kills: expected a list of words, got 'nan-wins'"},
        {"[door]", "[]", 35, 11, "tags: expected a list of words, got an empty list"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void a_configuration_is_typed(void **state)
{
    static const text_fault faults[] = {
        {"{n: 3, k: 2}", "{n: 3, k: 2, fs: 1.0}", 6, 26,
         "config.fs: expected a decimal integer >= 0, got '1.0'"},
        {"{n: 3, k: 2}", "{n: 3, k: 2, R: x}", 6, 25,
         "config.R: expected a decimal integer >= 0, got 'x'"},
        {"{n: 3, k: 2}", "[n, k]", 6, 9, "config: expected a mapping, got a list"},
        {"{n: 3, k: 2}", "", 6, 8, "config: expected a mapping, got nothing"},
        {"{n: 3, k: 2}", "{n: -3, k: 2}", 6, 13,
         "config.n: expected a decimal integer >= 0, got '-3'"},
        {"{n: 3, k: 2}", "{n: 03, k: 2}", 6, 13,
         "config.n: expected a decimal integer >= 0, got '03'"},
        {"{n: 3, k: 2}", "{n: 3.0, k: 2}", 6, 13,
         "config.n: expected a decimal integer >= 0, got '3.0'"},
        {"{n: 3, k: 2}", "{n: \"3\", k: 2}", 6, 13,
         "config.n: expected a decimal integer >= 0, got '3' in quotes"},
        {"{n: 3, k: 2}", "{n: [3], k: 2}", 6, 13,
         "config.n: expected a decimal integer >= 0, got a list"},
        {"{n: 3, k: 2}", "{n: 18446744073709551616, k: 2}", 6, 13,
         "config.n: 18446744073709551616 does not fit in 64 bits"},
        {"profile: release", "profile: papers", 40, 23,
         "config.profile: expected one of paper, release, vanilla, linear, got "
         "'papers'"},
        {"profile: release", "score: sigmod", 40, 21,
         "config.score: expected one of sigmoid, softmax, got 'sigmod'"},
        {"profile: release", "weighting: x", 40, 25,
         "config.weighting: expected one of ratio, release, got 'x'"},
        {"profile: release", "expert: x", 40, 22,
         "config.expert: expected one of situ, swiglu, relu, linear, got 'x'"},
        {"profile: release", "norm: x", 40, 20,
         "config.norm: expected one of rms, none, got 'x'"},
        {"profile: release", "balance: x", 40, 23,
         "config.balance: expected one of strict, relaxed, got 'x'"},
        {"profile: release", "tie_test: x", 40, 24,
         "config.tie_test: expected one of note, equal, got 'x'"},
        {"profile: release", "dtype: f64", 40, 21,
         "config.dtype: expected one of f32, bf16, got 'f64'"},
        {"eps: 1e-7", "eps: 0x1p-7", 40, 37,
         "config.eps: expected a decimal number like 1e-6, got '0x1p-7'"},
        {"eps: 1e-7", "eps: 1.00000000000000001e-7", 40, 37,
         "config.eps: 1.00000000000000001e-7 is kept as f64, which denotes 1e-07; "
         "write that"},
        {"eps: 1e-7", "eps: 1e999", 40, 37, "config.eps: 1e999 does not fit in f64"},
        {"eps: 1e-7", "eps: 1e-999", 40, 37,
         "config.eps: 1e-999 is kept as f64, which denotes 0; write that"},
        {"eps: 1e-7", "eps: .1", 40, 37,
         "config.eps: expected a decimal number like 1e-6, got '.1'"},
        {"eps: 1e-7", "eps: [1]", 40, 37,
         "config.eps: expected a decimal number, got a list"},
        {"rate: 0x1p-9", "rate: 0x1.0000001p-9", 40, 49,
         "config.rate: 0x1.0000001p-9 needs 29 significant bits, f32 has 24"},
        {"rate: 0x1p-9", "rate: 0.5", 40, 49,
         "config.rate: 0.5 is decimal: its bits are not what is written; write 0x1p-1"},
        {"rate: 0x1p-9", "beta_up: 25", 40, 52,
         "config.beta_up: 25 is decimal: its bits are not what is written; write "
         "0x1.9p+4"},
        {"rate: 0x1p-9", "beta_gate: \"0x1p+2\"", 40, 54,
         "config.beta_gate: expected a hexadecimal float, got '0x1p+2' in quotes"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void inputs_are_complete_and_fit_the_configuration(void **state)
{
    static const text_fault faults[] = {
        {"    in:\n      score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}\n", "",
         10, 5, "in: expected one of score and logit, got neither"},
        {"      score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}\n",
         "      score: {shape: [1, 3], fill: 0x0p+0}\n      logit: {shape: [1, 3], "
         "fill: 0x0p+0}\n",
         16, 7, "in: expected one of score and logit, got both"},
        {"in:\n  bias: {shape: [3], data: [-0x1p+0, 0x0p+0, 0x1p+0]}\n", "", 14, 7,
         "in.bias is missing: select needs it"},
        {"score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}",
         "score: {shape: [1, 4], fill: 0x0p+0}", 16, 14,
         "in.score: expected shape [T, n], which is [1, 3], got [1, 4]"},
        {"score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}",
         "score: {shape: [3], fill: 0x0p+0}", 16, 14,
         "in.score: expected shape [T, n], which is [3, 3], got [3]"},
        {"{k: 0, T: 1}", "{k: 0, T: 2}", 32, 17,
         "in.score: expected shape [T, n], which is [2, 3], got [1, 3]"},
        {"    in:\n      score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}\n",
         "    in: [score]\n", 15, 9, "in: expected a mapping of tensors, got a list"},
        {"ids: {shape: [1, 2], data: [2, any]}", "ids: {shape: [2, 1], data: [2, any]}",
         18, 12, "out.ids: expected shape [T, k], which is [1, 2], got [2, 1]"},
        {"op: select", "op: situ_glu", 8, 3,
         "unknown input 'bias' of situ_glu; known: gate_up"},
        {"clause: [R4]", "config: {k: 3, n: 9223372036854775808}\n    clause: [R4]", 55,
         17,
         "in.logit: expected shape [T, n], which is [1, 9223372036854775808], got [1, "
         "3]"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void outputs_are_what_the_operation_writes(void **state)
{
    static const text_fault faults[] = {
        {"    in: {logit: {shape: [1, 3], fill: nan}}\n    either:\n      - {status: "
         "SLM_ERR_NONFINITE, field: logit}\n      - out:\n          ids: {shape: [1, "
         "2], fill: any}\n",
         "    config: {k: 3}\n    in: {logit: {shape: [1, 3], fill: nan}}\n    out: "
         "{cutoff: {shape: [1], fill: any}}\n",
         56, 11, "out.cutoff is not written when k = n"},
        {"      - {status: SLM_ERR_NONFINITE, field: logit}\n      - out:\n          "
         "ids: {shape: [1, 2], fill: any}\n",
         "      x\n", 56, 7, "either: expected a list of outcomes, got 'x'"},
        {"config: {n: 3, k: 2}", "config: {n: 3, k: 3}", 18, 12,
         "out.ids: expected shape [T, k], which is [1, 3], got [1, 2]"},
        {"ids: {shape: [1, 2], data: [2, any]}", "ids: pending", 18, 12,
         "out.ids: pending needs provenance ref: `gen` writes no other"},
        {"    out:\n      ids: pending\n", "    out: {}\n#", 46, 10,
         "out: expected a tensor, got none"},
        {"    out:\n      ids: pending\n", "    out: {ids: pending}\n#", 46, 10,
         "out: provenance ref needs block style, which `gen` rewrites"},
        {"      ids: pending", "      ids: # later\n        pending", 48, 9,
         "out.ids: `gen` rewrites this value; put the comment on a line of its own"},
        {"      ids: pending", "      ids: pending # later", 47, 12,
         "out.ids: `gen` rewrites this value; put the comment on a line of its own"},
        {"    status: SLM_ERR_DOMAIN\n    field: top_k\n", "", 27, 5,
         "a case needs one of out, status and either, got none"},
        {"    status: SLM_ERR_DOMAIN\n", "    status: SLM_ERR_DOMAIN\n    out: {}\n",
         27, 5, "a case needs one of out, status and either, got several"},
        {"    status: SLM_ERR_DOMAIN\n", "", 27, 5,
         "a case needs one of out, status and either, got none"},
        {"    field: top_k", "    field: top k", 34, 12,
         "field: expected a word of a-z, 0-9, - and _, got 'top k'"},
        {"    field: top_k", "    field: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 34, 12,
         "field: expected at most 31 bytes, got 32"},
        {"SLM_ERR_DOMAIN", "SLM_OK", 33, 13,
         "status: expected one of SLM_ERR_SHAPE, SLM_ERR_ALIAS, SLM_ERR_DOMAIN, "
         "SLM_ERR_NONFINITE, SLM_ERR_TARGET, SLM_ERR_TIE, got 'SLM_OK'"},
        {"    either:\n", "    field: logit\n    either:\n", 55, 5,
         "field goes with status only"},
        {"SLM_ERR_DOMAIN", "SLM_ERR_UNSUPPORTED", 33, 13,
         "status: expected one of SLM_ERR_SHAPE, SLM_ERR_ALIAS, SLM_ERR_DOMAIN, "
         "SLM_ERR_NONFINITE, SLM_ERR_TARGET, SLM_ERR_TIE, got 'SLM_ERR_UNSUPPORTED'"},
        {"      - {status: SLM_ERR_NONFINITE, field: logit}\n", "", 56, 7,
         "either: expected at least two outcomes, got 1"},
        {"      - {status: SLM_ERR_NONFINITE, field: logit}\n",
         "      - {field: logit}\n", 56, 9,
         "an outcome needs one of out and status, got neither"},
        {"{status: SLM_ERR_NONFINITE, field: logit}",
         "{status: SLM_ERR_NONFINITE, out: {}}", 56, 9,
         "an outcome needs one of out and status, got both"},
        {"      - {status: SLM_ERR_NONFINITE, field: logit}\n", "      - status\n", 56,
         9, "an outcome: expected a mapping, got 'status'"},
        {"      - {status: SLM_ERR_NONFINITE, field: logit}\n",
         "      - {out: {ids: {shape: [1, 2], fill: 1}}, field: logit}\n", 56, 48,
         "field goes with status only"},
        {"SLM_ERR_ALIAS", "SLM_ERR_TIE\n    field: bias\n    tags: []", 66, 11,
         "tags: expected a list of words, got an empty list"},
        {"    status: SLM_ERR_ALIAS\n", "    out: {ids: {shape: [2, 2], fill: any}}\n",
         65, 5, "alias goes with status only"},
        {"with: score}", "with: weight}", 65, 35,
         "alias.with: weight is the output itself"},
        {"with: score}", "with: z}", 65, 35,
         "alias.with: expected one of score, logit, bias, ids, weight, cutoff, got "
         "'z'"},
        {"output: weight", "output: score", 65, 21,
         "alias.output: expected one of ids, weight, cutoff, got 'score'"},
        {"output: weight, ", "", 65, 12, "alias.output is missing"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

#define FAMILY "schema: slm-vector/1\nfamily: a/b\nabout: x\nclause: [R2]\ncases:"

static void a_family_has_cases(void **state)
{
    static const text_fault faults[] = {
        {NULL, FAMILY " []\n", 5, 8,
         "cases: expected a list of cases, got an empty list"},
        {NULL, FAMILY " {a: b}\n", 5, 8,
         "cases: expected a list of cases, got a mapping"},
        {NULL, FAMILY "\n", 5, 7, "cases: expected a list of cases, got nothing"},
        {NULL, FAMILY " [a]\n", 5, 9, "a case: expected a mapping, got 'a'"},
    };

    (void)state;
    text_whole_faults(faults, LENGTH(faults));
}

static void sizes_that_overflow_are_refused(void **state)
{
    static const text_fault faults[] = {
        {NULL,
         FAMILY "\n"
                "  - id: a\n"
                "    op: situ_glu\n"
                "    provenance: hand\n"
                "    config: {f: 9223372036854775808}\n"
                "    in: {gate_up: {shape: [1, 2], fill: 0x0p+0}}\n"
                "    out: {h: {shape: [1, 1], fill: 0x0p+0}}\n",
         10, 19, "in.gate_up: a size of [T, 2f] does not fit in this machine"},
        {NULL,
         FAMILY "\n"
                "  - id: a\n"
                "    op: rmsnorm\n"
                "    provenance: ref\n"
                "    config: {T: 4294967296, l: 4294967296}\n"
                "    in: {}\n"
                "    either:\n"
                "      - status: SLM_ERR_SHAPE\n"
                "      - out:\n"
                "          r: pending\n",
         14, 14, "out.r: shape [4294967296, 4294967296] has too many elements"},
    };

    (void)state;
    text_whole_faults(faults, LENGTH(faults));
}

static void expect_good(const char *text, const char *old, const char *new)
{
    char *other = text_replace(text, old, new);

    vec_free(text_load(other));
    free(other);
}

static void an_index_goes_with_a_field_and_stands_in_either_too(void **state)
{
    static const text_fault faults[] = {
        {"    field: top_k", "    index: 3", 34, 5, "index needs a field"},
        {"    field: top_k", "    field: top_k\n    index: -1", 35, 12,
         "index: expected a decimal integer >= 0, got '-1'"},
        {"    field: top_k", "    field: top_k\n    index: 0x1", 35, 12,
         "index: expected a decimal integer >= 0, got '0x1'"},
        {"    either:\n", "    index: 3\n    either:\n", 55, 5,
         "index goes with status only"},
        {"      - {status: SLM_ERR_NONFINITE, field: logit}\n",
         "      - {out: {ids: {shape: [1, 2], fill: 1}}, index: 3}\n", 56, 48,
         "index goes with status only"},
    };
    char *text =
        text_replace(text_select, "field: top_k", "field: top_k\n    index: 0");
    char *more = text_replace(text, "field: logit}", "field: logit, index: 2}");
    vec_set *set = text_load(more);
    const vec_outcome *none = &set->families[0].cases[0].outcomes[0];
    const vec_outcome *zero = &set->families[0].cases[1].outcomes[0];
    const vec_outcome *two = &set->families[0].cases[3].outcomes[0];

    (void)state;
    assert_false(none->has_index);
    assert_true(zero->has_index);
    assert_int_equal(zero->index, 0);
    assert_true(two->has_index);
    assert_int_equal(two->index, 2);
    vec_free(set);
    free(more);
    free(text);
    text_faults(text_select, faults, LENGTH(faults));
}

static void shape_cases_may_lack_arguments_and_disagree(void **state)
{
    static const char field[] = "SLM_ERR_DOMAIN\n    field: top_k";
    char *text = text_replace(text_select, field, "SLM_ERR_SHAPE");

    (void)state;
    expect_good(text, "in: {score: {shape: [1, 3], fill: 0x1p-1}}", "in: {}");
    expect_good(text, "in: {score: {shape: [1, 3], fill: 0x1p-1}}",
                "in: {score: {shape: [1, 2, 3], fill: 0x1p-1}}");
    expect_good(
        text, "in: {score: {shape: [1, 3], fill: 0x1p-1}}",
        "in: {score: {shape: [1], fill: 0x1p-1}, logit: {shape: [2], fill: nan}}");
    free(text);
    expect_good(text_select, field, "SLM_ERR_TIE"); /* `field` may be left out */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_family_must_have_is_asked_for),
        cmocka_unit_test(what_a_case_must_have_is_asked_for),
        cmocka_unit_test(a_configuration_is_typed),
        cmocka_unit_test(inputs_are_complete_and_fit_the_configuration),
        cmocka_unit_test(outputs_are_what_the_operation_writes),
        cmocka_unit_test(a_family_has_cases),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(an_index_goes_with_a_field_and_stands_in_either_too),
        cmocka_unit_test(shape_cases_may_lack_arguments_and_disagree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
