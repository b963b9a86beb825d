/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native_parts.c - the layer on packed weights, in parts that threads take.
 *
 * Clause   R1-R5, L1-L6.  Preconditions are the contract's; none is checked here.
 * Order    gemm.h for products; u is summed in slot order; y is the shared path, then
 *          the lift, in one chain. Nothing depends on the cut into parts, so neither the
 *          number of threads nor the batch changes a token's bits.
 * bf16     z, h, o, u, r, hs, y are rounded where they are stored; sums are binary32.
 *          For tiles they lie in bf16, too, as products read them. */
#include "native_parts.h"
#include "threads.h"

enum { Y_ROWS = 96 }; /* most of a part of y */

/* ---- what needs x alone ---- */

void slm_cpu_part_logit(const slm_cpu_panel *on, range rows, range of)
{
    const size_t n = on->config->n_experts;
    float *logit = on->at->logit + rows.first * n + of.first;

    slm_cpu_product(on->handle, &on->packed->router, 0, of, rows.end - rows.first,
                    slm_cpu_acts_at(on->x, rows.first, 0), (slm_cpu_matrix){logit, n},
                    0);
}

void slm_cpu_part_z(const slm_cpu_panel *on, range rows, range of)
{
    slm_cpu_stored_product(on->handle, &on->packed->down, 0, of, rows.end - rows.first,
                           slm_cpu_acts_at(on->x, rows.first, 0),
                           slm_cpu_acts_at(on->at->z, rows.first, of.first));
}

void slm_cpu_part_hs(const slm_cpu_panel *on, range rows, range of)
{
    slm_cpu_activated(on->handle, &on->packed->shared_in, 0, of, rows.end - rows.first,
                      slm_cpu_acts_at(on->x, rows.first, 0),
                      slm_cpu_acts_at(on->at->hs, rows.first, of.first));
}

/* ---- the choice ---- */

void slm_cpu_part_choice(const slm_cpu_panel *on, range rows)
{
    const size_t n = on->config->n_experts;
    const slm_cpu_router from = {
        {on->at->logit, n}, {on->at->score, n}, on->at->bias, 0};

    slm_cpu_select_rows(on->handle, &from, rows.first, rows.end, &on->at->chosen,
                        on->at->poisoned);
    slm_cpu_poison_infinite(on->handle, on->given, from.logit, rows.first, rows.end,
                            on->at->poisoned);
}

/* Experts of vast weights that nobody chose before. */
static void pack_chosen(const slm_cpu_panel *on)
{
    slm_cpu_packed *packed = &on->handle->native->packed;

    for (size_t i = 0; packed->ready && i < on->n_tasks; i++)
        slm_cpu_pack_expert(packed, on->at->groups.tasks[i].expert);
}

void slm_cpu_sort_pairs(slm_cpu_panel *on)
{
    on->n_tasks =
        slm_cpu_make_tasks(on->config, on->at->chosen.ids, on->rows, &on->at->groups);
    pack_chosen(on);
}

/* ---- experts ---- */

/* Rows of a task: of z, of h, of o. */
typedef struct task_rows {
    slm_cpu_acts z;
    slm_cpu_acts h;
    slm_cpu_acts o;
} task_rows;

/* The first two from row `first` of their memory on. */
static task_rows rows_of(const slm_cpu_panel *on, const slm_cpu_task *job, size_t first)
{
    const slm_cpu_space *at = on->at;

    return (task_rows){slm_cpu_acts_at(at->rows, first, 0),
                       slm_cpu_acts_at(at->h, first, 0),
                       slm_cpu_acts_at(at->o, job->begin, 0)};
}

/* Where this thread has rows of its own, which stay in its cache from task to task. */
static size_t own_rows(const slm_cpu_panel *on, const slm_cpu_task *job)
{
    const size_t pairs = on->rows * on->config->top_k;

    if (!on->keeps && pairs >= on->threads * SLM_CPU_TASK_ROWS)
        return slm_cpu_this_thread() * SLM_CPU_TASK_ROWS;
    return job->begin;
}

static void gather(const slm_cpu_panel *on, const slm_cpu_task *job, slm_cpu_acts to)
{
    const slm_cpu_space *at = on->at;

    slm_cpu_gather_acts(&at->groups, on->config->top_k, job->begin, job->end, at->z,
                        to);
}

static void make_h(const slm_cpu_panel *on, const slm_cpu_task *job,
                   const task_rows *rows, range of)
{
    slm_cpu_activated(on->handle, &on->packed->in, job->expert, of,
                      job->end - job->begin, rows->z,
                      slm_cpu_acts_at(rows->h, 0, of.first));
}

static void make_o(const slm_cpu_panel *on, const slm_cpu_task *job,
                   const task_rows *rows, range of)
{
    const int linear = on->config->expert == SLM_EXPERT_LINEAR;

    slm_cpu_stored_product(on->handle, linear ? &on->packed->in : &on->packed->out,
                           job->expert, of, job->end - job->begin,
                           linear ? rows->z : rows->h,
                           slm_cpu_acts_at(rows->o, 0, of.first));
}

void slm_cpu_part_gather(const slm_cpu_panel *on, const slm_cpu_task *job)
{
    gather(on, job, rows_of(on, job, job->begin).z);
}

void slm_cpu_part_h(const slm_cpu_panel *on, const slm_cpu_task *job, range of)
{
    const task_rows rows = rows_of(on, job, job->begin);

    make_h(on, job, &rows, of);
}

void slm_cpu_part_o(const slm_cpu_panel *on, const slm_cpu_task *job, range of)
{
    const task_rows rows = rows_of(on, job, job->begin);

    make_o(on, job, &rows, of);
}

void slm_cpu_part_expert(const slm_cpu_panel *on, const slm_cpu_task *job)
{
    const task_rows rows = rows_of(on, job, own_rows(on, job));

    gather(on, job, rows.z);
    if (on->config->expert != SLM_EXPERT_LINEAR)
        make_h(on, job, &rows, (range){0, on->packed->in.cols});
    make_o(on, job, &rows, (range){0, on->config->d_latent});
}

/* ---- combination and the last products ---- */

void slm_cpu_part_r(const slm_cpu_panel *on, range rows)
{
    const slm_config *config = on->config;
    const slm_cpu_kernels *kernels = on->handle->kernels;
    const size_t k = config->top_k, l = config->d_latent;
    const slm_cpu_space *at = on->at;

    for (size_t t = rows.first; t < rows.end; t++) {
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

/* 1 where shared experts add to y: then the lift is added to their sum. */
static int has_shared(const slm_cpu_packed *packed)
{
    return packed->shared_out.data != NULL || packed->shared.data != NULL;
}

void slm_cpu_part_shared(const slm_cpu_panel *on, range rows, range of,
                         slm_cpu_matrix y)
{
    const slm_cpu_packed *w = on->packed;
    const size_t count = rows.end - rows.first;

    if (w->shared_out.data)
        slm_cpu_product(on->handle, &w->shared_out, 0, of, count,
                        slm_cpu_acts_at(on->at->hs, rows.first, 0), y, 0);
    for (size_t j = 0; w->shared.data && j < w->shared.parts; j++)
        slm_cpu_product(on->handle, &w->shared, j, of, count,
                        slm_cpu_acts_at(on->x, rows.first, 0), y, j > 0);
}

void slm_cpu_part_lift(const slm_cpu_panel *on, range rows, range of, slm_cpu_matrix y)
{
    const slm_cpu_space *at = on->at;

    slm_cpu_product(on->handle, &on->packed->lift, 0, of, rows.end - rows.first,
                    slm_cpu_acts_at(at->r, rows.first, 0), y, has_shared(on->packed));
    for (size_t t = rows.first; t < rows.end; t++)
        for (size_t i = 0; at->poisoned[t] && i < of.end - of.first; i++)
            slm_cpu_row(y, t - rows.first)[i] = NAN;
}

static size_t column_parts(const slm_cpu_panel *on)
{
    return slm_cpu_ceil_div(on->config->d_model, SLM_CPU_STORED);
}

size_t slm_cpu_parts_of_y(const slm_cpu_panel *on)
{
    return blocks_of(on->rows, Y_ROWS) * column_parts(on);
}

/* At most SLM_CPU_ACROSS rows, SLM_CPU_STORED columns. */
static void make_y(const slm_cpu_panel *on, range rows, range of)
{
    float sums[SLM_CPU_ACROSS * SLM_CPU_STORED] __attribute__((aligned(64)));
    const slm_cpu_acts y = slm_cpu_acts_at(on->y, rows.first, of.first);
    const slm_cpu_matrix to =
        y.bf16 ? (slm_cpu_matrix){sums, SLM_CPU_STORED} : (slm_cpu_matrix){y.f32, y.ld};

    slm_cpu_part_shared(on, rows, of, to);
    slm_cpu_part_lift(on, rows, of, to);
    slm_cpu_store_rows(on->handle, rows.end - rows.first, of.end - of.first, to, y);
}

static range columns_of_y(const slm_cpu_panel *on, size_t part)
{
    return part_of(on->config->d_model, SLM_CPU_WIDTH, column_parts(on), part);
}

void slm_cpu_part_y(const slm_cpu_panel *on, size_t part)
{
    const size_t across = column_parts(on);

    make_y(on, block_of(on->rows, Y_ROWS, part / across),
           columns_of_y(on, part % across));
}

void slm_cpu_part_rows_of_y(const slm_cpu_panel *on, range rows)
{
    for (size_t i = 0; i < column_parts(on); i++) make_y(on, rows, columns_of_y(on, i));
}
