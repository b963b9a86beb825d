/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native_layer.c - the whole layer on packed weights, in one parallel region.
 *
 * Clause   R1-R5, L1-L6.  Preconditions are the contract's; none is checked here.
 * Method   panels of SLM_CPU_PANEL tokens bound the workspace. Up to a block of tokens:
 *          native_flow.c. More, with a barrier after each: router, down-projection and
 *          shared gate and up, block by block, so that they share a read of x, selection
 *          following its router tile; a counting sort; the experts; combination, norm
 *          and both last products, by blocks of which each thread has as many. Few chosen
 *          experts are cut into slices of columns, many are a task each.
 * Order    native_parts.c.
 * NaN      poisoned rows run like any other and are overwritten at the end. */
#include "native_parts.h"
#include "threads.h"

static size_t early_rows(size_t rows)
{
    return rows < SLM_CPU_EARLY_ROWS ? rows : SLM_CPU_EARLY_ROWS;
}

static size_t lay_out(slm_cpu_space *at, void *base, const slm_handle *handle,
                      size_t n_tokens)
{
    const slm_config *config = &handle->config;
    slm_cpu_arena arena = {base, 0};
    const size_t rows = slm_cpu_panel_rows(n_tokens), n = config->n_experts;
    const size_t k = config->top_k, d = config->d_model, l = config->d_latent;
    const int inner = config->expert != SLM_EXPERT_LINEAR;
    const size_t f = inner ? config->d_expert : 0;
    const size_t s = inner ? config->n_shared * config->d_shared : 0;
    const size_t pairs = rows * k;

    at->bias = slm_cpu_take_f32(&arena, 1, n);
    at->x = slm_cpu_take_acts(&arena, handle, rows, d);
    at->y = slm_cpu_take_acts(&arena, handle, rows, d);
    at->logit = slm_cpu_take_f32(&arena, rows, n);
    at->score = slm_cpu_take_f32(&arena, rows, n);
    at->z = slm_cpu_take_acts(&arena, handle, rows, l);
    at->hs = slm_cpu_take_acts(&arena, handle, rows, s);
    at->rows = slm_cpu_take_acts(&arena, handle, pairs, l);
    at->h = slm_cpu_take_acts(&arena, handle, pairs, f);
    at->o = slm_cpu_take_acts(&arena, handle, pairs, l);
    at->u = slm_cpu_take_acts(&arena, handle, rows, l);
    at->r = slm_cpu_take_acts(&arena, handle, rows, l);
    at->wide = slm_cpu_take_f32(&arena, slm_cpu_keeps_half(handle) ? rows : 0, l);
    at->sums =
        slm_cpu_take_f32(&arena, slm_cpu_keeps_half(handle) ? early_rows(rows) : 0, d);
    slm_cpu_take_choices(&arena, rows, k, &at->chosen);
    slm_cpu_take_groups(&arena, n, rows, k, &at->groups);
    at->poisoned = slm_cpu_take(&arena, rows, 1, 1);
    return arena.used;
}

size_t slm_cpu_native_layer_space(const slm_handle *handle, const slm_call *call)
{
    slm_cpu_space at;

    return lay_out(&at, NULL, handle, call->n_tokens);
}

/* ---- what needs x alone ---- */

/* Of a block: the router and the choice; then `down` units of z; then `shared` of hs. */
static void first_unit(const slm_cpu_panel *on, range rows, size_t down, size_t shared,
                       size_t unit)
{
    if (unit == 0) {
        slm_cpu_part_logit(on, rows, (range){0, on->config->n_experts});
        slm_cpu_part_choice(on, rows);
    } else if (unit <= down) {
        slm_cpu_part_z(on, rows,
                       part_of(on->config->d_latent, SLM_CPU_WIDTH, down, unit - 1));
    } else {
        slm_cpu_part_hs(on, rows,
                        part_of(on->packed->shared_in.cols, SLM_CPU_WIDTH, shared,
                                unit - 1 - down));
    }
}

static void first_phase(slm_cpu_panel *on)
{
    const size_t down = slm_cpu_ceil_div(slm_cpu_n_panels(&on->packed->down), 4);
    const size_t shared =
        slm_cpu_ceil_div(on->packed->shared_in.cols, 2 * SLM_CPU_WIDTH);
    const size_t units = 1 + down + shared;
    const size_t total = blocks_of(on->rows, SLM_CPU_ACROSS) * units;

#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < total; i++)
        first_unit(on, block_of(on->rows, SLM_CPU_ACROSS, i / units), down, shared,
                   i % units);
#pragma omp single
    {
        slm_cpu_lap(on->account, SLM_CPU_FIRST);
        slm_cpu_sort_pairs(on);
        slm_cpu_lap(on->account, SLM_CPU_SORT);
    }
}

/* ---- experts ---- */

/* Every task cut into slices of columns. */
static void sliced_experts(const slm_cpu_panel *on, int linear)
{
    const slm_cpu_task *tasks = on->at->groups.tasks;
    const size_t f = on->packed->in.cols, l = on->config->d_latent;
    const size_t in = linear ? 0 : slm_cpu_ceil_div(f, 2 * SLM_CPU_WIDTH);
    const size_t out = slm_cpu_ceil_div(l, 2 * SLM_CPU_WIDTH);

#pragma omp for schedule(static)
    for (size_t i = 0; i < on->n_tasks; i++) slm_cpu_part_gather(on, &tasks[i]);
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < on->n_tasks * in; i++)
        slm_cpu_part_h(on, &tasks[i / in], part_of(f, SLM_CPU_WIDTH, in, i % in));
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < on->n_tasks * out; i++)
        slm_cpu_part_o(on, &tasks[i / out], part_of(l, SLM_CPU_WIDTH, out, i % out));
}

static void whole_experts(const slm_cpu_panel *on)
{
    const slm_cpu_task *tasks = on->at->groups.tasks;

#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < on->n_tasks; i++) slm_cpu_part_expert(on, &tasks[i]);
}

static void expert_phase(const slm_cpu_panel *on)
{
    const int linear = on->config->expert == SLM_EXPERT_LINEAR;

    if (on->n_tasks < 4 * on->threads)
        sliced_experts(on, linear);
    else
        whole_experts(on);
}

/* ---- combination and the last products ---- */

/* Blocks of y, as many for each thread, where every thread has one: r of a block is read
 * while it is in the cache. Else 0. */
static size_t whole_blocks(const slm_cpu_panel *on)
{
    const size_t each = slm_cpu_ceil_div(on->rows, SLM_CPU_ACROSS * on->threads);

    return on->rows >= SLM_CPU_ACROSS * on->threads ? each * on->threads : 0;
}

static void last_phase(const slm_cpu_panel *on)
{
    const size_t blocks = whole_blocks(on);
    const size_t parts = slm_cpu_parts_of_y(on);

    if (blocks) {
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < blocks; i++) {
            const range rows = part_of(on->rows, SLM_CPU_ROWS, blocks, i);

            slm_cpu_part_r(on, rows);
            slm_cpu_part_rows_of_y(on, rows);
        }
        return;
    }
#pragma omp for schedule(static)
    for (size_t t = 0; t < on->rows; t++) slm_cpu_part_r(on, (range){t, t + 1});
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < parts; i++) slm_cpu_part_y(on, i);
}

static void many_tokens(slm_cpu_panel *on)
{
#pragma omp parallel
    {
        first_phase(on);
        expert_phase(on);
#pragma omp master
        slm_cpu_lap(on->account, SLM_CPU_EXPERTS);
        last_phase(on);
    }
    slm_cpu_lap(on->account, SLM_CPU_LAST);
}

/* ---- outputs ---- */

static void write_outputs(const slm_layer_forward_args *args, const slm_cpu_panel *on)
{
    const slm_config *config = on->config;
    const slm_cpu_space *at = on->at;
    const size_t n = config->n_experts;

    slm_cpu_write_choice(config, on->rows, &at->chosen, &args->ids, &args->weight,
                         &args->cutoff);
    slm_cpu_write(&args->logit, (slm_cpu_matrix){at->logit, n});
    slm_cpu_write(&args->score, (slm_cpu_matrix){at->score, n});
    slm_cpu_write_acts(&args->z, at->z);
    slm_cpu_write_acts(&args->u, at->u);
    slm_cpu_write_acts(&args->r, at->r);
    if (at->hs.ld) slm_cpu_write_acts(&args->hs, at->hs);
    slm_cpu_write_act_pairs(&args->h, at->groups.place, at->h);
    slm_cpu_write_act_pairs(&args->o, at->groups.place, at->o);
}

/* Different experts that the panel chose: the tasks of one lie side by side. */
static size_t count_experts(const slm_cpu_panel *on)
{
    const slm_cpu_task *tasks = on->at->groups.tasks;
    size_t n = on->n_tasks > 0;

    for (size_t i = 1; i < on->n_tasks; i++)
        n += tasks[i].expert != tasks[i - 1].expert;
    return n;
}

/* One panel; the tensors of args have its rows alone. */
static void run_panel(slm_handle *handle, const void *space_of_call,
                      const slm_layer_forward_args *args, size_t rows)
{
    const slm_cpu_space *at = space_of_call;
    slm_cpu_panel on = {.handle = handle,
                        .config = &handle->config,
                        .packed = &handle->native->packed,
                        .at = at,
                        .rows = rows,
                        .threads = slm_cpu_most_threads(),
                        .keeps = args->h.rank > 0,
                        .given = &args->x,
                        .x = slm_cpu_read_acts(&args->x, handle, at->x),
                        .account = &handle->native->account};
    const int direct = slm_cpu_is_acts(&args->y, handle, &on.y);

    if (!direct) on.y = at->y;
    if (rows <= SLM_CPU_FLOW_ROWS)
        slm_cpu_flow(&on);
    else
        many_tokens(&on);
    if (!direct) slm_cpu_write_acts(&args->y, on.y);
    write_outputs(args, &on);
    slm_cpu_lap(on.account, SLM_CPU_OUTPUTS);
    slm_cpu_count_work(on.account, on.config, rows, count_experts(&on));
}

slm_status slm_cpu_native_layer_forward(slm_handle *handle,
                                        const slm_layer_forward_args *args,
                                        slm_error *error)
{
    const slm_config *config = &handle->config;
    slm_status status;
    slm_cpu_space at;

    slm_cpu_start(&handle->native->account);
    status = slm_check_finite(SLM_OP_layer_forward, config, args, error);
    if (status || args->call.n_tokens == 0) return status;
    lay_out(&at, args->call.workspace, handle, args->call.n_tokens);
    slm_cpu_pack(at.bias, &args->bias);
    slm_cpu_lap(&handle->native->account, SLM_CPU_CHECK);
    slm_cpu_in_panels(handle, args, run_panel, &at);
    return SLM_OK;
}
