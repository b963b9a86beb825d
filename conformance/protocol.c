/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/protocol.c - what is said between slmoe and slmoe-host, as JSON. */
#include "protocol.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The members of a configuration by name: one list for both directions. */
typedef struct member {
    const char *name;
    size_t offset;
    enum { SIZE, ENUM, REAL } kind;
} member;

static const member config_members[] = {
    {"d", offsetof(slm_config, d_model), SIZE},
    {"l", offsetof(slm_config, d_latent), SIZE},
    {"n", offsetof(slm_config, n_experts), SIZE},
    {"k", offsetof(slm_config, top_k), SIZE},
    {"f", offsetof(slm_config, d_expert), SIZE},
    {"S", offsetof(slm_config, n_shared), SIZE},
    {"fs", offsetof(slm_config, d_shared), SIZE},
    {"B", offsetof(slm_config, n_bins), SIZE},
    {"dtype", offsetof(slm_config, dtype), ENUM},
    {"score", offsetof(slm_config, score), ENUM},
    {"weighting", offsetof(slm_config, weighting), ENUM},
    {"expert", offsetof(slm_config, expert), ENUM},
    {"norm", offsetof(slm_config, norm), ENUM},
    {"balance", offsetof(slm_config, balance), ENUM},
    {"tie_test", offsetof(slm_config, tie_test), ENUM},
    {"eps", offsetof(slm_config, eps), REAL},
    {"beta_gate", offsetof(slm_config, beta_gate), REAL},
    {"beta_up", offsetof(slm_config, beta_up), REAL},
    {"rate", offsetof(slm_config, rate), REAL},
};

static const member arithmetic_members[] = {
    {"accumulator", offsetof(slm_arithmetic, accumulator), REAL},
    {"input", offsetof(slm_arithmetic, input), REAL},
    {"sigmoid_ulp", offsetof(slm_arithmetic, sigmoid_ulp), REAL},
    {"tanh_ulp", offsetof(slm_arithmetic, tanh_ulp), REAL},
    {"tanh_abs", offsetof(slm_arithmetic, tanh_abs), REAL},
    {"rsqrt_ulp", offsetof(slm_arithmetic, rsqrt_ulp), REAL},
    {"balance", offsetof(slm_arithmetic, balance), REAL},
    {"store_gradient", offsetof(slm_arithmetic, store_gradient), REAL},
    {"store_weight_gradient", offsetof(slm_arithmetic, store_weight_gradient), REAL},
};

static const char *const stage_names[SLM_STAGE_COUNT] = {
    "logit", "score", "weight", "z", "h", "o", "u", "r", "hs", "y"};

enum {
    N_CONFIG = sizeof config_members / sizeof *config_members,
    N_ARITHMETIC = sizeof arithmetic_members / sizeof *arithmetic_members
};

static json_t *write_real(double value)
{
    if (isfinite(value)) return json_real(value);
    return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

static int read_real(const json_t *value, double *out)
{
    const char *word = json_string_value(value);

    *out = json_number_value(value);
    if (json_is_number(value)) return 1;
    if (!word) return 0;
    if (strcmp(word, "nan") == 0)
        *out = (double)NAN;
    else if (strcmp(word, "inf") == 0)
        *out = (double)INFINITY;
    else if (strcmp(word, "-inf") == 0)
        *out = -(double)INFINITY;
    else
        return 0;
    return 1;
}

static json_t *write_members(const member *members, size_t n, const void *from)
{
    json_t *object = json_object();

    for (size_t i = 0; i < n; i++) {
        const char *at = (const char *)from + members[i].offset;
        json_t *value = NULL;
        size_t size;
        int word;
        double real;

        switch (members[i].kind) {
        case SIZE:
            memcpy(&size, at, sizeof size);
            value = json_integer((json_int_t)size);
            break;
        case ENUM:
            memcpy(&word, at, sizeof word);
            value = json_integer(word);
            break;
        case REAL:
            memcpy(&real, at, sizeof real);
            value = write_real(real);
            break;
        }
        json_object_set_new(object, members[i].name, value);
    }
    return object;
}

static int read_members(const member *members, size_t n, const json_t *object, void *to)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(object, members[i].name);
        char *at = (char *)to + members[i].offset;
        const size_t size = (size_t)json_integer_value(value);
        const int word = (int)json_integer_value(value);
        double real;

        if (!value) continue;
        if (members[i].kind != REAL && !json_is_integer(value)) return 0;
        switch (members[i].kind) {
        case SIZE:
            memcpy(at, &size, sizeof size);
            break;
        case ENUM:
            memcpy(at, &word, sizeof word);
            break;
        case REAL:
            if (!read_real(value, &real)) return 0;
            memcpy(at, &real, sizeof real);
            break;
        }
    }
    return json_is_object(object);
}

json_t *protocol_config(const slm_config *config)
{
    return write_members(config_members, N_CONFIG, config);
}

int protocol_read_config(const json_t *object, slm_config *config)
{
    memset(config, 0, sizeof *config);
    config->struct_size = sizeof *config;
    return read_members(config_members, N_CONFIG, object, config);
}

json_t *protocol_arithmetic(const slm_arithmetic *arithmetic)
{
    json_t *object = write_members(arithmetic_members, N_ARITHMETIC, arithmetic);
    json_t *store = json_object();

    for (int i = 0; i < SLM_STAGE_COUNT; i++)
        if (arithmetic->store[i] != 0)
            json_object_set_new(store, stage_names[i],
                                write_real(arithmetic->store[i]));
    json_object_set_new(object, "store", store);
    json_object_set_new(object, "flushes_subnormals",
                        json_boolean(arithmetic->flushes_subnormals));
    return object;
}

static int is_roundoff(double value)
{
    return isfinite(value) && value >= 0;
}

int protocol_read_arithmetic(const json_t *object, slm_arithmetic *arithmetic)
{
    const json_t *store = json_object_get(object, "store");

    memset(arithmetic, 0, sizeof *arithmetic);
    arithmetic->struct_size = sizeof *arithmetic;
    for (int i = 0; i < SLM_STAGE_COUNT; i++) {
        const json_t *value = json_object_get(store, stage_names[i]);

        if (value && !read_real(value, &arithmetic->store[i])) return 0;
        if (!is_roundoff(arithmetic->store[i])) return 0;
    }
    arithmetic->flushes_subnormals =
        json_is_true(json_object_get(object, "flushes_subnormals"));
    if (!read_members(arithmetic_members, N_ARITHMETIC, object, arithmetic)) return 0;
    for (size_t i = 0; i < N_ARITHMETIC; i++) {
        double value;

        memcpy(&value, (char *)arithmetic + arithmetic_members[i].offset, sizeof value);
        if (!is_roundoff(value)) return 0;
    }
    return 1;
}

json_t *protocol_ops(uint32_t offered)
{
    json_t *array = json_array();

    for (int op = 0; op < SLM_OP_COUNT; op++)
        if (offered & (1u << op))
            json_array_append_new(array,
                                  json_string(slm_op_describe((slm_op)op)->name));
    return array;
}

/* Names that this side does not know belong to a newer minor version. */
int protocol_read_ops(const json_t *array, uint32_t *offered)
{
    size_t i;
    json_t *name;

    *offered = 0;
    if (!json_is_array(array)) return 0;
    json_array_foreach(array, i, name)
    {
        const slm_op op =
            json_is_string(name) ? slm_op_find(json_string_value(name)) : SLM_OP_COUNT;

        if (op < SLM_OP_COUNT) *offered |= 1u << op;
    }
    return 1;
}

slm_status protocol_status(const char *name)
{
    for (int status = 0; name && status < SLM_STATUS_COUNT; status++)
        if (strcmp(slm_status_name((slm_status)status), name) == 0)
            return (slm_status)status;
    return SLM_STATUS_COUNT;
}

static const char *role_name(const frame_buffer *buffer)
{
    switch (buffer->field->role) {
    case SLM_ROLE_INOUT:
        return "inout";
    case SLM_ROLE_OUT:
    case SLM_ROLE_TAP:
        return "out";
    default:
        return "in";
    }
}

static json_t *tensor(const frame_buffer *buffer)
{
    json_t *shape = json_array(), *stride = json_array();

    for (uint32_t i = 0; i < buffer->tensor.rank; i++) {
        json_array_append_new(shape, json_integer((json_int_t)buffer->tensor.shape[i]));
        json_array_append_new(stride,
                              json_integer((json_int_t)buffer->tensor.stride[i]));
    }
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I}", "name",
                     buffer->field->name, "role", role_name(buffer), "dtype",
                     slm_dtype_name(buffer->tensor.dtype), "shape", shape, "stride",
                     stride, "offset", (json_int_t)buffer->offset, "bytes",
                     (json_int_t)buffer->bytes, "span_offset",
                     (json_int_t)buffer->span_offset, "span", (json_int_t)buffer->span);
}

json_t *protocol_frame(const call_frame *frame)
{
    json_t *tensors = json_array(), *workspace = json_null();

    for (size_t i = 0; i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];

        if (buffer->field && !buffer->absent)
            json_array_append_new(tensors, tensor(buffer));
        else if (!buffer->field)
            workspace = json_pack(
                "{s:I, s:I, s:I, s:I}", "offset", (json_int_t)buffer->offset, "bytes",
                (json_int_t)frame->call->workspace_size, "span_offset",
                (json_int_t)buffer->span_offset, "span", (json_int_t)buffer->span);
    }
    return json_pack(
        "{s:s, s:o, s:I, s:I, s:I, s:o, s:o}", "op", frame->info->name, "config",
        protocol_config(&frame->config), "n_tokens", (json_int_t)frame->call->n_tokens,
        "n_parts", (json_int_t)frame->call->n_parts, "arena",
        (json_int_t)frame->arena_size, "workspace", workspace, "tensors", tensors);
}

json_t *protocol_text(const char *text, size_t size)
{
    const size_t length = strnlen(text, size);
    json_t *string = json_stringn(text, length);
    char *copy;

    if (string) return string;
    copy = malloc(length + 1);
    for (size_t i = 0; copy && i < length; i++)
        copy[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
    string = copy ? json_stringn(copy, length) : NULL;
    free(copy);
    return string;
}
