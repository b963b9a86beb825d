/* SPDX-License-Identifier: Apache-2.0 */
/* spec/domain.c - which sizes, choices and parameters are lawful: DOMAIN.           X1
 *
 * Members of the configuration come first, in its order; then values.c looks at the
 * tensors. Only members that the operation uses are looked at. */
#include "contract.h"

#include <math.h>
#include <string.h>

int slm_door_is_backward(slm_op op)
{
    return op == SLM_OP_situ_glu_backward || op == SLM_OP_rmsnorm_backward ||
           op == SLM_OP_select_backward || op == SLM_OP_dense_ffn_backward ||
           op == SLM_OP_layer_backward;
}

/* Whether a size of that letter appears in a field that the configuration uses. */
static int uses(const door *at, char part)
{
    for (size_t i = 0; i < at->n_fields; i++) {
        if (slm_door_applies(at, &at->fields[i]) <= 0) continue;
        for (const char *dim = at->fields[i].dims; *dim; dim++)
            if (strchr(slm_door_parts(*dim), part)) return 1;
    }
    return 0;
}

/* Whether elements of the configuration's dtype appear. */
static int uses_dtype(const door *at)
{
    for (size_t i = 0; i < at->n_fields; i++)
        if (at->fields[i].kind == SLM_KIND_REAL &&
            slm_door_applies(at, &at->fields[i]) > 0)
            return 1;
    return 0;
}

static slm_status bad_member(const door *at, const char *field, const char *expected,
                             size_t got)
{
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, field, 0, "%s; got %zu",
                    expected, got);
}

/* 1 <= k <= n. Balancing needs a (k+1)-th key: k < n.                         R5, Q2 */
static slm_status check_top_k(const door *at)
{
    const size_t k = at->config->top_k;
    const size_t n = at->config->n_experts;
    const int balances = at->op == SLM_OP_qb_exact ||
                         at->op == SLM_OP_qb_hist_accumulate ||
                         at->op == SLM_OP_qb_hist_solve || at->op == SLM_OP_qb_observe;

    if (!balances && !uses(at, 'k')) return SLM_OK;
    if (k >= 1 && k <= n - (size_t)balances) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "top_k", 0,
                    "1 <= k %s n, n is %zu; got %zu", balances ? "<" : "<=", n, k);
}

static slm_status check_sizes(const door *at)
{
    const slm_config *config = at->config;
    slm_status status;

    if (uses(at, 'd') && config->d_model < 1)
        return bad_member(at, "d_model", "1 <= d", config->d_model);
    if (uses(at, 'l') && config->d_latent < 1)
        return bad_member(at, "d_latent", "1 <= l", config->d_latent);
    if (uses(at, 'n') && (config->n_experts < 1 || config->n_experts > INT32_MAX))
        return bad_member(at, "n_experts", "1 <= n <= 2147483647", config->n_experts);
    status = check_top_k(at);
    if (status) return status;
    if (uses(at, 'f') && config->d_expert < 1)
        return bad_member(at, "d_expert", "1 <= f", config->d_expert);
    if (uses(at, 'F') && config->n_shared > 0 && config->d_shared < 1)
        return bad_member(at, "d_shared", "1 <= fs", config->d_shared);
    if (uses(at, 'B') && config->n_bins < 1)
        return bad_member(at, "n_bins", "1 <= B", config->n_bins);
    return SLM_OK;
}

/* Members that name one of a few choices. */
static slm_status check_choices(const door *at)
{
    const slm_config *config = at->config;
    const int backward = slm_door_is_backward(at->op);
    const int layer = at->op == SLM_OP_layer_forward || at->op == SLM_OP_layer_backward;
    const int routes = layer || at->op == SLM_OP_route || at->op == SLM_OP_select ||
                       at->op == SLM_OP_select_backward;
    const int weights = at->op == SLM_OP_COUNT;
    const int dense = at->op == SLM_OP_dense_ffn || at->op == SLM_OP_dense_ffn_backward;
    const int normalises =
        layer || at->op == SLM_OP_rmsnorm || at->op == SLM_OP_rmsnorm_backward;
    const unsigned expert = config->expert;

    if (uses_dtype(at) && config->dtype != SLM_F32 && config->dtype != SLM_BF16)
        return bad_member(at, "dtype", "SLM_F32 or SLM_BF16", config->dtype);
    if (routes && (unsigned)config->score > SLM_SCORE_SOFTMAX)
        return bad_member(at, "score", "a score function", config->score);
    if (routes && backward && config->score != SLM_SCORE_SIGMOID)
        return bad_member(at, "score", "sigmoid: the softmax control has no backward",
                          config->score);
    if (routes && (unsigned)config->weighting > SLM_WEIGHT_RELEASE)
        return bad_member(at, "weighting", "a weighting", config->weighting);
    if ((layer || weights || dense) && expert >= SLM_EXPERT_KINDS)
        return bad_member(at, "expert", "a kind of expert", expert);
    if (dense && expert == SLM_EXPERT_LINEAR)
        return bad_member(at, "expert", "a kind with an inner width", expert);
    if ((layer || dense) && backward && expert == SLM_EXPERT_RELU)
        return bad_member(at, "expert", "a gated or linear kind: relu has no backward",
                          expert);
    if ((normalises || weights) && (unsigned)config->norm > SLM_NORM_NONE)
        return bad_member(at, "norm", "a norm", config->norm);
    if (at->op != SLM_OP_qb_exact) return SLM_OK;
    if ((unsigned)config->balance > SLM_BALANCE_RELAXED)
        return bad_member(at, "balance", "strict or relaxed", config->balance);
    if (config->balance == SLM_BALANCE_STRICT &&
        (unsigned)config->tie_test > SLM_TIE_EQUAL)
        return bad_member(at, "tie_test", "a tie test", config->tie_test);
    return SLM_OK;
}

static slm_status check_positive(const door *at, const char *field, double value)
{
    if (value > 0 && value < (double)INFINITY) return SLM_OK;
    return slm_fail(at->error, SLM_ERR_DOMAIN, at->name, field, 0,
                    "positive and finite; got %g", value);
}

static slm_status check_parameters(const door *at)
{
    const slm_config *config = at->config;
    const int layer = at->op == SLM_OP_layer_forward || at->op == SLM_OP_layer_backward;
    const int normalises =
        layer || at->op == SLM_OP_rmsnorm || at->op == SLM_OP_rmsnorm_backward;
    const int activates =
        layer || at->op == SLM_OP_dense_ffn || at->op == SLM_OP_dense_ffn_backward;
    const int situ = at->op == SLM_OP_situ_glu || at->op == SLM_OP_situ_glu_backward;
    slm_status status = SLM_OK;

    if (normalises && config->norm == SLM_NORM_RMS)
        status = check_positive(at, "eps", config->eps);
    if (situ || (activates && config->expert == SLM_EXPERT_SITU)) {
        if (!status) status = check_positive(at, "beta_gate", config->beta_gate);
        if (!status) status = check_positive(at, "beta_up", config->beta_up);
    }
    if (at->op != SLM_OP_sign_step) return status;
    status = check_positive(at, "rate", config->rate);
    if (!status && (double)(float)config->rate != config->rate)
        status = slm_fail(at->error, SLM_ERR_DOMAIN, at->name, "rate", 0,
                          "a binary32 value; got %a", config->rate);
    return status;
}

slm_status slm_door_domain(const door *at)
{
    slm_status status = check_sizes(at);

    if (!status) status = check_choices(at);
    if (!status) status = check_parameters(at);
    if (!status) status = slm_door_values(at);
    return status;
}
