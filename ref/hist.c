/* SPDX-License-Identifier: Apache-2.0 */
/* ref/hist.c - Quantile Balancing from pooled histograms, in exact rationals.   Q3, Q5
 *
 * B bins of equal width w over [lo, hi] = [min b - 1, max b + 1]: every required bias
 * alpha - s lies there, because s is in [0, 1] and alpha is a key. */
#include "balance.h"

#include <stdlib.h>

int64_t *slm_ref_count(const slm_tensor *counts, size_t index)
{
    ptrdiff_t offset = 0;

    for (uint32_t i = counts->rank; i-- > 0;) {
        offset += (ptrdiff_t)(index % counts->shape[i]) * counts->stride[i];
        index /= counts->shape[i];
    }
    return (int64_t *)counts->data + offset;
}

void slm_ref_hist_range(fmpq_t lo, fmpq_t hi, const float *bias, size_t n)
{
    float least = bias[0];
    float most = bias[0];

    for (size_t j = 1; j < n; j++) {
        if (bias[j] < least) least = bias[j];
        if (bias[j] > most) most = bias[j];
    }
    slm_ref_rational(lo, (double)least);
    slm_ref_rational(hi, (double)most);
    fmpq_sub_si(lo, lo, 1);
    fmpq_add_si(hi, hi, 1);
}

size_t slm_ref_hist_bin(const fmpq_t r, const fmpq_t lo, const fmpq_t hi, size_t bins)
{
    fmpq_t place;
    fmpq_t range;
    fmpz_t whole;
    size_t bin;

    fmpq_init(place);
    fmpq_init(range);
    fmpz_init_set_ui(whole, bins);
    fmpq_sub(place, r, lo);
    fmpq_sub(range, hi, lo);
    fmpq_mul_fmpz(place, place, whole);
    fmpq_div(place, place, range);
    fmpz_fdiv_q(whole, fmpq_numref(place), fmpq_denref(place));
    if (fmpz_sgn(whole) < 0)
        bin = 0;
    else if (fmpz_cmp_ui(whole, bins) >= 0)
        bin = bins - 1;
    else
        bin = fmpz_get_ui(whole);
    fmpz_clear(whole);
    fmpq_clear(range);
    fmpq_clear(place);
    return bin;
}

/* Range of the bins of a bias tensor. */
static slm_status range_of(fmpq_t lo, fmpq_t hi, const slm_tensor *bias, size_t n)
{
    float *values = malloc(n * sizeof *values);

    if (!values) return SLM_ERR_MEMORY;
    for (size_t j = 0; j < n; j++) values[j] = (float)slm_ref_get(bias, j);
    slm_ref_hist_range(lo, hi, values, n);
    free(values);
    return SLM_OK;
}

/* Count every required bias of the counted tokens in its bin. */
static void count_tokens(const slm_config *config, const slm_tensor *score,
                         const slm_tensor *hist, const slm_ref_tokens *tokens,
                         const float *alpha, const fmpq_t lo, const fmpq_t hi)
{
    const size_t n = config->n_experts;
    const size_t bins = config->n_bins;
    fmpq_t r;
    fmpq_t s;

    fmpq_init(r);
    fmpq_init(s);
    for (size_t i = 0; i < tokens->m; i++) {
        for (size_t j = 0; j < n; j++) {
            slm_ref_rational(r, (double)alpha[i]);
            slm_ref_rational(s, slm_ref_get(score, tokens->row[i] * n + j));
            fmpq_sub(r, r, s);
            ++*slm_ref_count(hist, j * bins + slm_ref_hist_bin(r, lo, hi, bins));
        }
    }
    fmpq_clear(s);
    fmpq_clear(r);
}

slm_status slm_ref_accumulate(const slm_config *config, const slm_tensor *score,
                              const slm_tensor *bias, const slm_tensor *hist,
                              const slm_ref_tokens *tokens)
{
    slm_status status = SLM_OK;
    float *alpha;
    fmpq_t lo;
    fmpq_t hi;

    if (tokens->m == 0) return SLM_OK;
    fmpq_init(lo);
    fmpq_init(hi);
    alpha = malloc(tokens->m * sizeof *alpha);
    if (!alpha) status = SLM_ERR_MEMORY;
    if (!status) status = range_of(lo, hi, bias, config->n_experts);
    if (!status) status = slm_ref_cutoffs(alpha, score, bias, config, tokens);
    if (!status) count_tokens(config, score, hist, tokens, alpha, lo, hi);
    free(alpha);
    fmpq_clear(hi);
    fmpq_clear(lo);
    return status;
}

slm_status slm_ref_op_qb_hist_accumulate(slm_handle *handle,
                                         const slm_qb_hist_accumulate_args *args,
                                         slm_error *error)
{
    const slm_config *config = &handle->config;
    slm_status status =
        slm_check_finite(SLM_OP_qb_hist_accumulate, config, args, error);
    slm_ref_tokens tokens;

    if (status) return status;
    status = slm_ref_tokens_open(&tokens, &args->call, &args->mask);
    if (!status) {
        status =
            slm_ref_accumulate(config, &args->score, &args->bias, &args->hist, &tokens);
        slm_ref_tokens_close(&tokens);
    }
    if (status)
        slm_fail(error, status, "qb_hist_accumulate", "", 0, "memory for %zu tokens",
                 args->call.n_tokens);
    return status;
}

slm_status slm_ref_op_qb_hist_merge(slm_handle *handle,
                                    const slm_qb_hist_merge_args *args,
                                    slm_error *error)
{
    const size_t each = slm_tensor_count(&args->hist);

    (void)handle;
    (void)error;
    for (size_t i = 0; i < each; i++) {
        int64_t sum = 0;

        for (size_t part = 0; part < args->call.n_parts; part++)
            sum += *slm_ref_count(&args->parts, part * each + i);
        *slm_ref_count(&args->hist, i) = sum;
    }
    return SLM_OK;
}

/* candidate = lo + (t + clip((q - c) / h, 0, 1)) w for one expert: t is the first bin
 * whose cumulative count reaches ceil(q), c the count before it, h the count in it. The
 * clip never acts, since c < q <= c + h. */
static void interpolate(fmpq_t candidate, const slm_tensor *hist, size_t expert,
                        size_t bins, const fmpq_t q, const fmpq_t lo,
                        const fmpq_t width)
{
    fmpz_t target;
    fmpz_t before;
    fmpz_t inside;
    fmpq_t part;
    size_t t = 0;

    fmpz_init(target);
    fmpz_init(before);
    fmpz_init(inside);
    fmpq_init(part);
    fmpz_cdiv_q(target, fmpq_numref(q), fmpq_denref(q));
    for (;; t++) {
        fmpz_set_si(inside, *slm_ref_count(hist, expert * bins + t));
        fmpz_sub(target, target, inside);
        if (fmpz_sgn(target) <= 0) break;
        fmpz_add(before, before, inside);
    }
    fmpq_sub_fmpz(part, q, before);
    fmpq_div_fmpz(part, part, inside);
    fmpz_set_ui(target, t);
    fmpq_add_fmpz(part, part, target);
    fmpq_mul(part, part, width);
    fmpq_add(candidate, lo, part);
    fmpq_clear(part);
    fmpz_clear(inside);
    fmpz_clear(before);
    fmpz_clear(target);
}

slm_status slm_ref_op_qb_hist_solve(slm_handle *handle,
                                    const slm_qb_hist_solve_args *args,
                                    slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t m = args->call.n_tokens;
    const size_t n = config->n_experts;
    const size_t bins = config->n_bins;
    slm_status status = slm_check_finite(SLM_OP_qb_hist_solve, config, args, error);
    fmpq *candidate;
    fmpq_t q, lo, hi, width;
    fmpz_t count;

    if (status) return status;
    if (m == 0) {
        slm_ref_keep_bias(&args->new_bias, &args->candidate, &args->bias, n);
        return SLM_OK;
    }
    fmpq_init(q);
    fmpq_init(lo);
    fmpq_init(hi);
    fmpq_init(width);
    fmpz_init_set_ui(count, bins);
    candidate = _fmpq_vec_init((slong)n);
    status = range_of(lo, hi, &args->bias, n);
    if (!status) {
        slm_ref_equal_load(q, m, n, config->top_k);
        fmpq_sub(width, hi, lo);
        fmpq_div_fmpz(width, width, count);
        for (size_t j = 0; j < n; j++)
            interpolate(&candidate[j], &args->hist, j, bins, q, lo, width);
        slm_ref_centre(&args->new_bias, &args->candidate, candidate, n);
    } else {
        slm_fail(error, status, "qb_hist_solve", "", 0, "memory for %zu experts", n);
    }
    _fmpq_vec_clear(candidate, (slong)n);
    fmpz_clear(count);
    fmpq_clear(width);
    fmpq_clear(hi);
    fmpq_clear(lo);
    fmpq_clear(q);
    return status;
}
