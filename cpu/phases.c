/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/phases.c - where the layer's calls spend their time, and what a part must do. */
#include "phases.h"
#include "cpu.h"
#include "native.h"

#include <stdio.h>
#include <time.h>

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void slm_cpu_start(slm_cpu_account *account)
{
    account->since = now();
}

void slm_cpu_lap(slm_cpu_account *account, slm_cpu_phase phase)
{
    const double time = now();

    account->seconds[phase] += time - account->since;
    account->since = time;
}

/* Elements of the matrices that a row goes through. */
typedef struct elements {
    double first;  /* router, down-projection, shared gate and up            */
    double expert; /* one expert                                             */
    double last;   /* lift, shared out                                       */
} elements;

static elements elements_of(const slm_config *config)
{
    const double d = (double)config->d_model, l = (double)config->d_latent;
    const double f = (double)config->d_expert, n = (double)config->n_experts;
    const double s = (double)config->n_shared * (double)config->d_shared;
    const double shared = (double)config->n_shared * d * d;

    switch (config->expert) {
    case SLM_EXPERT_LINEAR:
        return (elements){(n + l) * d, l * l, l * d + shared};
    case SLM_EXPERT_RELU:
        return (elements){(n + l + s) * d, 2 * f * l, (l + s) * d};
    default:
        return (elements){(n + l + 2 * s) * d, 3 * f * l, (l + s) * d};
    }
}

void slm_cpu_count_work(slm_cpu_account *account, const slm_config *config, size_t rows,
                        size_t experts)
{
    const elements of = elements_of(config);
    const double size = (double)slm_dtype_size(config->dtype), t = (double)rows;

    account->flops[SLM_CPU_FIRST] += 2 * t * of.first;
    account->bytes[SLM_CPU_FIRST] += size * of.first;
    account->flops[SLM_CPU_EXPERTS] += 2 * t * (double)config->top_k * of.expert;
    account->bytes[SLM_CPU_EXPERTS] += size * (double)experts * of.expert;
    account->flops[SLM_CPU_LAST] += 2 * t * of.last;
    account->bytes[SLM_CPU_LAST] += size * of.last;
}

size_t slm_cpu_phases(slm_handle *handle, slm_phase *list, size_t most)
{
    static const char *const names[SLM_CPU_PHASES] = {
        "inputs checked", "router, choice, down, shared in", "sort by expert",
        "experts",        "combine, norm, lift, shared out", "outputs"};
    slm_cpu_account *account = &handle->native->account;
    size_t n = 0;

    if (account->since == 0) return 0;
    for (; n < SLM_CPU_PHASES && n < most; n++) {
        snprintf(list[n].name, sizeof list[n].name, "%s", names[n]);
        list[n].seconds = account->seconds[n];
        list[n].flops = account->flops[n];
        list[n].bytes = account->bytes[n];
    }
    *account = (slm_cpu_account){0};
    return n;
}
