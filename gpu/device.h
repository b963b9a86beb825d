/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/device.h - CUDA for the .cu files: the real one under nvcc, else the emulator.
 *
 * The only file that knows one from the other, and the only CUDA header that a .cu
 * includes. The rules that kernels keep are in gpu/emu/README.md.
 *
 *   SLM_LAUNCH(kernel, grid, block, stream, args...)
 *   SLM_LAUNCH_SHARED(kernel, grid, block, bytes, stream, args...)
 *       launch; arguments convert as in a call. A template's name with a comma goes
 *       into parentheses. What went wrong is what cudaGetLastError() says.
 *   SLM_SHARED(float, tile, [16][17]);      in a kernel: static shared memory
 *   SLM_SHARED_DYNAMIC(int, count);         in a kernel: the `bytes` of the launch
 *   SLM_UNROLL                              before a loop that must be unrolled whole
 *   SLM_DEVICE_NAME                         "gpu" or "gpu-emu": who runs the kernels
 *   SLM_DEVICE_ABOUT                        the same for people, for a report's head */
#ifndef SLM_GPU_DEVICE_H
#define SLM_GPU_DEVICE_H

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__

#include <mma.h>

#define SLM_DEVICE_NAME "gpu"
#define SLM_DEVICE_ABOUT "CUDA device"
#define SLM_UNROLL _Pragma("unroll")

template <class... P, class... A>
inline void slm_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                       cudaStream_t stream, A... args)
{
    kernel<<<grid, block, shared, stream>>>(static_cast<P>(args)...);
}

#define SLM_LAUNCH_SHARED(kernel, grid, block, bytes, stream, ...)                     \
    slm_launch(kernel, grid, block, bytes, stream, __VA_ARGS__)
#define SLM_SHARED(type, name, extent) __shared__ type name extent
#define SLM_SHARED_DYNAMIC(type, name)                                                 \
    extern __shared__ __align__(16) unsigned char slm_dynamic_shared[];                \
    type *name = reinterpret_cast<type *>(slm_dynamic_shared)

#else

#define SLM_DEVICE_NAME "gpu-emu"
#define SLM_DEVICE_ABOUT "emulated on the CPU, no GPU"
#define SLM_UNROLL
#include "emu/emu.h"
#include "emu/wmma.h"

#endif

#define SLM_LAUNCH(kernel, grid, block, stream, ...)                                   \
    SLM_LAUNCH_SHARED(kernel, grid, block, 0, stream, __VA_ARGS__)

#endif
