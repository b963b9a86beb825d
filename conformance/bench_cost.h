/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_cost.h - what a call must do at least, and how long that must take.
 *
 * Counted is what no implementation can avoid: every weight that the batch needs is read
 * once, every argument read or written once, every product of a matrix made once. What
 * lies between the stages may stay in registers and is not counted, nor is a function's
 * evaluation. So the roof is a lower bound of the time, and a share of it is at most 1. */
#ifndef SLM_BENCH_COST_H
#define SLM_BENCH_COST_H

#include <slm/ops.h>

typedef struct bench_cost {
    double flops;       /* two for a multiplication and an addition          */
    double weights;     /* bytes of weights that a call reads                */
    double inputs;      /* bytes of other arguments that it reads            */
    double outputs;     /* bytes that it writes, gradients of weights too    */
    double working_set; /* bytes that the rotation of calls comes back to    */
} bench_cost;

/* How calls rotate, and how many experts they need. */
typedef struct bench_rotation {
    size_t layers;  /* sets of weights                                       */
    size_t places;  /* sets of other inputs; outputs lie in one place        */
    double experts; /* different ones that a call chooses, on the average    */
    double reached; /* different ones of a layer, over the whole rotation    */
} bench_rotation;

/* Of an operation that bench_cannot_time() allows. */
bench_cost bench_cost_of(slm_op op, const slm_config *config, size_t n_tokens,
                         const bench_rotation *rotation);

/* Bytes that a call moves. */
double bench_bytes(const bench_cost *cost);

/* Whether the operation can be repeated on the same arguments: NULL, or why not. */
const char *bench_cannot_time(slm_op op, const slm_config *config);

/* Whether a call's rows are independent: a part of them can be judged alone. */
int bench_is_by_row(slm_op op);

enum { BENCH_SIZES = 32 };

/* What the CPUs with that many threads, or a device, do at best, measured. */
typedef struct bench_roof {
    size_t threads;
    char device[64];               /* its name; "" of the CPUs               */
    int emulated;                  /* a device that is none: nothing is said */
    char missing[160];             /* why there is nothing; ""               */
    char kernel[16];               /* "avx512", "avx2", "plain"; "cublas"    */
    double fma;                    /* FLOP/s in binary32                     */
    double tile;                   /* the same with a tile's loads; 0: -     */
    double dot;                    /* of bf16 products, 0: not there         */
    double amx;                    /* the same on tiles, 0: not there        */
    double copy;                   /* bytes/s, read and written; 0: unknown  */
    size_t n_sizes;                /* ascending                              */
    double size[BENCH_SIZES];      /* bytes read in turn by all threads      */
    double bandwidth[BENCH_SIZES]; /* bytes/s, the best of several tries     */
    double usual[BENCH_SIZES];     /* their median, no more; 0: unknown      */
} bench_roof;

/* Bytes/s that a working set is read with at best: those of the largest measured size
 * that is no larger. */
double bench_bandwidth(const bench_roof *roof, double working_set);

/* The same as tries usually were; 0: unknown. */
double bench_usual_bandwidth(const bench_roof *roof, double working_set);

/* FLOP/s for factors of that type. */
double bench_peak(const bench_roof *roof, slm_dtype dtype);

/* Seconds below which the call cannot be; 0 when the roof does not say. */
double bench_roof_seconds(const bench_roof *roof, const bench_cost *cost,
                          slm_dtype dtype);

/* The same where bytes move as fast as they usually did; 0: unknown. */
double bench_usual_seconds(const bench_roof *roof, const bench_cost *cost,
                           slm_dtype dtype);

/* Which of the two it is: 1 when moving the bytes takes longer than the arithmetic. */
int bench_is_moving(const bench_roof *roof, const bench_cost *cost, slm_dtype dtype);

#endif
