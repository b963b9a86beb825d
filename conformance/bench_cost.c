/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_cost.c - FLOPs and bytes of a call; the roof over it. */
#include "bench_cost.h"

static double real(size_t value)
{
    return (double)value;
}

static double at_least(double a, double b)
{
    return a > b ? a : b;
}

/* Matrices of an expert, or of the shared ones together: gate, up, out; up, out; one. */
static double matrices(const slm_config *config)
{
    switch (config->expert) {
    case SLM_EXPERT_LINEAR:
        return 1;
    case SLM_EXPERT_RELU:
        return 2;
    default:
        return 3;
    }
}

static double expert_size(const slm_config *c)
{
    const double inner =
        c->expert == SLM_EXPERT_LINEAR ? real(c->d_latent) : real(c->d_expert);

    return matrices(c) * inner * real(c->d_latent);
}

static double shared_size(const slm_config *c)
{
    const double inner =
        c->expert == SLM_EXPERT_LINEAR ? real(c->d_model) : real(c->d_shared);

    return matrices(c) * real(c->n_shared) * inner * real(c->d_model);
}

static double dense_size(const slm_config *c)
{
    return real(c->d_model) * (real(c->n_experts) + 2 * real(c->d_latent)) +
           real(c->d_latent) + shared_size(c);
}

static void layer_forward(bench_cost *cost, const slm_config *c, double tokens,
                          double experts, double bytes)
{
    const double d = real(c->d_model), k = real(c->top_k);

    cost->flops = 2 * tokens *
                  (d * (real(c->n_experts) + 2 * real(c->d_latent)) + shared_size(c) +
                   k * expert_size(c));
    cost->weights = bytes * (dense_size(c) + experts * expert_size(c));
    cost->inputs = tokens * d * bytes + 4 * real(c->n_experts);
    cost->outputs = tokens * d * bytes + 8 * tokens * k;
}

/* The forward values that the gradients need are made again, as the arguments have
 * none of them; y is not needed, and of linear experts nothing but o.               G4 */
static void layer_backward(bench_cost *cost, const slm_config *c, double tokens,
                           double experts, double bytes)
{
    const double d = real(c->d_model), l = real(c->d_latent);
    const double n = real(c->n_experts), k = real(c->top_k);
    const double shared_again = c->expert == SLM_EXPERT_LINEAR ? 0 : 2.0 / 3;
    const double all = dense_size(c) + n * expert_size(c);

    cost->flops = 2 * tokens *
                  (n * d + 2 * k * d + 3 * l * d + 2 * d * l +
                   (2 + shared_again) * shared_size(c) + 3 * k * expert_size(c));
    cost->weights = bytes * (dense_size(c) + experts * expert_size(c));
    cost->inputs = 2 * tokens * d * bytes + 4 * tokens * k;
    cost->outputs = tokens * d * bytes + 4 * all;
}

static void dense_ffn(bench_cost *cost, const slm_config *c, double tokens,
                      double bytes, int backward)
{
    const double size = matrices(c) * real(c->d_expert) * real(c->d_model);

    cost->flops = 2 * tokens * size * (backward ? 2 + 2.0 / 3 : 1);
    cost->weights = bytes * size;
    cost->inputs = (backward ? 2 : 1) * tokens * real(c->d_model) * bytes;
    cost->outputs = tokens * real(c->d_model) * bytes + (backward ? 4 * size : 0);
}

bench_cost bench_cost_of(slm_op op, const slm_config *config, size_t n_tokens,
                         const bench_rotation *rotation)
{
    const double T = real(n_tokens), bytes = real(slm_dtype_size(config->dtype));
    const double n = real(config->n_experts), k = real(config->top_k);
    const double l = real(config->d_latent), f = real(config->d_expert);
    double experts = 0;
    bench_cost cost = {0};

    switch (op) {
    case SLM_OP_layer_forward:
        layer_forward(&cost, config, T, rotation->experts, bytes);
        experts = rotation->reached - rotation->experts;
        break;
    case SLM_OP_layer_backward:
        layer_backward(&cost, config, T, rotation->experts, bytes);
        experts = rotation->reached - rotation->experts;
        break;
    case SLM_OP_dense_ffn:
        dense_ffn(&cost, config, T, bytes, 0);
        break;
    case SLM_OP_dense_ffn_backward:
        dense_ffn(&cost, config, T, bytes, 1);
        break;
    case SLM_OP_route:
        cost.flops = 2 * T * n * real(config->d_model);
        cost.weights = bytes * n * real(config->d_model);
        cost.inputs = T * bytes * real(config->d_model) + 4 * n;
        cost.outputs = 8 * T * k;
        break;
    case SLM_OP_select:
        cost.inputs = 4 * T * n + 4 * n;
        cost.outputs = 8 * T * k;
        break;
    case SLM_OP_permute:
        cost.inputs = 4 * T * k;
        cost.outputs = 8 * T * k + 16 * n + 8;
        break;
    case SLM_OP_situ_glu:
        cost.inputs = 2 * T * f * bytes;
        cost.outputs = T * f * bytes;
        break;
    case SLM_OP_situ_glu_backward:
        cost.inputs = 3 * T * f * bytes;
        cost.outputs = 2 * T * f * bytes;
        break;
    case SLM_OP_rmsnorm:
        cost.inputs = (T + 1) * l * bytes;
        cost.outputs = T * l * bytes;
        break;
    case SLM_OP_rmsnorm_backward:
        cost.inputs = (2 * T + 1) * l * bytes;
        cost.outputs = T * l * bytes + 4 * l;
        break;
    case SLM_OP_qb_exact:
        cost.inputs = 4 * T * n + 4 * n;
        cost.outputs = 4 * n;
        break;
    case SLM_OP_qb_hist_accumulate: /* which bins it counts in is not known */
        cost.inputs = 4 * T * n + 4 * n;
        break;
    case SLM_OP_load_metrics:
        cost.inputs = 4 * T * k;
        cost.outputs = 8 * n + 32;
        break;
    default:
        break;
    }
    cost.working_set = real(rotation->layers) *
                           (cost.weights + bytes * experts * expert_size(config)) +
                       real(rotation->places) * cost.inputs + cost.outputs;
    return cost;
}

const char *bench_cannot_time(slm_op op, const slm_config *config)
{
    switch (op) {
    case SLM_OP_layer_backward:
    case SLM_OP_dense_ffn_backward:
        if (config->expert == SLM_EXPERT_RELU) return "relu experts have no backward";
        if (op == SLM_OP_layer_backward && config->score == SLM_SCORE_SOFTMAX)
            return "softmax scores have no backward";
        return NULL;
    case SLM_OP_dense_ffn:
        return config->expert == SLM_EXPERT_LINEAR
                   ? "a linear expert has no such network"
                   : NULL;
    case SLM_OP_qb_exact:
    case SLM_OP_qb_hist_accumulate:
        return config->top_k < config->n_experts ? NULL : "balancing needs k < n";
    case SLM_OP_layer_forward:
    case SLM_OP_route:
    case SLM_OP_select:
    case SLM_OP_permute:
    case SLM_OP_situ_glu:
    case SLM_OP_situ_glu_backward:
    case SLM_OP_rmsnorm:
    case SLM_OP_rmsnorm_backward:
    case SLM_OP_load_metrics:
        return NULL;
    default:
        return "a call changes what the next one needs, or costs nothing";
    }
}

int bench_is_by_row(slm_op op)
{
    return op == SLM_OP_layer_forward || op == SLM_OP_route || op == SLM_OP_select ||
           op == SLM_OP_situ_glu || op == SLM_OP_situ_glu_backward ||
           op == SLM_OP_dense_ffn || op == SLM_OP_rmsnorm;
}

double bench_bytes(const bench_cost *cost)
{
    return cost->weights + cost->inputs + cost->outputs;
}

/* The measured size that holds a working set. */
static size_t level_of(const bench_roof *roof, double working_set)
{
    size_t i = 0;

    while (i + 1 < roof->n_sizes && roof->size[i + 1] <= working_set) i++;
    return i;
}

double bench_bandwidth(const bench_roof *roof, double working_set)
{
    return roof->n_sizes ? roof->bandwidth[level_of(roof, working_set)] : 0;
}

double bench_usual_bandwidth(const bench_roof *roof, double working_set)
{
    return roof->n_sizes ? roof->usual[level_of(roof, working_set)] : 0;
}

double bench_peak(const bench_roof *roof, slm_dtype dtype)
{
    if (dtype != SLM_BF16) return roof->fma;
    return at_least(roof->fma, at_least(roof->dot, roof->amx));
}

static double moving(double bandwidth, const bench_cost *cost)
{
    return bandwidth > 0 ? bench_bytes(cost) / bandwidth : 0;
}

static double computing(const bench_roof *roof, const bench_cost *cost, slm_dtype dtype)
{
    const double peak = bench_peak(roof, dtype);

    return peak > 0 ? cost->flops / peak : 0;
}

double bench_roof_seconds(const bench_roof *roof, const bench_cost *cost,
                          slm_dtype dtype)
{
    if (roof->emulated) return 0;
    return at_least(moving(bench_bandwidth(roof, cost->working_set), cost),
                    computing(roof, cost, dtype));
}

double bench_usual_seconds(const bench_roof *roof, const bench_cost *cost,
                           slm_dtype dtype)
{
    const double bandwidth = bench_usual_bandwidth(roof, cost->working_set);

    if (roof->emulated || bandwidth == 0) return 0;
    return at_least(moving(bandwidth, cost), computing(roof, cost, dtype));
}

int bench_is_moving(const bench_roof *roof, const bench_cost *cost, slm_dtype dtype)
{
    return moving(bench_bandwidth(roof, cost->working_set), cost) >
           computing(roof, cost, dtype);
}
