/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_refusal.c - the way into a call.                    X1, X2 */
#include "scalar.h"

#include <math.h>
#include <string.h>

/* The tensor of that field, or NULL. */
static const slm_tensor *tensor_of(slm_op op, const void *args, const char *name)
{
    const slm_op_info *info = slm_op_describe(op);

    for (size_t i = 0; i < info->n_fields; i++)
        if (strcmp(info->fields[i].name, name) == 0)
            return (const slm_tensor *)(const void *)((const char *)args +
                                                      info->fields[i].offset);
    return NULL;
}

/* Position of the first binary32 element above a limit, or the count. */
static size_t first_above(const slm_tensor *tensor, float limit)
{
    const size_t count = slm_tensor_count(tensor);
    size_t i = 0;

    while (i < count && fabsf(*(const float *)scalar_element(tensor, i)) <= limit) i++;
    return i;
}

/* Off by one: a row may sum to 2^63 - 1 with the tokens of this call. */
static slm_status refuse_last_count(const slm_qb_hist_accumulate_args *args,
                                    slm_error *error)
{
    const size_t count = slm_tensor_count(&args->hist), bins = args->hist.shape[1];
    uint64_t sum = 0; /* of tokens that a mask leaves out, too */

    for (size_t i = 0; i < count; i++) {
        const int64_t *value = scalar_element(&args->hist, i);

        if (i % bins == 0) sum = args->call.n_tokens;
        sum += (uint64_t)*value;
        if (sum == INT64_MAX)
            return slm_fail(error, SLM_ERR_DOMAIN, "qb_hist_accumulate", "hist",
                            i - i % bins, "a row sum below 2^63 - 1");
    }
    return SLM_OK;
}

/* Refusals that only mutants have, of calls that are lawful. */
static slm_status refuse(const slm_handle *handle, slm_op op, const void *args,
                         slm_error *error)
{
    const slm_call *call = args;
    const slm_tensor *bias = tensor_of(op, args, "bias");
    const slm_tensor *score = tensor_of(op, args, "score");
    const int given = op != SLM_OP_route && op != SLM_OP_layer_forward;
    const int has_tokens =
        op != SLM_OP_qb_hist_merge && op != SLM_OP_sign_step && op != SLM_OP_qb_commit;
    const char *name = slm_op_describe(op)->name;

    if (wrong(handle, MUTANT_empty_batch_fails) && call->n_tokens == 0 && has_tokens)
        return slm_fail(error, SLM_ERR_DOMAIN, name, "n_tokens", 0, "1 or more");
    if (op == SLM_OP_qb_hist_accumulate && wrong(handle, MUTANT_last_count_refused))
        return refuse_last_count(args, error);
    if (!wrong(handle, MUTANT_refuses_the_lawful)) return SLM_OK;
    if (given && score && score->rank &&
        first_above(score, 0x1.fffffep-1f) < slm_tensor_count(score))
        return slm_fail(error, SLM_ERR_DOMAIN, name, "score", 0, "below 1");
    if (bias && first_above(bias, 0x1p64f) < slm_tensor_count(bias))
        return slm_fail(error, SLM_ERR_NONFINITE, name, "bias", 0, "finite");
    return SLM_OK;
}

/* The first element of every output that can be written at all becomes 0; `aliased` is
 * the output that lies in another argument, or "". */
static void write_outputs(const slm_config *config, slm_op op, const void *args,
                          const char *aliased)
{
    const slm_op_info *info = slm_op_describe(op);

    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];
        const slm_tensor *tensor = tensor_of(op, args, field->name);
        const size_t size = slm_dtype_size(slm_field_dtype(field, config));

        if (field->role != SLM_ROLE_OUT || tensor->rank == 0) continue;
        if (strcmp(field->name, aliased) == 0) continue;
        if (tensor->rank > SLM_MAX_RANK || slm_dtype_size(tensor->dtype) != size)
            continue;
        if (tensor->data && tensor->space == SLM_HOST && slm_tensor_count(tensor))
            memset(tensor->data, 0, size);
    }
}

/* Whether ALIAS names an output that begins where an input of its shape does. */
static int is_in_place(const slm_error *error, slm_op op, const void *args,
                       const slm_tensor *output)
{
    const slm_op_info *info = slm_op_describe(op);

    if (error->status != SLM_ERR_ALIAS || !output) return 0;
    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_tensor *input = tensor_of(op, args, info->fields[i].name);

        if (info->fields[i].role <= SLM_ROLE_OPTIONAL && input->data == output->data &&
            input->rank == output->rank &&
            memcmp(input->shape, output->shape, sizeof input->shape) == 0)
            return 1;
    }
    return 0;
}

/* Whether the tensor that SHAPE names has as many elements as it should. */
static int has_right_count(const slm_handle *handle, slm_op op, const void *args,
                           const char *name)
{
    const slm_op_info *info = slm_op_describe(op);
    const slm_tensor *tensor = tensor_of(op, args, name);
    size_t count = 1;

    for (size_t i = 0; i < info->n_fields; i++)
        if (strcmp(info->fields[i].name, name) == 0)
            for (const char *letter = info->fields[i].dims; *letter; letter++) {
                size_t size = 0;

                slm_dim(&handle->config, args, *letter, &size);
                count *= size;
            }
    return tensor && tensor->rank <= SLM_MAX_RANK && tensor->rank > 0 &&
           slm_tensor_count(tensor) == count;
}

static int overlooks_ticket(const slm_error *error, size_t index)
{
    return error->status == SLM_ERR_DOMAIN && strcmp(error->field, "ticket") == 0 &&
           error->index == index;
}

/* Whether NONFINITE names an infinity, not a NaN. */
static int is_infinite(const slm_error *error, const slm_tensor *tensor)
{
    slm_tensor one = {.rank = 1, .shape = {1}};
    float value;

    if (error->status != SLM_ERR_NONFINITE) return 0;
    one.dtype = tensor->dtype;
    one.data = scalar_element(tensor, error->index);
    scalar_load(&value, &one);
    return isinf(value);
}

/* Neither a gradient nor a mask, nor a step. */
static int is_plain(slm_op op, const void *args)
{
    const slm_tensor *mask = tensor_of(op, args, "mask");

    return op < SLM_OP_situ_glu_backward && (!mask || mask->rank == 0);
}

/* Whether a mutant does not see why the call is to be refused. */
static int overlooks(const slm_handle *handle, slm_op op, const void *args,
                     const slm_error *error)
{
    const slm_tensor *tensor = tensor_of(op, args, error->field);
    const int older = op < SLM_OP_situ_glu_backward;
    const int plain = is_plain(op, args);
    const int gradient = op >= SLM_OP_situ_glu_backward && op <= SLM_OP_layer_backward;

    switch (handle->mutant) {
    case MUTANT_k_zero_accepted:
        return older && error->status == SLM_ERR_DOMAIN && handle->config.top_k == 0 &&
               strcmp(error->field, "top_k") == 0;
    case MUTANT_ids_unchecked:
        return plain && error->status == SLM_ERR_DOMAIN &&
               strcmp(error->field, "ids") == 0;
    case MUTANT_infinity_accepted:
        return older && is_infinite(error, tensor);
    case MUTANT_gradient_infinity_accepted:
        return gradient && is_infinite(error, tensor);
    case MUTANT_nonfinite_past_a_block:
        return error->status == SLM_ERR_NONFINITE && error->index >= 64;
    case MUTANT_mask_unchecked:
        return older && error->status == SLM_ERR_DOMAIN &&
               strcmp(error->field, "mask") == 0;
    case MUTANT_stale_bias_accepted:
        return overlooks_ticket(error, SLM_TICKET_VERSION);
    case MUTANT_checksum_not_compared:
        return overlooks_ticket(error, SLM_TICKET_CHECKSUM);
    case MUTANT_lost_micro_batch_accepted:
        return overlooks_ticket(error, SLM_TICKET_MICRO_BATCH);
    case MUTANT_restored_bias_unchecked:
        return error->status == SLM_ERR_DOMAIN && strcmp(error->field, "stamp") == 0 &&
               error->index == SLM_STAMP_CHECKSUM;
    case MUTANT_in_place_accepted:
        return older && is_in_place(error, op, args, tensor);
    case MUTANT_gradient_in_place_accepted:
        return gradient && is_in_place(error, op, args, tensor);
    case MUTANT_counts_compared_only:
        return error->status == SLM_ERR_SHAPE &&
               has_right_count(handle, op, args, error->field);
    default:
        return 0;
    }
}

/* SHAPE, ALIAS, DOMAIN and NONFINITE, for those that check their own arguments. */
static slm_status own_door(const slm_handle *handle, slm_op op, const void *args,
                           slm_error *error)
{
    const slm_config *config = &handle->config;
    const slm_status status = slm_check(op, config, args, error);

    if (status == SLM_ERR_DOMAIN && wrong(handle, MUTANT_wrong_precedence) &&
        is_plain(op, args) && slm_check_finite(op, config, args, NULL))
        return slm_check_finite(op, config, args, error);
    return status ? status : slm_check_finite(op, config, args, error);
}

slm_status scalar_begin(slm_handle *handle, slm_op op, const void *args,
                        slm_error *error)
{
    const slm_call *call = args;
    slm_status status;

    handle->op = op;
    handle->n_tokens = call->n_tokens;
    handle->n_calls++;
    scalar_shared_begin(handle);
    if (handle->has_bad_weights)
        status = slm_fail(error, SLM_ERR_SHAPE, "prepare", "", 0, "weights");
    else if (is(handle, VARIANT_own_door))
        status = own_door(handle, op, args, error);
    else
        status = slm_check_finite(op, &handle->config, args, error);
    if (!status && call->workspace_size < scalar_workspace(handle, op, call))
        status = slm_fail(error, SLM_ERR_SHAPE, slm_op_describe(op)->name, "workspace",
                          0, "the bytes that workspace() asked for");
    handle->overlooks = status && error && overlooks(handle, op, args, error);
    if (!status) status = refuse(handle, op, args, error);
    if (status && error && wrong(handle, MUTANT_writes_on_refusal))
        write_outputs(&handle->config, op, args,
                      status == SLM_ERR_ALIAS ? error->field : "");
    return status;
}
