/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/situ.c - the activations: SiTU-GLU by the kernels of an instruction set, and the
 * controls.
 *
 * Clause   L1, L4.  Preconditions are the contract's; none is checked here. */
#include "internal.h"

enum { CHUNK = 256 };

/* a sigmoid(a) b in binary64: no product of two factors can leave its range early. */
static float swiglu(float a, float b)
{
    const double wide = (double)a;
    const double e = exp(-fabs(wide));

    if (wide == -INFINITY) return isnan(b) ? b : 0.0f;
    return (float)(wide * ((wide < 0.0 ? e : 1.0) / (1.0 + e)) * (double)b);
}

void slm_cpu_activate(const slm_handle *handle, size_t count, const float *gate,
                      const float *up, float *out)
{
    const slm_config *config = &handle->config;

    switch (config->expert) {
    case SLM_EXPERT_SWIGLU:
        for (size_t i = 0; i < count; i++) out[i] = swiglu(gate[i], up[i]);
        break;
    case SLM_EXPERT_RELU:
        for (size_t i = 0; i < count; i++) out[i] = up[i] < 0.0f ? 0.0f : up[i];
        break;
    default:
        handle->kernels->situ(count, gate, up, out, config->beta_gate, config->beta_up);
    }
}

/* A chunk of one row; views of any stride go through buffers on the stack. */
static void situ_chunk(const slm_handle *handle, const slm_situ_glu_args *args,
                       size_t row, size_t first, size_t count)
{
    const slm_config *config = &handle->config;
    const size_t width = config->d_expert;
    float gate[CHUNK] = {0.0f}, up[CHUNK] = {0.0f};

    for (size_t i = 0; i < count; i++) {
        gate[i] = *slm_cpu_f32(&args->gate_up, row, first + i);
        up[i] = *slm_cpu_f32(&args->gate_up, row, width + first + i);
    }
    handle->kernels->situ(count, gate, up, gate, config->beta_gate, config->beta_up);
    for (size_t i = 0; i < count; i++) *slm_cpu_f32(&args->h, row, first + i) = gate[i];
}

slm_status slm_cpu_situ_glu(slm_handle *handle, const slm_situ_glu_args *args,
                            slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t width = config->d_expert;
    const int direct = args->gate_up.stride[1] == 1 && args->h.stride[1] == 1;

    (void)error;
#pragma omp parallel for schedule(static)
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        if (direct) {
            const float *row = slm_cpu_f32(&args->gate_up, t, 0);

            handle->kernels->situ(width, row, row + width, slm_cpu_f32(&args->h, t, 0),
                                  config->beta_gate, config->beta_up);
            continue;
        }
        for (size_t first = 0; first < width; first += CHUNK)
            situ_chunk(handle, args, t, first,
                       width - first < CHUNK ? width - first : CHUNK);
    }
    return SLM_OK;
}
