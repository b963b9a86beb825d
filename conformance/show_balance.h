/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/show_balance.h - what a balancing step does to its own batch. */
#ifndef SLM_SHOW_BALANCE_H
#define SLM_SHOW_BALANCE_H

#include "frame.h"

/* Print loads before and after the step of an executed qb_exact frame, and whether the
 * after-state rests on the lower-id rule. The batch itself is never routed anew in
 * training (Q4): this is an illustration. */
void show_balance(const call_frame *frame);

#endif
