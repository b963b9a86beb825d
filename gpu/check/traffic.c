/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/check/traffic.c - one call of one operation on a backend, so that the race build
 * writes what each kernel of it loaded and stored (SLM_EMU_BYTES).
 *
 *   gpu-traffic LIBRARY OPERATION [LETTER=SIZE]... [dtype=bf16]
 *
 * Letters: T, d, l, n, k, f, S, fs, B, R. Tensors are packed and invented: a lawful call
 * that must succeed. Every tap and optional argument is there. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slm/backend.h>

enum { MOST_TENSORS = 64 };

typedef struct letter {
    const char *name;
    size_t *size;
} letter;

typedef struct device_call {
    const slm_backend *backend;
    const slm_op_info *info;
    slm_config config;
    union {
        slm_call call;
        char bytes[4096];
    } args;
    slm_weights weights;
    void *memory[MOST_TENSORS];
    size_t n_memory;
} device_call;

static void stop(const char *what, const char *which)
{
    fprintf(stderr, "gpu-traffic: %s: %s\n", what, which);
    exit(1);
}

static void read_sizes(device_call *of, char **argv)
{
    const letter letters[] = {
        {"T", &of->args.call.n_tokens}, {"d", &of->config.d_model},
        {"l", &of->config.d_latent},    {"n", &of->config.n_experts},
        {"k", &of->config.top_k},       {"f", &of->config.d_expert},
        {"S", &of->config.n_shared},    {"fs", &of->config.d_shared},
        {"B", &of->config.n_bins},      {"R", &of->args.call.n_parts}};

    for (; *argv; argv++) {
        const char *equals = strchr(*argv, '=');
        int known = 0;

        if (!equals) stop("not LETTER=SIZE", *argv);
        if (strcmp(*argv, "dtype=bf16") == 0) of->config.dtype = SLM_BF16;
        known = strncmp(*argv, "dtype=", 6) == 0;
        for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
            if (strlen(letters[i].name) == (size_t)(equals - *argv) &&
                strncmp(letters[i].name, *argv, strlen(letters[i].name)) == 0) {
                *letters[i].size = strtoul(equals + 1, NULL, 10);
                known = 1;
            }
        if (!known) stop("unknown letter", *argv);
    }
}

/* Uniform in [-1, 1), by name and index. */
static float noise(const char *name, size_t index)
{
    uint32_t h = 2166136261u;

    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    h += (uint32_t)index * 2654435761u;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return (float)((double)(h ^ h >> 16) * 0x1p-31 - 1.0);
}

static float real_of(const char *name, size_t index)
{
    const float v = noise(name, index);

    if (strcmp(name, "score") == 0) return 0.5f + 0.5f * v;
    if (strcmp(name, "bias") == 0) return 0.125f * v;
    return v;
}

/* The whole histogram of an expert in one bin: its rows sum to T. */
static int64_t integer_of(const device_call *of, const char *name, size_t index)
{
    const size_t bins = of->config.n_bins;

    if (strcmp(name, "load") == 0) return (int64_t)(index % 7);
    if (of->info->op == SLM_OP_qb_observe || of->info->op == SLM_OP_qb_commit) return 0;
    return index % bins == bins / 2 ? (int64_t)of->args.call.n_tokens : 0;
}

static void invent(const device_call *of, const slm_field *field, slm_tensor *tensor)
{
    const size_t k = of->config.top_k, n = of->config.n_experts;

    for (size_t i = 0; i < slm_tensor_count(tensor); i++)
        if (strcmp(field->name, "mask") == 0)
            ((int32_t *)tensor->data)[i] = 1;
        else if (tensor->dtype == SLM_I32) /* ids: k apart in a row, all experts used */
            ((int32_t *)tensor->data)[i] = (int32_t)((i / k * 5 + i % k * (n / k)) % n);
        else if (tensor->dtype == SLM_I64)
            ((int64_t *)tensor->data)[i] = integer_of(of, field->name, i);
        else if (tensor->dtype == SLM_BF16) {
            const float value = real_of(field->name, i);
            uint32_t bits;

            memcpy(&bits, &value, 4);
            ((uint16_t *)tensor->data)[i] = (uint16_t)(bits >> 16);
        } else
            ((float *)tensor->data)[i] = real_of(field->name, i);
}

static slm_tensor make(device_call *of, const slm_field *field)
{
    size_t shape[SLM_MAX_RANK], count = 1;
    uint32_t rank = 0;

    for (; field->dims[rank]; rank++) {
        if (!slm_dim(&of->config, &of->args.call, field->dims[rank], &shape[rank]))
            stop("a size is missing", field->name);
        count *= shape[rank];
    }

    void *memory = calloc(count + 1, 8);

    if (!memory || of->n_memory == MOST_TENSORS) stop("no memory", field->name);
    of->memory[of->n_memory++] = memory;

    slm_tensor tensor =
        slm_tensor_packed(memory, slm_field_dtype(field, &of->config), rank, shape);

    invent(of, field, &tensor);
    return tensor;
}

/* `select` takes one of score and logit. */
static int is_wanted(const device_call *of, const slm_field *field)
{
    return slm_field_applies(field, &of->config) &&
           !(of->info->op == SLM_OP_select && strcmp(field->name, "logit") == 0);
}

/* Ticket and stamp of a step that begins. */
static void begin_step(device_call *of)
{
    int64_t ticket[] = {SLM_MODE_TRAINING, 3, 0, 0}, stamp[] = {3, 0, 0, 0};

    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < of->info->n_fields; i++) {
            const char *name = of->info->fields[i].name;
            slm_tensor *tensor =
                (slm_tensor *)(void *)(of->args.bytes + of->info->fields[i].offset);

            if (round == 0 && strcmp(name, "bias") == 0)
                ticket[SLM_TICKET_CHECKSUM] = stamp[SLM_STAMP_CHECKSUM] =
                    slm_checksum((const float *)tensor->data, slm_tensor_count(tensor));
            if (round == 1 && strcmp(name, "ticket") == 0)
                memcpy(tensor->data, ticket, sizeof ticket);
            if (round == 1 && strcmp(name, "stamp") == 0)
                memcpy(tensor->data, stamp, sizeof stamp);
        }
}

static void make_all(device_call *of)
{
    size_t n;
    const slm_field *weights = slm_weight_fields(&n);

    of->args.call.struct_size = of->info->args_size;
    for (size_t i = 0; i < of->info->n_fields; i++)
        if (is_wanted(of, &of->info->fields[i]))
            *(slm_tensor *)(void *)(of->args.bytes + of->info->fields[i].offset) =
                make(of, &of->info->fields[i]);
    if (of->info->op == SLM_OP_qb_observe || of->info->op == SLM_OP_qb_commit)
        begin_step(of);
    of->weights.struct_size = sizeof of->weights;
    for (size_t i = 0; of->info->prepared && i < n; i++)
        if (slm_field_applies(&weights[i], &of->config))
            *(slm_tensor *)(void *)((char *)&of->weights + weights[i].offset) =
                make(of, &weights[i]);
}

static void upload(const device_call *of, slm_tensor *tensor)
{
    const size_t bytes = slm_tensor_count(tensor) * slm_dtype_size(tensor->dtype);
    void *memory;

    if (!tensor->rank || !bytes) return;
    memory = of->backend->alloc(bytes);
    if (!memory || of->backend->copy(memory, tensor->data, bytes))
        stop("no device memory", of->info->name);
    tensor->data = memory;
}

static void upload_all(device_call *of)
{
    size_t n;
    const slm_field *weights = slm_weight_fields(&n);

    for (size_t i = 0; i < of->info->n_fields; i++)
        upload(of, (slm_tensor *)(void *)(of->args.bytes + of->info->fields[i].offset));
    for (size_t i = 0; i < n; i++)
        upload(of, (slm_tensor *)(void *)((char *)&of->weights + weights[i].offset));
}

static slm_status invoke(slm_handle *handle, const device_call *of, slm_error *error)
{
    switch (of->info->op) {
#define INVOKE(name, level, purpose)                                                   \
    case SLM_OP_##name:                                                                \
        return of->backend->ops->name(handle, (const slm_##name##_args *)&of->args,    \
                                      error);
        SLM_OPS(INVOKE)
#undef INVOKE
    default:
        return SLM_ERR_INTERNAL;
    }
}

static void run(device_call *of)
{
    slm_handle *handle = NULL;
    slm_error error = {0};

    if (slm_check(of->info->op, &of->config, &of->args, &error))
        stop(error.field, error.expected);
    if (of->backend->open(&of->config, &handle, &error)) stop("open", error.expected);
    upload_all(of);
    if (of->info->prepared && of->backend->prepare(handle, &of->weights, &error))
        stop("prepare", error.expected);
    of->args.call.workspace_size =
        of->backend->workspace(handle, of->info->op, &of->args.call);
    if (of->args.call.workspace_size)
        of->args.call.workspace = of->backend->alloc(of->args.call.workspace_size);
    if (invoke(handle, of, &error)) stop(error.field, error.expected);
    if (of->backend->sync(NULL)) stop("the device", "sync");
    of->backend->close(handle);
}

int main(int argc, char **argv)
{
    void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    slm_backend_getter getter = NULL;
    device_call of = {0};

    if (!library) stop("usage: gpu-traffic LIBRARY OPERATION LETTER=SIZE...", argv[0]);
    *(void **)&getter = dlsym(library, SLM_BACKEND_SYMBOL);
    of.backend = getter ? getter(SLM_ABI_MAJOR) : NULL;
    of.info = slm_op_describe(slm_op_find(argv[2]));
    if (!of.backend || !of.info) stop("no backend or no operation", argv[2]);
    slm_config_profile("paper", &of.config);
    of.config.balance = SLM_BALANCE_RELAXED;
    read_sizes(&of, argv + 3);
    make_all(&of);
    run(&of);
    for (size_t i = 0; i < of.n_memory; i++) free(of.memory[i]);
    return 0;
}
