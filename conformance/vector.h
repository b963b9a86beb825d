/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector.h - golden vectors in memory, and the strict loader.
 *
 * The file format is spec/vectors.md. Everything loaded belongs to a vec_set and lives
 * until vec_free(). */
#ifndef SLM_VECTOR_H
#define SLM_VECTOR_H

#include <stdbool.h>
#include <stdio.h>

#include <slm/ops.h>

typedef enum vec_provenance {
    VEC_HAND,
    VEC_DOCUMENT,
    VEC_ORACLE,
    VEC_REF,
    VEC_PUBLIC_REPORT,
    VEC_PROVENANCES
} vec_provenance;

typedef enum vec_tier { VEC_SMOKE, VEC_QUICK, VEC_FULL, VEC_TIERS } vec_tier;

typedef enum vec_form {
    VEC_DATA,   /* a flow list of values                                    */
    VEC_WORDS,  /* a literal block of hexadecimal words                     */
    VEC_FILL,   /* one value everywhere                                     */
    VEC_GEN,    /* a recipe: values are made on demand                      */
    VEC_DIGEST, /* expected values known by their SHA-256 alone             */
    VEC_PENDING /* expected values that `gen` has not yet written           */
} vec_form;

/* Place of a node in its file: line and column count from 1, bytes from 0. */
typedef struct vec_mark {
    size_t line;
    size_t column;
    size_t byte;
} vec_mark;

/* value(i) = add + scale * j, j an integer of |j| < 2^bits from a counter-based
 * generator over (seed, tensor name, i): exact, without libm. See seeded.h. */
typedef struct vec_recipe {
    uint64_t seed;
    unsigned bits; /* 1..23 */
    double scale;  /* a power of two */
    double add;    /* 0 unless given */
} vec_recipe;

typedef struct vec_tensor {
    const slm_field *field; /* name, role, kind; static storage             */
    vec_form form;
    slm_dtype dtype; /* of values: inputs f32 (real), i32, i64; outputs golden dtype */
    uint32_t rank;
    size_t shape[SLM_MAX_RANK];
    size_t count;
    void *values;       /* count elements; NULL for GEN, DIGEST, PENDING    */
    unsigned char *any; /* NULL, or 1 where the file says `any`             */
    vec_recipe recipe;
    char sha256[65]; /* "" when the file gives none                         */
    vec_mark begin;  /* the value node, for messages and for `gen`          */
    vec_mark end;
    size_t indent;    /* spaces before the tensor's key                        */
    size_t after_key; /* byte after the key's colon: vec_format()'s text replaces
                       * the bytes from here to end.byte                    */
} vec_tensor;

/* What must come out. Several outcomes are the `either` of the spec. */
typedef struct vec_outcome {
    slm_status status;
    char field[SLM_NAME]; /* of the error; "" when not given                */
    bool has_index;
    size_t index; /* of the error, when has_index                           */
    size_t n_out;
    vec_tensor *out;
    vec_mark mark;
} vec_outcome;

typedef struct vec_family vec_family;

typedef struct vec_case {
    const vec_family *family;
    char *id;   /* whole: "select/bias-chooses-only/thirds"                 */
    char *note; /* one line for people, may be NULL                         */
    slm_op op;
    slm_config config;
    slm_call call; /* n_tokens, n_parts                                     */
    const char *profile;
    vec_provenance provenance;
    char *source; /* document and place, or link; may be NULL               */
    vec_tier tier;
    size_t n_clauses; /* the family's, or the case's own                    */
    char **clauses;
    size_t n_kills;
    char **kills;
    size_t n_tags;
    char **tags;
    size_t n_in;
    vec_tensor *in;
    const slm_field *alias_output; /* NULL, or an output that ...           */
    const slm_field *alias_with;   /* ... starts at this argument's memory  */
    size_t n_outcomes;
    vec_outcome *outcomes;
    char *superseded_by; /* NULL when current                               */
    vec_mark mark;
} vec_case;

struct vec_family {
    char *path; /* as opened                                                */
    char *name; /* "select/bias-chooses-only"                               */
    char *about;
    size_t n_cases;
    vec_case *cases;
    char sha256[65]; /* of the file                                         */
};

typedef struct vec_set {
    size_t n_families;
    vec_family *families; /* sorted by name                                 */
    size_t n_cases;
    char sha256[65]; /* over a line "DIGEST  NAME" for each family, in order */
} vec_set;

typedef struct vec_error {
    char path[512];
    vec_mark mark;    /* line 0: the file as a whole                        */
    char what[512];   /* "select: out.weight: shape [1, 2] needs 2 values, got 3" */
    char remedy[160]; /* what to do, may be ""                              */
} vec_error;

/* Load every .yaml under a folder (or one file). Returns NULL and fills error at the
 * first fault; nothing is kept then. The folder perf/ is not read. */
vec_set *vec_load(const char *path, vec_error *error);

/* Load one family from memory. `name` stands for the path in messages; the family's
 * declared name is taken as it is. */
vec_set *vec_load_memory(const char *name, const char *data, size_t size,
                         vec_error *error);

void vec_free(vec_set *set); /* accepts NULL */

/* Make every recipe that has a digest and compare. Returns 1, or 0 and the first
 * difference. Loading does not do this because it costs seconds. */
int vec_verify(const vec_set *set, vec_error *error);

/* Values of a tensor, made or copied into `out` (count elements of tensor->dtype).
 * Precondition: form is not DIGEST or PENDING. */
void vec_values(const vec_tensor *tensor, void *out);

/* Elements first..first+n-1 only. */
void vec_values_range(const vec_tensor *tensor, size_t first, size_t n, void *out);

/* Tensor of that field name in an array, or NULL. */
const vec_tensor *vec_find(const vec_tensor *tensors, size_t n, const char *name);

const char *vec_provenance_name(vec_provenance provenance);
const char *vec_tier_name(vec_tier tier);

/* Write golden values as what follows a key and its colon: a flow list up to 64
 * elements, else a literal block of words, above 65536 elements a digest. It begins
 * with a space or a line break and has no final line break. `indent` is the number of
 * spaces before the key. dtype is not SLM_BF16. The result is malloc'ed; NULL when
 * memory ran out. */
char *vec_format(slm_dtype dtype, uint32_t rank, const size_t *shape,
                 const void *values, size_t indent);

/* Lower-case hexadecimal SHA-256; out holds 65 bytes. */
void vec_sha256(const void *data, size_t size, char *out);

#endif
