/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_sieve.c - choice and balancing against a sort, on scores
 * meant to mislead what is sifted out first: a sample, a bound, a short list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

enum { MOST_T = 5200, MOST_N = 130, SAMPLED = 1024 };

static const char *const levels[] = {"plain", "avx2", "avx512"};

/* ---- scores ---- */

typedef enum scores {
    RANDOM,
    ALL_EQUAL,
    TWO_VALUES,
    RISING,       /* down every column                                            */
    FALLING,      /*                                                              */
    RISING_ROW,   /* along every row                                              */
    SAMPLE_HIGH,  /* column 0 is high in the rows that an even sample takes ...   */
    SAMPLE_LOW,   /* ... or low in them                                           */
    HALVES,       /* the second half of the rows is a thousandth of the first     */
    TINY,         /* 2^-90 and 0 beside one another                               */
    SIGNED_ZEROS, /* -0 and 0, and a few more                                     */
    SCORES
} scores;

/* Row i of an even sample of SAMPLED of T rows is i T / SAMPLED, rounded down. */
static int is_sampled(size_t t, size_t tokens)
{
    return (t * SAMPLED + SAMPLED - 1) / tokens * tokens / SAMPLED == t;
}

static float score_of(scores kind, size_t t, size_t j, size_t tokens, size_t n)
{
    const float x = 0.5f + 0.5f * cpu_noise("score", t * n + j);
    const float down = ((float)t + x) / (float)tokens;

    switch (kind) {
    case ALL_EQUAL:
        return 0.5f;
    case TWO_VALUES:
        return x < 0.3f ? 0.25f : 0.5f;
    case RISING:
        return down;
    case FALLING:
        return 1.0f - down;
    case RISING_ROW:
        return ((float)j + x) / (float)n;
    case SAMPLE_HIGH:
        return j ? x : is_sampled(t, tokens) ? 0.75f + 0.25f * x : 0.25f * x;
    case SAMPLE_LOW:
        return j ? x : is_sampled(t, tokens) ? 0.25f * x : 0.75f + 0.25f * x;
    case HALVES:
        return t < tokens / 2 ? x : x * 0x1p-10f;
    case TINY:
        return x < 0.5f ? 0.0f : x * 0x1p-90f;
    case SIGNED_ZEROS:
        return x < 0.4f ? -0.0f : x < 0.8f ? 0.0f : floorf(x * 64.0f) / 64.0f;
    default:
        return x;
    }
}

/* 0: small numbers; 1: none; 2: one of 2^60; 3: all of 2^30; 4: huge and zeros. */
enum { BIASES = 5 };

static float bias_of(int kind, size_t j)
{
    const float x = cpu_noise("bias", j);

    switch (kind) {
    case 1:
        return 0.0f;
    case 2:
        return j == 1 ? 0x1p60f : 0.125f * x;
    case 3:
        return 0x1p30f;
    case 4:
        return x < -0.3f ? -0x1.fffffep127f : x < 0.3f ? -0.0f : 0x1.fffffep127f;
    default:
        return 0.125f * x;
    }
}

/* ---- what a sort finds ---- */

typedef struct keyed {
    float key;
    size_t id;
} keyed;

static int by_key(const void *one, const void *two)
{
    const keyed *a = one, *b = two;

    if (a->key != b->key) return a->key > b->key ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* Exact alpha - s: the sum as a binary64, and what that leaves. */
typedef struct exact {
    double high;
    double low;
} exact;

static exact difference(float alpha, float score)
{
    const double a = (double)alpha, b = -(double)score, sum = a + b;
    const double larger = fabs(a) >= fabs(b) ? a : b;
    const double smaller = fabs(a) >= fabs(b) ? b : a;

    return (exact){sum, smaller - (sum - larger)};
}

static int by_value(const void *one, const void *two)
{
    const exact *a = one, *b = two;

    if (a->high != b->high) return a->high < b->high ? -1 : 1;
    return (a->low > b->low) - (a->low < b->low);
}

static float score_given[MOST_T * MOST_N], bias_given[MOST_N];
static keyed row_of_keys[MOST_N];
static exact column_of_r[MOST_T];
static float alpha[MOST_T];
static int32_t mask[MOST_T];

static void fill(scores kind, int biases, size_t tokens, size_t n)
{
    for (size_t t = 0; t < tokens; t++)
        for (size_t j = 0; j < n; j++)
            score_given[t * n + j] = score_of(kind, t, j, tokens, n);
    for (size_t j = 0; j < n; j++) bias_given[j] = bias_of(biases, j);
}

static void sort_row(size_t t, size_t n)
{
    for (size_t j = 0; j < n; j++)
        row_of_keys[j] = (keyed){score_given[t * n + j] + bias_given[j], j};
    qsort(row_of_keys, n, sizeof *row_of_keys, by_key);
}

/* ---- choice ---- */

enum { NO_ROW = -1 };

/* Each row's choice is that of a sort, but for the poisoned one. */
static void assert_choice(const slm_config *config, size_t tokens, int poisoned)
{
    const size_t n = config->n_experts, k = config->top_k;
    const cpu_given list[] = {
        {"score", score_given}, {"bias", bias_given}, {NULL, NULL}};
    cpu_outcome out = cpu_run_plain(SLM_OP_select, config, tokens, list);

    assert_int_equal(out.status, SLM_OK);
    for (size_t t = 0; t < tokens; t++) {
        const int is_poisoned = (int)t == poisoned;

        sort_row(t, n);
        for (size_t q = 0; q < k; q++) {
            const float weight = ((float *)cpu_output(&out, "weight"))[t * k + q];
            const size_t id = (size_t)((int32_t *)cpu_output(&out, "ids"))[t * k + q];

            assert_int_equal(isnan(weight) != 0, is_poisoned);
            assert_int_equal(id, is_poisoned ? q : row_of_keys[q].id);
        }
        if (k < n) {
            const float cutoff = ((float *)cpu_output(&out, "cutoff"))[t];

            assert_true(is_poisoned ? isnan(cutoff) : cutoff == row_of_keys[k].key);
        }
    }
    cpu_release(&out);
}

static void choice_is_that_of_a_sort_at_every_level(void **state)
{
    static const size_t size[] = {1, 2, 5, 31, 32, 33, 63, 64, 65, 128, MOST_N};
    static const size_t kept[] = {1, 2, 3, 16, 17, 18, 31, 32, 33, 34, 64, MOST_N};
    enum { T = 19 };
    slm_config config = cpu_tiny();
    size_t ran = 0;

    (void)state;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        if (!cpu_force(levels[l])) continue;
        ran++;
        for (size_t i = 0; i < sizeof size / sizeof *size; i++)
            for (size_t q = 0; q < sizeof kept / sizeof *kept; q++)
                for (size_t kind = (i + q) % 3; kind < SCORES && kept[q] <= size[i];
                     kind += 3) {
                    config.n_experts = size[i];
                    config.top_k = kept[q];
                    fill((scores)kind, (int)kind % BIASES, T, size[i]);
                    assert_choice(&config, T, NO_ROW);
                }
    }
    assert_true(ran >= 1); /* plain runs everywhere */
    unsetenv("SLM_CPU_LEVEL");
}

/* A NaN anywhere in a row, also behind the last whole vector, poisons that row only. */
static void a_nan_poisons_its_row_at_every_place(void **state)
{
    enum { T = 3, N = 37, K = 4 };
    slm_config config = cpu_tiny();

    (void)state;
    config.n_experts = N;
    config.top_k = K;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
        for (size_t j = 0; j < N && cpu_force(levels[l]); j++) {
            fill(RANDOM, 0, T, N);
            score_given[N + j] = NAN;
            assert_choice(&config, T, 1);
        }
    unsetenv("SLM_CPU_LEVEL");
}

/* Where scores are made of logits, of which a thread keeps a block: fewer blocks than
 * threads, and many; and a choice so large that it is made by a heap. */
static void threads_keep_out_of_the_rows_of_others(void **state)
{
    static const size_t tokens[] = {19, 40, MOST_T};
    static const size_t kept[] = {3, 40};
    const cpu_given list[] = {
        {"logit", score_given}, {"bias", bias_given}, {NULL, NULL}};
    slm_config config = cpu_tiny();

    (void)state;
    config.n_experts = MOST_N;
    fill(RANDOM, 0, MOST_T, MOST_N);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        for (size_t q = 0; q < sizeof kept / sizeof *kept; q++) {
            cpu_outcome alone, among;

            config.top_k = kept[q];
            alone = cpu_run(SLM_OP_select, &config, tokens[i], list, CPU_PACKED, 1, 0);
            among = cpu_run(SLM_OP_select, &config, tokens[i], list, CPU_PACKED, 4, 0);
            assert_int_equal(alone.status, SLM_OK);
            cpu_same_bits(&alone, &among);
            cpu_release(&alone);
            cpu_release(&among);
        }
}

/* ---- exact balancing ---- */

/* candidates and, with tie test equal, the refusal of the first tie. */
static void assert_balance(const slm_config *config, const cpu_outcome *out,
                           size_t tokens, int masked)
{
    const size_t n = config->n_experts, k = config->top_k;
    size_t m = 0, nth;

    for (size_t t = 0; t < tokens; t++) {
        if (masked && !mask[t]) continue;
        sort_row(t, n);
        alpha[t] = row_of_keys[k].key;
        m++;
    }
    nth = (k * (m - 1) + n - 1) / n;
    for (size_t j = 0; j < n; j++) {
        size_t i = 0;
        int tie;

        for (size_t t = 0; t < tokens; t++)
            if (!masked || mask[t])
                column_of_r[i++] = difference(alpha[t], score_given[t * n + j]);
        qsort(column_of_r, m, sizeof *column_of_r, by_value);
        tie = nth > 0 && by_value(&column_of_r[nth - 1], &column_of_r[nth]) == 0;
        if (config->balance == SLM_BALANCE_STRICT && tie) {
            assert_int_equal(out->status, SLM_ERR_TIE);
            assert_int_equal(out->error.index, j);
            return;
        }
        if (out->status == SLM_OK)
            assert_true(((double *)cpu_output(out, "candidate"))[j] ==
                        column_of_r[nth].high);
    }
    assert_int_equal(out->status, SLM_OK);
}

static void try_balance(slm_config *config, size_t tokens, scores kind, int biases)
{
    const size_t n = config->n_experts;
    const cpu_given all[] = {
        {"score", score_given}, {"bias", bias_given}, {NULL, NULL}};
    const cpu_given some[] = {
        {"score", score_given}, {"bias", bias_given}, {"mask", mask}, {NULL, NULL}};

    fill(kind, biases, tokens, n);
    for (size_t t = 0; t < tokens; t++) mask[t] = t % 4 != 2;
    for (int masked = 0; masked < 2; masked++)
        for (int strict = 0; strict < 2; strict++) {
            cpu_outcome out;

            config->balance = strict ? SLM_BALANCE_STRICT : SLM_BALANCE_RELAXED;
            out = cpu_run(SLM_OP_qb_exact, config, tokens, masked ? some : all,
                          CPU_PACKED, 1 + biases % 3, 0xff);
            assert_balance(config, &out, tokens, masked);
            cpu_release(&out);
        }
}

static void balancing_is_that_of_a_sort_whatever_the_scores(void **state)
{
    static const struct {
        size_t tokens, n, k; /* 3/4 of the tokens, times k, are a multiple of n */
    } sizes[] = {{8, 2, 1},     {64, 8, 2},   {320, 40, 3}, {2080, 8, 1},
                 {5200, 13, 3}, {4160, 8, 5}, {5200, 26, 1}};
    slm_config config = cpu_tiny();

    (void)state;
    config.tie_test = SLM_TIE_EQUAL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < SCORES; kind++) {
            config.n_experts = sizes[i].n;
            config.top_k = sizes[i].k;
            try_balance(&config, sizes[i].tokens, (scores)kind,
                        (kind + (int)i) % BIASES);
        }
}

/* The error is that of the contract wherever the sample is, and nothing is written. */
static void a_score_that_is_no_number_is_found_in_any_row(void **state)
{
    static const slm_op ops[] = {SLM_OP_qb_exact, SLM_OP_qb_hist_accumulate};
    enum { T = 2100, N = 11, B = 50 };
    static int64_t hist[N * B];
    slm_config config = cpu_tiny();
    const cpu_given list[] = {
        {"score", score_given}, {"bias", bias_given}, {"hist", hist}, {NULL, NULL}};

    (void)state;
    for (size_t i = 0; i < 60; i++) {
        const size_t at = i * (T * N / 60) + i % N;
        const slm_op op = ops[i % 2];
        cpu_outcome out;

        fill(RANDOM, 0, T, N);
        score_given[at] = NAN;
        out = cpu_run_plain(op, &config, T, list);
        assert_int_equal(out.status, SLM_ERR_NONFINITE);
        assert_string_equal(out.error.field, "score");
        assert_int_equal(out.error.index, at);
        if (op == SLM_OP_qb_hist_accumulate)
            assert_memory_equal(cpu_output(&out, "hist"), hist, sizeof hist);
        cpu_release(&out);
    }
}

/* ---- the histogram ---- */

/* The bin of an exact r by a scan of edges that are binary64: what r.high is beyond an
 * edge near it has no rounding. */
static size_t plain_bin(exact r, double low, double width, size_t bins)
{
    size_t bin = 0;

    while (bin + 1 < bins && r.high - (low + width * (double)(bin + 1)) + r.low >= 0.0)
        bin++;
    return bin;
}

/* Directly; apart, also in nearly as many rows as a counter of 16 bits holds and in
 * more; one by one, where binary32 has no digit left for a bin. The biases are equal,
 * so edges are dyadic. */
static void counts_are_those_of_a_scan(void **state)
{
    static const struct {
        size_t tokens, n;
        int biases;
    } cases[] = {{1, 37, 1},    {15, 37, 1},   {100, 37, 1},
                 {1100, 37, 1}, {5200, 37, 1}, {5200, 37, 3},
                 {20, 37, 3},   {65000, 5, 1}, {67000, 5, 1}};
    enum { N = 37, B = 64 };
    static int64_t zero[N * B], want[N * B];
    slm_config config = cpu_tiny();
    const cpu_given list[] = {
        {"score", score_given}, {"bias", bias_given}, {"hist", zero}, {NULL, NULL}};

    (void)state;
    config.n_bins = B;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int kind = 0; kind < SCORES; kind += 1 + 4 * (cases[i].tokens > MOST_T)) {
            const size_t n = cases[i].n;
            cpu_outcome out;

            if (kind == TINY) continue; /* binary64 cannot hold these r */
            config.n_experts = n;
            fill((scores)kind, cases[i].biases, cases[i].tokens, n);
            memset(want, 0, sizeof want);
            for (size_t t = 0; t < cases[i].tokens; t++) {
                sort_row(t, n);
                for (size_t j = 0; j < n; j++)
                    want[j * B + plain_bin(difference(row_of_keys[config.top_k].key,
                                                      score_given[t * n + j]),
                                           (double)bias_given[0] - 1.0, 2.0 / B, B)]++;
            }
            out = cpu_run_plain(SLM_OP_qb_hist_accumulate, &config, cases[i].tokens,
                                list);
            assert_int_equal(out.status, SLM_OK);
            assert_memory_equal(cpu_output(&out, "hist"), want, n * B * sizeof *want);
            cpu_release(&out);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choice_is_that_of_a_sort_at_every_level),
        cmocka_unit_test(a_nan_poisons_its_row_at_every_place),
        cmocka_unit_test(threads_keep_out_of_the_rows_of_others),
        cmocka_unit_test(balancing_is_that_of_a_sort_whatever_the_scores),
        cmocka_unit_test(a_score_that_is_no_number_is_found_in_any_row),
        cmocka_unit_test(counts_are_those_of_a_scan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
