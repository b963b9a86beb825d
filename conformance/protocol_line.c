/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/protocol_line.c - one JSON object a line, sent and received. */
#include "protocol.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Write a part. Returns how much, 0 when the other side is gone or does not read. */
static size_t write_some(int fd, const char *text, size_t size)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};

    for (;;) {
        const ssize_t n = write(fd, text, size);

        if (n > 0) return (size_t)n;
        if (n < 0 && errno == EINTR) continue;
        if (n == 0 || errno != EAGAIN || poll(&wait, 1, 10000) == 0) return 0;
    }
}

int protocol_send(int fd, json_t *message)
{
    char *text = json_dumps(message, JSON_COMPACT | JSON_REAL_PRECISION(17));
    size_t left = text ? strlen(text) : 0;
    const char *at = text;
    int ok = text != NULL;

    json_decref(message);
    if (text) text[left++] = '\n'; /* over the terminating zero */
    while (ok && left) {
        const size_t n = write_some(fd, at, left);

        ok = n > 0;
        at += n;
        left -= n;
    }
    free(text);
    return ok;
}

int protocol_open(protocol_reader *reader, int fd)
{
    reader->fd = fd;
    reader->used = 0;
    reader->line = malloc(PROTOCOL_LINE);
    return reader->line != NULL;
}

void protocol_close(protocol_reader *reader)
{
    free(reader->line);
    reader->line = NULL;
}

int protocol_milliseconds(double seconds)
{
    if (seconds <= 0) return 0;
    return seconds < 1e6 ? (int)(seconds * 1e3) + 1 : 1000000000;
}

/* Take the first whole line out of the buffer, if there is one. */
static int take_line(protocol_reader *reader, json_t **message)
{
    char *end = memchr(reader->line, '\n', reader->used);

    if (!end) return 0;

    const size_t length = (size_t)(end - reader->line);

    *message = json_loadb(reader->line, length, JSON_REJECT_DUPLICATES, NULL);
    reader->used -= length + 1;
    memmove(reader->line, end + 1, reader->used);
    return 1;
}

protocol_result protocol_receive(protocol_reader *reader, double seconds,
                                 json_t **message)
{
    const double deadline = stopwatch_now() + seconds;

    *message = NULL;
    if (reader->fd < 0) return PROTOCOL_END;
    while (!take_line(reader, message)) {
        struct pollfd wait = {.fd = reader->fd, .events = POLLIN};
        const double left = deadline - stopwatch_now();
        int ready;
        ssize_t n;

        if (reader->used == PROTOCOL_LINE) return PROTOCOL_GARBAGE;
        ready = poll(&wait, 1, seconds < 0 ? -1 : protocol_milliseconds(left));
        if (ready < 0 && errno != EINTR) return PROTOCOL_END;
        if (ready <= 0 && seconds >= 0 && left <= 0) return PROTOCOL_LATE;
        if (ready <= 0) continue;
        n = read(reader->fd, reader->line + reader->used, PROTOCOL_LINE - reader->used);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) return PROTOCOL_END;
        reader->used += (size_t)n;
    }
    if (json_is_object(*message)) return PROTOCOL_MESSAGE;
    json_decref(*message);
    *message = NULL;
    return PROTOCOL_GARBAGE;
}
