/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native_flow.c - the layer for up to a block of tokens, in stages that overlap.
 *
 * Method   a thread takes units of a stage until there are none left, then goes on to
 *          the next stage, where it waits only for what that one needs. The order of
 *          the stages leaves others between a stage and what needs it, so that memory
 *          is read while other threads end their last units.
 * Waiting  a thread that waits has passed all earlier stages, so their units are done
 *          or run in other threads: somebody always goes on.
 * Units    as large as can be: where one begins nothing has been asked for yet. */
#include <sched.h>
#include <stdatomic.h>

#include "native_parts.h"

enum {
    PANELS = 5,     /* most of a unit, of gate and of up each, too                 */
    MANY_TASKS = 6, /* a thread: each is one unit; of fewer the columns are cut    */
    SPINS = 64      /* before a thread that waits lets others run                  */
};

typedef enum step {
    ROUTER,
    DOWN,
    CHOICE,
    SHARED_IN,
    SORT,
    GATHER,
    IN,
    OUT,
    SHARED_OUT,
    COMBINE,
    LIFT,
    STEPS
} step;

typedef struct progress {
    _Alignas(SLM_CPU_ALIGN) atomic_size_t taken; /* may count further than there are */
    _Alignas(SLM_CPU_ALIGN) atomic_size_t done;
} progress;

typedef struct flow {
    slm_cpu_panel *on;
    progress of[STEPS];
} flow;

/* ---- units: how many a stage has, and one of them ---- */

/* Parts of a product's columns: one for each thread, or more. */
static size_t parts_of(const slm_cpu_panel *on, size_t cols)
{
    const size_t panels = slm_cpu_ceil_div(cols, SLM_CPU_WIDTH);
    const size_t each = panels / on->threads;

    return slm_cpu_ceil_div(panels, each < 2 ? 2 : each < PANELS ? each : PANELS);
}

static range columns(const slm_cpu_panel *on, size_t cols, size_t unit)
{
    return part_of(cols, SLM_CPU_WIDTH, parts_of(on, cols), unit);
}

static range all_rows(const slm_cpu_panel *on)
{
    return (range){0, on->rows};
}

static size_t n_router(const slm_cpu_panel *on)
{
    return parts_of(on, on->packed->router.cols);
}

static void run_router(slm_cpu_panel *on, size_t unit)
{
    slm_cpu_part_logit(on, all_rows(on), columns(on, on->packed->router.cols, unit));
}

static size_t n_down(const slm_cpu_panel *on)
{
    return parts_of(on, on->packed->down.cols);
}

static void run_down(slm_cpu_panel *on, size_t unit)
{
    slm_cpu_part_z(on, all_rows(on), columns(on, on->packed->down.cols, unit));
}

/* The choice and what follows the experts are cut by rows. */
static size_t n_blocks(const slm_cpu_panel *on)
{
    return blocks_of(on->rows, SLM_CPU_ROWS);
}

static void run_choice(slm_cpu_panel *on, size_t unit)
{
    slm_cpu_part_choice(on, block_of(on->rows, SLM_CPU_ROWS, unit));
}

static size_t n_shared_in(const slm_cpu_panel *on)
{
    return parts_of(on, on->packed->shared_in.cols);
}

static void run_shared_in(slm_cpu_panel *on, size_t unit)
{
    slm_cpu_part_hs(on, all_rows(on), columns(on, on->packed->shared_in.cols, unit));
}

static size_t one(const slm_cpu_panel *on)
{
    (void)on;
    return 1;
}

static void run_sort(slm_cpu_panel *on, size_t unit)
{
    (void)unit;
    slm_cpu_sort_pairs(on);
}

static int is_cut(const slm_cpu_panel *on)
{
    return on->n_tasks < MANY_TASKS * on->threads;
}

static size_t n_gather(const slm_cpu_panel *on)
{
    return is_cut(on) ? on->n_tasks : 0;
}

static void run_gather(slm_cpu_panel *on, size_t unit)
{
    slm_cpu_part_gather(on, &on->at->groups.tasks[unit]);
}

/* A linear expert has no h. */
static size_t in_parts(const slm_cpu_panel *on)
{
    return on->config->expert == SLM_EXPERT_LINEAR ? 0
                                                   : parts_of(on, on->packed->in.cols);
}

static size_t n_in(const slm_cpu_panel *on)
{
    return is_cut(on) ? on->n_tasks * in_parts(on) : 0;
}

static void run_in(slm_cpu_panel *on, size_t unit)
{
    const size_t parts = in_parts(on);

    slm_cpu_part_h(on, &on->at->groups.tasks[unit / parts],
                   columns(on, on->packed->in.cols, unit % parts));
}

static size_t n_out(const slm_cpu_panel *on)
{
    return on->n_tasks * (is_cut(on) ? parts_of(on, on->config->d_latent) : 1);
}

static void run_out(slm_cpu_panel *on, size_t unit)
{
    const size_t l = on->config->d_latent, parts = parts_of(on, l);
    const slm_cpu_task *tasks = on->at->groups.tasks;

    if (is_cut(on))
        slm_cpu_part_o(on, &tasks[unit / parts], columns(on, l, unit % parts));
    else
        slm_cpu_part_expert(on, &tasks[unit]);
}

static void run_combine(slm_cpu_panel *on, size_t unit)
{
    slm_cpu_part_r(on, block_of(on->rows, SLM_CPU_ROWS, unit));
}

/* 1 where the shared experts' sum lies in memory while others still make o. */
static int is_summed_early(const slm_cpu_panel *on)
{
    return on->y.f32 || on->rows <= SLM_CPU_EARLY_ROWS;
}

/* Where columns from `of` on of y are summed early. */
static slm_cpu_matrix sums_at(const slm_cpu_panel *on, range of)
{
    return on->y.f32 ? (slm_cpu_matrix){on->y.f32 + of.first, on->y.ld}
                     : (slm_cpu_matrix){on->at->sums + of.first, on->config->d_model};
}

static size_t n_shared_out(const slm_cpu_panel *on)
{
    return is_summed_early(on) ? parts_of(on, on->config->d_model) : 0;
}

static void run_shared_out(slm_cpu_panel *on, size_t unit)
{
    const range of = columns(on, on->config->d_model, unit);

    slm_cpu_part_shared(on, all_rows(on), of, sums_at(on, of));
}

static size_t n_lift(const slm_cpu_panel *on)
{
    return is_summed_early(on) ? parts_of(on, on->config->d_model)
                               : slm_cpu_parts_of_y(on);
}

static void run_lift(slm_cpu_panel *on, size_t unit)
{
    if (!is_summed_early(on)) {
        slm_cpu_part_y(on, unit);
        return;
    }

    const range of = columns(on, on->config->d_model, unit);
    const slm_cpu_matrix sums = sums_at(on, of);

    slm_cpu_part_lift(on, all_rows(on), of, sums);
    slm_cpu_store_rows(on->handle, on->rows, of.end - of.first, sums,
                       slm_cpu_acts_at(on->y, 0, of.first));
}

/* ---- stages ---- */

#define AFTER(step) (1u << (step))

/* How many units there are is asked when all of `needs` are done, or later. */
typedef struct stage {
    size_t (*units)(const slm_cpu_panel *on);
    void (*run)(slm_cpu_panel *on, size_t unit);
    slm_cpu_phase phase;
    unsigned needs;
} stage;

static const stage stages[STEPS] = {
    [ROUTER] = {n_router, run_router, SLM_CPU_FIRST, 0},
    [DOWN] = {n_down, run_down, SLM_CPU_FIRST, 0},
    [CHOICE] = {n_blocks, run_choice, SLM_CPU_FIRST, AFTER(ROUTER)},
    [SHARED_IN] = {n_shared_in, run_shared_in, SLM_CPU_FIRST, 0},
    [SORT] = {one, run_sort, SLM_CPU_SORT, AFTER(CHOICE)},
    [GATHER] = {n_gather, run_gather, SLM_CPU_EXPERTS, AFTER(DOWN) | AFTER(SORT)},
    [IN] = {n_in, run_in, SLM_CPU_EXPERTS, AFTER(GATHER)},
    [OUT] = {n_out, run_out, SLM_CPU_EXPERTS, AFTER(GATHER) | AFTER(IN)},
    [SHARED_OUT] = {n_shared_out, run_shared_out, SLM_CPU_LAST, AFTER(SHARED_IN)},
    [COMBINE] = {n_blocks, run_combine, SLM_CPU_LAST, AFTER(OUT)},
    [LIFT] = {n_lift, run_lift, SLM_CPU_LAST,
              AFTER(SHARED_IN) | AFTER(SHARED_OUT) | AFTER(COMBINE)},
};

/* Until a stage is done: then what its units wrote is seen. */
static void wait_for(flow *all, step which)
{
    const size_t units = stages[which].units(all->on);
    unsigned spins = 0;

    while (atomic_load_explicit(&all->of[which].done, memory_order_acquire) < units)
        if (++spins % SPINS == 0) sched_yield();
}

static void run_stage(flow *all, step which)
{
    const stage *own = &stages[which];
    progress *at = &all->of[which];
    size_t units, unit;

    for (step before = 0; before < which; before++)
        if (own->needs & AFTER(before)) wait_for(all, before);
    units = own->units(all->on);
    while ((unit = atomic_fetch_add_explicit(&at->taken, 1, memory_order_relaxed)) <
           units) {
        own->run(all->on, unit);
        atomic_fetch_add_explicit(&at->done, 1, memory_order_release);
    }
}

void slm_cpu_flow(slm_cpu_panel *on)
{
    flow all = {.on = on};

#pragma omp parallel
    for (step i = 0; i < STEPS; i++) {
        run_stage(&all, i);
#pragma omp master
        slm_cpu_lap(on->account, stages[i].phase);
    }
}
