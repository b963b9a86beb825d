/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_ffn.c - a feed-forward network at full width.      L1, L3 */
#include "scalar.h"

#include <math.h>

int scalar_inner(const slm_handle *handle, float *h, float *gate,
                 const slm_tensor *w_gate, const slm_tensor *w_up, const float *x,
                 float *copy, int shared)
{
    const size_t width = w_up->shape[0];
    int finite = scalar_linear(handle, h, w_up, x, copy);

    if (w_gate->rank) finite &= scalar_linear(handle, gate, w_gate, x, copy);
    for (size_t i = 0; i < width; i++)
        h[i] = scalar_activation(handle, w_gate->rank ? gate[i] : 0.0f, h[i], shared);
    scalar_stage(handle, h, width);
    return finite;
}

/* Memory of one token. */
typedef struct space {
    float *x;    /* [d]         */
    float *y;    /* [d]         */
    float *h;    /* [f]         */
    float *gate; /* [f]         */
    float *copy; /* [max(d, f)] */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config)
{
    const size_t d = config->d_model, f = config->d_expert;
    scalar_scratch scratch = {base, 0};

    at->x = scalar_take(&scratch, d, sizeof *at->x);
    at->y = scalar_take(&scratch, d, sizeof *at->y);
    at->h = scalar_take(&scratch, f, sizeof *at->h);
    at->gate = scalar_take(&scratch, f, sizeof *at->gate);
    at->copy = scalar_take(&scratch, d > f ? d : f, sizeof *at->copy);
    return scratch.used;
}

size_t scalar_ffn_space(const slm_config *config)
{
    space at;

    return lay_out(&at, NULL, config);
}

static int is_nan_row(const float *x, size_t n)
{
    size_t i = 0;

    while (i < n && !isnan(x[i])) i++;
    return i < n;
}

slm_status scalar_dense_ffn(slm_handle *handle, const slm_dense_ffn_args *args,
                            slm_error *error)
{
    const size_t d = handle->config.d_model;
    const slm_status status = scalar_begin(handle, SLM_OP_dense_ffn, args, error);
    const slm_tensor w_out = wrong(handle, MUTANT_out_transposed)
                                 ? scalar_transposed(&args->w_out)
                                 : args->w_out;
    int poisoned = 0;
    space at;

    if (status || args->call.n_tokens == 0) return status;
    lay_out(&at, args->call.workspace, &handle->config);
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        const slm_tensor x = slm_tensor_at(&args->x, t), y = slm_tensor_at(&args->y, t);
        const slm_tensor h = scalar_row(&args->h, t);
        int finite;

        scalar_load(at.x, &x);
        finite = scalar_inner(handle, at.h, at.gate, &args->w_gate, &args->w_up, at.x,
                              at.copy, 1);
        finite &= scalar_linear(handle, at.y, &w_out, at.h, at.copy);
        finite |= wrong(handle, MUTANT_relu_hides_nan) && is_nan_row(at.x, d);
        poisoned |= !finite;
        for (size_t i = 0; i < d; i++) {
            if (!finite) at.y[i] = NAN;
            if (wrong(handle, MUTANT_nan_poisons_other_rows) && poisoned) at.y[i] = NAN;
            if (wrong(handle, MUTANT_nan_hidden) && isnan(at.y[i])) at.y[i] = 0.0f;
        }
        scalar_stage(handle, at.y, d);
        scalar_store(&y, at.y);
        scalar_store(&h, at.h);
    }
    return SLM_OK;
}
