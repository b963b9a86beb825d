/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/test_layer.c - pieces of the layer against plain loops, and the
 * layer in a CUDA graph. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../layer.h"
#include "../control.h"
#include "on_device.h"

enum { SEEDS = 4 };

static void *download(const void *from, size_t bytes)
{
    void *memory = malloc(bytes + 1);

    assert_int_equal(cudaMemcpy(memory, from, bytes, cudaMemcpyDeviceToHost),
                     cudaSuccess);
    return memory;
}

static uint32_t draw(uint32_t *state)
{
    return (*state = *state * 1664525u + 1013904223u) >> 8;
}

/* -1 .. 1, a multiple of 2^-7: bf16 holds it. */
static float real(uint32_t *state)
{
    return ldexpf((float)(draw(state) % 257) - 128.0f, -7);
}

/* ---- rows of experts ---- */

/* `k` distinct ids a row; a hot expert has most tokens. */
static int32_t *choices(size_t rows, size_t n, size_t k, uint32_t *state)
{
    int32_t *ids = malloc((rows * k + 1) * sizeof *ids);

    for (size_t t = 0; t < rows; t++) {
        const size_t first = draw(state) % 4 ? 0 : draw(state) % n;

        for (size_t q = 0; q < k; q++) ids[t * k + q] = (int32_t)((first + q) % n);
    }
    return ids;
}

typedef struct grouped {
    slm_gpu_groups at;
    int32_t *ids; /* device */
    void *memory;
} grouped;

static grouped make_groups(size_t rows, size_t n, size_t k, const int32_t *ids)
{
    grouped made;
    slm_gpu_arena arena = {NULL, 0};

    slm_gpu_take_groups(&arena, n, rows, k, &made.at);
    made.memory = device(arena.used);
    arena = (slm_gpu_arena){made.memory, 0};
    slm_gpu_take_groups(&arena, n, rows, k, &made.at);
    made.ids = upload(ids, rows * k * sizeof *ids);
    assert_int_equal(slm_gpu_make_groups(&made.at, made.ids, NULL), SLM_OK);
    return made;
}

static void drop_groups(const grouped *made)
{
    cudaFree(made->memory);
    cudaFree(made->ids);
}

static void check_groups(size_t rows, size_t n, size_t k)
{
    uint32_t state = (uint32_t)(rows + n);
    int32_t *ids = choices(rows, n, k, &state);
    const grouped made = make_groups(rows, n, k, ids);
    const slm_gpu_groups *at = &made.at;
    const size_t all = slm_gpu_expert_rows(at);
    int64_t *first = download(at->first, (n + 1) * sizeof *first);
    int64_t *place = download(at->place, at->pairs * sizeof *place);
    int64_t *pair = download(at->pair, all * sizeof *pair);
    int32_t *expert = download(at->expert, at->chunks * sizeof *expert);
    size_t held = 0;

    assert_true(first[n] <= (int64_t)at->chunks);
    for (size_t i = 0; i < at->pairs; i++) {
        assert_true(place[i] >= 0 && place[i] < (int64_t)all);
        assert_int_equal(pair[place[i]], i);
        assert_int_equal(expert[place[i] / (int64_t)at->chunk], ids[i]);
    }
    for (size_t row = 0; row < all; row++) {
        held += pair[row] >= 0;
        if (row % at->chunk && pair[row] >= 0) assert_true(pair[row] > pair[row - 1]);
    }
    assert_int_equal(held, at->pairs);
    drop_groups(&made);
    free(ids);
    free(first);
    free(place);
    free(pair);
    free(expert);
}

static void rows_of_experts_hold_every_pair_once(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        slm_emu_seed(seed);
        check_groups(1, 1, 1);
        check_groups(1, 33, 5);  /* chunks of one row  */
        check_groups(50, 4, 2);  /* of sixteen         */
        check_groups(300, 2, 1); /* of 128: the most   */
        check_groups(7, 3, 3);
    }
}

/* ---- gradients of experts ---- */

/* [rows of experts, width] with NaN where no pair is: nothing may look there. */
static float *rows_with_holes(const slm_gpu_groups *at, size_t width, uint32_t *state)
{
    const size_t all = slm_gpu_expert_rows(at);
    int64_t *pair = download(at->pair, all * sizeof *pair);
    float *made = malloc(all * width * sizeof *made);

    for (size_t i = 0; i < all * width; i++)
        made[i] = pair[i / width] < 0 ? NAN : real(state);
    free(pair);
    return made;
}

static slm_gpu_matrix upload_rows(const float *from, size_t rows, size_t width,
                                  slm_dtype dtype)
{
    const slm_gpu_matrix wide = {upload(from, rows * width * sizeof *from), SLM_F32,
                                 width};
    const slm_gpu_matrix narrow = {dtype == SLM_BF16 ? device(rows * width * 2) : NULL,
                                   SLM_BF16, width};

    if (dtype == SLM_F32) return wide;
    assert_int_equal(slm_gpu_convert(rows, width, wide, narrow, NULL), SLM_OK);
    cudaDeviceSynchronize();
    cudaFree(wide.data);
    return narrow;
}

static void check_gradients(size_t rows, size_t n, size_t k, size_t a_cols,
                            size_t b_cols, slm_dtype dtype)
{
    uint32_t state = (uint32_t)(rows + a_cols);
    int32_t *ids = choices(rows, n, k, &state);
    const grouped made = make_groups(rows, n, k, ids);
    const size_t all = slm_gpu_expert_rows(&made.at), size = n * a_cols * b_cols;
    float *a = rows_with_holes(&made.at, a_cols, &state);
    float *b = rows_with_holes(&made.at, b_cols, &state);
    int64_t *place = download(made.at.place, made.at.pairs * sizeof *place);
    const slm_gpu_matrix on_a = upload_rows(a, all, a_cols, dtype);
    const slm_gpu_matrix on_b = upload_rows(b, all, b_cols, dtype);
    float *dw = device(size * sizeof *dw), *got;
    double *want = calloc(size, sizeof *want);

    for (size_t i = 0; i < made.at.pairs; i++)
        for (size_t row = 0; row < a_cols; row++)
            for (size_t col = 0; col < b_cols; col++)
                want[((size_t)ids[i] * a_cols + row) * b_cols + col] +=
                    (double)a[(size_t)place[i] * a_cols + row] *
                    (double)b[(size_t)place[i] * b_cols + col];
    assert_int_equal(
        slm_gpu_expert_gradients(&made.at, on_a, a_cols, on_b, b_cols, dw, NULL, NULL),
        SLM_OK);
    got = download(dw, size * sizeof *got);
    /* Multiples of 2^-14 below 2^9: every sum is exact. */
    for (size_t i = 0; i < size; i++) assert_true((double)got[i] == want[i]);
    drop_groups(&made);
    cudaFree(on_a.data);
    cudaFree(on_b.data);
    cudaFree(dw);
    free(ids);
    free(a);
    free(b);
    free(place);
    free(got);
    free(want);
}

static void gradients_of_experts_agree_with_a_loop(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 2; seed++) {
        slm_emu_seed(seed);
        check_gradients(40, 5, 2, 65, 130, SLM_F32);
        check_gradients(9, 3, 1, 64, 16, SLM_BF16);
        check_gradients(3, 7, 2, 1, 1, SLM_F32);
    }
}

/* ---- the layer in a graph ---- */

static const struct slm_config config = {.struct_size = sizeof config,
                                         .d_model = 20,
                                         .d_latent = 9,
                                         .n_experts = 6,
                                         .top_k = 2,
                                         .d_expert = 7,
                                         .n_shared = 2,
                                         .d_shared = 5,
                                         .dtype = SLM_BF16,
                                         .eps = 1e-6,
                                         .beta_gate = 4.0,
                                         .beta_up = 25.0};

enum { TOKENS = 13 };

/* Device memory for every field that the configuration has; inputs are drawn. */
static void fill_fields(const slm_field *fields, size_t n_fields, const slm_call *call,
                        void *base, uint32_t *state)
{
    for (size_t i = 0; i < n_fields; i++) {
        const slm_field *field = &fields[i];
        slm_tensor *tensor = (slm_tensor *)((char *)base + field->offset);
        size_t shape[SLM_MAX_RANK], rank = strlen(field->dims);

        if (!slm_field_applies(field, &config)) continue;
        for (size_t j = 0; j < rank; j++)
            assert_true(slm_dim(&config, call, field->dims[j], &shape[j]));
        *tensor = slm_tensor_packed(NULL, slm_field_dtype(field, &config),
                                    (uint32_t)rank, shape);
        tensor->space = SLM_DEVICE;

        const size_t count = slm_tensor_count(tensor);
        float *values = malloc(count * sizeof *values);

        for (size_t j = 0; j < count; j++) values[j] = real(state);
        if (tensor->dtype == SLM_I32) {
            int32_t *ids = choices(TOKENS, config.n_experts, config.top_k, state);

            tensor->data = upload(ids, count * sizeof *ids);
            free(ids);
        } else {
            tensor->data = upload_rows(values, count, 1, tensor->dtype).data;
        }
        free(values);
    }
}

static void free_fields(const slm_field *fields, size_t n_fields, void *base)
{
    for (size_t i = 0; i < n_fields; i++)
        cudaFree(((slm_tensor *)((char *)base + fields[i].offset))->data);
}

static slm_handle *open_handle(void)
{
    slm_handle *made = calloc(1, sizeof *made);
    const slm_call call = {.n_tokens = TOKENS};
    uint32_t state = 7;
    size_t n_fields;
    const slm_field *fields = slm_weight_fields(&n_fields);

    made->config = config;
    assert_int_equal(slm_gpu_open_blas(&made->blas), SLM_OK);
    assert_int_equal(slm_gpu_open_blas(&made->side_blas), SLM_OK);
    cudaStreamCreateWithFlags(&made->side, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&made->fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&made->join, cudaEventDisableTiming);
    made->state = device(sizeof *made->state);
    cudaMallocHost((void **)&made->host_seen, sizeof *made->host_seen);
    fill_fields(fields, n_fields, &call, &made->weights, &state);
    assert_int_equal(slm_gpu_pack(made, NULL), SLM_OK);
    return made;
}

static void close_handle(slm_handle *handle)
{
    size_t n_fields;
    const slm_field *fields = slm_weight_fields(&n_fields);

    free_fields(fields, n_fields, &handle->weights);
    cublasDestroy(handle->blas);
    cublasDestroy(handle->side_blas);
    cudaStreamDestroy(handle->side);
    cudaEventDestroy(handle->fork);
    cudaEventDestroy(handle->join);
    cudaFree(handle->packed);
    cudaFree(handle->state);
    cudaFreeHost(handle->host_seen);
    free(handle);
}

/* One operation with its arguments. */
typedef struct subject {
    const slm_op_info *info;
    union {
        slm_call call;
        slm_layer_forward_args forward;
        slm_layer_backward_args backward;
    } args;
} subject;

static slm_status run(const subject *of, slm_handle *handle)
{
    return of->info->op == SLM_OP_layer_forward
               ? slm_gpu_layer_forward(handle, &of->args.forward, NULL)
               : slm_gpu_layer_backward(handle, &of->args.backward, NULL);
}

static slm_tensor *tensor_of(subject *of, const slm_field *field)
{
    return (slm_tensor *)((char *)&of->args + field->offset);
}

/* Bytes of all outputs in one piece; then -1 in their place. */
static char *take_outputs(subject *of, size_t *bytes)
{
    char *all = NULL;

    *bytes = 0;
    for (size_t i = 0; i < of->info->n_fields; i++) {
        const slm_field *field = &of->info->fields[i];
        slm_tensor *tensor = tensor_of(of, field);
        const size_t size = slm_tensor_count(tensor) * slm_dtype_size(tensor->dtype);

        if ((field->role != SLM_ROLE_OUT && field->role != SLM_ROLE_TAP) ||
            tensor->rank == 0)
            continue;
        all = realloc(all, *bytes + size);
        cudaMemcpy(all + *bytes, tensor->data, size, cudaMemcpyDeviceToHost);
        cudaMemset(tensor->data, 0xff, size);
        *bytes += size;
    }
    cudaDeviceSynchronize();
    return all;
}

static void check_captured(slm_op op,
                           size_t (*space)(const slm_config *, const slm_call *))
{
    slm_handle *handle = open_handle();
    subject of = {slm_op_describe(op), {{0}}};
    uint32_t state = 3;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    size_t bytes, again;

    of.args.call.struct_size = of.info->args_size;
    of.args.call.n_tokens = TOKENS;
    of.args.call.workspace_size = space(&config, &of.args.call);
    of.args.call.workspace = device(of.args.call.workspace_size);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    of.args.call.stream = stream;
    fill_fields(of.info->fields, of.info->n_fields, &of.args.call, &of.args, &state);
    assert_int_equal(run(&of, handle), SLM_OK);

    char *want = take_outputs(&of, &bytes);

    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
                     cudaSuccess);
    assert_int_equal(run(&of, handle), SLM_OK);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        slm_emu_seed(seed);
        assert_int_equal(cudaGraphLaunch(ready, stream), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);

        char *got = take_outputs(&of, &again);

        assert_int_equal(again, bytes);
        assert_memory_equal(got, want, bytes);
        free(got);
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    free_fields(of.info->fields, of.info->n_fields, &of.args);
    cudaFree(of.args.call.workspace);
    close_handle(handle);
    free(want);
}

static void a_graph_of_the_layer_gives_the_bits_of_the_call(void **state)
{
    (void)state;
    check_captured(SLM_OP_layer_forward, slm_gpu_layer_forward_space);
    check_captured(SLM_OP_layer_backward, slm_gpu_layer_backward_space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_experts_hold_every_pair_once),
        cmocka_unit_test(gradients_of_experts_agree_with_a_loop),
        cmocka_unit_test(a_graph_of_the_layer_gives_the_bits_of_the_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
