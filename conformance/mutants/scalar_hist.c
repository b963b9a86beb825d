/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_hist.c - the histogram of required biases.         Q3, C1 */
#include "scalar.h"

#include <math.h>

__extension__ typedef __int128 wide;

/* Least and largest bias; lo and hi lie 1 beyond. */
typedef struct range {
    double least;
    double most;
    double bins;
} range;

static range range_of(const slm_handle *handle, const float *bias)
{
    range at = {(double)bias[0], (double)bias[0], (double)handle->config.n_bins};

    for (size_t e = 1; e < handle->config.n_experts; e++) {
        at.least = fmin(at.least, (double)bias[e]);
        at.most = fmax(at.most, (double)bias[e]);
    }
    if (wrong(handle, MUTANT_range_without_bias)) at.least = at.most = 0.0;
    if (wrong(handle, MUTANT_fixed_range)) {
        at.least = -1.0;
        at.most = 1.0;
    }
    return at;
}

static double lower_end(const range *at)
{
    return at->least - 1.0;
}

static double bin_width(const range *at)
{
    return (at->most + 1.0 - lower_end(at)) / at->bins;
}

/* Sign of a sum of doubles, exact: the parts of `kept` never overlap. */
static int sign_of_sum(const double *term, size_t n)
{
    double kept[8] = {0.0};
    int sign = 0;

    for (size_t i = 0; i < n; i++) {
        double carry = term[i];

        for (size_t j = 0; j < i; j++) {
            const double sum = carry + kept[j];
            const double part = sum - carry;

            kept[j] = (carry - (sum - part)) + (kept[j] - part);
            carry = sum;
        }
        kept[i] = carry;
    }
    for (size_t i = 0; i < n; i++)
        if (kept[i] != 0.0) sign = kept[i] > 0.0 ? 1 : -1;
    return sign;
}

/* Sign of alpha - s - edge t, exactly: B times it is a sum of five doubles. */
static int above_edge(const range *at, double alpha, double s, size_t t)
{
    const double edge = (double)t;
    const double term[] = {at->bins * alpha, -at->bins * s,
                           -(at->bins - edge) * at->least, -edge * at->most,
                           at->bins - 2.0 * edge};

    return sign_of_sum(term, sizeof term / sizeof *term);
}

/* Whether a required bias belongs to bin t or one above it. */
static int reaches(const slm_handle *handle, const range *at, double alpha, double s,
                   size_t t)
{
    const double lo = lower_end(at), length = at->most + 1.0 - lo;
    const double edge = (lo * at->bins + (double)t * length) / at->bins;

    if (is(handle, VARIANT_rounded_edges)) return edge <= alpha - s;
    if (is(handle, VARIANT_balance_in_binary32))
        return (float)edge <= (float)(alpha - s) || above_edge(at, alpha, s, t) == 0;
    if (wrong(handle, MUTANT_bins_closed_above)) return above_edge(at, alpha, s, t) > 0;
    return above_edge(at, alpha, s, t) >= 0;
}

static size_t clamped(double bin, size_t bins)
{
    if (!(bin > 0.0)) return 0;
    return bin < (double)bins ? (size_t)bin : bins - 1;
}

/* The bin of alpha - s.                                                         Q3 */
static size_t bin_of(const slm_handle *handle, const range *at, double alpha, double s)
{
    const size_t bins = handle->config.n_bins;
    const double lo = lower_end(at), length = at->most + 1.0 - lo;
    size_t low = 0, high = bins - 1;

    if (wrong(handle, MUTANT_edge_by_multiplication))
        return clamped(floor((alpha - s - lo) * (at->bins / length)), bins);
    if (wrong(handle, MUTANT_edge_by_division)) {
        const float r = (float)(alpha - s) - (float)lo;

        return clamped((double)floorf(r / (float)bin_width(at)), bins);
    }
    while (low < high) {
        const size_t middle = low + (high - low + 1) / 2;

        if (reaches(handle, at, alpha, s, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void scalar_hist_take(scalar_hist *at, scalar_scratch *scratch,
                      const slm_config *config)
{
    scalar_cutoff_take(&at->cutoff, scratch, config);
    at->candidate = scalar_take(scratch, config->n_experts, sizeof *at->candidate);
}

size_t scalar_hist_space(const slm_config *config)
{
    scalar_scratch scratch = {NULL, 0};
    scalar_hist at;

    scalar_hist_take(&at, &scratch, config);
    return scratch.used;
}

static void add(const slm_handle *handle, const slm_tensor *hist, size_t index,
                int64_t count)
{
    int64_t *at = scalar_element(hist, index);

    *at = scalar_count(handle, (int64_t)((uint64_t)*at + (uint64_t)count));
}

/* Counts of one token. */
static void count_token(const slm_handle *handle, scalar_hist *at, const range *ends,
                        const slm_tensor *score, const slm_tensor *hist)
{
    const size_t bins = handle->config.n_bins;
    const double alpha = scalar_alpha(handle, &at->cutoff, score);
    const int64_t once = wrong(handle, MUTANT_counts_doubled) ? 2 : 1;

    for (size_t j = 0; j < handle->config.n_experts; j++) {
        const double r = scalar_required(handle, &at->cutoff, alpha, j);
        const double s = (double)at->cutoff.score[j];
        const int plain = r == alpha - s || is(handle, VARIANT_balance_in_binary32);
        const size_t bin =
            plain ? bin_of(handle, ends, alpha, s) : bin_of(handle, ends, r, 0.0);

        if (wrong(handle, MUTANT_edge_past_last_bin) && r >= ends->most + 1.0) continue;
        add(handle, hist, j * bins + bin, once);
    }
}

int64_t scalar_hist_count(const slm_handle *handle, scalar_hist *at, const float *ends,
                          size_t n_tokens, const slm_tensor *score,
                          const slm_tensor *mask, const slm_tensor *hist)
{
    const range bins = range_of(handle, ends);
    int64_t counted = 0;

    for (size_t t = 0; t < n_tokens; t++) {
        const slm_tensor row = slm_tensor_at(score, t);

        if (!scalar_counts(handle, mask, t)) continue;
        if (wrong(handle, MUTANT_tokens_past_256_uncounted) && t >= 256) break;
        count_token(handle, at, &bins, &row, hist);
        counted++;
    }
    return counted;
}

slm_status scalar_qb_hist_accumulate(slm_handle *handle,
                                     const slm_qb_hist_accumulate_args *args,
                                     slm_error *error)
{
    const size_t counts = slm_tensor_count(&args->hist);
    const slm_status status =
        scalar_begin(handle, SLM_OP_qb_hist_accumulate, args, error);
    const slm_tensor *mask = wrong(handle, MUTANT_masked_rows_of_histogram_counted)
                                 ? NULL
                                 : slm_given(&args->call, &args->mask);
    scalar_scratch scratch = {args->call.workspace, 0};
    scalar_hist at;

    if (status || args->call.n_tokens == 0) return status;
    scalar_hist_take(&at, &scratch, &handle->config);
    scalar_load(at.cutoff.bias, &args->bias);
    for (size_t i = 0; wrong(handle, MUTANT_counts_overwritten) && i < counts; i++)
        *(int64_t *)scalar_element(&args->hist, i) = 0;
    scalar_hist_count(handle, &at, at.cutoff.bias, args->call.n_tokens, &args->score,
                      mask, &args->hist);
    return SLM_OK;
}

slm_status scalar_qb_hist_merge(slm_handle *handle, const slm_qb_hist_merge_args *args,
                                slm_error *error)
{
    const slm_status status = scalar_begin(handle, SLM_OP_qb_hist_merge, args, error);
    const size_t counts = slm_tensor_count(&args->hist);
    size_t parts = args->call.n_parts;

    if (status) return status;
    if (wrong(handle, MUTANT_first_part_only) && parts > 1) parts = 1;
    for (size_t i = 0; i < counts; i++) {
        int64_t *sum = scalar_element(&args->hist, i);

        *sum = 0;
        for (size_t p = 0; p < parts; p++)
            add(handle, &args->hist, i,
                *(const int64_t *)scalar_element(&args->parts, p * counts + i));
        if (wrong(handle, MUTANT_mean_of_parts) && parts) *sum /= (int64_t)parts;
    }
    return SLM_OK;
}

/* ceil(m k / n), or what the mutant aims at. */
static wide target_of(const slm_handle *handle, size_t m)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;

    if (wrong(handle, MUTANT_target_overflows))
        return (wide)((int64_t)((uint64_t)m * k) / (int64_t)n);
    if (wrong(handle, MUTANT_target_floor_not_ceil)) return (wide)m * (wide)k / (wide)n;
    return ((wide)m * (wide)k + (wide)n - 1) / (wide)n;
}

/* How far into its bin of h counts the target lies, c counts before it. */
static double part_of_bin(const slm_handle *handle, size_t m, int64_t c, int64_t h)
{
    const wide n = (wide)handle->config.n_experts, k = (wide)handle->config.top_k;
    const wide q = wrong(handle, MUTANT_target_ceiled_inside_bin)
                       ? target_of(handle, m) * n
                       : (wide)m * k;
    double part = h ? (double)(q - (wide)c * n) / (double)((wide)h * n) : 0.0;

    if (wrong(handle, MUTANT_no_interpolation)) part = 0.5;
    if (wrong(handle, MUTANT_lower_edge_taken)) part = 0.0;
    return fmin(fmax(part, 0.0), 1.0);
}

/* The candidate of expert j from its row of counts. */
static double solve_row(const slm_handle *handle, const range *ends,
                        const slm_tensor *row, size_t m)
{
    const wide target = target_of(handle, m);
    const size_t bins = handle->config.n_bins;
    const int narrow = is(handle, VARIANT_balance_in_binary32);
    int64_t before = 0, count = 0;
    double value;
    size_t t = 0;

    for (; t < bins; t++) {
        count = scalar_count(handle, *(const int64_t *)scalar_element(row, t));
        if ((wide)before + count >= target) break;
        before = scalar_count(handle, before + count);
    }
    if (t == bins) t = bins - 1;
    value = lower_end(ends) +
            ((double)t + part_of_bin(handle, m, before, count)) * bin_width(ends);
    return narrow ? (double)(float)value : value;
}

void scalar_hist_solve(const slm_handle *handle, const scalar_hist *at,
                       const slm_tensor *hist, size_t m)
{
    const range ends = range_of(handle, at->cutoff.bias);

    for (size_t j = 0; j < handle->config.n_experts; j++) {
        const slm_tensor row = slm_tensor_at(hist, j);

        at->candidate[j] = solve_row(handle, &ends, &row, m);
    }
}

slm_status scalar_qb_hist_solve(slm_handle *handle, const slm_qb_hist_solve_args *args,
                                slm_error *error)
{
    const size_t m = args->call.n_tokens;
    const slm_status status = scalar_begin(handle, SLM_OP_qb_hist_solve, args, error);
    scalar_scratch scratch = {args->call.workspace, 0};
    scalar_hist at;

    if (status) return status;
    if (m == 0) {
        scalar_keep_bias(handle, &args->bias, &args->new_bias, &args->candidate);
        return SLM_OK;
    }
    scalar_hist_take(&at, &scratch, &handle->config);
    scalar_load(at.cutoff.bias, &args->bias);
    scalar_hist_solve(handle, &at, &args->hist, m);
    scalar_centre(handle, at.candidate, at.cutoff.bias, &args->new_bias,
                  &args->candidate);
    return SLM_OK;
}
