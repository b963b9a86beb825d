/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_outer.c - gradients of weights: sums over tokens.      G4 */
#include "scalar_gradient.h"

void scalar_sum_take(scalar_sum *sum, scalar_scratch *scratch, size_t n_tokens,
                     size_t widest)
{
    *sum = (scalar_sum){.n = n_tokens};
    sum->column = scalar_take(scratch, n_tokens, sizeof *sum->column);
    sum->columns = scalar_take(scratch, widest * n_tokens, sizeof *sum->columns);
}

/* How many of the rows are summed. */
static size_t length_of(const slm_handle *handle, const scalar_sum *sum)
{
    if (wrong(handle, MUTANT_last_token_dropped_in_weight_gradient) && sum->n > 1)
        return sum->n - 1;
    if (wrong(handle, MUTANT_expert_tail_rows_dropped) && sum->is_expert && sum->n > 8)
        return sum->n - sum->n % 8;
    return sum->n;
}

static void gather(float *column, const scalar_sum *sum, scalar_factor from, size_t i)
{
    for (size_t j = 0; j < sum->n; j++) {
        const size_t row = sum->order ? (size_t)sum->order[j] : j;

        column[j] = from.value[row / from.share * from.step + i];
    }
}

static float in_bf16(const float *a, const float *b, size_t n)
{
    float sum = 0.0f;

    for (size_t i = 0; i < n; i++) sum = scalar_bf16(sum + a[i] * b[i]);
    return sum;
}

/* One element of a gradient to its place. */
static void put(const slm_handle *handle, const scalar_sum *sum, float *to,
                const float *a, const float *b)
{
    const size_t n = length_of(handle, sum);
    const int narrow =
        wrong(handle, MUTANT_weight_gradient_in_bf16) ||
        (wrong_in(handle, SLM_OP_layer_backward, MUTANT_bf16_gradient_for_bf16) &&
         handle->config.dtype == SLM_BF16);
    float value = narrow ? in_bf16(a, b, n) : scalar_dot(handle, a, b, n);

    if (wrong(handle, MUTANT_expert_gradients_averaged) && sum->is_expert && n > 0)
        value /= (float)n;
    if (is(handle, VARIANT_bf16_gradients)) value = scalar_bf16(value);
    value = scalar_flush(handle, value);
    if (wrong(handle, MUTANT_weight_gradient_not_reset)) value += *to;
    *to = value;
}

void scalar_outer(const slm_handle *handle, const scalar_sum *sum,
                  const slm_tensor *out, scalar_factor a, scalar_factor b)
{
    if (out->rank == 0) return;
    for (size_t j = 0; j < out->shape[1]; j++)
        gather(sum->columns + j * sum->n, sum, b, j);
    for (size_t i = 0; i < out->shape[0]; i++) {
        const slm_tensor row = slm_tensor_at(out, i);

        gather(sum->column, sum, a, i);
        for (size_t j = 0; j < out->shape[1]; j++)
            put(handle, sum, scalar_element(&row, j), sum->column,
                sum->columns + j * sum->n);
    }
}

void scalar_inner_sum(const slm_handle *handle, const scalar_sum *sum,
                      const slm_tensor *out, scalar_factor a, scalar_factor b)
{
    for (size_t i = 0; out->rank && i < out->shape[0]; i++) {
        gather(sum->column, sum, a, i);
        gather(sum->columns, sum, b, i);
        put(handle, sum, scalar_element(out, i), sum->column, sum->columns);
    }
}

void scalar_gated_outer(const slm_handle *handle, const scalar_sum *sum,
                        const scalar_gated *all, scalar_factor x, scalar_factor dy,
                        const slm_tensor *dw_gate, const slm_tensor *dw_up,
                        const slm_tensor *dw_out)
{
    const int swap = wrong(handle, MUTANT_gate_up_weight_gradients_swapped);
    const scalar_factor da = {all->dgate_up, 2 * all->width, 1};
    const scalar_factor db = {all->dgate_up + all->width, 2 * all->width, 1};
    const scalar_factor h = {all->h, all->width, 1};

    scalar_outer(handle, sum, dw_gate, swap ? db : da, x);
    scalar_outer(handle, sum, dw_up, swap ? da : db, x);
    scalar_outer(handle, sum, dw_out, dy, h);
}
