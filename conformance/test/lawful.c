/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/lawful.c - a lawful call of any operation, for tests to break. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "lawful.h"

#include <stdlib.h>
#include <string.h>

slm_config lawful_config(void)
{
    slm_config config;

    slm_config_profile("paper", &config);
    config.d_model = 6;
    config.d_latent = 3;
    config.n_experts = 4;
    config.top_k = 2;
    config.d_expert = 8;
    config.n_shared = 2;
    config.d_shared = 4;
    config.n_bins = 10;
    return config;
}

slm_tensor *lawful_at(lawful *call, size_t field)
{
    return (slm_tensor *)(void *)((char *)&call->args +
                                  call->info->fields[field].offset);
}

slm_tensor *lawful_tensor(lawful *call, const char *name)
{
    for (size_t i = 0; i < call->info->n_fields; i++)
        if (strcmp(call->info->fields[i].name, name) == 0) return lawful_at(call, i);
    abort();
}

/* Of a bias of zeros. */
static void fill_state(const lawful *call, const char *name, int64_t *state)
{
    const size_t n = call->config.n_experts;
    float *zeros = calloc(n, sizeof *zeros);
    const int is_ticket = strcmp(name, "ticket") == 0;

    state[SLM_STAMP_VERSION + is_ticket] = 3;
    if (!zeros) abort();
    state[SLM_STAMP_CHECKSUM + is_ticket] = slm_checksum(zeros, n);
    free(zeros);
    state[SLM_STAMP_MICRO_BATCHES + is_ticket] = 1;
    if (!is_ticket) state[SLM_STAMP_TOKENS] = (int64_t)call->args.call.n_tokens;
}

static void fill(lawful *call, size_t field)
{
    const char *name = call->info->fields[field].name;
    const slm_tensor *tensor = lawful_at(call, field);
    const size_t count = slm_tensor_count(tensor);
    const size_t last = count ? tensor->shape[tensor->rank - 1] : 1;

    if (strcmp(name, "ids") == 0)
        for (size_t i = 0; i < count; i++)
            ((int32_t *)tensor->data)[i] = (int32_t)(i % last);
    if (strcmp(name, "mask") == 0)
        for (size_t i = 0; i < count; i++) ((int32_t *)tensor->data)[i] = 1;
    if (strcmp(name, "hist") == 0)
        for (size_t i = 0; i < count; i += last)
            ((int64_t *)tensor->data)[i] = (int64_t)call->args.call.n_tokens;
    if (strcmp(name, "ticket") == 0 || strcmp(name, "stamp") == 0)
        fill_state(call, name, tensor->data);
}

void lawful_open(lawful *call, slm_op op, const slm_config *config, size_t n_tokens)
{
    memset(call, 0, sizeof *call);
    call->config = *config;
    call->info = slm_op_describe(op);
    call->args.call.struct_size = call->info->args_size;
    call->args.call.n_tokens = n_tokens;
    call->args.call.n_parts = 3;
    for (size_t i = 0; i < call->info->n_fields; i++) {
        const slm_field *field = &call->info->fields[i];
        size_t shape[SLM_MAX_RANK];
        size_t bytes = slm_dtype_size(slm_field_dtype(field, config));

        if (!slm_field_applies(field, config)) continue;
        if (op == SLM_OP_select && strcmp(field->name, "logit") == 0) continue;
        for (size_t dim = 0; field->dims[dim]; dim++) {
            if (!slm_dim(config, &call->args.call, field->dims[dim], &shape[dim]))
                abort();
            bytes *= shape[dim];
        }
        if (bytes) {
            call->memory[i] = aligned_alloc(64, (bytes + 127) / 64 * 64);
            if (!call->memory[i]) abort();
            memset(call->memory[i], 0, bytes);
        }
        call->bytes[i] = bytes;
        *lawful_at(call, i) =
            slm_tensor_packed(call->memory[i], slm_field_dtype(field, config),
                              (uint32_t)strlen(field->dims), shape);
        fill(call, i);
    }
}

void lawful_close(lawful *call)
{
    for (size_t i = 0; i < LAWFUL_FIELDS; i++) free(call->memory[i]);
}

slm_status lawful_check(lawful *call, slm_error *error)
{
    memset(error, 0, sizeof *error);
    return slm_check(call->info->op, &call->config, &call->args, error);
}

void lawful_expect(lawful *call, slm_status status, const char *field, size_t index)
{
    slm_error error;
    const slm_status got = lawful_check(call, &error);
    const int told = error.status == status && error.index == index &&
                     strcmp(error.field, field) == 0 &&
                     strcmp(error.op, call->info->name) == 0 && error.expected[0];

    if (got != status || (status && !told))
        fail_msg("%s: want %s %s[%zu], got %s %s.%s[%zu] (%s)", call->info->name,
                 slm_status_name(status), field, index, slm_status_name(got), error.op,
                 error.field, error.index, error.expected);
    assert_int_equal(slm_check(call->info->op, &call->config, &call->args, NULL),
                     status);
}

void lawful_passes(lawful *call)
{
    lawful_expect(call, SLM_OK, "", 0);
}

void lawful_expect_finite(lawful *call, slm_status status, const char *field,
                          size_t index)
{
    slm_error error = {.index = 0};

    assert_int_equal(
        slm_check_finite(call->info->op, &call->config, &call->args, &error), status);
    if (!status) return;
    assert_string_equal(error.field, field);
    assert_string_equal(error.op, call->info->name);
    assert_int_equal(error.index, index);
}
