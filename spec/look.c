/* SPDX-License-Identifier: Apache-2.0 */
/* spec/look.c - looking into the tensors of a call, as far as the host can.        Q5 */
#include "contract.h"

#include <string.h>

const void *slm_door_element(const slm_tensor *tensor, size_t index)
{
    ptrdiff_t offset = 0;

    for (uint32_t i = tensor->rank; i-- > 0;) {
        offset += (ptrdiff_t)(index % tensor->shape[i]) * tensor->stride[i];
        index /= tensor->shape[i];
    }
    return (const char *)tensor->data +
           offset * (ptrdiff_t)slm_dtype_size(tensor->dtype);
}

size_t slm_door_visible(const slm_tensor *tensor)
{
    return tensor->rank && tensor->space == SLM_HOST ? slm_tensor_count(tensor) : 0;
}

const slm_tensor *slm_door_mask(const door *at)
{
    for (size_t i = 0; i < at->n_fields; i++) {
        const slm_tensor *tensor = slm_door_tensor(at, &at->fields[i]);

        if (strcmp(at->fields[i].name, "mask") == 0)
            return tensor->rank ? tensor : NULL;
    }
    return NULL;
}

int slm_door_counts(const slm_tensor *mask, size_t t)
{
    return !mask ||
           (slm_door_visible(mask) && *(const int32_t *)slm_door_element(mask, t) != 0);
}

size_t slm_door_counted(const door *at)
{
    const slm_tensor *mask = slm_door_mask(at);
    size_t n = 0;

    if (!mask || !slm_door_visible(mask)) return at->call->n_tokens;
    for (size_t t = 0; t < at->call->n_tokens; t++)
        n += (size_t)slm_door_counts(mask, t);
    return n;
}

const void *slm_door_first(const slm_tensor *tensor, const slm_tensor *mask,
                           int (*refused)(const void *), size_t *index)
{
    const size_t count = slm_door_visible(tensor);
    const uint32_t last = tensor->rank - 1;
    const size_t width = count ? tensor->shape[last] : 1;

    for (size_t row = 0; row < count; row += width) {
        const char *value = slm_door_element(tensor, row);
        const ptrdiff_t step =
            tensor->stride[last] * (ptrdiff_t)slm_dtype_size(tensor->dtype);

        if (!slm_door_counts(mask, row / width)) continue;
        for (size_t i = 0; i < width; i++) {
            if (refused(value + (ptrdiff_t)i * step)) {
                *index = row + i;
                return value + (ptrdiff_t)i * step;
            }
        }
    }
    return NULL;
}

int64_t slm_door_integer(const slm_tensor *tensor, size_t index)
{
    return *(const int64_t *)slm_door_element(tensor, index);
}
