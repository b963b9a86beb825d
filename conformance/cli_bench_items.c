/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench_items.c - what a bench is to time: shapes, operations, sizes. */
#include "cli_bench.h"

#include <string.h>

static int add_item(bench_run *run, const bench_shape *shape, slm_op op,
                    const slm_config *config, size_t n_tokens)
{
    bench_item *item = &run->items[run->n_items];
    const char *why = bench_cannot_time(op, config);

    if (why || config->top_k > config->n_experts) {
        fprintf(stderr, "slmoe bench: %s %s: cannot be timed: %s\n", shape->id,
                slm_op_describe(op)->name, why ? why : "k exceeds n");
        return 0;
    }
    if (run->n_items++ == BENCH_ITEMS) {
        fprintf(stderr, "slmoe bench: more than %d rows of a table\n", BENCH_ITEMS);
        return 0;
    }
    item->shape = shape;
    item->op = op;
    item->config = *config;
    item->n_tokens = n_tokens;
    item->sample = bench_sample_of(op, n_tokens, shape->judged);
    return 1;
}

/* All sizes of one shape, operation and element type. */
static int add_sizes(bench_run *run, const bench_shape *shape, slm_op op,
                     const slm_config *base)
{
    const bench_options *options = run->options;
    const bench_numbers none = {.n = 1, .value = {0}};
    const bench_numbers *experts = options->experts.n ? &options->experts : &none;
    const bench_numbers *top_k = options->top_k.n ? &options->top_k : &none;
    const size_t n_tokens = options->tokens.n ? options->tokens.n : shape->n_tokens;
    const size_t *tokens = options->tokens.n ? options->tokens.value : shape->tokens;

    for (size_t i = 0; i < experts->n; i++)
        for (size_t j = 0; j < top_k->n; j++)
            for (size_t t = 0; t < n_tokens; t++) {
                slm_config config = *base;

                if (experts->value[i]) config.n_experts = experts->value[i];
                if (top_k->value[j]) config.top_k = top_k->value[j];
                if (!add_item(run, shape, op, &config, tokens[t])) return 0;
            }
    return 1;
}

static int add_dtypes(bench_run *run, const bench_shape *shape, slm_op op)
{
    const cli_list *dtypes = &run->options->dtypes;
    slm_config config = shape->config;

    if (!dtypes->n) return add_sizes(run, shape, op, &config);
    for (size_t i = 0; i < dtypes->n; i++) {
        if (strcmp(dtypes->item[i], "f32") != 0 &&
            strcmp(dtypes->item[i], "bf16") != 0) {
            fprintf(stderr, "slmoe bench: --dtype %s: expected f32 or bf16\n",
                    dtypes->item[i]);
            return 0;
        }
        config.dtype = strcmp(dtypes->item[i], "bf16") == 0 ? SLM_BF16 : SLM_F32;
        if (!add_sizes(run, shape, op, &config)) return 0;
    }
    return 1;
}

int bench_gather_items(bench_run *run)
{
    const bench_options *options = run->options;

    for (size_t s = 0; s < options->shapes.n; s++) {
        const bench_shape *shape =
            bench_shape_find(run->shapes, options->shapes.item[s]);

        if (!shape) {
            fprintf(stderr,
                    "slmoe bench: --shape %s: there is none of that name; there are:",
                    options->shapes.item[s]);
            for (size_t i = 0; i < run->shapes->n; i++)
                fprintf(stderr, " %s", run->shapes->shape[i].id);
            fputc('\n', stderr);
            return 0;
        }
        for (size_t i = 0; i < options->ops.n; i++) {
            const slm_op op = slm_op_find(options->ops.item[i]);

            if (op == SLM_OP_COUNT) {
                fprintf(stderr, "slmoe bench: --op %s: no such operation; there are:",
                        options->ops.item[i]);
                for (int o = 0; o < SLM_OP_COUNT; o++)
                    fprintf(stderr, " %s", slm_op_describe((slm_op)o)->name);
                fputc('\n', stderr);
                return 0;
            }
            if (!add_dtypes(run, shape, op)) return 0;
        }
    }
    return 1;
}
