/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/ref_call.c - what tests of the reference call it with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include <mpfr.h>

#include "ref_call.h"

slm_tensor view(const void *data, slm_dtype dtype, uint32_t rank, size_t a, size_t b,
                size_t c)
{
    const size_t shape[] = {a, b, c};

    return slm_tensor_packed((void *)(uintptr_t)data, dtype, rank, shape);
}

uint32_t bits_f32(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint64_t bits_f64(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

slm_config config_of(const char *profile)
{
    slm_config config;

    assert_true(slm_config_profile(profile, &config));
    config.d_model = 2;
    config.d_latent = 2;
    config.n_experts = 3;
    config.top_k = 2;
    config.d_expert = 1;
    return config;
}

slm_handle *open_ref(const slm_config *config)
{
    slm_handle *handle = NULL;

    assert_int_equal(slm_ref_backend()->open(config, &handle, NULL), SLM_OK);
    return handle;
}

slm_handle *open_profile(const char *profile, size_t n, size_t k, size_t l, size_t f,
                         double eps)
{
    slm_config config;

    assert_true(slm_config_profile(profile, &config));
    config.n_experts = n;
    config.top_k = k;
    config.d_latent = l;
    config.d_expert = f;
    if (eps > 0) config.eps = eps;
    return open_ref(&config);
}

void close_handle(slm_handle *handle)
{
    slm_ref_backend()->close(handle);
}

void same_bits(const double *got, const double *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("element %zu: %a, wanted %a", i, got[i], want[i]);
}

void poison(void *memory, size_t size)
{
    memset(memory, 0x5a, size);
}

int is_poison(const void *memory, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)memory)[i] != 0x5a) return 0;
    return 1;
}

void note_progress(void *user, size_t done, size_t total)
{
    progress *seen = user;

    assert_true(done > seen->done && done <= total);
    *seen = (progress){done, total, seen->calls + 1};
}

slm_weights weights_of_one(const float *w)
{
    return (slm_weights){.struct_size = sizeof(slm_weights),
                         .w_router = view(&w[0], SLM_F32, 2, 1, 1, 0),
                         .w_down = view(&w[1], SLM_F32, 2, 1, 1, 0),
                         .w_gate = view(&w[2], SLM_F32, 3, 1, 1, 1),
                         .w_up = view(&w[3], SLM_F32, 3, 1, 1, 1),
                         .w_out = view(&w[4], SLM_F32, 3, 1, 1, 1),
                         .gamma = view(&w[5], SLM_F32, 1, 1, 0, 0),
                         .w_lift = view(&w[6], SLM_F32, 2, 1, 1, 0),
                         .w_shared_gate = view(&w[7], SLM_F32, 2, 1, 1, 0),
                         .w_shared_up = view(&w[8], SLM_F32, 2, 1, 1, 0),
                         .w_shared_out = view(&w[9], SLM_F32, 2, 1, 1, 0)};
}

void situ_in_mpfr(double *da, double *db, double a, double b)
{
    mpfr_t cap, slope, sigma, rest, up, up_slope;

    mpfr_inits2(9000, cap, slope, sigma, rest, up, up_slope, (mpfr_ptr)0);
    mpfr_set_d(sigma, -a, MPFR_RNDN);
    mpfr_exp(sigma, sigma, MPFR_RNDN);
    mpfr_add_ui(sigma, sigma, 1, MPFR_RNDN);
    mpfr_ui_div(sigma, 1, sigma, MPFR_RNDN);
    mpfr_ui_sub(rest, 1, sigma, MPFR_RNDN);
    mpfr_set_d(cap, a / 4, MPFR_RNDN);
    mpfr_tanh(cap, cap, MPFR_RNDN);
    mpfr_sqr(slope, cap, MPFR_RNDN);
    mpfr_ui_sub(slope, 1, slope, MPFR_RNDN);
    mpfr_mul_ui(cap, cap, 4, MPFR_RNDN);
    mpfr_set_d(up, b, MPFR_RNDN);
    mpfr_div_ui(up, up, 25, MPFR_RNDN);
    mpfr_tanh(up, up, MPFR_RNDN);
    mpfr_sqr(up_slope, up, MPFR_RNDN);
    mpfr_ui_sub(up_slope, 1, up_slope, MPFR_RNDN);
    mpfr_mul_ui(up, up, 25, MPFR_RNDN);
    mpfr_mul(slope, slope, sigma, MPFR_RNDN);
    mpfr_mul(rest, rest, sigma, MPFR_RNDN);
    mpfr_fma(slope, rest, cap, slope, MPFR_RNDN);
    mpfr_mul(slope, slope, up, MPFR_RNDN);
    mpfr_mul(cap, cap, sigma, MPFR_RNDN);
    mpfr_mul(cap, cap, up_slope, MPFR_RNDN);
    *da = mpfr_get_d(slope, MPFR_RNDN) + 0; /* -0 is 0 */
    *db = mpfr_get_d(cap, MPFR_RNDN) + 0;
    mpfr_clears(cap, slope, sigma, rest, up, up_slope, (mpfr_ptr)0);
}
