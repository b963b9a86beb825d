/* SPDX-License-Identifier: Apache-2.0 */
/* ref/ffn.c - y = x W^T, and the gated feed-forward network.                   L1, L3
 *
 * OpenMP threads share the rows of a matrix, never a row. */
#include "internal.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static int all_exact(arb_srcptr x, slong step, slong n)
{
    for (slong i = 0; i < n; i++)
        if (!arb_is_exact(x + i * step)) return 0;
    return 1;
}

void slm_ref_dot(arb_t out, arb_srcptr a, slong a_step, arb_srcptr b, slong b_step,
                 slong n, slong prec)
{
    if (prec < SLM_REF_EXACT || !all_exact(a, a_step, n) || !all_exact(b, b_step, n)) {
        arb_dot(out, NULL, 0, a, a_step, b, b_step, n, prec);
        return;
    }
    arb_zero(out);
    for (slong i = 0; i < n; i++)
        arb_addmul(out, a + i * a_step, b + i * b_step, ARF_PREC_EXACT);
}

static void absolute(arb_ptr out, arb_srcptr x, slong n)
{
    for (slong i = 0; i < n; i++) arb_abs(out + i, x + i);
}

void slm_ref_use_threads(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

/* Multiply-adds below which waking a thread costs more than it brings. */
enum { WORTH_THREADS = 1 << 15 };

void slm_ref_linear(arb_ptr y, arb_ptr gauge, const slm_tensor *w, arb_srcptr x,
                    slong prec)
{
    const slong rows = (slong)w->shape[0];
    const slong cols = (slong)w->shape[1];
    arb_ptr size = gauge ? _arb_vec_init(cols) : NULL; /* |x| */

    if (gauge) absolute(size, x, cols);
#ifdef _OPENMP
#pragma omp parallel if (rows * cols >= WORTH_THREADS)
#endif
    {
        arb_ptr row = _arb_vec_init(cols); /* this thread's */
#ifdef _OPENMP
#pragma omp for
#endif
        for (slong i = 0; i < rows; i++) {
            const slm_tensor view = slm_tensor_at(w, (size_t)i);

            slm_ref_load(row, &view);
            slm_ref_dot(y + i, row, 1, x, 1, cols, prec);
            if (!gauge) continue;
            absolute(row, row, cols);
            slm_ref_dot(gauge + i, row, 1, size, 1, cols, prec);
        }
        _arb_vec_clear(row, cols);
    }
    if (gauge) _arb_vec_clear(size, cols);
}

int slm_ref_inner(arb_ptr h, arb_ptr gate, const slm_tensor *w_gate,
                  const slm_tensor *w_up, arb_srcptr x, const slm_config *config,
                  size_t *index, slong prec)
{
    const int gated = config->expert != SLM_EXPERT_RELU;
    const size_t rows = w_up->shape[0];

    slm_ref_linear(h, NULL, w_up, x, prec);
    if (gated) slm_ref_linear(gate, NULL, w_gate, x, prec);
    for (size_t i = 0; i < rows; i++) {
        *index = i;
        if (!arb_is_finite(h + i)) return 0;
        if (gated && !arb_is_finite(gate + i)) return 0;
        slm_ref_activation(h + i, gate + i, h + i, config, prec);
    }
    return 1;
}

typedef struct ffn_work {
    const slm_config *config;
    const slm_dense_ffn_args *args;
    arb_ptr x;    /* [d] */
    arb_ptr gate; /* [f] */
    arb_ptr h;    /* [f] */
    arb_ptr y;    /* [d] */
} ffn_work;

static slm_status ffn_row(void *user, size_t token, slong prec, slm_ref_draft *draft,
                          slm_error *error)
{
    ffn_work *work = user;
    const slm_dense_ffn_args *args = work->args;
    const slm_tensor x = slm_tensor_at(&args->x, token);
    size_t index;

    slm_ref_load(work->x, &x);
    if (!slm_ref_inner(work->h, work->gate, &args->w_gate, &args->w_up, work->x,
                       work->config, &index, prec))
        return slm_fail(error, SLM_ERR_INTERNAL, "dense_ffn", "h",
                        token * work->config->d_expert + index, "finite");
    slm_ref_put(draft, "h", token, work->h);
    slm_ref_progress(draft, token, 1);
    slm_ref_linear(work->y, NULL, &args->w_out, work->h, prec);
    slm_ref_put(draft, "y", token, work->y);
    return SLM_OK;
}

/* NaN and infinities are refused wherever they stand. */
static slm_status refuse_nonfinite(const slm_dense_ffn_args *args, slm_error *error)
{
    const struct {
        const char *name;
        const slm_tensor *tensor;
    } inputs[] = {{"x", &args->x},
                  {"w_gate", &args->w_gate},
                  {"w_up", &args->w_up},
                  {"w_out", &args->w_out}};

    if (args->call.n_tokens == 0) return SLM_OK;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        if (inputs[i].tensor->rank == 0) continue;
        const size_t bad = slm_ref_first_nonfinite(inputs[i].tensor);
        if (bad < slm_tensor_count(inputs[i].tensor))
            return slm_fail(error, SLM_ERR_NONFINITE, "dense_ffn", inputs[i].name, bad,
                            "finite");
    }
    return SLM_OK;
}

slm_status slm_ref_op_dense_ffn(slm_handle *handle, const slm_dense_ffn_args *args,
                                slm_error *error)
{
    const slong d = (slong)handle->config.d_model;
    const slong f = (slong)handle->config.d_expert;
    ffn_work work = {.config = &handle->config, .args = args};
    slm_ref_draft draft;
    slm_status status;

    if (handle->config.expert == SLM_EXPERT_LINEAR)
        return slm_fail(error, SLM_ERR_UNSUPPORTED, "dense_ffn", "expert", 0,
                        "situ, swiglu or relu");
    status = refuse_nonfinite(args, error);
    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_dense_ffn, args, error);
    if (status != SLM_OK) return status;
    draft.steps = 2;
    work.x = _arb_vec_init(d);
    work.gate = _arb_vec_init(f);
    work.h = _arb_vec_init(f);
    work.y = _arb_vec_init(d);
    status = slm_ref_each_token(&draft, ffn_row, &work, error);
    _arb_vec_clear(work.y, d);
    _arb_vec_clear(work.h, f);
    _arb_vec_clear(work.gate, f);
    _arb_vec_clear(work.x, d);
    slm_ref_draft_close(&draft);
    return status;
}
