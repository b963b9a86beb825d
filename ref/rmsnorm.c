/* SPDX-License-Identifier: Apache-2.0 */
/* ref/rmsnorm.c - RMSNorm of the routed aggregate; its gradients.              L2, G2
 *
 * r = gamma u / sqrt(M), M = mean(u^2) + eps. For exact u and gamma the square of r is
 * rational, so r itself may be a number of few digits and lie on a rounding boundary,
 * where no precision separates the ends of a ball:
 *
 *   u = (30.75, 5.25, 1.75, 0.5), eps = 10^-6: M = 15.624^2, and gamma_0 = 2134629
 *   gives r_0 = 4201218.75, halfway between two binary32 numbers.
 *
 * A boundary of f32, bf16 or f64 has at most 54 digits. So the one number of CANDIDATE
 * digits next to the middle of the ball is tested exactly, as a rational:
 * r = c if and only if c^2 M = gamma^2 u^2 (the signs agree); the ball is then c. */
#include "internal.h"

enum { CANDIDATE = 64 };

/* M as a ball. */
static void mean_square(arb_t m, arb_srcptr u, size_t width, const fmpq_t eps,
                        slong prec)
{
    arb_t term;

    arb_init(term);
    slm_ref_dot(m, u, 1, u, 1, (slong)width, prec);
    arb_div_ui(m, m, width, prec);
    arb_set_fmpq(term, eps, prec);
    arb_add(m, m, term, prec);
    arb_clear(term);
}

/* M as a rational, u exact. */
static void exact_mean_square(fmpq_t m, arb_srcptr u, size_t width, const fmpq_t eps)
{
    fmpz_t n;
    arb_t sum;

    arb_init(sum);
    fmpz_init_set_ui(n, width);
    slm_ref_dot(sum, u, 1, u, 1, (slong)width, SLM_REF_EXACT);
    arf_get_fmpq(m, arb_midref(sum));
    fmpq_div_fmpz(m, m, n);
    fmpq_add(m, m, eps);
    fmpz_clear(n);
    arb_clear(sum);
}

/* r = product / sqrt(m) as a ball; when r has at most CANDIDATE digits, make it exact. */
static void settle(arb_t r, const arb_t product, const fmpq_t m)
{
    fmpq_t left, right;
    arf_t candidate;

    arf_init(candidate);
    fmpq_init(left);
    fmpq_init(right);
    arf_set_round(candidate, arb_midref(r), CANDIDATE, ARF_RND_NEAR);
    if (!arb_contains_zero(r) && arb_contains_arf(r, candidate)) {
        arf_get_fmpq(left, candidate);
        fmpq_mul(left, left, left);
        fmpq_mul(left, left, m);
        arf_get_fmpq(right, arb_midref(product));
        fmpq_mul(right, right, right);
        if (fmpq_equal(left, right)) arb_set_arf(r, candidate);
    }
    fmpq_clear(right);
    fmpq_clear(left);
    arf_clear(candidate);
}

static int all_exact(arb_srcptr u, arb_srcptr gamma, size_t width)
{
    for (size_t i = 0; i < width; i++)
        if (!arb_is_exact(u + i) || (gamma && !arb_is_exact(gamma + i))) return 0;
    return 1;
}

void slm_ref_rmsnorm(arb_ptr r, arb_srcptr u, arb_srcptr gamma, size_t width,
                     const fmpq_t eps, slong prec)
{
    const int exact = prec > SLM_REF_FIRST && all_exact(u, gamma, width);
    arb_t scale, product;
    fmpq_t m;

    arb_init(scale);
    arb_init(product);
    fmpq_init(m);
    mean_square(scale, u, width, eps, prec);
    arb_rsqrt(scale, scale, prec);
    if (exact) exact_mean_square(m, u, width, eps);
    for (size_t i = 0; i < width; i++) {
        if (gamma)
            arb_mul(product, gamma + i, u + i, exact ? ARF_PREC_EXACT : prec);
        else
            arb_set(product, u + i);
        arb_mul(r + i, product, scale, prec);
        if (exact) settle(r + i, product, m);
    }
    fmpq_clear(m);
    arb_clear(product);
    arb_clear(scale);
}

/* g = gamma dr. */
static void scaled(arb_ptr g, arb_srcptr gamma, arb_srcptr dr, size_t width, slong prec)
{
    for (size_t i = 0; i < width; i++) {
        if (gamma)
            arb_mul(g + i, gamma + i, dr + i, prec);
        else
            arb_set(g + i, dr + i);
    }
}

/* 1 and root = sqrt(m) when that is rational. */
static int rational_root(fmpq_t root, const fmpq_t m)
{
    if (!fmpz_is_square(fmpq_numref(m)) || !fmpz_is_square(fmpq_denref(m))) return 0;
    fmpz_sqrt(fmpq_numref(root), fmpq_numref(m));
    fmpz_sqrt(fmpq_denref(root), fmpq_denref(m));
    return 1;
}

/* out = value / root. */
static void set_quotient(arb_t out, const fmpq_t value, const fmpq_t root, slong prec)
{
    fmpq_t quotient;

    fmpq_init(quotient);
    fmpq_div(quotient, value, root);
    arb_set_fmpq(out, quotient, prec);
    fmpq_clear(quotient);
}

/* u, g, dr exact: du = q / R, q[i] = g[i] - u[i] mean(g u) / M rational. Where q is 0,
 * or R is rational, the balls are made exact; else du is irrational, on no rounding
 * boundary, and stays a ball. */
static void settle_backward(arb_ptr du, arb_ptr dgamma, arb_srcptr u, arb_srcptr g,
                            arb_srcptr dr, size_t width, const fmpq_t eps, slong prec)
{
    fmpq_t m, mean, root, q, term;
    arb_t product;

    fmpq_init(m);
    fmpq_init(mean);
    fmpq_init(root);
    fmpq_init(q);
    fmpq_init(term);
    arb_init(product);
    exact_mean_square(m, u, width, eps);
    slm_ref_dot(product, g, 1, u, 1, (slong)width, SLM_REF_EXACT);
    arf_get_fmpq(mean, arb_midref(product));
    fmpz_set_ui(fmpq_numref(term), width);
    fmpq_div(mean, mean, term);
    fmpq_div(mean, mean, m);
    const int rational = rational_root(root, m);
    for (size_t i = 0; i < width; i++) {
        arf_get_fmpq(term, arb_midref(u + i));
        fmpq_mul(term, term, mean);
        arf_get_fmpq(q, arb_midref(g + i));
        fmpq_sub(q, q, term);
        if (fmpq_is_zero(q))
            arb_zero(du + i);
        else if (rational)
            set_quotient(du + i, q, root, prec);
        if (!rational || !dgamma) continue;
        arb_mul(product, dr + i, u + i, ARF_PREC_EXACT);
        arf_get_fmpq(term, arb_midref(product));
        set_quotient(dgamma + i, term, root, prec);
    }
    arb_clear(product);
    fmpq_clear(term);
    fmpq_clear(q);
    fmpq_clear(root);
    fmpq_clear(mean);
    fmpq_clear(m);
}

void slm_ref_rmsnorm_backward(arb_ptr du, arb_ptr dgamma, arb_srcptr u,
                              arb_srcptr gamma, arb_srcptr dr, size_t width,
                              const fmpq_t eps, slong prec)
{
    const int exact = prec > SLM_REF_FIRST && all_exact(u, gamma, width) &&
                      all_exact(dr, NULL, width);
    arb_ptr g = _arb_vec_init((slong)width);
    arb_t m, scale, mean;

    arb_init(m);
    arb_init(scale);
    arb_init(mean);
    scaled(g, gamma, dr, width, exact ? ARF_PREC_EXACT : prec);
    mean_square(m, u, width, eps, prec);
    arb_rsqrt(scale, m, prec);
    slm_ref_dot(mean, g, 1, u, 1, (slong)width, prec);
    arb_div_ui(mean, mean, width, prec);
    arb_div(mean, mean, m, prec); /* mean(g n) / R */
    for (size_t i = 0; i < width; i++) {
        arb_set(du + i, g + i);
        arb_submul(du + i, u + i, mean, prec);
        arb_mul(du + i, du + i, scale, prec);
        if (!dgamma) continue;
        arb_mul(dgamma + i, dr + i, u + i, prec);
        arb_mul(dgamma + i, dgamma + i, scale, prec);
    }
    if (exact) settle_backward(du, dgamma, u, g, dr, width, eps, prec);
    arb_clear(mean);
    arb_clear(scale);
    arb_clear(m);
    _arb_vec_clear(g, (slong)width);
}

typedef struct rmsnorm_work {
    const slm_rmsnorm_args *args;
    size_t width;
    arb_ptr row;
    arb_ptr gamma; /* NULL: ones */
    fmpq_t eps;
} rmsnorm_work;

static slm_status rmsnorm_row(void *user, size_t token, slong prec,
                              slm_ref_draft *draft, slm_error *error)
{
    rmsnorm_work *work = user;
    const slm_tensor u = slm_tensor_at(&work->args->u, token);

    (void)error;
    slm_ref_load(work->row, &u);
    slm_ref_rmsnorm(work->row, work->row, work->gamma, work->width, work->eps, prec);
    slm_ref_put(draft, "r", token, work->row);
    return SLM_OK;
}

slm_status slm_ref_op_rmsnorm(slm_handle *handle, const slm_rmsnorm_args *args,
                              slm_error *error)
{
    const size_t width = handle->config.d_latent;
    const size_t bad_u = slm_ref_first_nonfinite(&args->u);
    rmsnorm_work work = {.args = args, .width = width};
    slm_ref_draft draft;
    slm_status status;

    if (bad_u < slm_tensor_count(&args->u))
        return slm_fail(error, SLM_ERR_NONFINITE, "rmsnorm", "u", bad_u, "finite");
    if (args->gamma.rank) {
        const size_t bad = slm_ref_first_nonfinite(&args->gamma);
        if (bad < width)
            return slm_fail(error, SLM_ERR_NONFINITE, "rmsnorm", "gamma", bad,
                            "finite");
    }
    status = slm_ref_draft_open(&draft, SLM_OP_rmsnorm, args, error);
    if (status != SLM_OK) return status;
    fmpq_init(work.eps);
    slm_ref_decimal(work.eps, handle->config.eps);
    work.row = _arb_vec_init((slong)width);
    if (args->gamma.rank) {
        work.gamma = _arb_vec_init((slong)width);
        slm_ref_load(work.gamma, &args->gamma);
    }
    status = slm_ref_each_token(&draft, rmsnorm_row, &work, error);
    if (work.gamma) _arb_vec_clear(work.gamma, (slong)width);
    _arb_vec_clear(work.row, (slong)width);
    fmpq_clear(work.eps);
    slm_ref_draft_close(&draft);
    return status;
}

typedef struct backward_work {
    const slm_rmsnorm_backward_args *args;
    size_t width;
    fmpq_t eps;
    arb_ptr gamma; /* NULL: ones */
    arb_ptr u;     /* [l], as all below */
    arb_ptr dr;
    arb_ptr du;
    arb_ptr term; /* of dgamma, one row's */
    arb_ptr dgamma;
} backward_work;

static slm_status backward_pass(void *user, slong prec, slm_ref_draft *draft,
                                slm_error *error)
{
    backward_work *work = user;
    const slong width = (slong)work->width;

    (void)error;
    _arb_vec_zero(work->dgamma, width);
    for (size_t t = 0; t < work->args->call.n_tokens; t++) {
        const slm_tensor u = slm_tensor_at(&work->args->u, t);
        const slm_tensor dr = slm_tensor_at(&work->args->dr, t);

        slm_ref_load(work->u, &u);
        slm_ref_load(work->dr, &dr);
        slm_ref_rmsnorm_backward(work->du, work->term, work->u, work->gamma, work->dr,
                                 work->width, work->eps, prec);
        slm_ref_put(draft, "du", t, work->du);
        _arb_vec_add(work->dgamma, work->dgamma, work->term, width, prec);
        slm_ref_progress(draft, t, 1);
    }
    slm_ref_put_at(draft, "dgamma", 0, work->dgamma, work->width);
    return SLM_OK;
}

slm_status slm_ref_op_rmsnorm_backward(slm_handle *handle,
                                       const slm_rmsnorm_backward_args *args,
                                       slm_error *error)
{
    const size_t width = handle->config.d_latent;
    backward_work work = {.args = args, .width = width};
    arb_ptr *const rows[] = {&work.u, &work.dr, &work.du, &work.term, &work.dgamma};
    const size_t n_rows = sizeof rows / sizeof *rows;
    slm_ref_draft draft;
    slm_status status =
        slm_check_finite(SLM_OP_rmsnorm_backward, &handle->config, args, error);

    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_rmsnorm_backward, args, error);
    if (status != SLM_OK) return status;
    fmpq_init(work.eps);
    slm_ref_decimal(work.eps, handle->config.eps);
    for (size_t i = 0; i < n_rows; i++) *rows[i] = _arb_vec_init((slong)width);
    if (args->gamma.rank) {
        work.gamma = _arb_vec_init((slong)width);
        slm_ref_load(work.gamma, &args->gamma);
    }
    status = slm_ref_whole(&draft, backward_pass, &work, error);
    if (work.gamma) _arb_vec_clear(work.gamma, (slong)width);
    for (size_t i = 0; i < n_rows; i++) _arb_vec_clear(*rows[i], (slong)width);
    fmpq_clear(work.eps);
    slm_ref_draft_close(&draft);
    return status;
}
