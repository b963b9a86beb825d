/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/balance.h - what the balancing operations share: arithmetic of about 106 bits,
 * batches of rows, cutoffs and centring. In qb.c where nothing else is said. */
#ifndef SLM_CPU_BALANCE_H
#define SLM_CPU_BALANCE_H

#include "internal.h"

/* An unevaluated sum hi + lo with hi = RN64(hi + lo): about 106 bits. Additions and
 * products below are within 2^-102 of the larger operand or the result. */
typedef struct slm_cpu_pair {
    double hi;
    double lo;
} slm_cpu_pair;

/* Exact a + b. */
static inline slm_cpu_pair slm_cpu_two_sum(double a, double b)
{
    const double sum = a + b;
    const double part = sum - a;

    return (slm_cpu_pair){sum, (a - (sum - part)) + (b - part)};
}

/* Exact a b, above 2^-960 or so. */
static inline slm_cpu_pair slm_cpu_two_product(double a, double b)
{
    const double product = a * b;

    return (slm_cpu_pair){product, fma(a, b, -product)};
}

static inline slm_cpu_pair slm_cpu_pair_add(slm_cpu_pair a, slm_cpu_pair b)
{
    const slm_cpu_pair high = slm_cpu_two_sum(a.hi, b.hi);
    const slm_cpu_pair low = slm_cpu_two_sum(a.lo, b.lo);
    const slm_cpu_pair sum = slm_cpu_two_sum(high.hi, high.lo + low.hi);

    return slm_cpu_two_sum(sum.hi, sum.lo + low.lo);
}

static inline slm_cpu_pair slm_cpu_pair_times(slm_cpu_pair a, double b)
{
    const slm_cpu_pair product = slm_cpu_two_product(a.hi, b);

    return slm_cpu_two_sum(product.hi, product.lo + a.lo * b);
}

static inline slm_cpu_pair slm_cpu_pair_over(slm_cpu_pair a, double b)
{
    const double quotient = a.hi / b;
    const double rest = fma(-quotient, b, a.hi) + a.lo;

    return slm_cpu_two_sum(quotient, rest / b);
}

/* Sign, -1, 0 or 1, of an exact sum of at most SLM_CPU_TERMS doubles. */
enum { SLM_CPU_TERMS = 16 };
int slm_cpu_sign_of_sum(const double *term, size_t n);

/* Rows of scores, and what becomes of them. */
typedef struct slm_cpu_batch {
    slm_cpu_matrix score;
    float *packed; /* [T, n] where the scores cannot be read in place                */
    float *bias;   /* [n]                                                            */
    size_t *row;   /* [m] rows of `score` that are of the batch, ascending           */
    size_t m;
    float *alpha;   /* [m] out: the (k+1)-th key of each; what is left of a row      */
                    /* with a score that is NaN or infinite is any number         Q1 */
    uint64_t *best; /* scratch: k + 1 words for each SLM_CPU_ROWS rows, rounded up   */
} slm_cpu_batch;

/* Workspace for a batch of at most `rows`. */
void slm_cpu_take_batch(slm_cpu_arena *arena, const slm_config *config, size_t rows,
                        slm_cpu_batch *at);

/* The batch of a call: scores, bias, the rows that the mask counts. Returns whether the
 * bias is finite.                                                                Q5 */
int slm_cpu_read_batch(slm_cpu_batch *at, const slm_call *call, const slm_tensor *score,
                       const slm_tensor *bias, const slm_tensor *mask);

/* alpha of the rows [first, end) of the batch, of all rows; not 0 when one has a score
 * that is NaN or infinite. Scratch is that of first / SLM_CPU_ROWS: threads begin at
 * multiples.                                                                  Q1, R2 */
int slm_cpu_cutoffs(const slm_handle *handle, const slm_cpu_batch *of, size_t first,
                    size_t end);
int slm_cpu_all_cutoffs(const slm_handle *handle, const slm_cpu_batch *of);

/* new_bias = RN32(candidate - mean of candidates); candidate is written where present.
 * Q1 */
void slm_cpu_centre(const slm_cpu_pair *candidate, size_t n, const slm_tensor *new_bias,
                    const slm_tensor *tap);

/* What hist_count.c accumulates: the arguments of `op`, whose workspace is that of
 * qb_hist_accumulate, and some of their tensors. */
typedef struct slm_cpu_counting {
    slm_op op;
    const void *args;
    const slm_call *call;
    const slm_tensor *score;
    const slm_tensor *bias;
    const slm_tensor *hist;
    const slm_tensor *mask;
} slm_cpu_counting;

/* Add a batch to the counts; m, how many tokens that were. NONFINITE, and nothing is
 * written, where slm_check_finite says so.                                    Q3, Q5 */
slm_status slm_cpu_accumulate(const slm_handle *handle, const slm_cpu_counting *from,
                              size_t *m, slm_error *error);

/* No token: new_bias = bias, bit for bit, and candidate = bias. */
void slm_cpu_keep_bias(const slm_tensor *bias, const slm_tensor *new_bias,
                       const slm_tensor *tap);

#endif
