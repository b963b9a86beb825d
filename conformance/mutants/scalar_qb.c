/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_qb.c - the order statistic of required biases.     Q1, Q2 */
#include "scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Memory of one call. */
typedef struct space {
    scalar_cutoff cutoff;
    double *alpha;     /* [T] of the m counted tokens                          */
    double *column;    /* [T] */
    size_t *token;     /* [T] which they are                                   */
    double *candidate; /* [n] */
    size_t counted;    /* m   */
    size_t claimed;    /* m, or what a mutant takes for it                     */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t n_tokens)
{
    scalar_scratch scratch = {base, 0};

    scalar_cutoff_take(&at->cutoff, &scratch, config);
    at->alpha = scalar_take(&scratch, n_tokens, sizeof *at->alpha);
    at->column = scalar_take(&scratch, n_tokens, sizeof *at->column);
    at->token = scalar_take(&scratch, n_tokens, sizeof *at->token);
    at->candidate = scalar_take(&scratch, config->n_experts, sizeof *at->candidate);
    return scratch.used;
}

size_t scalar_qb_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

static size_t at_most(size_t value, size_t limit)
{
    return value < limit ? value : limit;
}

static void keep_first_mask(slm_handle *handle, space *at, size_t n_tokens)
{
    const size_t most = sizeof handle->counted / sizeof *handle->counted;

    if (at->counted > most) return;
    if (handle->mask_tokens == n_tokens) {
        at->counted = handle->n_counted;
        memcpy(at->token, handle->counted, at->counted * sizeof *at->token);
        return;
    }
    handle->mask_tokens = n_tokens;
    handle->n_counted = at->counted;
    memcpy(handle->counted, at->token, at->counted * sizeof *at->token);
}

/* The tokens that the statistic counts.                                         Q5 */
static void list_tokens(slm_handle *handle, space *at, const slm_qb_exact_args *args)
{
    const slm_tensor *mask = slm_given(&args->call, &args->mask);

    at->counted = 0;
    for (size_t t = 0; t < args->call.n_tokens; t++)
        if (scalar_counts(handle, mask, t)) at->token[at->counted++] = t;
    if (mask && wrong(handle, MUTANT_first_mask_kept))
        keep_first_mask(handle, at, args->call.n_tokens);
    at->claimed = at->counted;
    if (wrong(handle, MUTANT_mask_counts_in_m)) at->claimed = args->call.n_tokens;
}

/* i* of m values, and the neighbours of mutants.                                Q1 */
static size_t quantile_index(const slm_handle *handle, size_t m)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    const float share32 = (float)k / (float)n;
    const double share64 = (double)k / (double)n;
    const int masked = m != handle->n_tokens;
    size_t i = (k * (m - 1) + n - 1) / n;

    if (wrong(handle, MUTANT_quantile_off_by_one)) i++;
    if (wrong(handle, MUTANT_quantile_one_low) && i > 0) i--;
    if (wrong(handle, MUTANT_quantile_floor_of_q) && !masked) i = m * k / n;
    if (wrong(handle, MUTANT_quantile_from_above)) i = m - 1 - i;
    if (wrong(handle, MUTANT_float_quantile_index))
        i = (size_t)ceilf((float)(m - 1) * share32);
    if (wrong(handle, MUTANT_double_quantile_index))
        i = (size_t)ceil((double)(m - 1) * share64);
    return at_most(i, m - 1);
}

/* The candidate of a sorted column; the index is that of `claimed` values. */
static double quantile(const slm_handle *handle, const double *column, size_t m,
                       size_t claimed)
{
    const double share =
        (double)handle->config.top_k / (double)handle->config.n_experts;
    const double real = (double)(m - 1) * share;
    const size_t below = at_most((size_t)real, m - 1);
    const double step = column[at_most(below + 1, m - 1)] - column[below];

    if (wrong(handle, MUTANT_quantile_interpolated))
        return column[below] + (real - (double)below) * step;
    return column[at_most(quantile_index(handle, claimed), m - 1)];
}

/* Column j of the required biases of counted tokens first .. first + m - 1, ascending. */
static void fill_column(const slm_handle *handle, space *at, const slm_tensor *score,
                        size_t first, size_t m, size_t j)
{
    for (size_t t = 0; t < m; t++) {
        const slm_tensor row = slm_tensor_at(score, at->token[first + t]);

        at->cutoff.score[j] = *(const float *)scalar_element(&row, j);
        at->cutoff.key[j] =
            (double)(at->cutoff.score[j] + at->cutoff.bias[j]); /* RN32: R2 */
        at->column[t] = scalar_required(handle, &at->cutoff, at->alpha[first + t], j);
    }
    qsort(at->column, m, sizeof *at->column, ascending);
}

/* Whether the boundary of a sorted column is not unique. Precondition: 0 < q < m. */
static int is_tied(const slm_handle *handle, const double *column, size_t m, size_t q)
{
    const int equal = (handle->config.tie_test == SLM_TIE_EQUAL &&
                       !wrong(handle, MUTANT_note_test_always)) ||
                      wrong(handle, MUTANT_equality_tie_test);
    const size_t upper =
        wrong(handle, MUTANT_tie_test_at_wrong_rank) ? at_most(q + 1, m - 1) : q;
    const double gap = column[upper] - column[upper - 1];

    if (wrong(handle, MUTANT_strict_accepts_ties)) return 0;
    if (wrong(handle, MUTANT_tie_test_of_neighbours))
        for (size_t t = 1; t < m; t++)
            if (column[t] == column[t - 1]) return 1;
    return equal ? gap == 0.0 : gap <= 1e-8 + 1e-5 * fabs(column[upper]);
}

/* TIE of the lowest expert that has one. */
static slm_status check_ties(const slm_handle *handle, space *at,
                             const slm_qb_exact_args *args, slm_error *error)
{
    const size_t n = handle->config.n_experts, m = at->counted;
    const size_t q = at_most(at->claimed * handle->config.top_k / n, m - 1);
    size_t tied = n;

    for (size_t j = 0; j < n && q > 0; j++) {
        fill_column(handle, at, &args->score, 0, m, j);
        if (!is_tied(handle, at->column, m, q)) continue;
        if (tied == n || wrong(handle, MUTANT_highest_tie_reported)) tied = j;
    }
    if (tied == n) return SLM_OK;
    return slm_fail(error, SLM_ERR_TIE, "qb_exact", "new_bias", tied,
                    "a unique boundary at rank %zu", q);
}

static slm_status check_target(const slm_handle *handle, size_t m, slm_error *error)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;

    if (m * k % n == 0 || wrong(handle, MUTANT_strict_accepts_fractional_target))
        return SLM_OK;
    return slm_fail(error, SLM_ERR_TARGET, "qb_exact", "n_tokens", 0,
                    "%zu * %zu divisible by %zu", m, k, n);
}

static slm_status check_strict(const slm_handle *handle, space *at,
                               const slm_qb_exact_args *args, slm_error *error)
{
    const int ties_first = wrong(handle, MUTANT_wrong_precedence);
    slm_status status = SLM_OK;

    if (handle->config.balance == SLM_BALANCE_RELAXED &&
        !wrong(handle, MUTANT_strict_refuses_in_relaxed))
        return SLM_OK;
    if (ties_first) status = check_ties(handle, at, args, error);
    if (!status) status = check_target(handle, at->claimed, error);
    if (!status && !ties_first) status = check_ties(handle, at, args, error);
    return status;
}

static void find_candidates(const slm_handle *handle, space *at,
                            const slm_qb_exact_args *args)
{
    const size_t m = at->counted, half = m / 2;

    for (size_t j = 0; j < handle->config.n_experts; j++) {
        fill_column(handle, at, &args->score, 0, m, j);
        at->candidate[j] = quantile(handle, at->column, m, at->claimed);
        if (!wrong(handle, MUTANT_mean_of_quantiles) || half == 0) continue;
        fill_column(handle, at, &args->score, 0, half, j);
        at->candidate[j] = quantile(handle, at->column, half, half) / 2.0;
        fill_column(handle, at, &args->score, half, m - half, j);
        at->candidate[j] += quantile(handle, at->column, m - half, m - half) / 2.0;
    }
}

static void find_alphas(const slm_handle *handle, space *at,
                        const slm_qb_exact_args *args)
{
    for (size_t t = 0; t < at->counted; t++) {
        const slm_tensor row = slm_tensor_at(&args->score, at->token[t]);

        at->alpha[t] = scalar_alpha(handle, &at->cutoff, &row);
    }
}

static void write_cutoffs(const slm_handle *handle, const space *at,
                          const slm_qb_exact_args *args)
{
    if (args->cutoff.rank == 0) return;
    for (size_t t = 0; t < args->call.n_tokens; t++)
        if (wrong(handle, MUTANT_masked_cutoff_written))
            *(float *)scalar_element(&args->cutoff, t) = 0.0f;
    for (size_t i = 0; i < at->counted; i++)
        *(float *)scalar_element(&args->cutoff, at->token[i]) = (float)at->alpha[i];
}

static void clear_bias(const slm_handle *handle, const slm_tensor *bias)
{
    for (size_t j = 0; j < handle->config.n_experts; j++)
        *(float *)scalar_element(bias, j) = 0.0f;
}

slm_status scalar_qb_exact(slm_handle *handle, const slm_qb_exact_args *args,
                           slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens;
    slm_status status = scalar_begin(handle, SLM_OP_qb_exact, args, error);
    space at;

    if (status) return status;
    lay_out(&at, args->call.workspace, &handle->config, n_tokens);
    list_tokens(handle, &at, args);
    if (at.counted == 0) {
        scalar_keep_bias(handle, &args->bias, &args->new_bias, &args->candidate);
        if (wrong(handle, MUTANT_all_masked_clears_bias) && n_tokens > 0)
            clear_bias(handle, &args->new_bias);
        return SLM_OK;
    }
    scalar_load(at.cutoff.bias, &args->bias);
    find_alphas(handle, &at, args);
    status = check_strict(handle, &at, args, error);
    if (status && !wrong(handle, MUTANT_writes_on_refusal)) return status;
    find_candidates(handle, &at, args);
    scalar_centre(handle, at.candidate, at.cutoff.bias, &args->new_bias,
                  &args->candidate);
    if (wrong(handle, MUTANT_cutoff_of_new_bias)) {
        scalar_load(at.cutoff.bias, &args->new_bias);
        find_alphas(handle, &at, args);
    }
    write_cutoffs(handle, &at, args);
    return status;
}
