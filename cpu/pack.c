/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/pack.c - weights in panels: gemm.h says how they lie.
 *
 * One piece of memory holds all, in huge pages where the system has some to give: a
 * layer reads each byte once a call. Experts that would take more than a quarter of the
 * machine get their place, but are packed when first chosen: address space alone costs
 * nothing. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gemm.h"

enum { PANEL_ALIGN = 64 };

/* Element (col, k) of part `part` of a weight, as its own type's address. */
static const char *element(const slm_tensor *w, size_t part, size_t col, size_t k)
{
    const size_t size = slm_dtype_size(w->dtype);
    const uint32_t at = w->rank > 2;
    const ptrdiff_t first = at ? (ptrdiff_t)part * w->stride[0] : 0;

    return (const char *)w->data +
           (first + (ptrdiff_t)col * w->stride[at] + (ptrdiff_t)k * w->stride[at + 1]) *
               (ptrdiff_t)size;
}

enum { STEPS = 16 }; /* of the inner index, taken through all columns at once */

static void pack_f32(const slm_tensor *w, size_t part, size_t col, size_t cols,
                     size_t inner, float *to)
{
    const ptrdiff_t step = w->stride[w->rank - 1], ld = w->stride[w->rank - 2];

    if (step == 1 && ld > 0) {
        slm_cpu_transpose((const float *)(const void *)element(w, part, col, 0),
                          (size_t)ld, cols, inner, to);
        return;
    }
    for (size_t first = 0; first < inner; first += STEPS) {
        const size_t end = inner - first < STEPS ? inner : first + STEPS;

        for (size_t j = 0; j < cols; j++) {
            const float *from =
                (const float *)(const void *)element(w, part, col + j, 0);

            for (size_t k = first; k < end; k++)
                to[k * SLM_CPU_WIDTH + j] = from[(ptrdiff_t)k * step];
        }
        for (size_t k = first; k < end; k++)
            for (size_t j = cols; j < SLM_CPU_WIDTH; j++)
                to[k * SLM_CPU_WIDTH + j] = 0.0f;
    }
}

static void pack_bf16(const slm_tensor *w, size_t part, size_t col, size_t cols,
                      size_t inner, uint16_t *to)
{
    const ptrdiff_t step = w->stride[w->rank - 1];

    if (cols < SLM_CPU_WIDTH || inner % SLM_CPU_STEP)
        memset(to, 0, slm_cpu_strip_bytes(inner, 1));
    for (size_t first = 0; first < inner; first += 2 * STEPS) {
        const size_t end = inner - first < 2 * STEPS ? inner : first + 2 * STEPS;

        for (size_t j = 0; j < cols; j++) {
            const uint16_t *from =
                (const uint16_t *)(const void *)element(w, part, col + j, 0);

            for (size_t k = first; k < end; k++)
                to[(k / 2 * SLM_CPU_WIDTH + j) * 2 + k % 2] = from[(ptrdiff_t)k * step];
        }
    }
}

/* Every second panel where `apart` is 2. */
static void pack_part(const slm_cpu_panels *to, const slm_tensor *w, size_t part,
                      size_t first, size_t apart)
{
    const size_t n = slm_cpu_ceil_div(to->cols, SLM_CPU_WIDTH);

#pragma omp parallel for schedule(static)
    for (size_t p = 0; p < n; p++) {
        const size_t col = p * SLM_CPU_WIDTH;
        const size_t cols =
            to->cols - col < SLM_CPU_WIDTH ? to->cols - col : SLM_CPU_WIDTH;
        char *panel =
            to->data + part * to->step + (first + p * apart) * slm_cpu_panel_bytes(to);

        if (to->half)
            pack_bf16(w, part, col, cols, to->inner, (uint16_t *)(void *)panel);
        else
            pack_f32(w, part, col, cols, to->inner, (float *)(void *)panel);
    }
}

/* The plan of one weight; `second` is NULL or what it is paired with. */
static slm_cpu_panels plan(const slm_tensor *w, const slm_tensor *second, size_t *bytes)
{
    slm_cpu_panels made = {0};

    if (w->rank == 0 || slm_tensor_count(w) == 0) return made;
    made.parts = w->rank > 2 ? w->shape[0] : 1;
    made.cols = w->shape[w->rank - 2];
    made.inner = w->shape[w->rank - 1];
    made.half = w->dtype == SLM_BF16;
    made.paired = second && second->rank;
    made.step = slm_cpu_n_panels(&made) * slm_cpu_panel_bytes(&made);
    made.at = *bytes;
    *bytes += (made.parts * made.step + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN;
    return made;
}

void *slm_cpu_reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE); /* a wish */
#endif
    return memory;
}

void slm_cpu_free_packed(slm_cpu_packed *packed)
{
    if (packed->memory) munmap(packed->memory, packed->bytes);
    free(packed->gamma);
    free(packed->ready);
    memset(packed, 0, sizeof *packed);
}

/* 1 where the experts are to be packed one by one. */
static int is_vast(const slm_cpu_packed *packed)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const size_t experts = packed->in.parts * packed->in.step / 1024 +
                           packed->out.parts * packed->out.step / 1024;

    return pages > 0 && page > 0 && experts > (size_t)pages / 1024 * (size_t)page / 4;
}

static void pack_expert(slm_cpu_packed *packed, size_t expert)
{
    const slm_weights *from = &packed->from;
    const slm_tensor *second = &from->w_up;

    if (!packed->in.paired)
        pack_part(&packed->in, from->w_expert.rank ? &from->w_expert : second, expert,
                  0, 1);
    else {
        pack_part(&packed->in, &from->w_gate, expert, 0, 2);
        pack_part(&packed->in, second, expert, 1, 2);
    }
    if (packed->out.data) pack_part(&packed->out, &from->w_out, expert, 0, 1);
}

void slm_cpu_pack_expert(slm_cpu_packed *packed, size_t expert)
{
    if (!packed->ready || packed->ready[expert]) return;
    pack_expert(packed, expert);
    packed->ready[expert] = 1;
}

static void pack_common(slm_cpu_packed *packed)
{
    const slm_weights *from = &packed->from;
    const struct {
        const slm_cpu_panels *to;
        const slm_tensor *from;
    } list[] = {{&packed->router, &from->w_router},
                {&packed->down, &from->w_down},
                {&packed->lift, &from->w_lift},
                {&packed->shared_out, &from->w_shared_out},
                {&packed->shared, &from->w_shared}};

    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (size_t part = 0; part < list[i].to->parts; part++)
            pack_part(list[i].to, list[i].from, part, 0, 1);
    if (!packed->shared_in.parts) return;
    if (!packed->shared_in.paired) {
        pack_part(&packed->shared_in, &from->w_shared_up, 0, 0, 1);
        return;
    }
    pack_part(&packed->shared_in, &from->w_shared_gate, 0, 0, 2);
    pack_part(&packed->shared_in, &from->w_shared_up, 0, 1, 2);
}

static int take_gamma(slm_cpu_packed *packed, const slm_tensor *gamma)
{
    const size_t size = slm_dtype_size(gamma->dtype);

    if (gamma->rank == 0) return 1;
    packed->gamma = malloc(gamma->shape[0] * sizeof(float));
    if (!packed->gamma) return 0;
    for (size_t i = 0; i < gamma->shape[0]; i++) {
        const char *at = (const char *)gamma->data +
                         (ptrdiff_t)i * gamma->stride[0] * (ptrdiff_t)size;
        uint16_t half;

        if (gamma->dtype == SLM_BF16) {
            memcpy(&half, at, sizeof half);
            packed->gamma[i] = slm_cpu_of_bf16(half);
        } else {
            memcpy(&packed->gamma[i], at, sizeof(float));
        }
    }
    return 1;
}

slm_status slm_cpu_pack_weights(slm_cpu_packed *packed, const slm_config *config,
                                const slm_weights *weights, slm_error *error)
{
    const int linear = config->expert == SLM_EXPERT_LINEAR;
    slm_cpu_panels *const all[] = {
        &packed->router, &packed->down,       &packed->in,     &packed->out,
        &packed->lift,   &packed->shared_out, &packed->shared, &packed->shared_in};
    const int gated = weights->w_gate.rank != 0;
    size_t bytes = 0;

    slm_cpu_free_packed(packed);
    packed->from = *weights;
    packed->router = plan(&weights->w_router, NULL, &bytes);
    packed->down = plan(&weights->w_down, NULL, &bytes);
    packed->lift = plan(&weights->w_lift, NULL, &bytes);
    packed->shared_in =
        plan(&weights->w_shared_up, gated ? &weights->w_shared_gate : NULL, &bytes);
    packed->shared_out = plan(&weights->w_shared_out, NULL, &bytes);
    packed->shared = plan(&weights->w_shared, NULL, &bytes);
    packed->in = linear ? plan(&weights->w_expert, NULL, &bytes)
                        : plan(&weights->w_up, gated ? &weights->w_gate : NULL, &bytes);
    packed->out = plan(&weights->w_out, NULL, &bytes);
    if (bytes == 0) return SLM_OK; /* a handle for other operations */
    packed->memory = slm_cpu_reserve(bytes);
    packed->bytes = bytes;
    if (is_vast(packed)) packed->ready = calloc(config->n_experts, 1);
    if (!packed->memory || !take_gamma(packed, &weights->gamma) ||
        (is_vast(packed) && !packed->ready)) {
        slm_cpu_free_packed(packed);
        return slm_fail(error, SLM_ERR_MEMORY, "prepare", "weights", 0, "%zu bytes",
                        bytes);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->parts) all[i]->data = (char *)packed->memory + all[i]->at;
    pack_common(packed);
    for (size_t e = 0; !packed->ready && e < packed->in.parts; e++)
        pack_expert(packed, e);
    return SLM_OK;
}
