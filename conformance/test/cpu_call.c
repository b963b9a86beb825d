/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/cpu_call.c - calls of a CPU backend, tensors laid out at will. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

enum { GUARD = 64 };

const slm_backend *cpu_table(void)
{
#ifdef SLM_WITH_BLAS
    const char *wanted = getenv("SLM_TEST_BACKEND");

    if (!wanted || strcmp(wanted, "cpu") != 0) return slm_cpu_blas_backend();
#endif
    return slm_cpu_backend();
}

slm_config cpu_tiny(void)
{
    slm_config config;

    assert_true(slm_config_profile("paper", &config));
    config.d_model = 37;
    config.d_latent = 19;
    config.n_experts = 11;
    config.top_k = 3;
    config.d_expert = 23;
    config.n_shared = 2;
    config.d_shared = 13;
    config.n_bins = 50;
    config.balance = SLM_BALANCE_RELAXED;
    return config;
}

int cpu_force(const char *level)
{
    const slm_config config = cpu_tiny();
    slm_handle *handle;

    setenv("SLM_CPU_LEVEL", level, 1);
    if (slm_cpu_backend()->open(&config, &handle, NULL) != SLM_OK) return 0;
    slm_cpu_backend()->close(handle);
    return 1;
}

static uint32_t mixed(uint32_t v)
{
    v ^= v >> 16;
    v *= 0x7feb352du;
    v ^= v >> 15;
    v *= 0x846ca68bu;
    return v ^ v >> 16;
}

/* Uniform in [-1, 1), by name and index. */
float cpu_noise(const char *name, size_t index)
{
    uint32_t h = 2166136261u;

    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return (float)((double)mixed(h + (uint32_t)index * 2654435761u) * 0x1p-31 - 1.0);
}

/* Element `index` of an input that no test gave. */
static void invent(const slm_field *field, const slm_config *config, size_t index,
                   void *to)
{
    const float v = cpu_noise(field->name, index);
    const size_t n = config->n_experts, k = config->top_k;
    float value = v;

    if (strcmp(field->name, "mask") == 0) {
        *(int32_t *)to = 1; /* as without one */
        return;
    }
    if (field->kind == SLM_KIND_I32) {
        const size_t t = index / k, q = index % k;

        *(int32_t *)to = (int32_t)((t * 5 + q * (n / k ? n / k : 1)) % n);
        return;
    }
    if (field->kind == SLM_KIND_I64) {
        *(int64_t *)to = (int64_t)(1000.0 + 900.0 * (double)v);
        return;
    }
    if (strcmp(field->name, "score") == 0) value = 0.5f + 0.5f * v;
    if (strcmp(field->name, "bias") == 0) value = 0.125f * v;
    if (strcmp(field->name, "logit") == 0) value = 8.0f * v;
    if (strcmp(field->name, "gate_up") == 0) value = 30.0f * v;
    if (slm_field_dtype(field, config) == SLM_BF16) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        *(uint16_t *)to = (uint16_t)(bits >> 16);
        return;
    }
    *(float *)to = value;
}

/* Lay a tensor out; what lies between the elements keeps a pattern. */
static slm_tensor lay(slm_dtype dtype, uint32_t rank, const size_t *shape,
                      cpu_layout how, void **memory)
{
    const size_t element = slm_dtype_size(dtype);
    const size_t gap = how == CPU_SPREAD ? 3 : 1, pad = how >= CPU_PADDED ? 5 : 0;
    slm_tensor tensor = {.dtype = dtype, .rank = rank};
    size_t step = gap, span;

    for (uint32_t i = rank; i-- > 0;) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = (ptrdiff_t)step;
        step = step * shape[i] + pad;
    }
    span = (step + 2) * element;
    *memory = malloc(span);
    assert_non_null(*memory);
    memset(*memory, CPU_UNTOUCHED, span);
    tensor.data = (char *)*memory + (how == CPU_PACKED ? 0 : element);
    if (how == CPU_REVERSED)
        for (uint32_t i = 0; i < rank; i++)
            if (shape[i]) {
                const ptrdiff_t last = (ptrdiff_t)(shape[i] - 1) * tensor.stride[i];

                tensor.data = (char *)tensor.data + last * (ptrdiff_t)element;
                tensor.stride[i] = -tensor.stride[i];
            }
    return tensor;
}

static void *element_at(const slm_tensor *tensor, size_t index)
{
    ptrdiff_t at = 0;

    for (uint32_t i = tensor->rank; i-- > 0;) {
        at += (ptrdiff_t)(index % tensor->shape[i]) * tensor->stride[i];
        index /= tensor->shape[i];
    }
    return (char *)tensor->data + at * (ptrdiff_t)slm_dtype_size(tensor->dtype);
}

static slm_tensor make_field(const slm_field *field, const slm_config *config,
                             const slm_call *call, const cpu_given *list,
                             cpu_layout how, void **memory)
{
    const slm_dtype dtype = slm_field_dtype(field, config);
    const size_t element = slm_dtype_size(dtype);
    const int input = field->role != SLM_ROLE_OUT && field->role != SLM_ROLE_TAP;
    size_t shape[SLM_MAX_RANK];
    const char *values = NULL;
    slm_tensor tensor;
    uint32_t rank = 0;

    for (; field->dims[rank]; rank++)
        assert_true(slm_dim(config, call, field->dims[rank], &shape[rank]));
    tensor = lay(dtype, rank, shape, how, memory);
    for (; list && list->field; list++)
        if (strcmp(list->field, field->name) == 0) values = list->values;
    for (size_t i = 0; input && i < slm_tensor_count(&tensor); i++)
        if (values)
            memcpy(element_at(&tensor, i), values + i * element, element);
        else
            invent(field, config, i, element_at(&tensor, i));
    return tensor;
}

static int is_given(const cpu_given *list, const char *field)
{
    for (; list && list->field; list++)
        if (strcmp(list->field, field) == 0) return 1;
    return 0;
}

/* One of score and logit for select; a mask where it is given, or nothing is; `hist` of
 * solve is cpu_given by the tests. */
static int wanted(slm_op op, const slm_field *field, const cpu_given *list)
{
    int logit = 0;

    if (strcmp(field->name, "mask") == 0)
        return !list || !list->field || is_given(list, "mask");
    if (op != SLM_OP_select) return 1;
    for (; list && list->field; list++) logit |= strcmp(list->field, "logit") == 0;
    if (strcmp(field->name, "logit") == 0) return logit;
    return strcmp(field->name, "score") != 0 || !logit;
}

slm_tensor *cpu_field(cpu_frame *made, const slm_field *field)
{
    return (slm_tensor *)(void *)(made->args.bytes + field->offset);
}

static int64_t checksum_of(const slm_tensor *bias)
{
    float packed[64];
    const size_t n = slm_tensor_count(bias);

    assert_true(n <= sizeof packed / sizeof *packed);
    for (size_t i = 0; i < n; i++) packed[i] = *(float *)element_at(bias, i);
    return slm_checksum(packed, n);
}

/* A balancing step that begins: what no list gives of ticket, stamp and hist. */
static void begin_step(cpu_frame *made, const cpu_given *list)
{
    int64_t ticket[] = {SLM_MODE_TRAINING, 3, 0, 0}, stamp[] = {3, 0, 0, 0};

    for (size_t i = 0; i < made->info->n_fields; i++) {
        const char *name = made->info->fields[i].name;
        const slm_tensor *tensor = cpu_field(made, &made->info->fields[i]);
        const int64_t *values = strcmp(name, "ticket") == 0  ? ticket
                                : strcmp(name, "stamp") == 0 ? stamp
                                                             : NULL;

        if (strcmp(name, "bias") == 0)
            ticket[SLM_TICKET_CHECKSUM] = stamp[SLM_STAMP_CHECKSUM] =
                checksum_of(tensor);
        if (is_given(list, name) || (!values && strcmp(name, "hist") != 0)) continue;
        for (size_t e = 0; e < slm_tensor_count(tensor); e++)
            *(int64_t *)element_at(tensor, e) = values ? values[e] : 0;
    }
}

void cpu_frame_make(cpu_frame *made, slm_op op, const slm_config *config, size_t tokens,
                    const cpu_given *list, cpu_layout how)
{
    size_t n;
    const slm_field *fields = slm_weight_fields(&n);

    memset(made, 0, sizeof *made);
    made->info = slm_op_describe(op);
    assert_true(made->info->args_size <= sizeof made->args);
    made->args.call = (slm_call){
        .struct_size = made->info->args_size, .n_tokens = tokens, .n_parts = 3};
    for (size_t i = 0; i < made->info->n_fields; i++)
        if (slm_field_applies(&made->info->fields[i], config) &&
            wanted(op, &made->info->fields[i], list))
            *cpu_field(made, &made->info->fields[i]) =
                make_field(&made->info->fields[i], config, &made->args.call, list, how,
                           &made->memory[made->n_memory++]);
    if (op == SLM_OP_qb_observe || op == SLM_OP_qb_commit) begin_step(made, list);
    made->weights.struct_size = sizeof made->weights;
    for (size_t i = 0; made->info->prepared && i < n; i++)
        if (slm_field_applies(&fields[i], config)) {
            slm_tensor *weight =
                (slm_tensor *)(void *)((char *)&made->weights + fields[i].offset);

            *weight = make_field(&fields[i], config, &made->args.call, list, how,
                                 &made->memory[made->n_memory++]);
        }
}

slm_status cpu_invoke(slm_handle *handle, slm_op op, const void *args, slm_error *error)
{
    const slm_ops *ops = cpu_table()->ops;

    switch (op) {
#define INVOKE(name, level, purpose)                                                   \
    case SLM_OP_##name:                                                                \
        return ops->name(handle, args, error);
        SLM_OPS(INVOKE)
#undef INVOKE
    default:
        return SLM_ERR_INTERNAL;
    }
}

slm_handle *cpu_frame_open(cpu_frame *made, slm_op op, const slm_config *config)
{
    const slm_backend *backend = cpu_table();
    slm_call *call = &made->args.call;
    slm_handle *handle;

    assert_int_equal(backend->open(config, &handle, NULL), SLM_OK);
    assert_int_equal(backend->prepare(handle, &made->weights, NULL), SLM_OK);
    call->workspace_size = backend->workspace(handle, op, call);
    call->workspace = aligned_alloc(64, (call->workspace_size + 64) / 64 * 64);
    assert_non_null(call->workspace);
    return handle;
}

void cpu_frame_close(cpu_frame *made, slm_handle *handle)
{
    cpu_table()->close(handle);
    free(made->args.call.workspace);
    for (size_t i = 0; i < made->n_memory; i++) free(made->memory[i]);
}

static void keep_outputs(cpu_frame *made, cpu_outcome *out)
{
    for (size_t i = 0; i < made->info->n_fields; i++) {
        const slm_field *field = &made->info->fields[i];
        const slm_tensor *tensor = cpu_field(made, field);
        const size_t element = slm_dtype_size(tensor->dtype);

        if (field->role != SLM_ROLE_OUT && field->role != SLM_ROLE_TAP &&
            field->role != SLM_ROLE_INOUT)
            continue;
        if (tensor->rank == 0) continue;
        out->name[out->n] = field->name;
        out->size[out->n] = slm_tensor_count(tensor) * element;
        out->bytes[out->n] = malloc(out->size[out->n] + 1);
        assert_non_null(out->bytes[out->n]);
        for (size_t e = 0; e < slm_tensor_count(tensor); e++)
            memcpy(out->bytes[out->n] + e * element, element_at(tensor, e), element);
        out->n++;
    }
}

/* Check at the door, then call in exactly the workspace that was asked for. */
cpu_outcome cpu_run(slm_op op, const slm_config *config, size_t tokens,
                    const cpu_given *list, cpu_layout how, int threads, int old_byte)
{
    const slm_backend *backend = cpu_table();
    cpu_outcome out = {0};
    cpu_frame made;
    slm_handle *handle;
    unsigned char *workspace;
    size_t size;

    cpu_frame_make(&made, op, config, tokens, list, how);
    assert_true(backend->supports(config, op, tokens, NULL, 0));
    assert_int_equal(backend->open(config, &handle, NULL), SLM_OK);
    if (made.info->prepared)
        assert_int_equal(backend->prepare(handle, &made.weights, NULL), SLM_OK);
    size = backend->workspace(handle, op, &made.args.call);
    workspace = aligned_alloc(64, GUARD + (size + 63) / 64 * 64 + GUARD);
    assert_non_null(workspace);
    memset(workspace, 0x5c, GUARD);
    memset(workspace + GUARD, old_byte, size);
    memset(workspace + GUARD + size, 0x5c, GUARD);
    made.args.call.workspace = workspace + GUARD;
    made.args.call.workspace_size = size;
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
    assert_int_equal(slm_check(op, config, &made.args, NULL), SLM_OK);
    out.status = cpu_invoke(handle, op, &made.args, &out.error);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(workspace[i], 0x5c);
        assert_int_equal(workspace[GUARD + size + i], 0x5c);
    }
    keep_outputs(&made, &out);
    backend->close(handle);
    free(workspace);
    for (size_t i = 0; i < made.n_memory; i++) free(made.memory[i]);
    return out;
}

cpu_outcome cpu_run_plain(slm_op op, const slm_config *config, size_t tokens,
                          const cpu_given *list)
{
    return cpu_run(op, config, tokens, list, CPU_PACKED, 2, 0xff);
}

void *cpu_output(const cpu_outcome *out, const char *name)
{
    for (size_t i = 0; i < out->n; i++)
        if (strcmp(out->name[i], name) == 0) return out->bytes[i];
    fail_msg("no output %s", name);
    return NULL;
}

void cpu_release(cpu_outcome *out)
{
    for (size_t i = 0; i < out->n; i++) free(out->bytes[i]);
}

void cpu_same_bits(const cpu_outcome *a, const cpu_outcome *b)
{
    assert_int_equal(a->status, b->status);
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        assert_int_equal(a->size[i], b->size[i]);
        if (memcmp(a->bytes[i], b->bytes[i], a->size[i]) != 0)
            fail_msg("%s differs", a->name[i]);
    }
}

void cpu_same_outputs(cpu_frame *made, const cpu_outcome *want)
{
    for (size_t i = 0; i < made->info->n_fields; i++) {
        const slm_field *field = &made->info->fields[i];
        const slm_tensor *tensor = cpu_field(made, field);

        if (field->role != SLM_ROLE_OUT || tensor->rank == 0) continue;
        assert_memory_equal(tensor->data, cpu_output(want, field->name),
                            slm_tensor_count(tensor) * slm_dtype_size(tensor->dtype));
    }
}

void cpu_one_result(slm_op op, const slm_config *config, size_t tokens)
{
    cpu_outcome one = cpu_run(op, config, tokens, NULL, CPU_PACKED, 1, 0);

    assert_int_equal(one.status, SLM_OK);
    for (int how = CPU_PACKED; how < CPU_LAYOUTS; how++) {
        cpu_outcome other =
            cpu_run(op, config, tokens, NULL, (cpu_layout)how, 2 + how % 2, 0xff);

        cpu_same_bits(&one, &other);
        cpu_release(&other);
    }
    cpu_release(&one);
}

/* A histogram of 50 bins whose rows sum to `tokens`, for 11 experts. */
void cpu_histogram(int64_t *hist, size_t tokens)
{
    for (size_t i = 0; i < tokens * 11; i++)
        hist[i / tokens * 50 + (i * i + 7 * i) % 50]++;
}
