/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/naive.c - the layer as a loop over tokens and experts, with radii. */
#include "naive.h"

#include <math.h>
#include <string.h>

enum {
    T = NAIVE_T,
    D = NAIVE_D,
    L = NAIVE_L,
    N = NAIVE_N,
    K = NAIVE_K,
    F = NAIVE_F,
    S = NAIVE_S,
    SF = NAIVE_SF
};

/* sigma(a): slope at most 1/4. */
static real sigmoid(const naive_job *job, real a)
{
    return rounded(1.0 / (1.0 + exp(-a.value)), a.radius / 4.0,
                   fmax(job->arithmetic->sigmoid_ulp, 1.0));
}

/* ---- activations ---- */

/* A factor of the activation and its slope. */
typedef struct curve {
    real value;
    real slope;
} curve;

/* beta tanh(v / beta) and sech^2(v / beta), whose own slope is at most 4 / (3 sqrt 3);
 * its error by A1, from an exponential. */
static curve softcap(const naive_job *job, real v, double beta)
{
    const slm_arithmetic *of = job->arithmetic;
    const real x = scaled(v, 1.0 / beta);
    const double t = tanh(x.value), cosine = cosh(x.value);
    const real bent = rounded(t, x.radius + of->tanh_abs * REAL_U, of->tanh_ulp + 1.0);

    return (curve){
        rounded(beta * bent.value, beta * bent.radius, 1.0),
        rounded(1.0 / (cosine * cosine), 0.7699 * x.radius,
                2.0 * fmax(of->sigmoid_ulp, 1.0) + 4.0 + 2.0 * fabs(x.value))};
}

static curve gate_curve(const naive_job *job, real a)
{
    const real one = sigmoid(job, a), other = sigmoid(job, negative(a));
    curve cap = {a, exact(1.0)};

    if (job->config->expert == SLM_EXPERT_SITU)
        cap = softcap(job, a, job->config->beta_gate);
    return (curve){times(cap.value, one),
                   plus(times(cap.slope, one), times(times(cap.value, one), other))};
}

static curve up_curve(const naive_job *job, real b)
{
    if (job->config->expert == SLM_EXPERT_SITU)
        return softcap(job, b, job->config->beta_up);
    return (curve){b, exact(1.0)};
}

/* ---- one token ---- */

typedef struct token {
    int number;
    real x[D];
    real dy[D];
    real z[L];
    int ids[K];
    real p[K];
    real score[K];
    real other[K]; /* 1 - score */
    curve gate[K][F];
    curve up[K][F];
    real h[K][F];
    real o[K][L];
    real scale; /* 1 / R */
    real n[L];
    real r[L];
    curve shared_gate[SF];
    curve shared_up[SF];
    real hs[SF];
} token;

static void choose(const naive_job *job, const real *logit, token *at, double *margin)
{
    double key[N];

    for (int e = 0; e < N; e++)
        key[e] = 1.0 / (1.0 + exp(-logit[e].value)) + (double)job->bias[e];
    for (int q = 0; q < K; q++) {
        int best = 0;

        for (int e = 1; e < N; e++)
            if (key[e] > key[best]) best = e;
        for (int e = 0; e < N; e++)
            if (e != best) *margin = fmin(*margin, key[best] - key[e]);
        at->ids[q] = best;
        key[best] = -INFINITY;
    }
}

static void weigh(const naive_job *job, const real *logit, token *at)
{
    const int release = job->config->weighting == SLM_WEIGHT_RELEASE;
    real sum = exact(release ? 1e-20 : 0.0);

    for (int q = 0; q < K; q++) {
        at->score[q] = sigmoid(job, logit[at->ids[q]]);
        at->other[q] = sigmoid(job, negative(logit[at->ids[q]]));
        sum = plus(sum, at->score[q]);
    }
    for (int q = 0; q < K; q++) at->p[q] = times(at->score[q], inverse(sum));
}

static void expert_forward(const naive_job *job, token *at, int q)
{
    const naive_layer *w = job->weights;
    const int e = at->ids[q];

    if (job->config->expert == SLM_EXPERT_LINEAR) {
        for (int i = 0; i < L; i++) at->o[q][i] = dot(w->w_expert[e][i], at->z, L);
        return;
    }
    for (int i = 0; i < F; i++) {
        at->gate[q][i] = gate_curve(job, dot(w->w_gate[e][i], at->z, L));
        at->up[q][i] = up_curve(job, dot(w->w_up[e][i], at->z, L));
        at->h[q][i] = times(at->gate[q][i].value, at->up[q][i].value);
    }
    for (int i = 0; i < L; i++) at->o[q][i] = dot(w->w_out[e][i], at->h[q], F);
}

static void normalise(const naive_job *job, token *at)
{
    const slm_config *config = job->config;
    real u[L], square = exact(0.0);

    for (int i = 0; i < L; i++) {
        real sum = exact(0.0);

        for (int q = 0; q < K; q++) feed(&sum, at->p[q], at->o[q][i]);
        u[i] = closed(sum, K);
        feed(&square, u[i], u[i]);
    }
    at->scale = exact(1.0);
    if (config->norm == SLM_NORM_RMS)
        at->scale =
            inverse_root(plus(scaled(closed(square, L), 1.0 / L), exact(config->eps)),
                         job->arithmetic->rsqrt_ulp + 2.0);
    for (int i = 0; i < L; i++) {
        at->n[i] = times(u[i], at->scale);
        at->r[i] = config->norm == SLM_NORM_RMS
                       ? times(job->weights->gamma[i], at->n[i])
                       : u[i];
    }
}

static void forward(const naive_job *job, token *at, double *margin, real *y)
{
    const naive_layer *w = job->weights;
    const int linear = job->config->expert == SLM_EXPERT_LINEAR;
    real logit[N];

    for (int e = 0; e < N; e++) logit[e] = dot(w->w_router[e], at->x, D);
    for (int i = 0; i < L; i++) at->z[i] = dot(w->w_down[i], at->x, D);
    choose(job, logit, at, margin);
    weigh(job, logit, at);
    for (int q = 0; q < K; q++) expert_forward(job, at, q);
    normalise(job, at);
    for (int i = 0; i < SF && !linear; i++) {
        at->shared_gate[i] = gate_curve(job, dot(w->w_shared_gate[i], at->x, D));
        at->shared_up[i] = up_curve(job, dot(w->w_shared_up[i], at->x, D));
        at->hs[i] = times(at->shared_gate[i].value, at->shared_up[i].value);
    }
    for (int i = 0; i < D; i++) {
        real sum = exact(0.0);

        for (int j = 0; j < L; j++) feed(&sum, w->w_lift[i][j], at->r[j]);
        for (int j = 0; j < SF && !linear; j++)
            feed(&sum, w->w_shared_out[i][j], at->hs[j]);
        for (int s = 0; s < S && linear; s++)
            for (int j = 0; j < D; j++) feed(&sum, w->w_shared[s][i][j], at->x[j]);
        y[i] = closed(sum, linear ? L + S * D : L + SF);
    }
}

/* ---- gradients of one token; those of weights are added to growing sums ---- */

/* du, from dr. */
static void norm_backward(const naive_job *job, const token *at, const real *dr,
                          naive_layer *gradient, real *du)
{
    real g[L], along = exact(0.0);

    if (job->config->norm != SLM_NORM_RMS) {
        memcpy(du, dr, L * sizeof *du);
        return;
    }
    for (int i = 0; i < L; i++) {
        g[i] = times(job->weights->gamma[i], dr[i]);
        feed(&along, g[i], at->n[i]);
        feed(&gradient->gamma[i], dr[i], at->n[i]);
    }
    along = scaled(closed(along, L), -1.0 / L);
    if (job->fault == NAIVE_FORGETS_THE_NORM) along = exact(0.0);
    for (int i = 0; i < L; i++)
        du[i] = times(plus(g[i], times(at->n[i], along)), at->scale);
}

/* dz grows by slot q's part. */
static void expert_backward(const naive_job *job, const token *at, int q,
                            const real *du, naive_layer *gradient, real *dz)
{
    const naive_layer *w = job->weights;
    const int e = at->ids[q];
    const int counts =
        job->fault != NAIVE_DROPS_A_TOKEN || at->number != T / 2 || q != 0;
    real pdu[L], dh[F], da[F], db[F];

    for (int i = 0; i < L; i++) pdu[i] = times(at->p[q], du[i]);
    if (job->config->expert == SLM_EXPERT_LINEAR) {
        for (int i = 0; i < L; i++)
            for (int j = 0; j < L; j++) {
                feed(&dz[j], pdu[i], w->w_expert[e][i][j]);
                if (counts) feed(&gradient->w_expert[e][i][j], pdu[i], at->z[j]);
            }
        return;
    }
    for (int j = 0; j < F; j++) {
        real sum = exact(0.0);

        for (int i = 0; i < L; i++) feed(&sum, du[i], w->w_out[e][i][j]);
        dh[j] = closed(sum, L);
        if (job->fault != NAIVE_FORGETS_THE_WEIGHT) dh[j] = times(at->p[q], dh[j]);
        da[j] = times(dh[j], times(at->gate[q][j].slope, at->up[q][j].value));
        db[j] = times(dh[j], times(at->gate[q][j].value, at->up[q][j].slope));
    }
    for (int j = 0; j < F; j++)
        for (int i = 0; i < L; i++) {
            feed(&dz[i], da[j], w->w_gate[e][j][i]);
            feed(&dz[i], db[j], w->w_up[e][j][i]);
            if (!counts) continue;
            feed(&gradient->w_gate[e][j][i], da[j], at->z[i]);
            feed(&gradient->w_up[e][j][i], db[j], at->z[i]);
            feed(&gradient->w_out[e][i][j], pdu[i], at->h[q][j]);
        }
}

/* Through the router: dx grows, unless that is the fault. */
static void router_backward(const naive_job *job, const token *at, const real *du,
                            naive_layer *gradient, real *dx)
{
    real dp[K], mean = exact(0.0);

    for (int q = 0; q < K; q++) {
        dp[q] = dot(du, at->o[q], L);
        feed(&mean, at->p[q], dp[q]);
    }
    mean = closed(mean, K);
    for (int q = 0; q < K; q++) {
        const int e = at->ids[q];
        const real dlogit =
            times(times(at->p[q], at->other[q]), plus(dp[q], negative(mean)));

        for (int j = 0; j < D; j++) {
            feed(&gradient->w_router[e][j], dlogit, at->x[j]);
            if (job->fault != NAIVE_FORGETS_THE_ROUTER)
                feed(&dx[j], dlogit, job->weights->w_router[e][j]);
        }
    }
}

static void shared_backward(const naive_job *job, const token *at,
                            naive_layer *gradient, real *dx)
{
    const naive_layer *w = job->weights;

    for (int s = 0; s < S && job->config->expert == SLM_EXPERT_LINEAR; s++)
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++) {
                feed(&dx[j], at->dy[i], w->w_shared[s][i][j]);
                feed(&gradient->w_shared[s][i][j], at->dy[i], at->x[j]);
            }
    for (int i = 0; i < SF && job->config->expert != SLM_EXPERT_LINEAR; i++) {
        const curve gate = at->shared_gate[i], up = at->shared_up[i];
        real dh = exact(0.0), da, db;

        for (int j = 0; j < D; j++) {
            feed(&dh, at->dy[j], w->w_shared_out[j][i]);
            feed(&gradient->w_shared_out[j][i], at->dy[j], at->hs[i]);
        }
        dh = closed(dh, D);
        da = times(dh, times(gate.slope, up.value));
        db = times(dh, times(gate.value, up.slope));
        for (int j = 0; j < D; j++) {
            feed(&dx[j], da, w->w_shared_gate[i][j]);
            feed(&dx[j], db, w->w_shared_up[i][j]);
            feed(&gradient->w_shared_gate[i][j], da, at->x[j]);
            feed(&gradient->w_shared_up[i][j], db, at->x[j]);
        }
    }
}

static void backward(const naive_job *job, const token *at, naive_layer *gradient,
                     real *dx)
{
    enum { DX_TERMS = L + K + 2 * SF + S * D };
    const naive_layer *w = job->weights;
    real dr[L], du[L], dz[L];

    memset(dx, 0, D * sizeof *dx);
    memset(dz, 0, sizeof dz);
    for (int i = 0; i < L; i++) {
        real sum = exact(0.0);

        for (int j = 0; j < D; j++) {
            feed(&sum, at->dy[j], w->w_lift[j][i]);
            feed(&gradient->w_lift[j][i], at->dy[j], at->r[i]);
        }
        dr[i] = closed(sum, D);
    }
    norm_backward(job, at, dr, gradient, du);
    for (int q = 0; q < K; q++) expert_backward(job, at, q, du, gradient, dz);
    for (int i = 0; i < L; i++) {
        dz[i] = closed(dz[i], 2 * K * F);
        for (int j = 0; j < D; j++) {
            feed(&dx[j], dz[i], w->w_down[i][j]);
            feed(&gradient->w_down[i][j], dz[i], at->x[j]);
        }
    }
    router_backward(job, at, du, gradient, dx);
    shared_backward(job, at, gradient, dx);
    for (int j = 0; j < D; j++) dx[j] = closed(dx[j], DX_TERMS);
}

void naive_run(const naive_job *job, naive_result *out)
{
    static token at;
    real *sum = (real *)(void *)&out->gradient;

    memset(out, 0, sizeof *out);
    out->margin = INFINITY;
    for (int t = 0; t < T; t++) {
        at.number = t;
        for (int j = 0; j < D; j++) {
            at.x[j] = exact((double)job->x[t * D + j]);
            at.dy[j] = exact((double)job->dy[t * D + j]);
        }
        forward(job, &at, &out->margin, out->y[t]);
        backward(job, &at, &out->gradient, out->dx[t]);
        memcpy(out->ids[t], at.ids, sizeof at.ids);
        memcpy(out->weight[t], at.p, sizeof at.p);
    }
    for (size_t i = 0; i < sizeof out->gradient / sizeof *sum; i++)
        sum[i] = closed(sum[i], T);
}

real naive_step(real w, double rate, real g)
{
    return plus(w, times(exact(-rate), g));
}
