/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/layer_backward.cu - gradients of the whole layer at a given choice.
 *
 * Clause   G1-G5, R3, L1-L6.  Preconditions are the contract's; none is checked here.
 * Method   the forward is computed anew by its own kernels. The shared path, forward
 *          and back to its gate and up sums, runs on the side stream. Each gradient of
 *          a dense weight is one product; those of experts have a kernel (gemm.cu).
 * Order    u and dz are summed in slot order; dx is router, down, shared gate, shared
 *          up (linear: shared), in binary32.
 * Rounding sums in binary32. Gradients of activations are stored in the configuration's
 *          dtype, those of weights, of logits and of mixing weights in binary32.
 * Memory   gate and up become dgate and dup once their taps have been written. */
#include "layer.h"

namespace
{

/* E: the configuration's dtype. R: rows of experts. */
struct space {
    slm_gpu_forward forward;
    slm_gpu_matrix dr;      /* [T, l]      E                                          */
    slm_gpu_matrix du;      /* [T, l]      E; without a norm it is dr                 */
    double *scale;          /* [T]         1 / R of the norm                          */
    float *dweight;         /* [T, k]                                                 */
    float *dlogit;          /* [T, n]                                                 */
    slm_gpu_matrix pdu;     /* [R, l]      E: weight times du                         */
    slm_gpu_matrix dh;      /* [R, f]      E                                          */
    slm_gpu_matrix dz_gate; /* [R, l]      E: what the gate, linear: all, adds to dz  */
    slm_gpu_matrix dz_up;   /* [R, l]      E                                          */
    slm_gpu_matrix dz;      /* [T, l]      E                                          */
    slm_gpu_matrix dhs;     /* [T, S fs]   E                                          */
    slm_gpu_matrix dx;      /* [T, d]      binary32; before that x                    */
    float *scratch;         /* the largest gradient of a dense weight                 */
};

size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Most rows of a dense weight whose other side is d; dgamma and dbias are shorter. */
size_t most_rows(const slm_config *config)
{
    const size_t s = config->expert == SLM_EXPERT_LINEAR ? config->d_model
                                                         : slm_gpu_shared_width(config);

    return larger(larger(config->n_experts, config->d_latent), s);
}

size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_gpu_arena arena = {(char *)base, 0};
    const size_t n = config->n_experts, k = config->top_k;
    const size_t d = config->d_model, l = config->d_latent;
    const slm_dtype dtype = config->dtype;

    slm_gpu_take_forward(&arena, config, rows, &at->forward);

    const size_t of_experts = slm_gpu_expert_rows(&at->forward.groups);
    const size_t l_ld = slm_gpu_padded(l), f_ld = at->forward.h.ld;

    at->dr = slm_gpu_take_matrix(&arena, rows, l, dtype);
    at->du = config->norm == SLM_NORM_RMS ? slm_gpu_take_matrix(&arena, rows, l, dtype)
                                          : at->dr;
    at->scale = (double *)slm_gpu_take(&arena, rows, 1, sizeof *at->scale);
    at->dweight = slm_gpu_take_f32(&arena, rows, k);
    at->dlogit = slm_gpu_take_f32(&arena, rows, n);
    at->pdu = slm_gpu_take_matrix(&arena, of_experts, l_ld, dtype);
    at->dh = slm_gpu_take_matrix(&arena, of_experts, f_ld, dtype);
    at->dz_gate = slm_gpu_take_matrix(&arena, of_experts, l_ld, dtype);
    at->dz_up = slm_gpu_take_matrix(&arena, f_ld ? of_experts : 0, l_ld, dtype);
    at->dz = slm_gpu_take_matrix(&arena, rows, l, dtype);
    at->dhs = slm_gpu_take_matrix(&arena, rows, slm_gpu_shared_width(config), dtype);
    at->dx = slm_gpu_take_matrix(&arena, rows, d, SLM_F32);
    at->scratch = slm_gpu_take_f32(&arena, most_rows(config), d);
    return arena.used;
}

/* What the parts of one call share. */
struct pass {
    const slm_handle *handle;
    const slm_layer_backward_args *args;
    space at;
    slm_gpu_matrix x;
    slm_gpu_matrix dy;
};

/* A dense weight of the caller, `cols` wide. */
slm_gpu_matrix weight_of(const pass &on, const slm_tensor &weight, size_t cols)
{
    return slm_gpu_packed(weight.data, on.handle->config.dtype, cols);
}

slm_gpu_matrix shared_of(const pass &on, size_t i)
{
    const size_t d = on.handle->config.d_model;

    return slm_gpu_columns(weight_of(on, on.handle->weights.w_shared, d), i * d * d);
}

slm_status tap_pairs(const pass &on, size_t width, slm_gpu_matrix from,
                     const slm_tensor *to, size_t ld, size_t col, cudaStream_t stream)
{
    const slm_gpu_matrix target = {to->data, from.dtype, ld};

    if (to->rank == 0) return SLM_OK;
    return slm_gpu_deliver_pairs(on.handle, &on.at.forward.groups, width, from,
                                 slm_gpu_columns(target, col).data, ld, stream);
}

/* gate, up or their gradients as [gate | up]. */
slm_status tap_gate_up(const pass &on, const slm_tensor *to, cudaStream_t stream)
{
    const size_t f = on.handle->config.d_expert;
    slm_status status = tap_pairs(on, f, on.at.forward.gate, to, 2 * f, 0, stream);

    if (!status) status = tap_pairs(on, f, on.at.forward.up, to, 2 * f, f, stream);
    return status;
}

/* The shared path: hs, dhs and the gradients of its gate and up sums. */
slm_status turn_shared(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const size_t rows = on.at.forward.rows, d = config->d_model;
    const size_t s = slm_gpu_shared_width(config);
    const slm_gpu_matrix gate = on.at.forward.shared_gate_up;
    const slm_gpu_matrix up = slm_gpu_columns(gate, s);
    const slm_gpu_glu glu = {gate, up, on.at.dhs, gate, up};
    slm_status status = SLM_OK;

    if (s == 0) return SLM_OK;
    status = slm_gpu_run_shared(on.handle, &on.at.forward, on.x, stream);
    if (!status)
        status = slm_gpu_multiply(on.handle,
                                  {rows, s, d, on.dy,
                                   weight_of(on, on.handle->weights.w_shared_out, s),
                                   on.at.dhs, SLM_GPU_BACK},
                                  stream);
    if (!status)
        status = slm_gpu_tap(on.handle, gate, &on.args->shared_gate_up, stream);
    if (!status)
        status = slm_gpu_differentiate_rows(config, rows, s, &glu, NULL, stream);
    return status;
}

/* The forward pass of the given choice, and its taps. */
slm_status recompute(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const slm_layer_backward_args *args = on.args;
    const slm_gpu_forward *at = &on.at.forward;
    const size_t n = config->n_experts, k = config->top_k;
    const float *logit = (const float *)at->first.data;
    slm_status status = slm_gpu_run_first(on.handle, at, on.x, stream);

    if (!status)
        status = slm_gpu_weigh(at->rows, n, k, config->weighting, logit, at->first.ld,
                               at->ids, at->weight, stream);
    if (!status) status = slm_gpu_run_routed(on.handle, at, stream);
    if (!status) status = slm_gpu_tap(on.handle, at->first, &args->logit, stream);
    if (!status)
        status =
            slm_gpu_tap(on.handle, {at->weight, SLM_F32, k}, &args->weight, stream);
    if (!status) status = slm_gpu_tap(on.handle, at->z, &args->z, stream);
    if (!status) status = slm_gpu_tap(on.handle, at->u, &args->u, stream);
    if (!status) status = slm_gpu_tap(on.handle, at->r, &args->r, stream);
    if (!status)
        status = tap_pairs(on, config->d_latent, at->o, &args->o, config->d_latent, 0,
                           stream);
    if (!status)
        status = tap_pairs(on, config->d_expert, at->h, &args->h, config->d_expert, 0,
                           stream);
    if (!status) status = tap_gate_up(on, &args->gate_up, stream);
    return status;
}

/* dr, du, dgamma; of the pairs dweight and weight times du; dlogit. */
slm_status turn_rows(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const slm_weights *w = &on.handle->weights;
    const space &at = on.at;
    const slm_gpu_forward *forward = &at.forward;
    const size_t rows = forward->rows, n = config->n_experts, k = config->top_k;
    const size_t d = config->d_model, l = config->d_latent;
    const void *gamma = w->gamma.rank ? w->gamma.data : NULL;
    slm_status status = slm_gpu_multiply(
        on.handle,
        {rows, l, d, on.dy, weight_of(on, w->w_lift, l), at.dr, SLM_GPU_BACK}, stream);

    if (!status && config->norm == SLM_NORM_RMS)
        status =
            slm_gpu_norm_slopes(rows, l, forward->u.data, forward->u.dtype, gamma,
                                config->dtype, at.dr.data, at.dr.dtype, config->eps,
                                at.du.data, at.du.dtype, at.scale, NULL, stream);
    if (!status)
        status = slm_gpu_turn(&forward->groups, k, l, forward->weight, at.du,
                              forward->o, at.dweight, at.pdu, stream);
    if (!status)
        status = slm_gpu_select_slopes(
            rows, n, k, config->weighting, (const float *)forward->first.data,
            forward->first.ld, forward->ids, at.dweight, at.dlogit, NULL, stream);
    return status;
}

/* Back through the experts to dz. */
slm_status turn_experts(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const slm_gpu_layer_weights w = slm_gpu_weights_of(on.handle);
    const space &at = on.at;
    const slm_gpu_forward *forward = &at.forward;
    const slm_gpu_groups *groups = &forward->groups;
    const size_t k = config->top_k, l = config->d_latent, f = config->d_expert;
    const bool linear = config->expert == SLM_EXPERT_LINEAR;
    const slm_gpu_expert_linear first = {at.pdu, linear ? w.expert : w.out,
                                         linear ? at.dz_gate : at.dh};
    const slm_gpu_expert_linear both[] = {{forward->gate, w.gate, at.dz_gate},
                                          {forward->up, w.up, at.dz_up}};
    const slm_gpu_glu glu = {forward->gate, forward->up, at.dh, forward->gate,
                             forward->up};
    const slm_gpu_matrix none = {NULL, config->dtype, 0};
    slm_status status = slm_gpu_expert_products(on.handle, groups, linear ? l : f, l,
                                                SLM_GPU_BACK, &first, 1, stream);

    if (!status && !linear)
        status = slm_gpu_differentiate_rows(config, slm_gpu_expert_rows(groups), f,
                                            &glu, NULL, stream);
    if (!status && !linear)
        status = slm_gpu_expert_products(on.handle, groups, l, f, SLM_GPU_BACK, both, 2,
                                         stream);
    if (!status)
        status = slm_gpu_combine(groups, k, l, NULL, at.dz_gate,
                                 linear ? none : at.dz_up, at.dz, stream);
    return status;
}

slm_status turn_taps(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const slm_layer_backward_args *args = on.args;
    const space &at = on.at;
    const struct {
        slm_gpu_matrix from;
        const slm_tensor *to;
    } list[] = {{at.dr, &args->dr},
                {at.du, &args->du},
                {{at.dweight, SLM_F32, config->top_k}, &args->dweight},
                {{at.dlogit, SLM_F32, config->n_experts}, &args->dlogit},
                {at.dz, &args->dz},
                {at.forward.hs, &args->hs},
                {at.dhs, &args->dhs},
                {at.forward.shared_gate_up, &args->dshared_gate_up}};
    const size_t f = config->d_expert;
    slm_status status = SLM_OK;

    for (const auto &one : list)
        if (!status) status = slm_gpu_tap(on.handle, one.from, one.to, stream);
    if (!status) status = tap_pairs(on, f, at.dh, &args->dh, f, 0, stream);
    if (!status) status = tap_gate_up(on, &args->dgate_up, stream);
    return status;
}

slm_status write_dx(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const slm_gpu_layer_weights w = slm_gpu_weights_of(on.handle);
    const slm_weights *given = &on.handle->weights;
    const space &at = on.at;
    const size_t rows = at.forward.rows, n = config->n_experts, d = config->d_model;
    const size_t l = config->d_latent, s = slm_gpu_shared_width(config);
    const slm_gpu_matrix dlogit = slm_gpu_packed(at.dlogit, SLM_F32, n);
    const slm_gpu_matrix dgate = at.forward.shared_gate_up;
    const slm_gpu_matrix dup = slm_gpu_columns(dgate, s);
    const unsigned adds = SLM_GPU_BACK | SLM_GPU_ADD;
    slm_status status = slm_gpu_multiply(
        on.handle, {rows, d, n, dlogit, w.router, at.dx, SLM_GPU_BACK}, stream);

    if (!status)
        status = slm_gpu_multiply(on.handle, {rows, d, l, at.dz, w.down, at.dx, adds},
                                  stream);
    if (!status && s)
        status = slm_gpu_multiply(
            on.handle,
            {rows, d, s, dgate, weight_of(on, given->w_shared_gate, d), at.dx, adds},
            stream);
    if (!status && s)
        status = slm_gpu_multiply(
            on.handle,
            {rows, d, s, dup, weight_of(on, given->w_shared_up, d), at.dx, adds},
            stream);
    for (size_t i = 0; config->expert == SLM_EXPERT_LINEAR && i < config->n_shared; i++)
        if (!status)
            status = slm_gpu_multiply(
                on.handle, {rows, d, d, on.dy, shared_of(on, i), at.dx, adds}, stream);
    if (!status) status = slm_gpu_tap(on.handle, at.dx, &on.args->dx, stream);
    return status;
}

slm_status expert_gradients(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const slm_layer_backward_args *args = on.args;
    const slm_gpu_forward *forward = &on.at.forward;
    const slm_gpu_groups *groups = &forward->groups;
    const slm_gpu_state *state = on.handle->state;
    const size_t l = config->d_latent, f = config->d_expert;
    const slm_gpu_matrix z = forward->gathered, pdu = on.at.pdu;
    slm_status status = SLM_OK;

    if (config->expert == SLM_EXPERT_LINEAR)
        return slm_gpu_expert_gradients(groups, pdu, l, z, l,
                                        (float *)args->dw_expert.data, state, stream);
    status = slm_gpu_expert_gradients(groups, forward->gate, f, z, l,
                                      (float *)args->dw_gate.data, state, stream);
    if (!status)
        status = slm_gpu_expert_gradients(groups, forward->up, f, z, l,
                                          (float *)args->dw_up.data, state, stream);
    if (!status)
        status = slm_gpu_expert_gradients(groups, pdu, l, forward->h, f,
                                          (float *)args->dw_out.data, state, stream);
    return status;
}

slm_status shared_gradients(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const slm_layer_backward_args *args = on.args;
    const size_t rows = on.at.forward.rows, d = config->d_model;
    const size_t s = slm_gpu_shared_width(config);
    const slm_gpu_matrix dgate = on.at.forward.shared_gate_up;
    float *scratch = on.at.scratch;
    slm_status status = SLM_OK;

    for (size_t i = 0; config->expert == SLM_EXPERT_LINEAR && i < config->n_shared;
         i++) {
        const slm_tensor to = slm_tensor_at(&args->dw_shared, i);

        if (!status)
            status = slm_gpu_gradient(on.handle, rows, on.dy, d, on.x, d, scratch, &to,
                                      stream);
    }
    if (s == 0) return status;
    status = slm_gpu_gradient(on.handle, rows, dgate, s, on.x, d, scratch,
                              &args->dw_shared_gate, stream);
    if (!status)
        status = slm_gpu_gradient(on.handle, rows, slm_gpu_columns(dgate, s), s, on.x,
                                  d, scratch, &args->dw_shared_up, stream);
    if (!status)
        status = slm_gpu_gradient(on.handle, rows, on.dy, d, on.at.forward.hs, s,
                                  scratch, &args->dw_shared_out, stream);
    return status;
}

/* dw_router needs x in binary32, in the place of dx: it comes before it. */
slm_status router_gradient(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const size_t rows = on.at.forward.rows, n = config->n_experts, d = config->d_model;
    const bool wide = config->dtype == SLM_F32;
    slm_status status = SLM_OK;

    if (!wide) status = slm_gpu_convert(rows, d, on.x, on.at.dx, stream);
    if (!status)
        status = slm_gpu_gradient(
            on.handle, rows, slm_gpu_packed(on.at.dlogit, SLM_F32, n), n,
            wide ? on.x : on.at.dx, d, on.at.scratch, &on.args->dw_router, stream);
    return status;
}

/* Of all weights. Without tokens they are zeros.                                  G5 */
slm_status gradients(const pass &on, cudaStream_t stream)
{
    const slm_config *config = &on.handle->config;
    const slm_layer_backward_args *args = on.args;
    const space &at = on.at;
    const slm_gpu_forward *forward = &at.forward;
    const size_t rows = forward->rows, d = config->d_model, l = config->d_latent;
    slm_status status = router_gradient(on, stream);

    if (!status)
        status = slm_gpu_gradient(on.handle, rows, at.dz, l, on.x, d, at.scratch,
                                  &args->dw_down, stream);
    if (!status)
        status = slm_gpu_gradient(on.handle, rows, on.dy, d, forward->r, l, at.scratch,
                                  &args->dw_lift, stream);
    if (!status) status = shared_gradients(on, stream);
    if (!status) status = expert_gradients(on, stream);
    if (!status && args->dgamma.rank)
        status = slm_gpu_gamma_slopes(
            rows, l, forward->u.data, forward->u.dtype, at.dr.data, at.dr.dtype,
            at.scale, (float *)args->dgamma.data, on.handle->state, stream);
    if (status || args->dbias.rank == 0) return status;
    cudaMemsetAsync(at.scratch, 0, config->n_experts * sizeof *at.scratch, stream);
    return slm_gpu_tap(on.handle, {at.scratch, SLM_F32, 1}, &args->dbias, stream);
}

slm_status run(const pass &on, cudaStream_t stream)
{
    const slm_handle *handle = on.handle;
    const slm_gpu_groups *groups = &on.at.forward.groups;
    const size_t bytes = groups->pairs * sizeof *on.at.forward.ids;
    slm_status status = SLM_OK;

    if (groups->pairs == 0) {
        status = slm_gpu_make_groups(groups, on.at.forward.ids, stream);
        return status ? status : gradients(on, stream);
    }
    cudaMemcpyAsync(on.at.forward.ids, on.args->ids.data, bytes,
                    cudaMemcpyDeviceToDevice, stream);
    status = slm_gpu_fork(handle, stream);
    if (!status) status = turn_shared(on, handle->side);
    if (!status) status = recompute(on, stream);
    if (!status) status = turn_rows(on, stream);
    if (!status) status = turn_experts(on, stream);

    const slm_status joined = slm_gpu_join(handle, stream);

    if (!status) status = joined;
    if (!status) status = turn_taps(on, stream);
    if (!status) status = gradients(on, stream);
    if (!status) status = write_dx(on, stream);
    return status;
}

enum { OF_X, OF_DY };

const slm_gpu_finding findings[] = {{SLM_ERR_NONFINITE, "x", "finite"},
                                    {SLM_ERR_NONFINITE, "dy", "finite"}};

} // namespace

size_t slm_gpu_layer_backward_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status slm_gpu_layer_backward(slm_handle *handle,
                                  const slm_layer_backward_args *args, slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, d = config->d_model;
    const slm_dtype dtype = config->dtype;
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    pass on = {handle,
               args,
               {},
               slm_gpu_packed(args->x.data, dtype, d),
               slm_gpu_packed(args->dy.data, dtype, d)};
    slm_status status = slm_gpu_begin(handle, stream);

    lay_out(&on.at, args->call.workspace, config, rows);
    if (!status)
        status =
            slm_gpu_find_nonfinite(handle, args->x.data, dtype, rows * d, OF_X, stream);
    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->dy.data, dtype, rows * d, OF_DY,
                                        stream);
    if (!status) status = run(on, stream);
    if (status) return slm_gpu_failed(SLM_OP_layer_backward, status, error);
    return slm_gpu_conclude(handle, SLM_OP_layer_backward, findings, stream, error);
}
