/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/on_device.h - device memory for tests, and numbers to fill it: a failure
 * fails the test. Include cmocka.h first. The caller frees with cudaFree(). */
#ifndef SLM_SELFTEST_ON_DEVICE_H
#define SLM_SELFTEST_ON_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

static inline void *device(size_t bytes)
{
    void *memory = NULL;

    assert_int_equal(cudaMalloc(&memory, bytes), cudaSuccess);
    return memory;
}

static inline void *upload(const void *from, size_t bytes)
{
    void *memory = device(bytes);

    assert_int_equal(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice),
                     cudaSuccess);
    return memory;
}

/* The next of a sequence of numbers below 2^24. */
static inline uint32_t draw(uint32_t *state)
{
    return (*state = *state * 1664525u + 1013904223u) >> 8;
}

#endif
