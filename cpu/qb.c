/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/qb.c - what exact balancing and the histogram share, and the sign step.
 *
 * Clause   Q1, Q5, Q6.  Preconditions are the contract's; none is checked here.
 * Method   the mean of candidates is taken in pairs (about 106 bits) and rounded once.
 * Order    rows are independent; the mean adds experts in order. */
#include "balance.h"
#include "topk.h"

__extension__ typedef __int128 wide;

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

void slm_cpu_take_batch(slm_cpu_arena *arena, const slm_config *config, size_t rows,
                        slm_cpu_batch *at)
{
    at->bias = slm_cpu_take_f32(arena, 1, config->n_experts);
    at->packed = slm_cpu_take_f32(arena, rows, config->n_experts);
    at->alpha = slm_cpu_take_f32(arena, rows, 1);
    at->row = slm_cpu_take(arena, rows, 1, sizeof *at->row);
    at->best = slm_cpu_take(arena, slm_cpu_ceil_div(rows, SLM_CPU_ROWS),
                            config->top_k + 1, sizeof *at->best);
}

int slm_cpu_read_batch(slm_cpu_batch *at, const slm_call *call, const slm_tensor *score,
                       const slm_tensor *bias, const slm_tensor *mask)
{
    const int given = slm_given(call, mask) != NULL;
    int finite = 1;

    at->score = slm_cpu_read(score, at->packed);
    slm_cpu_pack(at->bias, bias);
    for (size_t j = 0; j < bias->shape[0]; j++) finite &= isfinite(at->bias[j]) != 0;
    at->m = 0;
    for (size_t t = 0; t < call->n_tokens; t++)
        if (!given || *slm_cpu_i32(mask, t, 0) != 0) at->row[at->m++] = t;
    return finite;
}

/* Cutoffs of the rows of a chooser, which are those from `first` on; `words` is scratch
 * [k + 1]. Returns whether a score is no finite number. */
static int take_cutoffs(const slm_cpu_chooser *at, const slm_cpu_batch *of,
                        size_t first, uint64_t *words)
{
    int wrong = 0;

    for (size_t i = 0; i < at->rows; i++) {
        wrong |= at->found[i] == SLM_FOUND_WRONG;
        of->alpha[first + i] = at->last[i];
        if (at->found[i] != SLM_FOUND_NOT) continue;
        slm_cpu_choose(at->score[i], of->bias, at->n, at->keep - 1, words);
        of->alpha[first + i] = slm_cpu_chosen_key(words[at->keep - 1]);
    }
    return wrong;
}

int slm_cpu_cutoffs(const slm_handle *handle, const slm_cpu_batch *of, size_t first,
                    size_t end)
{
    slm_cpu_chooser at;
    int wrong = 0;

    at.bias = of->bias;
    at.n = handle->config.n_experts;
    at.keep = handle->config.top_k + 1;
    for (size_t i = first; i < end; i += at.rows) {
        at.rows = end - i < handle->topk->lanes ? end - i : handle->topk->lanes;
        for (size_t r = 0; r < at.rows; r++) {
            const size_t later = i + at.rows + r;

            at.score[r] = slm_cpu_row(of->score, of->row[i + r]);
            at.ahead[r] = later < of->m ? slm_cpu_row(of->score, of->row[later]) : NULL;
            at.last[r] = NAN;
        }
        handle->topk->choose(&at);
        wrong |= take_cutoffs(&at, of, i, of->best + first / SLM_CPU_ROWS * at.keep);
    }
    return wrong;
}

int slm_cpu_all_cutoffs(const slm_handle *handle, const slm_cpu_batch *of)
{
    int wrong = 0;

#pragma omp parallel for schedule(static) reduction(| : wrong)
    for (size_t first = 0; first < of->m; first += SLM_CPU_ROWS) {
        const size_t end = of->m - first < SLM_CPU_ROWS ? of->m : first + SLM_CPU_ROWS;

        wrong |= slm_cpu_cutoffs(handle, of, first, end);
    }
    return wrong;
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
