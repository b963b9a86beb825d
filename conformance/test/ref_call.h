/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/ref_call.h - what tests of the reference call it with. */
#ifndef SLM_TEST_REF_CALL_H
#define SLM_TEST_REF_CALL_H

#include "ref.h"

#include <stddef.h>
#include <stdint.h>

/* A packed tensor of up to three sizes; sizes past the rank do not matter. */
slm_tensor view(const void *data, slm_dtype dtype, uint32_t rank, size_t a, size_t b,
                size_t c);

uint32_t bits_f32(float value);
uint64_t bits_f64(double value);

/* The profile's configuration with d 2, l 2, n 3, k 2, f 1. */
slm_config config_of(const char *profile);
slm_handle *open_ref(const slm_config *config);

/* A handle of a profile with these sizes; eps stays the profile's where 0 is given. */
slm_handle *open_profile(const char *profile, size_t n, size_t k, size_t l, size_t f,
                         double eps);
void close_handle(slm_handle *handle);

/* The ten weights of a gated layer whose sizes are all 1, in the order of slm_weights:
 * w_router first, w_shared_out last. */
slm_weights weights_of_one(const float *w);

/* Fail the running test at the first double whose bits differ. */
void same_bits(const double *got, const double *want, size_t n);

/* Bytes that an operation must leave, or overwrite. */
void poison(void *memory, size_t size);
int is_poison(const void *memory, size_t size);

/* For slm_call.progress: what was reported last, and how often. Each report must be
 * of more than the one before. */
typedef struct progress {
    size_t done;
    size_t total;
    size_t calls;
} progress;
void note_progress(void *user, size_t done, size_t total);

/* SiTU's da and db at dh = 1 in MPFR, with 1 - tanh^2 and 1 - sigma at bits enough. */
void situ_in_mpfr(double *da, double *db, double a, double b);

#endif
