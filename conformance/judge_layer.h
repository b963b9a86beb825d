/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge_layer.h - the stages of a forward layer, for the judges of forward
 * and of backward passes. */
#ifndef SLM_JUDGE_LAYER_H
#define SLM_JUDGE_LAYER_H

#include "trial.h"

/* The routed stages in order, then the shared ones. */
enum {
    LAYER_Z,
    LAYER_GATE_UP,
    LAYER_H,
    LAYER_O,
    LAYER_U,
    LAYER_R,
    LAYER_ROUTED,
    LAYER_SHARED_GATE_UP = LAYER_ROUTED,
    LAYER_HS,
    LAYER_STAGES
};

typedef struct layer_work {
    judge_trial *trial;
    const slm_config *config;
    const slm_weights *weights;
    const char *const
        *names;             /* [LAYER_STAGES] fields of the stages; "": none          */
    slm_stage shared_stage; /* HS; H where the shared path is all there is            */
    size_t d, l, k, f, fs;  /* fs: of all shared experts together                     */
    int last;               /* the last routed stage that was tapped, -1: none        */
    stage_known known[LAYER_STAGES];
    double *x;      /* [d] */
    double *gamma;  /* [l], NULL: ones */
    double *weight; /* [k] the backend's own; zeros where it showed none */
    int32_t *ids;   /* [k] the backend's own, or given */
} layer_work;

/* `routed` 0: the shared path alone. The caller sets names and shared_stage before. */
void layer_open(layer_work *layer, judge_trial *trial, const slm_config *config,
                const slm_weights *weights, int routed);
void layer_close(layer_work *layer);

/* Take in token t: x, and ids and weights where there are any. */
void layer_take(layer_work *layer, size_t t);

/* Judge a stage of token t from the stages before it: what was shown of them, else ref's
 * numbers with their bounds as radii. A stage that was shown is opened. */
void layer_run(layer_work *layer, int stage, size_t t);

/* v of a stage. */
double layer_stored(const layer_work *layer, slm_stage stage);

#endif
