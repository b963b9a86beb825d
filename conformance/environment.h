/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/environment.h - what must stand in the environment before libraries load. */
#ifndef SLM_ENVIRONMENT_H
#define SLM_ENVIRONMENT_H

/* The variable that carries what was done, for people, into the new execution. */
#define ENVIRONMENT_NOTE "SLM_HOST_NOTE"

/* OpenBLAS reads its core type when it is loaded, and older ones take a new CPU for an
 * old one. Where that happened and OPENBLAS_CORETYPE is not set, sets it and the note and
 * executes the program anew, once; else returns. */
void environment_prepare(char **argv);

#endif
