/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_shape.h - the shapes that a bench times: vectors/perf/shapes.yaml. */
#ifndef SLM_BENCH_SHAPE_H
#define SLM_BENCH_SHAPE_H

#include "vector.h"

enum { BENCH_MAX_SHAPES = 64, BENCH_MAX_LIST = 16 };

typedef struct bench_shape {
    char *id;
    char *about;
    slm_config config;
    size_t n_tokens;
    size_t tokens[BENCH_MAX_LIST]; /* batch sizes                            */
    size_t layers;                 /* sets of weights that calls rotate over */
    size_t judged;                 /* tokens of a batch that are judged      */
} bench_shape;

typedef struct bench_shapes {
    size_t n;
    bench_shape shape[BENCH_MAX_SHAPES];
} bench_shapes;

/* Read a file, or bytes that stand for the file `path`. NULL and the error at the first
 * fault. */
bench_shapes *bench_shapes_load(const char *path, vec_error *error);
bench_shapes *bench_shapes_parse(const char *path, const char *data, size_t size,
                                 vec_error *error);
void bench_shapes_free(bench_shapes *shapes); /* accepts NULL */

/* The shape of that name, or NULL. */
const bench_shape *bench_shape_find(const bench_shapes *shapes, const char *id);

#endif
