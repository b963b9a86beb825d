/* SPDX-License-Identifier: Apache-2.0 */
/* spec/finite.c - which inputs must be finite: NONFINITE.                           X1 */
#include "contract.h"

#include <math.h>
#include <string.h>

static int not_finite(const void *value)
{
    return !isfinite(*(const float *)value);
}

/* A bf16 is the upper half of a binary32. */
static int not_finite_bf16(const void *value)
{
    return (*(const uint16_t *)value & 0x7f80) == 0x7f80;
}

static int not_number(const void *value)
{
    return isnan(*(const float *)value);
}

static int not_number_bf16(const void *value)
{
    return (*(const uint16_t *)value & 0x7fff) > 0x7f80;
}

/* What the clause wants of an input's elements: 0 nothing, 1 numbers (infinity is a
 * limit), 2 finite numbers. */
static int wanted_of(const door *at, const slm_field *field)
{
    const int real = field->kind == SLM_KIND_REAL || field->kind == SLM_KIND_F32;
    const int balances = at->op == SLM_OP_qb_exact ||
                         at->op == SLM_OP_qb_hist_accumulate ||
                         at->op == SLM_OP_qb_observe;

    if (slm_door_is_backward(at->op)) {
        if (!real || (field->role != SLM_ROLE_IN && field->role != SLM_ROLE_OPTIONAL))
            return 0;
        return at->op == SLM_OP_situ_glu_backward && strcmp(field->name, "gate_up") == 0
                   ? 1
                   : 2;
    }
    if (strcmp(field->name, "bias") == 0 ||
        (at->op == SLM_OP_qb_commit && strcmp(field->name, "new_bias") == 0))
        return 2;
    return balances && strcmp(field->name, "score") == 0 ? 2 : 0;
}

static slm_status check_finite_field(const door *at, const slm_field *field)
{
    static int (*const refused[2][2])(const void *) = {{not_number, not_number_bf16},
                                                       {not_finite, not_finite_bf16}};
    const slm_tensor *tensor = slm_door_tensor(at, field);
    const int wanted = wanted_of(at, field);
    const int half = tensor->dtype == SLM_BF16;
    size_t index;
    const void *bad;

    if (!wanted) return SLM_OK;
    bad = slm_door_first(tensor, field->dims[0] == 'T' ? slm_door_mask(at) : NULL,
                         refused[wanted - 1][half], &index);
    if (!bad) return SLM_OK;
    if (half)
        return slm_fail(at->error, SLM_ERR_NONFINITE, at->name, field->name, index,
                        "%s; got the bf16 0x%04x", wanted == 1 ? "no NaN" : "finite",
                        (unsigned)*(const uint16_t *)bad);
    return slm_fail(at->error, SLM_ERR_NONFINITE, at->name, field->name, index,
                    "%s; got %g", wanted == 1 ? "no NaN" : "finite",
                    (double)*(const float *)bad);
}

slm_status slm_check_finite(slm_op op, const slm_config *config, const void *args,
                            slm_error *error)
{
    const slm_op_info *info = slm_op_describe(op);
    slm_status status = SLM_OK;
    door at;

    if (!info || !config || !args)
        return slm_fail(error, SLM_ERR_SHAPE, info ? info->name : "", "", 0,
                        "an operation, a configuration and arguments");
    at = (door){op,     info->name, info->fields, slm_door_fields(info, args),
                config, args,       args,         error};
    if (op == SLM_OP_qb_observe) {
        const slm_tensor *ticket = &((const slm_qb_observe_args *)args)->ticket;

        if (!slm_door_visible(ticket) ||
            slm_door_integer(ticket, SLM_TICKET_MODE) != SLM_MODE_TRAINING)
            return SLM_OK;
    }
    for (size_t i = 0; i < at.n_fields && !status; i++)
        status = check_finite_field(&at, &at.fields[i]);
    return status;
}
