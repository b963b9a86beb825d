/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_token_gradients.c - gradients of one token's activations by their
 * bounds.                                                                       G1-G4 */
#include "judge_gradients.h"

#include <math.h>

/* Sums in the making. */
typedef struct sums {
    size_t width;
    arb_ptr want;
    arb_ptr part;
    bound_dot *dots;
    bound_dot *part_dots;
    double *parts;  /* sum of |addend| */
    size_t n_parts; /* addends         */
} sums;

static sums open_sums(size_t width)
{
    sums out = {.width = width,
                .want = _arb_vec_init((slong)width),
                .part = _arb_vec_init((slong)width),
                .dots = stage_array(width, sizeof(bound_dot)),
                .part_dots = stage_array(width, sizeof(bound_dot)),
                .parts = stage_array(width, sizeof(double))};

    for (size_t i = 0; i < width; i++)
        out.dots[i] = out.part_dots[i] = bound_dot_none();
    return out;
}

static void close_sums(sums *out)
{
    stage_release(out->parts);
    stage_release(out->part_dots);
    stage_release(out->dots);
    _arb_vec_clear(out->part, (slong)out->width);
    _arb_vec_clear(out->want, (slong)out->width);
}

/* The part that was made becomes an addend. */
static void end_part(sums *out)
{
    for (size_t i = 0; i < out->width; i++) {
        double rest;

        out->parts[i] += fabs(stage_middle(out->part + i, &rest)) + rest;
        arb_add(out->want + i, out->want + i, out->part + i, SLM_REF_JUDGE);
        arb_zero(out->part + i);
        bound_dot_join(&out->dots[i], &out->part_dots[i]);
        out->part_dots[i] = bound_dot_none();
    }
    out->n_parts++;
}

/* A vector of sums, each stored once; `addends`: so may have been what they are made of. */
static void judge_sums(gradient_work *work, flow_field field, size_t t, size_t first,
                       const sums *of, int addends)
{
    const bound_rules *rules = &work->trial->rules;
    const double v = gradient_stored(work, field);
    const double coarse = addends ? gradient_coarse(work) : 0;

    for (size_t i = 0; i < of->width; i++) {
        double rest, error = bound_dot_error(&of->dots[i], rules);
        const double middle = stage_middle(of->want + i, &rest);

        if (error > 0) error += rest;
        if (coarse > 0)
            error += coarse * (of->parts[i] + error) +
                     (double)of->n_parts * bound_least(rules, coarse);
        gradient_judge(work, field, t, first + i, of->want + i,
                       bound_store(rules, middle, error, v));
    }
}

static void add_part(gradient_work *work, sums *out, const slm_tensor *w,
                     const double *x)
{
    stage_transposed(work->trial, out->part, out->part_dots, w, x);
}

double gradient_weighting(const gradient_work *work, double p)
{
    int exponent;

    return gradient_coarse(work) + (frexp(p, &exponent) == 0.5 ? 0 : 2 * 0x1p-24);
}

static double largest(const slm_tensor *w)
{
    const size_t count = slm_tensor_count(w);
    double most = 0;

    for (size_t i = 0; i < count; i++) most = fmax(most, fabs(slm_ref_get(w, i)));
    return most;
}

/* p (du W): p du is rounded, perhaps stored, and may underflow; or the sum is. */
static void add_weighted(gradient_work *work, sums *out, const slm_tensor *w, double p,
                         const double *du)
{
    const bound_rules *rules = &work->trial->rules;
    const size_t rows = w->shape[0];
    const double each = gradient_weighting(work, p);
    double *x = stage_array(rows, sizeof *x);
    double lost = 0;

    for (size_t i = 0; i < rows; i++) x[i] = p * du[i];
    add_part(work, out, w, x);
    if (each > 0 && p != 0)
        lost = (bound_least(rules, gradient_coarse(work)) + rules->phi) *
               (1 + (double)rows * largest(w));
    for (size_t i = 0; i < out->width; i++)
        out->part_dots[i].spread += each * out->part_dots[i].gauge + lost;
    stage_release(x);
}

/* ---- the backward pass of one token ---- */

static void bound_dr(gradient_work *work, size_t t)
{
    sums out = open_sums(flow_width(&work->flow, FLOW_DR));

    add_part(work, &out, &work->flow.weights->w_lift, gradient_own(work, FLOW_DY, t));
    end_part(&out);
    judge_sums(work, FLOW_DR, t, 0, &out, 0);
    close_sums(&out);
}

/* Without a norm du is dr itself, perhaps stored once more.                       L4 */
static void bound_du(gradient_work *work, size_t t)
{
    const size_t l = flow_width(&work->flow, FLOW_DU);
    const double *dr = gradient_own(work, FLOW_DR, t);
    const double v = gradient_stored(work, FLOW_DU);

    if (work->flow.config->norm == SLM_NORM_RMS) {
        backward_norm_row(work->trial, &work->norm, gradient_own(work, FLOW_U, t), dr,
                          v);
        for (size_t i = 0; i < l; i++)
            gradient_judge(work, FLOW_DU, t, i, work->norm.du + i, work->norm.bound[i]);
        return;
    }
    stage_balls(work->norm.du, dr, l);
    for (size_t i = 0; i < l; i++)
        gradient_judge(work, FLOW_DU, t, i, work->norm.du + i,
                       bound_store(&work->trial->rules, dr[i], 0, v));
}

/* dp = <du, o>, which is judged on the backend's own o, or <du W, h> of the same o, whose
 * rounding o's differs from: l + f roundings of one and f of the other meet a product
 * du W h. A coarse store of o, or of du W, is that of its elements. */
static void bound_dweight(gradient_work *work, size_t t)
{
    const bound_rules *rules = &work->trial->rules;
    const int linear = gradient_is_linear(work);
    const slm_tensor *all =
        linear ? &work->flow.weights->w_expert : &work->flow.weights->w_out;
    const size_t l = all->shape[1], f = all->shape[2], k = work->flow.config->top_k;
    const double *du = gradient_own(work, FLOW_DU, t);
    const double v_o = bound_stored(rules, SLM_STAGE_O, work->flow.dtype);
    const double coarse = gradient_coarse(work);
    arb_t want, product;

    arb_init(want);
    arb_init(product);
    for (size_t q = 0; q < k; q++) {
        const slm_tensor w = slm_tensor_at(all, (size_t)work->flow.ids[t * k + q]);
        const double *o = gradient_own(work, FLOW_O, t) + q * l;
        const double *h = linear ? gradient_own(work, FLOW_Z, t)
                                 : gradient_own(work, FLOW_H, t) + q * f;
        bound_dot dot = bound_dot_none();
        sums back = open_sums(f);
        double rest, middle;

        add_part(work, &back, &w, du);
        for (size_t j = 0; j < f; j++) {
            dot.gauge += back.part_dots[j].gauge * fabs(h[j]);
            dot.flushed += back.part_dots[j].flushed * fabs(h[j]);
            if (coarse > 0)
                dot.spread += (coarse * fabs(stage_middle(back.part + j, &rest)) +
                               bound_least(rules, coarse)) *
                              fabs(h[j]);
        }
        arb_zero(want);
        for (size_t i = 0; i < l; i++) {
            arb_set_d(product, du[i] * o[i]);
            arb_add(want, want, product, SLM_REF_JUDGE);
            if (v_o > 0x1p-24)
                dot.spread +=
                    (v_o * fabs(o[i]) + bound_least(rules, v_o)) * fabs(du[i]);
        }
        dot.terms = l + 2 * f + 3;
        dot.grid = -1074;
        middle = stage_middle(want, &rest);
        gradient_judge(work, FLOW_DWEIGHT, t, q, want,
                       bound_store(rules, middle, bound_dot_error(&dot, rules) + rest,
                                   gradient_stored(work, FLOW_DWEIGHT)));
        close_sums(&back);
    }
    arb_clear(product);
    arb_clear(want);
}

static void bound_dlogit(gradient_work *work, size_t t)
{
    const size_t k = work->flow.config->top_k;
    arb_ptr want = _arb_vec_init((slong)k);
    double *bound = stage_array(k, sizeof *bound);

    if (!backward_is_constant(work->flow.config)) {
        backward_choice(work->trial, gradient_own(work, FLOW_LOGIT, t),
                        gradient_own(work, FLOW_DWEIGHT, t), want, bound);
        for (size_t q = 0; q < k; q++)
            gradient_judge(work, FLOW_DLOGIT, t, q, want + q, bound[q]);
    }
    stage_release(bound);
    _arb_vec_clear(want, (slong)k);
}

static void bound_dh(gradient_work *work, size_t t)
{
    const size_t k = work->flow.config->top_k, f = work->flow.config->d_expert;

    for (size_t q = 0; q < k; q++) {
        const slm_tensor w = slm_tensor_at(&work->flow.weights->w_out,
                                           (size_t)work->flow.ids[t * k + q]);
        sums out = open_sums(f);

        add_weighted(work, &out, &w, gradient_own(work, FLOW_WEIGHT, t)[q],
                     gradient_own(work, FLOW_DU, t));
        end_part(&out);
        judge_sums(work, FLOW_DH, t, q * f, &out, 0);
        close_sums(&out);
    }
}

/* n parts of gate and up, `width` each. */
static void bound_slopes(gradient_work *work, flow_field from, flow_field slope,
                         flow_field to, size_t n, size_t width, size_t t)
{
    const double *both = gradient_own(work, from, t),
                 *dh = gradient_own(work, slope, t);

    for (size_t i = 0; i < n * width; i++) {
        const size_t at = i / width * 2 * width + i % width;

        backward_slopes_of(work->trial, &work->slopes, work->flow.config, both[at],
                           both[at + width], dh[i], gradient_stored(work, to));
        gradient_judge(work, to, t, at, work->slopes.da, work->slopes.da_bound);
        gradient_judge(work, to, t, at + width, work->slopes.db, work->slopes.db_bound);
    }
}

static void bound_dgate_up(gradient_work *work, size_t t)
{
    bound_slopes(work, FLOW_GATE_UP, FLOW_DH, FLOW_DGATE_UP, work->flow.config->top_k,
                 work->flow.config->d_expert, t);
}

/* One sum over every slot's gate and up part. */
static void bound_dz(gradient_work *work, size_t t)
{
    const slm_weights *weights = work->flow.weights;
    const size_t k = work->flow.config->top_k, f = work->flow.config->d_expert;
    sums out = open_sums(flow_width(&work->flow, FLOW_DZ));

    for (size_t q = 0; q < k; q++) {
        const size_t e = (size_t)work->flow.ids[t * k + q];

        if (gradient_is_linear(work)) {
            const slm_tensor w = slm_tensor_at(&weights->w_expert, e);

            add_weighted(work, &out, &w, gradient_own(work, FLOW_WEIGHT, t)[q],
                         gradient_own(work, FLOW_DU, t));
        } else {
            const slm_tensor gate = slm_tensor_at(&weights->w_gate, e);
            const slm_tensor up = slm_tensor_at(&weights->w_up, e);
            const double *both = gradient_own(work, FLOW_DGATE_UP, t) + q * 2 * f;

            add_part(work, &out, &gate, both);
            end_part(&out);
            add_part(work, &out, &up, both + f);
        }
        end_part(&out);
    }
    judge_sums(work, FLOW_DZ, t, 0, &out, 1);
    close_sums(&out);
}

static void bound_dhs(gradient_work *work, size_t t)
{
    sums out = open_sums(flow_width(&work->flow, FLOW_DHS));

    add_part(work, &out, &work->flow.weights->w_shared_out,
             gradient_own(work, FLOW_DY, t));
    end_part(&out);
    judge_sums(work, FLOW_DHS, t, 0, &out, 0);
    close_sums(&out);
}

static void bound_dshared(gradient_work *work, size_t t)
{
    bound_slopes(work, FLOW_SHARED_GATE_UP, FLOW_DHS, FLOW_DSHARED_GATE_UP, 1,
                 flow_width(&work->flow, FLOW_HS), t);
}

/* The router's rows of the chosen; the others meet a 0. */
static void add_router(gradient_work *work, sums *out, size_t t)
{
    const size_t k = work->flow.config->top_k;

    if (!work->flow.shown[FLOW_DLOGIT]) return;
    for (size_t q = 0; q < k; q++) {
        const slm_tensor row =
            flow_row(&work->flow.weights->w_router, (size_t)work->flow.ids[t * k + q]);

        add_part(work, out, &row, gradient_own(work, FLOW_DLOGIT, t) + q);
    }
    end_part(out);
}

static void bound_dx(gradient_work *work, size_t t)
{
    const slm_weights *weights = work->flow.weights;
    const size_t fs = flow_width(&work->flow, FLOW_HS);
    sums out = open_sums(work->flow.config->d_model);

    if (work->flow.routed) {
        add_part(work, &out, &weights->w_down, gradient_own(work, FLOW_DZ, t));
        end_part(&out);
        add_router(work, &out, t);
    }
    if (fs > 0) {
        add_part(work, &out, &weights->w_shared_gate,
                 gradient_own(work, FLOW_DSHARED_GATE_UP, t));
        end_part(&out);
        add_part(work, &out, &weights->w_shared_up,
                 gradient_own(work, FLOW_DSHARED_GATE_UP, t) + fs);
        end_part(&out);
    }
    for (size_t i = 0; gradient_is_linear(work) && i < work->flow.config->n_shared;
         i++) {
        const slm_tensor w = slm_tensor_at(&weights->w_shared, i);

        add_part(work, &out, &w, gradient_own(work, FLOW_DY, t));
        end_part(&out);
    }
    judge_sums(work, FLOW_DX, t, 0, &out, 1);
    close_sums(&out);
}

void (*const gradient_by_bound[FLOW_FIELDS])(gradient_work *, size_t) = {
    [FLOW_DR] = bound_dr,
    [FLOW_DU] = bound_du,
    [FLOW_DWEIGHT] = bound_dweight,
    [FLOW_DLOGIT] = bound_dlogit,
    [FLOW_DH] = bound_dh,
    [FLOW_DGATE_UP] = bound_dgate_up,
    [FLOW_DZ] = bound_dz,
    [FLOW_DHS] = bound_dhs,
    [FLOW_DSHARED_GATE_UP] = bound_dshared,
    [FLOW_DX] = bound_dx};
