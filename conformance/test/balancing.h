/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/balancing.h - a balancing step of the reference, for tests. */
#ifndef SLM_TEST_BALANCING_H
#define SLM_TEST_BALANCING_H

#include <internal.h>

enum { BALANCING_M = 32, BALANCING_N = 8, BALANCING_B = 1000 };

/* Strict, tie test of the note, B 1000, everything zero. Packed arrays. */
typedef struct balancing {
    slm_config config;
    size_t m;
    float score[BALANCING_M * BALANCING_N];
    float bias[BALANCING_N];
    float new_bias[BALANCING_N];
    double candidate[BALANCING_N];
    float cutoff[BALANCING_M];
    int64_t hist[BALANCING_N * BALANCING_B];
    slm_error error;
} balancing;

balancing balancing_open(size_t m, size_t n, size_t k);

/* m 8, n 4, k 1: the instance of loads (4, 3, 1, 0), and the note's seed 21. */
balancing balancing_4310(void);
balancing balancing_seed_21(void);

/* The operations on it; arguments pass the door first. Accumulate counts the tokens
 * first..first+count-1. */
slm_status balancing_exact(balancing *b);
slm_status balancing_accumulate(balancing *b, size_t first, size_t count);
slm_status balancing_solve(balancing *b);

/* qb_exact refuses with this error and leaves its outputs alone. */
void balancing_refuses(balancing *b, slm_status status, const char *field,
                       size_t index);

/* Loads of the choice under a bias, against wanted ones. */
void balancing_loads(const balancing *b, const float *bias, const int64_t *want);

/* Bits of new_bias and of the candidates. */
void balancing_gives(const balancing *b, const float *new_bias,
                     const double *candidate);

#endif
