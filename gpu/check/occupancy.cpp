/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/check/occupancy.cpp - how many blocks of each kernel a multiprocessor holds, by
 * NVIDIA's own rules (cuda_occupancy.h needs no device).
 *
 *   stdin   KERNEL SM REGISTERS SHARED BLOCK DYNAMIC, a line a kernel and generation
 *   stdout  a table; exit 1 when a kernel cannot be resident, 2 when a line is wrong */
#include <cuda_runtime.h>
#include <cuda_occupancy.h>

#include <cstdio>
#include <cstring>

namespace
{

cudaOccDeviceProp device_of(int sm)
{
    cudaOccDeviceProp device;
    const size_t shared = sm == 80 ? 164 << 10 : 228 << 10;

    device.computeMajor = sm / 10;
    device.computeMinor = sm % 10;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = 2048;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 << 10;
    device.sharedMemPerMultiprocessor = shared;
    device.reservedSharedMemPerBlock = 1 << 10;
    device.sharedMemPerBlockOptin = shared - device.reservedSharedMemPerBlock;
    device.numSms = 1;
    return device;
}

} // namespace

int main()
{
    char name[256], last[256] = "";
    int sm, registers, shared, block, dynamic, count, homeless = 0;

    while ((count = scanf("%255s %d %d %d %d %d", name, &sm, &registers, &shared,
                          &block, &dynamic)) == 6) {
        const cudaOccDeviceProp device = device_of(sm);
        cudaOccFuncAttributes function;
        cudaOccDeviceState state;
        cudaOccResult result;

        function.maxThreadsPerBlock = block;
        function.numRegs = registers;
        function.sharedSizeBytes = (size_t)shared;
        function.partitionedGCConfig = PARTITIONED_GC_OFF;
        function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        function.maxDynamicSharedSizeBytes = device.sharedMemPerBlockOptin;
        function.numBlockBarriers = 1;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state,
                                                    block, (size_t)dynamic))
            return 2;
        if (strcmp(name, last) != 0) printf("%s%s", *last ? "\n" : "", name);
        strcpy(last, name);
        printf("  sm_%d: %d x %d threads, %d%%", sm,
               result.activeBlocksPerMultiprocessor, block,
               100 * result.activeBlocksPerMultiprocessor * block / 2048);
        homeless |= result.activeBlocksPerMultiprocessor == 0;
    }
    printf("\n");
    return count != EOF || !*last ? 2 : homeless;
}
