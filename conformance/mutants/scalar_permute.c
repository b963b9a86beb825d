/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_permute.c - grouping by expert.                        L5 */
#include "scalar.h"

/* Pairs of expert e, ascending, behind what is in order already. */
static size_t list_pairs(const slm_handle *handle, const int32_t *ids, size_t n_tokens,
                         size_t e, int64_t *order, size_t used)
{
    const size_t k = handle->config.top_k, pairs = n_tokens * k, first = used;

    for (size_t i = 0; i < pairs; i++) {
        if (scalar_expert_id(handle, ids[i]) != e) continue;
        order[used++] = wrong(handle, MUTANT_order_by_slot)
                            ? (int64_t)(i % k * n_tokens + i / k)
                            : (int64_t)i;
    }
    if (!wrong(handle, MUTANT_unstable_order)) return used;
    for (size_t i = first, j = used; i + 1 < j; i++) {
        const int64_t kept = order[i];

        order[i] = order[--j];
        order[j] = kept;
    }
    return used;
}

void scalar_group(const slm_handle *handle, const int32_t *ids, size_t n_tokens,
                  int64_t *counts, int64_t *offsets, int64_t *order)
{
    const size_t n = handle->config.n_experts;
    size_t used = 0;

    offsets[0] = 0;
    for (size_t e = 0; e < n; e++) {
        const size_t first = used;

        used = list_pairs(handle, ids, n_tokens, e, order, used);
        counts[e] = scalar_count(handle, (int64_t)(used - first));
        offsets[e + 1] = (int64_t)used;
    }
    if (wrong(handle, MUTANT_last_expert_dropped)) counts[n - 1] = 0;
    for (size_t e = 0; e < n; e++) {
        const int64_t most = (int64_t)((used + n - 1) / n);

        if (wrong(handle, MUTANT_capacity_drops) && counts[e] > most) counts[e] = most;
        if (wrong(handle, MUTANT_counts_of_256_experts) && e >= 256) counts[e] = 0;
        if (wrong(handle, MUTANT_offsets_inclusive)) offsets[e] = offsets[e + 1];
        if (wrong(handle, MUTANT_empty_expert_corrupts_next) && counts[e] == 0)
            offsets[e + 1]++;
    }
}

static void write_counts(const slm_tensor *tensor, const int64_t *value)
{
    const size_t count = slm_tensor_count(tensor);

    for (size_t i = 0; i < count; i++) *(int64_t *)scalar_element(tensor, i) = value[i];
}

/* Memory of one call. */
typedef struct space {
    int32_t *ids;     /* [T k]   */
    int64_t *counts;  /* [n]     */
    int64_t *offsets; /* [n + 1] */
    int64_t *order;   /* [T k]   */
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t n_tokens)
{
    const size_t pairs = n_tokens * config->top_k, n = config->n_experts;
    scalar_scratch scratch = {base, 0};

    at->ids = scalar_take(&scratch, pairs, sizeof *at->ids);
    at->counts = scalar_take(&scratch, n, sizeof *at->counts);
    at->offsets = scalar_take(&scratch, n + 1, sizeof *at->offsets);
    at->order = scalar_take(&scratch, pairs, sizeof *at->order);
    return scratch.used;
}

size_t scalar_permute_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_status scalar_permute(slm_handle *handle, const slm_permute_args *args,
                          slm_error *error)
{
    const size_t n_tokens = args->call.n_tokens;
    const size_t pairs = n_tokens * handle->config.top_k;
    const slm_status status = scalar_begin(handle, SLM_OP_permute, args, error);
    space at;

    if (status) return status;
    if (n_tokens == 0 && wrong(handle, MUTANT_counts_not_written)) return SLM_OK;
    lay_out(&at, args->call.workspace, &handle->config, n_tokens);
    for (size_t i = 0; i < pairs; i++)
        at.ids[i] = *(const int32_t *)scalar_element(&args->ids, i);
    scalar_group(handle, at.ids, n_tokens, at.counts, at.offsets, at.order);
    write_counts(&args->counts, at.counts);
    write_counts(&args->offsets, at.offsets);
    write_counts(&args->order, at.order);
    return SLM_OK;
}
