/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref_gradients.c - the reference's gradients against central differences.  G1-G5
 *
 * Every slope must be ref's ball, of 400 bits, to within 1e-40 of the largest gradient
 * of its tensor. Every tap is compared with its stage, every element of the operation's
 * own binary64 outputs with the ball, rounded. */
#include "internal.h"
#include "seed_7.h"
#include "slopes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIELDS = 40 };

/* The outputs of layer_backward: elements as binary64, and as balls. */
typedef struct gradients {
    slm_layer_backward_args args;
    double *value[FIELDS];
    arb_ptr ball[FIELDS];
    size_t count[FIELDS];
} gradients;

static void keep(void *user, const char *name, size_t index, const arb_t value)
{
    gradients *g = user;

    assert_true(index < g->count[slopes_field(name)]);
    arb_set(g->ball[slopes_field(name)] + index, value);
}

static void gradients_open(gradients *g, const slm_config *config, size_t n_tokens)
{
    memset(g, 0, sizeof *g);
    assert_true(slopes_info()->n_fields <= FIELDS);
    g->args.call = (slm_call){.struct_size = sizeof g->args, .n_tokens = n_tokens};
    for (size_t i = 0; i < slopes_info()->n_fields; i++) {
        const slm_field *field = &slopes_info()->fields[i];
        size_t shape[SLM_MAX_RANK] = {0};

        if (field->role != SLM_ROLE_OUT && field->role != SLM_ROLE_TAP) continue;
        g->count[i] = slopes_shape(field, config, &g->args.call, shape);
        if (g->count[i] == 0) continue;
        g->value[i] = calloc(g->count[i], sizeof *g->value[i]);
        g->ball[i] = _arb_vec_init((slong)g->count[i]);
        memset(g->value[i], 0x5a, g->count[i] * sizeof *g->value[i]);
        *(slm_tensor *)(void *)((char *)&g->args + field->offset) = slm_tensor_packed(
            g->value[i], SLM_F64, (uint32_t)strlen(field->dims), shape);
    }
}

static void gradients_close(gradients *g)
{
    for (size_t i = 0; i < FIELDS; i++) {
        _arb_vec_clear(g->ball[i], (slong)g->count[i]);
        free(g->value[i]);
    }
}

/* |a - b| < 1e-40 gauge, for all numbers of the balls. */
static int agree(const arb_t a, const arb_t b, const arb_t gauge)
{
    arb_t difference, bound;
    int close;

    arb_init(difference);
    arb_init(bound);
    arb_set_str(bound, "1e-40", SLOPES_BITS);
    arb_mul(bound, bound, gauge, SLOPES_BITS);
    arb_sub(difference, a, b, SLOPES_BITS);
    arb_abs(difference, difference);
    close = arb_lt(difference, bound) || arb_is_zero(difference);
    arb_clear(bound);
    arb_clear(difference);
    return close;
}

/* The largest magnitude, at least 2^-60: the slopes of a constant are 0 +- 2^-288. */
static void peak_of(arb_t peak, arb_srcptr value, size_t n)
{
    arb_t size;

    arb_init(size);
    arb_one(peak);
    arb_mul_2exp_si(peak, peak, -60);
    for (size_t i = 0; i < n; i++) {
        arb_abs(size, value + i);
        arb_max(peak, peak, size, SLOPES_BITS);
    }
    arb_clear(size);
}

static void compare(const gradients *g, const char *name, arb_srcptr want, size_t n)
{
    const size_t field = slopes_field(name);
    arb_t peak;

    arb_init(peak);
    assert_int_equal(g->count[field], n);
    peak_of(peak, want, n);
    for (size_t i = 0; i < n; i++) {
        double element;

        if (!agree(g->ball[field] + i, want + i, peak))
            fail_msg("%s[%zu]: %s, slope %s", name, i,
                     arb_get_str(g->ball[field] + i, 45, 0),
                     arb_get_str(want + i, 45, 0));
        assert_true(slm_ref_f64(&element, g->ball[field] + i));
        assert_memory_equal(&element, &g->value[field][i], sizeof element);
    }
    arb_clear(peak);
}

/* Every tap is the stage it names; every gradient is the slope. Returns how many slopes
 * were taken. */
static size_t compare_all(const gradients *g, slopes *m)
{
    size_t taken = 0;
    arb_t l;

    arb_init(l);
    slopes_loss(l, m);
    for (int part = 0; part < SLOPES_PARTS; part++)
        if (slopes_names[part].tap && m->count[part])
            compare(g, slopes_names[part].tap, m->seen[part], m->count[part]);
    for (int part = 0; part < SLOPES_PARTS; part++) {
        const size_t n = m->count[part];
        arb_ptr want = _arb_vec_init((slong)n);

        for (size_t i = 0; i < n && slopes_names[part].gradient; i++, taken++)
            slopes_slope(want + i, m, m->at[part] + i);
        if (n && slopes_names[part].gradient)
            compare(g, slopes_names[part].gradient, want, n);
        _arb_vec_clear(want, (slong)n);
    }
    arb_clear(l);
    return taken;
}

/* Compare everything; returns the number of slopes. */
static size_t check(const slm_config *config, const slm_weights *weights,
                    const float *x, const float *dy, const int32_t *ids,
                    size_t n_tokens)
{
    const slm_backend *ref = slm_ref_backend();
    const size_t wide[] = {n_tokens, config->d_model};
    const size_t slots[] = {n_tokens, config->top_k};
    slm_handle *handle = NULL;
    gradients g;
    slopes m;
    size_t taken;

    gradients_open(&g, config, n_tokens);
    g.args.x = slm_tensor_packed((void *)(uintptr_t)x, SLM_F32, 2, wide);
    g.args.dy = slm_tensor_packed((void *)(uintptr_t)dy, SLM_F32, 2, wide);
    g.args.ids = slm_tensor_packed((void *)(uintptr_t)ids, SLM_I32, 2, slots);
    assert_int_equal(ref->open(config, &handle, NULL), SLM_OK);
    assert_int_equal(ref->prepare(handle, weights, NULL), SLM_OK);
    assert_int_equal(ref->ops->layer_backward(handle, &g.args, NULL), SLM_OK);
    assert_int_equal(
        slm_ref_watch_layer_backward(handle, &g.args, SLOPES_BITS, keep, &g, NULL),
        SLM_OK);
    ref->close(handle);
    slopes_open(&m, config, &g.args.call);
    m.ids = ids;
    m.dy = dy;
    slopes_load(&m, weights, &g.args.x);
    taken = compare_all(&g, &m);
    slopes_close(&m);
    gradients_close(&g);
    return taken;
}

static slm_tensor view(const float *data, uint32_t rank, size_t a, size_t b, size_t c)
{
    const size_t shape[] = {a, b, c};

    return slm_tensor_packed((void *)(uintptr_t)data, SLM_F32, rank, shape);
}

static void the_note_s_layer_has_the_slopes_of_its_loss(void **state)
{
    (void)state;
    const int32_t ids[] = {2, 3, 3, 2, 1, 0, 2, 0, 2, 3};
    const slm_weights weights = {.struct_size = sizeof weights,
                                 .w_router = view(seed_w_router, 2, 4, 6, 0),
                                 .w_down = view(seed_w_down, 2, 3, 6, 0),
                                 .w_expert = view(seed_w_expert, 3, 4, 3, 3),
                                 .w_lift = view(seed_w_lift, 2, 6, 3, 0),
                                 .w_shared = view(seed_w_shared, 3, 2, 6, 6)};
    float dy[30];
    slm_config config;

    assert_true(slm_config_profile("linear", &config));
    config.d_model = 6;
    config.d_latent = 3;
    config.n_experts = 4;
    config.top_k = 2;
    config.n_shared = 2;
    for (size_t i = 0; i < 30; i++) dy[i] = (float)((i * 29 + 5) % 31) / 16 - 1;
    /* x 30, router 24, down 18, experts 36, gamma 3, lift 18, shared 72; stages: logit
     * 20, weight 10, z, u, r 15 each */
    assert_int_equal(check(&config, &weights, seed_x, dy, ids, 5), 201 + 75);
}

enum { T = 4, D = 5, L = 3, N = 4, F = 2, S = 2, FS = 2 };

/* A gated layer of the enum's sizes, weights of about 1; expert 1 is never chosen. */
static size_t check_gated(const char *profile, slm_expert_kind expert, slm_norm norm,
                          size_t k)
{
    const int32_t pairs[] = {3, 0, 0, 2, 2, 3, 0, 3}, single[] = {3, 0, 2, 0};
    float w[256] = {0}, x[T * D], dy[T * D];
    const slm_weights weights = {
        .struct_size = sizeof weights,
        .w_router = view(w, 2, N, D, 0),
        .w_down = view(w + 20, 2, L, D, 0),
        .w_gate = view(w + 35, 3, N, F, L),
        .w_up = view(w + 59, 3, N, F, L),
        .w_out = view(w + 83, 3, N, L, F),
        .gamma = norm == SLM_NORM_RMS ? view(w + 107, 1, L, 0, 0) : (slm_tensor){0},
        .w_lift = view(w + 110, 2, D, L, 0),
        .w_shared_gate = view(w + 125, 2, S * FS, D, 0),
        .w_shared_up = view(w + 145, 2, S * FS, D, 0),
        .w_shared_out = view(w + 165, 2, D, S * FS, 0)};
    slm_config config;

    for (size_t i = 0; i < 256; i++) w[i] = (float)((i * 37 + 11) % 61) / 30 - 1;
    for (size_t i = 0; i < T * D; i++) x[i] = (float)((i * 23 + 3) % 41) / 16 - 1;
    for (size_t i = 0; i < T * D; i++) dy[i] = (float)((i * 17 + 9) % 37) / 16 - 1;
    assert_true(slm_config_profile(profile, &config));
    config.d_model = D;
    config.d_latent = L;
    config.n_experts = N;
    config.top_k = k;
    config.d_expert = F;
    config.n_shared = S;
    config.d_shared = FS;
    config.expert = expert;
    config.norm = norm;
    config.eps = 1e-6;
    return check(&config, &weights, x, dy, k == 1 ? single : pairs, T);
}

static void a_situ_layer_has_the_slopes_of_its_loss(void **state)
{
    (void)state;
    /* x 20; router 20, down 15, experts 72, gamma 3, lift 15, shared 60; stages: logit
     * 16, weight 8, z 12, gate_up 32, h 16, u 12, r 12, shared_gate_up 32, hs 16 */
    assert_int_equal(check_gated("paper", SLM_EXPERT_SITU, SLM_NORM_RMS, 2),
                     20 + 185 + 156);
}

static void so_have_the_controls_and_the_release(void **state)
{
    (void)state;
    assert_true(check_gated("release", SLM_EXPERT_SITU, SLM_NORM_RMS, 2) > 300);
    assert_true(check_gated("release", SLM_EXPERT_SITU, SLM_NORM_RMS, 1) > 300);
    assert_true(check_gated("paper", SLM_EXPERT_SITU, SLM_NORM_RMS, 1) > 300);
    assert_true(check_gated("vanilla", SLM_EXPERT_SWIGLU, SLM_NORM_NONE, 2) > 300);
}

static void the_comparison_says_no_to_a_part_in_1e39(void **state)
{
    (void)state;
    arb_t a, b, gauge;

    arb_init(a);
    arb_init(b);
    arb_init(gauge);
    arb_set_ui(gauge, 3);
    arb_one(a);
    arb_set_str(b, "1e-39", SLOPES_BITS);
    arb_add(b, b, a, SLOPES_BITS);
    assert_false(agree(a, b, gauge));
    assert_true(agree(a, a, gauge));
    mag_set_ui_2exp_si(arb_radref(a), 1, -120); /* a wide ball is no agreement */
    assert_false(agree(a, a, gauge));
    arb_indeterminate(a);
    assert_false(agree(a, a, gauge));
    arb_clear(gauge);
    arb_clear(b);
    arb_clear(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_comparison_says_no_to_a_part_in_1e39),
        cmocka_unit_test(the_note_s_layer_has_the_slopes_of_its_loss),
        cmocka_unit_test(a_situ_layer_has_the_slopes_of_its_loss),
        cmocka_unit_test(so_have_the_controls_and_the_release),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
