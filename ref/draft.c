/* SPDX-License-Identifier: Apache-2.0 */
/* ref/draft.c - outputs in the making: proved row by row, or as a whole where sums over
 * tokens are among them; written all at once.                                   X1, X2
 *
 * Elements are kept as doubles, which hold every f32, bf16, f64 and i32 exactly. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static size_t row_width(const slm_tensor *tensor)
{
    size_t width = 1;

    for (uint32_t i = 1; i < tensor->rank; i++) width *= tensor->shape[i];
    return width;
}

slm_status slm_ref_draft_open(slm_ref_draft *draft, slm_op op, const void *args,
                              slm_error *error)
{
    const slm_op_info *info = slm_op_describe(op);
    const slm_call *call = args;

    memset(draft, 0, sizeof *draft);
    draft->info = info;
    draft->call = call;
    draft->units = call->n_tokens;
    draft->steps = 1;
    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];
        const slm_tensor *tensor = (const void *)((const char *)args + field->offset);
        slm_ref_output *output = &draft->outputs[draft->n_outputs];

        if (field->role != SLM_ROLE_OUT && field->role != SLM_ROLE_TAP) continue;
        if (tensor->rank == 0) continue;
        output->field = field;
        output->tensor = tensor;
        output->width = row_width(tensor);
        output->value = calloc(slm_tensor_count(tensor) + 1, sizeof *output->value);
        draft->n_outputs++;
        if (!output->value) {
            slm_ref_draft_close(draft);
            return slm_fail(error, SLM_ERR_MEMORY, info->name, field->name, 0,
                            "memory for %zu elements", slm_tensor_count(tensor));
        }
    }
    return SLM_OK;
}

void slm_ref_draft_close(slm_ref_draft *draft)
{
    for (size_t i = 0; i < draft->n_outputs; i++) free(draft->outputs[i].value);
    draft->n_outputs = 0;
}

slm_ref_output *slm_ref_find(slm_ref_draft *draft, const char *name)
{
    for (size_t i = 0; i < draft->n_outputs; i++)
        if (strcmp(draft->outputs[i].field->name, name) == 0) return &draft->outputs[i];
    return NULL;
}

void slm_ref_unproved(slm_ref_draft *draft, const char *name, size_t index)
{
    if (draft->unproved_field) return;
    draft->unproved_field = name;
    draft->unproved_index = index;
}

size_t slm_ref_round_at(const slm_ref_draft *draft, const slm_ref_output *output,
                        size_t first, arb_srcptr value, size_t n)
{
    size_t unproved = SIZE_MAX;

    for (size_t i = 0; i < n; i++) {
        const size_t at = first + i;

        if (draft->watch)
            draft->watch(draft->watcher, output->field->name, at, value + i);
        if (!slm_ref_round(&output->value[at], value + i, output->tensor->dtype) &&
            unproved == SIZE_MAX)
            unproved = at;
    }
    return unproved;
}

static void put(slm_ref_draft *draft, slm_ref_output *output, size_t first,
                arb_srcptr value, size_t n)
{
    const size_t unproved = slm_ref_round_at(draft, output, first, value, n);

    output->filled = 1;
    if (unproved < SIZE_MAX) slm_ref_unproved(draft, output->field->name, unproved);
}

void slm_ref_put(slm_ref_draft *draft, const char *name, size_t token, arb_srcptr row)
{
    slm_ref_output *output = slm_ref_find(draft, name);

    if (output) put(draft, output, token * output->width, row, output->width);
}

void slm_ref_put_at(slm_ref_draft *draft, const char *name, size_t first,
                    arb_srcptr value, size_t n)
{
    slm_ref_output *output = slm_ref_find(draft, name);

    if (output) put(draft, output, first, value, n);
}

void slm_ref_put_f32(slm_ref_draft *draft, const char *name, size_t token,
                     const float *row)
{
    slm_ref_output *output = slm_ref_find(draft, name);

    if (!output) return;
    output->filled = 1;
    for (size_t i = 0; i < output->width; i++)
        output->value[token * output->width + i] = (double)row[i];
}

void slm_ref_put_i32(slm_ref_draft *draft, const char *name, size_t token,
                     const int32_t *row)
{
    slm_ref_output *output = slm_ref_find(draft, name);

    if (!output) return;
    output->filled = 1;
    for (size_t i = 0; i < output->width; i++)
        output->value[token * output->width + i] = (double)row[i];
}

void slm_ref_progress(const slm_ref_draft *draft, size_t unit, size_t step)
{
    const slm_call *call = draft->call;

    if (call->progress && draft->units > 0)
        call->progress(call->progress_user, unit * draft->steps + step,
                       draft->units * draft->steps);
}

/* After an evaluation with `prec` bits: 1 when it is final, good or bad. At the cap
 * what is not proved becomes an error. */
static int is_final(const slm_ref_draft *draft, slong prec, slm_status *status,
                    slm_error *error)
{
    if (*status != SLM_OK || !draft->unproved_field) return 1;
    if (prec < SLM_REF_CAP) return 0;
    *status =
        slm_fail(error, SLM_ERR_INTERNAL, draft->info->name, draft->unproved_field,
                 draft->unproved_index, "unproved at %ld bits", (long)prec);
    return 1;
}

/* One token, with as many bits as its row needs. */
static slm_status prove(slm_ref_draft *draft, slm_ref_row *row, void *work,
                        size_t token, slm_error *error)
{
    slm_status status;
    slong prec = SLM_REF_FIRST;

    for (;; prec *= 2) {
        draft->unproved_field = NULL;
        status = row(work, token, prec, draft, error);
        if (is_final(draft, prec, &status, error)) return status;
    }
}

static void commit(const slm_ref_draft *draft)
{
    for (size_t i = 0; i < draft->n_outputs; i++) {
        const slm_ref_output *output = &draft->outputs[i];
        const size_t count = output->filled ? slm_tensor_count(output->tensor) : 0;

        for (size_t j = 0; j < count; j++)
            slm_ref_set(output->tensor, j, output->value[j]);
    }
}

slm_status slm_ref_each_token(slm_ref_draft *draft, slm_ref_row *row, void *work,
                              slm_error *error)
{
    for (size_t t = 0; t < draft->call->n_tokens; t++) {
        slm_status status = prove(draft, row, work, t, error);
        if (status != SLM_OK) return status;
        slm_ref_progress(draft, t, draft->steps);
    }
    commit(draft);
    return SLM_OK;
}

slm_status slm_ref_whole(slm_ref_draft *draft, slm_ref_pass *pass, void *work,
                         slm_error *error)
{
    slm_status status;
    slong prec = SLM_REF_FIRST;

    draft->units = draft->call->n_tokens + 1;
    for (;; prec *= 2) {
        draft->unproved_field = NULL;
        status = pass(work, prec, draft, error);
        if (is_final(draft, prec, &status, error)) break;
    }
    if (status != SLM_OK) return status;
    for (size_t i = 0; i < draft->n_outputs; i++) draft->outputs[i].filled = 1;
    commit(draft);
    slm_ref_progress(draft, draft->call->n_tokens, draft->steps);
    return SLM_OK;
}
