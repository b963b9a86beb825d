/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/balance_load.h - loads before and after a balancing step. */
#ifndef SLM_BALANCE_LOAD_H
#define SLM_BALANCE_LOAD_H

#include "frame.h"

typedef struct balance_loads {
    size_t n_experts;
    int64_t sum;     /* m k                                            */
    int64_t *before; /* [n] of the batch routed under its own bias     */
    int64_t *after;  /* [n] under the new bias                         */
    int64_t *higher; /* [n] the same, were the higher id to win a tie  */
} balance_loads;

/* Loads of the batch of an executed qb_exact frame. The batch itself is never routed
 * anew in training (Q4): this is an illustration. Returns 0 when memory ran out; else
 * the caller frees. */
int balance_load(const call_frame *frame, balance_loads *out);
void balance_load_free(balance_loads *loads);

/* Whether the after-state rests on the lower-id rule.                             R2 */
int balance_load_rests_on_rule(const balance_loads *loads);

#endif
