/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native_layer.c - the whole layer on packed weights, in one parallel region.
 *
 * Clause   R1-R5, L1-L6.  Preconditions are the contract's; none is checked here.
 * Method   panels of SLM_CPU_PANEL tokens bound the workspace. Within a panel, with a
 *          barrier after each: router, down-projection and shared gate and up, block by
 *          block, so that they share a read of x, selection following its router tile;
 *          a counting sort; the experts; combination, norm and both last products.
 *          Few chosen experts are cut into slices of columns, many are a task each.
 *          Activations are taken on tiles of gate and up that never leave the cache.
 * Order    gemm.h for products; u is summed in slot order; y is the lift, then the
 *          shared path, in one chain. Nothing depends on the cut into tasks, so neither
 *          the number of threads nor the batch changes a token's bits.
 * bf16     z, h, o, u, r, hs, y are rounded where they are stored; sums are binary32.
 *          For tiles they lie in bf16, too, as products read them.
 * NaN      poisoned rows run like any other and are overwritten at the end. */
#ifdef _OPENMP
#include <omp.h>
#endif

#include "cut.h"
#include "native.h"

enum { FEW_TOKENS = 16 }; /* up to here weights are what costs: cut columns finely */

/* Workspace. T is the panel's; a pair is a (token, slot); sorted: as `order` is. */
typedef struct space {
    float *bias;       /* [n]                                                    */
    slm_cpu_acts x;    /* [T, d]     only when x cannot be read where it is      */
    slm_cpu_acts y;    /* [T, d]     only when y cannot be written where it is   */
    float *logit;      /* [T, n]                                                 */
    float *score;      /* [T, n]                                                 */
    slm_cpu_acts z;    /* [T, l]                                                 */
    slm_cpu_acts hs;   /* [T, S fs]                                              */
    slm_cpu_acts rows; /* [T k, l]   sorted: z of the pair                       */
    slm_cpu_acts h;    /* [T k, f]   sorted                                      */
    slm_cpu_acts o;    /* [T k, l]   sorted                                      */
    slm_cpu_acts u;    /* [T, l]                                                 */
    slm_cpu_acts r;    /* [T, l]                                                 */
    float *wide;       /* [T, l]     u, then r, where these are of bf16          */
    slm_cpu_choices chosen;
    slm_cpu_groups groups;
    unsigned char *poisoned; /* [T]                                              */
} space;

static size_t lay_out(space *at, void *base, const slm_handle *handle, size_t n_tokens)
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
    slm_cpu_take_choices(&arena, rows, k, &at->chosen);
    slm_cpu_take_groups(&arena, n, rows, k, &at->groups);
    at->poisoned = slm_cpu_take(&arena, rows, 1, 1);
    return arena.used;
}

size_t slm_cpu_native_layer_space(const slm_handle *handle, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, handle, call->n_tokens);
}

/* One panel of tokens, seen by all threads. */
typedef struct panel {
    slm_handle *handle;
    const slm_config *config;
    const slm_cpu_packed *packed;
    const space *at;
    size_t rows;
    slm_cpu_acts x;
    slm_cpu_acts y;
    size_t n_tasks;
    slm_cpu_account *account;
} panel;

static size_t threads(void)
{
#ifdef _OPENMP
    return (size_t)omp_get_num_threads();
#else
    return 1;
#endif
}

/* ---- what needs x alone ---- */

static void select_rows(const panel *on, range of)
{
    const size_t n = on->config->n_experts;
    const slm_cpu_router from = {{on->at->logit, n}, {on->at->score, n}, on->at->bias};

    slm_cpu_select_rows(on->handle, &from, of.first, of.end, &on->at->chosen,
                        on->at->poisoned);
}

/* How the columns of the first products are cut. */
typedef struct first_units {
    size_t router; /* 1: selection follows at once */
    size_t down;
    size_t shared;
} first_units;

static first_units cut_first(const panel *on)
{
    const int few = on->rows <= FEW_TOKENS;
    const size_t router = slm_cpu_n_panels(&on->packed->router);
    const size_t down = slm_cpu_n_panels(&on->packed->down);
    const size_t shared = slm_cpu_ceil_div(on->packed->shared_in.cols, SLM_CPU_WIDTH);

    return (first_units){few && router > 4 ? slm_cpu_ceil_div(router, 2) : 1,
                         slm_cpu_ceil_div(down, few ? 2 : 4),
                         slm_cpu_ceil_div(shared, few ? 1 : 2)};
}

static void first_unit(const panel *on, first_units by, range rows, size_t unit)
{
    const slm_cpu_packed *w = on->packed;
    const space *at = on->at;
    const size_t n = on->config->n_experts, l = on->config->d_latent;
    const size_t s = w->shared_in.cols, count = rows.end - rows.first;
    const slm_cpu_acts x = slm_cpu_acts_at(on->x, rows.first, 0);
    range of;

    if (unit < by.router) {
        of = part_of(n, SLM_CPU_WIDTH, by.router, unit);
        slm_cpu_product(on->handle, &w->router, 0, of, count, x,
                        (slm_cpu_matrix){at->logit + rows.first * n + of.first, n}, 0);
        if (by.router == 1) select_rows(on, rows);
        return;
    }
    unit -= by.router;
    if (unit < by.down) {
        of = part_of(l, SLM_CPU_WIDTH, by.down, unit);
        slm_cpu_stored_product(on->handle, &w->down, 0, of, count, x,
                               slm_cpu_acts_at(at->z, rows.first, of.first));
        return;
    }
    of = part_of(s, SLM_CPU_WIDTH, by.shared, unit - by.down);
    slm_cpu_activated(on->handle, &w->shared_in, 0, of, count, x,
                      slm_cpu_acts_at(at->hs, rows.first, of.first));
}

/* Experts of vast weights that nobody chose before. */
static void pack_chosen(panel *on)
{
    slm_cpu_packed *packed = &on->handle->native->packed;

    for (size_t i = 0; packed->ready && i < on->n_tasks; i++)
        slm_cpu_pack_expert(packed, on->at->groups.tasks[i].expert);
}

static void first_phase(panel *on)
{
    const first_units by = cut_first(on);
    const size_t units = by.router + by.down + by.shared;
    const size_t total = blocks_of(on->rows, SLM_CPU_ACROSS) * units;

#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < total; i++)
        first_unit(on, by, block_of(on->rows, SLM_CPU_ACROSS, i / units), i % units);
#pragma omp single
    {
        if (by.router > 1) select_rows(on, (range){0, on->rows});
        slm_cpu_lap(on->account, SLM_CPU_FIRST);
        on->n_tasks = slm_cpu_make_tasks(on->config, on->at->chosen.ids, on->rows,
                                         &on->at->groups);
        pack_chosen(on);
        slm_cpu_lap(on->account, SLM_CPU_SORT);
    }
}

/* ---- experts ---- */

static void gather(const panel *on, size_t begin, size_t end)
{
    const space *at = on->at;

    slm_cpu_gather_acts(&at->groups, on->config->top_k, begin, end, at->z, at->rows);
}

/* Columns `of` of o of a task's rows. */
static void expert_o(const panel *on, const slm_cpu_panels *w, const slm_cpu_task *job,
                     range of, slm_cpu_acts x)
{
    slm_cpu_stored_product(on->handle, w, job->expert, of, job->end - job->begin,
                           slm_cpu_acts_at(x, job->begin, 0),
                           slm_cpu_acts_at(on->at->o, job->begin, of.first));
}

/* Columns `of` of h, or of o of a linear expert. */
static void expert_in(const panel *on, const slm_cpu_task *job, range of)
{
    const slm_cpu_panels *w = &on->packed->in;
    const space *at = on->at;

    if (on->config->expert == SLM_EXPERT_LINEAR)
        expert_o(on, w, job, of, at->rows);
    else
        slm_cpu_activated(on->handle, w, job->expert, of, job->end - job->begin,
                          slm_cpu_acts_at(at->rows, job->begin, 0),
                          slm_cpu_acts_at(at->h, job->begin, of.first));
}

static void expert_out(const panel *on, const slm_cpu_task *job, range of)
{
    expert_o(on, &on->packed->out, job, of, on->at->h);
}

/* Every task cut into slices of columns. */
static void sliced_experts(const panel *on)
{
    const slm_cpu_task *tasks = on->at->groups.tasks;
    const size_t in = slm_cpu_ceil_div(on->packed->in.cols, SLM_CPU_WIDTH);
    const size_t out = slm_cpu_ceil_div(on->packed->out.cols, SLM_CPU_WIDTH);
    const size_t in_slices = slm_cpu_ceil_div(in, 2);
    const size_t out_slices = slm_cpu_ceil_div(out, 2);

#pragma omp for schedule(static)
    for (size_t i = 0; i < on->n_tasks; i++) gather(on, tasks[i].begin, tasks[i].end);
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < on->n_tasks * in_slices; i++)
        expert_in(
            on, &tasks[i / in_slices],
            part_of(on->packed->in.cols, SLM_CPU_WIDTH, in_slices, i % in_slices));
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < on->n_tasks * out_slices; i++)
        expert_out(
            on, &tasks[i / out_slices],
            part_of(on->packed->out.cols, SLM_CPU_WIDTH, out_slices, i % out_slices));
}

static void whole_experts(const panel *on)
{
    const slm_cpu_task *tasks = on->at->groups.tasks;

#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < on->n_tasks; i++) {
        gather(on, tasks[i].begin, tasks[i].end);
        expert_in(on, &tasks[i], (range){0, on->packed->in.cols});
        if (on->packed->out.data)
            expert_out(on, &tasks[i], (range){0, on->packed->out.cols});
    }
}

static void expert_phase(const panel *on)
{
    if (on->n_tasks < 4 * threads())
        sliced_experts(on);
    else
        whole_experts(on);
}

/* ---- combination and the last products ---- */

/* u, then r.                                                                      L2 */
static void combine_rows(const panel *on, range of)
{
    const slm_config *config = on->config;
    const slm_cpu_kernels *kernels = on->handle->kernels;
    const size_t k = config->top_k, l = config->d_latent;
    const space *at = on->at;

    for (size_t t = of.first; t < of.end; t++) {
        const float *weight = at->chosen.weight + t * k;
        const int64_t *place = at->groups.place + t * k;
        const slm_cpu_acts to_u = slm_cpu_acts_at(at->u, t, 0);
        const slm_cpu_acts to_r = slm_cpu_acts_at(at->r, t, 0);
        float *u = to_u.f32 ? to_u.f32 : at->wide + t * l;
        float *r = to_r.f32 ? to_r.f32 : u;

        if (at->o.f32)
            kernels->combine(k, l, weight, place, at->o.f32, u);
        else
            kernels->combine_half(k, l, weight, place, at->o.bf16, u);
        slm_cpu_store(on->handle, l, u, NULL);
        if (to_u.bf16) slm_cpu_store(on->handle, l, u, to_u.bf16);
        if (config->norm == SLM_NORM_RMS)
            kernels->rmsnorm(l, u, on->packed->gamma, config->eps, r);
        else
            memmove(r, u, l * sizeof *u);
        slm_cpu_store(on->handle, l, r, to_r.bf16);
    }
}

/* Columns `of` of y, which begins with them. */
static void last_sums(const panel *on, range rows, range of, slm_cpu_matrix y)
{
    const slm_cpu_packed *w = on->packed;
    const space *at = on->at;
    const size_t count = rows.end - rows.first;

    slm_cpu_product(on->handle, &w->lift, 0, of, count,
                    slm_cpu_acts_at(at->r, rows.first, 0), y, 0);
    if (w->shared_out.data)
        slm_cpu_product(on->handle, &w->shared_out, 0, of, count,
                        slm_cpu_acts_at(at->hs, rows.first, 0), y, 1);
    for (size_t j = 0; j < w->shared.parts; j++)
        slm_cpu_product(on->handle, &w->shared, j, of, count,
                        slm_cpu_acts_at(on->x, rows.first, 0), y, 1);
    for (size_t t = rows.first; t < rows.end; t++)
        for (size_t i = 0; at->poisoned[t] && i < of.end - of.first; i++)
            slm_cpu_row(y, t - rows.first)[i] = NAN;
}

enum { LAST_ROWS = 96, LAST_PANELS = SLM_CPU_STORED / SLM_CPU_WIDTH };

/* The same, at most LAST_ROWS rows and LAST_PANELS panels, to where y is. */
static void last_unit(const panel *on, range rows, range of)
{
    float sums[LAST_ROWS * SLM_CPU_STORED] __attribute__((aligned(64)));
    const slm_cpu_acts y = slm_cpu_acts_at(on->y, rows.first, of.first);
    const slm_cpu_matrix to =
        y.bf16 ? (slm_cpu_matrix){sums, SLM_CPU_STORED} : (slm_cpu_matrix){y.f32, y.ld};

    last_sums(on, rows, of, to);
    if (y.bf16)
        slm_cpu_store_rows(on->handle, rows.end - rows.first, of.end - of.first, to, y);
}

static void last_phase(const panel *on)
{
    const size_t d = on->config->d_model, blocks = blocks_of(on->rows, LAST_ROWS);
    const size_t panels = slm_cpu_ceil_div(d, SLM_CPU_WIDTH);
    const size_t units =
        slm_cpu_ceil_div(panels, on->rows <= FEW_TOKENS ? 2 : LAST_PANELS);

    if (blocks >= 2 * threads()) { /* r of a block is read while it is in the cache */
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < blocks; i++) {
            const range rows = block_of(on->rows, LAST_ROWS, i);

            combine_rows(on, rows);
            for (size_t j = 0; j < units; j++)
                last_unit(on, rows, part_of(d, SLM_CPU_WIDTH, units, j));
        }
        return;
    }
#pragma omp for schedule(static)
    for (size_t t = 0; t < on->rows; t++) combine_rows(on, (range){t, t + 1});
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < blocks * units; i++)
        last_unit(on, block_of(on->rows, LAST_ROWS, i / units),
                  part_of(d, SLM_CPU_WIDTH, units, i % units));
}

/* ---- outputs ---- */

static void write_outputs(const slm_layer_forward_args *args, const panel *on)
{
    const slm_config *config = on->config;
    const space *at = on->at;
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
static size_t count_experts(const panel *on)
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
    const space *at = space_of_call;
    panel on = {.handle = handle,
                .config = &handle->config,
                .packed = &handle->native->packed,
                .at = at,
                .rows = rows,
                .x = slm_cpu_read_acts(&args->x, handle, at->x),
                .account = &handle->native->account};
    const int direct = slm_cpu_is_acts(&args->y, handle, &on.y);

    if (!direct) on.y = at->y;
#pragma omp parallel
    {
        first_phase(&on);
        expert_phase(&on);
#pragma omp master
        slm_cpu_lap(on.account, SLM_CPU_EXPERTS);
        last_phase(&on);
    }
    slm_cpu_lap(on.account, SLM_CPU_LAST);
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
    space at;

    slm_cpu_start(&handle->native->account);
    status = slm_check_finite(SLM_OP_layer_forward, config, args, error);
    if (status || args->call.n_tokens == 0) return status;
    lay_out(&at, args->call.workspace, handle, args->call.n_tokens);
    slm_cpu_pack(at.bias, &args->bias);
    slm_cpu_lap(&handle->native->account, SLM_CPU_CHECK);
    slm_cpu_in_panels(handle, args, run_panel, &at);
    return SLM_OK;
}
