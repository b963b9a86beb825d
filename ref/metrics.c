/* SPDX-License-Identifier: Apache-2.0 */
/* ref/metrics.c - how far a choice is from equal load.                         Q5, Q7
 *
 * Integers until one division or one square root: with P = m k pairs of the m counted
 * tokens and n experts,
 *
 *   max_vio   (max load - mean) / mean         = (n max - P) / P
 *   cv        population deviation / mean      = sqrt(n sum load^2 - P^2) / P
 *   dead      experts without a token
 *   residual  sum |load - mean| / (2 P)        = sum |n load - P| / (2 n P) */
#include "balance.h"

#include <stdlib.h>

/* sqrt(square) / pairs. A perfect square gives a rational: representable, or on no
 * boundary; the root of any other is irrational. So the loop ends. */
static double root_ratio(const fmpz_t square, const fmpz_t pairs)
{
    double element = 0;
    arb_t ball;

    arb_init(ball);
    for (slong prec = SLM_REF_FIRST;; prec *= 2) {
        arb_sqrt_fmpz(ball, square, prec);
        arb_div_fmpz(ball, ball, pairs, prec);
        if (slm_ref_f64(&element, ball)) break;
    }
    arb_clear(ball);
    return element;
}

static double ratio(const fmpz_t a, const fmpz_t b)
{
    fmpq_t value;
    double element;

    fmpq_init(value);
    fmpq_set_fmpz_frac(value, a, b);
    element = slm_ref_f64_q(value);
    fmpq_clear(value);
    return element;
}

/* metric[4] of load[n]; pairs = sum of load > 0. */
static void measure(double *metric, const size_t *load, size_t n, size_t pairs)
{
    size_t most = 0, dead = 0;
    fmpz_t p, top, square, distance, term;

    fmpz_init_set_ui(p, pairs);
    fmpz_init(top);
    fmpz_init(square);
    fmpz_init(distance);
    fmpz_init(term);
    for (size_t e = 0; e < n; e++) {
        if (load[e] > most) most = load[e];
        if (load[e] == 0) dead++;
        fmpz_set_ui(term, load[e]);
        fmpz_addmul(square, term, term);
        fmpz_mul_ui(term, term, n);
        fmpz_sub(term, term, p);
        fmpz_abs(term, term);
        fmpz_add(distance, distance, term);
    }
    fmpz_set_ui(top, most);
    fmpz_mul_ui(top, top, n);
    fmpz_sub(top, top, p);
    fmpz_mul_ui(square, square, n);
    fmpz_submul(square, p, p);
    fmpz_mul_ui(term, p, n);
    fmpz_mul_ui(term, term, 2);
    metric[0] = ratio(top, p);
    metric[1] = root_ratio(square, p);
    metric[2] = (double)dead;
    metric[3] = ratio(distance, term);
    fmpz_clear(term);
    fmpz_clear(distance);
    fmpz_clear(square);
    fmpz_clear(top);
    fmpz_clear(p);
}

slm_status slm_ref_op_load_metrics(slm_handle *handle,
                                   const slm_load_metrics_args *args, slm_error *error)
{
    const size_t n = handle->config.n_experts;
    const size_t k = handle->config.top_k;
    double metric[4] = {0, 0, (double)n, 0};
    slm_ref_tokens tokens = {0, NULL};
    size_t *load = calloc(n, sizeof *load);

    if (!load || slm_ref_tokens_open(&tokens, &args->call, &args->mask)) {
        free(load);
        return slm_fail(error, SLM_ERR_MEMORY, "load_metrics", "load", 0,
                        "memory for %zu experts and %zu tokens", n,
                        args->call.n_tokens);
    }
    for (size_t i = 0; i < tokens.m; i++)
        for (size_t slot = 0; slot < k; slot++)
            load[(size_t)slm_ref_get(&args->ids, tokens.row[i] * k + slot)]++;
    if (tokens.m > 0) measure(metric, load, n, tokens.m * k);
    for (size_t e = 0; e < n; e++) slm_ref_set(&args->load, e, (double)load[e]);
    for (size_t i = 0; i < 4; i++) slm_ref_set(&args->metric, i, metric[i]);
    slm_ref_tokens_close(&tokens);
    free(load);
    return SLM_OK;
}
