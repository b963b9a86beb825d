/* SPDX-License-Identifier: Apache-2.0 */
/* test_ref_gradients.c - the reference's gradients against central differences.  G1-G5
 *
 * L = sum dy . y of a layer written here, in other formulas than ref's, at 400 bits
 * with the choice held fixed. Every element of every weight, of x and of every stage (by
 * a nudge that is added to it) is moved by +-2^-100. The slope must be ref's ball, of
 * 400 bits, to within 1e-40 of the largest gradient of its tensor: differences err by
 * about 2^-200. Every tap is compared with its stage, every element of the operation's
 * own binary64 outputs with the ball, rounded. */
#include "internal.h"
#include "seed_7.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BITS = 400, STEP = -100, FIELDS = 40 };

/* What is moved: weights in the order of slm_weights, x, then stages. */
enum {
    W_ROUTER,
    W_DOWN,
    W_GATE,
    W_UP,
    W_OUT,
    W_EXPERT,
    GAMMA,
    W_LIFT,
    W_SHARED_GATE,
    W_SHARED_UP,
    W_SHARED_OUT,
    W_SHARED,
    X,
    LOGIT,
    WEIGHT,
    Z,
    GATE_UP,
    H,
    O,
    U,
    R,
    SHARED_GATE_UP,
    HS,
    PARTS
};

/* A part's gradient, and the tap that shows a stage itself. */
static const struct {
    const char *gradient;
    const char *tap;
} names[PARTS] = {{"dw_router", NULL},
                  {"dw_down", NULL},
                  {"dw_gate", NULL},
                  {"dw_up", NULL},
                  {"dw_out", NULL},
                  {"dw_expert", NULL},
                  {"dgamma", NULL},
                  {"dw_lift", NULL},
                  {"dw_shared_gate", NULL},
                  {"dw_shared_up", NULL},
                  {"dw_shared_out", NULL},
                  {"dw_shared", NULL},
                  {"dx", NULL},
                  {"dlogit", "logit"},
                  {"dweight", "weight"},
                  {"dz", "z"},
                  {"dgate_up", "gate_up"},
                  {"dh", "h"},
                  {NULL, "o"},
                  {"du", "u"},
                  {"dr", "r"},
                  {"dshared_gate_up", "shared_gate_up"},
                  {"dhs", "hs"}};

/* Balls of one layer: `at` what is moved (a stage: its nudge), `seen` the stages. */
typedef struct model {
    slm_config config;
    size_t n_tokens, d, l, n, k, f, fs;
    const int32_t *ids;
    const float *dy;
    arb_ptr at[PARTS];
    arb_ptr seen[PARTS];
    size_t count[PARTS];
} model;

/* The outputs of layer_backward: elements as binary64, and as balls. */
typedef struct gradients {
    slm_layer_backward_args args;
    double *value[FIELDS];
    arb_ptr ball[FIELDS];
    size_t count[FIELDS];
} gradients;

static const slm_op_info *info(void)
{
    return slm_op_describe(SLM_OP_layer_backward);
}

static size_t field_of(const char *name)
{
    for (size_t i = 0; i < info()->n_fields; i++)
        if (strcmp(info()->fields[i].name, name) == 0) return i;
    fail_msg("no field %s", name);
    return 0;
}

/* Elements of a field, and its shape; 0 where the configuration has none. */
static size_t shape_of(const slm_field *field, const slm_config *config,
                       const slm_call *call, size_t *shape)
{
    size_t count = 1;

    if (!slm_field_applies(field, config)) return 0;
    for (size_t i = 0; field->dims[i]; i++) {
        assert_true(slm_dim(config, call, field->dims[i], &shape[i]));
        count *= shape[i];
    }
    return count;
}

/* ---- the layer in other words ---- */

/* 2 sigma(a) - 1 = tanh(a / 2), in exponentials. */
static void half_tanh(arb_t out, const arb_t a)
{
    arb_t e, below;

    arb_init(e);
    arb_init(below);
    arb_exp(e, a, BITS);
    arb_add_ui(below, e, 1, BITS);
    arb_sub_ui(e, e, 1, BITS);
    arb_div(out, e, below, BITS);
    arb_clear(below);
    arb_clear(e);
}

static void sigma(arb_t out, const arb_t a)
{
    half_tanh(out, a);
    arb_add_ui(out, out, 1, BITS);
    arb_mul_2exp_si(out, out, -1);
}

static void cap(arb_t out, const arb_t a, double beta)
{
    arb_t bound;

    arb_init(bound);
    arb_set_d(bound, beta);
    arb_mul_2exp_si(out, a, 1);
    arb_div(out, out, bound, BITS);
    half_tanh(out, out);
    arb_mul(out, out, bound, BITS);
    arb_clear(bound);
}

static void activate(arb_t h, const arb_t a, const arb_t b, const slm_config *config)
{
    const int capped = config->expert == SLM_EXPERT_SITU;
    arb_t gate, up;

    arb_init(gate);
    arb_init(up);
    arb_set(gate, a);
    arb_set(up, b);
    if (capped) cap(gate, a, config->beta_gate);
    if (capped) cap(up, b, config->beta_up);
    sigma(h, a);
    arb_mul(h, h, gate, BITS);
    arb_mul(h, h, up, BITS);
    arb_clear(up);
    arb_clear(gate);
}

/* y = w x, w [rows, cols]. */
static void times(arb_ptr y, arb_srcptr w, arb_srcptr x, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++) {
        arb_zero(y + i);
        for (size_t j = 0; j < cols; j++)
            arb_addmul(y + i, w + i * cols + j, x + j, BITS);
    }
}

/* seen[part] row += its nudge; the row. */
static arb_ptr nudge(model *m, int part, size_t at, size_t n)
{
    for (size_t i = at; i < at + n; i++)
        arb_add(m->seen[part] + i, m->seen[part] + i, m->at[part] + i, BITS);
    return m->seen[part] + at;
}

/* y = (gated network of x), f wide, slot `slot` of its stages; w of one expert. */
static void network(model *m, arb_ptr y, arb_srcptr x, size_t slot, const int *part,
                    size_t e, size_t d, size_t f)
{
    const int sums_part = part[0], h_part = part[1];
    arb_ptr sums = m->seen[sums_part] + slot * 2 * f;
    arb_ptr h = m->seen[h_part] + slot * f;

    times(sums, m->at[part[2]] + e * f * d, x, f, d);
    times(sums + f, m->at[part[3]] + e * f * d, x, f, d);
    nudge(m, sums_part, slot * 2 * f, 2 * f);
    for (size_t i = 0; i < f; i++) activate(h + i, sums + i, sums + f + i, &m->config);
    nudge(m, h_part, slot * f, f);
    times(y, m->at[part[4]] + e * d * f, h, d, f);
}

/* weight of slot q: s / (sum of s + guard), p = s for the release with k = 1. */
static void weigh(model *m, size_t t)
{
    const int release = m->config.weighting == SLM_WEIGHT_RELEASE;
    arb_ptr logit = m->seen[LOGIT] + t * m->n, p = m->seen[WEIGHT] + t * m->k;
    arb_t sum, guard;

    arb_init(sum);
    arb_init(guard);
    arb_set_str(guard, "1e-20", BITS);
    if (release) arb_set(sum, guard);
    for (size_t q = 0; q < m->k; q++) {
        sigma(p + q, logit + m->ids[t * m->k + q]);
        arb_add(sum, sum, p + q, BITS);
    }
    if (!release || m->k > 1) _arb_vec_scalar_div(p, p, (slong)m->k, sum, BITS);
    nudge(m, WEIGHT, t * m->k, m->k);
    arb_clear(guard);
    arb_clear(sum);
}

/* r = gamma u / sqrt(mean(u^2) + eps), or u. */
static void normalise(model *m, size_t t)
{
    arb_ptr u = m->seen[U] + t * m->l, r = m->seen[R] + t * m->l;
    arb_t square, eps;

    _arb_vec_set(r, u, (slong)m->l);
    if (m->config.norm == SLM_NORM_RMS) {
        arb_init(square);
        arb_init(eps);
        arb_set_str(eps, "1e-6", BITS);
        for (size_t i = 0; i < m->l; i++) arb_addmul(square, u + i, u + i, BITS);
        arb_div_ui(square, square, m->l, BITS);
        arb_add(square, square, eps, BITS);
        arb_sqrt(square, square, BITS);
        for (size_t i = 0; i < m->l; i++) {
            arb_div(r + i, r + i, square, BITS);
            arb_mul(r + i, r + i, m->at[GAMMA] + i, BITS);
        }
        arb_clear(eps);
        arb_clear(square);
    }
    nudge(m, R, t * m->l, m->l);
}

/* u of token t: the experts of its slots, weighted. */
static void mix(model *m, size_t t)
{
    static const int parts[] = {GATE_UP, H, W_GATE, W_UP, W_OUT};
    arb_ptr u = m->seen[U] + t * m->l, z = m->seen[Z] + t * m->l;

    _arb_vec_zero(u, (slong)m->l);
    for (size_t q = 0; q < m->k; q++) {
        const size_t slot = t * m->k + q, e = (size_t)m->ids[slot];
        arb_ptr o = m->seen[O] + slot * m->l;

        if (m->config.expert == SLM_EXPERT_LINEAR)
            times(o, m->at[W_EXPERT] + e * m->l * m->l, z, m->l, m->l);
        else
            network(m, o, z, slot, parts, e, m->l, m->f);
        _arb_vec_scalar_addmul(u, o, (slong)m->l, m->seen[WEIGHT] + slot, BITS);
    }
    nudge(m, U, t * m->l, m->l);
}

/* y [d] += what the shared experts say; part [d] is scratch. */
static void share(model *m, arb_ptr y, arb_ptr part, size_t t)
{
    static const int parts[] = {SHARED_GATE_UP, HS, W_SHARED_GATE, W_SHARED_UP,
                                W_SHARED_OUT};
    arb_srcptr x = m->at[X] + t * m->d;

    if (m->config.expert != SLM_EXPERT_LINEAR) {
        network(m, part, x, t, parts, 0, m->d, m->fs);
        _arb_vec_add(y, y, part, (slong)m->d, BITS);
        return;
    }
    for (size_t j = 0; j < m->config.n_shared; j++) {
        times(part, m->at[W_SHARED] + j * m->d * m->d, x, m->d, m->d);
        _arb_vec_add(y, y, part, (slong)m->d, BITS);
    }
}

/* L. */
static void loss(arb_t out, model *m)
{
    arb_ptr y = _arb_vec_init((slong)m->d), part = _arb_vec_init((slong)m->d);
    arb_t dy;

    arb_init(dy);
    arb_zero(out);
    for (size_t t = 0; t < m->n_tokens; t++) {
        arb_srcptr x = m->at[X] + t * m->d;

        times(m->seen[LOGIT] + t * m->n, m->at[W_ROUTER], x, m->n, m->d);
        nudge(m, LOGIT, t * m->n, m->n);
        weigh(m, t);
        times(m->seen[Z] + t * m->l, m->at[W_DOWN], x, m->l, m->d);
        nudge(m, Z, t * m->l, m->l);
        mix(m, t);
        normalise(m, t);
        times(y, m->at[W_LIFT], m->seen[R] + t * m->l, m->d, m->l);
        share(m, y, part, t);
        for (size_t i = 0; i < m->d; i++) {
            arb_set_d(dy, (double)m->dy[t * m->d + i]);
            arb_addmul(out, y + i, dy, BITS);
        }
    }
    arb_clear(dy);
    _arb_vec_clear(part, (slong)m->d);
    _arb_vec_clear(y, (slong)m->d);
}

/* (L(at + step) - L(at - step)) / (2 step). */
static void slope(arb_t out, model *m, arb_t at)
{
    arb_t before, below, step;

    arb_init(before);
    arb_init(below);
    arb_init(step);
    arb_set(before, at);
    arb_one(step);
    arb_mul_2exp_si(step, step, STEP);
    arb_add(at, before, step, BITS);
    loss(out, m);
    arb_sub(at, before, step, BITS);
    loss(below, m);
    arb_sub(out, out, below, BITS);
    arb_mul_2exp_si(out, out, -STEP - 1);
    arb_set(at, before);
    arb_clear(step);
    arb_clear(below);
    arb_clear(before);
}

/* ---- ref ---- */

static void keep(void *user, const char *name, size_t index, const arb_t value)
{
    gradients *g = user;

    assert_true(index < g->count[field_of(name)]);
    arb_set(g->ball[field_of(name)] + index, value);
}

static void gradients_open(gradients *g, const slm_config *config, size_t n_tokens)
{
    memset(g, 0, sizeof *g);
    assert_true(info()->n_fields <= FIELDS);
    g->args.call = (slm_call){.struct_size = sizeof g->args, .n_tokens = n_tokens};
    for (size_t i = 0; i < info()->n_fields; i++) {
        const slm_field *field = &info()->fields[i];
        size_t shape[SLM_MAX_RANK] = {0};

        if (field->role != SLM_ROLE_OUT && field->role != SLM_ROLE_TAP) continue;
        g->count[i] = shape_of(field, config, &g->args.call, shape);
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
    arb_set_str(bound, "1e-40", BITS);
    arb_mul(bound, bound, gauge, BITS);
    arb_sub(difference, a, b, BITS);
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
        arb_max(peak, peak, size, BITS);
    }
    arb_clear(size);
}

static void compare(const gradients *g, const char *name, arb_srcptr want, size_t n)
{
    const size_t field = field_of(name);
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
static size_t compare_all(const gradients *g, model *m)
{
    size_t taken = 0;
    arb_t l;

    arb_init(l);
    loss(l, m);
    for (int part = 0; part < PARTS; part++)
        if (names[part].tap && m->count[part])
            compare(g, names[part].tap, m->seen[part], m->count[part]);
    for (int part = 0; part < PARTS; part++) {
        const size_t n = m->count[part];
        arb_ptr want = _arb_vec_init((slong)n);

        for (size_t i = 0; i < n && names[part].gradient; i++, taken++)
            slope(want + i, m, m->at[part] + i);
        if (n && names[part].gradient) compare(g, names[part].gradient, want, n);
        _arb_vec_clear(want, (slong)n);
    }
    arb_clear(l);
    return taken;
}

/* ---- a layer ---- */

static void model_open(model *m, const slm_config *config, const slm_call *call)
{
    const int linear = config->expert == SLM_EXPERT_LINEAR;

    *m = (model){.config = *config,
                 .n_tokens = call->n_tokens,
                 .d = config->d_model,
                 .l = config->d_latent,
                 .n = config->n_experts,
                 .k = config->top_k,
                 .f = linear ? 0 : config->d_expert,
                 .fs = linear ? 0 : config->n_shared * config->d_shared};
    for (int part = 0; part < PARTS; part++) {
        const char *name =
            names[part].gradient ? names[part].gradient : names[part].tap;
        size_t shape[SLM_MAX_RANK];

        m->count[part] = shape_of(&info()->fields[field_of(name)], config, call, shape);
        m->at[part] = _arb_vec_init((slong)m->count[part]);
        m->seen[part] = _arb_vec_init((slong)m->count[part]);
    }
}

static void model_close(model *m)
{
    for (int part = 0; part < PARTS; part++) {
        _arb_vec_clear(m->seen[part], (slong)m->count[part]);
        _arb_vec_clear(m->at[part], (slong)m->count[part]);
    }
}

/* Takes the weights that are present and x into the balls; gamma absent: ones. */
static void model_load(model *m, const slm_weights *weights, const slm_tensor *x)
{
    size_t n_fields;
    const slm_field *fields = slm_weight_fields(&n_fields);

    assert_int_equal(n_fields, X);
    for (size_t part = 0; part <= X; part++) {
        const slm_tensor *tensor =
            part == X ? x : (const void *)((const char *)weights + fields[part].offset);

        for (size_t i = 0; i < m->count[part]; i++)
            arb_set_d(m->at[part] + i, tensor->rank ? slm_ref_get(tensor, i) : 1);
    }
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
    model m;
    size_t taken;

    gradients_open(&g, config, n_tokens);
    g.args.x = slm_tensor_packed((void *)(uintptr_t)x, SLM_F32, 2, wide);
    g.args.dy = slm_tensor_packed((void *)(uintptr_t)dy, SLM_F32, 2, wide);
    g.args.ids = slm_tensor_packed((void *)(uintptr_t)ids, SLM_I32, 2, slots);
    assert_int_equal(ref->open(config, &handle, NULL), SLM_OK);
    assert_int_equal(ref->prepare(handle, weights, NULL), SLM_OK);
    assert_int_equal(ref->ops->layer_backward(handle, &g.args, NULL), SLM_OK);
    assert_int_equal(
        slm_ref_watch_layer_backward(handle, &g.args, BITS, keep, &g, NULL), SLM_OK);
    ref->close(handle);
    model_open(&m, config, &g.args.call);
    m.ids = ids;
    m.dy = dy;
    model_load(&m, weights, &g.args.x);
    taken = compare_all(&g, &m);
    model_close(&m);
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
    arb_set_str(b, "1e-39", BITS);
    arb_add(b, b, a, BITS);
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
