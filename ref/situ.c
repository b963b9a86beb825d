/* SPDX-License-Identifier: Apache-2.0 */
/* ref/situ.c - the SiTU-GLU activation, one number at a time.                  L1, L4
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
