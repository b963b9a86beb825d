/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_qb.c - the order statistic of required biases.     Q1, Q2 */
#include "scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void scalar_cutoff_take(scalar_cutoff *work, scalar_scratch *scratch,
                        const slm_config *config)
{
    const size_t n = config->n_experts;

    work->bias = scalar_take(scratch, n, sizeof *work->bias);
    work->score = scalar_take(scratch, n, sizeof *work->score);
    work->key = scalar_take(scratch, n, sizeof *work->key);
    work->taken = scalar_take(scratch, n, sizeof *work->taken);
    work->rank = scalar_take(scratch, config->top_k + 1, sizeof *work->rank);
}

double scalar_alpha(const slm_handle *handle, scalar_cutoff *work,
                    const slm_tensor *score)
{
    const size_t k = handle->config.top_k;
    const size_t place = wrong(handle, MUTANT_cutoff_is_kth_key) ? k - 1 : k;
    size_t e;

    scalar_load(work->score, score);
    scalar_keys(handle, work->key, work->score, NULL, work->bias);
    scalar_choose(handle, work->rank, k + 1, work->key, work->score, work->taken);
    e = scalar_expert_id(handle, work->rank[place]);
    if (wrong(handle, MUTANT_cutoff_is_raw_score)) return (double)work->score[e];
    if (wrong(handle, MUTANT_choice_in_double)) return (double)(float)work->key[e];
    return work->key[e];
}

double scalar_required(const slm_handle *handle, const scalar_cutoff *work,
                       double alpha, size_t j)
{
    double s = (double)work->score[j];

    if (wrong(handle, MUTANT_required_bias_from_key)) s = work->key[j];
    if (wrong(handle, MUTANT_logits_in_histogram)) s = log(s / (1.0 - s));
    if (wrong(handle, MUTANT_margin_not_required_bias)) return s - alpha;
    if (is(handle, VARIANT_balance_in_binary32) ||
        wrong_in(handle, SLM_OP_qb_exact, MUTANT_required_bias_in_binary32))
        return (double)(float)(alpha - s);
    return alpha - s;
}

static int ascending(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

static double median(const double *value, size_t n)
{
    double result = value[0];

    for (size_t i = 0; i < n; i++) {
        size_t below = 0, equal = 0;

        for (size_t j = 0; j < n; j++) {
            below += value[j] < value[i];
            equal += value[j] == value[i];
        }
        if (below <= n / 2 && below + equal > n / 2) result = value[i];
    }
    return result;
}

/* The mean that is subtracted. */
static double centre_of(const slm_handle *handle, const double *candidate)
{
    const size_t n = handle->config.n_experts;
    const int narrow = wrong(handle, MUTANT_centred_in_binary32) ||
                       is(handle, VARIANT_balance_in_binary32);
    double sum = 0.0;

    if (wrong(handle, MUTANT_no_centring)) return 0.0;
    if (wrong(handle, MUTANT_centred_by_median)) return median(candidate, n);
    for (size_t j = 0; j < n; j++) {
        sum += candidate[j];
        if (narrow) sum = (double)(float)sum;
    }
    return narrow ? (double)((float)sum / (float)n) : sum / (double)n;
}

void scalar_centre(const slm_handle *handle, double *candidate, const float *bias,
                   const slm_tensor *new_bias, const slm_tensor *tap)
{
    const size_t n = handle->config.n_experts;
    double mean;

    for (size_t j = 0; tap->rank && j < n; j++)
        *(double *)scalar_element(tap, j) = candidate[j];
    for (size_t j = 0; j < n; j++)
        if (wrong(handle, MUTANT_candidate_rounded_first))
            candidate[j] = (double)(float)candidate[j];
    mean = centre_of(handle, candidate);
    for (size_t j = 0; j < n; j++) {
        double value = candidate[j] - mean;

        if (wrong(handle, MUTANT_bias_added_to_old)) value += (double)bias[j];
        if (wrong(handle, MUTANT_bias_sign_flipped)) value = -value;
        *(float *)scalar_element(new_bias, j) = (float)value;
    }
}

void scalar_keep_bias(const slm_handle *handle, const slm_tensor *bias,
                      const slm_tensor *new_bias, const slm_tensor *tap)
{
    const size_t n = handle->config.n_experts;
    double sum = 0.0;

    for (size_t j = 0; j < n; j++) sum += (double)*(float *)scalar_element(bias, j);
    for (size_t j = 0; j < n; j++) {
        float b;

        memcpy(&b, scalar_element(bias, j), sizeof b);
        if (tap->rank) *(double *)scalar_element(tap, j) = (double)b;
        if (wrong(handle, MUTANT_empty_batch_centres)) b -= (float)(sum / (double)n);
        if (wrong(handle, MUTANT_counts_not_written)) continue;
        memcpy(scalar_element(new_bias, j), &b, sizeof b);
    }
}

/* Memory of one call. */
typedef struct space {
    scalar_cutoff cutoff;
    double *alpha;     /* [m] */
    double *column;    /* [m] */
    double *candidate; /* [n] */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t m)
{
    scalar_scratch scratch = {base, 0};

    scalar_cutoff_take(&at->cutoff, &scratch, config);
    at->alpha = scalar_take(&scratch, m, sizeof *at->alpha);
    at->column = scalar_take(&scratch, m, sizeof *at->column);
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

/* i* of m values, and the neighbours of mutants.                                Q1 */
static size_t quantile_index(const slm_handle *handle, size_t m)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    const float share32 = (float)k / (float)n;
    const double share64 = (double)k / (double)n;
    size_t i = (k * (m - 1) + n - 1) / n;

    if (wrong(handle, MUTANT_quantile_off_by_one)) i++;
    if (wrong(handle, MUTANT_quantile_one_low) && i > 0) i--;
    if (wrong(handle, MUTANT_quantile_floor_of_q)) i = m * k / n;
    if (wrong(handle, MUTANT_quantile_from_above)) i = m - 1 - i;
    if (wrong(handle, MUTANT_float_quantile_index))
        i = (size_t)ceilf((float)(m - 1) * share32);
    if (wrong(handle, MUTANT_double_quantile_index))
        i = (size_t)ceil((double)(m - 1) * share64);
    return at_most(i, m - 1);
}

/* The candidate of a sorted column. */
static double quantile(const slm_handle *handle, const double *column, size_t m)
{
    const double share =
        (double)handle->config.top_k / (double)handle->config.n_experts;
    const double real = (double)(m - 1) * share;
    const size_t below = at_most((size_t)real, m - 1);
    const double step = column[at_most(below + 1, m - 1)] - column[below];

    if (wrong(handle, MUTANT_quantile_interpolated))
        return column[below] + (real - (double)below) * step;
    return column[quantile_index(handle, m)];
}

/* Column j of the required biases of tokens first .. first + m - 1, ascending. */
static void fill_column(const slm_handle *handle, space *at, const slm_tensor *score,
                        size_t first, size_t m, size_t j)
{
    for (size_t t = 0; t < m; t++) {
        const slm_tensor row = slm_tensor_at(score, first + t);

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
    const size_t n = handle->config.n_experts, m = args->call.n_tokens;
    const size_t q = m * handle->config.top_k / n;
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
    if (!status) status = check_target(handle, args->call.n_tokens, error);
    if (!status && !ties_first) status = check_ties(handle, at, args, error);
    return status;
}

static void find_candidates(const slm_handle *handle, space *at,
                            const slm_qb_exact_args *args)
{
    const size_t m = args->call.n_tokens, half = m / 2;

    for (size_t j = 0; j < handle->config.n_experts; j++) {
        fill_column(handle, at, &args->score, 0, m, j);
        at->candidate[j] = quantile(handle, at->column, m);
        if (!wrong(handle, MUTANT_mean_of_quantiles) || half == 0) continue;
        fill_column(handle, at, &args->score, 0, half, j);
        at->candidate[j] = quantile(handle, at->column, half) / 2.0;
        fill_column(handle, at, &args->score, half, m - half, j);
        at->candidate[j] += quantile(handle, at->column, m - half) / 2.0;
    }
}

static void find_alphas(const slm_handle *handle, space *at,
                        const slm_qb_exact_args *args)
{
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        const slm_tensor row = slm_tensor_at(&args->score, t);

        at->alpha[t] = scalar_alpha(handle, &at->cutoff, &row);
    }
}

slm_status scalar_qb_exact(slm_handle *handle, const slm_qb_exact_args *args,
                           slm_error *error)
{
    const size_t m = args->call.n_tokens;
    slm_status status = scalar_begin(handle, SLM_OP_qb_exact, args, error);
    space at;

    if (status) return status;
    if (m == 0) {
        scalar_keep_bias(handle, &args->bias, &args->new_bias, &args->candidate);
        return SLM_OK;
    }
    lay_out(&at, args->call.workspace, &handle->config, m);
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
    for (size_t t = 0; args->cutoff.rank && t < m; t++)
        *(float *)scalar_element(&args->cutoff, t) = (float)at.alpha[t];
    return status;
}
