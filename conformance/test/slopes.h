/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/slopes.h - a layer in other formulas than ref's, and slopes of it.
 *
 * L = sum dy . y at 400 bits with the choice held fixed. Every element of every weight,
 * of x and of every stage (by a nudge that is added to it) may be moved: the slope is a
 * central difference of +-2^-100, which errs by about 2^-200. */
#ifndef SLM_TEST_SLOPES_H
#define SLM_TEST_SLOPES_H

#include "internal.h"

enum { SLOPES_BITS = 400 };

/* What is moved: weights in the order of slm_weights, x, then stages. */
enum {
    W_ROUTER,
    W_DOWN,
    W_GATE,
    W_UP,
    W_OUT,
    W_EXPERT,
    GAMMA,
    W_LIFT,
    W_SHARED_GATE,
    W_SHARED_UP,
    W_SHARED_OUT,
    W_SHARED,
    X,
    LOGIT,
    WEIGHT,
    Z,
    GATE_UP,
    H,
    O,
    U,
    R,
    SHARED_GATE_UP,
    HS,
    SLOPES_PARTS
};

/* A part's gradient, and the tap that shows a stage itself. */
typedef struct slopes_name {
    const char *gradient;
    const char *tap;
} slopes_name;
extern const slopes_name slopes_names[SLOPES_PARTS];

/* Balls of one layer: `at` what is moved (a stage: its nudge), `seen` the stages. */
typedef struct slopes {
    slm_config config;
    size_t n_tokens, d, l, n, k, f, fs;
    const int32_t *ids;
    const float *dy;
    arb_ptr at[SLOPES_PARTS];
    arb_ptr seen[SLOPES_PARTS];
    size_t count[SLOPES_PARTS];
} slopes;

/* layer_backward; a field of it by name; elements of a field and its shape, 0 where the
 * configuration has none. */
const slm_op_info *slopes_info(void);
size_t slopes_field(const char *name);
size_t slopes_shape(const slm_field *field, const slm_config *config,
                    const slm_call *call, size_t *shape);

/* ids and dy are the caller's to set. Nudges are 0. Load takes the weights that are
 * present, and x, into the balls; gamma absent: ones. */
void slopes_open(slopes *m, const slm_config *config, const slm_call *call);
void slopes_close(slopes *m);
void slopes_load(slopes *m, const slm_weights *weights, const slm_tensor *x);

/* L, and every stage into m->seen. */
void slopes_loss(arb_t out, slopes *m);

/* (L(at + step) - L(at - step)) / (2 step); `at` is an element of m->at. */
void slopes_slope(arb_t out, slopes *m, arb_t at);

#endif
