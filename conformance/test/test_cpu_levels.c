/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_cpu_levels.c - the backend `cpu`: one result at each
 * instruction set, whatever the threads, the batch, the cut; and which sets it takes.
 *
 * Levels that this CPU has not are passed over, as no test can run them here. What the
 * level of tiles does with them, amx-model does everywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

static const char *const levels[] = {"plain", "avx2", "avx512", "amx", "amx-model"};
/* The first three have products of binary32 of their own. */
enum { OWN_LEVELS = 3, N_LEVELS = sizeof levels / sizeof *levels };

/* Several panels in every direction, the last ones odd; small enough for what is slow. */
static slm_config narrow(void)
{
    slm_config config = cpu_tiny();

    config.d_model = 101;
    config.d_latent = 70;
    config.d_expert = 75;
    config.d_shared = 50;
    return config;
}

/* The same, longer sums; not under AddressSanitizer, which sees no more in them. */
static slm_config wide(void)
{
    slm_config config = narrow();

#ifndef __SANITIZE_ADDRESS__
    config.d_model = 701;
    config.d_latent = 333;
#endif
    return config;
}

static void assert_threads_change_no_bit(slm_op op, const slm_config *config,
                                         size_t tokens)
{
    cpu_outcome one = cpu_run(op, config, tokens, NULL, CPU_PACKED, 1, 0);

    assert_int_equal(one.status, SLM_OK);
    for (int threads = 2; threads <= 4; threads += 2) {
        cpu_outcome other =
            cpu_run(op, config, tokens, NULL, CPU_SHIFTED, threads, 0xff);

        cpu_same_bits(&one, &other);
        cpu_release(&other);
    }
    cpu_release(&one);
}

static void each_level_has_the_same_bits_for_any_number_of_threads(void **state)
{
    static const slm_op ops[] = {SLM_OP_route, SLM_OP_dense_ffn, SLM_OP_layer_forward,
                                 SLM_OP_dense_ffn_backward, SLM_OP_layer_backward};
    static const size_t tokens[] = {1, 17, 140};
    const slm_config config = wide();
    size_t ran = 0;

    (void)state;
    for (size_t i = 0; i < OWN_LEVELS; i++)
        for (size_t o = 0; cpu_force(levels[i]) && o < sizeof ops / sizeof *ops; o++)
            for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++, ran++)
                assert_threads_change_no_bit(ops[o], &config, tokens[t]);
    assert_true(ran >= 15); /* plain runs everywhere */
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float of_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

enum { BATCH = 67 };

/* Uniform, `count` of the configuration's type. */
static unsigned char *reals_of(const slm_config *config, const char *name, size_t count)
{
    const size_t size = slm_dtype_size(config->dtype);
    unsigned char *values = malloc(count * size);

    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        const float value = cpu_noise(name, i);
        const uint16_t half = to_bf16(value);

        memcpy(values + i * size,
               size == 2 ? (const void *)&half : (const void *)&value, size);
    }
    return values;
}

static int has_tokens(slm_op op, const char *name)
{
    const slm_op_info *info = slm_op_describe(op);

    for (size_t i = 0; i < info->n_fields; i++)
        if (strcmp(info->fields[i].name, name) == 0)
            return info->fields[i].dims[0] == 'T';
    return 0;
}

/* Token t alone gives the bits that it has in a batch of `tokens`. */
static void assert_batch_changes_no_bit(slm_op op, const slm_config *config,
                                        size_t tokens)
{
    const size_t row = config->d_model * slm_dtype_size(config->dtype);
    const size_t k = config->top_k;
    unsigned char *x = reals_of(config, "x", tokens * config->d_model);
    unsigned char *dy = reals_of(config, "dy", tokens * config->d_model);
    int32_t *ids = calloc(tokens * k, sizeof *ids);
    const int backward = op == SLM_OP_layer_backward;
    const cpu_given all[] = {
        {"x", x}, {backward ? "dy" : NULL, dy}, {"ids", ids}, {NULL, NULL}};
    cpu_outcome batch;

    assert_non_null(ids);
    for (size_t i = 0; i < tokens * k; i++)
        ids[i] = (int32_t)((i / k + i % k) % config->n_experts);
    batch = cpu_run(op, config, tokens, all, CPU_PACKED, 2, 0);
    assert_int_equal(batch.status, SLM_OK);
    for (size_t t = 0; t < tokens; t += tokens / 6) {
        const cpu_given one[] = {{"x", x + t * row},
                                 {backward ? "dy" : NULL, dy + t * row},
                                 {"ids", ids + t * k},
                                 {NULL, NULL}};
        cpu_outcome alone = cpu_run(op, config, 1, one, CPU_PACKED, 3, 0xff);

        for (size_t i = 0; i < alone.n; i++)
            if (has_tokens(op, alone.name[i]))
                assert_memory_equal(alone.bytes[i], batch.bytes[i] + t * alone.size[i],
                                    alone.size[i]);
        cpu_release(&alone);
    }
    cpu_release(&batch);
    free(x);
    free(dy);
    free(ids);
}

static void a_token_has_the_same_bits_in_every_batch_at_each_level(void **state)
{
    (void)state;
    for (size_t i = 0; i < OWN_LEVELS; i++)
        for (int kind = 0; cpu_force(levels[i]) && kind < SLM_EXPERT_KINDS; kind++) {
            slm_config config = wide();

            config.expert = (slm_expert_kind)kind;
            assert_batch_changes_no_bit(SLM_OP_layer_forward, &config, BATCH);
        }
}

static void bf16_has_the_same_bits_in_every_batch_at_each_level(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_LEVELS; i++)
        for (int kind = 0; cpu_force(levels[i]) && kind < SLM_EXPERT_KINDS; kind++) {
            slm_config config = narrow();

            config.dtype = SLM_BF16;
            config.expert = (slm_expert_kind)kind;
            assert_batch_changes_no_bit(SLM_OP_layer_forward, &config, BATCH);
            assert_threads_change_no_bit(SLM_OP_layer_forward, &config, 50);
            if (config.expert != SLM_EXPERT_RELU)
                assert_threads_change_no_bit(SLM_OP_layer_backward, &config, 50);
        }
}

/* Many rows of few columns, and more than one stretch of the inner index. */
static void bf16_has_the_same_bits_where_x_is_laid_in_parts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_LEVELS; i++) {
        slm_config config = cpu_tiny();

        config.dtype = SLM_BF16;
        config.d_model = 1100;
        config.n_experts = 4;
        if (!cpu_force(levels[i])) continue;
        assert_batch_changes_no_bit(SLM_OP_layer_forward, &config, BATCH);
        for (size_t tokens = 16; tokens < 500; tokens = tokens * 2 + 1)
            assert_threads_change_no_bit(SLM_OP_layer_forward, &config, tokens);
    }
}

/* Every expert is chosen by all tokens: more rows than tiles take at once, of widths
 * that end within a tile and with one. */
static void bf16_has_the_same_bits_where_an_expert_has_many_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_LEVELS; i++)
        for (size_t f = 63; cpu_force(levels[i]) && f <= 64; f++) {
            slm_config config = cpu_tiny();

            config.dtype = SLM_BF16;
            config.n_experts = config.top_k;
            config.d_expert = config.d_latent = f;
            assert_batch_changes_no_bit(SLM_OP_layer_forward, &config, 250);
            assert_batch_changes_no_bit(SLM_OP_layer_backward, &config, 250);
        }
}

/* Largest |a - b| over the largest |b| of an output. */
static double distance(const cpu_outcome *a, const cpu_outcome *b, const char *name)
{
    const float *one = cpu_output(a, name), *other = cpu_output(b, name);
    double most = 0.0, scale = 0.0;

    for (size_t i = 0; i < b->n; i++)
        for (size_t e = 0; strcmp(b->name[i], name) == 0 && e < b->size[i] / 4; e++) {
            most = fmax(most, fabs((double)one[e] - (double)other[e]));
            scale = fmax(scale, fabs((double)other[e]));
        }
    assert_true(scale > 0.0);
    return most / scale;
}

/* Sums of 701 terms and more, in one order everywhere: only FMA or not differs. */
static void levels_agree_to_rounding(void **state)
{
    static const char *const outputs[] = {"z", "h", "hs", "o", "y"};
    const slm_config config = wide();
    cpu_outcome plain;

    (void)state;
    assert_true(cpu_force("plain"));
    plain = cpu_run(SLM_OP_layer_forward, &config, 40, NULL, CPU_PACKED, 2, 0);
    for (size_t i = 1; i < OWN_LEVELS; i++) {
        cpu_outcome out;

        if (!cpu_force(levels[i])) continue;
        out = cpu_run(SLM_OP_layer_forward, &config, 40, NULL, CPU_PACKED, 2, 0);
        for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++)
            assert_true(distance(&out, &plain, outputs[o]) < 0x1p-15);
        cpu_release(&out);
    }
    cpu_release(&plain);
}

/* Same bits in binary32 at two levels, of which this CPU has the first. */
static void assert_same_level(const char *one, const char *other)
{
    const slm_config config = wide();
    cpu_outcome a, b;

    assert_true(cpu_force(one));
    a = cpu_run(SLM_OP_layer_forward, &config, 40, NULL, CPU_PACKED, 2, 0);
    assert_true(cpu_force(other));
    b = cpu_run(SLM_OP_layer_forward, &config, 40, NULL, CPU_PACKED, 2, 0);
    cpu_same_bits(&a, &b);
    cpu_release(&a);
    cpu_release(&b);
}

static void binary32_at_a_level_of_tiles_is_that_of_the_level_beside(void **state)
{
    (void)state;
    assert_same_level("amx-model", "plain");
    if (cpu_force("amx")) assert_same_level("amx", "avx512");
}

/* ---- the order of tiles ---- */

/* x w by the pairs of 32 of the inner index: gemm_amx.h. No sum here is tiny. */
static float by_tiles(const uint16_t *x, const uint16_t *w, size_t inner)
{
    float sum = 0.0f;

    for (size_t first = 0; first < inner; first += 32) {
        float part[2] = {0.0f, 0.0f};

        for (size_t k = first; k < inner && k < first + 32; k++)
            part[k % 2] = fmaf(of_bf16(x[k]), of_bf16(w[k]), part[k % 2]);
        sum += part[0] + part[1];
    }
    return sum;
}

static uint16_t *noise_of(const char *name, size_t count)
{
    uint16_t *values = malloc(count * sizeof *values);

    assert_non_null(values);
    for (size_t i = 0; i < count; i++) values[i] = to_bf16(cpu_noise(name, i));
    return values;
}

/* Logits are stored as they are summed; 45 experts are two panels, the last one odd. */
static void assert_logits_by_tiles(size_t tokens, size_t d)
{
    slm_config config = cpu_tiny();
    cpu_outcome out;
    const float *logit;
    uint16_t *x, *w;

    config.dtype = SLM_BF16;
    config.d_model = d;
    config.n_experts = 45;
    x = noise_of("x", tokens * d);
    w = noise_of("w_router", config.n_experts * d);

    const cpu_given list[] = {{"x", x}, {"w_router", w}, {NULL, NULL}};

    out = cpu_run(SLM_OP_layer_forward, &config, tokens, list, CPU_PACKED, 2, 0);
    assert_int_equal(out.status, SLM_OK);
    logit = cpu_output(&out, "logit");
    for (size_t t = 0; t < tokens; t++)
        for (size_t e = 0; e < config.n_experts; e++)
            assert_true(logit[t * config.n_experts + e] ==
                        by_tiles(x + t * d, w + e * d, d));
    cpu_release(&out);
    free(x);
    free(w);
}

static void tiles_add_in_their_own_order_whatever_the_shape(void **state)
{
    static const size_t tokens[] = {1, 6, 16, 17, 33, 191, 200};
    static const size_t inner[] = {1, 2, 31, 33, 64, 701, 1100};
    size_t ran = 0;

    (void)state;
    for (size_t level = OWN_LEVELS; level < N_LEVELS; level++)
        for (size_t t = 0; cpu_force(levels[level]) && t < 7; t++)
            for (size_t d = 0; d < 7; d++, ran++)
                assert_logits_by_tiles(tokens[t], inner[d]);
    assert_true(ran >= 49);
}

/* Weights of 2^-100 and x of 2^-30: a CPU with subnormals keeps the sums, tiles do not,
 * and either is what the level declares. */
static void only_levels_of_tiles_flush_and_say_so(void **state)
{
    slm_config config = cpu_tiny();
    uint16_t x[20 * 37], w[11 * 37];
    const cpu_given list[] = {{"x", x}, {"w_router", w}, {NULL, NULL}};

    (void)state;
    config.dtype = SLM_BF16;
    for (size_t i = 0; i < 20 * 37; i++) x[i] = to_bf16(0x1p-30f);
    for (size_t i = 0; i < 11 * 37; i++) w[i] = to_bf16(0x1p-100f);
    for (size_t i = 0; i < N_LEVELS; i++) {
        cpu_outcome out;
        int flushes;

        if (!cpu_force(levels[i])) continue;
        flushes = (int)slm_cpu_backend()->arithmetic->flushes_subnormals;
        out = cpu_run(SLM_OP_layer_forward, &config, 20, list, CPU_PACKED, 1, 0);
        assert_int_equal(flushes, strncmp(levels[i], "amx", 3) == 0);
        for (size_t e = 0; e < 20 * 11; e++)
            assert_true(((float *)cpu_output(&out, "logit"))[e] ==
                        (flushes ? 0.0f : 37 * 0x1p-130f));
        cpu_release(&out);
    }
}

static void fma_levels_have_the_same_bits(void **state)
{
    (void)state;
    if (!cpu_force("avx512")) skip();
    assert_same_level("avx512", "avx2");
}

static void a_level_that_is_none_is_refused_by_name(void **state)
{
    const slm_backend *backend = slm_cpu_backend();
    const slm_config config = cpu_tiny();
    slm_handle *handle = NULL;
    char reason[160] = "";
    slm_error error;

    (void)state;
    setenv("SLM_CPU_LEVEL", "avx1024", 1);
    assert_false(backend->supports(&config, SLM_OP_select, 1, reason, sizeof reason));
    assert_non_null(strstr(reason, "avx1024"));
    assert_int_equal(backend->open(&config, &handle, &error), SLM_ERR_UNSUPPORTED);
    assert_string_equal(error.field, "SLM_CPU_LEVEL");
    assert_non_null(strstr(error.expected, "avx1024"));
    assert_null(handle);
}

static void without_the_variable_the_best_level_is_taken(void **state)
{
    const slm_config config = cpu_tiny();
    const int has_tiles = cpu_force("amx");
    slm_handle *handle = NULL;

    (void)state;
    unsetenv("SLM_CPU_LEVEL");
    assert_int_equal(slm_cpu_backend()->open(&config, &handle, NULL), SLM_OK);
    assert_int_equal(slm_cpu_backend()->arithmetic->flushes_subnormals, has_tiles);
    slm_cpu_backend()->close(handle);
    slm_cpu_backend()->close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_level_has_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(a_token_has_the_same_bits_in_every_batch_at_each_level),
        cmocka_unit_test(bf16_has_the_same_bits_in_every_batch_at_each_level),
        cmocka_unit_test(bf16_has_the_same_bits_where_x_is_laid_in_parts),
        cmocka_unit_test(bf16_has_the_same_bits_where_an_expert_has_many_rows),
        cmocka_unit_test(binary32_at_a_level_of_tiles_is_that_of_the_level_beside),
        cmocka_unit_test(tiles_add_in_their_own_order_whatever_the_shape),
        cmocka_unit_test(only_levels_of_tiles_flush_and_say_so),
        cmocka_unit_test(levels_agree_to_rounding),
        cmocka_unit_test(fma_levels_have_the_same_bits),
        cmocka_unit_test(a_level_that_is_none_is_refused_by_name),
        cmocka_unit_test(without_the_variable_the_best_level_is_taken),
    };

    setenv("SLM_TEST_BACKEND", "cpu", 1);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
