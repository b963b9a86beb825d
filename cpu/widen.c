/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/widen.c - an operation in bf16 as one in binary32 between copies.
 *
 * Clause   that of the operation.  Every bf16 is a binary32, so inputs are exact;
 *          outputs are rounded once, to nearest, ties to even. What the operation
 *          itself stores between its stages it rounds where handle->half is set.
 * Memory   a packed copy of each argument of the element type, in the workspace. */
#include "native.h"

/* Elements of a field of the element type; rows of its last dimension are packed. */
static size_t elements(const slm_field *field, const slm_config *config,
                       const slm_call *call)
{
    size_t count = 1, size = 0;

    for (const char *letter = field->dims; *letter; letter++)
        if (!slm_dim(config, call, *letter, &size) ||
            __builtin_mul_overflow(count, size, &count))
            return SIZE_MAX;
    return count;
}

size_t slm_cpu_widened_space(const slm_config *config, slm_op op, const slm_call *call)
{
    const slm_op_info *info = slm_op_describe(op);
    slm_cpu_arena arena = {NULL, 0};

    for (size_t i = 0; i < info->n_fields; i++)
        if (info->fields[i].kind == SLM_KIND_REAL &&
            slm_field_applies(&info->fields[i], config))
            slm_cpu_take_f32(&arena, elements(&info->fields[i], config, call), 1);
    return arena.used;
}

/* All elements of a bf16 view from packed binary32, or into it. */
static void copy_elements(const slm_tensor *half, float *wide, int out)
{
    const uint32_t last = half->rank - 1;
    const size_t cols = half->shape[last];
    const size_t rows = cols ? slm_tensor_count(half) / cols : 0;

    for (size_t row = 0; row < rows; row++) {
        uint16_t *at = half->data;
        size_t rest = row;

        for (uint32_t i = last; i-- > 0; rest /= half->shape[i])
            at += (ptrdiff_t)(rest % half->shape[i]) * half->stride[i];
        for (size_t j = 0; j < cols; j++) {
            uint16_t *element = at + (ptrdiff_t)j * half->stride[last];

            if (out)
                *element = slm_cpu_to_bf16(wide[row * cols + j]);
            else
                wide[row * cols + j] = slm_cpu_of_bf16(*element);
        }
    }
}

static int is_output(const slm_field *field)
{
    return field->role == SLM_ROLE_OUT || field->role == SLM_ROLE_TAP;
}

static slm_tensor *tensor_of(void *args, const slm_field *field)
{
    return (slm_tensor *)(void *)((char *)args + field->offset);
}

slm_status slm_cpu_widened(slm_handle *handle, slm_op op, const void *args,
                           slm_cpu_inner *inner, slm_error *error)
{
    const slm_op_info *info = slm_op_describe(op);
    const slm_call *call = args;
    slm_cpu_arena arena = {call->workspace, 0};
    union {
        slm_call call;
        slm_layer_backward_args largest;
    } wide;
    slm_status status;

    memcpy(&wide, args, info->args_size);
    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];
        slm_tensor *tensor = tensor_of(&wide, field);
        float *copy;

        if (field->kind != SLM_KIND_REAL || !slm_field_applies(field, &handle->config))
            continue;
        copy = slm_cpu_take_f32(&arena, elements(field, &handle->config, call), 1);
        if (tensor->rank == 0) continue;
        if (!is_output(field)) copy_elements(tensor, copy, 0);
        *tensor = slm_tensor_packed(copy, SLM_F32, tensor->rank, tensor->shape);
    }
    if (call->workspace) {
        wide.call.workspace = (char *)call->workspace + arena.used;
        wide.call.workspace_size = call->workspace_size - arena.used;
    }
    handle->config.dtype = SLM_F32;
    handle->half = 1;
    status = inner(handle, &wide, error);
    handle->half = 0;
    handle->config.dtype = SLM_BF16;
    for (size_t i = 0; status == SLM_OK && i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];
        slm_tensor to;

        memcpy(&to, (const char *)args + field->offset, sizeof to);
        if (field->kind == SLM_KIND_REAL && is_output(field) && to.rank)
            copy_elements(&to, tensor_of(&wide, field)->data, 1);
    }
    return status;
}
