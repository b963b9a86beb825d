/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_unreal.c - what a NaN or an infinity among the inputs leaves open.
 *                                                                                 R4 */
#include "trial.h"

#include <math.h>
#include <string.h>

/* A tensor, or a row or an expert of one, holds numbers alone. */
static int is_finite_part(const slm_tensor *part)
{
    const size_t count = slm_tensor_count(part);

    for (size_t i = 0; i < count; i++)
        if (!isfinite(slm_ref_get(part, i))) return 0;
    return 1;
}

/* An input's row of token t; 1 too where the field is absent or no input. */
static int is_finite_row(const call_frame *frame, const char *name, size_t t)
{
    const slm_tensor *tensor = frame_tensor(frame, name);

    for (size_t i = 0; i < frame->info->n_fields; i++) {
        const slm_field *field = &frame->info->fields[i];

        if (strcmp(field->name, name) != 0) continue;
        if (field->role != SLM_ROLE_IN && field->role != SLM_ROLE_OPTIONAL) return 1;
    }
    if (!tensor || tensor->rank == 0 || tensor->shape[0] == 0) return 1;

    const slm_tensor row = slm_tensor_at(tensor, t);

    return is_finite_part(&row);
}

int trial_may_be_poisoned(const call_frame *frame, size_t t)
{
    const slm_tensor *router = frame_tensor(frame, "w_router");

    return !is_finite_row(frame, "x", t) || !is_finite_row(frame, "score", t) ||
           !is_finite_row(frame, "logit", t) ||
           (router && router->rank && !is_finite_part(router));
}

/* The experts of a weight that token t chose. */
static int chosen_are_finite(const call_frame *frame, const slm_tensor *weight,
                             size_t t)
{
    const slm_tensor *ids = frame_tensor(frame, "ids");
    const size_t k = frame->config.top_k;

    for (size_t q = 0; q < k; q++) {
        const double id = slm_ref_get(ids, t * k + q);

        if (id < 0 || id >= (double)weight->shape[0]) continue;

        const slm_tensor part = slm_tensor_at(weight, (size_t)id);

        if (!is_finite_part(&part)) return 0;
    }
    return 1;
}

static int weights_are_finite(const call_frame *frame, size_t t)
{
    for (size_t i = 0; i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];
        const slm_tensor *weight = &buffer->tensor;

        if (!buffer->field || buffer->output || weight->rank == 0 ||
            buffer->field->kind != SLM_KIND_REAL || buffer->field->dims[0] == 'T')
            continue;
        if (buffer->field->dims[0] == 'n' && weight->rank == 3
                ? !chosen_are_finite(frame, weight, t)
                : !is_finite_part(weight))
            return 0;
    }
    return 1;
}

int trial_is_given_up(const call_frame *frame, const char *output, size_t t)
{
    const slm_tensor row = slm_tensor_at(frame_tensor(frame, output), t);
    const size_t count = slm_tensor_count(&row);

    for (size_t i = 0; i < count; i++)
        if (!isnan(slm_ref_get(&row, i))) return 0;
    return !weights_are_finite(frame, t);
}
