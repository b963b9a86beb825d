/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/new_files.h - what `slmoe new` writes: conformance/template, as text. */
#ifndef SLM_NEW_FILES_H
#define SLM_NEW_FILES_H

typedef struct new_file {
    const char *name; /* NULL after the last */
    const char *text; /* "@NAME@" stands for the name of the project */
} new_file;

extern const new_file new_files[];

#endif
