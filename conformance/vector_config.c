/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_config.c - the configuration of a case, key by key. */
#include "vector_load.h"

#include "vector_number.h"

#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof *(array))

enum {
    KEY_PROFILE,
    KEY_D,
    KEY_L,
    KEY_N,
    KEY_K,
    KEY_F,
    KEY_S,
    KEY_FS,
    KEY_B,
    KEY_T,
    KEY_R,
    KEY_SCORE,
    KEY_WEIGHTING,
    KEY_EXPERT,
    KEY_NORM,
    KEY_BALANCE,
    KEY_TIE_TEST,
    KEY_DTYPE,
    KEY_EPS,
    KEY_BETA_GATE,
    KEY_BETA_UP,
    KEY_RATE,
    N_KEYS
};

static const char *const keys[N_KEYS] = {
    "profile",  "d",     "l",   "n",         "k",         "f",      "S",    "fs",
    "B",        "T",     "R",   "score",     "weighting", "expert", "norm", "balance",
    "tie_test", "dtype", "eps", "beta_gate", "beta_up",   "rate"};

/* In the order of their enumerations. */
static const char *const profiles[] = {"paper", "release", "vanilla", "linear"};
static const char *const scores[] = {"sigmoid", "softmax"};
static const char *const weightings[] = {"ratio", "release"};
static const char *const experts[] = {"situ", "swiglu", "relu", "linear"};
static const char *const norms[] = {"rms", "none"};
static const char *const balances[] = {"strict", "relaxed"};
static const char *const tie_tests[] = {"note", "equal"};
static const char *const dtypes[] = {"f32", "bf16"};

static int set_size(loader *ld, const tree_node *node, const char *what, size_t *out)
{
    uint64_t value;

    if (!load_size(ld, node, what, &value)) return 0;
    if (value > SIZE_MAX)
        return load_fault(ld, &node->begin, "%s: too large for this machine", what);
    *out = (size_t)value;
    return 1;
}

static int set_real(loader *ld, const tree_node *node, const char *what, slm_dtype type,
                    double *out)
{
    char why[NUMBER_WHY];

    if (node->kind != TREE_SCALAR || node->style != TREE_PLAIN || node->size == 0)
        return load_unexpected(ld, node, what, "a hexadecimal float");
    if (number_real(node->text, type, out, why)) return 1;
    return load_fault(ld, &node->begin, "%s: %s", what, why);
}

static int set_decimal(loader *ld, const tree_node *node, const char *what, double *out)
{
    char why[NUMBER_WHY];

    if (node->kind != TREE_SCALAR || node->style != TREE_PLAIN || node->size == 0)
        return load_unexpected(ld, node, what, "a decimal number");
    if (number_decimal(node->text, out, why)) return 1;
    return load_fault(ld, &node->begin, "%s: %s", what, why);
}

static int set_member(loader *ld, size_t key, const tree_node *node, const char *what,
                      slm_config *config, slm_call *call)
{
    switch (key) {
    case KEY_D:
        return set_size(ld, node, what, &config->d_model);
    case KEY_L:
        return set_size(ld, node, what, &config->d_latent);
    case KEY_N:
        return set_size(ld, node, what, &config->n_experts);
    case KEY_K:
        return set_size(ld, node, what, &config->top_k);
    case KEY_F:
        return set_size(ld, node, what, &config->d_expert);
    case KEY_S:
        return set_size(ld, node, what, &config->n_shared);
    case KEY_FS:
        return set_size(ld, node, what, &config->d_shared);
    case KEY_B:
        return set_size(ld, node, what, &config->n_bins);
    case KEY_T:
        return set_size(ld, node, what, &call->n_tokens);
    case KEY_R:
        return set_size(ld, node, what, &call->n_parts);
    case KEY_EPS:
        return set_decimal(ld, node, what, &config->eps);
    case KEY_BETA_GATE:
        return set_real(ld, node, what, SLM_F64, &config->beta_gate);
    case KEY_BETA_UP:
        return set_real(ld, node, what, SLM_F64, &config->beta_up);
    case KEY_RATE:
        return set_real(ld, node, what, SLM_F32, &config->rate);
    default:
        return 1;
    }
}

static int set_choice(loader *ld, size_t key, const tree_node *node, const char *what,
                      slm_config *config)
{
    size_t i = 0;
    int good = 1;

    switch (key) {
    case KEY_SCORE:
        good = load_choice(ld, node, what, scores, LENGTH(scores), &i);
        config->score = (slm_score_function)i;
        break;
    case KEY_WEIGHTING:
        good = load_choice(ld, node, what, weightings, LENGTH(weightings), &i);
        config->weighting = (slm_weighting)i;
        break;
    case KEY_EXPERT:
        good = load_choice(ld, node, what, experts, LENGTH(experts), &i);
        config->expert = (slm_expert_kind)i;
        break;
    case KEY_NORM:
        good = load_choice(ld, node, what, norms, LENGTH(norms), &i);
        config->norm = (slm_norm)i;
        break;
    case KEY_BALANCE:
        good = load_choice(ld, node, what, balances, LENGTH(balances), &i);
        config->balance = (slm_balance)i;
        break;
    case KEY_TIE_TEST:
        good = load_choice(ld, node, what, tie_tests, LENGTH(tie_tests), &i);
        config->tie_test = (slm_tie_test)i;
        break;
    case KEY_DTYPE:
        good = load_choice(ld, node, what, dtypes, LENGTH(dtypes), &i);
        config->dtype = i ? SLM_BF16 : SLM_F32;
        break;
    default:
        break;
    }
    return good;
}

int load_config(loader *ld, const tree_node *family, const tree_node *own,
                vec_case *out, bool *has_T, bool *has_R)
{
    const tree_node *found[N_KEYS] = {NULL}, *mine[N_KEYS] = {NULL};
    size_t profile = 0;
    char what[32];

    if (family && !load_keys(ld, family, "config", keys, N_KEYS, found)) return 0;
    if (own && !load_keys(ld, own, "config", keys, N_KEYS, mine)) return 0;
    for (size_t i = 0; i < N_KEYS; i++)
        if (mine[i]) found[i] = mine[i];

    if (found[KEY_PROFILE] && !load_choice(ld, found[KEY_PROFILE], "config.profile",
                                           profiles, LENGTH(profiles), &profile))
        return 0;
    out->profile = profiles[profile];
    if (!slm_config_profile(out->profile, &out->config))
        return load_fault(ld, NULL, "profile %s is not in the contract", out->profile);
    out->call = (slm_call){0};
    for (size_t i = 0; i < N_KEYS; i++) {
        if (!found[i]) continue;
        snprintf(what, sizeof what, "config.%s", keys[i]);
        if (!set_member(ld, i, found[i], what, &out->config, &out->call) ||
            !set_choice(ld, i, found[i], what, &out->config))
            return 0;
    }
    *has_T = found[KEY_T] != NULL;
    *has_R = found[KEY_R] != NULL;
    return 1;
}
