/* SPDX-License-Identifier: Apache-2.0 */
/* ref/situ.c - the SiTU-GLU activation, one number at a time; its gradients. L1, L4, G1
 *
 * a gate, b up; everything is a ball, nothing is rounded to an element here. An exact
 * NaN comes from a NaN input alone and stays one. */
#include "internal.h"

/* +1 or -1 for an infinity, else 0. */
static int infinite(const arb_t a)
{
    return arf_is_pos_inf(arb_midref(a)) - arf_is_neg_inf(arb_midref(a));
}

/* sigma(a) = 1 / (1 + e^-a). */
void slm_ref_sigmoid(arb_t out, const arb_t a, slong prec)
{
    if (infinite(a)) {
        arb_set_si(out, infinite(a) > 0);
        return;
    }
    arb_neg(out, a);
    arb_exp(out, out, prec);
    arb_add_ui(out, out, 1, prec);
    arb_inv(out, out, prec);
}

/* softcap(a; beta) = beta tanh(a / beta);  |result| <= beta. */
void slm_ref_softcap(arb_t out, const arb_t a, double beta, slong prec)
{
    arb_t cap;

    arb_init(cap);
    arb_set_d(cap, beta);
    if (infinite(a)) {
        arb_mul_si(out, cap, infinite(a), prec);
    } else {
        arb_div(out, a, cap, prec);
        arb_tanh(out, out, prec);
        arb_mul(out, out, cap, prec);
    }
    arb_clear(cap);
}

static int is_nan(const arb_t a)
{
    return arf_is_nan(arb_midref(a)) && arb_is_exact(a);
}

static void set_nan(arb_t out)
{
    arf_nan(arb_midref(out));
    mag_zero(arb_radref(out));
}

/* softcap(a; beta_gate) sigma(a) softcap(b; beta_up): sigma sees a before its cap. */
void slm_ref_situ_glu(arb_t out, const arb_t a, const arb_t b, double beta_gate,
                      double beta_up, slong prec)
{
    arb_t gate, up, sigma;

    if (is_nan(a) || is_nan(b)) {
        set_nan(out);
        return;
    }
    arb_init(gate);
    arb_init(up);
    arb_init(sigma);
    slm_ref_softcap(gate, a, beta_gate, prec);
    slm_ref_softcap(up, b, beta_up, prec);
    slm_ref_sigmoid(sigma, a, prec);
    arb_mul(gate, gate, sigma, prec);
    arb_mul(out, gate, up, prec);
    arb_clear(sigma);
    arb_clear(up);
    arb_clear(gate);
}

/* a sigma(a) b. */
static void swiglu(arb_t out, const arb_t a, const arb_t b, slong prec)
{
    arb_t gate;

    arb_init(gate);
    slm_ref_sigmoid(gate, a, prec);
    arb_mul(gate, gate, a, prec);
    arb_mul(out, gate, b, prec);
    arb_clear(gate);
}

/* max(0, b), exact when b is. */
static void relu(arb_t out, const arb_t b, slong prec)
{
    arb_t zero;

    arb_init(zero);
    if (arb_is_nonpositive(b))
        arb_zero(out);
    else if (arb_is_positive(b))
        arb_set(out, b);
    else
        arb_max(out, b, zero, prec);
    arb_clear(zero);
}

void slm_ref_activation(arb_t out, const arb_t a, const arb_t b,
                        const slm_config *config, slong prec)
{
    if (config->expert == SLM_EXPERT_SWIGLU)
        swiglu(out, a, b, prec);
    else if (config->expert == SLM_EXPERT_RELU)
        relu(out, b, prec);
    else
        slm_ref_situ_glu(out, a, b, config->beta_gate, config->beta_up, prec);
}

/* G(a) = softcap(a; beta_gate) sigma(a), or a sigma(a). */
void slm_ref_gate(arb_t out, const arb_t a, const slm_config *config, slong prec)
{
    arb_t sigma;

    arb_init(sigma);
    slm_ref_sigmoid(sigma, a, prec);
    if (config->expert == SLM_EXPERT_SWIGLU)
        arb_set(out, a);
    else
        slm_ref_softcap(out, a, config->beta_gate, prec);
    arb_mul(out, out, sigma, prec);
    arb_clear(sigma);
}

/* U(b) = softcap(b; beta_up), or b. */
void slm_ref_up(arb_t out, const arb_t b, const slm_config *config, slong prec)
{
    if (config->expert == SLM_EXPERT_SWIGLU)
        arb_set(out, b);
    else
        slm_ref_softcap(out, b, config->beta_up, prec);
}

/* sech^2(a / beta), the slope of softcap: never 1 - tanh^2, which loses all digits in
 * saturation. */
static void softcap_slope(arb_t out, const arb_t a, double beta, slong prec)
{
    arb_t cap;

    if (infinite(a)) {
        arb_zero(out);
        return;
    }
    arb_init(cap);
    arb_set_d(cap, beta);
    arb_div(out, a, cap, prec);
    arb_sech(out, out, prec);
    arb_sqr(out, out, prec);
    arb_clear(cap);
}

/* G'(a) = sigma(a) (sech^2(a / beta_gate) + softcap(a; beta_gate) sigma(-a)), or
 * sigma(a) (1 + a sigma(-a)). */
void slm_ref_gate_slope(arb_t out, const arb_t a, const slm_config *config, slong prec)
{
    const int capped = config->expert != SLM_EXPERT_SWIGLU;
    arb_t sigma, rest, cap, slope;

    arb_init(sigma);
    arb_init(rest);
    arb_init(cap);
    arb_init(slope);
    slm_ref_sigmoid(sigma, a, prec);
    arb_neg(rest, a);
    slm_ref_sigmoid(rest, rest, prec); /* sigma(-a), never 1 - sigma(a) */
    arb_one(slope);
    if (capped) softcap_slope(slope, a, config->beta_gate, prec);
    arb_set(cap, a);
    if (capped) slm_ref_softcap(cap, a, config->beta_gate, prec);
    arb_addmul(slope, cap, rest, prec);
    arb_mul(out, sigma, slope, prec);
    arb_clear(slope);
    arb_clear(cap);
    arb_clear(rest);
    arb_clear(sigma);
}

/* U'(b) = sech^2(b / beta_up), or 1. */
void slm_ref_up_slope(arb_t out, const arb_t b, const slm_config *config, slong prec)
{
    if (config->expert == SLM_EXPERT_SWIGLU)
        arb_one(out);
    else
        softcap_slope(out, b, config->beta_up, prec);
}

void slm_ref_situ_glu_backward(arb_t da, arb_t db, const arb_t a, const arb_t b,
                               const arb_t dh, const slm_config *config, slong prec)
{
    arb_t factor;

    arb_init(factor);
    slm_ref_gate_slope(da, a, config, prec);
    slm_ref_up(factor, b, config, prec);
    arb_mul(da, da, factor, prec);
    arb_mul(da, da, dh, prec);
    slm_ref_up_slope(db, b, config, prec);
    slm_ref_gate(factor, a, config, prec);
    arb_mul(db, db, factor, prec);
    arb_mul(db, db, dh, prec);
    arb_clear(factor);
}

typedef struct situ_work {
    const slm_config *config;
    const slm_situ_glu_args *args;
    arb_ptr row; /* [2f] gate, then up */
} situ_work;

static slm_status situ_row(void *user, size_t token, slong prec, slm_ref_draft *draft,
                           slm_error *error)
{
    situ_work *work = user;
    const slm_config *config = work->config;
    const size_t f = config->d_expert;
    const slm_tensor gate_up = slm_tensor_at(&work->args->gate_up, token);

    (void)error;
    slm_ref_load(work->row, &gate_up);
    for (size_t i = 0; i < f; i++)
        slm_ref_situ_glu(work->row + i, work->row + i, work->row + f + i,
                         config->beta_gate, config->beta_up, prec);
    slm_ref_put(draft, "h", token, work->row);
    return SLM_OK;
}

slm_status slm_ref_op_situ_glu(slm_handle *handle, const slm_situ_glu_args *args,
                               slm_error *error)
{
    const slong width = 2 * (slong)handle->config.d_expert;
    situ_work work = {&handle->config, args, NULL};
    slm_ref_draft draft;
    slm_status status = slm_ref_draft_open(&draft, SLM_OP_situ_glu, args, error);

    if (status != SLM_OK) return status;
    work.row = _arb_vec_init(width);
    status = slm_ref_each_token(&draft, situ_row, &work, error);
    _arb_vec_clear(work.row, width);
    slm_ref_draft_close(&draft);
    return status;
}

typedef struct backward_work {
    slm_config config;
    const slm_situ_glu_backward_args *args;
    arb_ptr gate_up;  /* [2f] gate, then up */
    arb_ptr dh;       /* [f]                */
    arb_ptr dgate_up; /* [2f]               */
} backward_work;

static slm_status backward_row(void *user, size_t token, slong prec,
                               slm_ref_draft *draft, slm_error *error)
{
    backward_work *work = user;
    const size_t f = work->config.d_expert;
    const slm_tensor gate_up = slm_tensor_at(&work->args->gate_up, token);
    const slm_tensor dh = slm_tensor_at(&work->args->dh, token);

    (void)error;
    slm_ref_load(work->gate_up, &gate_up);
    slm_ref_load(work->dh, &dh);
    for (size_t i = 0; i < f; i++)
        slm_ref_situ_glu_backward(work->dgate_up + i, work->dgate_up + f + i,
                                  work->gate_up + i, work->gate_up + f + i,
                                  work->dh + i, &work->config, prec);
    slm_ref_put(draft, "dgate_up", token, work->dgate_up);
    return SLM_OK;
}

slm_status slm_ref_op_situ_glu_backward(slm_handle *handle,
                                        const slm_situ_glu_backward_args *args,
                                        slm_error *error)
{
    const slong f = (slong)handle->config.d_expert;
    backward_work work = {.config = handle->config, .args = args};
    slm_ref_draft draft;
    slm_status status =
        slm_check_finite(SLM_OP_situ_glu_backward, &handle->config, args, error);

    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_situ_glu_backward, args, error);
    if (status != SLM_OK) return status;
    work.config.expert = SLM_EXPERT_SITU; /* the operation is SiTU in every profile */
    work.gate_up = _arb_vec_init(2 * f);
    work.dh = _arb_vec_init(f);
    work.dgate_up = _arb_vec_init(2 * f);
    status = slm_ref_each_token(&draft, backward_row, &work, error);
    _arb_vec_clear(work.dgate_up, 2 * f);
    _arb_vec_clear(work.dh, f);
    _arb_vec_clear(work.gate_up, 2 * f);
    slm_ref_draft_close(&draft);
    return status;
}
