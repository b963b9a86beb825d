/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_bench_data.c - the tensors of timed calls. */
#include "host_bench_data.h"
#include "bench_case.h"
#include "vector_fill.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64, HUGE = 1 << 21, MOST_PIECES = 1 << 16 };

/* Memory that data->memory keeps: huge pages where it is large. */
static void *acquire(bench_data *data, size_t bytes)
{
    const size_t unit = bytes >= HUGE ? HUGE : LINE;
    void *memory;

    if (data->n_memory == MOST_PIECES || bytes > SIZE_MAX - HUGE) return NULL;
    memory = aligned_alloc(unit, (bytes + unit) / unit * unit);
    if (!memory) return NULL;
    if (unit == HUGE) madvise(memory, (bytes + unit) / unit * unit, MADV_HUGEPAGE);
    data->memory[data->n_memory++] = memory;
    return memory;
}

static int give(bench_data *data, const vec_tensor *tensor, void *to)
{
    const slm_dtype dtype = slm_field_dtype(tensor->field, &data->config);
    void *memory = acquire(data, tensor->count * slm_dtype_size(dtype));

    if (!memory) return 0;
    vec_fill(tensor, dtype, 0, tensor->count, memory);
    *(slm_tensor *)(void *)((char *)to + tensor->field->offset) =
        slm_tensor_packed(memory, dtype, tensor->rank, tensor->shape);
    return 1;
}

/* The layer's weights, or everything else. */
static int give_all(bench_data *data, size_t layer, size_t place, int weights, void *to)
{
    bench_case made;
    int ok =
        bench_case_make(&made, data->op, &data->config, data->n_tokens, layer, place);

    for (size_t i = 0; ok && i < made.test.n_in; i++)
        if (bench_is_weight(&made.in[i]) == weights) ok = give(data, &made.in[i], to);
    bench_case_free(&made);
    return ok;
}

slm_call *bench_data_args(const bench_data *data, size_t place)
{
    return (slm_call *)(void *)(data->args + place * data->args_size);
}

/* Outputs of the first place, which every other gets, too. */
static int add_outputs(bench_data *data)
{
    const slm_op_info *info = slm_op_describe(data->op);

    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];
        const slm_dtype dtype = slm_field_dtype(field, &data->config);
        const uint32_t rank = (uint32_t)strlen(field->dims);
        size_t shape[SLM_MAX_RANK], bytes = slm_dtype_size(dtype);
        void *memory;

        if (field->role != SLM_ROLE_OUT || !slm_field_applies(field, &data->config))
            continue;
        for (uint32_t j = 0; j < rank; j++)
            if (!slm_dim(&data->config, bench_data_args(data, 0), field->dims[j],
                         &shape[j]) ||
                __builtin_mul_overflow(bytes, shape[j], &bytes))
                return 0;
        memory = acquire(data, bytes);
        if (!memory) return 0;
        memset(memory, 0, bytes);
        for (size_t place = 0; place < data->places; place++)
            *(slm_tensor *)(void *)((char *)bench_data_args(data, place) +
                                    field->offset) =
                slm_tensor_packed(memory, dtype, rank, shape);
    }
    return 1;
}

static int make(bench_data *data)
{
    for (size_t layer = 0; data->weights && layer < data->layers; layer++) {
        data->weights[layer].struct_size = sizeof *data->weights;
        if (!give_all(data, layer, 0, 1, &data->weights[layer])) return 0;
    }
    for (size_t place = 0; place < data->places; place++) {
        slm_call *call = bench_data_args(data, place);

        call->struct_size = data->args_size;
        call->n_tokens = data->n_tokens;
        if (!give_all(data, place % data->layers, place, 0, call)) return 0;
    }
    return add_outputs(data);
}

int bench_data_make(bench_data *data, slm_op op, const slm_config *config,
                    size_t n_tokens, size_t layers, size_t places)
{
    const slm_op_info *info = slm_op_describe(op);

    memset(data, 0, sizeof *data);
    data->op = op;
    data->config = *config;
    data->config.balance = SLM_BALANCE_RELAXED;
    data->n_tokens = n_tokens;
    data->layers = layers;
    data->places = places;
    data->args_size = info->args_size;
    data->args = calloc(places, info->args_size);
    data->memory = calloc(MOST_PIECES, sizeof *data->memory);
    if (info->prepared) data->weights = calloc(layers, sizeof *data->weights);
    if (data->args && data->memory && (data->weights || !info->prepared) && make(data))
        return 1;
    bench_data_free(data);
    return 0;
}

void bench_data_free(bench_data *data)
{
    for (size_t i = 0; i < data->n_memory; i++) free(data->memory[i]);
    free(data->memory);
    free(data->weights);
    free(data->args);
    memset(data, 0, sizeof *data);
}
