/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/test_capture.c - every operation of the table in a CUDA graph: on
 * inputs that change between its launches it gives the bits of the call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "../../gpu.h"
#include "../control.h"
#include "on_device.h"

#ifdef EMU_WATCHED
enum { SEEDS = 3, VARIANTS = 2 };
#else
enum { SEEDS = 8, VARIANTS = 2 };
#endif

/* One operation with its arguments, all of them, on the device. */
typedef struct subject {
    const slm_op_info *info;
    slm_config config;
    slm_handle *handle;
    union {
        slm_call call;
        char bytes[4096];
    } args;
    slm_weights weights;
} subject;

static slm_tensor *tensor_at(void *base, const slm_field *field)
{
    return (slm_tensor *)(void *)((char *)base + field->offset);
}

/* `select` takes one of score and logit. */
static int is_wanted(const subject *of, const slm_field *field)
{
    return slm_field_applies(field, &of->config) &&
           !(of->info->op == SLM_OP_select && strcmp(field->name, "logit") == 0);
}

static int is_written(const slm_field *field)
{
    return field->role != SLM_ROLE_IN && field->role != SLM_ROLE_OPTIONAL;
}

/* ---- lawful inputs, of which there are VARIANTS ---- */

/* Multiples of 2^-7 in -1 .. 1, which bf16 holds; scores in 0 .. 1. */
static float real(const char *name, uint32_t *state)
{
    const float value = (float)(draw(state) % 257) / 128.0f - 1.0f;

    if (strcmp(name, "score") == 0) return 0.5f + 0.5f * value;
    return strcmp(name, "bias") == 0 ? 0.125f * value : value;
}

/* Distinct in a row; a mask leaves few tokens out. */
static int32_t small_integer(const subject *of, const char *name, size_t i,
                             unsigned variant)
{
    const size_t k = of->config.top_k, n = of->config.n_experts;

    if (strcmp(name, "mask") == 0) return (i + variant) % 5 != 4;
    return (int32_t)((i / k * (3 + variant) + variant + i % k * (n / k)) % n);
}

/* The counts of an expert lie in one bin and sum to T. */
static int64_t integer(const subject *of, const char *name, size_t i, unsigned variant)
{
    const size_t bins = of->config.n_bins;

    if (strcmp(name, "load") == 0) return (int64_t)((i + variant) % 7);
    if (of->info->op == SLM_OP_qb_observe || of->info->op == SLM_OP_qb_commit) return 0;
    return i % bins == bins / 2 + variant + i / bins % 3
               ? (int64_t)of->args.call.n_tokens
               : 0;
}

static void invent(const subject *of, const slm_field *field, const slm_tensor *tensor,
                   unsigned variant, char *to)
{
    uint32_t state = (uint32_t)field->offset * 977u + variant;

    for (size_t i = 0; i < slm_tensor_count(tensor); i++) {
        const float value = real(field->name, &state);
        const int64_t whole = integer(of, field->name, i, variant);
        const int32_t id = small_integer(of, field->name, i, variant);

        if (tensor->dtype == SLM_BF16)
            memcpy(to + 2 * i, (const char *)&value + 2, 2);
        else if (tensor->dtype == SLM_F32)
            memcpy(to + 4 * i, &value, 4);
        else if (tensor->dtype == SLM_I32)
            memcpy(to + 4 * i, &id, 4);
        else if (tensor->dtype == SLM_I64)
            memcpy(to + 8 * i, &whole, 8);
        else
            fail_msg("%s: a dtype that no input has", field->name);
    }
}

/* Ticket and stamp of a step that begins with that bias. */
static void begin_step(const subject *of, const float *bias, const slm_field *field,
                       char *to)
{
    const size_t n = of->config.n_experts;
    int64_t ticket[] = {SLM_MODE_TRAINING, 3, 0, 0}, stamp[] = {3, 0, 0, 0};

    ticket[SLM_TICKET_CHECKSUM] = stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias, n);
    if (strcmp(field->name, "ticket") == 0) memcpy(to, ticket, sizeof ticket);
    if (strcmp(field->name, "stamp") == 0) memcpy(to, stamp, sizeof stamp);
}

/* New inputs; outputs become -1. */
static void give(subject *of, unsigned variant)
{
    const slm_field *fields = of->info->fields;
    float *bias = calloc(of->config.n_experts, sizeof *bias);

    for (int round = 0; round < 2; round++) /* bias first: the step's words need it */
        for (size_t i = 0; i < of->info->n_fields; i++) {
            const slm_tensor *tensor = tensor_at(&of->args, &fields[i]);
            const size_t bytes =
                slm_tensor_count(tensor) * slm_dtype_size(tensor->dtype);
            const int is_bias = strcmp(fields[i].name, "bias") == 0;
            char *host;

            if (tensor->rank == 0 || is_bias != (round == 0)) continue;
            host = malloc(bytes + 1);
            memset(host, 0xff, bytes);
            if (!is_written(&fields[i]) || fields[i].role == SLM_ROLE_INOUT) {
                invent(of, &fields[i], tensor, variant, host);
                begin_step(of, bias, &fields[i], host);
            }
            if (is_bias) memcpy(bias, host, bytes);
            cudaMemcpy(tensor->data, host, bytes, cudaMemcpyHostToDevice);
            free(host);
        }
    free(bias);
}

/* Bytes of everything that is written, in one piece. */
static char *take(subject *of, size_t *bytes)
{
    char *all = NULL;

    *bytes = 0;
    for (size_t i = 0; i < of->info->n_fields; i++) {
        const slm_tensor *tensor = tensor_at(&of->args, &of->info->fields[i]);
        const size_t size = slm_tensor_count(tensor) * slm_dtype_size(tensor->dtype);

        if (tensor->rank == 0 || !is_written(&of->info->fields[i])) continue;
        all = realloc(all, *bytes + size + 1);
        cudaMemcpy(all + *bytes, tensor->data, size, cudaMemcpyDeviceToHost);
        *bytes += size;
    }
    return all;
}

/* ---- set up ---- */

static void lay_out(subject *of, const slm_field *field, slm_tensor *to)
{
    size_t shape[SLM_MAX_RANK];
    const size_t rank = strlen(field->dims);

    for (size_t i = 0; i < rank; i++)
        assert_true(slm_dim(&of->config, &of->args.call, field->dims[i], &shape[i]));
    *to = slm_tensor_packed(NULL, slm_field_dtype(field, &of->config), (uint32_t)rank,
                            shape);
    to->space = SLM_DEVICE;
    to->data = device(slm_tensor_count(to) * slm_dtype_size(to->dtype));
}

static void make_weights(subject *of)
{
    size_t n;
    const slm_field *fields = slm_weight_fields(&n);

    of->weights.struct_size = sizeof of->weights;
    for (size_t i = 0; i < n; i++) {
        slm_tensor *to = tensor_at(&of->weights, &fields[i]);
        char *host;
        size_t bytes;

        if (!slm_field_applies(&fields[i], &of->config)) continue;
        lay_out(of, &fields[i], to);
        bytes = slm_tensor_count(to) * slm_dtype_size(to->dtype);
        host = malloc(bytes + 1);
        invent(of, &fields[i], to, 0, host);
        cudaMemcpy(to->data, host, bytes, cudaMemcpyHostToDevice);
        free(host);
    }
}

static void set_up(subject *of, slm_op op, size_t n_tokens, slm_dtype dtype,
                   cudaStream_t stream)
{
    const slm_backend *gpu = slm_gpu_backend();
    slm_error error = {0};

    memset(of, 0, sizeof *of);
    of->info = slm_op_describe(op);
    assert_true(slm_config_profile("paper", &of->config));
    of->config.d_model = 20;
    of->config.d_latent = 9;
    of->config.n_experts = 6;
    of->config.top_k = 2;
    of->config.d_expert = 7;
    of->config.n_shared = 2;
    of->config.d_shared = 5;
    of->config.n_bins = 50;
    of->config.dtype = dtype;
    of->config.balance = SLM_BALANCE_RELAXED;
    of->args.call.struct_size = of->info->args_size;
    of->args.call.n_tokens = n_tokens;
    of->args.call.n_parts = 3;
    of->args.call.stream = stream;
    for (size_t i = 0; i < of->info->n_fields; i++)
        if (is_wanted(of, &of->info->fields[i]))
            lay_out(of, &of->info->fields[i],
                    tensor_at(&of->args, &of->info->fields[i]));
    assert_int_equal(gpu->open(&of->config, &of->handle, &error), SLM_OK);
    if (of->info->prepared) {
        make_weights(of);
        assert_int_equal(gpu->prepare(of->handle, &of->weights, &error), SLM_OK);
    }
    of->args.call.workspace_size = gpu->workspace(of->handle, op, &of->args.call);
    of->args.call.workspace = device(of->args.call.workspace_size);
}

static void tear_down(subject *of)
{
    size_t n;
    const slm_field *fields = slm_weight_fields(&n);

    for (size_t i = 0; i < of->info->n_fields; i++)
        cudaFree(tensor_at(&of->args, &of->info->fields[i])->data);
    for (size_t i = 0; i < n; i++) cudaFree(tensor_at(&of->weights, &fields[i])->data);
    cudaFree(of->args.call.workspace);
    slm_gpu_backend()->close(of->handle);
}

static slm_status call(const subject *of)
{
    const slm_ops *ops = slm_gpu_backend()->ops;

    switch (of->info->op) {
#define CALL(name, level, purpose)                                                     \
    case SLM_OP_##name:                                                                \
        return ops->name(of->handle, (const slm_##name##_args *)&of->args, NULL);
        SLM_OPS(CALL)
#undef CALL
    default:
        return SLM_ERR_INTERNAL;
    }
}

/* ---- the test ---- */

static cudaGraphExec_t capture(const subject *of, cudaStream_t stream)
{
    cudaGraphExec_t ready;
    cudaGraph_t graph;

    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
                     cudaSuccess);
    assert_int_equal(call(of), SLM_OK);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
    return ready;
}

static void check_captured(slm_op op, size_t n_tokens, slm_dtype dtype)
{
    char *want[VARIANTS];
    size_t bytes = 0, again;
    cudaStream_t stream;
    subject of;

    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    set_up(&of, op, n_tokens, dtype, stream);
    for (unsigned variant = 0; variant < VARIANTS; variant++) {
        give(&of, variant);
        assert_int_equal(call(&of), SLM_OK);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        want[variant] = take(&of, &bytes);
    }
    assert_memory_not_equal(want[0], want[1], bytes);

    const cudaGraphExec_t ready = capture(&of, stream);

    for (unsigned i = 0; i < SEEDS * VARIANTS; i++) {
        slm_emu_seed(i / VARIANTS);
        give(&of, i % VARIANTS);
        assert_int_equal(cudaGraphLaunch(ready, stream), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);

        char *got = take(&of, &again);

        assert_int_equal(again, bytes);
        assert_memory_equal(got, want[i % VARIANTS], bytes);
        free(got);
    }
    cudaGraphExecDestroy(ready);
    tear_down(&of);
    cudaStreamDestroy(stream);
    for (unsigned variant = 0; variant < VARIANTS; variant++) free(want[variant]);
}

/* Tokens for chunks of one row, of four and, so that cuBLAS multiplies, of eight. */
static void a_graph_of_any_operation_gives_the_bits_of_the_call(void **state)
{
    const size_t tokens[] = {2, 13, 40};

    (void)state;
    for (int op = 0; op < SLM_OP_COUNT; op++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            check_captured((slm_op)op, tokens[i], SLM_F32);
            check_captured((slm_op)op, tokens[i], SLM_BF16);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_of_any_operation_gives_the_bits_of_the_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
