/* SPDX-License-Identifier: Apache-2.0 */
/* ref/ffn.c - y = x W^T, and the gated feed-forward network; its gradients. L1, L3, G1
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

void slm_ref_linear_transposed(arb_ptr y, arb_ptr gauge, const slm_tensor *w,
                               arb_srcptr x, slong prec)
{
    slm_tensor turned = *w;

    turned.shape[0] = w->shape[1];
    turned.shape[1] = w->shape[0];
    turned.stride[0] = w->stride[1];
    turned.stride[1] = w->stride[0];
    slm_ref_linear(y, gauge, &turned, x, prec);
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

int slm_ref_inner_sums(arb_ptr gate_up, arb_ptr h, const slm_tensor *w_gate,
                       const slm_tensor *w_up, arb_srcptr x, const slm_config *config,
                       size_t *index, slong prec)
{
    const size_t rows = w_up->shape[0];
    arb_ptr up = gate_up + rows;

    slm_ref_linear(gate_up, NULL, w_gate, x, prec);
    slm_ref_linear(up, NULL, w_up, x, prec);
    for (size_t i = 0; i < rows; i++) {
        *index = i;
        if (!arb_is_finite(gate_up + i) || !arb_is_finite(up + i)) return 0;
        slm_ref_activation(h + i, gate_up + i, up + i, config, prec);
    }
    return 1;
}

void slm_ref_inner_backward(arb_ptr dx, arb_ptr dgate_up, arb_ptr part, arb_srcptr dh,
                            arb_srcptr gate_up, const slm_tensor *w_gate,
                            const slm_tensor *w_up, const slm_config *config,
                            slong prec)
{
    const size_t rows = w_up->shape[0];
    const slong cols = (slong)w_up->shape[1];

    for (size_t i = 0; i < rows; i++)
        slm_ref_situ_glu_backward(dgate_up + i, dgate_up + rows + i, gate_up + i,
                                  gate_up + rows + i, dh + i, config, prec);
    slm_ref_linear_transposed(part, NULL, w_gate, dgate_up, prec);
    _arb_vec_add(dx, dx, part, cols, prec);
    slm_ref_linear_transposed(part, NULL, w_up, dgate_up + rows, prec);
    _arb_vec_add(dx, dx, part, cols, prec);
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

/* Balls of every token where a weight's gradient needs them, else of one. */
typedef struct backward_work {
    const slm_config *config;
    const slm_dense_ffn_backward_args *args;
    size_t d, f;
    arb_ptr x;        /* [T, d]  */
    arb_ptr dy;       /* [T, d]  */
    arb_ptr h;        /* [T, f]  */
    arb_ptr dgate_up; /* [T, 2f] */
    arb_ptr gate_up;  /* [2f]    */
    arb_ptr dh;       /* [f]     */
    arb_ptr dx;       /* [d]     */
    arb_ptr part;     /* [d]     */
} backward_work;

static slm_status backward_token(backward_work *work, size_t token, slong prec,
                                 slm_ref_draft *draft, slm_error *error)
{
    const slm_dense_ffn_backward_args *args = work->args;
    const slm_tensor x_row = slm_tensor_at(&args->x, token);
    const slm_tensor dy_row = slm_tensor_at(&args->dy, token);
    arb_ptr x = work->x + token * work->d, dy = work->dy + token * work->d;
    arb_ptr h = work->h + token * work->f;
    arb_ptr dgate_up = work->dgate_up + token * 2 * work->f;
    size_t index;

    slm_ref_load(x, &x_row);
    slm_ref_load(dy, &dy_row);
    if (!slm_ref_inner_sums(work->gate_up, h, &args->w_gate, &args->w_up, x,
                            work->config, &index, prec))
        return slm_fail(error, SLM_ERR_INTERNAL, "dense_ffn_backward", "h",
                        token * work->f + index, "finite");
    slm_ref_linear_transposed(work->dh, NULL, &args->w_out, dy, prec);
    _arb_vec_zero(work->dx, (slong)work->d);
    slm_ref_inner_backward(work->dx, dgate_up, work->part, work->dh, work->gate_up,
                           &args->w_gate, &args->w_up, work->config, prec);
    slm_ref_put(draft, "gate_up", token, work->gate_up);
    slm_ref_put(draft, "h", token, h);
    slm_ref_put(draft, "dh", token, work->dh);
    slm_ref_put(draft, "dgate_up", token, dgate_up);
    slm_ref_put(draft, "dx", token, work->dx);
    slm_ref_progress(draft, token, draft->steps);
    return SLM_OK;
}

static slm_status backward_pass(void *user, slong prec, slm_ref_draft *draft,
                                slm_error *error)
{
    backward_work *work = user;
    const size_t n_tokens = work->args->call.n_tokens, d = work->d, f = work->f;
    const slm_ref_rows x = {work->x, d, d, NULL}, dy = {work->dy, d, d, NULL};
    const slm_ref_rows h = {work->h, f, f, NULL};
    const slm_ref_rows da = {work->dgate_up, 2 * f, f, NULL};
    const slm_ref_rows db = {work->dgate_up + f, 2 * f, f, NULL};

    for (size_t t = 0; t < n_tokens; t++) {
        const slm_status status = backward_token(work, t, prec, draft, error);
        if (status != SLM_OK) return status;
    }
    slm_ref_put_outer(draft, "dw_gate", 0, &da, &x, n_tokens, prec);
    slm_ref_progress(draft, n_tokens, 1);
    slm_ref_put_outer(draft, "dw_up", 0, &db, &x, n_tokens, prec);
    slm_ref_progress(draft, n_tokens, 2);
    slm_ref_put_outer(draft, "dw_out", 0, &dy, &h, n_tokens, prec);
    return SLM_OK;
}

slm_status slm_ref_op_dense_ffn_backward(slm_handle *handle,
                                         const slm_dense_ffn_backward_args *args,
                                         slm_error *error)
{
    const size_t d = handle->config.d_model, f = handle->config.d_expert;
    const size_t n_tokens = args->call.n_tokens;
    backward_work work = {.config = &handle->config, .args = args, .d = d, .f = f};
    const struct {
        arb_ptr *at;
        size_t n;
    } rows[] = {{&work.x, n_tokens * d}, {&work.dy, n_tokens * d},
                {&work.h, n_tokens * f}, {&work.dgate_up, n_tokens * 2 * f},
                {&work.gate_up, 2 * f},  {&work.dh, f},
                {&work.dx, d},           {&work.part, d}};
    const size_t n_rows = sizeof rows / sizeof *rows;
    slm_ref_draft draft;
    slm_status status =
        slm_check_finite(SLM_OP_dense_ffn_backward, &handle->config, args, error);

    if (status != SLM_OK) return status;
    status = slm_ref_draft_open(&draft, SLM_OP_dense_ffn_backward, args, error);
    if (status != SLM_OK) return status;
    draft.steps = 3;
    for (size_t i = 0; i < n_rows; i++) *rows[i].at = _arb_vec_init((slong)rows[i].n);
    status = slm_ref_whole(&draft, backward_pass, &work, error);
    for (size_t i = 0; i < n_rows; i++) _arb_vec_clear(*rows[i].at, (slong)rows[i].n);
    slm_ref_draft_close(&draft);
    return status;
}
