/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/plain.c - a straightforward binary32 layer, right or with one
 * fault. */
#include "plain.h"

#include <math.h>
#include <string.h>

const char *plain_fault_name(plain_fault fault)
{
    static const char *const names[PLAIN_FAULTS] = {
        "right",           "bias in weight",  "not normalised",  "bias ignored",
        "weights swapped", "weights equal",   "expert plus one", "last expert dropped",
        "scores bf16",     "sigma of capped", "no cap on up",    "betas swapped",
        "swiglu",          "hard cap",        "no norm",         "eps outside",
        "eps tenfold",     "eps missing",     "gamma ignored",   "mean over d",
        "shared dropped",  "shared fed z",    "bf16 sums",       "rows swapped",
        "last column",     "last token"};

    return names[fault];
}

static float to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000u;
    memcpy(&value, &bits, 4);
    return value;
}

/* Store a stage's elements. */
static void store(plain_fault fault, float *values, size_t n)
{
    for (size_t i = 0; i < n && fault == PLAIN_STORES_BF16; i++)
        values[i] = to_bf16(values[i]);
}

float plain_dot(plain_order order, const float *w, const float *x, size_t n)
{
    float sum = 0, lane[8] = {0};

    for (size_t i = 0; i < n; i++) {
        if (order == PLAIN_FORWARD) sum += w[i] * x[i];
        if (order == PLAIN_BACKWARD) sum += w[n - 1 - i] * x[n - 1 - i];
        if (order == PLAIN_LANES) lane[i % 8] += w[i] * x[i];
        if (order == PLAIN_FMA) sum = fmaf(w[i], x[i], sum);
    }
    for (size_t i = 0; i < 8; i++) sum += lane[i];
    return sum;
}

static float dot(plain_order order, plain_fault fault, const float *w, const float *x,
                 size_t n)
{
    float sum = 0;

    if (fault != PLAIN_BF16_SUMS) return plain_dot(order, w, x, n);
    for (size_t i = 0; i < n; i++) sum = to_bf16(sum + w[i] * x[i]);
    return sum;
}

float plain_sigmoid(float a)
{
    return 1 / (1 + expf(-a));
}

static float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

float plain_situ(float a, float b, plain_fault fault)
{
    const float b1 = fault == PLAIN_BETAS_SWAPPED ? 25 : 4;
    const float b2 = fault == PLAIN_BETAS_SWAPPED ? 4 : 25;
    float gate = b1 * tanhf(a / b1), up = b2 * tanhf(b / b2);
    const float seen = fault == PLAIN_SIGMA_OF_CAPPED ? gate : a;

    if (fault == PLAIN_SWIGLU) return a * plain_sigmoid(a) * b;
    if (fault == PLAIN_NO_CAP_ON_UP) up = b;
    if (fault == PLAIN_HARD_CAP) {
        gate = clamp(a, b1);
        up = clamp(b, b2);
    }
    return gate * plain_sigmoid(seen) * up;
}

void plain_rmsnorm(const float *u, const float *gamma, size_t l, size_t d,
                   plain_fault fault, float *r)
{
    const float width = (float)(fault == PLAIN_MEAN_OVER_D ? d : l);
    float eps = 1e-6f, sum = 0, scale;

    if (fault == PLAIN_EPS_TENFOLD) eps = 1e-5f;
    if (fault == PLAIN_EPS_MISSING) eps = 0;
    for (size_t i = 0; i < l; i++) sum += u[i] * u[i];
    scale = fault == PLAIN_EPS_OUTSIDE ? 1 / (sqrtf(sum / width) + eps)
                                       : 1 / sqrtf(sum / width + eps);
    if (fault == PLAIN_NO_NORM) scale = 1;
    for (size_t i = 0; i < l; i++)
        r[i] = u[i] * scale * (fault == PLAIN_GAMMA_IGNORED ? 1 : gamma[i]);
}

/* One token's numbers; sizes are far below these. */
enum { MOST = 128 };

typedef struct token {
    float logit[MOST], s[MOST], key[MOST];
    float z[MOST], h[MOST], o[MOST], u[MOST], r[MOST], hs[MOST], y[MOST];
    int32_t ids[MOST];
    float p[MOST], cutoff;
} token;

static void route(const made_case *made, plain_order order, plain_fault fault,
                  const float *x, const float *w, const float *bias, token *t)
{
    const slm_config *config = &made->frame.config;
    const size_t n = config->n_experts, k = config->top_k;
    unsigned char used[MOST] = {0};
    float sum = 0;

    for (size_t j = 0; j < n; j++) {
        t->logit[j] = dot(order, fault, w + j * config->d_model, x, config->d_model);
        t->s[j] = plain_sigmoid(t->logit[j]);
        if (fault == PLAIN_SCORES_BF16) t->s[j] = to_bf16(t->s[j]);
        t->key[j] = t->s[j] + (fault == PLAIN_BIAS_IGNORED ? 0 : bias[j]);
    }
    for (size_t q = 0; q <= k && q < n; q++) {
        size_t best = n;

        for (size_t j = 0; j < n; j++)
            if (!used[j] && (best == n || t->key[j] > t->key[best])) best = j;
        used[best] = 1;
        if (q == k) t->cutoff = t->key[best];
        if (q < k) t->ids[q] = (int32_t)best;
    }
    if (fault == PLAIN_EXPERT_PLUS_ONE)
        t->ids[k - 1] = (t->ids[k - 1] + 1) % (int32_t)n;
    for (size_t q = 0; q < k; q++) {
        t->p[q] = fault == PLAIN_BIAS_IN_WEIGHT ? t->key[t->ids[q]] : t->s[t->ids[q]];
        sum += t->p[q];
    }
    for (size_t q = 0; q < k; q++) {
        if (fault != PLAIN_NOT_NORMALISED) t->p[q] /= sum;
        if (fault == PLAIN_WEIGHTS_EQUAL) t->p[q] = 1 / (float)k;
    }
    if (fault == PLAIN_WEIGHTS_SWAPPED) {
        const float first = t->p[0];

        t->p[0] = t->p[k - 1];
        t->p[k - 1] = first;
    }
}

static void inner(plain_order order, plain_fault fault, const float *gate,
                  const float *up, const float *x, size_t rows, size_t cols, float *h)
{
    for (size_t i = 0; i < rows; i++)
        h[i] = plain_situ(dot(order, fault, gate + i * cols, x, cols),
                          dot(order, fault, up + i * cols, x, cols), fault);
}

static void experts(const made_case *made, plain_order order, plain_fault fault,
                    token *t)
{
    const slm_config *config = &made->frame.config;
    const slm_weights *weights = &made->frame.weights;
    const size_t l = config->d_latent, f = config->d_expert, k = config->top_k;

    memset(t->u, 0, sizeof t->u);
    for (size_t q = 0; q < k; q++) {
        const size_t e = (size_t)t->ids[q];
        float *h = t->h + q * f, *o = t->o + q * l;

        inner(order, fault, (const float *)weights->w_gate.data + e * f * l,
              (const float *)weights->w_up.data + e * f * l, t->z, f, l, h);
        store(fault, h, f);
        for (size_t i = 0; i < l; i++) {
            o[i] = dot(order, fault,
                       (const float *)weights->w_out.data + (e * l + i) * f, h, f);
            store(fault, o + i, 1);
            if (fault != PLAIN_LAST_EXPERT_DROPPED || q + 1 < k)
                t->u[i] += t->p[q] * o[i];
        }
    }
}

static void run_token(const made_case *made, plain_order order, plain_fault fault,
                      const float *x, const float *bias, token *t)
{
    const slm_config *config = &made->frame.config;
    const slm_weights *weights = &made->frame.weights;
    const size_t d = config->d_model, l = config->d_latent;
    const size_t fs = config->n_shared * config->d_shared;
    float fed[MOST] = {0};

    route(made, order, fault, x, weights->w_router.data, bias, t);
    for (size_t i = 0; i < l; i++)
        t->z[i] = dot(order, fault, (const float *)weights->w_down.data + i * d, x, d);
    store(fault, t->z, l);
    experts(made, order, fault, t);
    store(fault, t->u, l);
    plain_rmsnorm(t->u, weights->gamma.data, l, d, fault, t->r);
    store(fault, t->r, l);
    memcpy(fed, x, d * sizeof *fed);
    if (fault == PLAIN_SHARED_FED_Z) {
        memset(fed, 0, sizeof fed);
        memcpy(fed, t->z, l * sizeof *fed);
    }
    inner(order, fault, weights->w_shared_gate.data, weights->w_shared_up.data, fed, fs,
          d, t->hs);
    store(fault, t->hs, fs);
    for (size_t i = 0; i < d; i++) {
        const float routed =
            dot(order, fault, (const float *)weights->w_lift.data + i * l, t->r, l);
        const float shared =
            dot(order, fault, (const float *)weights->w_shared_out.data + i * fs, t->hs,
                fs);

        t->y[i] = routed + (fault == PLAIN_SHARED_DROPPED ? 0 : shared);
    }
    store(fault, t->y, d);
    if (fault == PLAIN_LAST_COLUMN) t->y[d - 1] = t->y[d - 2];
}

static void put(made_case *made, const char *field, size_t t, size_t width,
                const float *values)
{
    memcpy(case_f32(made, field) + t * width, values, width * sizeof *values);
}

static void put_taps(made_case *made, size_t i, const token *t)
{
    const slm_config *config = &made->frame.config;

    put(made, "cutoff", i, 1, &t->cutoff);
    put(made, "logit", i, config->n_experts, t->logit);
    put(made, "score", i, config->n_experts, t->s);
    put(made, "z", i, config->d_latent, t->z);
    put(made, "h", i, config->top_k * config->d_expert, t->h);
    put(made, "o", i, config->top_k * config->d_latent, t->o);
    put(made, "u", i, config->d_latent, t->u);
    put(made, "r", i, config->d_latent, t->r);
    put(made, "hs", i, config->n_shared * config->d_shared, t->hs);
}

void plain_layer(made_case *made, plain_order order, plain_fault fault, int taps)
{
    const slm_config *config = &made->frame.config;
    const size_t d = config->d_model, k = config->top_k;
    const size_t n_tokens = made->frame.call->n_tokens;
    const float *x = case_f32(made, "x"), *bias = case_f32(made, "bias");

    frame_poison(&made->frame, false);
    for (size_t i = 0; i < n_tokens; i++) {
        const size_t to = fault == PLAIN_ROWS_SWAPPED && i < 2 ? 1 - i : i;
        token t;

        run_token(made, order, fault, x + i * d, bias, &t);
        if (fault == PLAIN_LAST_TOKEN && i + 1 == n_tokens) memset(t.y, 0, sizeof t.y);
        put(made, "y", to, d, t.y);
        put(made, "weight", i, k, t.p);
        memcpy(case_i32(made, "ids") + i * k, t.ids, k * sizeof *t.ids);
        if (taps) put_taps(made, i, &t);
    }
}
