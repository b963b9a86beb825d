/* SPDX-License-Identifier: Apache-2.0 */
/* spec/contract.h - private to spec/: what the checks at the door look at. */
#ifndef SLM_CONTRACT_H
#define SLM_CONTRACT_H

#include <slm/ops.h>

/* Bytes [low, high) that a view may touch, gaps between its elements included. */
typedef struct extent {
    uintptr_t low;
    uintptr_t high;
} extent;

/* One call to be checked: an operation's arguments, or the weights of prepare() (then
 * the operation is SLM_OP_COUNT and the call is empty). */
typedef struct door {
    slm_op op;
    const char *name; /* for messages */
    const slm_field *fields;
    size_t n_fields;
    const slm_config *config;
    const slm_call *call;
    const void *args;
    slm_error *error; /* may be NULL */
} door;

/* How many of an operation's fields the argument struct holds: what a later minor version
 * appended is missing from an older caller's. */
size_t slm_door_fields(const slm_op_info *info, const slm_call *call);

/* The tensor of a field. */
const slm_tensor *slm_door_tensor(const door *at, const slm_field *field);

/* Whether the configuration uses the field: 1 yes, 0 no, -1 cannot be told because the
 * kind of expert is unknown. */
int slm_door_applies(const door *at, const slm_field *field);

/* The sizes that a dimension letter is made of: letters as in slm/ops.h, and F for
 * d_shared. Static storage, "" for '4'. */
const char *slm_door_parts(char letter);

/* The extent of a view. Returns 0 when its bytes, counted once an element or by
 * address, do not fit in the address space. An empty view has an empty extent. */
int slm_door_extent(const slm_tensor *tensor, extent *out);

/* ALIAS: the first output, in order of the fields, that overlaps itself or another
 * argument; then the workspace. Precondition: SHAPE holds. */
slm_status slm_door_alias(const door *at);

/* DOMAIN: members of the configuration in their order, then tensors in theirs.
 * Precondition: SHAPE holds. */
slm_status slm_door_domain(const door *at);

/* Whether the operation computes gradients. */
int slm_door_is_backward(slm_op op);

/* The part of DOMAIN that tensors have. */
slm_status slm_door_values(const door *at);

/* ---- look.c ---- */

/* Element at a row-major index; that of an i64 tensor. Precondition: it is visible. */
const void *slm_door_element(const slm_tensor *tensor, size_t index);
int64_t slm_door_integer(const slm_tensor *tensor, size_t index);

/* Elements that can be looked at: those in host memory. */
size_t slm_door_visible(const slm_tensor *tensor);

/* The mask of a balancing operation; NULL when there is none.                     Q5 */
const slm_tensor *slm_door_mask(const door *at);

/* Whether the statistic counts token t: nothing is asked of one that it leaves out, nor
 * of any where the mask lies out of sight.                                        Q5 */
int slm_door_counts(const slm_tensor *mask, size_t t);

/* How many tokens the statistic counts, as far as can be seen. */
size_t slm_door_counted(const door *at);

/* First element that the test refuses, and its index; NULL when there is none. `mask`
 * may be NULL; else rows of the tensor are tokens. */
const void *slm_door_first(const slm_tensor *tensor, const slm_tensor *mask,
                           int (*refused)(const void *), size_t *index);

/* ---- ops.c ---- */

/* CRC-64/XZ in parts: begin, any number of pieces, end. */
#define SLM_CHECKSUM_BEGIN UINT64_MAX
uint64_t slm_checksum_more(uint64_t rest, const void *data, size_t size);
int64_t slm_checksum_end(uint64_t rest);

#endif
