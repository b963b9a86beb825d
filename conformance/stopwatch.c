/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/stopwatch.c - seconds that only go forward. */
#include "stopwatch.h"

#include <time.h>

double stopwatch_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}
