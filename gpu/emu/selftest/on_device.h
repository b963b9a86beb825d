/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/selftest/on_device.h - device memory for tests: a failure fails the test. Include
 * cmocka.h first. The caller frees with cudaFree(). */
#ifndef SLM_SELFTEST_ON_DEVICE_H
#define SLM_SELFTEST_ON_DEVICE_H

#include <cuda_runtime_api.h>

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

#endif
