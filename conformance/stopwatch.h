/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/stopwatch.h - seconds that only go forward. */
#ifndef SLM_STOPWATCH_H
#define SLM_STOPWATCH_H

/* Seconds since some moment in the past, whatever is done to the clock meanwhile. */
double stopwatch_now(void);

#endif
