/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/envelope_backward.c - where the values of a backward pass can lie when what
 * they were computed from was not shown.                                       G1-G4 */
#include "envelope_token.h"

#include <ref.h>

#include <math.h>
#include <string.h>

static const double U32 = 0x1p-24;

static double gradient_v(const envelope_token *at)
{
    return noise_coarse_gradient(&at->noise);
}

static void run_dr(envelope_token *at)
{
    double *dr = noise_runs(at->l);

    noise_transposed(&at->noise, dr, &at->e->weights->w_lift, at->runs[FLOW_DY]);
    noise_store_all(&at->noise, dr, at->l, gradient_v(at));
    envelope_settle(at, FLOW_DR, dr);
}

/* du = (g - n mean(g n)) / R of one run. */
static void norm_slope(envelope_token *at, const double *u, const double *dr,
                       int disturbed, double *du)
{
    const bound_rules *rules = at->noise.rules;
    const size_t l = at->l;
    const slm_tensor *gamma = &at->e->weights->gamma;
    const double scale = noise_scale(&at->noise, u, l, disturbed);
    const double on = disturbed ? 1 : 0;
    double mean = 0, gauge = 0;

    for (size_t i = 0; i < l; i++) {
        du[i] = dr[i] * (gamma->rank ? slm_ref_get(gamma, i) : 1);
        mean += du[i] * u[i] * scale;
        gauge += fabs(du[i] * u[i] * scale);
    }
    mean /= (double)l;
    gauge /= (double)l;
    mean +=
        on * (rules->u * sqrt((double)l) + 4 * U32) * gauge * noise_uniform(&at->noise);
    for (size_t i = 0; i < l; i++) {
        const double first = du[i] * (1 + on * 2 * U32 * noise_uniform(&at->noise));
        const double second =
            u[i] * scale * mean * (1 + on * 3 * U32 * noise_uniform(&at->noise));
        const double lost = (1 + scale) * (1 + scale) * noise_underflow(&at->noise);

        du[i] = (first - second) * scale + (first != 0 || second != 0 ? on * lost : 0);
    }
}

static void run_du(envelope_token *at)
{
    const size_t l = at->l;
    double *du = envelope_part(at->runs[FLOW_DR], 1, l, 0);

    if (at->e->config->norm == SLM_NORM_RMS)
        for (size_t s = 0; s < RUNS; s++)
            norm_slope(at, at->runs[FLOW_U] + s * l, at->runs[FLOW_DR] + s * l, s > 0,
                       du + s * l);
    noise_store_all(&at->noise, du, l, gradient_v(at));
    envelope_settle(at, FLOW_DU, du);
}

/* du W of one slot, W its last matrix: [RUNS, f], or [RUNS, l] of a linear expert. */
static double *back_through(envelope_token *at, size_t q, const double *du)
{
    const slm_weights *weights = at->e->weights;
    const slm_tensor w =
        slm_tensor_at(flow_is_linear(at->e) ? &weights->w_expert : &weights->w_out,
                      (size_t)at->ids[q]);
    double *out = noise_runs(w.shape[1]);

    noise_transposed(&at->noise, out, &w, du);
    return out;
}

/* dp = <du, o>, or <du W, h> of the same o. o is taken as computed: what was shown of it
 * need not have been used here. A coarse du W is rounded, element by element. */
static void run_dweight(envelope_token *at)
{
    const size_t k = at->k, l = at->l;
    const double v = gradient_v(at);
    double *dp = noise_runs(k);

    for (size_t q = 0; q < k; q++) {
        const size_t width = flow_is_linear(at->e) ? l : at->f;
        double *back = v > 0 ? back_through(at, q, at->runs[FLOW_DU]) : NULL;
        const double *from =
            flow_is_linear(at->e) ? at->runs[FLOW_Z] : at->runs[FLOW_H] + q * width;
        double squares = 0;

        for (size_t j = 0; back && j < width; j++)
            squares += back[j] * from[j] * back[j] * from[j];
        for (size_t s = 0; s < RUNS; s++) {
            const double *du = at->runs[FLOW_DU] + s * l;
            const double *o = at->own_o + (s * k + q) * l;
            double sum = 0, gauge = 0, terms = 0;

            for (size_t i = 0; i < l; i++) {
                sum += du[i] * o[i];
                gauge += fabs(du[i] * o[i]);
                terms += du[i] * o[i] != 0;
            }
            if (s > 0)
                sum += noise_amplitude(at->noise.rules, terms, gauge) *
                           noise_uniform(&at->noise) +
                       v * sqrt(squares) * noise_uniform(&at->noise);
            dp[s * k + q] = sum;
        }
        flint_free(back);
    }
    envelope_settle(at, FLOW_DWEIGHT, dp);
}

/* dlogit = p (1 - s) (dp - sum p dp); what 1 - s lost to underflow meets the last factor.
 * A ratio of one is constant.                                                     G3 */
static void run_dlogit(envelope_token *at)
{
    const slm_config *config = at->e->config;
    const int release = config->weighting == SLM_WEIGHT_RELEASE;
    const size_t k = at->k;
    const double c = at->noise.rules->sigmoid;
    double *out = noise_runs(k);

    for (size_t s = 0; s < RUNS && (k > 1 || release); s++) {
        const double *dp = at->runs[FLOW_DWEIGHT] + s * k;
        const double *p = at->runs[FLOW_WEIGHT] + s * k;
        const double *logit = at->runs[FLOW_LOGIT] + s * k;
        double mean = 0, gauge = 0;

        for (size_t q = 0; q < k && k > 1; q++) {
            mean += p[q] * dp[q];
            gauge += fabs(p[q] * dp[q]);
        }
        for (size_t q = 0; q < k; q++) {
            const double on = s > 0 ? 1 : 0;
            const double away = (2 * c + sqrt(2 * (double)k + 6) * U32) *
                                (gauge + (k > 1 ? fabs(dp[q]) : 0));
            const double slope = dp[q] - mean + on * away * noise_uniform(&at->noise);
            const double rel = on * (2 * c + 4 * U32) * noise_uniform(&at->noise);

            out[s * k + q] = p[q] * noise_sigma(-logit[q]) * slope * (1 + rel) +
                             (gauge > 0 || dp[q] != 0
                                  ? on * (1 + fabs(slope)) * noise_underflow(&at->noise)
                                  : 0);
        }
    }
    envelope_settle(at, FLOW_DLOGIT, out);
}

/* p du of one slot, perhaps stored. */
static double *weighted(envelope_token *at, size_t q)
{
    const size_t k = at->k, l = at->l;
    double *du = envelope_part(at->runs[FLOW_DU], 1, l, 0);

    for (size_t s = 0; s < RUNS; s++)
        for (size_t i = 0; i < l; i++)
            du[s * l + i] *= at->runs[FLOW_WEIGHT][s * k + q] *
                             (1 + (s > 0 ? U32 * noise_uniform(&at->noise) : 0));
    noise_store_all(&at->noise, du, l, gradient_v(at));
    return du;
}

/* [RUNS, n, 2 width] of dh [RUNS, n, width] and the stage before the activation. */
static double *slopes(envelope_token *at, const double *both, const double *dh,
                      size_t n, size_t width)
{
    double *out = noise_runs(n * 2 * width);

    for (size_t s = 0; s < RUNS; s++)
        for (size_t i = 0; i < n * width; i++) {
            const size_t a = (s * n + i / width) * 2 * width + i % width;

            noise_slopes(&at->noise, both[a], both[a + width], dh[s * n * width + i],
                         s > 0, out + a, out + a + width);
        }
    noise_store_all(&at->noise, out, n * 2 * width, gradient_v(at));
    return out;
}

static void run_dh(envelope_token *at)
{
    const size_t k = at->k, f = at->f;
    double *dh = noise_runs(k * f);

    for (size_t q = 0; q < k; q++) {
        double *du = weighted(at, q);

        envelope_put(dh, k, f, q, back_through(at, q, du));
        flint_free(du);
    }
    noise_store_all(&at->noise, dh, k * f, gradient_v(at));
    envelope_settle(at, FLOW_DH, dh);
    envelope_settle(at, FLOW_DGATE_UP,
                    slopes(at, at->runs[FLOW_GATE_UP], at->runs[FLOW_DH], k, f));
}

/* Add what a matrix does to a gradient; a coarse store rounds this addend, too. */
static void add_back(envelope_token *at, double *sum, size_t width, const slm_tensor *w,
                     double *x)
{
    double *part = noise_runs(width);

    noise_transposed(&at->noise, part, w, x);
    noise_store_all(&at->noise, part, width, gradient_v(at));
    for (size_t i = 0; i < RUNS * width; i++) sum[i] += part[i];
    flint_free(part);
    flint_free(x);
}

static void run_dz(envelope_token *at)
{
    const slm_weights *weights = at->e->weights;
    double *dz = noise_runs(at->l);

    for (size_t q = 0; q < at->k; q++) {
        const size_t e = (size_t)at->ids[q];

        if (flow_is_linear(at->e)) {
            const slm_tensor w = slm_tensor_at(&weights->w_expert, e);

            add_back(at, dz, at->l, &w, weighted(at, q));
        } else {
            const slm_tensor gate = slm_tensor_at(&weights->w_gate, e);
            const slm_tensor up = slm_tensor_at(&weights->w_up, e);
            const double *both = at->runs[FLOW_DGATE_UP];

            add_back(at, dz, at->l, &gate,
                     envelope_part(both, 2 * at->k, at->f, 2 * q));
            add_back(at, dz, at->l, &up,
                     envelope_part(both, 2 * at->k, at->f, 2 * q + 1));
        }
    }
    noise_store_all(&at->noise, dz, at->l, gradient_v(at));
    envelope_settle(at, FLOW_DZ, dz);
}

static void run_shared_back(envelope_token *at)
{
    double *dhs = noise_runs(at->fs);

    noise_transposed(&at->noise, dhs, &at->e->weights->w_shared_out, at->runs[FLOW_DY]);
    noise_store_all(&at->noise, dhs, at->fs, gradient_v(at));
    envelope_settle(at, FLOW_DHS, dhs);
    envelope_settle(
        at, FLOW_DSHARED_GATE_UP,
        slopes(at, at->runs[FLOW_SHARED_GATE_UP], at->runs[FLOW_DHS], 1, at->fs));
}

static void run_dx(envelope_token *at)
{
    const slm_weights *weights = at->e->weights;
    const size_t d = at->d, fs = at->fs;
    double *dx = noise_runs(d);

    if (at->e->routed)
        add_back(at, dx, d, &weights->w_down,
                 envelope_part(at->runs[FLOW_DZ], 1, at->l, 0));
    for (size_t q = 0; q < at->k; q++) {
        const slm_tensor w = flow_row(&weights->w_router, (size_t)at->ids[q]);

        add_back(at, dx, d, &w, envelope_part(at->runs[FLOW_DLOGIT], at->k, 1, q));
    }
    if (fs > 0) {
        const double *both = at->runs[FLOW_DSHARED_GATE_UP];

        add_back(at, dx, d, &weights->w_shared_gate, envelope_part(both, 2, fs, 0));
        add_back(at, dx, d, &weights->w_shared_up, envelope_part(both, 2, fs, 1));
    }
    for (size_t i = 0; flow_is_linear(at->e) && i < at->e->config->n_shared; i++) {
        const slm_tensor w = slm_tensor_at(&weights->w_shared, i);

        add_back(at, dx, d, &w, envelope_part(at->runs[FLOW_DY], 1, d, 0));
    }
    envelope_settle(at, FLOW_DX, dx);
}

static void run_token(envelope_token *at)
{
    flow *e = at->e;

    at->runs[FLOW_X] = noise_spread(e->shown[FLOW_X] + at->t * at->d, at->d);
    at->runs[FLOW_DY] = noise_spread(e->shown[FLOW_DY] + at->t * at->d, at->d);
    envelope_forward(at);
    if (e->routed) {
        run_dr(at);
        run_du(at);
        run_dweight(at);
        run_dlogit(at);
        if (!flow_is_linear(e)) run_dh(at);
        run_dz(at);
    }
    if (at->fs > 0) run_shared_back(at);
    run_dx(at);
    for (int i = 0; i < FLOW_FIELDS; i++) flint_free(at->runs[i]);
    flint_free(at->own_o);
}

/* Fields that gradients of weights are made of. */
static int is_factor(flow_field field)
{
    return field == FLOW_WEIGHT || field == FLOW_Z || field == FLOW_H ||
           field == FLOW_U || field == FLOW_R || field == FLOW_HS || field == FLOW_DR ||
           field == FLOW_DU || field == FLOW_DLOGIT || field == FLOW_DGATE_UP ||
           field == FLOW_DZ || field == FLOW_DSHARED_GATE_UP;
}

/* FNV-1a. */
static uint64_t hashed(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *byte = data;

    for (size_t i = 0; i < size; i++) hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

/* Equal tokens make equal errors, which add up in gradients of weights: the noise of a
 * token follows from what it is given. */
static uint64_t seed_of(const flow *e, size_t t)
{
    static const flow_field given[] = {FLOW_X, FLOW_DY};
    uint64_t seed = 0xcbf29ce484222325u;

    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        const size_t width = flow_width(e, given[i]);

        if (e->shown[given[i]])
            seed = hashed(seed, e->shown[given[i]] + t * width, width * sizeof(double));
    }
    if (!e->routed) return seed;
    return hashed(seed, e->ids + t * e->config->top_k,
                  e->config->top_k * sizeof *e->ids);
}

void envelope_backward_open(flow *e)
{
    for (int i = 0; i < FLOW_FIELDS; i++) {
        const size_t count = e->n_tokens * flow_width(e, (flow_field)i);

        e->value[i] = flint_calloc(count + 1, sizeof *e->value[i]);
        e->deviation[i] = flint_calloc(count + 1, sizeof *e->deviation[i]);
        if (is_factor((flow_field)i) && !e->shown[i])
            e->kept[i] = flint_calloc(RUNS * count + 1, sizeof *e->kept[i]);
    }
    for (size_t t = 0; t < e->n_tokens; t++) {
        envelope_token at = {.e = e,
                             .noise = {e->rules, e->config, e->dtype, seed_of(e, t)},
                             .t = t,
                             .d = e->config->d_model,
                             .l = e->config->d_latent,
                             .k = e->routed ? e->config->top_k : 0,
                             .f = e->config->d_expert,
                             .fs = flow_width(e, FLOW_HS),
                             .ids = e->routed ? e->ids + t * e->config->top_k : NULL};

        run_token(&at);
    }
}

void envelope_backward_close(flow *e)
{
    for (int i = 0; i < FLOW_FIELDS; i++) {
        flint_free(e->kept[i]);
        flint_free(e->deviation[i]);
        flint_free(e->value[i]);
        e->kept[i] = e->deviation[i] = e->value[i] = NULL;
    }
}
