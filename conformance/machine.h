/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/machine.h - where and when a run was made. */
#ifndef SLM_MACHINE_H
#define SLM_MACHINE_H

typedef struct machine {
    char system[256]; /* "Linux 6.1.0 x86_64"; the machine's own name is left out */
    char cpu[128];    /* "" when unknown                                    */
    int cores;        /* online; 0 when unknown                             */
    char date[24];    /* "2026-01-31T12:00:00Z": of SOURCE_DATE_EPOCH if set; "" when
                       * that is not a number                               */
} machine;

void machine_describe(machine *out);

#endif
