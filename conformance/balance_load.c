/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/balance_load.c - loads before and after a balancing step. */
#include "balance_load.h"

#include <ref.h>

#include <stdlib.h>
#include <string.h>

typedef struct routed_batch {
    size_t m;
    size_t n;
    size_t k;
    const slm_tensor *score;
    float *key;
    int32_t *ids;
} routed_batch;

/* Load of every expert under a bias. higher: the higher id wins equal keys, which is
 * the choice among keys in reversed order. */
static void count_load(const routed_batch *batch, const slm_tensor *bias, bool higher,
                       int64_t *load)
{
    for (size_t i = 0; i < batch->m; i++) {
        float cutoff;

        for (size_t j = 0; j < batch->n; j++)
            batch->key[higher ? batch->n - 1 - j : j] =
                slm_ref_key((float)slm_ref_get(batch->score, i * batch->n + j),
                            (float)slm_ref_get(bias, j));
        slm_ref_choose(batch->ids, &cutoff, batch->key, batch->n, batch->k);
        for (size_t q = 0; q < batch->k; q++) {
            const size_t id = (size_t)batch->ids[q];

            load[higher ? batch->n - 1 - id : id]++;
        }
    }
}

int balance_load(const call_frame *frame, balance_loads *out)
{
    const size_t n = frame->config.n_experts;
    routed_batch batch = {.m = frame->call->n_tokens,
                          .n = n,
                          .k = frame->config.top_k,
                          .score = frame_tensor(frame, "score"),
                          .key = malloc(n * sizeof(float)),
                          .ids = malloc(n * sizeof(int32_t))};
    int64_t *load = calloc(3 * n, sizeof *load);
    const int ok = batch.key && batch.ids && load;

    memset(out, 0, sizeof *out);
    if (ok) {
        *out = (balance_loads){.n_experts = n,
                               .sum = (int64_t)(batch.m * batch.k),
                               .before = load,
                               .after = load + n,
                               .higher = load + 2 * n};
        count_load(&batch, frame_tensor(frame, "bias"), false, out->before);
        count_load(&batch, frame_tensor(frame, "new_bias"), false, out->after);
        count_load(&batch, frame_tensor(frame, "new_bias"), true, out->higher);
    } else {
        free(load);
    }
    free(batch.ids);
    free(batch.key);
    return ok;
}

void balance_load_free(balance_loads *loads)
{
    free(loads->before);
    memset(loads, 0, sizeof *loads);
}

int balance_load_rests_on_rule(const balance_loads *loads)
{
    return memcmp(loads->after, loads->higher,
                  loads->n_experts * sizeof *loads->after) != 0;
}
