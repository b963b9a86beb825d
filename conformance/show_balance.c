/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/show_balance.c - what a balancing step does to its own batch. */
#include "show_balance.h"

#include <ref.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct shown_batch {
    size_t m;
    size_t n;
    size_t k;
    const slm_tensor *score;
    float *key;
    int32_t *ids;
} shown_batch;

/* Load of every expert under a bias. higher: the higher id wins equal keys, which is
 * the choice among keys in reversed order. */
static void count_load(const shown_batch *batch, const slm_tensor *bias, bool higher,
                       int64_t *load)
{
    memset(load, 0, batch->n * sizeof *load);
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

static void print_load(const char *label, const int64_t *load, size_t n)
{
    printf("    %s [", label);
    for (size_t j = 0; j < n; j++) printf("%s%" PRId64, j ? ", " : "", load[j]);
    puts("]");
}

void show_balance(const call_frame *frame)
{
    const size_t n = frame->config.n_experts;
    shown_batch batch = {.m = frame->call->n_tokens,
                         .n = n,
                         .k = frame->config.top_k,
                         .score = frame_tensor(frame, "score"),
                         .key = malloc(n * sizeof(float)),
                         .ids = malloc(n * sizeof(int32_t))};
    int64_t *load = malloc(2 * n * sizeof *load);

    if (batch.key && batch.ids && load) {
        puts("  what the step does to its own batch");
        count_load(&batch, frame_tensor(frame, "bias"), false, load);
        print_load("load before", load, n);
        count_load(&batch, frame_tensor(frame, "new_bias"), false, load);
        print_load("load after ", load, n);
        count_load(&batch, frame_tensor(frame, "new_bias"), true, load + n);
        if (memcmp(load, load + n, n * sizeof *load) != 0) {
            puts("    the after-state rests on the lower-id rule (R2): a token ties "
                 "exactly at its cutoff,");
            print_load("and if the higher id won it would be", load + n, n);
        }
    }
    free(load);
    free(batch.ids);
    free(batch.key);
}
