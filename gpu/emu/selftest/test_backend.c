/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/test_backend.c - the table: capture, batches, the two ways to choose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../gpu.h"
#include "../control.h"

static float draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-24f;
}

/* `select` from scores on the device, by one handle. */
typedef struct choice {
    slm_config config;
    slm_handle *handle;
    slm_select_args args;
    size_t n_ids;
} choice;

static void *device(size_t bytes)
{
    void *memory = slm_gpu_backend()->alloc(bytes);

    assert_non_null(memory);
    return memory;
}

static void send(const slm_tensor *to, const void *from)
{
    assert_int_equal(
        slm_gpu_backend()->copy(to->data, from,
                                slm_tensor_count(to) * slm_dtype_size(to->dtype)),
        0);
}

static void fetch(void *to, const slm_tensor *from)
{
    assert_int_equal(
        slm_gpu_backend()->copy(to, from->data,
                                slm_tensor_count(from) * slm_dtype_size(from->dtype)),
        0);
}

static slm_tensor on_device(slm_dtype dtype, uint32_t rank, size_t rows, size_t cols)
{
    const size_t shape[] = {rows, cols};
    slm_tensor tensor = slm_tensor_packed(NULL, dtype, rank, shape);

    tensor.space = SLM_DEVICE;
    tensor.data = device(slm_tensor_count(&tensor) * slm_dtype_size(dtype));
    return tensor;
}

static void set_up(choice *at, size_t rows, size_t n, size_t k)
{
    memset(at, 0, sizeof *at);
    assert_true(slm_config_profile("paper", &at->config));
    at->config.n_experts = n;
    at->config.top_k = k;
    at->config.d_model = 8;
    at->n_ids = rows * k;
    assert_int_equal(slm_gpu_backend()->open(&at->config, &at->handle, NULL), SLM_OK);
    at->args.call.struct_size = sizeof at->args;
    at->args.call.n_tokens = rows;
    at->args.score = on_device(SLM_F32, 2, rows, n);
    at->args.bias = on_device(SLM_F32, 1, n, 1);
    at->args.ids = on_device(SLM_I32, 2, rows, k);
    at->args.weight = on_device(SLM_F32, 2, rows, k);
    at->args.cutoff = on_device(SLM_F32, 1, rows, 1);
}

static void tear_down(choice *at)
{
    const slm_backend *gpu = slm_gpu_backend();

    gpu->free(at->args.score.data);
    gpu->free(at->args.bias.data);
    gpu->free(at->args.ids.data);
    gpu->free(at->args.weight.data);
    gpu->free(at->args.cutoff.data);
    gpu->close(at->handle);
}

/* Everything that `select` wrote. */
typedef struct answer {
    int32_t *ids;
    float *weight;
    float *cutoff;
} answer;

static answer read_answer(const choice *at)
{
    const size_t rows = at->args.call.n_tokens;
    const answer got = {malloc(at->n_ids * 4), malloc(at->n_ids * 4), malloc(rows * 4)};

    fetch(got.ids, &at->args.ids);
    fetch(got.weight, &at->args.weight);
    fetch(got.cutoff, &at->args.cutoff);
    return got;
}

static void drop(answer got)
{
    free(got.ids);
    free(got.weight);
    free(got.cutoff);
}

static float *make_scores(size_t count, uint32_t seed)
{
    float *made = malloc(count * sizeof *made);

    /* Few values, so that there are ties. */
    for (size_t i = 0; i < count; i++) made[i] = floorf(64 * draw(&seed)) / 64;
    return made;
}

static slm_status select_now(const choice *at)
{
    return slm_gpu_backend()->ops->select(at->handle, &at->args, NULL);
}

static void give(const choice *at, const float *score, const float *bias)
{
    send(&at->args.score, score);
    send(&at->args.bias, bias);
}

static cudaGraphExec_t capture(choice *at, cudaStream_t stream)
{
    cudaGraphExec_t exec;
    cudaGraph_t graph;

    at->args.call.stream = stream;
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                     cudaSuccess);
    assert_int_equal(select_now(at), SLM_OK);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
}

static void a_captured_call_repeats_on_new_inputs_and_refuses_in_silence(void **state)
{
    enum { ROWS = 5, N = 40, K = 3 };
    float *first = make_scores(ROWS * N, 1), *second = make_scores(ROWS * N, 2);
    float *bias = make_scores(N, 3);
    cudaStream_t stream;
    cudaGraphExec_t graph;
    answer want, got;
    choice at;

    (void)state;
    set_up(&at, ROWS, N, K);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                     cudaSuccess);
    give(&at, first, bias);
    graph = capture(&at, stream);
    give(&at, second, bias);
    assert_int_equal(cudaGraphLaunch(graph, stream), cudaSuccess);
    assert_int_equal(slm_gpu_backend()->sync(stream), 0);
    got = read_answer(&at);
    assert_int_equal(select_now(&at), SLM_OK);
    want = read_answer(&at);
    assert_memory_equal(got.ids, want.ids, ROWS * K * 4);
    assert_memory_equal(got.weight, want.weight, ROWS * K * 4);
    assert_memory_equal(got.cutoff, want.cutoff, ROWS * 4);
    drop(got);

    bias[N - 1] = INFINITY;
    give(&at, first, bias);
    assert_int_equal(cudaGraphLaunch(graph, stream), cudaSuccess);
    assert_int_equal(slm_gpu_backend()->sync(stream), 0);
    got = read_answer(&at); /* still that of the second scores */
    assert_memory_equal(got.ids, want.ids, ROWS * K * 4);
    assert_memory_equal(got.weight, want.weight, ROWS * K * 4);
    assert_int_equal(select_now(&at), SLM_ERR_NONFINITE);
    drop(got);
    drop(want);
    cudaGraphExecDestroy(graph);
    cudaStreamDestroy(stream);
    tear_down(&at);
    free(first);
    free(second);
    free(bias);
}

/* One more expert, which nobody chooses, takes the other kernel. */
static void both_ways_to_choose_agree(void **state)
{
    enum { ROWS = 3, N = 1024, K = 32 };
    float *score = make_scores(ROWS * N, 4), *bias = make_scores(N + 1, 5);
    float *wider = calloc(ROWS * (N + 1), sizeof *wider);
    answer fused, wide;
    choice at;

    (void)state;
    bias[N] = -FLT_MAX;
    for (size_t t = 0; t < ROWS; t++)
        memcpy(wider + t * (N + 1), score + t * N, N * sizeof *score);
    set_up(&at, ROWS, N, K);
    give(&at, score, bias);
    assert_int_equal(select_now(&at), SLM_OK);
    fused = read_answer(&at);
    tear_down(&at);
    set_up(&at, ROWS, N + 1, K);
    give(&at, wider, bias);
    assert_int_equal(select_now(&at), SLM_OK);
    wide = read_answer(&at);
    tear_down(&at);
    assert_memory_equal(fused.ids, wide.ids, ROWS * K * 4);
    assert_memory_equal(fused.weight, wide.weight, ROWS * K * 4);
    assert_memory_equal(fused.cutoff, wide.cutoff, ROWS * 4);
    drop(fused);
    drop(wide);
    free(score);
    free(bias);
    free(wider);
}

static void a_row_has_the_same_bits_in_any_batch(void **state)
{
    enum { ROWS = 9, N = 300, K = 7 };
    float *score = make_scores(ROWS * N, 6), *bias = make_scores(N, 7);
    answer all, one;
    choice at;

    (void)state;
    set_up(&at, ROWS, N, K);
    give(&at, score, bias);
    assert_int_equal(select_now(&at), SLM_OK);
    all = read_answer(&at);
    tear_down(&at);
    for (size_t t = 0; t < ROWS; t++) {
        set_up(&at, 1, N, K);
        give(&at, score + t * N, bias);
        assert_int_equal(select_now(&at), SLM_OK);
        one = read_answer(&at);
        tear_down(&at);
        assert_memory_equal(one.ids, all.ids + t * K, K * 4);
        assert_memory_equal(one.weight, all.weight + t * K, K * 4);
        assert_memory_equal(one.cutoff, all.cutoff + t, 4);
        drop(one);
    }
    drop(all);
    free(score);
    free(bias);
}

/* What supports() says of a layer whose other sizes are 1; "" is yes. */
static void ask(slm_op op, slm_expert_kind expert, size_t n_shared, size_t d_shared,
                char *reason, size_t size)
{
    slm_config config;

    assert_true(slm_config_profile("paper", &config));
    config.d_model = config.d_latent = config.d_expert = 1;
    config.n_experts = config.top_k = 1;
    config.expert = expert;
    config.n_shared = n_shared;
    config.d_shared = d_shared;
    reason[0] = '\0';
    if (slm_gpu_backend()->supports(&config, op, 1, reason, size)) reason[0] = '\0';
}

static void shared_experts_are_as_wide_as_an_int_holds(void **state)
{
    enum { HALF = 1 << 15, MOST = (1 << 30) - 1 };
    const char *refused = "2^30 or more columns of shared experts";
    char reason[160];

    (void)state;
    ask(SLM_OP_layer_forward, SLM_EXPERT_SITU, HALF, HALF, reason, sizeof reason);
    assert_string_equal(reason, refused);
    ask(SLM_OP_layer_backward, SLM_EXPERT_SITU, MOST, MOST, reason, sizeof reason);
    assert_string_equal(reason, refused);
    ask(SLM_OP_layer_forward, SLM_EXPERT_SITU, 1, MOST, reason, sizeof reason);
    assert_null(strstr(reason, "shared")); /* whatever it says of memory */
    ask(SLM_OP_layer_forward, SLM_EXPERT_LINEAR, HALF, HALF, reason, sizeof reason);
    assert_string_equal(reason, "");
    ask(SLM_OP_dense_ffn, SLM_EXPERT_SITU, HALF, HALF, reason, sizeof reason);
    assert_string_equal(reason, "");
}

#ifdef EMU_WATCHED
static void each_score_is_read_once(void **state)
{
    enum { ROWS = 4, N = 896, K = 16 };
    const char *kernel = "(select_rows<32, false>)";
    float *score = make_scores(ROWS * N, 8), *bias = make_scores(N, 9);
    uint64_t before, loaded, stored;
    choice at;

    (void)state;
    set_up(&at, ROWS, N, K);
    give(&at, score, bias);
    slm_emu_bytes(kernel, &before, &stored);
    assert_int_equal(select_now(&at), SLM_OK);
    slm_emu_bytes(kernel, &loaded, &stored);
    /* Scores and biases once, and the words of the verdict by each thread. */
    assert_in_range(loaded - before, ROWS * N * 8, ROWS * (N * 8 + 32 * 16));
    tear_down(&at);
    free(score);
    free(bias);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_captured_call_repeats_on_new_inputs_and_refuses_in_silence),
        cmocka_unit_test(both_ways_to_choose_agree),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_batch),
        cmocka_unit_test(shared_experts_are_as_wide_as_an_int_holds),
#ifdef EMU_WATCHED
        cmocka_unit_test(each_score_is_read_once),
#endif
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);

    return failed > 125 ? 125 : failed;
}
