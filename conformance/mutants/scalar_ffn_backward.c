/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_ffn_backward.c - gradients of a dense network.        G4 */
#include "scalar_gradient.h"

#include <string.h>

/* Rows of T tokens. */
typedef struct space {
    float *x, *dy, *dx; /* [T, d]       */
    float *part, *copy; /* [max(d, f)]  */
    scalar_gated net;   /* T rows       */
    scalar_sum sum;
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t n_tokens)
{
    const size_t d = config->d_model, f = config->d_expert;
    const size_t widest = d > f ? d : f;
    scalar_scratch scratch = {base, 0};

    at->x = scalar_take(&scratch, n_tokens * d, sizeof *at->x);
    at->dy = scalar_take(&scratch, n_tokens * d, sizeof *at->dy);
    at->dx = scalar_take(&scratch, n_tokens * d, sizeof *at->dx);
    at->part = scalar_take(&scratch, widest, sizeof *at->part);
    at->copy = scalar_take(&scratch, widest, sizeof *at->copy);
    scalar_gated_take(&at->net, &scratch, n_tokens, f);
    scalar_sum_take(&at->sum, &scratch, n_tokens, widest);
    return scratch.used;
}

size_t scalar_ffn_backward_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

static void run_token(const slm_handle *handle, const space *at, size_t t)
{
    const size_t d = handle->config.d_model;
    const scalar_gated row = scalar_gated_row(&at->net, t);
    float *dx = at->dx + t * d;

    scalar_gated_forward(handle, &row, at->x + t * d, at->copy);
    memset(row.dh, 0, row.width * sizeof *row.dh);
    scalar_add_product(handle, row.dh, &row.w_out, at->dy + t * d, at->part, at->copy);
    scalar_gradient_stage(handle, row.dh, row.width);
    scalar_gated_backward(handle, &row);
    memset(dx, 0, d * sizeof *dx);
    scalar_gated_add_input(handle, dx, &row, at->part, at->copy);
    scalar_gradient_stage(handle, dx, d);
}

slm_status scalar_dense_ffn_backward(slm_handle *handle,
                                     const slm_dense_ffn_backward_args *args,
                                     slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens, d = handle->config.d_model;
    const slm_status status =
        scalar_begin(handle, SLM_OP_dense_ffn_backward, args, error);
    const slm_handle own = scalar_backward_handle(handle);
    space at;

    if (status || (n_tokens == 0 && wrong(handle, MUTANT_counts_not_written)))
        return status;
    lay_out(&at, args->call.workspace, &own.config, n_tokens);
    at.net.w_gate = args->w_gate;
    at.net.w_up = args->w_up;
    at.net.w_out = args->w_out;
    scalar_read(at.x, &args->x);
    scalar_read(at.dy, &args->dy);
    for (size_t t = 0; t < n_tokens; t++) run_token(&own, &at, t);
    scalar_write(&args->dx, at.dx);
    scalar_write_tap(&own, &args->gate_up, at.net.gate_up);
    scalar_write_tap(&own, &args->h, at.net.h);
    scalar_write_tap(&own, &args->dh, at.net.dh);
    scalar_write_tap(&own, &args->dgate_up, at.net.dgate_up);
    scalar_gated_outer(&own, &at.sum, &at.net, (scalar_factor){at.x, d, 1},
                       (scalar_factor){at.dy, d, 1}, &args->dw_gate, &args->dw_up,
                       &args->dw_out);
    return SLM_OK;
}
