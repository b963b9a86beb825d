/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_vector_tensor.c - tensors that the loader refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "vector_text.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static void a_tensor_has_one_form(void **state)
{
    static const text_fault faults[] = {
        {"ids: {shape: [1, 2], data: [2, any]}", "ids: [2, any]", 18, 12,
         "out.ids: expected a tensor or pending, got a list"},
        {"score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}", "score: pending", 16,
         14, "in.score: pending stands for outputs, this is an input"},
        {"score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}", "score: 3", 16, 14,
         "in.score: expected a tensor, got '3'"},
        {"ids: {shape: [1, 2], data: [2, any]}", "ids: {data: [2, any]}", 18, 12,
         "out.ids: shape is missing"},
        {"ids: {shape: [1, 2], data: [2, any]}", "ids: {shape: [1, 2]}", 18, 12,
         "out.ids: needs one of data, words, fill, sha256"},
        {"data: [0x1.cp-1, nan, 0x1p-2]",
         "sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 16,
         30, "in.score: sha256 alone stands for outputs, this is an input"},
        {"score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}",
         "score: {shape: [1, 3]}", 16, 14,
         "in.score: needs one of data, words, fill, gen"},
        {"data: [2, any]", "data: [2, any], fill: 1", 18, 44,
         "out.ids: data and fill in one tensor"},
        {"data: [2, any]", "gen: {seed: 1, bits: 1, scale: 0x1p+0}", 18, 28,
         "out.ids: gen makes inputs, this is an output"},
        {"data: [2, any]",
         "data: [2, any], sha256: "
         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
         18, 44, "out.ids: sha256 beside data: the values are here"},
        {"\"0123456789abcdef", "\"0123456789ABCDEF", 48, 39,
         "out.weight.sha256: expected 64 lower-case hexadecimal digits, got "
         "'0123456789ABCDEF0123456789abcdef01234567...' in quotes"},
        {"\"0123456789abcdef", "\"0", 48, 39,
         "out.weight.sha256: expected 64 lower-case hexadecimal digits, got "
         "'00123456789abcdef0123456789abcdef0123456...' in quotes"},
        {"ids: {shape: [1, 2],", "ids: {shape: 2,", 18, 20,
         "out.ids.shape: expected a list of sizes, got '2'"},
        {"ids: {shape: [1, 2],", "ids: {shape: [],", 18, 20,
         "out.ids.shape: expected 1 to 4 sizes, got 0"},
        {"ids: {shape: [1, 2],", "ids: {shape: [1, 1, 1, 1, 2],", 18, 20,
         "out.ids.shape: expected 1 to 4 sizes, got 5"},
        {"ids: {shape: [1, 2],", "ids: {shape: [1, -2],", 18, 24,
         "out.ids.shape: expected a decimal integer >= 0, got '-2'"},
        {"ids: {shape: [1, 2],", "ids: {shape: [4294967296, 4294967296],", 18, 20,
         "out.ids: shape [4294967296, 4294967296] has too many elements"},
        {"ids: {shape: [1, 2],", "ids: {shape: [1, 3],", 18, 34,
         "out.ids: shape [1, 3] needs 3 values, got 2"},
        {"ids: {shape: [1, 2],", "ids: {shape: [1, 1],", 18, 34,
         "out.ids: shape [1, 1] needs 1 value, got 2"},
        {"data: [2, any]", "data: 2", 18, 34,
         "out.ids: expected a list of values, got '2'"},
        {"score: {shape: [1, 3], fill: 0x1p-1}",
         "score: {shape: [67108864, 2], fill: 0x1p-1}", 32, 46,
         "in.score: more than 67108864 values in one file"},
        {"weight: {shape: [1, 2], sha256: ", "weight: {shape: [3, 2], sha256: ", 48, 15,
         "out.weight: expected shape [T, k], which is [1, 2], got [3, 2]"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void numbers_are_exactly_what_is_written(void **state)
{
    static const text_fault faults[] = {
        {"nan, 0x1p-2", "0.5, 0x1p-2", 16, 47,
         "in.score: 0.5 is decimal: its bits are not what is written; write 0x1p-1"},
        {"nan, 0x1p-2", "0.1, 0x1p-2", 16, 47,
         "in.score: 0.1 is decimal: its bits are not what is written; no f32 is "
         "exactly that, the nearest is 0x1.99999ap-4"},
        {"nan, 0x1p-2", "1, 0x1p-2", 16, 47,
         "in.score: 1 is decimal: its bits are not what is written; write 0x1p+0"},
        {"nan, 0x1p-2", "+1e30, 0x1p-2", 16, 47,
         "in.score: +1e30 is decimal: its bits are not what is written; no f32 is "
         "exactly that, the nearest is 0x1.93e594p+99"},
        {"nan, 0x1p-2", "-.75e1, 0x1p-2", 16, 47,
         "in.score: -.75e1 is decimal: its bits are not what is written; write "
         "-0x1.ep+2"},
        {"nan, 0x1p-2", "0.1000000000000000055511151231257827, 0x1p-2", 16, 47,
         "in.score: 0.1000000000000000055511151231257827 is decimal: its bits are not "
         "what is written; write a hexadecimal float"},
        {"nan, 0x1p-2", "0x1.0000001p+0, 0x1p-2", 16, 47,
         "in.score: 0x1.0000001p+0 needs 29 significant bits, f32 has 24"},
        {"nan, 0x1p-2", "0x1.00000000000000001p+0, 0x1p-2", 16, 47,
         "in.score: 0x1.00000000000000001p+0 needs more than 60 significant bits, f32 "
         "has 24"},
        {"nan, 0x1p-2", "0x1p+128, 0x1p-2", 16, 47,
         "in.score: 0x1p+128 is beyond the largest f32"},
        {"nan, 0x1p-2", "0x1p-150, 0x1p-2", 16, 47,
         "in.score: 0x1p-150 is no multiple of 0x1p-149, the smallest f32"},
        {"nan, 0x1p-2", "0x1p-99999999999, 0x1p-2", 16, 47,
         "in.score: 0x1p-99999999999 is no multiple of 0x1p-149, the smallest f32"},
        {"nan, 0x1p-2", "0x1.8, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'0x1.8'"},
        {"nan, 0x1p-2", "0X1p+0, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'0X1p+0'"},
        {"nan, 0x1p-2", "0x.8p+0, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'0x.8p+0'"},
        {"nan, 0x1p-2", "+0x1p+0, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'+0x1p+0'"},
        {"nan, 0x1p-2", "0x1.p+0, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'0x1.p+0'"},
        {"nan, 0x1p-2", "NaN, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'NaN'"},
        {"nan, 0x1p-2", "-nan, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'-nan'"},
        {"nan, 0x1p-2", ".inf, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'.inf'"},
        {"nan, 0x1p-2", "'nan', 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float, got 'nan' in quotes"},
        {"nan, 0x1p-2", "any, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'any'"},
        {"nan, 0x1p-2", "[], 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float, got an empty list"},
        {"nan, 0x1p-2", "null, 0x1p-2", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'null'"},
        {"nan, 0x1p-2", "ü☃, 1.5", 16, 47,
         "in.score: expected a hexadecimal float like -0x1.8p-1, nan, inf or -inf, got "
         "'ü☃'"},
        {"data: [2, any]", "data: [2, 2147483648]", 18, 38,
         "out.ids: 2147483648 does not fit in i32"},
        {"data: [2, any]", "data: [2, -2147483649]", 18, 38,
         "out.ids: -2147483649 does not fit in i32"},
        {"data: [2, any]", "data: [2, 99999999999999999999]", 18, 38,
         "out.ids: 99999999999999999999 does not fit in i32"},
        {"data: [2, any]", "data: [2, 01]", 18, 38,
         "out.ids: expected a decimal integer, got '01'"},
        {"data: [2, any]", "data: [2, -0]", 18, 38,
         "out.ids: expected a decimal integer, got '-0'"},
        {"data: [2, any]", "data: [2, 0x1p+0]", 18, 38,
         "out.ids: expected a decimal integer, got '0x1p+0'"},
        {"data: [2, any]", "data: [2, 1_0]", 18, 38,
         "out.ids: expected a decimal integer, got '1_0'"},
        {"data: [2, any]", "data: [2, \"1\"]", 18, 38,
         "out.ids: expected a decimal integer, got '1' in quotes"},
        {"fill: nan", "fill: 1.5", 54, 39,
         "in.logit: 1.5 is decimal: its bits are not what is written; write 0x1.8p+0"},
        {"fill: nan", "fill: \"nan\"", 54, 39,
         "in.logit: expected a hexadecimal float, got 'nan' in quotes"},
        {"fill: nan", "fill: ", 54, 39,
         "in.logit: expected a hexadecimal float, got nothing"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void words_have_the_width_of_their_element(void **state)
{
    static const text_fault faults[] = {
        {"          3fe8000000000000\n", "", 21, 16,
         "out.weight: shape [1, 2] needs 2 words, got 1"},
        {"3fe8000000000000", "3fe8000000000000 3fe8000000000000", 21, 16,
         "out.weight: shape [1, 2] needs 2 words, got 3"},
        {"3fe8000000000000", "3fe80000", 23, 11,
         "out.weight: expected 16 lower-case hexadecimal digits, got '3fe80000'"},
        {"3fe8000000000000", "3FE8000000000000", 23, 11,
         "out.weight: expected 16 lower-case hexadecimal digits, got "
         "'3FE8000000000000'"},
        {"3fe8000000000000", "3fe800000000000g", 23, 11,
         "out.weight: expected 16 lower-case hexadecimal digits, got "
         "'3fe800000000000g'"},
        {"3fe8000000000000", "ü", 23, 11,
         "out.weight: expected 16 lower-case hexadecimal digits, got 'ü'"},
        {"words: | # bits", "words: >", 21, 16,
         "out.weight: expected a literal block (|) of words, got '3fd0000000000000 "
         "3fe8000000000000 '"},
        {"3fd0000000000000\n          3fe8000000000000",
         "0 111111111111111111111111111111111111111111111111111111111111", 22, 11,
         "out.weight: expected 16 lower-case hexadecimal digits, got '0'"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void recipes_stay_exact(void **state)
{
    static const text_fault faults[] = {
        {"      score:\n        shape: [1, 3]\n        gen",
         "      score:\n        shape: [67108865]\n        gen", 44, 14,
         "in.score: 67108865 elements are too many for a sha256, at most 67108864"},
        {"gen: {seed: 1, bits: 8, scale: 0x1p-10, add: 0x1p-1}", "gen: 1", 44, 14,
         "in.score.gen: expected a mapping, got '1'"},
        {"seed: 1, ", "", 44, 14, "in.score.gen.seed is missing"},
        {"bits: 8, ", "", 44, 14, "in.score.gen.bits is missing"},
        {"scale: 0x1p-10, ", "", 44, 14, "in.score.gen.scale is missing"},
        {"seed: 1", "seed: -1", 44, 21,
         "in.score.gen.seed: expected a decimal integer >= 0, got '-1'"},
        {"bits: 8", "bits: 0", 44, 30, "in.score.gen.bits: expected 1 to 23, got '0'"},
        {"bits: 8", "bits: 24", 44, 30,
         "in.score.gen.bits: expected 1 to 23, got '24'"},
        {"scale: 0x1p-10", "scale: 0x1.8p-10", 44, 40,
         "in.score.gen.scale: expected a power of two like 0x1p-4, got '0x1.8p-10'"},
        {"scale: 0x1p-10", "scale: -0x1p-10", 44, 40,
         "in.score.gen.scale: expected a power of two like 0x1p-4, got '-0x1p-10'"},
        {"scale: 0x1p-10", "scale: 0x0p+0", 44, 40,
         "in.score.gen.scale: expected a power of two like 0x1p-4, got '0x0p+0'"},
        {"scale: 0x1p-10", "scale: inf", 44, 40,
         "in.score.gen.scale: expected a power of two like 0x1p-4, got 'inf'"},
        {"scale: 0x1p-10", "scale: [0x1p-10]", 44, 40,
         "in.score.gen.scale: expected a hexadecimal float, got a list"},
        {"scale: 0x1p-10", "scale: 0.5", 44, 40,
         "in.score.gen.scale: 0.5 is decimal: its bits are not what is written; write "
         "0x1p-1"},
        {"add: 0x1p-1", "add: nan", 44, 54,
         "in.score.gen.add: expected a finite number, got 'nan'"},
        {"add: 0x1p-1", "add: 0.5", 44, 54,
         "in.score.gen.add: 0.5 is decimal: its bits are not what is written; write "
         "0x1p-1"},
        {"add: 0x1p-1", "add: 0x1p+14", 44, 14,
         "in.score.gen: add + scale * j of 8 bits is not always a value of f32"},
        {"scale: 0x1p-10", "scale: 0x1p-150", 44, 14,
         "in.score.gen: add + scale * j of 8 bits is not always a value of f32"},
        {"scale: 0x1p-10", "scale: 0x1p+120", 44, 14,
         "in.score.gen: add + scale * j of 8 bits is not always a value of f32"},
        {"        sha256: ff93", "        sha256: xf93", 45, 17,
         "in.score.sha256: expected 64 lower-case hexadecimal digits, got "
         "'xf93c9212ed704b4fae7f8915602174369ca17ff...'"},
    };

    (void)state;
    text_faults(text_select, faults, LENGTH(faults));
}

static void a_layer_takes_weights_of_its_experts_in_its_dtype(void **state)
{
    static const text_fault faults[] = {
        {"w_expert: {shape: [2, 1, 1]", "w_up: {shape: [2, 1, 1]", 20, 7,
         "'w_up' does not exist with expert: linear"},
        {"      w_expert: {shape: [2, 1, 1], fill: 0x1p+0}\n",
         "      gamma: {shape: [1], fill: 0x1p+0}\n", 20, 7,
         "'gamma' does not exist with norm: none"},
        {"      w_lift: {shape: [2, 1], data: [0x1p-133, 0x1.fep+127]}\n", "", 12, 7,
         "in.w_lift is missing: layer_forward needs it"},
        {"      y: {", "      h: {", 23, 7, "'h' does not exist with expert: linear"},
        {"00000000  80000000 7fc00000", "00000000  80000001 7fc00000", 16, 21,
         "in.x: expected a bf16: a word that ends in 0000, got '80000001'"},
        {"0x1.fep+0", "0x1.ffp+0", 19, 37,
         "in.w_down: 0x1.ffp+0 needs 9 significant bits, bf16 has 8"},
        {"0x1p-133", "0x1p-134", 21, 38,
         "in.w_lift: 0x1p-134 is no multiple of 0x1p-133, the smallest bf16"},
        {"0x1.fep+127", "0x1.ffp+127", 21, 48,
         "in.w_lift: 0x1.ffp+127 needs 9 significant bits, bf16 has 8"},
        {"0x1p-133", "0.1", 21, 38,
         "in.w_lift: 0.1 is decimal: its bits are not what is written; write a "
         "hexadecimal float"},
        {"0x1p-133", "0.5", 21, 38,
         "in.w_lift: 0.5 is decimal: its bits are not what is written; write 0x1p-1"},
        {"bits: 8, scale", "bits: 9, scale", 18, 38,
         "in.w_router.gen: add + scale * j of 9 bits is not always a value of bf16"},
        {"0x1.000002p+0", "0x1.000001p+0", 17, 33,
         "in.bias: 0x1.000001p+0 needs 25 significant bits, f32 has 24"},
        {"0x0.8p-1022", "0x0.8p-1074", 23, 55,
         "out.y: 0x0.8p-1074 is no multiple of 0x1p-1074, the smallest f64"},
        {"0x1.123456789abcdp-3", "0x1.123456789abcd8p-3", 23, 33,
         "out.y: 0x1.123456789abcd8p-3 needs 54 significant bits, f64 has 53"},
        {"words: |-", "words: >-", 14, 16,
         "in.x: expected a literal block (|) of words, got '3f800000 40000000 bf800000 "
         "00000000  800...'"},
        {"{profile: linear, dtype: bf16, norm: none, d: 2, l: 1,",
         "{profile: linear, dtype: bf16, norm: none, d: 2, l: 2,", 19, 15,
         "in.w_down: expected shape [l, d], which is [2, 2], got [1, 2]"},
        {"d: 2, l: 1", "S: 1, d: 2, l: 1", 12, 7,
         "in.w_shared is missing: layer_forward needs it"},
    };

    (void)state;
    text_faults(text_layer, faults, LENGTH(faults));
}

static void integers_stay_integers(void **state)
{
    static const text_fault faults[] = {
        {"scale: 0x1p+1", "scale: 0x1p-1", 14, 38,
         "in.parts.gen: add + scale * j of 4 bits is not always a value of i64"},
        {"add: 40", "add: 0x1p+5", 14, 77,
         "in.parts.gen.add: expected a decimal integer, got '0x1p+5'"},
        {"add: 40", "add: '40'", 14, 77,
         "in.parts.gen.add: expected a decimal integer, got '40' in quotes"},
        {"[0, 1, 2147483647, -2147483648, 1, 0, 1, 0]", "[0], gen: {}", 44, 39,
         "in.ids: data and gen in one tensor"},
        {"data: [0, 1, 2147483647, -2147483648, 1, 0, 1, 0]",
         "gen: {seed: 0, bits: 23, scale: 0x1p+9}", 44, 33,
         "in.ids.gen: add + scale * j of 23 bits is not always a value of i32"},
        {"add: 40", "add: 9007199254740993", 14, 38,
         "in.parts.gen: add + scale * j of 4 bits is not always a value of i64"},
        {"add: 40", "add: 9007199254740992", 14, 38,
         "in.parts.gen: add + scale * j of 4 bits is not always a value of i64"},
        {"add: 40", "add: 9223372036854775808", 14, 77,
         "in.parts.gen.add: 9223372036854775808 does not fit in i64"},
        {"9223372036854775807", "9223372036854775808", 27, 46,
         "in.hist: 9223372036854775808 does not fit in i64"},
        {"-9223372036854775808", "-9223372036854775809", 27, 67,
         "in.hist: -9223372036854775809 does not fit in i64"},
        {"fill: 7", "fill: 7.0", 29, 35,
         "out.hist: expected a decimal integer, got '7.0'"},
        {"    config: {T: 4}\n", "", 30, 5,
         "config.T is missing: no input of qb_hist_solve has it"},
        {"      parts: {shape: [2, 2, 3]", "      parts: {shape: [2, 2, 4]", 14, 14,
         "in.parts: expected shape [R, n, B], which is [2, 2, 3], got [2, 2, 4]"},
        {"      hist: {shape: [2, 3], fill: 7}",
         "      new_bias: {shape: [2, 3], fill: 7}", 29, 7,
         "unknown output 'new_bias' of qb_hist_accumulate; known: hist"},
        {"0x1.fffffep+127", "0x1.ffffffp+127", 38, 37,
         "out.new_bias: 0x1.ffffffp+127 needs 25 significant bits, f32 has 24"},
        {"0000000000000002 ", "000000000000002 ", 20, 11,
         "out.hist: expected 16 lower-case hexadecimal digits, got '000000000000002'"},
        {"7fffffffffffffff", "7fffffff", 19, 45,
         "out.hist: expected 16 lower-case hexadecimal digits, got '7fffffff'"},
    };

    (void)state;
    text_faults(text_counts, faults, LENGTH(faults));
}

/* A family of one case whose score is [1, n] of data. */
static char *long_data(size_t n)
{
    char list[4097 * 8 + 1] = "", text[40000], shape[16];
    char *at = list, *first;
    char *second;

    for (size_t i = 0; i < n; i++) at += sprintf(at, "0x0p+0%s", i + 1 < n ? "," : "");
    snprintf(text, sizeof text, "in: {score: {shape: [1, %zu], data: [%s]}}", n, list);
    snprintf(shape, sizeof shape, "{k: 0, n: %zu}", n);
    first =
        text_replace(text_select, "in: {score: {shape: [1, 3], fill: 0x1p-1}}", text);
    second = text_replace(first, "SLM_ERR_DOMAIN", "SLM_ERR_SHAPE");
    free(first);
    return second;
}

static void data_holds_at_most_4096_values(void **state)
{
    char *most = long_data(4096), *more = long_data(4097);
    const text_fault fault = {
        NULL, more, 32, 42,
        "in.score: at most 4096 values stand in data, got 4097; use words"};

    (void)state;
    vec_free(text_load(most));
    text_whole_faults(&fault, 1);
    free(most);
    free(more);
}

static void one_file_claims_at_most_2_to_the_26_values(void **state)
{
    static const char body[] = "schema: slm-vector/1\n"
                               "family: a/b\n"
                               "about: a\n"
                               "clause: [Q7]\n"
                               "config: {n: 1}\n"
                               "cases:\n"
                               "  - id: a\n"
                               "    op: sign_step\n"
                               "    provenance: hand\n"
                               "    in:\n"
                               "      bias: {shape: [33554432], fill: 0x0p+0}\n"
                               "      load: {shape: [SIZE], fill: 1}\n"
                               "    status: SLM_ERR_SHAPE\n";
    /* The two values written once count as well. */
    char *most = text_replace(body, "SIZE", "33554430");
    char *more = text_replace(body, "SIZE", "33554431");
    const text_fault fault = {NULL, more, 12, 39,
                              "in.load: more than 67108864 values in one file"};

    (void)state;
    vec_free(text_load(most));
    text_whole_faults(&fault, 1);
    free(most);
    free(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_has_one_form),
        cmocka_unit_test(numbers_are_exactly_what_is_written),
        cmocka_unit_test(words_have_the_width_of_their_element),
        cmocka_unit_test(recipes_stay_exact),
        cmocka_unit_test(a_layer_takes_weights_of_its_experts_in_its_dtype),
        cmocka_unit_test(integers_stay_integers),
        cmocka_unit_test(data_holds_at_most_4096_values),
        cmocka_unit_test(one_file_claims_at_most_2_to_the_26_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
