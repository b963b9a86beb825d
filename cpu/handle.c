/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/handle.c - what the handles of the CPU backends have in common: weights by
 * reference, or copied where GEMM cannot read them, and the workspace of each call. */
#include <stdlib.h>

#include "internal.h"

slm_handle *slm_cpu_new_handle(const slm_config *config, slm_error *error)
{
    slm_handle *made = calloc(1, sizeof *made);
    const size_t size = config->struct_size < sizeof made->config ? config->struct_size
                                                                  : sizeof made->config;

    if (!made) {
        slm_fail(error, SLM_ERR_MEMORY, "open", "handle", 0, "%zu bytes", sizeof *made);
        return NULL;
    }
    memcpy(&made->config, config, size);
    return made;
}

static void drop_copies(slm_handle *handle)
{
    for (size_t i = 0; i < SLM_CPU_WEIGHTS; i++) {
        free(handle->packed[i]);
        handle->packed[i] = NULL;
    }
}

void slm_cpu_close(slm_handle *handle)
{
    if (!handle) return;
    drop_copies(handle);
    free(handle);
}

/* 1 and the matrix of the first part of a weight of rank 3, with the distance of the
 * parts; or of a weight of lower rank. Looks at no element: weights may be sparse. */
static int refer(const slm_tensor *weight, slm_cpu_matrix *matrix, ptrdiff_t *step)
{
    if (weight->rank < 3) return slm_cpu_is_matrix(weight, matrix);

    const slm_tensor part = slm_tensor_at(weight, 0);

    *step = weight->stride[0];
    return slm_cpu_is_matrix(&part, matrix);
}

/* A packed copy of a weight that GEMM cannot read as it lies; NULL without memory. */
static float *copy_of(const slm_tensor *weight)
{
    const size_t parts = weight->rank < 3 ? 1 : weight->shape[0];
    const size_t each = slm_tensor_count(weight) / parts;
    float *copy = malloc(parts * each * sizeof *copy);

    if (!copy) return NULL;
    for (size_t p = 0; p < parts; p++) {
        const slm_tensor part = weight->rank < 3 ? *weight : slm_tensor_at(weight, p);

        slm_cpu_pack(copy + p * each, &part);
    }
    return copy;
}

static slm_status take_weight(const slm_cpu_weight *at, float **copy, slm_error *error)
{
    const slm_tensor *weight = at->from;

    if (weight->rank == 0 || slm_tensor_count(weight) == 0) return SLM_OK;
    if (refer(weight, at->to, at->step)) return SLM_OK;
    *copy = copy_of(weight);
    if (!*copy)
        return slm_fail(error, SLM_ERR_MEMORY, "prepare", at->name, 0, "%zu elements",
                        slm_tensor_count(weight));
    *at->to = (slm_cpu_matrix){*copy, weight->shape[weight->rank - 1]};
    if (at->step) *at->step = (ptrdiff_t)(slm_tensor_count(weight) / weight->shape[0]);
    return SLM_OK;
}

void slm_cpu_list_weights(slm_handle *handle, const slm_weights *from,
                          slm_cpu_weight list[SLM_CPU_WEIGHTS])
{
    slm_cpu_weights *to = &handle->weights;
    const slm_cpu_weight all[SLM_CPU_WEIGHTS] = {
        {"w_router", &from->w_router, &to->router, NULL, 0},
        {"w_down", &from->w_down, &to->down, NULL, 0},
        {"w_gate", &from->w_gate, &to->gate, &to->gate_step, 1},
        {"w_up", &from->w_up, &to->up, &to->up_step, 1},
        {"w_out", &from->w_out, &to->out, &to->out_step, 1},
        {"w_expert", &from->w_expert, &to->expert, &to->expert_step, 1},
        {"gamma", &from->gamma, &to->gamma, NULL, 0},
        {"w_lift", &from->w_lift, &to->lift, NULL, 0},
        {"w_shared_gate", &from->w_shared_gate, &to->shared_gate, NULL, 0},
        {"w_shared_up", &from->w_shared_up, &to->shared_up, NULL, 0},
        {"w_shared_out", &from->w_shared_out, &to->shared_out, NULL, 0},
        {"w_shared", &from->w_shared, &to->shared, &to->shared_step, 0},
    };

    memcpy(list, all, sizeof all);
}

void slm_cpu_look_at_router(slm_handle *handle, const slm_weights *weights)
{
    const slm_tensor *router = &weights->w_router;

    handle->router_is_wrong =
        router->rank == 2 && !slm_cpu_is_finite(router, 0, router->shape[0]);
}

slm_status slm_cpu_refer_to_weights(slm_handle *handle, const slm_weights *weights,
                                    slm_error *error)
{
    slm_cpu_weight list[SLM_CPU_WEIGHTS];

    drop_copies(handle);
    memset(&handle->weights, 0, sizeof handle->weights);
    slm_cpu_look_at_router(handle, weights);
    slm_cpu_list_weights(handle, weights, list);
    for (size_t i = 0; i < SLM_CPU_WEIGHTS; i++) {
        const slm_status status = take_weight(&list[i], &handle->packed[i], error);

        if (status) return status;
    }
    return SLM_OK;
}

size_t slm_cpu_workspace(slm_handle *handle, slm_op op, const slm_call *call)
{
    const slm_config *config = &handle->config;

    switch (op) {
    case SLM_OP_route:
        return slm_cpu_route_space(config, call);
    case SLM_OP_select:
        return slm_cpu_select_space(config, call);
    case SLM_OP_permute:
        return slm_cpu_permute_space(config, call);
    case SLM_OP_dense_ffn:
        return slm_cpu_dense_ffn_space(config, call);
    case SLM_OP_rmsnorm:
        return slm_cpu_rmsnorm_space(config, call);
    case SLM_OP_layer_forward:
        return slm_cpu_layer_forward_space(config, call);
    case SLM_OP_rmsnorm_backward:
        return slm_cpu_rmsnorm_backward_space(config, call);
    case SLM_OP_select_backward:
        return slm_cpu_select_backward_space(config, call);
    case SLM_OP_dense_ffn_backward:
        return slm_cpu_dense_ffn_backward_space(config, call);
    case SLM_OP_layer_backward:
        return slm_cpu_layer_backward_space(config, call);
    case SLM_OP_qb_exact:
        return slm_cpu_qb_exact_space(config, call);
    case SLM_OP_qb_hist_accumulate:
    case SLM_OP_qb_observe:
        return slm_cpu_qb_hist_accumulate_space(config, call);
    case SLM_OP_qb_hist_solve:
        return slm_cpu_qb_hist_solve_space(config, call);
    case SLM_OP_qb_commit:
        return slm_cpu_qb_commit_space(config, call);
    default:
        return 0;
    }
}
