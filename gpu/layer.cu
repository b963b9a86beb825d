/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/layer.cu - the whole layer: route, group by expert, run them, combine, lift.
 *
 * Clause   R1-R5, L1-L6.  Preconditions are the contract's; none is checked here.
 * Method   logits and z in one product over stacked weights; the choice; a counting
 *          sort and rows of experts (layer.h); gate and up of all experts in one batch,
 *          the activation, out in another; sums over slots and the norm; lift plus
 *          shared. The shared experts run on the side stream meanwhile. All T tokens at
 *          once.
 * Waiting  the host waits for nothing before the verdict at the end.
 * Order    u is summed in slot order; y is the lift, then the shared path, in binary32.
 * Rounding sums in binary32. z, gate and up sums, h, o, u, r, hs and y are stored in
 *          the configuration's dtype, logits and weights in binary32.
 * NaN      poisoned rows run like any other and are overwritten at the end. */
#include "kernels.h"
#include "layer.h"

size_t slm_gpu_shared_width(const slm_config *config)
{
    return config->expert == SLM_EXPERT_LINEAR ? 0
                                               : config->n_shared * config->d_shared;
}

slm_gpu_matrix slm_gpu_take_matrix(slm_gpu_arena *arena, size_t rows, size_t ld,
                                   slm_dtype dtype)
{
    return {slm_gpu_take(arena, rows, ld, slm_dtype_size(dtype)), dtype, ld};
}

void slm_gpu_take_forward(slm_gpu_arena *arena, const slm_config *config, size_t rows,
                          slm_gpu_forward *at)
{
    const size_t n = config->n_experts, k = config->top_k, l = config->d_latent;
    const bool inner = config->expert != SLM_EXPERT_LINEAR;
    const size_t f = inner ? config->d_expert : 0, s = slm_gpu_shared_width(config);
    const size_t l_ld = slm_gpu_padded(l), f_ld = slm_gpu_padded(f);
    const slm_dtype dtype = config->dtype;

    at->rows = rows;
    at->first = slm_gpu_take_matrix(arena, rows, n + l, SLM_F32);
    at->ids = (int32_t *)slm_gpu_take(arena, rows, k, sizeof *at->ids);
    at->weight = slm_gpu_take_f32(arena, rows, k);
    slm_gpu_take_groups(arena, n, rows, k, &at->groups);

    const size_t of_experts = slm_gpu_expert_rows(&at->groups);

    at->z = dtype == SLM_F32 ? slm_gpu_columns(at->first, n)
                             : slm_gpu_take_matrix(arena, rows, l, dtype);
    at->gathered = slm_gpu_take_matrix(arena, of_experts, l_ld, dtype);
    at->gate = slm_gpu_take_matrix(arena, of_experts, f_ld, dtype);
    at->up = slm_gpu_take_matrix(arena, of_experts, f_ld, dtype);
    at->h = slm_gpu_take_matrix(arena, of_experts, f_ld, dtype);
    at->o = slm_gpu_take_matrix(arena, of_experts, l_ld, dtype);
    at->u = slm_gpu_take_matrix(arena, rows, l, dtype);
    at->r = config->norm == SLM_NORM_RMS ? slm_gpu_take_matrix(arena, rows, l, dtype)
                                         : at->u;
    at->shared_gate_up = slm_gpu_take_matrix(arena, rows, 2 * s, dtype);
    at->hs = slm_gpu_take_matrix(arena, rows, s, dtype);
}

slm_status slm_gpu_fork(const slm_handle *handle, cudaStream_t stream)
{
    if (cudaEventRecord(handle->fork, stream) != cudaSuccess) return SLM_ERR_INTERNAL;
    return cudaStreamWaitEvent(handle->side, handle->fork, 0) == cudaSuccess
               ? SLM_OK
               : SLM_ERR_INTERNAL;
}

slm_status slm_gpu_join(const slm_handle *handle, cudaStream_t stream)
{
    if (cudaEventRecord(handle->join, handle->side) != cudaSuccess)
        return SLM_ERR_INTERNAL;
    return cudaStreamWaitEvent(stream, handle->join, 0) == cudaSuccess
               ? SLM_OK
               : SLM_ERR_INTERNAL;
}

slm_status slm_gpu_tap(const slm_handle *handle, slm_gpu_matrix from,
                       const slm_tensor *to, cudaStream_t stream)
{
    if (to->rank == 0) return SLM_OK;
    return slm_gpu_deliver(handle, from.data, from.dtype, from.ld, to->shape[0],
                           slm_tensor_count(to) / to->shape[0], to->data, to->dtype,
                           stream);
}

slm_status slm_gpu_run_first(const slm_handle *handle, const slm_gpu_forward *at,
                             slm_gpu_matrix x, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t n = config->n_experts, d = config->d_model, l = config->d_latent;
    const slm_gpu_matrix weights = slm_gpu_weights_of(handle).first;
    const slm_status status = slm_gpu_multiply(
        handle, {at->rows, n + l, d, x, weights, at->first, 0}, stream);

    if (status || config->dtype == SLM_F32) return status;
    return slm_gpu_convert(at->rows, l, slm_gpu_columns(at->first, n), at->z, stream);
}

slm_status slm_gpu_run_shared(const slm_handle *handle, const slm_gpu_forward *at,
                              slm_gpu_matrix x, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t d = config->d_model, s = slm_gpu_shared_width(config);
    const slm_weights *w = &handle->weights;
    const slm_gpu_matrix gate = at->shared_gate_up, up = slm_gpu_columns(gate, s);
    slm_status status = SLM_OK;

    if (s == 0) return SLM_OK;
    if (config->expert != SLM_EXPERT_RELU)
        status = slm_gpu_multiply(handle,
                                  {at->rows, s, d, x,
                                   slm_gpu_packed(w->w_shared_gate.data, x.dtype, d),
                                   gate, 0},
                                  stream);
    if (!status)
        status = slm_gpu_multiply(
            handle,
            {at->rows, s, d, x, slm_gpu_packed(w->w_shared_up.data, x.dtype, d), up, 0},
            stream);
    if (!status)
        status = slm_gpu_activate_rows(config, at->rows, s, gate, up, at->hs, stream);
    return status;
}

/* o of all rows of experts. */
static slm_status run_experts(const slm_handle *handle, const slm_gpu_forward *at,
                              cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const slm_gpu_groups *groups = &at->groups;
    const size_t l = config->d_latent, f = config->d_expert;
    const slm_gpu_layer_weights w = slm_gpu_weights_of(handle);
    const slm_gpu_expert_linear both[] = {{at->gathered, w.up, at->up},
                                          {at->gathered, w.gate, at->gate}};
    const slm_gpu_expert_linear out = {at->h, w.out, at->o};
    const slm_gpu_expert_linear linear = {at->gathered, w.expert, at->o};
    const size_t used = config->expert == SLM_EXPERT_RELU ? 1 : 2;

    if (config->expert == SLM_EXPERT_LINEAR)
        return slm_gpu_expert_products(handle, groups, l, l, 0, &linear, 1, stream);

    slm_status status =
        slm_gpu_expert_products(handle, groups, f, l, 0, both, used, stream);

    if (!status)
        status = slm_gpu_activate_rows(config, slm_gpu_expert_rows(groups), f, at->gate,
                                       at->up, at->h, stream);
    if (!status)
        status = slm_gpu_expert_products(handle, groups, l, f, 0, &out, 1, stream);
    return status;
}

slm_status slm_gpu_run_routed(const slm_handle *handle, const slm_gpu_forward *at,
                              cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t k = config->top_k, l = config->d_latent;
    const slm_tensor *gamma = &handle->weights.gamma;
    const slm_gpu_matrix none = {NULL, config->dtype, 0};
    slm_status status = slm_gpu_make_groups(&at->groups, at->ids, stream);

    if (!status)
        status = slm_gpu_gather(&at->groups, k, l, at->z, at->gathered, stream);
    if (!status) status = run_experts(handle, at, stream);
    if (!status)
        status =
            slm_gpu_combine(&at->groups, k, l, at->weight, at->o, none, at->u, stream);
    if (!status && config->norm == SLM_NORM_RMS)
        status = slm_gpu_norm(at->rows, l, at->u.data, at->u.dtype,
                              gamma->rank ? gamma->data : NULL, config->dtype,
                              config->eps, at->r.data, at->r.dtype, NULL, stream);
    return status;
}

namespace
{

struct space {
    slm_gpu_forward forward;
    float *score;     /* [T, n] */
    float *cutoff;    /* [T]    */
    slm_gpu_matrix y; /* [T, d]  binary32 */
};

size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_gpu_arena arena = {(char *)base, 0};

    slm_gpu_take_forward(&arena, config, rows, &at->forward);
    at->score = slm_gpu_take_f32(&arena, rows, config->n_experts);
    at->cutoff = slm_gpu_take_f32(&arena, rows, 1);
    at->y = slm_gpu_take_matrix(&arena, rows, config->d_model, SLM_F32);
    return arena.used;
}

/* A refused bias still gives ids that are distinct and in range: work goes on and
 * nothing is delivered. */
slm_status choose(const slm_handle *handle, const slm_layer_forward_args *args,
                  const space &at, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    slm_gpu_choice choice = {};

    choice.rows = at.forward.rows;
    choice.n = config->n_experts;
    choice.k = config->top_k;
    choice.weighting = config->weighting;
    choice.logit = (const float *)at.forward.first.data;
    choice.ld = at.forward.first.ld;
    choice.bias = (const float *)args->bias.data;
    choice.ids = at.forward.ids;
    choice.weight = at.forward.weight;
    choice.cutoff = at.cutoff;
    choice.score_out = args->score.rank ? at.score : NULL;
    return slm_gpu_choose(&choice, 1, stream);
}

/* y of r, hs and x. */
slm_status lift(const slm_handle *handle, const space &at, slm_gpu_matrix x,
                cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t rows = at.forward.rows, d = config->d_model, l = config->d_latent;
    const size_t s = slm_gpu_shared_width(config);
    const slm_weights *w = &handle->weights;
    const slm_gpu_matrix of_lift = slm_gpu_packed(w->w_lift.data, x.dtype, l);
    slm_status status =
        slm_gpu_multiply(handle, {rows, d, l, at.forward.r, of_lift, at.y, 0}, stream);

    if (!status && s)
        status = slm_gpu_multiply(handle,
                                  {rows, d, s, at.forward.hs,
                                   slm_gpu_packed(w->w_shared_out.data, x.dtype, s),
                                   at.y, SLM_GPU_ADD},
                                  stream);
    for (size_t i = 0; config->expert == SLM_EXPERT_LINEAR && i < config->n_shared; i++)
        if (!status)
            status = slm_gpu_multiply(
                handle,
                {rows, d, d, x,
                 slm_gpu_columns(slm_gpu_packed(w->w_shared.data, x.dtype, d),
                                 i * d * d),
                 at.y, SLM_GPU_ADD},
                stream);
    return status;
}

slm_status deliver(const slm_handle *handle, const slm_layer_forward_args *args,
                   const space &at, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t k = config->top_k, n = config->n_experts;
    const size_t f = config->d_expert, l = config->d_latent;
    const slm_gpu_forward *from = &at.forward;
    const struct {
        slm_gpu_matrix from;
        const slm_tensor *to;
    } list[] = {{at.y, &args->y},
                {{from->ids, SLM_I32, k}, &args->ids},
                {{from->weight, SLM_F32, k}, &args->weight},
                {from->first, &args->logit},
                {{at.score, SLM_F32, n}, &args->score},
                {from->z, &args->z},
                {from->u, &args->u},
                {from->r, &args->r},
                {from->hs, &args->hs}};
    slm_status status = SLM_OK;

    for (const auto &one : list)
        if (!status) status = slm_gpu_tap(handle, one.from, one.to, stream);
    if (!status && k < n)
        status = slm_gpu_tap(handle, {at.cutoff, SLM_F32, 1}, &args->cutoff, stream);
    if (!status && args->h.rank)
        status = slm_gpu_deliver_pairs(handle, &from->groups, f, from->h, args->h.data,
                                       f, stream);
    if (!status && args->o.rank)
        status = slm_gpu_deliver_pairs(handle, &from->groups, l, from->o, args->o.data,
                                       l, stream);
    return status;
}

slm_status run(const slm_handle *handle, const slm_layer_forward_args *args,
               const space &at, cudaStream_t stream)
{
    const slm_config *config = &handle->config;
    const size_t n = config->n_experts, d = config->d_model;
    const slm_gpu_matrix x = slm_gpu_packed(args->x.data, config->dtype, d);
    slm_status status = slm_gpu_fork(handle, stream);

    if (!status) status = slm_gpu_run_shared(handle, &at.forward, x, handle->side);
    if (!status) status = slm_gpu_run_first(handle, &at.forward, x, stream);
    if (!status) status = choose(handle, args, at, stream);
    if (!status) status = slm_gpu_run_routed(handle, &at.forward, stream);

    const slm_status joined = slm_gpu_join(handle, stream);

    if (!status) status = joined;
    if (!status) status = lift(handle, at, x, stream);
    if (!status)
        status = slm_gpu_poison(at.forward.rows, n, at.forward.first, d, at.y, stream);
    if (!status) status = deliver(handle, args, at, stream);
    return status;
}

const slm_gpu_finding findings[] = {{SLM_ERR_NONFINITE, "bias", "finite"}};

} // namespace

size_t slm_gpu_layer_forward_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status slm_gpu_layer_forward(slm_handle *handle, const slm_layer_forward_args *args,
                                 slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens;
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    slm_status status = slm_gpu_begin(handle, stream);
    space at;

    if (!status)
        status = slm_gpu_find_nonfinite(handle, args->bias.data, SLM_F32,
                                        config->n_experts, 0, stream);
    lay_out(&at, args->call.workspace, config, rows);
    if (!status && rows) status = run(handle, args, at, stream);
    if (status) return slm_gpu_failed(SLM_OP_layer_forward, status, error);
    return slm_gpu_conclude(handle, SLM_OP_layer_forward, findings, stream, error);
}
