/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_load.h - from a tree of YAML nodes to a family: the loader inside.
 *
 * Every function returns 1, or 0 after it has filled the error: the first fault ends
 * the load. `what` in the parameters names the place for the message ("in.score"). */
#ifndef SLM_VECTOR_LOAD_H
#define SLM_VECTOR_LOAD_H

#include "yaml_tree.h"

enum {
    LOAD_MAX_CASES = 4096,
    LOAD_MAX_LIST = 64,
    LOAD_MAX_DATA = 4096,     /* values of one `data`                               */
    LOAD_MAX_VALUES = 1 << 26 /* values in memory from one file                     */
};

typedef struct loader {
    const tree_text *text;
    arena *memory; /* of the set */
    vec_error *error;
    size_t n_values; /* in memory so far */
} loader;

/* ---- vector_load.c: faults, keys and words ---- */

__attribute__((format(printf, 3, 4))) int load_fault(loader *ld, const vec_mark *mark,
                                                     const char *what, ...);
int load_no_memory(loader *ld);

/* "expected EXPECTED, got a list" (or a mapping, nothing, 'text') at the node. */
int load_unexpected(loader *ld, const tree_node *node, const char *what,
                    const char *expected);

/* Members of a mapping by a closed list of n names: found[i] belongs to names[i], or is
 * NULL. `what` reads "a case". */
int load_keys(loader *ld, const tree_node *map, const char *what,
              const char *const *names, size_t n, const tree_node **found);

/* "a, b, c", cut after a whole name where it would exceed size. */
void load_join(char *out, size_t size, const char *const *names, size_t n);

/* One line of text for people, not empty. */
int load_line(loader *ld, const tree_node *node, const char *what, char **out);

/* a-z 0-9 - _; with `path`, words joined by slashes. At most `limit` bytes. */
int load_word(loader *ld, const tree_node *node, const char *what, bool path,
              size_t limit, char **out);

/* Index of a plain scalar in a closed list of n names. */
int load_choice(loader *ld, const tree_node *node, const char *what,
                const char *const *names, size_t n, size_t *out);

/* A list of words, or of clauses (R2). */
int load_words(loader *ld, const tree_node *node, const char *what, bool clauses,
               size_t *n, char ***out);

/* A plain decimal integer of 0 .. 2^64 - 1. */
int load_size(loader *ld, const tree_node *node, const char *what, uint64_t *out);

/* Whether it is the plain scalar `word`. */
bool load_is(const tree_node *node, const char *word);

/* ---- vector_config.c ---- */

/* The configuration of a case over that of its family (both nodes may be NULL). *has_T
 * and *has_R tell whether the file gives them; call is then filled. */
int load_config(loader *ld, const tree_node *family, const tree_node *own,
                vec_case *out, bool *has_T, bool *has_R);

/* ---- vector_tensor.c ---- */

/* A tensor of that field as the file has it; its shape is not yet held against the
 * configuration. PENDING has no shape yet. `what` is "in" or "out". */
int load_tensor(loader *ld, const tree_node *node, const slm_field *field, bool output,
                const slm_config *config, vec_tensor *out);

/* "[1, 2]" */
enum { LOAD_SHAPE = 96 };
const char *load_shape_text(char *out, uint32_t rank, const size_t *shape);

/* Number of elements; 0 and a fault when it does not fit. */
int load_count(loader *ld, const vec_mark *mark, const char *what, uint32_t rank,
               const size_t *shape, size_t *count);

/* Room for out->count values. They are counted over the file: a short file must not
 * claim all memory. */
int load_allocate(loader *ld, const tree_node *node, const char *what, vec_tensor *out);

/* ---- vector_words.c ---- */

/* The values of a literal block of hexadecimal words. Preconditions: shape, count and
 * dtype are set; `fit` is the type that a real value must be exact in. */
int load_hex_words(loader *ld, const tree_node *node, const char *what, slm_dtype fit,
                   vec_tensor *out);

/* ---- vector_recipe.c ---- */

/* A recipe whose every value is exact in `fit`. Preconditions as above. */
int load_recipe(loader *ld, const tree_node *node, const char *what, slm_dtype fit,
                vec_tensor *out);

/* ---- vector_args.c ---- */

/* The inputs of a case over those of its family: no more than the operation has. */
int load_inputs(loader *ld, const tree_node *family, const tree_node *own,
                vec_case *out);

/* T and R where the file does not give them. */
int load_call_sizes(loader *ld, const tree_node *map, vec_case *out, bool has_T,
                    bool has_R);

/* That the inputs are complete and agree with the configuration. Not for a case that may
 * be refused for SHAPE: absent arguments and shapes that disagree are its matter. */
int load_check_inputs(loader *ld, const tree_node *own, const vec_case *test);

/* One outcome's expected values. */
int load_outputs(loader *ld, const tree_node *map, const vec_case *test,
                 vec_outcome *out);

/* `alias` of a case. */
int load_alias(loader *ld, const tree_node *map, vec_case *out);

/* ---- vector_case.c ---- */

/* What a family gives its cases; members may be NULL. */
typedef struct load_defaults {
    const tree_node *in;
    const tree_node *config;
    const tree_node *clause;
    const tree_node *kills;
    const tree_node *tags;
} load_defaults;

/* Precondition: family->name is set. */
int load_case(loader *ld, const load_defaults *defaults, const tree_node *map,
              const vec_family *family, vec_case *out);

#endif
