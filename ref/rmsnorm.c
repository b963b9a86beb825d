/* SPDX-License-Identifier: Apache-2.0 */
/* ref/rmsnorm.c - RMSNorm of the routed aggregate.                                 L2
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
