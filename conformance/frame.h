/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/frame.h - one call: a case's tensors laid out in memory for an operation.
 *
 * All buffers of a frame lie in one arena, mapped with inaccessible pages around each
 * buffer, its last byte against the guard. Where the arena is a memfd, another process
 * can map it at another address: buffers are known by their offset. */
#ifndef SLM_FRAME_H
#define SLM_FRAME_H

#include "vector.h"

typedef struct frame_buffer {
    const slm_field *field; /* NULL: the workspace                          */
    slm_tensor tensor;      /* data in this process                         */
    size_t offset;          /* of the data in the arena                     */
    size_t home_offset;     /* the same before rows were cut out (hygiene.c)    */
    size_t bytes;
    size_t span;          /* whole pages that hold it, without guards       */
    size_t span_offset;   /* of the first of those pages                    */
    uint64_t fingerprint; /* of an input, when given                        */
    bool output;          /* the callee may write                           */
    bool alias;           /* lies in another buffer's memory                */
    bool absent;          /* the callee is not told of it (frame_hide_taps) */
} frame_buffer;

enum { FRAME_MAX_BUFFERS = 64 };

/* The arguments of one call and the memory behind them. Outputs are filled with poison
 * before the call: NaN in every floating type, far out of range as an integer. */
typedef struct call_frame {
    const slm_op_info *info;
    slm_config config;
    slm_call *call; /* = args */
    void *args;     /* info->args_size bytes */
    slm_weights weights;
    int arena_fd;
    unsigned char *arena;
    bool on_heap; /* not mapped                                              */
    size_t arena_size;
    unsigned views; /* frame_options.views */
    size_t n_buffers;
    frame_buffer buffers[FRAME_MAX_BUFFERS];
} call_frame;

/* Where in its pages a buffer lies. */
typedef enum frame_place {
    FRAME_END,    /* its last byte against the guard behind                 */
    FRAME_START,  /* its first byte against the guard before                */
    FRAME_SHIFTED /* one element past the start of its page                 */
} frame_place;

typedef struct frame_options {
    bool golden;           /* real-valued outputs are binary64 (for ref alone) */
    size_t workspace_size; /* 0: none                                          */
    int arena_fd;          /* an empty memfd that stays the caller's, or -1    */
    frame_place inputs;
    frame_place outputs;
    bool unguarded; /* no guards: cheaper, for callees that we trust           */
    unsigned views; /* 1 .. FRAME_VIEW_SETS: room for frame_spread(), which strides */
} frame_options;

/* Lay out a case. Every output that the operation has for this configuration is
 * present, taps too. Of expert weights from a recipe only the experts that ref chooses
 * are made when the tensor is larger than FRAME_SPARSE elements. Returns 0 and fills
 * `why` (256 bytes) when memory ran out. */
enum { FRAME_SPARSE = 1 << 26 };
int frame_build_as(call_frame *frame, const vec_case *test,
                   const frame_options *options, char *why);

/* The same with every buffer at the end of its pages. */
int frame_build(call_frame *frame, const vec_case *test, bool golden,
                size_t workspace_size, int arena_fd, char *why);
void frame_free(call_frame *frame);

/* Fill every output and the workspace with poison: NaN, or (finite) plausible numbers
 * that no golden value holds. */
void frame_poison(call_frame *frame, bool finite);

/* Make the taps of a mask absent, in the order of their declaration from bit 0 on, and the
 * others present: UINT64_MAX hides all, 0 none. Returns how many there are. */
size_t frame_hide_taps(call_frame *frame, uint64_t hidden);

/* Sets of strides. In the first ones neighbours have different ones; then all are parts of
 * wider matrices, the commonest in use; then inputs have a stride of 0 along each
 * dimension where they repeat themselves, and all else is packed; last, the rows of what
 * has 2 .. 16 lie more than 2^32 elements apart, so that 32 bits of an offset lead
 * elsewhere. Address space of many TiB is reserved for these, of which hardly any becomes
 * memory. */
enum {
    FRAME_VIEW_ROWS = 5,
    FRAME_VIEW_REPEATS,
    FRAME_VIEW_FAR,
    FRAME_VIEW_SETS = FRAME_VIEW_FAR
};

/* Make such views of the tensors, each with its contents; what is large stays packed.
 * Nothing but the call itself understands the frame then. Returns 0 when all stayed as it
 * was, and without memory. */
int frame_spread(call_frame *frame);

/* Undo it. Returns the name of a tensor whose gaps were written to, or NULL. */
const char *frame_gather(call_frame *frame);

/* Bytes that buffer `index` needs once it is spread. */
size_t frame_view_bytes(const call_frame *frame, size_t index);

/* Index of the first element that was written although the mask leaves its token out,
 * or the count. */
size_t frame_first_masked(const call_frame *frame, const char *field);

/* Whether an input may be exchanged for its elements in reverse: all but a ticket and a
 * stamp, which one call leaves for another. Ids of a token stay distinct, a mask counts as
 * many tokens, loads have the same sum. */
bool frame_can_turn(const slm_field *field);

/* SHA-256 over every output, absent ones left out; out holds 65 bytes. Whichever poison
 * lies where the mask leaves a token out, the sum is the same. */
void frame_digest(const call_frame *frame, char *out);

/* The tensor of a field: an argument or, for layer_forward, a weight. NULL when the
 * operation has none of that name; rank 0 when it is absent. */
slm_tensor *frame_tensor(const call_frame *frame, const char *field);

/* 1 when every byte of that output is still poison, or the output is absent. */
int frame_untouched(const call_frame *frame, const char *field);

/* Whether the statistic counts token t: there is no mask, or it says so. And how many of
 * the call's tokens it counts.                                                    Q5 */
int frame_counts(const call_frame *frame, size_t t);
size_t frame_counted(const call_frame *frame);

/* Index of the first element of an output that must be written and is still poison, or
 * the count. Rows of tokens that the mask leaves out need not be written. */
size_t frame_first_poison(const call_frame *frame, const char *field);

/* Sum over the bits of an input, to see a change. Inputs larger than FRAME_HASH_LIMIT
 * bytes are read-only where it matters and not summed. */
enum { FRAME_HASH_LIMIT = 1 << 26 };
uint64_t frame_fingerprint(const void *data, size_t bytes);

/* 1 when the bytes behind the workspace, up to its rounded size, are still poison. */
int frame_workspace_intact(const call_frame *frame);

/* 1 when inputs and weights still have the bits they were given; else 0 and the name
 * of a changed field. */
int frame_inputs_intact(const call_frame *frame, const char **field);

#endif
