/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/layer_backward.c - gradients of the whole layer at a given choice.
 *
 * Clause   G1-G5, R3, L1-L6.  Preconditions are the contract's; none is checked here.
 * Method   panels of SLM_CPU_PANEL tokens, like the forward's, whose values are
 *          computed anew by its own kernels. Within a panel: everything that needs x or
 *          dy alone in one pool of blocks; the pairs sorted by expert; a task for each
 *          expert's rows, forward; norm, weights and their gradients by token; the same
 *          tasks, backward; all gradients of weights in one pool, whose blocks sum over
 *          all rows of the panel. Only touched experts are read. The second panel adds.
 * Order    u and dz are summed in slot order; dx is down, router, shared gate, shared
 *          up. Tasks are cut by sizes and choices alone, so threads change no bit.
 * bf16     what is given or stored in bf16 is rounded where it is stored (widen.c), all
 *          taps of that type; p du, and the slots' parts of dz, are binary32.
 * Memory   a buffer is used twice where the first value's tap has been written:
 *          gate_up becomes dgate_up, o becomes the slots' parts of dz. */
#include "layer_backward.h"

/* Everything that needs x or dy alone. */
static void first_products(const slm_handle *handle, const slm_cpu_backward *at,
                           const slm_cpu_panel *on)
{
    const slm_config *config = &handle->config;
    const slm_cpu_weights *w = &handle->weights;
    const size_t n = config->n_experts, d = config->d_model, l = config->d_latent;
    const size_t s = slm_cpu_shared_width(handle), rows = on->rows;
    slm_cpu_linear list[6];
    size_t used = 0;

    list[used++] = (slm_cpu_linear){rows, l, d, on->x, w->down, {at->z, l}, 0};
    if (s) {
        list[used++] = (slm_cpu_linear){
            rows, s, d, on->x, w->shared_up, slm_cpu_second_half(at->shared_gate_up, s),
            0};
        list[used++] = (slm_cpu_linear){rows,
                                        s,
                                        d,
                                        on->x,
                                        w->shared_gate,
                                        slm_cpu_first_half(at->shared_gate_up, s),
                                        0};
        list[used++] = (slm_cpu_linear){
            rows, s, d, on->dy, w->shared_out, {at->dhs, s}, SLM_CPU_BACK};
    }
    list[used++] =
        (slm_cpu_linear){rows, l, d, on->dy, w->lift, {at->dr, l}, SLM_CPU_BACK};
    list[used++] = (slm_cpu_linear){rows, n, d, on->x, w->router, {at->logit, n}, 0};
    slm_cpu_products(handle, list, used);
}

/* Weights of the choice and hs of each token; the first products as they are stored. */
static void weigh_and_activate(const slm_handle *handle, const slm_cpu_backward *at,
                               size_t rows)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    const size_t l = handle->config.d_latent, s = slm_cpu_shared_width(handle);
    const slm_cpu_router from = {{at->logit, n}, {at->score, n}, NULL, 0};

#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++) {
        float *gate = at->shared_gate_up + t * 2 * s;

        slm_cpu_store_half(handle, l, at->z + t * l);
        slm_cpu_store_half(handle, l, at->dr + t * l);
        slm_cpu_store_half(handle, s, at->dhs + t * s);
        slm_cpu_store_half(handle, 2 * s, gate);
        slm_cpu_weigh_row(handle, &from, t, at->ids + t * k, at->weight + t * k);
        if (s) slm_cpu_activate(handle, s, gate, gate + s, at->hs + t * s);
        slm_cpu_store_half(handle, s, at->hs + t * s);
    }
}

/* One expert on its rows: o in sorted order. */
static void run_task(const slm_handle *handle, const slm_cpu_backward *at,
                     const slm_cpu_task *job)
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
        slm_cpu_multiply(
            handle,
            &(slm_cpu_linear){count, l, l, rows,
                              slm_cpu_of_expert(w->expert, w->expert_step, e), o, 0});
        slm_cpu_store_half(handle, count * l, o.data);
        return;
    }

    const slm_cpu_matrix gate = slm_cpu_first_half(at->gate_up + job->begin * 2 * f, f);
    const slm_cpu_matrix up = slm_cpu_second_half(gate.data, f);
    const slm_cpu_matrix h = {at->h + job->begin * f, f};

    slm_cpu_multiply(handle, &(slm_cpu_linear){
                                 count, f, l, rows,
                                 slm_cpu_of_expert(w->gate, w->gate_step, e), gate, 0});
    slm_cpu_multiply(handle,
                     &(slm_cpu_linear){count, f, l, rows,
                                       slm_cpu_of_expert(w->up, w->up_step, e), up, 0});
    slm_cpu_store_half(handle, count * 2 * f, gate.data);
    for (size_t i = 0; i < count; i++)
        slm_cpu_activate(handle, f, slm_cpu_row(gate, i), slm_cpu_row(up, i),
                         slm_cpu_row(h, i));
    slm_cpu_store_half(handle, count * f, h.data);
    slm_cpu_multiply(
        handle, &(slm_cpu_linear){count, l, f, h,
                                  slm_cpu_of_expert(w->out, w->out_step, e), o, 0});
    slm_cpu_store_half(handle, count * l, o.data);
}

/* <du, o> in binary64, in eight parts. */
static float inner_product(size_t l, const float *du, const float *o)
{
    enum { LANES = 8 };
    double part[LANES] = {0.0}, sum = 0.0;

    for (size_t i = 0; i < l; i++) part[i % LANES] += (double)du[i] * (double)o[i];
    for (size_t lane = 0; lane < LANES; lane++) sum += part[lane];
    return (float)sum;
}

/* u, r, du, dweight, dlogit of a token, and weight times du of its pairs. */
static void turn_row(const slm_handle *handle, const slm_cpu_backward *at, size_t t)
{
    const slm_config *config = &handle->config;
    const size_t n = config->n_experts, k = config->top_k, l = config->d_latent;
    const int64_t *place = at->groups.place + t * k;
    const float *weight = at->weight + t * k;
    float *u = at->u + t * l, *r = at->r + t * l, *du = at->du + t * l;

    handle->kernels->combine(k, l, weight, place, at->o, u);
    slm_cpu_store_half(handle, l, u);
    if (config->norm == SLM_NORM_RMS) {
        const float *gamma = handle->weights.gamma.data;

        handle->kernels->rmsnorm(l, u, gamma, config->eps, r);
        at->scale[t] =
            slm_cpu_rmsnorm_backward_row(l, u, gamma, at->dr + t * l, config->eps, du);
    } else {
        memcpy(r, u, l * sizeof *u);
        memcpy(du, at->dr + t * l, l * sizeof *u);
    }
    slm_cpu_store_half(handle, l, r);
    slm_cpu_store_half(handle, l, du);
    for (size_t q = 0; q < k; q++) {
        float *pdu = at->pdu + (size_t)place[q] * l;

        at->dweight[t * k + q] = inner_product(l, du, at->o + (size_t)place[q] * l);
        for (size_t i = 0; i < l; i++) pdu[i] = weight[q] * du[i];
    }
    slm_cpu_select_backward_row(config, at->logit + t * n, at->ids + t * k,
                                at->dweight + t * k, at->scratch + t * k,
                                at->dlogit + t * n);
}

/* One expert on its rows: dgate_up, and the pairs' parts of dz. */
static void turn_task(const slm_handle *handle, const slm_cpu_backward *at,
                      const slm_cpu_task *job)
{
    const slm_config *config = &handle->config;
    const slm_cpu_weights *w = &handle->weights;
    const size_t l = config->d_latent, f = config->d_expert;
    const size_t count = job->end - job->begin, e = job->expert;
    const slm_cpu_matrix pdu = {at->pdu + job->begin * l, l};
    const slm_cpu_matrix dz = {at->o + job->begin * l, l};

    if (config->expert == SLM_EXPERT_LINEAR) {
        handle->gemm(&(slm_cpu_linear){count, l, l, pdu,
                                       slm_cpu_of_expert(w->expert, w->expert_step, e),
                                       dz, SLM_CPU_BACK});
        return;
    }

    const slm_cpu_matrix gate = slm_cpu_first_half(at->gate_up + job->begin * 2 * f, f);
    const slm_cpu_matrix up = slm_cpu_second_half(gate.data, f);
    const slm_cpu_matrix dh = {at->dh + job->begin * f, f};

    handle->gemm(&(slm_cpu_linear){
        count, f, l, pdu, slm_cpu_of_expert(w->out, w->out_step, e), dh, SLM_CPU_BACK});
    slm_cpu_store_half(handle, count * f, dh.data);
    for (size_t i = 0; i < count; i++) {
        float *dgate = slm_cpu_row(gate, i), *dup = slm_cpu_row(up, i);

        slm_cpu_activate_backward(
            handle, f, (slm_cpu_glu){dgate, dup, slm_cpu_row(dh, i), dgate, dup});
    }
    slm_cpu_store_half(handle, count * 2 * f, gate.data);
    handle->gemm(&(slm_cpu_linear){count, l, f, gate,
                                   slm_cpu_of_expert(w->gate, w->gate_step, e), dz,
                                   SLM_CPU_BACK});
    handle->gemm(&(slm_cpu_linear){count, l, f, up,
                                   slm_cpu_of_expert(w->up, w->up_step, e), dz,
                                   SLM_CPU_BACK | SLM_CPU_ADD});
}

/* dz in slot order, and the shared gate and up sums' gradients, of a token. */
static void finish_row(const slm_handle *handle, const slm_cpu_backward *at, size_t t)
{
    const size_t k = handle->config.top_k, l = handle->config.d_latent;
    const size_t s = slm_cpu_shared_width(handle);
    const int64_t *place = at->groups.place + t * k;
    float *dz = at->dz + t * l, *gate = at->shared_gate_up + t * 2 * s;

    memcpy(dz, at->o + (size_t)place[0] * l, l * sizeof *dz);
    for (size_t q = 1; q < k; q++) {
        const float *part = at->o + (size_t)place[q] * l;

        for (size_t i = 0; i < l; i++) dz[i] += part[i];
    }
    slm_cpu_store_half(handle, l, dz);
    if (s)
        slm_cpu_activate_backward(
            handle, s, (slm_cpu_glu){gate, gate + s, at->dhs + t * s, gate, gate + s});
    slm_cpu_store_half(handle, 2 * s, gate);
}

static void write_dx(const slm_handle *handle, const slm_cpu_backward *at,
                     const slm_cpu_panel *on)
{
    const slm_config *config = &handle->config;
    const slm_cpu_weights *w = &handle->weights;
    const size_t n = config->n_experts, d = config->d_model, l = config->d_latent;
    const size_t s = slm_cpu_shared_width(handle), rows = on->rows;
    slm_cpu_linear list[4];
    slm_cpu_matrix dx;
    const int direct = slm_cpu_is_matrix(&on->args->dx, &dx);
    const unsigned adds = SLM_CPU_BACK | SLM_CPU_ADD;

    if (!direct) dx = (slm_cpu_matrix){at->dx, d};
    list[0] = (slm_cpu_linear){rows, d, l, {at->dz, l}, w->down, dx, SLM_CPU_BACK};
    list[1] = (slm_cpu_linear){rows, d, n, {at->dlogit, n}, w->router, dx, adds};
    if (s) {
        list[2] = (slm_cpu_linear){
            rows,           d,  s,   slm_cpu_first_half(at->shared_gate_up, s),
            w->shared_gate, dx, adds};
        list[3] = (slm_cpu_linear){
            rows,         d,  s,   slm_cpu_second_half(at->shared_gate_up, s),
            w->shared_up, dx, adds};
    }
    slm_cpu_sum_of_products(handle, list, s ? 4 : 2);
    for (size_t j = 0; w->shared.data && j < config->n_shared; j++) {
        const slm_cpu_linear shared = {
            rows, d,   d, on->dy, slm_cpu_of_expert(w->shared, w->shared_step, j),
            dx,   adds};

        slm_cpu_products(handle, &shared, 1);
    }
    if (!direct) slm_cpu_write(&on->args->dx, dx);
}

/* One panel, of at least one token; the tensors of args have its rows alone. */
static void run_panel(const slm_handle *handle, const slm_cpu_backward *at,
                      slm_cpu_panel *on)
{
    const slm_config *config = &handle->config;
    const size_t rows = on->rows, k = config->top_k, l = config->d_latent;

    on->x = slm_cpu_read(&on->args->x, at->x);
    on->dy = slm_cpu_read(&on->args->dy, at->dy);
    for (size_t i = 0; i < rows * k; i++)
        at->ids[i] = *slm_cpu_i32(&on->args->ids, i / k, i % k);
    first_products(handle, at, on);
    weigh_and_activate(handle, at, rows);

    const size_t n_tasks = slm_cpu_make_tasks(config, at->ids, rows, &at->groups);

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < n_tasks; i++) run_task(handle, at, &at->groups.tasks[i]);
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++) turn_row(handle, at, t);
    if (config->norm == SLM_NORM_RMS)
        slm_cpu_add_dgamma(rows, l, (slm_cpu_matrix){at->u, l},
                           (slm_cpu_matrix){at->dr, l}, at->scale, at->dgamma);
    slm_cpu_write_forward(at, on, config);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < n_tasks; i++) turn_task(handle, at, &at->groups.tasks[i]);
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < rows; t++) finish_row(handle, at, t);
    write_dx(handle, at, on);
    slm_cpu_write_gradients(handle, at, on);
    slm_cpu_write_backward(at, on, config);
}

/* Without tokens every gradient of a weight is zeros.                             G5 */
static void run_nothing(const slm_handle *handle, const slm_cpu_backward *at,
                        slm_cpu_panel *on)
{
    const slm_config *config = &handle->config;

    slm_cpu_group(0, config->n_experts, config->top_k, at->ids, at->groups.counts,
                  at->groups.offsets, at->groups.order);
    slm_cpu_write_gradients(handle, at, on);
}

/* The arguments' rows first .. first + rows - 1. */
static slm_layer_backward_args part_of(const slm_layer_backward_args *args,
                                       size_t first, size_t rows)
{
    slm_layer_backward_args part = *args;
    slm_tensor *const by_token[] = {&part.x,
                                    &part.ids,
                                    &part.dy,
                                    &part.dx,
                                    &part.logit,
                                    &part.weight,
                                    &part.z,
                                    &part.gate_up,
                                    &part.h,
                                    &part.o,
                                    &part.u,
                                    &part.r,
                                    &part.dr,
                                    &part.du,
                                    &part.dweight,
                                    &part.dlogit,
                                    &part.dh,
                                    &part.dz,
                                    &part.dgate_up,
                                    &part.shared_gate_up,
                                    &part.hs,
                                    &part.dhs,
                                    &part.dshared_gate_up};

    for (size_t i = 0; i < sizeof by_token / sizeof *by_token; i++)
        *by_token[i] = slm_cpu_part(by_token[i], first, rows);
    return part;
}

slm_status slm_cpu_layer_backward(slm_handle *handle,
                                  const slm_layer_backward_args *args, slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t total = args->call.n_tokens, l = config->d_latent;
    const slm_status status =
        slm_check_finite(SLM_OP_layer_backward, config, args, error);
    slm_cpu_backward at;

    if (status) return status;
    slm_cpu_lay_out_backward(&at, args->call.workspace, config, total);
    memset(at.dgamma, 0, l * sizeof *at.dgamma);
    if (total == 0)
        run_nothing(handle, &at, &(slm_cpu_panel){args, 0, 0, {NULL, 0}, {NULL, 0}});
    for (size_t first = 0; first < total; first += SLM_CPU_PANEL) {
        const size_t rows = slm_cpu_panel_rows(total - first);
        const slm_layer_backward_args part = part_of(args, first, rows);

        run_panel(handle, &at,
                  &(slm_cpu_panel){&part, rows, first > 0, {NULL, 0}, {NULL, 0}});
    }
    for (size_t i = 0; args->dgamma.rank && i < l; i++)
        *slm_cpu_f32(&args->dgamma, i, 0) = (float)at.dgamma[i];
    for (size_t e = 0; args->dbias.rank && e < config->n_experts; e++)
        *slm_cpu_f32(&args->dbias, e, 0) = 0.0f;
    return SLM_OK;
}
