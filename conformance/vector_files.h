/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_files.h - the files of a folder of golden vectors. */
#ifndef SLM_VECTOR_FILES_H
#define SLM_VECTOR_FILES_H

#include "vector.h"

typedef enum vec_file_type {
    VEC_FILE_NONE, /* and the error is filled */
    VEC_FILE_REGULAR,
    VEC_FILE_FOLDER
} vec_file_type;

typedef struct vec_file {
    char *path; /* "vectors/select/tie.yaml" */
    char *name; /* "select/tie"              */
} vec_file;

typedef struct vec_files {
    vec_file *file; /* sorted by name (strcmp) */
    size_t n;
    size_t capacity;
} vec_files;

vec_file_type vec_file_kind(const char *path, vec_error *error);

/* Every .yaml file under a folder except in its perf/; names that begin with a dot are
 * passed over. Returns 0 and fills error on failure. */
int vec_files_list(const char *folder, vec_files *files, vec_error *error);
void vec_files_free(vec_files *files);

/* The bytes of a file of at most `limit`, malloc'ed; NULL and error on failure. */
char *vec_file_read(const char *path, size_t limit, size_t *size, vec_error *error);

#endif
