/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_domain.c - DOMAIN of a configuration, from both sides.     X1 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "lawful.h"

typedef struct size_case {
    slm_op op;
    const char *field;
    size_t offset; /* of the member in slm_config */
    size_t value;
    slm_status status;
} size_case;

#define SIZE(op, member, value, status)                                                \
    {                                                                                  \
        SLM_OP_##op, #member, offsetof(slm_config, member), value, status              \
    }

static void each_size_is_checked_where_it_is_used(void **state)
{
    static const size_case cases[] = {
        SIZE(route, d_model, 0, SLM_ERR_DOMAIN),
        SIZE(route, d_model, 1, SLM_OK),
        SIZE(route, d_latent, 0, SLM_OK),
        SIZE(route, d_expert, 0, SLM_OK),
        SIZE(route, n_bins, 0, SLM_OK),
        SIZE(route, n_experts, 0, SLM_ERR_DOMAIN),
        SIZE(route, top_k, 0, SLM_ERR_DOMAIN),
        SIZE(route, top_k, 1, SLM_OK),
        SIZE(route, top_k, 4, SLM_OK),
        SIZE(route, top_k, 5, SLM_ERR_DOMAIN),
        SIZE(select, top_k, 0, SLM_ERR_DOMAIN),
        SIZE(select, top_k, 4, SLM_OK),
        SIZE(select, top_k, 5, SLM_ERR_DOMAIN),
        SIZE(select, d_model, 0, SLM_OK),
        SIZE(permute, top_k, 5, SLM_ERR_DOMAIN),
        SIZE(permute, n_experts, 0, SLM_ERR_DOMAIN),
        SIZE(situ_glu, d_expert, 0, SLM_ERR_DOMAIN),
        SIZE(situ_glu, d_expert, 1, SLM_OK),
        SIZE(situ_glu, n_experts, 0, SLM_OK),
        SIZE(situ_glu, top_k, 0, SLM_OK),
        SIZE(dense_ffn, d_model, 0, SLM_ERR_DOMAIN),
        SIZE(dense_ffn, d_expert, 0, SLM_ERR_DOMAIN),
        SIZE(rmsnorm, d_latent, 0, SLM_ERR_DOMAIN),
        SIZE(rmsnorm, d_latent, 1, SLM_OK),
        SIZE(rmsnorm, d_model, 0, SLM_OK),
        SIZE(layer_forward, d_model, 0, SLM_ERR_DOMAIN),
        SIZE(layer_forward, d_latent, 0, SLM_ERR_DOMAIN),
        SIZE(layer_forward, n_experts, 0, SLM_ERR_DOMAIN),
        SIZE(layer_forward, top_k, 5, SLM_ERR_DOMAIN),
        SIZE(layer_forward, d_expert, 0, SLM_ERR_DOMAIN),
        SIZE(layer_forward, n_shared, 0, SLM_OK),
        SIZE(layer_forward, d_shared, 0, SLM_ERR_DOMAIN),
        SIZE(qb_exact, top_k, 0, SLM_ERR_DOMAIN),
        SIZE(qb_exact, top_k, 3, SLM_OK),
        SIZE(qb_exact, top_k, 4, SLM_ERR_DOMAIN),
        SIZE(qb_exact, n_bins, 0, SLM_OK),
        SIZE(qb_hist_accumulate, top_k, 3, SLM_OK),
        SIZE(qb_hist_accumulate, top_k, 4, SLM_ERR_DOMAIN),
        SIZE(qb_hist_accumulate, n_bins, 0, SLM_ERR_DOMAIN),
        SIZE(qb_hist_accumulate, n_bins, 1, SLM_OK),
        SIZE(qb_hist_merge, n_bins, 0, SLM_ERR_DOMAIN),
        SIZE(qb_hist_merge, top_k, 0, SLM_OK),
        SIZE(qb_hist_solve, top_k, 3, SLM_OK),
        SIZE(qb_hist_solve, top_k, 4, SLM_ERR_DOMAIN),
        SIZE(qb_hist_solve, top_k, 0, SLM_ERR_DOMAIN),
        SIZE(sign_step, n_experts, 0, SLM_ERR_DOMAIN),
        SIZE(sign_step, top_k, 0, SLM_OK),
        SIZE(load_metrics, top_k, 5, SLM_ERR_DOMAIN),
        SIZE(qb_observe, top_k, 3, SLM_OK),
        SIZE(qb_observe, top_k, 4, SLM_ERR_DOMAIN),
        SIZE(qb_observe, n_bins, 0, SLM_ERR_DOMAIN),
        SIZE(qb_commit, top_k, 0, SLM_OK),
        SIZE(qb_commit, n_bins, 0, SLM_ERR_DOMAIN),
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        slm_config config = lawful_config();
        lawful call;

        memcpy((char *)&config + cases[i].offset, &cases[i].value, sizeof(size_t));
        lawful_open(&call, cases[i].op, &config, 5);
        if (cases[i].op == SLM_OP_permute || cases[i].op == SLM_OP_load_metrics)
            memset(call.memory[0], 0, call.bytes[0]);
        lawful_expect(&call, cases[i].status, cases[i].field, 0);
        lawful_close(&call);
    }
}

static void an_expert_number_must_fit_an_int32(void **state)
{
    slm_config config = lawful_config();
    lawful call;

    (void)state;
    config.n_experts = (size_t)INT32_MAX + 1;
    lawful_open(&call, SLM_OP_select, &(slm_config){.n_experts = 0, .top_k = 2}, 0);
    call.config = config;
    call.args.select.score.shape[1] = config.n_experts;
    call.args.select.bias = (slm_tensor){
        .data = &config, .rank = 1, .space = SLM_DEVICE, .shape = {config.n_experts}};
    lawful_expect(&call, SLM_ERR_DOMAIN, "n_experts", 0);
    call.config.n_experts--;
    call.args.select.score.shape[1]--;
    call.args.select.bias.shape[0]--;
    lawful_passes(&call);
    lawful_close(&call);
}

typedef struct number_case {
    slm_op op;
    const char *field;
    size_t offset;
    slm_status status[8]; /* for each of numbers[] */
} number_case;

static const double numbers[8] = {1.0, 0x1p-1074, 0.0, -0.0, -1.0, 0.1, INFINITY, NAN};

#define YES SLM_OK
#define NO SLM_ERR_DOMAIN
#define POSITIVE                                                                       \
    {                                                                                  \
        YES, YES, NO, NO, NO, YES, NO, NO                                              \
    }
#define BINARY32                                                                       \
    {                                                                                  \
        YES, NO, NO, NO, NO, NO, NO, NO                                                \
    }
#define ANYTHING                                                                       \
    {                                                                                  \
        YES, YES, YES, YES, YES, YES, YES, YES                                         \
    }
#define NUMBER(op, member, ...)                                                        \
    {                                                                                  \
        SLM_OP_##op, #member, offsetof(slm_config, member), __VA_ARGS__                \
    }

static void each_parameter_is_checked_where_it_is_used(void **state)
{
    static const number_case cases[] = {
        NUMBER(rmsnorm, eps, POSITIVE),        NUMBER(layer_forward, eps, POSITIVE),
        NUMBER(route, eps, ANYTHING),          NUMBER(situ_glu, beta_gate, POSITIVE),
        NUMBER(situ_glu, beta_up, POSITIVE),   NUMBER(dense_ffn, beta_gate, POSITIVE),
        NUMBER(dense_ffn, beta_up, POSITIVE),  NUMBER(layer_forward, beta_up, POSITIVE),
        NUMBER(rmsnorm, beta_gate, ANYTHING),  NUMBER(sign_step, rate, BINARY32),
        NUMBER(layer_forward, rate, ANYTHING), NUMBER(sign_step, eps, ANYTHING),
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t j = 0; j < 8; j++) {
            const slm_config config = lawful_config();
            lawful call;

            lawful_open(&call, cases[i].op, &config, 5);
            memcpy((char *)&call.config + cases[i].offset, &numbers[j], sizeof(double));
            lawful_expect(&call, cases[i].status[j], cases[i].field, 0);
            lawful_close(&call);
        }
    }
}

static void parameters_of_what_is_switched_off_do_not_matter(void **state)
{
    slm_config config = lawful_config();
    lawful call;

    (void)state;
    config.norm = SLM_NORM_NONE;
    config.expert = SLM_EXPERT_SWIGLU;
    config.eps = 0;
    config.beta_gate = NAN;
    config.beta_up = -1;
    lawful_open(&call, SLM_OP_layer_forward, &config, 5);
    lawful_passes(&call);
    call.config.expert = SLM_EXPERT_SITU;
    lawful_expect(&call, SLM_ERR_DOMAIN, "beta_gate", 0);
    lawful_close(&call);
}

static void choices_out_of_their_lists_are_domain_errors(void **state)
{
    const slm_config config = lawful_config();
    lawful call;

    (void)state;
    lawful_open(&call, SLM_OP_layer_forward, &config, 5);
    call.config.score = (slm_score_function)2;
    lawful_expect(&call, SLM_ERR_DOMAIN, "score", 0);
    call.config.score = SLM_SCORE_SOFTMAX;
    call.config.weighting = (slm_weighting)2;
    lawful_expect(&call, SLM_ERR_DOMAIN, "weighting", 0);
    call.config.weighting = SLM_WEIGHT_RELEASE;
    call.config.expert = (slm_expert_kind)99;
    lawful_expect(&call, SLM_ERR_DOMAIN, "expert", 0);
    call.args.layer_forward.h.rank = 77; /* cannot be judged, must not be looked at */
    lawful_expect(&call, SLM_ERR_DOMAIN, "expert", 0);
    lawful_close(&call);

    lawful_open(&call, SLM_OP_rmsnorm, &config, 5);
    call.config.norm = (slm_norm)2;
    call.args.rmsnorm.gamma.rank = 0;
    lawful_expect(&call, SLM_ERR_DOMAIN, "norm", 0);
    call.config.norm = SLM_NORM_RMS;
    call.config.dtype = SLM_F64;
    call.args.rmsnorm.u = slm_tensor_packed(&call, SLM_F64, 2, (size_t[]){5, 3});
    call.args.rmsnorm.r =
        slm_tensor_packed(call.memory[0], SLM_F64, 2, (size_t[]){5, 3});
    call.args.rmsnorm.u.space = SLM_DEVICE;
    lawful_expect(&call, SLM_ERR_DOMAIN, "dtype", 0);
    lawful_close(&call);

    lawful_open(&call, SLM_OP_qb_exact, &config, 5);
    call.config.balance = (slm_balance)2;
    lawful_expect(&call, SLM_ERR_DOMAIN, "balance", 0);
    call.config.balance = SLM_BALANCE_STRICT;
    call.config.tie_test = (slm_tie_test)2;
    lawful_expect(&call, SLM_ERR_DOMAIN, "tie_test", 0);
    call.config.balance = SLM_BALANCE_RELAXED;
    lawful_passes(&call);
    lawful_close(&call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_size_is_checked_where_it_is_used),
        cmocka_unit_test(an_expert_number_must_fit_an_int32),
        cmocka_unit_test(each_parameter_is_checked_where_it_is_used),
        cmocka_unit_test(parameters_of_what_is_switched_off_do_not_matter),
        cmocka_unit_test(choices_out_of_their_lists_are_domain_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
