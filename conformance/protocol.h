/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/protocol.h - what slmoe and slmoe-host say to each other.
 *
 * One JSON object a line on two inherited pipes; tensors lie in an inherited memfd, the
 * arena, and are named by offset. spec/protocol.md is the contract. */
#ifndef SLM_PROTOCOL_H
#define SLM_PROTOCOL_H

#include <jansson.h>
#include <slm/backend.h>

#include "frame.h"
#include "stopwatch.h"

enum { PROTOCOL_VERSION = 1, PROTOCOL_LINE = 1 << 20 };

/* Descriptors of the process that holds the backend. */
enum { HOST_REQUEST_FD = 3, HOST_REPLY_FD = 4, HOST_ARENA_FD = 5 };

/* A size of 2^63 or more is its two's complement; an infinity or a NaN is the string
 * "inf", "-inf" or "nan". Reading fills what is missing with zeros and returns 0 when a
 * member is of another kind, or a declared roundoff negative or not finite. */
json_t *protocol_config(const slm_config *config);
int protocol_read_config(const json_t *object, slm_config *config);

json_t *protocol_arithmetic(const slm_arithmetic *arithmetic);
int protocol_read_arithmetic(const json_t *object, slm_arithmetic *arithmetic);

/* {"op", "config", "n_tokens", "n_parts", "arena", "workspace", "tensors": [...]} */
json_t *protocol_frame(const call_frame *frame);

/* Names of the operations that a table offers, and back to a mask of 1u << slm_op. */
json_t *protocol_ops(uint32_t offered);
int protocol_read_ops(const json_t *array, uint32_t *offered);

/* A status by its name; SLM_STATUS_COUNT for an unknown one. */
slm_status protocol_status(const char *name);

/* A text of at most `size` bytes that somebody else wrote: it need not end before that,
 * nor be UTF-8. */
json_t *protocol_text(const char *text, size_t size);

/* Write one line. Takes the reference to `message`. Returns 0 when the other side is
 * gone, or has not read for ten seconds (of a descriptor that does not block). */
int protocol_send(int fd, json_t *message);

/* Lines of a descriptor, with a deadline. */
typedef struct protocol_reader {
    int fd;
    char *line; /* PROTOCOL_LINE bytes */
    size_t used;
} protocol_reader;

int protocol_open(protocol_reader *reader, int fd);
void protocol_close(protocol_reader *reader);

typedef enum protocol_result {
    PROTOCOL_MESSAGE,
    PROTOCOL_END,    /* the other side closed or is gone                   */
    PROTOCOL_LATE,   /* the deadline passed                                */
    PROTOCOL_GARBAGE /* not a JSON object, or longer than a line may be    */
} protocol_result;

/* Read one message; `seconds` 0 does not wait, < 0 waits for ever. The caller owns
 * *message, NULL unless there is one. */
protocol_result protocol_receive(protocol_reader *reader, double seconds,
                                 json_t **message);

int protocol_milliseconds(double seconds);

#endif
