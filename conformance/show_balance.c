/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/show_balance.c - what a balancing step does to its own batch. */
#include "show_balance.h"
#include "balance_load.h"

#include <inttypes.h>

static void print_load(const char *label, const int64_t *load, size_t n)
{
    printf("    %s [", label);
    for (size_t j = 0; j < n; j++) printf("%s%" PRId64, j ? ", " : "", load[j]);
    puts("]");
}

void show_balance(const call_frame *frame)
{
    balance_loads loads;

    if (!balance_load(frame, &loads)) return;
    puts("  what the step does to its own batch");
    print_load("load before", loads.before, loads.n_experts);
    print_load("load after ", loads.after, loads.n_experts);
    if (balance_load_rests_on_rule(&loads)) {
        puts("    the after-state rests on the lower-id rule (R2): a token ties "
             "exactly at its cutoff,");
        print_load("and if the higher id won it would be", loads.higher,
                   loads.n_experts);
    }
    balance_load_free(&loads);
}
