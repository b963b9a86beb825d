/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/native_parts.h - the layer on packed weights, in parts that threads take.
 *
 * A part writes its own memory alone and reads what other kinds of parts wrote; who runs
 * which, and when, is native_layer.c's and native_flow.c's. The cut changes no bit. */
#ifndef SLM_CPU_NATIVE_PARTS_H
#define SLM_CPU_NATIVE_PARTS_H

#include "native.h"

enum {
    SLM_CPU_FLOW_ROWS = SLM_CPU_ACROSS, /* most tokens for slm_cpu_flow()             */
    SLM_CPU_EARLY_ROWS = 16             /* most for which `sums` are worth their room */
};

/* Workspace. T is the panel's; a pair is a (token, slot); sorted: as `order` is. */
typedef struct slm_cpu_space {
    float *bias;       /* [n]                                                    */
    slm_cpu_acts x;    /* [T, d]     only when x cannot be read where it is      */
    slm_cpu_acts y;    /* [T, d]     only when y cannot be written where it is   */
    float *logit;      /* [T, n]                                                 */
    float *score;      /* [T, n]                                                 */
    slm_cpu_acts z;    /* [T, l]                                                 */
    slm_cpu_acts hs;   /* [T, S fs]                                              */
    slm_cpu_acts rows; /* [T k, l]   sorted: z of the pair, or a thread's own    */
    slm_cpu_acts h;    /* [T k, f]   sorted, or a thread's own                   */
    slm_cpu_acts o;    /* [T k, l]   sorted                                      */
    slm_cpu_acts u;    /* [T, l]                                                 */
    slm_cpu_acts r;    /* [T, l]                                                 */
    float *wide;       /* [T, l]     u, then r, where these are of bf16          */
    float *sums;       /* [T, d]     of y, where it is of bf16: EARLY_ROWS       */
    slm_cpu_choices chosen;
    slm_cpu_groups groups;
    unsigned char *poisoned; /* [T]                                              */
} slm_cpu_space;

/* One panel of tokens, seen by all threads. */
typedef struct slm_cpu_panel {
    slm_handle *handle;
    const slm_config *config;
    const slm_cpu_packed *packed;
    const slm_cpu_space *at;
    size_t rows;
    const slm_tensor *given; /* x, as it was given */
    slm_cpu_acts x;
    slm_cpu_acts y;
    size_t n_tasks;
    size_t threads; /* as many as there may be: work is cut for them */
    int keeps;      /* h of all pairs is asked for                    */
    slm_cpu_account *account;
} slm_cpu_panel;

/* Columns `of` of logits, of z, of hs of some rows.                           R1, L1, L3 */
void slm_cpu_part_logit(const slm_cpu_panel *on, range rows, range of);
void slm_cpu_part_z(const slm_cpu_panel *on, range rows, range of);
void slm_cpu_part_hs(const slm_cpu_panel *on, range rows, range of);

/* The choice of some rows, from a multiple of SLM_CPU_ROWS on, whose logits are there:
 * selection's scratch belongs to so many.                                         R2-R5 */
void slm_cpu_part_choice(const slm_cpu_panel *on, range rows);

/* Tasks by the choice of all rows, and weights for them.                             L5 */
void slm_cpu_sort_pairs(slm_cpu_panel *on);

/* A task's rows of z. */
void slm_cpu_part_gather(const slm_cpu_panel *on, const slm_cpu_task *job);

/* Columns `of` of a task's h, of its o. A linear expert has no h: o is made of its
 * gathered rows.                                                                     L1 */
void slm_cpu_part_h(const slm_cpu_panel *on, const slm_cpu_task *job, range of);
void slm_cpu_part_o(const slm_cpu_panel *on, const slm_cpu_task *job, range of);

/* All three of a task; its rows and h lie where this thread keeps its own, if nobody asks
 * for them and there is room. */
void slm_cpu_part_expert(const slm_cpu_panel *on, const slm_cpu_task *job);

/* u and r of some rows.                                                              L2 */
void slm_cpu_part_r(const slm_cpu_panel *on, range rows);

/* Columns `of` of y, at `y`, which begins with them: the shared experts' sum, then the
 * lift added; of poisoned rows NaN. The first does nothing without shared experts. L3, L4 */
void slm_cpu_part_shared(const slm_cpu_panel *on, range rows, range of,
                         slm_cpu_matrix y);
void slm_cpu_part_lift(const slm_cpu_panel *on, range rows, range of, slm_cpu_matrix y);

/* The same and stored: one of so many parts, which do not fill the cache; or all columns
 * of at most SLM_CPU_ACROSS rows. */
size_t slm_cpu_parts_of_y(const slm_cpu_panel *on);
void slm_cpu_part_y(const slm_cpu_panel *on, size_t part);
void slm_cpu_part_rows_of_y(const slm_cpu_panel *on, range rows);

/* native_flow.c. All of that for up to SLM_CPU_FLOW_ROWS tokens. */
void slm_cpu_flow(slm_cpu_panel *on);

#endif
