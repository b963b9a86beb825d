/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/mutants/scalar_shared.c - mutants whose handles share what each should have
 * of its own.                                                                        A3 */
#include "scalar.h"

#include <stdatomic.h>
#include <time.h>

/* The handle that was prepared last, while it is open. */
static const slm_handle *last_prepared;

static _Atomic double eps_opened_last;
static _Atomic double eps_at_hand;

void scalar_shared_open(slm_handle *handle)
{
    handle->own_eps = handle->config.eps;
    eps_opened_last = handle->own_eps;
}

void scalar_shared_prepare(slm_handle *handle)
{
    handle->own_weights = handle->weights;
    last_prepared = handle;
}

void scalar_shared_close(const slm_handle *handle)
{
    if (last_prepared == handle) last_prepared = NULL;
}

/* The same sizes and kinds, so that the weights of one can be taken for the other's. */
static int are_alike(const slm_config *a, const slm_config *b)
{
    return a->d_model == b->d_model && a->d_latent == b->d_latent &&
           a->n_experts == b->n_experts && a->d_expert == b->d_expert &&
           a->n_shared == b->n_shared && a->d_shared == b->d_shared &&
           a->dtype == b->dtype && a->expert == b->expert && a->norm == b->norm;
}

void scalar_shared_begin(slm_handle *handle)
{
    static const struct timespec moment = {.tv_nsec = 1000000};

    if (wrong(handle, MUTANT_last_weights_used)) {
        handle->weights = handle->own_weights;
        if (last_prepared && are_alike(&last_prepared->config, &handle->config))
            handle->weights = last_prepared->own_weights;
    }
    if (wrong(handle, MUTANT_eps_opened_last)) handle->config.eps = eps_opened_last;
    if (wrong(handle, MUTANT_eps_at_hand)) {
        eps_at_hand = handle->own_eps;
        nanosleep(&moment, NULL); /* long enough for another thread to begin a call */
        handle->config.eps = eps_at_hand;
    }
}
