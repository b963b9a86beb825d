/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/golden.c - golden values of a case, from ref; and their comparison. */
#include "golden.h"

#include <ref.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The contract knows no binary64 outputs: show it the same call with the dtypes that a
 * backend would see. */
static slm_status check_at_the_door(const call_frame *frame, slm_error *error)
{
    const slm_op_info *info = frame->info;
    char *args = malloc(info->args_size);
    slm_status status = SLM_OK;

    if (!args) return slm_fail(error, SLM_ERR_MEMORY, info->name, "args", 0, "memory");
    memcpy(args, frame->args, info->args_size);
    for (size_t i = 0; i < info->n_fields; i++) {
        slm_tensor *tensor = (slm_tensor *)(args + info->fields[i].offset);

        if (tensor->rank)
            tensor->dtype = slm_field_dtype(&info->fields[i], &frame->config);
    }
    if (info->prepared)
        status = slm_check_weights(&frame->config, &frame->weights, error);
    if (status == SLM_OK) status = slm_check(info->op, &frame->config, args, error);
    free(args);
    return status;
}

static slm_status call_ref(const call_frame *frame, slm_error *error)
{
    const slm_backend *ref = slm_ref_backend();
    slm_handle *handle = NULL;
    slm_status status = ref->open(&frame->config, &handle, error);

    if (status == SLM_OK && frame->info->prepared)
        status = ref->prepare(handle, &frame->weights, error);
    if (status != SLM_OK) {
        ref->close(handle);
        return status;
    }
    switch (frame->info->op) {
#define CASE(name, level, purpose)                                                     \
    case SLM_OP_##name:                                                                \
        status = ref->ops->name(handle, frame->args, error);                           \
        break;
        SLM_OPS(CASE)
#undef CASE
    default:
        status = SLM_ERR_INTERNAL;
        break;
    }
    ref->close(handle);
    return status;
}

int golden_run(const vec_case *test, call_frame *frame,
               void (*progress)(void *, size_t, size_t), void *user, slm_status *status,
               slm_error *error, char *why)
{
    memset(error, 0, sizeof *error);
    if (!frame_build(frame, test, true, 0, -1, why)) return 0;
    frame->call->progress = progress;
    frame->call->progress_user = user;
    *status = check_at_the_door(frame, error);
    if (*status == SLM_OK) *status = call_ref(frame, error);
    return 1;
}

void golden_place(uint32_t rank, const size_t *shape, size_t index, char *out,
                  size_t size)
{
    size_t at[SLM_MAX_RANK] = {0};
    size_t used = 0;

    for (uint32_t i = rank; i-- > 0;) {
        at[i] = shape[i] ? index % shape[i] : 0;
        index = shape[i] ? index / shape[i] : 0;
    }
    for (uint32_t i = 0; i < rank && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%zu", i ? "," : "[", at[i]);
    if (used < size) snprintf(out + used, size - used, "]");
}

static bool same_double(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static bool same_element(slm_dtype dtype, const void *a, const void *b, size_t i)
{
    switch (dtype) {
    case SLM_F64:
        return same_double(((const double *)a)[i], ((const double *)b)[i]);
    case SLM_F32:
        return same_double((double)((const float *)a)[i],
                           (double)((const float *)b)[i]);
    case SLM_I32:
        return ((const int32_t *)a)[i] == ((const int32_t *)b)[i];
    case SLM_I64:
        return ((const int64_t *)a)[i] == ((const int64_t *)b)[i];
    default:
        return false;
    }
}

static void print_element(slm_dtype dtype, const void *data, size_t i, char *out,
                          size_t size)
{
    switch (dtype) {
    case SLM_F64:
        snprintf(out, size, "%a", ((const double *)data)[i]);
        break;
    case SLM_F32:
        snprintf(out, size, "%a", (double)((const float *)data)[i]);
        break;
    case SLM_I32:
        snprintf(out, size, "%" PRId32, ((const int32_t *)data)[i]);
        break;
    default:
        snprintf(out, size, "%" PRId64, ((const int64_t *)data)[i]);
        break;
    }
}

static bool values_agree(const vec_tensor *expected, const slm_tensor *got,
                         char *difference)
{
    for (size_t i = 0; i < expected->count; i++) {
        char place[64], file[48], ref[48];

        if (expected->any && expected->any[i]) continue;
        if (same_element(expected->dtype, expected->values, got->data, i)) continue;
        golden_place(expected->rank, expected->shape, i, place, sizeof place);
        print_element(expected->dtype, expected->values, i, file, sizeof file);
        print_element(expected->dtype, got->data, i, ref, sizeof ref);
        snprintf(difference, GOLDEN_TEXT, "out.%s%s: file %s, ref %s",
                 expected->field->name, place, file, ref);
        return false;
    }
    return true;
}

bool golden_agrees(const vec_tensor *expected, const call_frame *frame,
                   char *difference)
{
    const char *name = expected->field->name;
    const slm_tensor *got = frame_tensor(frame, name);
    char digest[65];

    if (!got || got->rank == 0) {
        snprintf(difference, GOLDEN_TEXT, "out.%s: ref has no such output here", name);
        return false;
    }
    if (expected->form == VEC_PENDING) {
        snprintf(difference, GOLDEN_TEXT, "out.%s: pending; `slmoe gen` writes it",
                 name);
        return false;
    }
    if (expected->form != VEC_DIGEST) return values_agree(expected, got, difference);
    vec_sha256(got->data, slm_tensor_count(got) * slm_dtype_size(got->dtype), digest);
    if (strcmp(digest, expected->sha256) == 0) return true;
    snprintf(difference, GOLDEN_TEXT, "out.%s: file sha256 %.16s..., ref %.16s...",
             name, expected->sha256, digest);
    return false;
}

bool golden_outcome_agrees(const vec_outcome *outcome, const call_frame *frame,
                           slm_status status, const slm_error *error, char *difference)
{
    if (outcome->status != status) {
        snprintf(difference, GOLDEN_TEXT, "status: file %s, ref %s%s%s%s%s",
                 slm_status_name(outcome->status), slm_status_name(status),
                 status == SLM_OK ? "" : " for ", error->field,
                 status == SLM_OK ? "" : ", expected ", error->expected);
        return false;
    }
    if (status != SLM_OK && outcome->field[0] && strcmp(outcome->field, error->field)) {
        snprintf(difference, GOLDEN_TEXT, "field: file %s, ref %s", outcome->field,
                 error->field);
        return false;
    }
    if (status != SLM_OK && outcome->has_index && outcome->index != error->index) {
        snprintf(difference, GOLDEN_TEXT, "index: file %zu, ref %zu", outcome->index,
                 error->index);
        return false;
    }
    for (size_t i = 0; i < outcome->n_out; i++)
        if (!golden_agrees(&outcome->out[i], frame, difference)) return false;
    return true;
}
