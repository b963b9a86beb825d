/* SPDX-License-Identifier: Apache-2.0 */
/* spec/alias.c - which arguments may not share memory: ALIAS.                        X1
 *
 * An output may share no byte with any other argument, nor the workspace; inputs may
 * overlap each other. A view covers every byte from its first to its last, gaps
 * included. Host and device memory never overlap. */
#include "contract.h"

static int writes(const slm_field *field)
{
    return field->role == SLM_ROLE_OUT || field->role == SLM_ROLE_TAP ||
           field->role == SLM_ROLE_INOUT;
}

static size_t magnitude(ptrdiff_t stride)
{
    return (size_t)(stride < 0 ? -stride : stride);
}

/* Whether the elements of a view lie apart: in order of their strides, each dimension
 * steps over all the finer ones. */
static int elements_apart(const slm_tensor *tensor)
{
    uint32_t left[SLM_MAX_RANK];
    uint32_t n = 0;
    size_t span = 0;

    for (uint32_t i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] > 1) left[n++] = i;
    while (n) {
        uint32_t finest = 0;
        size_t step;

        for (uint32_t i = 1; i < n; i++)
            if (magnitude(tensor->stride[left[i]]) <
                magnitude(tensor->stride[left[finest]]))
                finest = i;
        step = magnitude(tensor->stride[left[finest]]);
        if (step <= span) return 0;
        span += (tensor->shape[left[finest]] - 1) * step;
        left[finest] = left[--n];
    }
    return 1;
}

static int overlap(extent a, extent b)
{
    return a.low < b.high && b.low < a.high && a.low < a.high && b.low < b.high;
}

/* Extent of a field's memory, empty for a field that is absent or was not checked. */
static extent field_extent(const door *at, const slm_field *field)
{
    const slm_tensor *tensor = slm_door_tensor(at, field);
    extent bytes = {0, 0};

    if (tensor->rank && slm_door_applies(at, field) > 0)
        slm_door_extent(tensor, &bytes);
    return bytes;
}

/* An output against itself and every other field. */
static slm_status check_output(const door *at, const slm_field *output)
{
    const slm_tensor *tensor = slm_door_tensor(at, output);
    const extent bytes = field_extent(at, output);

    if (bytes.low == bytes.high) return SLM_OK;
    if (!elements_apart(tensor))
        return slm_fail(at->error, SLM_ERR_ALIAS, at->name, output->name, 0,
                        "strides that give each element memory of its own");
    for (size_t i = 0; i < at->n_fields; i++) {
        const slm_field *other = &at->fields[i];

        if (other == output || slm_door_tensor(at, other)->space != tensor->space)
            continue;
        if (overlap(bytes, field_extent(at, other)))
            return slm_fail(at->error, SLM_ERR_ALIAS, at->name, output->name, 0,
                            "memory apart from %s", other->name);
    }
    return SLM_OK;
}

slm_status slm_door_alias(const door *at)
{
    const uintptr_t workspace = (uintptr_t)at->call->workspace;
    const extent scratch = {workspace, workspace + at->call->workspace_size};
    slm_status status = SLM_OK;

    for (size_t i = 0; i < at->n_fields && !status; i++)
        if (writes(&at->fields[i])) status = check_output(at, &at->fields[i]);
    for (size_t i = 0; i < at->n_fields && !status; i++)
        if (overlap(scratch, field_extent(at, &at->fields[i])))
            status = slm_fail(at->error, SLM_ERR_ALIAS, at->name, "workspace", 0,
                              "memory apart from %s", at->fields[i].name);
    return status;
}
