/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/slopes.c - a layer in other formulas than ref's, and slopes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "slopes.h"

enum { BITS = SLOPES_BITS, STEP = -100 };

const slopes_name slopes_names[SLOPES_PARTS] = {{"dw_router", NULL},
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

const slm_op_info *slopes_info(void)
{
    return slm_op_describe(SLM_OP_layer_backward);
}

size_t slopes_field(const char *name)
{
    for (size_t i = 0; i < slopes_info()->n_fields; i++)
        if (strcmp(slopes_info()->fields[i].name, name) == 0) return i;
    fail_msg("no field %s", name);
    return 0;
}

size_t slopes_shape(const slm_field *field, const slm_config *config,
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
static arb_ptr nudge(slopes *m, int part, size_t at, size_t n)
{
    for (size_t i = at; i < at + n; i++)
        arb_add(m->seen[part] + i, m->seen[part] + i, m->at[part] + i, BITS);
    return m->seen[part] + at;
}

/* y = (gated network of x), f wide, slot `slot` of its stages; w of one expert. */
static void network(slopes *m, arb_ptr y, arb_srcptr x, size_t slot, const int *part,
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
static void weigh(slopes *m, size_t t)
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
static void normalise(slopes *m, size_t t)
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
static void mix(slopes *m, size_t t)
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
static void share(slopes *m, arb_ptr y, arb_ptr part, size_t t)
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

void slopes_loss(arb_t out, slopes *m)
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

void slopes_slope(arb_t out, slopes *m, arb_t at)
{
    arb_t before, below, step;

    arb_init(before);
    arb_init(below);
    arb_init(step);
    arb_set(before, at);
    arb_one(step);
    arb_mul_2exp_si(step, step, STEP);
    arb_add(at, before, step, BITS);
    slopes_loss(out, m);
    arb_sub(at, before, step, BITS);
    slopes_loss(below, m);
    arb_sub(out, out, below, BITS);
    arb_mul_2exp_si(out, out, -STEP - 1);
    arb_set(at, before);
    arb_clear(step);
    arb_clear(below);
    arb_clear(before);
}

/* ---- its balls ---- */

void slopes_open(slopes *m, const slm_config *config, const slm_call *call)
{
    const int linear = config->expert == SLM_EXPERT_LINEAR;

    *m = (slopes){.config = *config,
                  .n_tokens = call->n_tokens,
                  .d = config->d_model,
                  .l = config->d_latent,
                  .n = config->n_experts,
                  .k = config->top_k,
                  .f = linear ? 0 : config->d_expert,
                  .fs = linear ? 0 : config->n_shared * config->d_shared};
    for (int part = 0; part < SLOPES_PARTS; part++) {
        const char *name = slopes_names[part].gradient ? slopes_names[part].gradient
                                                       : slopes_names[part].tap;
        size_t shape[SLM_MAX_RANK];

        m->count[part] = slopes_shape(&slopes_info()->fields[slopes_field(name)],
                                      config, call, shape);
        m->at[part] = _arb_vec_init((slong)m->count[part]);
        m->seen[part] = _arb_vec_init((slong)m->count[part]);
    }
}

void slopes_close(slopes *m)
{
    for (int part = 0; part < SLOPES_PARTS; part++) {
        _arb_vec_clear(m->seen[part], (slong)m->count[part]);
        _arb_vec_clear(m->at[part], (slong)m->count[part]);
    }
}

void slopes_load(slopes *m, const slm_weights *weights, const slm_tensor *x)
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
