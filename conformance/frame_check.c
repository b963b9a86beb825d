/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/frame_check.c - poison, and what a call did to the memory of its frame. */
#include "frame.h"

#include <stdlib.h>
#include <string.h>

/* A NaN in binary32 and, doubled, in binary64; its upper half a NaN in bfloat16. */
static const uint32_t POISON_32 = 0x7ff5a5a5u;
static const uint16_t POISON_16 = 0x7ff5u;

/* About 1.23 in every floating type. */
static const uint32_t FINITE_32 = 0x3f9d70a4u;
static const uint16_t FINITE_16 = 0x3f9du;

static void poison(const frame_buffer *buffer, bool finite)
{
    unsigned char *data = buffer->tensor.data;
    const uint32_t wide = finite ? FINITE_32 : POISON_32;
    const uint16_t narrow = finite ? FINITE_16 : POISON_16;

    if (buffer->tensor.dtype == SLM_BF16)
        for (size_t i = 0; i + 2 <= buffer->bytes; i += 2) memcpy(data + i, &narrow, 2);
    else
        for (size_t i = 0; i + 4 <= buffer->bytes; i += 4) memcpy(data + i, &wide, 4);
}

static int is_poison(const frame_buffer *buffer, size_t index)
{
    const size_t size = slm_dtype_size(buffer->tensor.dtype);
    const unsigned char *data = (unsigned char *)buffer->tensor.data + index * size;

    if (size == 2) return memcmp(data, &POISON_16, 2) == 0;
    return memcmp(data, &POISON_32, 4) == 0 &&
           (size == 4 || memcmp(data + 4, &POISON_32, 4) == 0);
}

/* The mask of the call, or NULL. */
static const slm_tensor *mask_of(const call_frame *frame)
{
    const slm_tensor *mask = frame_tensor(frame, "mask");

    return mask && mask->rank ? mask : NULL;
}

int frame_counts(const call_frame *frame, size_t t)
{
    const slm_tensor *mask = mask_of(frame);
    int32_t value;

    /* A mask of the wrong shape is for the door. */
    if (!mask || mask->rank != 1 || t >= mask->shape[0]) return 1;
    memcpy(&value, (const char *)mask->data + t * sizeof value, sizeof value);
    return value != 0;
}

size_t frame_counted(const call_frame *frame)
{
    size_t n = 0;

    if (!mask_of(frame)) return frame->call->n_tokens;
    for (size_t t = 0; t < frame->call->n_tokens; t++)
        n += (size_t)frame_counts(frame, t);
    return n;
}

/* Whether an element belongs to a token that the mask leaves out. */
static bool is_masked(const call_frame *frame, const frame_buffer *buffer, size_t index)
{
    const slm_tensor *tensor = &buffer->tensor;

    return buffer->field && buffer->field->dims[0] == 'T' &&
           !frame_counts(frame, index / (slm_tensor_count(tensor) / tensor->shape[0]));
}

uint64_t frame_fingerprint(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t sum = 0xcbf29ce484222325u;

    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;

        memcpy(&word, at, 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ at[i]) * 0x100000001b3u;
    return sum;
}

void frame_poison(call_frame *frame, bool finite)
{
    for (size_t i = 0; i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];

        if (buffer->output && !buffer->alias &&
            !(buffer->field && buffer->field->role == SLM_ROLE_INOUT))
            poison(buffer, finite);
    }
}

/* An output that was left alone, as the cutoff is at k = n. */
static bool is_all_poison(const frame_buffer *buffer)
{
    const unsigned char *data = buffer->tensor.data;

    if (buffer->field->role == SLM_ROLE_INOUT) return false;
    if (buffer->tensor.dtype == SLM_BF16) {
        for (size_t i = 0; i < buffer->bytes / 2; i++) {
            uint16_t word;

            memcpy(&word, data + 2 * i, 2);
            if (word != POISON_16 && word != FINITE_16) return false;
        }
        return true;
    }
    for (size_t i = 0; i < buffer->bytes / 4; i++) {
        uint32_t word;

        memcpy(&word, data + 4 * i, 4);
        if (word != POISON_32 && word != FINITE_32) return false;
    }
    return true;
}

/* What is hashed of an output. */
static void digest_output(const call_frame *frame, const frame_buffer *buffer,
                          char *out)
{
    const size_t size = slm_dtype_size(buffer->tensor.dtype);
    frame_buffer copy = *buffer;

    if (!mask_of(frame) || buffer->field->dims[0] != 'T') {
        vec_sha256(buffer->tensor.data, buffer->bytes, out);
        return;
    }
    copy.tensor.data = malloc(buffer->bytes + 1);
    if (!copy.tensor.data) abort();
    memcpy(copy.tensor.data, buffer->tensor.data, buffer->bytes);
    for (size_t i = 0; i < buffer->bytes / size; i++) {
        frame_buffer one = copy;

        one.tensor.data = (unsigned char *)copy.tensor.data + i * size;
        one.bytes = size;
        if (is_masked(frame, buffer, i) && is_all_poison(&one)) poison(&one, false);
    }
    vec_sha256(copy.tensor.data, copy.bytes, out);
    free(copy.tensor.data);
}

void frame_digest(const call_frame *frame, char *out)
{
    char joined[FRAME_MAX_BUFFERS * 66] = "";
    char *end = joined;

    for (size_t i = 0; i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];

        if (!buffer->output || !buffer->field || buffer->alias || is_all_poison(buffer))
            continue;
        *end++ = (char)('A' + i);
        digest_output(frame, buffer, end);
        end += 64;
    }
    vec_sha256(joined, (size_t)(end - joined), out);
}

static const frame_buffer *find_buffer(const call_frame *frame, const char *field)
{
    for (size_t i = 0; i < frame->n_buffers; i++)
        if (frame->buffers[i].field &&
            strcmp(frame->buffers[i].field->name, field) == 0)
            return &frame->buffers[i];
    return NULL;
}

int frame_untouched(const call_frame *frame, const char *field)
{
    const frame_buffer *buffer = find_buffer(frame, field);

    if (!buffer || buffer->alias || buffer->field->role == SLM_ROLE_INOUT) return 1;

    const size_t count = slm_tensor_count(&buffer->tensor);

    for (size_t i = 0; i < count; i++)
        if (!is_poison(buffer, i)) return 0;
    return 1;
}

size_t frame_first_poison(const call_frame *frame, const char *field)
{
    const frame_buffer *buffer = find_buffer(frame, field);

    if (!buffer) return 0;

    const size_t count = slm_tensor_count(&buffer->tensor);

    if (buffer->field->role == SLM_ROLE_INOUT) return count;
    for (size_t i = 0; i < count; i++)
        if (is_poison(buffer, i) && !is_masked(frame, buffer, i)) return i;
    return count;
}

size_t frame_first_masked(const call_frame *frame, const char *field)
{
    const frame_buffer *buffer = find_buffer(frame, field);

    if (!buffer || buffer->field->role == SLM_ROLE_INOUT) return SIZE_MAX;

    const size_t count = slm_tensor_count(&buffer->tensor);
    const size_t size = slm_dtype_size(buffer->tensor.dtype);

    if (!mask_of(frame)) return count;
    for (size_t i = 0; i < count; i++) {
        frame_buffer one = *buffer;

        one.tensor.data = (unsigned char *)buffer->tensor.data + i * size;
        one.bytes = size;
        if (is_masked(frame, buffer, i) && !is_all_poison(&one)) return i;
    }
    return count;
}

int frame_inputs_intact(const call_frame *frame, const char **field)
{
    for (size_t i = 0; i < frame->n_buffers; i++) {
        const frame_buffer *buffer = &frame->buffers[i];

        if (buffer->output || buffer->bytes > FRAME_HASH_LIMIT) continue;
        if (frame_fingerprint(buffer->tensor.data, buffer->bytes) !=
            buffer->fingerprint) {
            *field = buffer->field->name;
            return 0;
        }
    }
    return 1;
}

int frame_workspace_intact(const call_frame *frame)
{
    const unsigned char *data = frame->call->workspace;
    const size_t size = frame->call->workspace_size;

    for (size_t i = size; data && i < (size + 63) / 64 * 64; i++) {
        const unsigned char *nan = (const unsigned char *)&POISON_32;
        const unsigned char *finite = (const unsigned char *)&FINITE_32;

        if (data[i] != nan[i % 4] && data[i] != finite[i % 4]) return 0;
    }
    return 1;
}
