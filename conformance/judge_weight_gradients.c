/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_weight_gradients.c - gradients of weights: sums over the tokens of
 * left^T right.                                                                G2, G4, G5
 *
 * Tensors of millions: each element is one dot product in binary64, whose own error is
 * part of the bound. An expert that no token chose has exact zeros. */
#include "judge_gradients.h"

#include <math.h>

typedef struct named_product {
    const char *name; /* NULL: not in this call      */
    flow_product product;
} named_product;

enum { PRODUCTS = 10 };

/* The products of a call in order of its fields.                                  G4 */
static void list_products(const gradient_work *work, named_product *out)
{
    const slm_config *config = work->flow.config;
    const size_t d = config->d_model, l = config->d_latent, f = config->d_expert;
    const size_t fs = flow_width(&work->flow, FLOW_HS);
    const int routed = work->flow.routed;
    const named_product all[PRODUCTS] = {
        {"dw_router", {FLOW_DLOGIT, 0, 1, 1, FLOW_X, 0, d, 0, 1}},
        {"dw_down", {FLOW_DZ, 0, 0, l, FLOW_X, 0, d, 0, 0}},
        {"dw_gate", {FLOW_DGATE_UP, 0, 2 * f, f, FLOW_Z, 0, l, 0, 1}},
        {"dw_up", {FLOW_DGATE_UP, f, 2 * f, f, FLOW_Z, 0, l, 0, 1}},
        {"dw_out", {FLOW_DU, 0, 0, l, FLOW_H, f, f, 1, 1}},
        {"dw_expert", {FLOW_DU, 0, 0, l, FLOW_Z, 0, l, 1, 1}},
        {"dw_lift", {FLOW_DY, 0, 0, d, FLOW_R, 0, l, 0, 0}},
        {routed ? "dw_shared_gate" : "dw_gate",
         {FLOW_DSHARED_GATE_UP, 0, 0, fs, FLOW_X, 0, d, 0, 0}},
        {routed ? "dw_shared_up" : "dw_up",
         {FLOW_DSHARED_GATE_UP, fs, 0, fs, FLOW_X, 0, d, 0, 0}},
        {routed ? "dw_shared_out" : "dw_out",
         {FLOW_DY, 0, 0, d, FLOW_HS, 0, fs, 0, 0}}};

    for (int i = 0; i < PRODUCTS; i++) {
        out[i] = all[i];
        if ((!routed && i < PRODUCTS - 3) || !stage_written(work->trial, out[i].name) ||
            out[i].product.rows * out[i].product.cols == 0)
            out[i].name = NULL;
    }
}

static unsigned sources_of(const flow_product *product)
{
    return 1u << product->left | 1u << product->right |
           (product->weighted ? 1u << FLOW_WEIGHT : 0);
}

static const unsigned norm_sources = 1u << FLOW_U | 1u << FLOW_DR;

int gradient_products_need_envelope(const gradient_work *work)
{
    named_product products[PRODUCTS];

    list_products(work, products);
    for (int i = 0; i < PRODUCTS; i++)
        if (products[i].name &&
            !gradient_is_known(work, sources_of(&products[i].product)))
            return 1;
    return stage_written(work->trial, "dgamma") &&
           !gradient_is_known(work, norm_sources);
}

/* The factors of one sum over K (token, slot) pairs. */
typedef struct factors {
    size_t terms;
    double *left;  /* [rows, K], times the weight          */
    double *away;  /* [rows, K] their radii, NULL: exact   */
    double *right; /* [cols, K]                            */
} factors;

static int takes_part(const gradient_work *work, const flow_product *product,
                      size_t expert, size_t t, size_t q)
{
    return !product->of_expert ||
           work->flow.ids[t * work->flow.config->top_k + q] == (int32_t)expert;
}

static size_t slots_of(const gradient_work *work, const flow_product *product)
{
    return product->of_expert ? work->flow.config->top_k : 1;
}

static size_t count_terms(const gradient_work *work, const flow_product *product,
                          size_t expert)
{
    size_t n = 0;

    for (size_t t = 0; t < work->flow.n_tokens; t++)
        for (size_t q = 0; q < slots_of(work, product); q++)
            n += (size_t)takes_part(work, product, expert, t, q);
    return n;
}

static void fill_term(const gradient_work *work, const flow_product *product,
                      factors *out, size_t t, size_t q, size_t at)
{
    const bound_rules *rules = &work->trial->rules;
    const double *left = flow_factor(&work->flow, product->left, t) + product->left_at +
                         q * product->left_step;
    const double *right =
        flow_factor(&work->flow, product->right, t) + q * product->right_step;
    const double least = bound_least(rules, gradient_coarse(work)) + rules->phi;
    double p = 1, each = 0;

    if (product->weighted) {
        p = flow_factor(&work->flow, FLOW_WEIGHT, t)[q];
        each = gradient_weighting(work, p);
    }
    for (size_t i = 0; i < product->rows; i++) {
        const double value = p * left[i];

        out->left[i * out->terms + at] = value;
        if (each > 0 && value != 0)
            out->away[i * out->terms + at] = each * fabs(value) + least;
    }
    for (size_t j = 0; j < product->cols; j++)
        out->right[j * out->terms + at] = right[j];
}

static factors open_factors(const gradient_work *work, const flow_product *product,
                            size_t expert)
{
    const size_t n = count_terms(work, product, expert);
    factors out = {.terms = n,
                   .left = stage_array(product->rows * n, sizeof(double)),
                   .away = product->weighted
                               ? stage_array(product->rows * n, sizeof(double))
                               : NULL,
                   .right = stage_array(product->cols * n, sizeof(double))};
    size_t at = 0;

    for (size_t t = 0; t < work->flow.n_tokens; t++)
        for (size_t q = 0; q < slots_of(work, product); q++)
            if (takes_part(work, product, expert, t, q))
                fill_term(work, product, &out, t, q, at++);
    return out;
}

static void close_factors(factors *out)
{
    stage_release(out->right);
    if (out->away) stage_release(out->away);
    stage_release(out->left);
}

/* Element (i, j): the sum in binary64 and what its bound is made of. The sum of terms
 * that are exact in binary64 is exact where no sum can round. */
static void judge_element(judge_trial *trial, const factors *of, size_t i, size_t j,
                          size_t index, double deviation)
{
    const bound_rules *rules = &trial->rules;
    const double *left = of->left + i * of->terms, *right = of->right + j * of->terms;
    bound_dot dot = bound_dot_none();
    double value = 0, error;

    for (size_t n = 0; n < of->terms; n++) value += left[n] * right[n];
    bound_dot_add(&dot, rules, right, left, of->away ? of->away + i * of->terms : NULL,
                  of->terms);
    error = bound_dot_error(&dot, rules);
    if (error > 0) error += 0x1p-52 * (double)of->terms * dot.gauge;
    error += ENVELOPE_LIMIT * deviation;
    stage_double(trial, index, value,
                 bound_store(rules, value, error, bound_stored_weight_gradient(rules)));
}

/* One matrix, whose first element is `first` of its tensor. */
static void judge_matrix(gradient_work *work, const flow_product *product,
                         size_t expert, size_t first, int known)
{
    factors of = open_factors(work, product, expert);
    double *deviation = stage_array(product->cols, sizeof *deviation);

    for (size_t i = 0; i < product->rows; i++) {
        if (!known) envelope_product_row(&work->flow, product, expert, i, deviation);
        for (size_t j = 0; j < product->cols; j++)
            judge_element(work->trial, &of, i, j, first + i * product->cols + j,
                          deviation[j]);
    }
    stage_release(deviation);
    close_factors(&of);
}

/* Zeros where a factor is: experts without tokens, the router of a constant choice.
 *                                                                                 G5 */
static void judge_product(gradient_work *work, const named_product *named)
{
    const flow_product *product = &named->product;
    const size_t size = product->rows * product->cols;
    const int known = gradient_is_known(work, sources_of(product));
    const size_t n = product->of_expert ? work->flow.config->n_experts : 1;

    for (size_t e = 0; e < n; e++) {
        const int idle = product->of_expert && count_terms(work, product, e) == 0;

        if (idle ||
            (product->left == FLOW_DLOGIT && backward_is_constant(work->flow.config))) {
            stage_open_under(work->trial, named->name, "G5");
            stage_zeros(work->trial, e * size, size);
        } else {
            stage_open(work->trial, named->name);
            judge_matrix(work, product, e, e * size, known);
        }
    }
}

/* dy^T x, once for each shared expert. x and dy are given.                        L4 */
static void judge_linear_shared(gradient_work *work)
{
    const slm_config *config = work->flow.config;
    const size_t d = config->d_model;
    const flow_product product = {FLOW_DY, 0, 0, d, FLOW_X, 0, d, 0, 0};

    if (!work->flow.routed || !stage_written(work->trial, "dw_shared")) return;
    stage_open(work->trial, "dw_shared");
    for (size_t i = 0; i < config->n_shared; i++)
        judge_matrix(work, &product, 0, i * d * d, 1);
}

static void judge_dgamma(gradient_work *work)
{
    const size_t l = work->norm.width;
    const int known = gradient_is_known(work, norm_sources);
    backward_norm norm;
    double *deviation;

    if (!work->flow.routed || !stage_written(work->trial, "dgamma")) return;
    norm = backward_norm_open(work->layer.gamma, l);
    deviation = stage_array(l, sizeof *deviation);
    for (size_t t = 0; t < work->flow.n_tokens; t++)
        backward_norm_row(work->trial, &norm, flow_factor(&work->flow, FLOW_U, t),
                          flow_factor(&work->flow, FLOW_DR, t), 0);
    if (!known) envelope_dgamma(&work->flow, deviation);
    backward_dgamma(work->trial, &norm, known ? NULL : deviation, 0);
    stage_release(deviation);
    backward_norm_close(&norm);
}

void gradient_judge_products(gradient_work *work)
{
    named_product products[PRODUCTS];

    list_products(work, products);
    for (int i = 0; i < PRODUCTS; i++)
        if (products[i].name) judge_product(work, &products[i]);
    judge_linear_shared(work);
    judge_dgamma(work);
    if (!work->flow.routed || !stage_written(work->trial, "dbias")) return;
    stage_open(work->trial, "dbias");
    stage_zeros(work->trial, 0, work->flow.config->n_experts);
}
