/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/case.c - cases made in memory, for tests of the judge. */
#include "case.h"

#include <stdlib.h>
#include <string.h>

void case_begin(made_case *made, slm_op op, const char *profile)
{
    static char id[] = "made/by-hand";

    memset(made, 0, sizeof *made);
    slm_config_profile(profile, &made->test.config);
    made->test.id = id;
    made->test.op = op;
    made->test.in = made->in;
    made->test.n_outcomes = 1;
    made->test.outcomes = &made->outcome;
    made->outcome.out = made->out;
}

static const slm_field *find_field(slm_op op, const char *name)
{
    const slm_op_info *info = slm_op_describe(op);
    size_t n;
    const slm_field *weights = slm_weight_fields(&n);

    for (size_t i = 0; i < info->n_fields; i++)
        if (strcmp(info->fields[i].name, name) == 0) return &info->fields[i];
    for (size_t i = 0; i < n; i++)
        if (strcmp(weights[i].name, name) == 0) return &weights[i];
    abort();
}

static vec_tensor tensor_of(const made_case *made, const char *name, void *values,
                            int golden)
{
    vec_tensor tensor = {.field = find_field(made->test.op, name),
                         .form = VEC_DATA,
                         .count = 1,
                         .values = values};

    tensor.rank = (uint32_t)strlen(tensor.field->dims);
    for (uint32_t i = 0; i < tensor.rank; i++) {
        slm_dim(&made->test.config, &made->test.call, tensor.field->dims[i],
                &tensor.shape[i]);
        tensor.count *= tensor.shape[i];
    }
    tensor.dtype = golden ? slm_field_golden_dtype(tensor.field)
                          : slm_field_dtype(tensor.field, &made->test.config);
    if (tensor.dtype == SLM_BF16) tensor.dtype = SLM_F32;
    return tensor;
}

void case_in(made_case *made, const char *field, void *values)
{
    made->in[made->test.n_in++] = tensor_of(made, field, values, 0);
}

void case_out(made_case *made, const char *field, void *values)
{
    made->out[made->outcome.n_out++] = tensor_of(made, field, values, 1);
}

void case_build(made_case *made)
{
    char why[256];

    made->test.in = made->in;
    made->test.outcomes = &made->outcome;
    made->outcome.out = made->out;
    if (!frame_build(&made->frame, &made->test, false, 0, -1, why)) abort();
}

void case_free(made_case *made)
{
    frame_free(&made->frame);
}

float *case_f32(made_case *made, const char *field)
{
    return frame_tensor(&made->frame, field)->data;
}

int32_t *case_i32(made_case *made, const char *field)
{
    return frame_tensor(&made->frame, field)->data;
}

int64_t *case_i64(made_case *made, const char *field)
{
    return frame_tensor(&made->frame, field)->data;
}

double *case_f64(made_case *made, const char *field)
{
    return frame_tensor(&made->frame, field)->data;
}

static judge_state judge(made_case *made, slm_status status, const char *field,
                         const slm_arithmetic *arithmetic, bool exact)
{
    slm_error error = {.status = status};

    snprintf(error.field, sizeof error.field, "%s", field);
    judge_case(&made->test, &made->frame, status, &error, arithmetic, exact,
               &made->verdict);
    return made->verdict.state;
}

judge_state case_judge(made_case *made)
{
    return judge(made, SLM_OK, "", NULL, false);
}

judge_state case_judge_status(made_case *made, slm_status status, const char *field)
{
    return judge(made, status, field, NULL, false);
}

judge_state case_judge_exactly(made_case *made)
{
    return judge(made, SLM_OK, "", NULL, true);
}

judge_state case_judge_under(made_case *made, const slm_arithmetic *arithmetic)
{
    return judge(made, SLM_OK, "", arithmetic, false);
}
