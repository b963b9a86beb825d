/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/qb_exact.c - exact Quantile Balancing.
 *
 * Clause   Q1, Q2, Q5.  Preconditions are the contract's; none is checked here.
 * Method   r = alpha - s is kept as an exact pair hi + lo: for a tiny s beside a large
 *          alpha binary64 alone would make unequal r equal. Pairs are ordered by hi,
 *          then lo. Of most columns only the lower end is looked at, which qb_sift.c
 *          finds; a quickselect of it finds element i* wherever it is long enough. A
 *          column whose end is too short is selected from as a whole; all columns are,
 *          where sifting kept more than there was room for. Where every lo is 0 numbers
 *          are compared in place of pairs.
 * Ties     the tie test is the sign of an exact sum, so it is never in doubt.
 * Order    columns are independent; only values count. */
#include "balance.h"
#include "qb_sift.h"

__extension__ typedef unsigned __int128 unsigned_wide;

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

/* Where a quickselect still looks. Pivots lie where a fixed sequence says, so no order
 * of the input is slow by design. */
typedef struct search {
    size_t first;
    size_t end;
    uint32_t state;
} search;

static size_t next_pivot(search *in)
{
    in->state = in->state * 1664525u + 1013904223u;
    return in->first + (in->state >> 8) % (in->end - in->first);
}

/* The elements [low, high) equal the pivot, those before are below it. Nothing is left
 * to look at where nth is one of them. */
static void narrow(search *in, size_t nth, size_t low, size_t high)
{
    if (nth < low)
        in->end = low;
    else if (nth >= high)
        in->first = high;
    else
        in->first = in->end;
}

/* Puts the element of that index in ascending order at v[nth], what is not above it
 * before it. Three-way partition, since columns have plateaus (Q2). */
static void select_nth(slm_cpu_pair *v, size_t n, size_t nth)
{
    search in = {0, n, 1};

    while (in.end - in.first > 1) {
        const slm_cpu_pair pivot = v[next_pivot(&in)];
        size_t low = in.first, at = in.first, high = in.end;

        while (at < high) {
            if (below(v[at], pivot))
                swap(&v[low++], &v[at++]);
            else if (below(pivot, v[at]))
                swap(&v[at], &v[--high]);
            else
                at++;
        }
        narrow(&in, nth, low, high);
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
    slm_cpu_batch batch;
    slm_cpu_pair *column;    /* [strips, T] */
    slm_cpu_pair *candidate; /* [n]         */
    unsigned char *tie;      /* [n]         */
    slm_cpu_sieve sieve;
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows)
{
    slm_cpu_arena arena = {base, 0};
    const size_t n = config->n_experts;

    slm_cpu_take_batch(&arena, config, rows, &at->batch);
    at->column = slm_cpu_take(&arena, slm_cpu_ceil_div(n, SLM_CPU_COLUMNS), rows,
                              sizeof *at->column);
    at->candidate = slm_cpu_take(&arena, n, 1, sizeof *at->candidate);
    at->tie = slm_cpu_take(&arena, n, 1, 1);
    slm_cpu_take_sieve(&arena, config, rows, &at->sieve);
    return arena.used;
}

size_t slm_cpu_qb_exact_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

/* One call. */
typedef struct job {
    const slm_handle *handle;
    const slm_cpu_batch *batch;
    space *at;
    size_t nth; /* i* */
} job;

/* What one column is selected from. */
typedef struct source {
    const slm_cpu_halves *kept; /* NULL: every row of the batch */
    size_t count;
    size_t expert;
} source;

static source source_of(const job *on, int sifted, size_t expert)
{
    const size_t *start = on->at->sieve.start;

    if (!sifted || start[expert + 1] - start[expert] <= on->nth)
        return (source){NULL, on->batch->m, expert};
    return (source){on->at->sieve.sorted + start[expert],
                    start[expert + 1] - start[expert], expert};
}

static slm_cpu_pair element(const job *on, const source *from, size_t i)
{
    if (from->kept)
        return slm_cpu_two_sum((double)from->kept[i].alpha,
                               -(double)from->kept[i].score);
    return slm_cpu_two_sum(
        (double)on->batch->alpha[i],
        -(double)slm_cpu_row(on->batch->score, on->batch->row[i])[from->expert]);
}

/* As select_nth, for numbers. Nothing branches on what is compared: a whole call takes
 * up to a third less than by pairs, which such a partition does not help. */
static void select_nth_number(double *v, size_t n, size_t nth)
{
    search in = {0, n, 1};

    while (in.end - in.first > 1) {
        const double pivot = v[next_pivot(&in)];
        size_t low = in.first, high;

        for (size_t i = in.first; i < in.end; i++) {
            const double x = v[i];

            v[i] = v[low];
            v[low] = x;
            low += x < pivot;
        }
        high = low;
        for (size_t i = low; nth >= low && i < in.end; i++) {
            const double x = v[i];

            v[i] = v[high];
            v[high] = x;
            high += x <= pivot;
        }
        narrow(&in, nth, low, high);
    }
}

/* The elements nth and nth - 1 of a column; the second only if nth > 0. */
typedef struct boundary {
    slm_cpu_pair above;
    slm_cpu_pair under;
} boundary;

static boundary boundary_of_pairs(slm_cpu_pair *v, size_t n, size_t nth)
{
    boundary found;

    select_nth(v, n, nth);
    found.above = v[nth];
    found.under = v[0];
    for (size_t i = 1; i < nth; i++)
        if (below(found.under, v[i])) found.under = v[i];
    return found;
}

static boundary boundary_of_numbers(double *v, size_t n, size_t nth)
{
    double under;

    select_nth_number(v, n, nth);
    under = v[0];
    for (size_t i = 1; i < nth; i++) under = v[i] > under ? v[i] : under;
    return (boundary){{v[nth], 0.0}, {under, 0.0}};
}

/* Candidate and tie of one expert. `column` is scratch [m]: where every r is a
 * binary64, for these alone. */
static void solve_column(const job *on, int sifted, size_t expert, slm_cpu_pair *column)
{
    const slm_config *config = &on->handle->config;
    const source from = source_of(on, sifted, expert);
    double *number = (double *)column;
    double rest = 0.0;
    boundary found;

    for (size_t i = 0; i < from.count; i++) {
        const slm_cpu_pair r = element(on, &from, i);

        number[i] = r.hi;
        rest += fabs(r.lo);
    }
    if (rest == 0.0) {
        found = boundary_of_numbers(number, from.count, on->nth);
    } else {
        for (size_t i = 0; i < from.count; i++) column[i] = element(on, &from, i);
        found = boundary_of_pairs(column, from.count, on->nth);
    }
    on->at->candidate[expert] = found.above;
    on->at->tie[expert] =
        (unsigned char)(config->balance == SLM_BALANCE_STRICT && on->nth > 0 &&
                        tied(config->tie_test, found.under, found.above));
}

static void solve(const job *on, int sifted)
{
    const size_t n = on->handle->config.n_experts;

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t first = 0; first < n; first += SLM_CPU_COLUMNS) {
        const size_t end = n - first < SLM_CPU_COLUMNS ? n : first + SLM_CPU_COLUMNS;

        for (size_t j = first; j < end; j++)
            solve_column(on, sifted, j,
                         on->at->column + first / SLM_CPU_COLUMNS * on->batch->m);
    }
}

/* ---- the operation ---- */

/* NONFINITE where the bias is not finite, then TARGET. The scores are looked at here
 * only where TARGET would hide what is wrong with them: sifting sees them all. */
static slm_status check_call(const slm_config *config, const slm_qb_exact_args *args,
                             int finite, size_t m, slm_error *error)
{
    const size_t n = config->n_experts;
    const int off_target = config->balance == SLM_BALANCE_STRICT &&
                           (unsigned_wide)m * config->top_k % n != 0;

    if (!finite || off_target) {
        const slm_status status =
            slm_check_finite(SLM_OP_qb_exact, config, args, error);

        if (status) return status;
    }
    if (!off_target) return SLM_OK;
    return slm_fail(error, SLM_ERR_TARGET, "qb_exact", "n_tokens", 0,
                    "m k divisible by n; m is %zu, k is %zu, n is %zu", m,
                    config->top_k, n);
}

static void write_outputs(const job *on, const slm_qb_exact_args *args)
{
    slm_cpu_centre(on->at->candidate, on->handle->config.n_experts, &args->new_bias,
                   &args->candidate);
    for (size_t i = 0; i < on->batch->m && args->cutoff.rank; i++)
        *slm_cpu_f32(&args->cutoff, on->batch->row[i], 0) = on->batch->alpha[i];
}

slm_status slm_cpu_qb_exact(slm_handle *handle, const slm_qb_exact_args *args,
                            slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t n = config->n_experts, k = config->top_k;
    space at;
    job on = {.handle = handle, .batch = &at.batch, .at = &at};
    slm_status status;
    int sifted, finite;

    lay_out(&at, args->call.workspace, config, args->call.n_tokens);
    finite = slm_cpu_read_batch(&at.batch, &args->call, &args->score, &args->bias,
                                &args->mask);
    status = check_call(config, args, finite, at.batch.m, error);
    if (status) return status;
    if (at.batch.m == 0) {
        slm_cpu_keep_bias(&args->bias, &args->new_bias, &args->candidate);
        return SLM_OK;
    }
    on.nth = (size_t)(((unsigned_wide)k * (at.batch.m - 1) + n - 1) / n);
    if (slm_cpu_sift(handle, &at.batch, on.nth, &at.sieve, &sifted))
        return slm_check_finite(SLM_OP_qb_exact, config, args, error);
    solve(&on, sifted);
    for (size_t j = 0; j < n; j++)
        if (at.tie[j])
            return slm_fail(error, SLM_ERR_TIE, "qb_exact", "new_bias", j,
                            "a unique boundary between elements q and q + 1");
    write_outputs(&on, args);
    return SLM_OK;
}
