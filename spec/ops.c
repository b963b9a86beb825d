/* SPDX-License-Identifier: Apache-2.0 */
/* spec/ops.c - the operations and their arguments, described as data. */
#include "contract.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    SITU = 1u << SLM_EXPERT_SITU,
    SWIGLU = 1u << SLM_EXPERT_SWIGLU,
    RELU = 1u << SLM_EXPERT_RELU,
    LINEAR = 1u << SLM_EXPERT_LINEAR,
    GATED = SITU | SWIGLU,
    INNER = GATED | RELU,
    ALL = INNER | LINEAR
};

#define SINCE(minor, args, name, dims, role, kind, experts)                            \
    {                                                                                  \
#name, dims, SLM_ROLE_##role, SLM_KIND_##kind, experts, minor,                 \
            offsetof(args, name)                                                       \
    }
#define FIELD(args, name, dims, role, kind, experts)                                   \
    SINCE(0, args, name, dims, role, kind, experts)

static const slm_field route_fields[] = {
    FIELD(slm_route_args, x, "Td", IN, REAL, ALL),
    FIELD(slm_route_args, w_router, "nd", IN, REAL, ALL),
    FIELD(slm_route_args, bias, "n", IN, F32, ALL),
    FIELD(slm_route_args, ids, "Tk", OUT, I32, ALL),
    FIELD(slm_route_args, weight, "Tk", OUT, REAL32, ALL),
    FIELD(slm_route_args, cutoff, "T", TAP, F32, ALL),
    FIELD(slm_route_args, logit, "Tn", TAP, REAL32, ALL),
    FIELD(slm_route_args, score, "Tn", TAP, F32, ALL),
};
static const slm_field select_fields[] = {
    FIELD(slm_select_args, score, "Tn", OPTIONAL, F32, ALL),
    FIELD(slm_select_args, logit, "Tn", OPTIONAL, F32, ALL),
    FIELD(slm_select_args, bias, "n", IN, F32, ALL),
    FIELD(slm_select_args, ids, "Tk", OUT, I32, ALL),
    FIELD(slm_select_args, weight, "Tk", OUT, REAL32, ALL),
    FIELD(slm_select_args, cutoff, "T", TAP, F32, ALL),
};
static const slm_field permute_fields[] = {
    FIELD(slm_permute_args, ids, "Tk", IN, I32, ALL),
    FIELD(slm_permute_args, counts, "n", OUT, I64, ALL),
    FIELD(slm_permute_args, offsets, "N", OUT, I64, ALL),
    FIELD(slm_permute_args, order, "q", OUT, I64, ALL),
};
static const slm_field situ_glu_fields[] = {
    FIELD(slm_situ_glu_args, gate_up, "Tg", IN, REAL, ALL),
    FIELD(slm_situ_glu_args, h, "Tf", OUT, REAL, ALL),
};
static const slm_field dense_ffn_fields[] = {
    FIELD(slm_dense_ffn_args, x, "Td", IN, REAL, INNER),
    FIELD(slm_dense_ffn_args, w_gate, "fd", IN, REAL, GATED),
    FIELD(slm_dense_ffn_args, w_up, "fd", IN, REAL, INNER),
    FIELD(slm_dense_ffn_args, w_out, "df", IN, REAL, INNER),
    FIELD(slm_dense_ffn_args, y, "Td", OUT, REAL, INNER),
    FIELD(slm_dense_ffn_args, h, "Tf", TAP, REAL, INNER),
};
static const slm_field rmsnorm_fields[] = {
    FIELD(slm_rmsnorm_args, u, "Tl", IN, REAL, ALL),
    FIELD(slm_rmsnorm_args, gamma, "l", OPTIONAL, REAL, ALL),
    FIELD(slm_rmsnorm_args, r, "Tl", OUT, REAL, ALL),
};
static const slm_field layer_forward_fields[] = {
    FIELD(slm_layer_forward_args, x, "Td", IN, REAL, ALL),
    FIELD(slm_layer_forward_args, bias, "n", IN, F32, ALL),
    FIELD(slm_layer_forward_args, y, "Td", OUT, REAL, ALL),
    FIELD(slm_layer_forward_args, ids, "Tk", OUT, I32, ALL),
    FIELD(slm_layer_forward_args, weight, "Tk", OUT, REAL32, ALL),
    FIELD(slm_layer_forward_args, cutoff, "T", TAP, F32, ALL),
    FIELD(slm_layer_forward_args, logit, "Tn", TAP, REAL32, ALL),
    FIELD(slm_layer_forward_args, score, "Tn", TAP, F32, ALL),
    FIELD(slm_layer_forward_args, z, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_forward_args, h, "Tkf", TAP, REAL, INNER),
    FIELD(slm_layer_forward_args, o, "Tkl", TAP, REAL, ALL),
    FIELD(slm_layer_forward_args, u, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_forward_args, r, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_forward_args, hs, "Ts", TAP, REAL, INNER),
};
static const slm_field qb_exact_fields[] = {
    FIELD(slm_qb_exact_args, score, "Tn", IN, F32, ALL),
    FIELD(slm_qb_exact_args, bias, "n", IN, F32, ALL),
    FIELD(slm_qb_exact_args, new_bias, "n", OUT, F32, ALL),
    FIELD(slm_qb_exact_args, candidate, "n", TAP, F64, ALL),
    FIELD(slm_qb_exact_args, cutoff, "T", TAP, F32, ALL),
    SINCE(1, slm_qb_exact_args, mask, "T", OPTIONAL, I32, ALL),
};
static const slm_field qb_hist_accumulate_fields[] = {
    FIELD(slm_qb_hist_accumulate_args, score, "Tn", IN, F32, ALL),
    FIELD(slm_qb_hist_accumulate_args, bias, "n", IN, F32, ALL),
    FIELD(slm_qb_hist_accumulate_args, hist, "nB", INOUT, I64, ALL),
    SINCE(1, slm_qb_hist_accumulate_args, mask, "T", OPTIONAL, I32, ALL),
};
static const slm_field qb_hist_merge_fields[] = {
    FIELD(slm_qb_hist_merge_args, parts, "RnB", IN, I64, ALL),
    FIELD(slm_qb_hist_merge_args, hist, "nB", OUT, I64, ALL),
};
static const slm_field qb_hist_solve_fields[] = {
    FIELD(slm_qb_hist_solve_args, hist, "nB", IN, I64, ALL),
    FIELD(slm_qb_hist_solve_args, bias, "n", IN, F32, ALL),
    FIELD(slm_qb_hist_solve_args, new_bias, "n", OUT, F32, ALL),
    FIELD(slm_qb_hist_solve_args, candidate, "n", TAP, F64, ALL),
};
static const slm_field sign_step_fields[] = {
    FIELD(slm_sign_step_args, bias, "n", IN, F32, ALL),
    FIELD(slm_sign_step_args, load, "n", IN, I64, ALL),
    FIELD(slm_sign_step_args, new_bias, "n", OUT, F32, ALL),
};
static const slm_field load_metrics_fields[] = {
    FIELD(slm_load_metrics_args, ids, "Tk", IN, I32, ALL),
    FIELD(slm_load_metrics_args, load, "n", OUT, I64, ALL),
    FIELD(slm_load_metrics_args, metric, "4", OUT, F64, ALL),
    SINCE(1, slm_load_metrics_args, mask, "T", OPTIONAL, I32, ALL),
};
static const slm_field situ_glu_backward_fields[] = {
    FIELD(slm_situ_glu_backward_args, gate_up, "Tg", IN, REAL, ALL),
    FIELD(slm_situ_glu_backward_args, dh, "Tf", IN, REAL, ALL),
    FIELD(slm_situ_glu_backward_args, dgate_up, "Tg", OUT, REAL, ALL),
};
static const slm_field rmsnorm_backward_fields[] = {
    FIELD(slm_rmsnorm_backward_args, u, "Tl", IN, REAL, ALL),
    FIELD(slm_rmsnorm_backward_args, gamma, "l", OPTIONAL, REAL, ALL),
    FIELD(slm_rmsnorm_backward_args, dr, "Tl", IN, REAL, ALL),
    FIELD(slm_rmsnorm_backward_args, du, "Tl", OUT, REAL, ALL),
    FIELD(slm_rmsnorm_backward_args, dgamma, "l", OUT, REAL32, ALL),
};
static const slm_field select_backward_fields[] = {
    FIELD(slm_select_backward_args, logit, "Tn", IN, F32, ALL),
    FIELD(slm_select_backward_args, ids, "Tk", IN, I32, ALL),
    FIELD(slm_select_backward_args, dweight, "Tk", IN, F32, ALL),
    FIELD(slm_select_backward_args, dlogit, "Tn", OUT, REAL32, ALL),
};
static const slm_field dense_ffn_backward_fields[] = {
    FIELD(slm_dense_ffn_backward_args, x, "Td", IN, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, w_gate, "fd", IN, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, w_up, "fd", IN, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, w_out, "df", IN, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, dy, "Td", IN, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, dx, "Td", OUT, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, dw_gate, "fd", OUT, REAL32, GATED),
    FIELD(slm_dense_ffn_backward_args, dw_up, "fd", OUT, REAL32, GATED),
    FIELD(slm_dense_ffn_backward_args, dw_out, "df", OUT, REAL32, GATED),
    FIELD(slm_dense_ffn_backward_args, gate_up, "Tg", TAP, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, h, "Tf", TAP, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, dh, "Tf", TAP, REAL, GATED),
    FIELD(slm_dense_ffn_backward_args, dgate_up, "Tg", TAP, REAL, GATED),
};
static const slm_field layer_backward_fields[] = {
    FIELD(slm_layer_backward_args, x, "Td", IN, REAL, ALL),
    FIELD(slm_layer_backward_args, ids, "Tk", IN, I32, ALL),
    FIELD(slm_layer_backward_args, dy, "Td", IN, REAL, ALL),
    FIELD(slm_layer_backward_args, dx, "Td", OUT, REAL, ALL),
    FIELD(slm_layer_backward_args, dw_router, "nd", OUT, REAL32, ALL),
    FIELD(slm_layer_backward_args, dw_down, "ld", OUT, REAL32, ALL),
    FIELD(slm_layer_backward_args, dw_gate, "nfl", OUT, REAL32, GATED),
    FIELD(slm_layer_backward_args, dw_up, "nfl", OUT, REAL32, GATED),
    FIELD(slm_layer_backward_args, dw_out, "nlf", OUT, REAL32, GATED),
    FIELD(slm_layer_backward_args, dw_expert, "nll", OUT, REAL32, LINEAR),
    FIELD(slm_layer_backward_args, dgamma, "l", OUT, REAL32, ALL),
    FIELD(slm_layer_backward_args, dw_lift, "dl", OUT, REAL32, ALL),
    FIELD(slm_layer_backward_args, dw_shared_gate, "sd", OUT, REAL32, GATED),
    FIELD(slm_layer_backward_args, dw_shared_up, "sd", OUT, REAL32, GATED),
    FIELD(slm_layer_backward_args, dw_shared_out, "ds", OUT, REAL32, GATED),
    FIELD(slm_layer_backward_args, dw_shared, "Sdd", OUT, REAL32, LINEAR),
    FIELD(slm_layer_backward_args, dbias, "n", TAP, REAL32, ALL),
    FIELD(slm_layer_backward_args, logit, "Tn", TAP, REAL32, ALL),
    FIELD(slm_layer_backward_args, weight, "Tk", TAP, REAL32, ALL),
    FIELD(slm_layer_backward_args, z, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_backward_args, gate_up, "Tkg", TAP, REAL, GATED),
    FIELD(slm_layer_backward_args, h, "Tkf", TAP, REAL, GATED),
    FIELD(slm_layer_backward_args, o, "Tkl", TAP, REAL, ALL),
    FIELD(slm_layer_backward_args, u, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_backward_args, r, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_backward_args, shared_gate_up, "Tt", TAP, REAL, GATED),
    FIELD(slm_layer_backward_args, hs, "Ts", TAP, REAL, GATED),
    FIELD(slm_layer_backward_args, dr, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_backward_args, du, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_backward_args, dweight, "Tk", TAP, REAL32, ALL),
    FIELD(slm_layer_backward_args, dlogit, "Tn", TAP, REAL32, ALL),
    FIELD(slm_layer_backward_args, dh, "Tkf", TAP, REAL, GATED),
    FIELD(slm_layer_backward_args, dgate_up, "Tkg", TAP, REAL, GATED),
    FIELD(slm_layer_backward_args, dz, "Tl", TAP, REAL, ALL),
    FIELD(slm_layer_backward_args, dhs, "Ts", TAP, REAL, GATED),
    FIELD(slm_layer_backward_args, dshared_gate_up, "Tt", TAP, REAL, GATED),
};
static const slm_field qb_observe_fields[] = {
    FIELD(slm_qb_observe_args, score, "Tn", IN, F32, ALL),
    FIELD(slm_qb_observe_args, bias, "n", IN, F32, ALL),
    FIELD(slm_qb_observe_args, ticket, "4", IN, I64, ALL),
    FIELD(slm_qb_observe_args, stamp, "4", INOUT, I64, ALL),
    FIELD(slm_qb_observe_args, hist, "nB", INOUT, I64, ALL),
    FIELD(slm_qb_observe_args, mask, "T", OPTIONAL, I32, ALL),
};
static const slm_field qb_commit_fields[] = {
    FIELD(slm_qb_commit_args, new_bias, "n", IN, F32, ALL),
    FIELD(slm_qb_commit_args, bias, "n", INOUT, F32, ALL),
    FIELD(slm_qb_commit_args, stamp, "4", INOUT, I64, ALL),
    FIELD(slm_qb_commit_args, hist, "nB", INOUT, I64, ALL),
};
static const slm_field weight_fields[] = {
    FIELD(slm_weights, w_router, "nd", IN, REAL, ALL),
    FIELD(slm_weights, w_down, "ld", IN, REAL, ALL),
    FIELD(slm_weights, w_gate, "nfl", IN, REAL, GATED),
    FIELD(slm_weights, w_up, "nfl", IN, REAL, INNER),
    FIELD(slm_weights, w_out, "nlf", IN, REAL, INNER),
    FIELD(slm_weights, w_expert, "nll", IN, REAL, LINEAR),
    FIELD(slm_weights, gamma, "l", OPTIONAL, REAL, ALL),
    FIELD(slm_weights, w_lift, "dl", IN, REAL, ALL),
    FIELD(slm_weights, w_shared_gate, "sd", IN, REAL, GATED),
    FIELD(slm_weights, w_shared_up, "sd", IN, REAL, INNER),
    FIELD(slm_weights, w_shared_out, "ds", IN, REAL, INNER),
    FIELD(slm_weights, w_shared, "Sdd", IN, REAL, LINEAR),
};

#define DESCRIBE(name, level, purpose)                                                 \
    {SLM_OP_##name,                                                                    \
     #name,                                                                            \
     purpose,                                                                          \
     SLM_LEVEL_##level,                                                                \
     sizeof(slm_##name##_args),                                                        \
     sizeof name##_fields / sizeof *name##_fields,                                     \
     name##_fields,                                                                    \
     SLM_OP_##name == SLM_OP_layer_forward || SLM_OP_##name == SLM_OP_layer_backward},

static const slm_op_info op_infos[SLM_OP_COUNT] = {SLM_OPS(DESCRIBE)};

const slm_op_info *slm_op_describe(slm_op op)
{
    return (unsigned)op < SLM_OP_COUNT ? &op_infos[op] : NULL;
}

slm_op slm_op_find(const char *name)
{
    for (int op = 0; op < SLM_OP_COUNT; op++)
        if (strcmp(op_infos[op].name, name) == 0) return (slm_op)op;
    return SLM_OP_COUNT;
}

const slm_field *slm_weight_fields(size_t *n_fields)
{
    *n_fields = sizeof weight_fields / sizeof *weight_fields;
    return weight_fields;
}

static int product(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

int slm_dim(const slm_config *config, const slm_call *call, char letter, size_t *size)
{
    size_t value;

    switch (letter) {
    case 'T':
        value = call->n_tokens;
        break;
    case 'R':
        value = call->n_parts;
        break;
    case 'd':
        value = config->d_model;
        break;
    case 'l':
        value = config->d_latent;
        break;
    case 'n':
        value = config->n_experts;
        break;
    case 'k':
        value = config->top_k;
        break;
    case 'f':
        value = config->d_expert;
        break;
    case 'S':
        value = config->n_shared;
        break;
    case 'B':
        value = config->n_bins;
        break;
    case '4':
        value = 4;
        break;
    case 'N':
        if (__builtin_add_overflow(config->n_experts, (size_t)1, &value)) return 0;
        break;
    case 'g':
        if (!product(config->d_expert, 2, &value)) return 0;
        break;
    case 's':
        if (!product(config->n_shared, config->d_shared, &value)) return 0;
        break;
    case 't':
        if (!product(config->n_shared, config->d_shared, &value) ||
            !product(value, 2, &value))
            return 0;
        break;
    case 'q':
        if (!product(call->n_tokens, config->top_k, &value)) return 0;
        break;
    default:
        return 0;
    }
    *size = value;
    return 1;
}

int slm_field_applies(const slm_field *field, const slm_config *config)
{
    if (!(field->experts & (1u << config->expert))) return 0;
    return (strcmp(field->name, "gamma") != 0 && strcmp(field->name, "dgamma") != 0) ||
           config->norm == SLM_NORM_RMS;
}

slm_dtype slm_field_dtype(const slm_field *field, const slm_config *config)
{
    switch (field->kind) {
    case SLM_KIND_REAL:
        return config->dtype;
    case SLM_KIND_REAL32:
    case SLM_KIND_F32:
        return SLM_F32;
    case SLM_KIND_F64:
        return SLM_F64;
    case SLM_KIND_I32:
        return SLM_I32;
    case SLM_KIND_I64:
        return SLM_I64;
    }
    return SLM_F32;
}

slm_dtype slm_field_golden_dtype(const slm_field *field)
{
    switch (field->kind) {
    case SLM_KIND_REAL:
    case SLM_KIND_REAL32:
    case SLM_KIND_F64:
        return SLM_F64;
    case SLM_KIND_F32:
        return SLM_F32;
    case SLM_KIND_I32:
        return SLM_I32;
    case SLM_KIND_I64:
        return SLM_I64;
    }
    return SLM_F64;
}

uint64_t slm_checksum_more(uint64_t rest, const void *data, size_t size)
{
    const unsigned char *byte = data;

    for (size_t i = 0; i < size; i++) {
        rest ^= byte[i];
        for (int bit = 0; bit < 8; bit++)
            rest = rest >> 1 ^ (rest & 1 ? 0xc96c5795d7870f42u : 0);
    }
    return rest;
}

int64_t slm_checksum_end(uint64_t rest)
{
    int64_t pattern;

    rest = ~rest;
    memcpy(&pattern, &rest, sizeof pattern);
    return pattern;
}

int64_t slm_checksum(const float *values, size_t n)
{
    return slm_checksum_end(
        slm_checksum_more(SLM_CHECKSUM_BEGIN, values, n * sizeof *values));
}

size_t slm_dtype_size(slm_dtype dtype)
{
    switch (dtype) {
    case SLM_BF16:
        return 2;
    case SLM_F32:
    case SLM_I32:
        return 4;
    default:
        return 8;
    }
}

slm_tensor slm_tensor_packed(void *data, slm_dtype dtype, uint32_t rank,
                             const size_t *shape)
{
    slm_tensor tensor = {.data = data, .dtype = dtype, .space = SLM_HOST, .rank = rank};
    ptrdiff_t stride = 1;

    for (uint32_t i = rank; i-- > 0;) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = stride;
        stride *= (ptrdiff_t)shape[i];
    }
    return tensor;
}

const slm_tensor *slm_given(const slm_call *call, const slm_tensor *argument)
{
    const size_t end = (size_t)((const char *)(argument + 1) - (const char *)call);

    return call->struct_size >= end && argument->rank ? argument : NULL;
}

slm_tensor slm_tensor_at(const slm_tensor *tensor, size_t index)
{
    slm_tensor part = *tensor;
    const ptrdiff_t step = tensor->stride[0] * (ptrdiff_t)slm_dtype_size(tensor->dtype);

    part.rank--;
    part.data = (char *)tensor->data + (ptrdiff_t)index * step;
    for (uint32_t i = 0; i < part.rank; i++) {
        part.shape[i] = tensor->shape[i + 1];
        part.stride[i] = tensor->stride[i + 1];
    }
    return part;
}

size_t slm_tensor_count(const slm_tensor *tensor)
{
    size_t count = 1;

    for (uint32_t i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    return count;
}

const char *slm_status_name(slm_status status)
{
    static const char *const names[SLM_STATUS_COUNT] = {
        "SLM_OK",         "SLM_ERR_SHAPE",     "SLM_ERR_ALIAS",  "SLM_ERR_UNSUPPORTED",
        "SLM_ERR_DOMAIN", "SLM_ERR_NONFINITE", "SLM_ERR_TARGET", "SLM_ERR_TIE",
        "SLM_ERR_MEMORY", "SLM_ERR_INTERNAL"};

    return (unsigned)status < SLM_STATUS_COUNT ? names[status] : "unknown status";
}

const char *slm_dtype_name(slm_dtype dtype)
{
    static const char *const names[SLM_DTYPE_COUNT] = {"f32", "bf16", "f64", "i32",
                                                       "i64"};

    return (unsigned)dtype < SLM_DTYPE_COUNT ? names[dtype] : "unknown dtype";
}

slm_status slm_fail(slm_error *error, slm_status status, const char *op,
                    const char *field, size_t index, const char *expected, ...)
{
    va_list list;

    if (!error) return status;
    memset(error, 0, sizeof *error);
    error->status = status;
    error->index = index;
    snprintf(error->op, sizeof error->op, "%s", op);
    snprintf(error->field, sizeof error->field, "%s", field);
    va_start(list, expected);
    vsnprintf(error->expected, sizeof error->expected, expected, list);
    va_end(list);
    return status;
}

int slm_config_profile(const char *name, slm_config *config)
{
    slm_config profile = {.struct_size = sizeof profile,
                          .n_bins = 1000,
                          .eps = 1e-6,
                          .beta_gate = 4,
                          .beta_up = 25,
                          .rate = 0x1p-10};

    if (strcmp(name, "release") == 0) {
        profile.weighting = SLM_WEIGHT_RELEASE;
        profile.eps = 1e-5;
    } else if (strcmp(name, "vanilla") == 0) {
        profile.expert = SLM_EXPERT_SWIGLU;
        profile.norm = SLM_NORM_NONE;
    } else if (strcmp(name, "linear") == 0) {
        profile.expert = SLM_EXPERT_LINEAR;
    } else if (strcmp(name, "paper") != 0) {
        return 0;
    }
    *config = profile;
    return 1;
}
