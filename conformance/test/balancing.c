/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/balancing.c - a balancing step of the reference, for tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "balancing.h"

balancing balancing_open(size_t m, size_t n, size_t k)
{
    balancing b = {.m = m};

    slm_config_profile("paper", &b.config);
    b.config.n_experts = n;
    b.config.top_k = k;
    return b;
}

balancing balancing_4310(void)
{
    static const int times_64[8][4] = {
        {56, 44, 19, 11}, {43, 28, 14, 40}, {20, 11, 18, 6},  {51, 29, 21, 16},
        {41, 49, 7, 48},  {45, 54, 35, 28}, {45, 56, 14, 37}, {43, 39, 57, 17}};
    balancing b = balancing_open(8, 4, 1);

    for (size_t i = 0; i < 32; i++) b.score[i] = (float)times_64[i / 4][i % 4] / 64;
    return b;
}

balancing balancing_seed_21(void)
{
    static const float score[32] = {
        0x1.c33664p-2f, 0x1.00fe3cp-2f, 0x1.13e890p-1f, 0x1.1657a4p-1f, 0x1.1d0d4ap-2f,
        0x1.7804ccp-2f, 0x1.895990p-1f, 0x1.724694p-1f, 0x1.fca162p-3f, 0x1.34b40ap-2f,
        0x1.ff7cc6p-2f, 0x1.1c8ddap-1f, 0x1.698898p-1f, 0x1.7984dap-2f, 0x1.b3e9f6p-2f,
        0x1.742168p-1f, 0x1.a8aeacp-1f, 0x1.bce148p-2f, 0x1.39b578p-2f, 0x1.9cf170p-1f,
        0x1.b4d3dep-1f, 0x1.87300ap-1f, 0x1.21a4e2p-1f, 0x1.575756p-2f, 0x1.927864p-1f,
        0x1.fd3b76p-2f, 0x1.6c7a02p-2f, 0x1.568fd6p-1f, 0x1.886beep-2f, 0x1.e6e3d0p-2f,
        0x1.1ae000p-1f, 0x1.c10d4ap-2f};
    balancing b = balancing_open(8, 4, 1);

    memcpy(b.score, score, sizeof score);
    return b;
}

static slm_tensor view(void *data, slm_dtype dtype, size_t rows, size_t cols)
{
    return slm_tensor_packed(data, dtype, 2, (size_t[]){rows, cols});
}

static slm_tensor line(void *data, slm_dtype dtype, size_t n)
{
    return slm_tensor_packed(data, dtype, 1, &n);
}

static void pass_the_door(balancing *b, slm_op op, const void *args)
{
    if (slm_check(op, &b->config, args, &b->error))
        fail_msg("%s: %s", b->error.field, b->error.expected);
}

slm_status balancing_exact(balancing *b)
{
    const size_t n = b->config.n_experts;
    struct slm_handle handle = {.config = b->config};
    const slm_qb_exact_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = b->m},
        .score = view(b->score, SLM_F32, b->m, n),
        .bias = line(b->bias, SLM_F32, n),
        .new_bias = line(b->new_bias, SLM_F32, n),
        .candidate = line(b->candidate, SLM_F64, n),
        .cutoff = line(b->cutoff, SLM_F32, b->m)};

    pass_the_door(b, SLM_OP_qb_exact, &args);
    return slm_ref_op_qb_exact(&handle, &args, &b->error);
}

slm_status balancing_accumulate(balancing *b, size_t first, size_t count)
{
    const size_t n = b->config.n_experts;
    struct slm_handle handle = {.config = b->config};
    const slm_qb_hist_accumulate_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = count},
        .score = view(b->score + first * n, SLM_F32, count, n),
        .bias = line(b->bias, SLM_F32, n),
        .hist = view(b->hist, SLM_I64, n, b->config.n_bins)};

    pass_the_door(b, SLM_OP_qb_hist_accumulate, &args);
    return slm_ref_op_qb_hist_accumulate(&handle, &args, &b->error);
}

slm_status balancing_solve(balancing *b)
{
    const size_t n = b->config.n_experts;
    struct slm_handle handle = {.config = b->config};
    const slm_qb_hist_solve_args args = {
        .call = {.struct_size = sizeof args, .n_tokens = b->m},
        .hist = view(b->hist, SLM_I64, n, b->config.n_bins),
        .bias = line(b->bias, SLM_F32, n),
        .new_bias = line(b->new_bias, SLM_F32, n),
        .candidate = line(b->candidate, SLM_F64, n)};

    pass_the_door(b, SLM_OP_qb_hist_solve, &args);
    return slm_ref_op_qb_hist_solve(&handle, &args, &b->error);
}

void balancing_refuses(balancing *b, slm_status status, const char *field, size_t index)
{
    unsigned char poison[sizeof b->candidate + sizeof b->cutoff];

    memset(poison, 0xa5, sizeof poison);
    memcpy(b->new_bias, poison, sizeof b->new_bias);
    memcpy(b->candidate, poison, sizeof b->candidate);
    memcpy(b->cutoff, poison, sizeof b->cutoff);
    assert_int_equal(balancing_exact(b), status);
    assert_int_equal(b->error.status, status);
    assert_string_equal(b->error.op, "qb_exact");
    assert_string_equal(b->error.field, field);
    assert_int_equal(b->error.index, index);
    assert_memory_equal(b->new_bias, poison, sizeof b->new_bias);
    assert_memory_equal(b->candidate, poison, sizeof b->candidate);
    assert_memory_equal(b->cutoff, poison, sizeof b->cutoff);
}

void balancing_loads(const balancing *b, const float *bias, const int64_t *want)
{
    const size_t n = b->config.n_experts;
    int64_t load[BALANCING_N] = {0};
    int32_t ids[BALANCING_N];
    float key[BALANCING_N];
    float cutoff;

    for (size_t i = 0; i < b->m; i++) {
        for (size_t j = 0; j < n; j++)
            key[j] = slm_ref_key(b->score[i * n + j], bias[j]);
        slm_ref_choose(ids, &cutoff, key, n, b->config.top_k);
        for (size_t slot = 0; slot < b->config.top_k; slot++) load[ids[slot]]++;
    }
    assert_memory_equal(load, want, n * sizeof *load);
}

void balancing_gives(const balancing *b, const float *new_bias, const double *candidate)
{
    for (size_t j = 0; j < b->config.n_experts; j++)
        if (memcmp(&b->new_bias[j], &new_bias[j], sizeof *new_bias) ||
            memcmp(&b->candidate[j], &candidate[j], sizeof *candidate))
            fail_msg("expert %zu: want %a (%a), got %a (%a)", j, (double)new_bias[j],
                     candidate[j], (double)b->new_bias[j], b->candidate[j]);
}
