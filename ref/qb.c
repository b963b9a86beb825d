/* SPDX-License-Identifier: Apache-2.0 */
/* ref/qb.c - Quantile Balancing by the exact order statistic; the sign step.
 *                                                                     Q1, Q2, Q5, Q6
 *
 * m counted tokens, n experts, k chosen per token; s score, b bias; alpha_i the first key that
 * was not chosen; r_ij = alpha_i - s_ij the bias that token i needs to reach expert j.
 * Differences of binary32 values are exact here (arf_t), means exact rationals. */
#include "balance.h"

#include <stdlib.h>

size_t slm_ref_quantile_index(size_t m, size_t n, size_t k)
{
    fmpz_t index;
    size_t result;

    fmpz_init_set_ui(index, m - 1);
    fmpz_mul_ui(index, index, k);
    fmpz_add_ui(index, index, n - 1);
    fmpz_fdiv_q_ui(index, index, n);
    result = fmpz_get_ui(index);
    fmpz_clear(index);
    return result;
}

void slm_ref_equal_load(fmpq_t q, size_t m, size_t n, size_t k)
{
    fmpz_set_ui(fmpq_numref(q), m);
    fmpz_mul_ui(fmpq_numref(q), fmpq_numref(q), k);
    fmpz_set_ui(fmpq_denref(q), n);
    fmpq_canonicalise(q);
}

void slm_ref_rational(fmpq_t out, double value)
{
    arf_t exact;

    arf_init(exact);
    arf_set_d(exact, value);
    arf_get_fmpq(out, exact);
    arf_clear(exact);
}

slm_status slm_ref_tokens_open(slm_ref_tokens *tokens, const slm_call *call,
                               const slm_tensor *mask)
{
    const size_t n_tokens = call->n_tokens;

    mask = slm_given(call, mask);
    tokens->m = 0;
    tokens->row = malloc(n_tokens * sizeof *tokens->row + 1);
    if (!tokens->row) return SLM_ERR_MEMORY;
    for (size_t t = 0; t < n_tokens; t++)
        if (!mask || slm_ref_get(mask, t) != 0) tokens->row[tokens->m++] = t;
    return SLM_OK;
}

void slm_ref_tokens_close(slm_ref_tokens *tokens)
{
    free(tokens->row);
}

slm_status slm_ref_cutoffs(float *alpha, const slm_tensor *score,
                           const slm_tensor *bias, const slm_config *config,
                           const slm_ref_tokens *tokens)
{
    const size_t n = config->n_experts;
    const size_t k = config->top_k;
    float *key = malloc(n * sizeof *key);
    int32_t *ids = malloc(k * sizeof *ids);
    const slm_status status = key && ids ? SLM_OK : SLM_ERR_MEMORY;

    for (size_t i = 0; i < tokens->m && !status; i++) {
        for (size_t j = 0; j < n; j++)
            key[j] = slm_ref_key((float)slm_ref_get(score, tokens->row[i] * n + j),
                                 (float)slm_ref_get(bias, j));
        slm_ref_choose(ids, &alpha[i], key, n, k);
    }
    free(ids);
    free(key);
    return status;
}

void slm_ref_centre(const slm_tensor *new_bias, const slm_tensor *tap,
                    const fmpq *candidate, size_t n)
{
    fmpq_t mean;
    fmpq_t centred;
    fmpz_t count;

    fmpq_init(mean);
    fmpq_init(centred);
    fmpz_init_set_ui(count, n);
    for (size_t j = 0; j < n; j++) fmpq_add(mean, mean, &candidate[j]);
    fmpq_div_fmpz(mean, mean, count);
    for (size_t j = 0; j < n; j++) {
        fmpq_sub(centred, &candidate[j], mean);
        slm_ref_set(new_bias, j, (double)slm_ref_f32_q(centred));
        if (tap->rank) slm_ref_set(tap, j, slm_ref_f64_q(&candidate[j]));
    }
    fmpz_clear(count);
    fmpq_clear(centred);
    fmpq_clear(mean);
}

void slm_ref_keep_bias(const slm_tensor *new_bias, const slm_tensor *tap,
                       const slm_tensor *bias, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        slm_ref_set(new_bias, j, slm_ref_get(bias, j));
        if (tap->rank) slm_ref_set(tap, j, slm_ref_get(bias, j));
    }
}

/* r[i] = alpha[i] - s[i,j], exact, for all counted tokens. */
static void required_biases(arf_ptr r, const float *alpha, const slm_tensor *score,
                            size_t j, const slm_ref_tokens *tokens, size_t n)
{
    arf_t s;

    arf_init(s);
    for (size_t i = 0; i < tokens->m; i++) {
        arf_set_d(s, slm_ref_get(score, tokens->row[i] * n + j));
        arf_set_d(&r[i], (double)alpha[i]);
        arf_sub(&r[i], &r[i], s, ARF_PREC_EXACT, ARF_RND_DOWN);
    }
    arf_clear(s);
}

static int ascending(const void *a, const void *b)
{
    return arf_cmp((arf_srcptr)a, (arf_srcptr)b);
}

/* Whether the two neighbours of the boundary count as equal (Q2): the note's test
 *   r_(q+1) - r_(q) <= 1e-8 + 1e-5 |r_(q+1)|
 * with its decimals as they are written, both sides times 10^8; or plain equality. */
static int is_tie(const arf_t below, const arf_t above, slm_tie_test test)
{
    arf_t gap;
    arf_t allowed;
    int tie;

    arf_init(gap);
    arf_init(allowed);
    arf_sub(gap, above, below, ARF_PREC_EXACT, ARF_RND_DOWN);
    if (test == SLM_TIE_EQUAL) {
        tie = arf_is_zero(gap);
    } else {
        arf_mul_ui(gap, gap, 100000000, ARF_PREC_EXACT, ARF_RND_DOWN);
        arf_abs(allowed, above);
        arf_mul_ui(allowed, allowed, 1000, ARF_PREC_EXACT, ARF_RND_DOWN);
        arf_add_ui(allowed, allowed, 1, ARF_PREC_EXACT, ARF_RND_DOWN);
        tie = arf_cmp(gap, allowed) <= 0;
    }
    arf_clear(allowed);
    arf_clear(gap);
    return tie;
}

/* candidate[j] = the order statistic of column j; strict mode refuses a tie at its
 * lower edge. r is scratch for m numbers. Precondition: m >= 1; strict: q integral. */
static slm_status candidates(fmpq *candidate, arf_ptr r, const float *alpha,
                             const slm_config *config, const slm_qb_exact_args *args,
                             const slm_ref_tokens *tokens, slm_error *error)
{
    const size_t m = tokens->m;
    const size_t n = config->n_experts;
    const size_t index = slm_ref_quantile_index(m, n, config->top_k); /* strict: q */
    const int strict = config->balance == SLM_BALANCE_STRICT;

    for (size_t j = 0; j < n; j++) {
        required_biases(r, alpha, &args->score, j, tokens, n);
        qsort(r, m, sizeof *r, ascending);
        if (strict && is_tie(&r[index - 1], &r[index], config->tie_test))
            return slm_fail(error, SLM_ERR_TIE, "qb_exact", "new_bias", j,
                            "required biases apart at ranks %zu and %zu; got %a and %a",
                            index, index + 1, arf_get_d(&r[index - 1], ARF_RND_NEAR),
                            arf_get_d(&r[index], ARF_RND_NEAR));
        arf_get_fmpq(&candidate[j], &r[index]);
    }
    return SLM_OK;
}

/* Strict mode needs an integral equal load.                                       Q2 */
static slm_status check_target(size_t m, const slm_config *config, slm_error *error)
{
    fmpq_t q;
    int integral;

    fmpq_init(q);
    slm_ref_equal_load(q, m, config->n_experts, config->top_k);
    integral = fmpz_is_one(fmpq_denref(q));
    fmpq_clear(q);
    if (integral || config->balance == SLM_BALANCE_RELAXED) return SLM_OK;
    return slm_fail(error, SLM_ERR_TARGET, "qb_exact", "n_tokens", 0,
                    "m k divisible by n; got %zu x %zu over %zu", m, config->top_k,
                    config->n_experts);
}

/* Everything past the checks, in memory of m cutoffs and m required biases. */
static slm_status balance(const slm_config *config, const slm_qb_exact_args *args,
                          const slm_ref_tokens *tokens, float *alpha, arf_ptr r,
                          slm_error *error)
{
    const size_t n = config->n_experts;
    fmpq *candidate = _fmpq_vec_init((slong)n);
    slm_status status =
        slm_ref_cutoffs(alpha, &args->score, &args->bias, config, tokens);

    if (!status) status = candidates(candidate, r, alpha, config, args, tokens, error);
    if (!status) {
        slm_ref_centre(&args->new_bias, &args->candidate, candidate, n);
        for (size_t i = 0; i < tokens->m && args->cutoff.rank; i++)
            slm_ref_set(&args->cutoff, tokens->row[i], (double)alpha[i]);
    }
    _fmpq_vec_clear(candidate, (slong)n);
    return status;
}

/* The same, and the memory for it. */
static slm_status balance_tokens(const slm_config *config,
                                 const slm_qb_exact_args *args,
                                 const slm_ref_tokens *tokens, slm_error *error)
{
    const size_t m = tokens->m;
    slm_status status = check_target(m, config, error);
    float *alpha;
    arf_ptr r;

    if (status) return status;
    if (m == 0) {
        slm_ref_keep_bias(&args->new_bias, &args->candidate, &args->bias,
                          config->n_experts);
        return SLM_OK;
    }
    alpha = malloc(m * sizeof *alpha);
    r = malloc(m * sizeof *r);
    if (alpha && r) {
        for (size_t i = 0; i < m; i++) arf_init(&r[i]);
        status = balance(config, args, tokens, alpha, r, error);
        for (size_t i = 0; i < m; i++) arf_clear(&r[i]);
    } else {
        status = SLM_ERR_MEMORY;
    }
    free(r);
    free(alpha);
    return status;
}

slm_status slm_ref_op_qb_exact(slm_handle *handle, const slm_qb_exact_args *args,
                               slm_error *error)
{
    const slm_config *config = &handle->config;
    slm_status status = slm_check_finite(SLM_OP_qb_exact, config, args, error);
    slm_ref_tokens tokens;

    if (status) return status;
    status = slm_ref_tokens_open(&tokens, &args->call, &args->mask);
    if (!status) {
        status = balance_tokens(config, args, &tokens, error);
        slm_ref_tokens_close(&tokens);
    }
    if (status == SLM_ERR_MEMORY)
        slm_fail(error, status, "qb_exact", "", 0, "memory for %zu tokens",
                 args->call.n_tokens);
    return status;
}

slm_status slm_ref_op_sign_step(slm_handle *handle, const slm_sign_step_args *args,
                                slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t n = config->n_experts;
    const slm_status status = slm_check_finite(SLM_OP_sign_step, config, args, error);
    fmpz_t sum;
    fmpz_t load;
    fmpq_t rate;
    fmpq_t b;

    if (status) return status;
    fmpz_init(sum);
    fmpz_init(load);
    fmpq_init(rate);
    fmpq_init(b);
    slm_ref_rational(rate, config->rate);
    for (size_t j = 0; j < n; j++) {
        fmpz_set_si(load, *slm_ref_count(&args->load, j));
        fmpz_add(sum, sum, load);
    }
    for (size_t j = 0; j < n; j++) {
        int sign; /* of mean - load, that is of sum - n load */

        fmpz_set_si(load, *slm_ref_count(&args->load, j));
        fmpz_mul_ui(load, load, n);
        sign = fmpz_cmp(sum, load);
        if (sign == 0) {
            slm_ref_set(&args->new_bias, j, slm_ref_get(&args->bias, j));
            continue;
        }
        slm_ref_rational(b, slm_ref_get(&args->bias, j));
        if (sign > 0)
            fmpq_add(b, b, rate);
        else
            fmpq_sub(b, b, rate);
        slm_ref_set(&args->new_bias, j, (double)slm_ref_f32_q(b));
    }
    fmpq_clear(b);
    fmpq_clear(rate);
    fmpz_clear(load);
    fmpz_clear(sum);
    return SLM_OK;
}
