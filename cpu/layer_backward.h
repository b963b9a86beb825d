/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/layer_backward.h - layer_backward: its workspace, and what its files share. */
#ifndef SLM_CPU_LAYER_BACKWARD_H
#define SLM_CPU_LAYER_BACKWARD_H

#include "internal.h"

/* Workspace. T is the panel's; a pair is a (token, slot); sorted: by expert. */
typedef struct slm_cpu_backward {
    float *x;        /* [T, d]    this and the next two only when GEMM cannot    */
    float *dy;       /* [T, d]    read or write them where they are              */
    float *dx;       /* [T, d]                                                   */
    int32_t *ids;    /* [T, k]                                                   */
    float *logit;    /* [T, n]                                                   */
    float *score;    /* [T, n]                                                   */
    float *weight;   /* [T, k]                                                   */
    float *dweight;  /* [T, k]                                                   */
    float *dlogit;   /* [T, n]                                                   */
    double *scratch; /* [T, k]                                                   */
    float *z;        /* [T, l]                                                   */
    float *u;        /* [T, l]                                                   */
    float *r;        /* [T, l]                                                   */
    float *dr;       /* [T, l]                                                   */
    float *du;       /* [T, l]                                                   */
    float *dz;       /* [T, l]                                                   */
    double *scale;   /* [T]       1 / R                                          */
    double *dgamma;  /* [l]       over all panels                                */
    float *rows;     /* [T k, l]  sorted: z of the pair                          */
    float *gate_up;  /* [T k, 2f] sorted: becomes dgate_up                       */
    float *h;        /* [T k, f]  sorted                                         */
    float *o;        /* [T k, l]  sorted: becomes the pair's part of dz          */
    float *pdu;      /* [T k, l]  sorted: weight times du                        */
    float *dh;       /* [T k, f]  sorted                                         */
    float
        *shared_gate_up; /* [T, 2 S fs]  becomes dshared_gate_up                     */
    float *hs;           /* [T, S fs]                                                */
    float *dhs;          /* [T, S fs]                                                */
    slm_cpu_groups groups;
    slm_cpu_gradient
        *gradients; /* three an expert, the dense ones, S of linear       */
    float *stage;   /* SLM_CPU_STAGES blocks                              */
    size_t stage_size;
} slm_cpu_backward;

/* One panel: its rows of the arguments. */
typedef struct slm_cpu_panel {
    const slm_layer_backward_args *args;
    size_t rows;
    int adds; /* to the gradients of earlier panels */
    slm_cpu_matrix x;
    slm_cpu_matrix dy;
} slm_cpu_panel;

/* Gate and up halves of rows [.., 2 width]. */
static inline slm_cpu_matrix slm_cpu_first_half(float *rows, size_t width)
{
    return (slm_cpu_matrix){rows, 2 * width};
}

static inline slm_cpu_matrix slm_cpu_second_half(float *rows, size_t width)
{
    return (slm_cpu_matrix){rows + width, 2 * width};
}

size_t slm_cpu_lay_out_backward(slm_cpu_backward *at, void *base,
                                const slm_config *config, size_t n_tokens);

/* All gradients of weights: written, or added to those of earlier panels. */
void slm_cpu_write_gradients(const slm_handle *handle, const slm_cpu_backward *at,
                             const slm_cpu_panel *on);

/* Taps of the recomputed forward, before their buffers are used again; the others. */
void slm_cpu_write_forward(const slm_cpu_backward *at, const slm_cpu_panel *on,
                           const slm_config *config);
void slm_cpu_write_backward(const slm_cpu_backward *at, const slm_cpu_panel *on,
                            const slm_config *config);

#endif
