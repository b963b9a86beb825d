/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_bench_data.h - the tensors of timed calls, shared by all backends. */
#ifndef SLM_HOST_BENCH_DATA_H
#define SLM_HOST_BENCH_DATA_H

#include <slm/backend.h>

/* Call number i works with the weights of layer i % layers on the inputs of place
 * i % places. Outputs lie in one place. */
typedef struct bench_data {
    slm_op op;
    slm_config config;
    size_t n_tokens;
    size_t layers;
    size_t places;
    slm_weights *weights; /* [layers], of a prepared operation             */
    char *args;           /* [places] argument structs, without a workspace */
    size_t args_size;
    void **memory;
    size_t n_memory;
} bench_data;

/* Make all of it. Returns 0 and is empty when memory ran out. */
int bench_data_make(bench_data *data, slm_op op, const slm_config *config,
                    size_t n_tokens, size_t layers, size_t places);
void bench_data_free(bench_data *data);

/* The arguments of a place. */
slm_call *bench_data_args(const bench_data *data, size_t place);

#endif
