/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/layer.c - the whole layer: route, group by expert, run them, combine, lift.
 *
 * Clause   R1-R5, L1-L6.  Preconditions are the contract's; none is checked here.
 * Method   panels of SLM_CPU_PANEL tokens bound the workspace. Within a panel: logits,
 *          z and the shared gate and up in one pool of blocks; a counting sort; a task
 *          for each expert's rows (gather, gate, up, activation, out); combination and
 *          norm by token; lift plus shared. Only touched experts are read.
 * Order    u is summed in slot order; y is the lift, then the shared path. Tasks are
 *          cut by sizes and choices alone, so threads change no bit.
 * NaN      poisoned rows run like any other and are overwritten at the end. */
#include "internal.h"

/* Workspace. T is the panel's; a pair is a (token, slot); sorted: as `order` is. */
typedef struct space {
    float *bias;      /* [n]                                                     */
    float *x;         /* [T, d]       only when x cannot be read where it is     */
    float *y;         /* [T, d]       only when y cannot be written where it is  */
    float *logit;     /* [T, n]                                                  */
    float *score;     /* [T, n]                                                  */
    float *z;         /* [T, l]                                                  */
    float *hs;        /* [T, S fs]    shared gate, then hs                       */
    float *shared_up; /* [T, S fs]                                               */
    float *rows;      /* [T k, l]     sorted: z of the pair                      */
    float *h;         /* [T k, f]     sorted: gate, then h                       */
    float *up;        /* [T k, f]     sorted                                     */
    float *o;         /* [T k, l]     sorted                                     */
    float *u;         /* [T, l]                                                  */
    float *r;         /* [T, l]                                                  */
    slm_cpu_choices chosen;
    slm_cpu_groups groups;
    unsigned char *poisoned; /* [T]                                               */
} space;

size_t slm_cpu_panel_rows(size_t n_tokens)
{
    return n_tokens < SLM_CPU_PANEL ? n_tokens : SLM_CPU_PANEL;
}

void slm_cpu_take_groups(slm_cpu_arena *arena, size_t n, size_t rows, size_t k,
                         slm_cpu_groups *at)
{
    const size_t pairs = rows * k;

    at->counts = slm_cpu_take(arena, n, 1, sizeof *at->counts);
    at->offsets = slm_cpu_take(arena, n + 1, 1, sizeof *at->offsets);
    at->order = slm_cpu_take(arena, rows, k, sizeof *at->order);
    at->place = slm_cpu_take(arena, rows, k, sizeof *at->place);
    at->tasks = slm_cpu_take(arena, (n < pairs ? n : pairs) + pairs / SLM_CPU_TASK_ROWS,
                             1, sizeof *at->tasks);
}

static size_t lay_out(space *at, void *base, const slm_config *config, size_t n_tokens)
{
    slm_cpu_arena arena = {base, 0};
    const size_t rows = slm_cpu_panel_rows(n_tokens), n = config->n_experts;
    const size_t k = config->top_k, d = config->d_model, l = config->d_latent;
    const int inner = config->expert != SLM_EXPERT_LINEAR;
    const size_t f = inner ? config->d_expert : 0;
    const size_t s = inner ? config->n_shared * config->d_shared : 0;
    const size_t pairs = rows * k;

    at->bias = slm_cpu_take_f32(&arena, 1, n);
    at->x = slm_cpu_take_f32(&arena, rows, d);
    at->y = slm_cpu_take_f32(&arena, rows, d);
    at->logit = slm_cpu_take_f32(&arena, rows, n);
    at->score = slm_cpu_take_f32(&arena, rows, n);
    at->z = slm_cpu_take_f32(&arena, rows, l);
    at->hs = slm_cpu_take_f32(&arena, rows, s);
    at->shared_up = slm_cpu_take_f32(&arena, rows, s);
    at->rows = slm_cpu_take_f32(&arena, pairs, l);
    at->h = slm_cpu_take_f32(&arena, pairs, f);
    at->up = slm_cpu_take_f32(&arena, pairs, f);
    at->o = slm_cpu_take_f32(&arena, pairs, l);
    at->u = slm_cpu_take_f32(&arena, rows, l);
    at->r = slm_cpu_take_f32(&arena, rows, l);
    slm_cpu_take_choices(&arena, rows, k, &at->chosen);
    slm_cpu_take_groups(&arena, n, rows, k, &at->groups);
    at->poisoned = slm_cpu_take(&arena, rows, 1, 1);
    return arena.used;
}

size_t slm_cpu_layer_forward_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens);
}

slm_tensor slm_cpu_part(const slm_tensor *tensor, size_t first, size_t count)
{
    slm_tensor part = *tensor;

    if (part.rank == 0) return part;
    part.data = (char *)part.data + (ptrdiff_t)first * part.stride[0] *
                                        (ptrdiff_t)slm_dtype_size(part.dtype);
    part.shape[0] = count;
    return part;
}

size_t slm_cpu_shared_width(const slm_handle *handle)
{
    const slm_config *config = &handle->config;

    return handle->weights.shared_out.data ? config->n_shared * config->d_shared : 0;
}

/* Everything that needs x alone. */
static void first_products(const slm_handle *handle, const space *at, size_t rows,
                           slm_cpu_matrix x)
{
    const slm_config *config = &handle->config;
    const slm_cpu_weights *w = &handle->weights;
    const size_t n = config->n_experts, d = config->d_model, l = config->d_latent;
    const size_t s = slm_cpu_shared_width(handle);
    slm_cpu_linear list[4];
    size_t used = 0;

    list[used++] = (slm_cpu_linear){rows, l, d, x, w->down, {at->z, l}, 0};
    if (s) {
        list[used++] =
            (slm_cpu_linear){rows, s, d, x, w->shared_up, {at->shared_up, s}, 0};
        if (w->shared_gate.data)
            list[used++] =
                (slm_cpu_linear){rows, s, d, x, w->shared_gate, {at->hs, s}, 0};
    }
    list[used++] = (slm_cpu_linear){rows, n, d, x, w->router, {at->logit, n}, 0};
    slm_cpu_products(handle, list, used);
}

/* Choice and shared activation of each token. */
static void select_and_activate(const slm_handle *handle, const space *at,
                                const slm_tensor *x, size_t rows)
{
    const size_t n = handle->config.n_experts, s = slm_cpu_shared_width(handle);
    const slm_cpu_router from = {{at->logit, n}, {at->score, n}, at->bias, rows};

#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < rows; first += SLM_CPU_ROWS) {
        const size_t end = rows - first < SLM_CPU_ROWS ? rows : first + SLM_CPU_ROWS;

        slm_cpu_select_rows(handle, &from, first, end, &at->chosen, at->poisoned);
        slm_cpu_poison_infinite(handle, x, from.logit, first, end, at->poisoned);
        if (s)
            slm_cpu_activate(handle, (end - first) * s, at->hs + first * s,
                             at->shared_up + first * s, at->hs + first * s);
    }
}

size_t slm_cpu_make_tasks(const slm_config *config, const int32_t *ids, size_t rows,
                          const slm_cpu_groups *at)
{
    size_t used = 0;

    slm_cpu_group(rows, config->n_experts, config->top_k, ids, at->counts, at->offsets,
                  at->order);
    for (size_t i = 0; i < rows * config->top_k; i++)
        at->place[at->order[i]] = (int64_t)i;
    for (size_t e = 0; e < config->n_experts; e++) {
        const size_t end = (size_t)at->offsets[e + 1];

        for (size_t begin = (size_t)at->offsets[e]; begin < end;
             begin += SLM_CPU_TASK_ROWS)
            at->tasks[used++] = (slm_cpu_task){
                e, begin,
                end - begin < SLM_CPU_TASK_ROWS ? end : begin + SLM_CPU_TASK_ROWS};
    }
    return used;
}

void slm_cpu_gather(const slm_cpu_groups *groups, size_t k, size_t begin, size_t end,
                    size_t bytes, const void *tokens, void *rows)
{
    for (size_t i = begin; i < end; i++)
        memcpy((char *)rows + (i - begin) * bytes,
               (const char *)tokens + (size_t)groups->order[i] / k * bytes, bytes);
}

/* One expert on its rows: o in sorted order. */
static void run_task(const slm_handle *handle, const space *at, const slm_cpu_task *job)
{
    const slm_config *config = &handle->config;
    const slm_cpu_weights *w = &handle->weights;
    const size_t k = config->top_k, l = config->d_latent, f = config->d_expert;
    const size_t count = job->end - job->begin, e = job->expert;
    const slm_cpu_matrix rows = {at->rows + job->begin * l, l};
    const slm_cpu_matrix o = {at->o + job->begin * l, l};

    slm_cpu_gather(&at->groups, k, job->begin, job->end, l * sizeof *at->z, at->z,
                   rows.data);
    if (config->expert == SLM_EXPERT_LINEAR) {
        handle->gemm(&(slm_cpu_linear){
            count, l, l, rows, slm_cpu_of_expert(w->expert, w->expert_step, e), o, 0});
        return;
    }

    const slm_cpu_matrix h = {at->h + job->begin * f, f};
    const slm_cpu_matrix up = {at->up + job->begin * f, f};

    if (w->gate.data)
        handle->gemm(&(slm_cpu_linear){
            count, f, l, rows, slm_cpu_of_expert(w->gate, w->gate_step, e), h, 0});
    handle->gemm(&(slm_cpu_linear){count, f, l, rows,
                                   slm_cpu_of_expert(w->up, w->up_step, e), up, 0});
    slm_cpu_activate(handle, count * f, h.data, up.data, h.data);
    handle->gemm(&(slm_cpu_linear){count, l, f, h,
                                   slm_cpu_of_expert(w->out, w->out_step, e), o, 0});
}

/* u, then r.                                                                      L2 */
static void combine_row(const slm_handle *handle, const space *at, size_t t)
{
    const slm_config *config = &handle->config;
    const size_t k = config->top_k, l = config->d_latent;
    float *u = at->u + t * l;

    handle->kernels->combine(k, l, at->chosen.weight + t * k, at->groups.place + t * k,
                             at->o, u);
    if (config->norm == SLM_NORM_RMS)
        handle->kernels->rmsnorm(l, u, handle->weights.gamma.data, config->eps,
                                 at->r + t * l);
    else
        memcpy(at->r + t * l, u, l * sizeof *u);
}

static void last_products(const slm_handle *handle, const space *at, size_t rows,
                          slm_cpu_matrix x, slm_cpu_matrix y)
{
    const slm_config *config = &handle->config;
    const slm_cpu_weights *w = &handle->weights;
    const size_t d = config->d_model, l = config->d_latent;
    const size_t s = slm_cpu_shared_width(handle);
    const slm_cpu_linear list[2] = {
        {rows, d, l, {at->r, l}, w->lift, y, 0},
        {rows, d, s, {at->hs, s}, w->shared_out, y, 1},
    };

    slm_cpu_sum_of_products(handle, list, s ? 2 : 1);
    if (!w->shared.data) return;
    for (size_t j = 0; j < config->n_shared; j++) {
        const slm_cpu_linear shared = {
            rows, d, d, x, slm_cpu_of_expert(w->shared, w->shared_step, j), y, 1};

        slm_cpu_products(handle, &shared, 1);
    }
}

void slm_cpu_write_pairs(const slm_tensor *tap, const int64_t *place,
                         const float *sorted, size_t width)
{
    if (tap->rank == 0) return;
    for (size_t t = 0; t < tap->shape[0]; t++) {
        const slm_tensor slots = slm_tensor_at(tap, t);
        const size_t k = slots.shape[0];

        for (size_t q = 0; q < k; q++) {
            const float *row = sorted + (size_t)place[t * k + q] * width;

            for (size_t i = 0; i < width; i++) *slm_cpu_f32(&slots, q, i) = row[i];
        }
    }
}

static void write_outputs(const slm_layer_forward_args *args, const space *at,
                          const slm_config *config, size_t rows)
{
    const size_t n = config->n_experts, l = config->d_latent, f = config->d_expert;
    const size_t s = config->n_shared * config->d_shared;

    slm_cpu_write_choice(config, rows, &at->chosen, &args->ids, &args->weight,
                         &args->cutoff);
    slm_cpu_write(&args->logit, (slm_cpu_matrix){at->logit, n});
    slm_cpu_write(&args->score, (slm_cpu_matrix){at->score, n});
    slm_cpu_write(&args->z, (slm_cpu_matrix){at->z, l});
    slm_cpu_write(&args->u, (slm_cpu_matrix){at->u, l});
    slm_cpu_write(&args->r, (slm_cpu_matrix){at->r, l});
    if (s) slm_cpu_write(&args->hs, (slm_cpu_matrix){at->hs, s});
    slm_cpu_write_pairs(&args->h, at->groups.place, at->h, f);
    slm_cpu_write_pairs(&args->o, at->groups.place, at->o, l);
}

/* One panel; the tensors of args have its rows alone. */
static void run_panel(slm_handle *handle, const void *space_of_call,
                      const slm_layer_forward_args *args, size_t rows)
{
    const space *at = space_of_call;
    const slm_config *config = &handle->config;
    const size_t d = config->d_model;
    const slm_cpu_matrix x = slm_cpu_read(&args->x, at->x);
    slm_cpu_matrix y;
    const int direct = slm_cpu_is_matrix(&args->y, &y);

    if (!direct) y = (slm_cpu_matrix){at->y, d};
    first_products(handle, at, rows, x);
    select_and_activate(handle, at, &args->x, rows);

    const size_t n_tasks =
        slm_cpu_make_tasks(config, at->chosen.ids, rows, &at->groups);

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < n_tasks; i++) run_task(handle, at, &at->groups.tasks[i]);
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++) combine_row(handle, at, t);
    last_products(handle, at, rows, x, y);
    for (size_t t = 0; t < rows; t++)
        if (at->poisoned[t])
            for (size_t i = 0; i < d; i++) slm_cpu_row(y, t)[i] = NAN;
    if (!direct) slm_cpu_write(&args->y, y);
    write_outputs(args, at, config, rows);
}

void slm_cpu_in_panels(slm_handle *handle, const slm_layer_forward_args *args,
                       slm_cpu_run_panel *run, const void *buffers)
{
    const size_t total = args->call.n_tokens;

    for (size_t first = 0; first < total; first += SLM_CPU_PANEL) {
        const size_t rows = slm_cpu_panel_rows(total - first);
        slm_layer_forward_args panel = *args;
        slm_tensor *const tensors[] = {
            &panel.x,     &panel.y,     &panel.ids, &panel.weight, &panel.cutoff,
            &panel.logit, &panel.score, &panel.z,   &panel.h,      &panel.o,
            &panel.u,     &panel.r,     &panel.hs};

        for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
            *tensors[i] = slm_cpu_part(tensors[i], first, rows);
        run(handle, buffers, &panel, rows);
    }
}

slm_status slm_cpu_layer_forward(slm_handle *handle, const slm_layer_forward_args *args,
                                 slm_error *error)
{
    const slm_config *config = &handle->config;
    const slm_status status =
        slm_check_finite(SLM_OP_layer_forward, config, args, error);
    space at;

    if (status || args->call.n_tokens == 0) return status;
    lay_out(&at, args->call.workspace, config, args->call.n_tokens);
    slm_cpu_pack(at.bias, &args->bias);
    slm_cpu_in_panels(handle, args, run_panel, &at);
    return SLM_OK;
}
