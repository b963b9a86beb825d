/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/qb.c - exact Quantile Balancing, and the sign step.
 *
 * Clause   Q1, Q2, Q5, Q6.  Preconditions are the contract's; none is checked here.
 * Method   r = alpha - s is kept as an exact pair hi + lo: for a tiny s beside a large
 *          alpha binary64 alone would make unequal r equal. Pairs are ordered by hi,
 *          then lo. The element i* comes from a quickselect of each column. The tie
 *          test is the sign of an exact sum, so it is never in doubt. The mean is taken
 *          in pairs (about 106 bits) and rounded once.
 * Order    columns are independent; the mean adds experts in order. */
#include "balance.h"

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 unsigned_wide;

int slm_cpu_sign_of_sum(const double *term, size_t n)
{
    /* Shewchuk's expansion: its parts do not overlap and grow, so the last that is not
     * zero has the sign of the sum. */
    double part[SLM_CPU_TERMS];

    for (size_t i = 0; i < n; i++) {
        double carry = term[i];

        for (size_t j = 0; j < i; j++) {
            const slm_cpu_pair sum = slm_cpu_two_sum(carry, part[j]);

            part[j] = sum.lo;
            carry = sum.hi;
        }
        part[i] = carry;
    }
    for (size_t i = n; i-- > 0;)
        if (part[i] != 0.0) return part[i] > 0.0 ? 1 : -1;
    return 0;
}

const int32_t *slm_cpu_mask(const slm_call *call, const slm_tensor *mask,
                            int32_t *space)
{
    if (!slm_given(call, mask)) return NULL;
    for (size_t t = 0; t < call->n_tokens; t++) space[t] = *slm_cpu_i32(mask, t, 0);
    return space;
}

void slm_cpu_cutoffs(const slm_handle *handle, size_t rows, slm_cpu_matrix score,
                     const float *bias, const int32_t *mask, uint64_t *best,
                     float *alpha)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;

#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < rows; first += SLM_CPU_ROWS) {
        const size_t end = rows - first < SLM_CPU_ROWS ? rows : first + SLM_CPU_ROWS;
        uint64_t *words = best + first / SLM_CPU_ROWS * (k + 1);

        for (size_t t = first; t < end; t++) {
            if (!slm_cpu_counts(mask, t)) continue;
            slm_cpu_choose(slm_cpu_row(score, t), bias, n, k, words);
            alpha[t] = slm_cpu_chosen_key(words[k]);
        }
    }
}

/* The binary32 nearest to a pair. The last bit of hi is made sticky first (round to
 * odd), so that the second rounding cannot spoil the first. */
static float round_once(slm_cpu_pair value)
{
    uint64_t bits;
    double odd;

    memcpy(&bits, &value.hi, sizeof bits);
    if (value.lo != 0.0 && !(bits & 1))
        bits += (value.lo > 0.0) == (value.hi > 0.0) ? 1 : UINT64_MAX;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}

void slm_cpu_centre(const slm_cpu_pair *candidate, size_t n, const slm_tensor *new_bias,
                    const slm_tensor *tap)
{
    slm_cpu_pair sum = {0.0, 0.0};

    for (size_t j = 0; j < n; j++) sum = slm_cpu_pair_add(sum, candidate[j]);
    sum = (slm_cpu_pair){-sum.hi, -sum.lo};
    for (size_t j = 0; j < n; j++) {
        /* (n candidate - sum) / n: one division, exact wherever the result is. */
        const slm_cpu_pair scaled = slm_cpu_pair_times(candidate[j], (double)n);
        const slm_cpu_pair centred =
            slm_cpu_pair_over(slm_cpu_pair_add(scaled, sum), (double)n);

        *slm_cpu_f32(new_bias, j, 0) = round_once(centred);
        if (tap->rank) *slm_cpu_f64(tap, j) = candidate[j].hi;
    }
}

void slm_cpu_keep_bias(const slm_tensor *bias, const slm_tensor *new_bias,
                       const slm_tensor *tap)
{
    for (size_t j = 0; j < bias->shape[0]; j++) {
        const float value = *slm_cpu_f32(bias, j, 0);

        memcpy(slm_cpu_f32(new_bias, j, 0), &value, sizeof value);
        if (tap->rank) *slm_cpu_f64(tap, j) = (double)value;
    }
}

static int below(slm_cpu_pair a, slm_cpu_pair b)
{
    return a.hi < b.hi || (a.hi == b.hi && a.lo < b.lo);
}

static void swap(slm_cpu_pair *a, slm_cpu_pair *b)
{
    const slm_cpu_pair old = *a;

    *a = *b;
    *b = old;
}

/* Puts the element of that index in ascending order at v[nth], what is not above it
 * before it. Three-way partition, since columns have plateaus (Q2); the pivot's place
 * comes from a fixed sequence, so no order of the input is slow by design. */
static void select_nth(slm_cpu_pair *v, size_t n, size_t nth)
{
    size_t first = 0, end = n;
    uint32_t state = 1;

    while (end - first > 1) {
        state = state * 1664525u + 1013904223u;

        const slm_cpu_pair pivot = v[first + (state >> 8) % (end - first)];
        size_t low = first, at = first, high = end;

        while (at < high) {
            if (below(v[at], pivot))
                swap(&v[low++], &v[at++]);
            else if (below(pivot, v[at]))
                swap(&v[at], &v[--high]);
            else
                at++;
        }
        if (nth < low)
            end = low;
        else if (nth >= high)
            first = high;
        else
            return;
    }
}

/* Clause Q2: r_(q+1) = above and r_(q) = under are tied. Exact. */
static int tied(slm_tie_test test, slm_cpu_pair under, slm_cpu_pair above)
{
    const double sign = above.hi < 0.0 ? -1.0 : 1.0;
    const double rise[] = {above.hi, above.lo, -under.hi, -under.lo};
    const double size[] = {sign * above.hi, sign * above.lo};
    double term[SLM_CPU_TERMS];
    size_t n = 0;

    if (test == SLM_TIE_EQUAL) return !below(under, above);
    /* 10^8 (above - under) - 1 - 10^3 |above| <= 0 */
    for (size_t i = 0; i < 4; i++) {
        const slm_cpu_pair part = slm_cpu_two_product(1e8, rise[i]);

        term[n++] = part.hi;
        term[n++] = part.lo;
    }
    for (size_t i = 0; i < 2; i++) {
        const slm_cpu_pair part = slm_cpu_two_product(-1e3, size[i]);

        term[n++] = part.hi;
        term[n++] = part.lo;
    }
    term[n++] = -1.0;
    return slm_cpu_sign_of_sum(term, n) <= 0;
}

typedef struct space {
    float *bias;             /* [n]                                          */
    float *score;            /* [T, n]  only when it cannot be read in place */
    float *alpha;            /* [T]                                          */
    int32_t *mask;           /* [T]     only when there is one               */
    uint64_t *best;          /* [tasks, k + 1]                               */
    slm_cpu_pair *column;    /* [strips, T]                                  */
    slm_cpu_pair *candidate; /* [n]                                          */
    unsigned char *tie;      /* [n]                                          */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};
    const size_t n = config->n_experts;

    at->bias = slm_cpu_take_f32(&arena, 1, n);
    at->score = slm_cpu_take_f32(&arena, rows, n);
    at->alpha = slm_cpu_take_f32(&arena, rows, 1);
    at->mask = slm_cpu_take(&arena, rows, 1, sizeof *at->mask);
    at->best = slm_cpu_take(&arena, slm_cpu_ceil_div(rows, SLM_CPU_ROWS),
                            config->top_k + 1, sizeof *at->best);
    at->column = slm_cpu_take(&arena, slm_cpu_ceil_div(n, SLM_CPU_COLUMNS), rows,
                              sizeof *at->column);
    at->candidate = slm_cpu_take(&arena, n, 1, sizeof *at->candidate);
    at->tie = slm_cpu_take(&arena, n, 1, 1);
    return arena.used;
}

size_t slm_cpu_qb_exact_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

/* A batch, and the m of its rows that count. */
typedef struct batch {
    slm_cpu_matrix score;
    size_t rows;
    size_t m;
    const int32_t *mask;
} batch;

/* Candidate and tie of one expert. `column` is scratch [m]. */
static void solve_column(const slm_config *config, const space *at, const batch *from,
                         size_t expert, slm_cpu_pair *column)
{
    const size_t n = config->n_experts, k = config->top_k;
    const size_t nth = (size_t)(((unsigned_wide)k * (from->m - 1) + n - 1) / n);
    size_t m = 0;

    for (size_t t = 0; t < from->rows; t++)
        if (slm_cpu_counts(from->mask, t))
            column[m++] = slm_cpu_two_sum((double)at->alpha[t],
                                          -(double)slm_cpu_row(from->score, t)[expert]);
    select_nth(column, m, nth);
    at->candidate[expert] = column[nth];
    at->tie[expert] = 0;
    if (config->balance == SLM_BALANCE_STRICT && nth > 0) {
        slm_cpu_pair under = column[0];

        for (size_t t = 1; t < nth; t++)
            if (below(under, column[t])) under = column[t];
        at->tie[expert] = (unsigned char)tied(config->tie_test, under, column[nth]);
    }
}

static void solve(const slm_config *config, const space *at, const batch *from)
{
    const size_t n = config->n_experts;

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t first = 0; first < n; first += SLM_CPU_COLUMNS) {
        const size_t end = n - first < SLM_CPU_COLUMNS ? n : first + SLM_CPU_COLUMNS;

        for (size_t j = first; j < end; j++)
            solve_column(config, at, from, j,
                         at->column + first / SLM_CPU_COLUMNS * from->rows);
    }
}

slm_status slm_cpu_qb_exact(slm_handle *handle, const slm_qb_exact_args *args,
                            slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t n = config->n_experts;
    const slm_status status = slm_check_finite(SLM_OP_qb_exact, config, args, error);
    batch from = {.rows = args->call.n_tokens};
    space at;

    if (status) return status;
    lay_out(&at, args->call.workspace, config, from.rows);
    from.mask = slm_cpu_mask(&args->call, &args->mask, at.mask);
    for (size_t t = 0; t < from.rows; t++)
        from.m += (size_t)slm_cpu_counts(from.mask, t);
    if (from.m == 0) {
        slm_cpu_keep_bias(&args->bias, &args->new_bias, &args->candidate);
        return SLM_OK;
    }
    if (config->balance == SLM_BALANCE_STRICT &&
        (unsigned_wide)from.m * config->top_k % n != 0)
        return slm_fail(error, SLM_ERR_TARGET, "qb_exact", "n_tokens", 0,
                        "m k divisible by n; m is %zu, k is %zu, n is %zu", from.m,
                        config->top_k, n);
    slm_cpu_pack(at.bias, &args->bias);
    from.score = slm_cpu_read(&args->score, at.score);
    slm_cpu_cutoffs(handle, from.rows, from.score, at.bias, from.mask, at.best,
                    at.alpha);
    solve(config, &at, &from);
    for (size_t j = 0; j < n; j++)
        if (at.tie[j])
            return slm_fail(error, SLM_ERR_TIE, "qb_exact", "new_bias", j,
                            "a unique boundary between elements q and q + 1");
    slm_cpu_centre(at.candidate, n, &args->new_bias, &args->candidate);
    for (size_t t = 0; t < from.rows && args->cutoff.rank; t++)
        if (slm_cpu_counts(from.mask, t))
            *slm_cpu_f32(&args->cutoff, t, 0) = at.alpha[t];
    return SLM_OK;
}

slm_status slm_cpu_sign_step(slm_handle *handle, const slm_sign_step_args *args,
                             slm_error *error)
{
    const size_t n = handle->config.n_experts;
    const float rate = (float)handle->config.rate;
    const slm_status status =
        slm_check_finite(SLM_OP_sign_step, &handle->config, args, error);
    wide total = 0;

    if (status) return status;
    for (size_t j = 0; j < n; j++) total += *slm_cpu_i64(&args->load, j, 0);
    for (size_t j = 0; j < n; j++) {
        /* n (mean - load), exact */
        const wide lack = total - (wide)n * *slm_cpu_i64(&args->load, j, 0);
        float bias = *slm_cpu_f32(&args->bias, j, 0);

        if (lack > 0) bias += rate;
        if (lack < 0) bias -= rate;
        *slm_cpu_f32(&args->new_bias, j, 0) = bias;
    }
    return SLM_OK;
}
