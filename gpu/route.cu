/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/route.cu - `select` and `route`: the bias checked, the product, the tail. */
#include "gpu.h"

static const slm_gpu_finding refusals[] = {{SLM_ERR_NONFINITE, "bias", "finite"}};

static slm_gpu_choice choice_of(const slm_handle *handle, const slm_call *call,
                                const slm_tensor *bias)
{
    const slm_config *config = &handle->config;
    slm_gpu_choice choice = {};

    choice.rows = call->n_tokens;
    choice.n = config->n_experts;
    choice.k = config->top_k;
    choice.weighting = config->weighting;
    choice.ld = config->n_experts;
    choice.bias = (const float *)bias->data;
    choice.state = handle->state;
    return choice;
}

/* NULL where the tensor is absent. */
static float *floats(const slm_tensor *tensor)
{
    return tensor->rank ? (float *)tensor->data : NULL;
}

static slm_status check_bias(slm_handle *handle, const slm_tensor *bias,
                             cudaStream_t stream)
{
    const slm_status status = slm_gpu_begin(handle, stream);

    if (status) return status;
    return slm_gpu_find_nonfinite(handle, bias->data, SLM_F32, handle->config.n_experts,
                                  0, stream);
}

extern "C" slm_status slm_gpu_select(slm_handle *handle, const slm_select_args *args,
                                     slm_error *error)
{
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    slm_gpu_choice choice = choice_of(handle, &args->call, &args->bias);
    slm_status status = check_bias(handle, &args->bias, stream);

    choice.logit = floats(&args->logit);
    choice.score = floats(&args->score);
    choice.ids = (int32_t *)args->ids.data;
    choice.weight = (float *)args->weight.data;
    choice.cutoff = floats(&args->cutoff);
    if (!status) status = slm_gpu_choose(&choice, 0, stream);
    if (status) return slm_gpu_failed(SLM_OP_select, status, error);
    return slm_gpu_conclude(handle, SLM_OP_select, refusals, stream, error);
}

extern "C" size_t slm_gpu_select_space(const slm_config *, const slm_call *)
{
    return 0;
}

/* The only workspace of `route` are its logits. */
extern "C" size_t slm_gpu_route_space(const slm_config *config, const slm_call *call)
{
    slm_gpu_arena arena = {NULL, 0};

    slm_gpu_take_f32(&arena, call->n_tokens, config->n_experts);
    return arena.used;
}

extern "C" slm_status slm_gpu_route(slm_handle *handle, const slm_route_args *args,
                                    slm_error *error)
{
    const slm_config *config = &handle->config;
    const cudaStream_t stream = slm_gpu_stream(&args->call);
    const size_t n = config->n_experts, d = config->d_model;
    slm_gpu_choice choice = choice_of(handle, &args->call, &args->bias);
    slm_status status = check_bias(handle, &args->bias, stream);
    const slm_gpu_linear product = {args->call.n_tokens,
                                    n,
                                    d,
                                    {args->x.data, config->dtype, d},
                                    {args->w_router.data, config->dtype, d},
                                    {args->call.workspace, SLM_F32, n},
                                    0};

    choice.logit = (const float *)args->call.workspace;
    choice.ids = (int32_t *)args->ids.data;
    choice.weight = (float *)args->weight.data;
    choice.cutoff = floats(&args->cutoff);
    choice.logit_out = floats(&args->logit);
    choice.score_out = floats(&args->score);
    if (!status && choice.rows) status = slm_gpu_product(handle, &product, stream);
    if (!status) status = slm_gpu_choose(&choice, 1, stream);
    if (status) return slm_gpu_failed(SLM_OP_route, status, error);
    return slm_gpu_conclude(handle, SLM_OP_route, refusals, stream, error);
}
