/* SPDX-License-Identifier: Apache-2.0 */
/* ref/permute.c - stable grouping of (token, slot) pairs by expert.            R5, L5
 *
 * Pair i = t k + slot. Every pair is placed: there is no capacity. */
#include "internal.h"

#include <stdlib.h>

slm_status slm_ref_op_permute(slm_handle *handle, const slm_permute_args *args,
                              slm_error *error)
{
    const size_t n = handle->config.n_experts;
    const size_t pairs = slm_tensor_count(&args->ids);
    size_t *count = calloc(n, sizeof *count);
    size_t *next = calloc(n, sizeof *next); /* where the expert's next pair goes */
    size_t before = 0;

    if (!count || !next) {
        free(next);
        free(count);
        return slm_fail(error, SLM_ERR_MEMORY, "permute", "counts", 0,
                        "memory for %zu experts", n);
    }
    for (size_t i = 0; i < pairs; i++) count[(size_t)slm_ref_get(&args->ids, i)]++;
    for (size_t e = 0; e < n; e++) {
        slm_ref_set(&args->counts, e, (double)count[e]);
        slm_ref_set(&args->offsets, e, (double)before);
        next[e] = before;
        before += count[e];
    }
    slm_ref_set(&args->offsets, n, (double)before);
    for (size_t i = 0; i < pairs; i++)
        slm_ref_set(&args->order, next[(size_t)slm_ref_get(&args->ids, i)]++,
                    (double)i);
    free(next);
    free(count);
    return SLM_OK;
}
