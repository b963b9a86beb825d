/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/made.c - cases made in memory, and what answers them. */
#include "made.h"

#include <stdlib.h>
#include <string.h>

#include <ref.h>

void made_begin(made_case *made, slm_op op, const char *profile)
{
    memset(made, 0, sizeof *made);
    if (!slm_config_profile(profile, &made->test.config)) abort();
    made->test.profile = profile;
    made->test.id = made->id;
    made->test.op = op;
    made->test.in = made->in;
    made->test.n_outcomes = 1;
    made->test.outcomes = &made->outcome;
}

void made_free(made_case *made)
{
    arena_free(&made->memory);
}

static const slm_field *find_field(slm_op op, const char *name)
{
    const slm_op_info *info = slm_op_describe(op);
    size_t n = 0;
    const slm_field *weights = slm_weight_fields(&n);

    for (size_t i = 0; i < info->n_fields; i++)
        if (strcmp(info->fields[i].name, name) == 0) return &info->fields[i];
    for (size_t i = 0; i < n; i++)
        if (strcmp(weights[i].name, name) == 0) return &weights[i];
    abort();
}

bool made_uses(const made_case *made, const char *field)
{
    return slm_field_applies(find_field(made->test.op, field), &made->test.config);
}

static vec_tensor *add(made_case *made, const char *field, vec_form form)
{
    vec_tensor *tensor = &made->in[made->test.n_in++];

    if (made->test.n_in > MADE_TENSORS) abort();
    *tensor = (vec_tensor){
        .field = find_field(made->test.op, field), .form = form, .count = 1};
    tensor->rank = (uint32_t)strlen(tensor->field->dims);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (!slm_dim(&made->test.config, &made->test.call, tensor->field->dims[i],
                     &tensor->shape[i]))
            abort();
        tensor->count *= tensor->shape[i];
    }
    tensor->dtype = slm_field_dtype(tensor->field, &made->test.config);
    if (tensor->dtype == SLM_BF16) tensor->dtype = SLM_F32;
    return tensor;
}

void made_recipe(made_case *made, const char *field, const vec_recipe *recipe)
{
    add(made, field, VEC_GEN)->recipe = *recipe;
}

void *made_values(made_case *made, const char *field)
{
    vec_tensor *tensor = add(made, field, VEC_DATA);

    tensor->values =
        arena_new(&made->memory, tensor->count, slm_dtype_size(tensor->dtype));
    if (!tensor->values) abort();
    return tensor->values;
}

void made_drop_taps(call_frame *frame)
{
    for (size_t i = 0; i < frame->info->n_fields; i++)
        if (frame->info->fields[i].role == SLM_ROLE_TAP)
            frame_tensor(frame, frame->info->fields[i].name)->rank = 0;
}

int made_call(slm_testee *testee, const vec_case *test, bool taps, call_frame *frame,
              testee_reply *reply)
{
    if (!testee_frame(testee, test, NULL, frame, reply->why)) return 0;
    if (!taps) made_drop_taps(frame);
    testee_run(testee, frame, reply);
    return 1;
}

int made_ref(const vec_case *test, call_frame *frame, slm_status *status,
             slm_error *error)
{
    const slm_backend *ref = slm_ref_backend();
    slm_handle *handle = NULL;
    char why[256];

    if (!frame_build(frame, test, true, 0, -1, why)) return 0;
    *status = ref->open(&test->config, &handle, error);
    if (!*status && slm_op_describe(test->op)->prepared)
        *status = ref->prepare(handle, &frame->weights, error);
    if (!*status) {
        switch (test->op) {
#define CALL(name, level, purpose)                                                     \
    case SLM_OP_##name:                                                                \
        *status = ref->ops->name(handle, frame->args, error);                          \
        break;
            SLM_OPS(CALL)
#undef CALL
        case SLM_OP_COUNT:
            break;
        }
    }
    ref->close(handle);
    return 1;
}
