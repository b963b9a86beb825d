/* SPDX-License-Identifier: Apache-2.0 */
/* spec/contract.c - the checks at the door; SHAPE in full.                      X1, R5
 *
 * Everything follows from the description of the fields in ops.c. What a value may be
 * stands in domain.c, who may overlap whom in alias.c. */
#include "contract.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if SIZE_MAX < UINT64_MAX
#error "slm: sizes need 64 bits"
#endif

enum { WORKSPACE_ALIGNMENT = 64 };

/* A message that grows; what does not fit is cut off. */
typedef struct message {
    char text[SLM_EXPECTED];
    size_t used;
} message;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
say(message *to, const char *format, ...)
{
    va_list list;
    int length;

    va_start(list, format);
    length = vsnprintf(to->text + to->used, sizeof to->text - to->used, format, list);
    va_end(list);
    if (length > 0) to->used += (size_t)length;
    if (to->used >= sizeof to->text) to->used = sizeof to->text - 1;
}

const slm_tensor *slm_door_tensor(const door *at, const slm_field *field)
{
    return (const slm_tensor *)(const void *)((const char *)at->args + field->offset);
}

int slm_door_applies(const door *at, const slm_field *field)
{
    const unsigned every = (1u << SLM_EXPERT_KINDS) - 1;
    slm_config config = *at->config;

    if ((unsigned)config.expert >= SLM_EXPERT_KINDS) {
        if (field->experts != every) return -1;
        config.expert = SLM_EXPERT_SITU;
    }
    return slm_field_applies(field, &config);
}

/* Optional fields; without shared experts, their weights too. */
static int may_be_absent(const door *at, const slm_field *field)
{
    if (field->role == SLM_ROLE_OPTIONAL || field->role == SLM_ROLE_TAP) return 1;
    return at->config->n_shared == 0 && strpbrk(field->dims, "sSt") != NULL;
}

const char *slm_door_parts(char letter)
{
    static const char single[][2] = {"T", "R", "d", "l", "n", "k", "f", "S", "B"};

    switch (letter) {
    case 'N':
        return "n";
    case 'g':
        return "f";
    case 's':
    case 't':
        return "SF";
    case 'q':
        return "Tk";
    default:
        break;
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (single[i][0] == letter) return single[i];
    return "";
}

static void say_size(message *to, const door *at, char part)
{
    static const struct {
        char letter;
        const char *name;
        size_t offset; /* in slm_config */
    } sizes[] = {{'d', "d_model", offsetof(slm_config, d_model)},
                 {'l', "d_latent", offsetof(slm_config, d_latent)},
                 {'n', "n_experts", offsetof(slm_config, n_experts)},
                 {'k', "top_k", offsetof(slm_config, top_k)},
                 {'f', "d_expert", offsetof(slm_config, d_expert)},
                 {'S', "n_shared", offsetof(slm_config, n_shared)},
                 {'F', "d_shared", offsetof(slm_config, d_shared)},
                 {'B', "n_bins", offsetof(slm_config, n_bins)}};
    size_t size;

    if (part == 'T') say(to, "n_tokens %zu", at->call->n_tokens);
    if (part == 'R') say(to, "n_parts %zu", at->call->n_parts);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].letter != part) continue;
        memcpy(&size, (const char *)at->config + sizes[i].offset, sizeof size);
        say(to, "%s %zu", sizes[i].name, size);
    }
}

/* "n_tokens 5, n_experts 4": each size that the dimensions are made of, once. */
static void say_sizes(message *to, const door *at, const char *dims)
{
    char said[16] = "";
    size_t n = 0;

    for (; *dims; dims++) {
        for (const char *part = slm_door_parts(*dims); *part; part++) {
            if (strchr(said, *part)) continue;
            if (n) say(to, ", ");
            say_size(to, at, *part);
            said[n++] = *part;
        }
    }
}

static void say_shape(message *to, const size_t *shape, size_t rank)
{
    for (size_t i = 0; i < rank; i++) say(to, "%s%zu", i ? ", " : "[", shape[i]);
    say(to, "]");
}

static slm_status bad_shape(const door *at, const slm_field *field,
                            const char *expected)
{
    return slm_fail(at->error, SLM_ERR_SHAPE, at->name, field->name, 0, "%s", expected);
}

/* Rank and shape against the dimension letters. */
static slm_status check_dims(const door *at, const slm_field *field,
                             const slm_tensor *tensor)
{
    const size_t rank = strlen(field->dims);
    size_t shape[SLM_MAX_RANK];
    int same = tensor->rank == rank;
    message text = {.used = 0};

    for (size_t i = 0; i < rank; i++) {
        if (!slm_dim(at->config, at->call, field->dims[i], &shape[i])) {
            say(&text, "a size that fits in 64 bits for ");
            say_sizes(&text, at, field->dims);
            return bad_shape(at, field, text.text);
        }
        same = same && tensor->shape[i] == shape[i];
    }
    if (same) return SLM_OK;
    say_shape(&text, shape, rank);
    if (*slm_door_parts(field->dims[0])) say(&text, " for ");
    say_sizes(&text, at, field->dims);
    if (tensor->rank == 0) {
        say(&text, "; got none");
    } else if (tensor->rank > SLM_MAX_RANK) {
        say(&text, "; got rank %u", (unsigned)tensor->rank);
    } else {
        say(&text, "; got ");
        say_shape(&text, tensor->shape, tensor->rank);
    }
    return bad_shape(at, field, text.text);
}

int slm_door_extent(const slm_tensor *tensor, extent *out)
{
    const ptrdiff_t size = (ptrdiff_t)slm_dtype_size(tensor->dtype);
    ptrdiff_t bytes = size;
    ptrdiff_t below = 0;
    ptrdiff_t above = size;

    *out = (extent){(uintptr_t)tensor->data, (uintptr_t)tensor->data};
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0) return 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        ptrdiff_t reach;

        if (__builtin_mul_overflow(tensor->shape[i], bytes, &bytes) ||
            __builtin_mul_overflow(tensor->shape[i] - 1, tensor->stride[i], &reach) ||
            __builtin_mul_overflow(reach, size, &reach) ||
            __builtin_add_overflow(reach < 0 ? below : above, reach,
                                   reach < 0 ? &below : &above))
            return 0;
    }
    return !__builtin_add_overflow(out->low, below, &out->low) &&
           !__builtin_add_overflow(out->high, above, &out->high);
}

/* Type, space, extent and address of a tensor whose shape is right. */
static slm_status check_storage(const door *at, const slm_field *field,
                                const slm_tensor *tensor)
{
    const slm_dtype dtype = slm_field_dtype(field, at->config);
    message text = {.used = 0};
    extent bytes;

    if (tensor->dtype != dtype) {
        say(&text, "elements of type %s; got %s", slm_dtype_name(dtype),
            slm_dtype_name(tensor->dtype));
    } else if (tensor->space != SLM_HOST && tensor->space != SLM_DEVICE) {
        say(&text, "space SLM_HOST or SLM_DEVICE; got %d", (int)tensor->space);
    } else if (!slm_door_extent(tensor, &bytes)) {
        say(&text, "bytes that fit in the address space for ");
        say_sizes(&text, at, field->dims);
    } else if (bytes.low != bytes.high && !tensor->data) {
        say(&text, "data; got NULL");
    } else if (bytes.low != bytes.high && bytes.low % slm_dtype_size(dtype)) {
        say(&text, "data aligned to %zu bytes", slm_dtype_size(dtype));
    } else {
        return SLM_OK;
    }
    return bad_shape(at, field, text.text);
}

static slm_status check_field(const door *at, const slm_field *field)
{
    const slm_tensor *tensor = slm_door_tensor(at, field);
    const int applies = slm_door_applies(at, field);
    slm_status status;

    if (applies < 0) return SLM_OK;
    if (!applies) {
        if (tensor->rank == 0) return SLM_OK;
        return bad_shape(at, field, "absent under this kind of expert or norm");
    }
    if (tensor->rank == 0 && may_be_absent(at, field)) return SLM_OK;
    status = check_dims(at, field, tensor);
    return status ? status : check_storage(at, field, tensor);
}

/* `select` takes its scores from exactly one of score and logit. */
static slm_status check_one_source(const door *at)
{
    const slm_select_args *args = at->args;

    if (at->op != SLM_OP_select || !args->score.rank != !args->logit.rank)
        return SLM_OK;
    return slm_fail(at->error, SLM_ERR_SHAPE, at->name, "score", 0,
                    "exactly one of score and logit; got %s",
                    args->score.rank ? "both" : "neither");
}

static slm_status check_workspace(const door *at)
{
    const uintptr_t start = (uintptr_t)at->call->workspace;
    uintptr_t end;
    const char *expected = NULL;

    if (at->call->workspace_size == 0) return SLM_OK;
    if (!start)
        expected = "memory of workspace_size bytes; got NULL";
    else if (start % WORKSPACE_ALIGNMENT)
        expected = "memory aligned to 64 bytes";
    else if (__builtin_add_overflow(start, at->call->workspace_size, &end))
        expected = "bytes that fit in the address space";
    else
        return SLM_OK;
    return slm_fail(at->error, SLM_ERR_SHAPE, at->name, "workspace", 0, "%s", expected);
}

static slm_status check_shapes(const door *at)
{
    slm_status status = SLM_OK;

    for (size_t i = 0; i < at->n_fields && !status; i++)
        status = check_field(at, &at->fields[i]);
    if (!status) status = check_one_source(at);
    if (!status) status = check_workspace(at);
    return status;
}

static size_t end_of(const slm_field *field)
{
    return field->offset + sizeof(slm_tensor);
}

size_t slm_door_fields(const slm_op_info *info, const slm_call *call)
{
    size_t n = info->n_fields;

    while (info->fields[n - 1].since &&
           call->struct_size < end_of(&info->fields[n - 1]))
        n--;
    return n;
}

/* Size of the argument struct in the version that brought the operation. */
static size_t first_size(const slm_op_info *info)
{
    size_t n = info->n_fields;

    while (info->fields[n - 1].since) n--;
    return end_of(&info->fields[n - 1]);
}

/* struct_size of the arguments and of the configuration: a caller built against older
 * headers has not filled what is looked at here. */
static slm_status check_struct_size(const door *at, size_t args_size, size_t expected)
{
    if (args_size < expected)
        return slm_fail(at->error, SLM_ERR_SHAPE, at->name, "struct_size", 0,
                        "at least %zu for the arguments; got %zu", expected, args_size);
    if (at->config->struct_size < sizeof *at->config)
        return slm_fail(at->error, SLM_ERR_SHAPE, at->name, "struct_size", 0,
                        "at least %zu for the configuration; got %zu",
                        sizeof *at->config, at->config->struct_size);
    return SLM_OK;
}

slm_status slm_check(slm_op op, const slm_config *config, const void *args,
                     slm_error *error)
{
    const slm_op_info *info = slm_op_describe(op);
    slm_status status;
    door at;

    if (!info || !config || !args)
        return slm_fail(error, SLM_ERR_SHAPE, info ? info->name : "", "", 0,
                        "an operation, a configuration and arguments");
    at = (door){op,     info->name, info->fields, slm_door_fields(info, args),
                config, args,       args,         error};
    status = check_struct_size(&at, at.call->struct_size, first_size(info));
    if (!status) status = check_shapes(&at);
    if (!status) status = slm_door_alias(&at);
    if (!status) status = slm_door_domain(&at);
    return status;
}

slm_status slm_check_weights(const slm_config *config, const slm_weights *weights,
                             slm_error *error)
{
    const slm_call none = {.struct_size = sizeof none};
    slm_status status;
    door at = {.op = SLM_OP_COUNT,
               .name = "prepare",
               .config = config,
               .call = &none,
               .args = weights,
               .error = error};

    if (!config || !weights)
        return slm_fail(error, SLM_ERR_SHAPE, at.name, "", 0,
                        "a configuration and weights");
    at.fields = slm_weight_fields(&at.n_fields);
    status = check_struct_size(&at, weights->struct_size, sizeof *weights);
    if (!status) status = check_shapes(&at);
    if (!status) status = slm_door_domain(&at);
    return status;
}
