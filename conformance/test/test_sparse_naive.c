/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_sparse_naive.c - the grouped path against the per-expert loop.
 *
 * The chapter's own test: outputs, gradients, and a second forward after one optimiser
 * step on the experts agree with a naive loop (naive.c), within the radii that the loop
 * derives for binary32; an expert without tokens keeps its bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "naive.h"
#include "registry.h"

enum { T = NAIVE_T, D = NAIVE_D, N = NAIVE_N, K = NAIVE_K };
static const double rate = 0x1p-5; /* of the step */
static const int idle[] = {2, 5};

/* ---- inputs ---- */

/* Uniform in [-1, 1), by index. */
static double noise(uint64_t index)
{
    uint64_t v = index * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;

    v ^= v >> 31;
    v *= 0xbf58476d1ce4e5b9u;
    v ^= v >> 29;
    return (double)(v >> 11) * 0x1p-52 - 1.0;
}

typedef struct inputs {
    float x[T * D];
    float dy[T * D];
    float bias[N];
    flat_layer weights;
} inputs;

static void fill(inputs *in, uint64_t seed)
{
    float *weight = (float *)(void *)&in->weights;

    for (size_t i = 0; i < T * D; i++) {
        in->x[i] = (float)noise(seed + i);
        in->dy[i] = (float)noise(seed + 1000 + i);
    }
    for (size_t e = 0; e < N; e++)
        in->bias[e] = (float)(0.125 * noise(seed + 2000 + e));
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) in->bias[idle[i]] = -4.0f;
    for (size_t i = 0; i < sizeof in->weights / sizeof *weight; i++)
        weight[i] = (float)(0.5 * noise(seed + 3000 + i));
}

/* ---- a backend ---- */

/* The layer's members: of the values that a call is given or leaves. */
static const struct {
    const char *name;
    size_t offset;
} members[] = {
    {"w_router", offsetof(flat_layer, w_router)},
    {"w_down", offsetof(flat_layer, w_down)},
    {"w_gate", offsetof(flat_layer, w_gate)},
    {"w_up", offsetof(flat_layer, w_up)},
    {"w_out", offsetof(flat_layer, w_out)},
    {"w_expert", offsetof(flat_layer, w_expert)},
    {"gamma", offsetof(flat_layer, gamma)},
    {"w_lift", offsetof(flat_layer, w_lift)},
    {"w_shared_gate", offsetof(flat_layer, w_shared_gate)},
    {"w_shared_up", offsetof(flat_layer, w_shared_up)},
    {"w_shared_out", offsetof(flat_layer, w_shared_out)},
    {"w_shared", offsetof(flat_layer, w_shared)},
};

static float *member(const flat_layer *layer, const char *name)
{
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (strcmp(members[i].name, name) == 0)
            return (float *)(void *)((char *)layer + members[i].offset);
    return NULL;
}

typedef struct outputs {
    float y[T * D];
    int32_t ids[T * K];
    float weight[T * K];
    float dx[T * D];
    flat_layer gradient;
} outputs;

/* Memory of an argument, NULL for a tap that nobody wants. */
static void *place_of(const inputs *in, outputs *out, const char *name)
{
    const struct {
        const char *name;
        const void *data;
    } own[] = {{"x", in->x},   {"dy", in->dy},    {"bias", in->bias},
               {"y", out->y},  {"ids", out->ids}, {"weight", out->weight},
               {"dx", out->dx}};

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(own[i].name, name) == 0) return (void *)own[i].data;
    return name[0] == 'd' ? member(&out->gradient, name + 1) : NULL;
}

static slm_tensor view(const slm_field *field, const slm_config *config,
                       const slm_call *call, void *data)
{
    size_t shape[SLM_MAX_RANK];
    uint32_t rank = 0;

    for (; field->dims[rank]; rank++)
        assert_true(slm_dim(config, call, field->dims[rank], &shape[rank]));
    return slm_tensor_packed(data, slm_field_dtype(field, config), rank, shape);
}

/* Arguments of one of the two operations. */
typedef union arguments {
    slm_call call;
    slm_layer_forward_args forward;
    slm_layer_backward_args backward;
} arguments;

static void fill_arguments(arguments *args, slm_op op, const slm_config *config,
                           const inputs *in, outputs *out)
{
    const slm_op_info *info = slm_op_describe(op);

    memset(args, 0, sizeof *args);
    args->call.struct_size = info->args_size;
    args->call.n_tokens = T;
    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];
        void *data = place_of(in, out, field->name);

        if (!data || !slm_field_applies(field, config)) continue;
        *(slm_tensor *)(void *)((char *)args + field->offset) =
            view(field, config, &args->call, data);
    }
}

static void prepare(const slm_backend *backend, slm_handle *handle,
                    const slm_config *config, const flat_layer *weights)
{
    const slm_call call = {.n_tokens = T};
    slm_weights list = {.struct_size = sizeof list};
    size_t n;
    const slm_field *fields = slm_weight_fields(&n);

    for (size_t i = 0; i < n; i++)
        if (slm_field_applies(&fields[i], config))
            *(slm_tensor *)(void *)((char *)&list + fields[i].offset) =
                view(&fields[i], config, &call, member(weights, fields[i].name));
    assert_int_equal(backend->prepare(handle, &list, NULL), SLM_OK);
}

static void call(const slm_backend *backend, slm_handle *handle, slm_op op,
                 const slm_config *config, const inputs *in, outputs *out)
{
    arguments args;
    size_t size;
    void *workspace;

    fill_arguments(&args, op, config, in, out);
    size = backend->workspace ? backend->workspace(handle, op, &args.call) : 0;
    workspace = aligned_alloc(64, (size + 64) / 64 * 64);
    assert_non_null(workspace);
    args.call.workspace = workspace;
    args.call.workspace_size = size;
    assert_int_equal(slm_check(op, config, &args, NULL), SLM_OK);
    if (op == SLM_OP_layer_forward)
        assert_int_equal(backend->ops->layer_forward(handle, &args.forward, NULL),
                         SLM_OK);
    else
        assert_int_equal(backend->ops->layer_backward(handle, &args.backward, NULL),
                         SLM_OK);
    free(workspace);
}

/* Forward, and backward where it is wanted, on a fresh handle. Old memory is NaN. */
static void run(const slm_backend *backend, const slm_config *config, const inputs *in,
                int with_backward, outputs *out)
{
    slm_handle *handle = NULL;

    memset(out, 0xff, sizeof *out);
    assert_int_equal(backend->open(config, &handle, NULL), SLM_OK);
    prepare(backend, handle, config, &in->weights);
    call(backend, handle, SLM_OP_layer_forward, config, in, out);
    if (with_backward) call(backend, handle, SLM_OP_layer_backward, config, in, out);
    backend->close(handle);
}

/* ---- comparison ---- */

/* How many of the values lie outside their radius. */
static size_t outside(const float *got, const real *want, size_t count)
{
    size_t found = 0;

    for (size_t i = 0; i < count; i++)
        found += !(fabs((double)got[i] - want[i].value) <= want[i].radius);
    return found;
}

typedef struct verdict {
    size_t y; /* values outside their radius */
    size_t dx;
    size_t gradient; /* of all weights              */
    size_t second_y; /* after the step              */
} verdict;

static size_t outside_gradients(const slm_config *config, const flat_layer *got,
                                const naive_layer *want)
{
    const real *values = (const real *)(const void *)want;
    size_t found = 0, n;
    const slm_field *fields = slm_weight_fields(&n);
    const slm_call none = {.n_tokens = T};

    for (size_t i = 0; i < n; i++) {
        const float *of = member(got, fields[i].name);
        const size_t first = (size_t)(of - (const float *)(const void *)got);
        const slm_tensor shape = view(&fields[i], config, &none, NULL);

        if (slm_field_applies(&fields[i], config))
            found += outside(of, values + first, slm_tensor_count(&shape));
    }
    return found;
}

/* First and last of the experts' own weights. */
enum {
    EXPERTS = offsetof(flat_layer, w_gate) / sizeof(float),
    EXPERTS_END = offsetof(flat_layer, gamma) / sizeof(float)
};

/* Plain gradient descent, without decay, on the experts. */
static void step(const slm_config *config, flat_layer *weights,
                 const flat_layer *gradient)
{
    float *w = (float *)(void *)weights;
    const float *g = (const float *)(const void *)gradient;

    for (size_t i = EXPERTS; i < EXPERTS_END; i++) {
        const int is_matrix = i >= offsetof(flat_layer, w_expert) / sizeof(float);

        if (is_matrix == (config->expert == SLM_EXPERT_LINEAR))
            w[i] -= (float)rate * g[i];
    }
}

static void naive_steps(naive_layer *weights, const naive_layer *gradient)
{
    real *w = (real *)(void *)weights;
    const real *g = (const real *)(const void *)gradient;

    for (size_t i = EXPERTS; i < EXPERTS_END; i++) w[i] = naive_step(w[i], rate, g[i]);
}

/* Exact zeros as gradients, and the same bits after the step. */
static void check_idle(const slm_config *config, const outputs *first,
                       const flat_layer *before, const flat_layer *after)
{
    static const struct {
        const char *name;
        size_t size;
        int linear;
    } of[] = {{"w_gate", NAIVE_F * NAIVE_L, 0},
              {"w_up", NAIVE_F * NAIVE_L, 0},
              {"w_out", NAIVE_F * NAIVE_L, 0},
              {"w_expert", NAIVE_L * NAIVE_L, 1}};

    for (size_t i = 0; i < T * K; i++)
        for (size_t e = 0; e < sizeof idle / sizeof *idle; e++)
            assert_int_not_equal(first->ids[i], idle[e]);
    for (size_t w = 0; w < sizeof of / sizeof *of; w++)
        for (size_t e = 0; e < sizeof idle / sizeof *idle; e++) {
            const size_t at = (size_t)idle[e] * of[w].size;
            const float *g = member(&first->gradient, of[w].name) + at;

            if (of[w].linear != (config->expert == SLM_EXPERT_LINEAR)) continue;
            for (size_t i = 0; i < of[w].size; i++) assert_true(g[i] == 0.0f);
            assert_memory_equal(member(before, of[w].name) + at,
                                member(after, of[w].name) + at, of[w].size * sizeof *g);
        }
}

/* Both paths, twice with a step between; `fault` is the naive one's. */
static verdict compare(const slm_backend *backend, const slm_config *config,
                       uint64_t seed, naive_fault fault)
{
    static inputs in, stepped;
    static outputs first, second;
    static naive_layer weights;
    static naive_result naive;
    naive_job job = {config, backend->arithmetic, &weights, in.x, in.dy, in.bias,
                     fault};
    real *w = (real *)(void *)&weights;
    verdict found;

    fill(&in, seed);
    for (size_t i = 0; i < sizeof in.weights / sizeof(float); i++)
        w[i] = (real){(double)((const float *)(const void *)&in.weights)[i], 0.0, 0.0};
    run(backend, config, &in, 1, &first);
    naive_run(&job, &naive);
    assert_true(naive.margin > 1e-4); /* no near tie: the choice is not at stake */
    for (size_t i = 0; i < T * K; i++)
        assert_int_equal(first.ids[i], naive.ids[i / K][i % K]);
    assert_int_equal(outside(first.weight, naive.weight[0], T * K), 0);
    found.y = outside(first.y, naive.y[0], T * D);
    found.dx = outside(first.dx, naive.dx[0], T * D);
    found.gradient = outside_gradients(config, &first.gradient, &naive.gradient);

    stepped = in;
    step(config, &stepped.weights, &first.gradient);
    check_idle(config, &first, &in.weights, &stepped.weights);
    naive_steps(&weights, &naive.gradient);
    run(backend, config, &stepped, 0, &second);
    naive_run(&job, &naive);
    for (size_t i = 0; i < T * K; i++) assert_int_equal(second.ids[i], first.ids[i]);
    found.second_y = outside(second.y, naive.y[0], T * D);
    assert_memory_not_equal(first.y, second.y, sizeof first.y);
    return found;
}

/* ---- configurations ---- */

static slm_config configuration(const char *profile)
{
    slm_config config;

    assert_true(slm_config_profile(profile, &config));
    config.d_model = NAIVE_D;
    config.d_latent = NAIVE_L;
    config.n_experts = N;
    config.top_k = K;
    config.d_expert = NAIVE_F;
    config.n_shared = NAIVE_S;
    config.d_shared = NAIVE_FS;
    return config;
}

static const slm_backend *trainable(size_t index)
{
    const slm_backend *backend = registry_find(registry_name(index));

    if (!backend || !backend->ops->layer_forward || !backend->ops->layer_backward)
        return NULL;
    return backend;
}

static void grouped_and_naive_paths_agree(void **state)
{
    static const char *const profiles[] = {"paper", "release", "vanilla", "linear"};
    size_t backends = 0;

    (void)state;
    for (size_t b = 0; registry_name(b); b++) {
        const slm_backend *backend = trainable(b);

        if (!backend) continue;
        backends++;
        for (size_t p = 0; p < sizeof profiles / sizeof *profiles; p++) {
            const slm_config config = configuration(profiles[p]);
            const verdict found = compare(backend, &config, 7, NAIVE_RIGHT);

            if (found.y || found.dx || found.gradient || found.second_y)
                fail_msg("%s, %s: outside their radius y %zu, dx %zu, gradients %zu, "
                         "second y %zu",
                         registry_name(b), profiles[p], found.y, found.dx,
                         found.gradient, found.second_y);
        }
    }
    assert_true(backends > 0);
}

/* Each fault is seen where it must be, and only the forward is spared. */
static void a_fault_in_the_naive_path_is_seen(void **state)
{
    const slm_config config = configuration("paper");

    (void)state;
    for (size_t b = 0; registry_name(b); b++)
        for (int fault = NAIVE_RIGHT + 1; fault < NAIVE_FAULTS; fault++) {
            const slm_backend *backend = trainable(b);
            verdict found;

            if (!backend) continue;
            found = compare(backend, &config, 7, (naive_fault)fault);
            assert_int_equal(found.y, 0);
            if (fault == NAIVE_FORGETS_THE_ROUTER)
                assert_int_equal(found.gradient, 0);
            else
                assert_true(found.gradient > 0 && found.second_y > 0);
            if (fault == NAIVE_DROPS_A_TOKEN)
                assert_int_equal(found.dx, 0);
            else
                assert_true(found.dx > 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_and_naive_paths_agree),
        cmocka_unit_test(a_fault_in_the_naive_path_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
