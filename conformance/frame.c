/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/frame.c - one call: a case's tensors laid out in guarded memory. */
#include "frame.h"
#include "vector_fill.h"

#include <ref.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Buffers lie in whole pages of a guarded arena, in whole cache lines of another. */
enum { PAGE = 4096, LINE = 64 };

static int is_output(const slm_field *field)
{
    return field->role == SLM_ROLE_OUT || field->role == SLM_ROLE_TAP ||
           field->role == SLM_ROLE_INOUT;
}

/* Elements first .. first + n - 1 of an input where they belong in the buffer. */
static void give(const vec_tensor *source, frame_buffer *buffer, size_t first, size_t n)
{
    const slm_dtype dtype = buffer->tensor.dtype;

    vec_fill(source, dtype, first, n,
             (char *)buffer->tensor.data + first * slm_dtype_size(dtype));
}

static int is_sparse(const vec_tensor *source)
{
    return source && source->form == VEC_GEN && source->rank == 3 &&
           source->count > FRAME_SPARSE && source->dtype == SLM_F32;
}

/* `bytes` is the buffer's room, at least its bytes. */
static void place(frame_buffer *buffer, size_t bytes, frame_place where, size_t unit,
                  size_t *end)
{
    const size_t shift = slm_dtype_size(buffer->tensor.dtype);

    *end += unit;
    buffer->span = (bytes + shift + unit - 1) / unit * unit;
    buffer->span_offset = *end;
    if (!buffer->field || where == FRAME_START)
        buffer->offset = *end;
    else if (where == FRAME_SHIFTED)
        buffer->offset = *end + shift;
    else
        buffer->offset = *end + buffer->span - bytes;
    /* The workspace is aligned to 64 bytes and a multiple of that long. */
    if (!buffer->field) buffer->offset += buffer->span - buffer->bytes;
    buffer->home_offset = buffer->offset;
    *end += buffer->span;
}

static frame_buffer *add_buffer(call_frame *frame, const slm_field *field)
{
    frame_buffer *buffer = &frame->buffers[frame->n_buffers++];

    if (frame->n_buffers > FRAME_MAX_BUFFERS) abort();
    memset(buffer, 0, sizeof *buffer);
    buffer->field = field;
    buffer->output = !field || is_output(field);
    return buffer;
}

/* Describe the tensor of a field: the case's own shape for inputs (a case to be refused
 * may disagree with its configuration), the configuration's for outputs. */
static int describe(call_frame *frame, const vec_case *test, const slm_field *field,
                    bool golden)
{
    const vec_tensor *source = vec_find(test->in, test->n_in, field->name);
    const slm_dtype dtype = golden && is_output(field)
                                ? slm_field_golden_dtype(field)
                                : slm_field_dtype(field, &frame->config);
    size_t shape[SLM_MAX_RANK];
    uint32_t rank = (uint32_t)strlen(field->dims);

    if (!slm_field_applies(field, &frame->config)) return 1;
    if (source) {
        rank = source->rank;
        memcpy(shape, source->shape, sizeof shape);
    } else if (is_output(field)) {
        for (uint32_t i = 0; i < rank; i++)
            if (!slm_dim(&frame->config, frame->call, field->dims[i], &shape[i]))
                return 1;
    } else {
        return 1;
    }

    size_t bytes = slm_dtype_size(dtype);

    for (uint32_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(bytes, shape[i], &bytes) || bytes >> 46) return 0;

    frame_buffer *buffer = add_buffer(frame, field);

    buffer->tensor = slm_tensor_packed(NULL, dtype, rank, shape);
    buffer->bytes = bytes;
    return 1;
}

static slm_tensor *slot(const call_frame *frame, const slm_field *field)
{
    for (size_t i = 0; i < frame->info->n_fields; i++)
        if (&frame->info->fields[i] == field)
            return (slm_tensor *)((char *)frame->args + field->offset);
    return (slm_tensor *)((char *)(uintptr_t)&frame->weights + field->offset);
}

/* An arena of more bytes is nearly all holes. */
static const size_t HOLES = (size_t)1 << 37;

/* Everything out of reach but the spans. */
static int map_guarded(call_frame *frame)
{
    const int kind = frame->arena_fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;

    if (frame->arena_fd >= 0 && ftruncate(frame->arena_fd, (off_t)frame->arena_size))
        return 0;
    frame->arena = mmap(NULL, frame->arena_size, PROT_NONE, kind | MAP_NORESERVE,
                        frame->arena_fd, 0);
    if (frame->arena == MAP_FAILED) return 0;
    if (frame->arena_size > HOLES) {
        /* A touched byte shall cost a page, and a core file not be written for hours. */
        madvise(frame->arena, frame->arena_size, MADV_NOHUGEPAGE);
        madvise(frame->arena, frame->arena_size, MADV_DONTDUMP);
    }
    for (size_t i = 0; i < frame->n_buffers; i++)
        if (mprotect(frame->arena + frame->buffers[i].span_offset,
                     frame->buffers[i].span, PROT_READ | PROT_WRITE))
            return 0;
    return 1;
}

/* Larger frames are mapped in any case: what nobody touches then costs nothing. */
enum { HEAP_LIMIT = 1 << 25 };

static int map_arena(call_frame *frame, const frame_options *options)
{
    size_t end = 0, bytes = 0;

    if (options->workspace_size) {
        frame_buffer *buffer = add_buffer(frame, NULL);
        const size_t rounded = (options->workspace_size + 63) / 64 * 64;

        buffer->tensor = slm_tensor_packed(NULL, SLM_I32, 1, &(size_t){rounded / 4});
        buffer->bytes = rounded;
    }
    for (size_t i = 0; i < frame->n_buffers; i++) bytes += frame_view_bytes(frame, i);
    frame->on_heap = options->unguarded && bytes <= HEAP_LIMIT;
    for (size_t i = 0; i < frame->n_buffers; i++)
        place(&frame->buffers[i], frame_view_bytes(frame, i),
              frame->buffers[i].output ? options->outputs : options->inputs,
              frame->on_heap ? LINE : PAGE, &end);
    frame->arena_size = end + PAGE;
    if (frame->on_heap) {
        frame->arena =
            aligned_alloc(LINE, (frame->arena_size + LINE - 1) / LINE * LINE);
        if (!frame->arena) return 0;
        memset(frame->arena, 0, frame->arena_size);
    } else if (!map_guarded(frame)) {
        return 0;
    }
    for (size_t i = 0; i < frame->n_buffers; i++)
        frame->buffers[i].tensor.data = frame->arena + frame->buffers[i].offset;
    return 1;
}

/* Tokens that choose MANY times as many experts as there are leave hardly one out. */
enum { MANY = 8 };

/* Which experts the case's tokens choose, by ref: 1 in chosen[e]. */
static int find_chosen(const call_frame *frame, unsigned char *chosen)
{
    const slm_layer_forward_args *layer = frame->args;
    const size_t count = frame->call->n_tokens * frame->config.top_k;
    const size_t shape[] = {frame->call->n_tokens, frame->config.top_k};
    const slm_backend *ref = slm_ref_backend();
    int32_t *ids = malloc(count * sizeof *ids + 1);
    double *weight = malloc(count * sizeof *weight + 1);
    slm_handle *handle = NULL;
    slm_route_args route = {.call = *frame->call,
                            .x = layer->x,
                            .w_router = frame->weights.w_router,
                            .bias = layer->bias,
                            .ids = slm_tensor_packed(ids, SLM_I32, 2, shape),
                            .weight = slm_tensor_packed(weight, SLM_F64, 2, shape)};
    int ok = ids && weight && ref->open(&frame->config, &handle, NULL) == SLM_OK;

    route.call.struct_size = sizeof route;
    ok = ok && ref->ops->route(handle, &route, NULL) == SLM_OK;
    for (size_t i = 0; ok && i < count; i++) chosen[ids[i]] = 1;
    if (handle) ref->close(handle);
    free(weight);
    free(ids);
    return ok;
}

static int give_sparse(call_frame *frame, const vec_case *test)
{
    const size_t n = frame->config.n_experts;
    const int many = frame->call->n_tokens * frame->config.top_k / MANY >= n;
    unsigned char *chosen = NULL;
    int ok = 1;

    for (size_t i = 0; ok && i < frame->n_buffers; i++) {
        frame_buffer *buffer = &frame->buffers[i];
        const vec_tensor *source =
            buffer->field ? vec_find(test->in, test->n_in, buffer->field->name) : NULL;
        size_t slice;

        if (!is_sparse(source)) continue;
        if (!chosen) {
            chosen = malloc(n + 1);
            if (chosen) memset(chosen, many, n);
            ok = chosen && (many || find_chosen(frame, chosen));
        }
        slice = source->count / source->shape[0];
        for (size_t e = 0; ok && e < source->shape[0]; e++)
            if (chosen[e]) give(source, buffer, e * slice, slice);
    }
    free(chosen);
    return ok;
}

static void lay_alias(call_frame *frame, const vec_case *test)
{
    frame_buffer *with = NULL, *output = NULL;

    for (size_t i = 0; i < frame->n_buffers; i++) {
        if (frame->buffers[i].field == test->alias_with) with = &frame->buffers[i];
        if (frame->buffers[i].field == test->alias_output) output = &frame->buffers[i];
    }
    if (!with || !output) return;
    output->tensor.data = with->tensor.data;
    output->offset = output->home_offset = with->offset;
    output->alias = true;
}

int frame_build_as(call_frame *frame, const vec_case *test,
                   const frame_options *options, char *why)
{
    const bool golden = options->golden;
    const size_t workspace_size = options->workspace_size;
    const int arena_fd = options->arena_fd;
    size_t n_weights;
    const slm_field *weights = slm_weight_fields(&n_weights);

    memset(frame, 0, sizeof *frame);
    frame->arena_fd = arena_fd;
    frame->info = slm_op_describe(test->op);
    frame->config = test->config;
    frame->args = calloc(1, frame->info->args_size);
    if (!frame->args) goto fail;
    frame->call = frame->args;
    *frame->call = test->call;
    frame->call->struct_size = frame->info->args_size;
    frame->views = options->views;
    frame->weights.struct_size = sizeof frame->weights;
    for (size_t i = 0; i < frame->info->n_fields; i++)
        if (!describe(frame, test, &frame->info->fields[i], golden)) goto fail;
    for (size_t i = 0; frame->info->prepared && i < n_weights; i++)
        if (!describe(frame, test, &weights[i], golden)) goto fail;
    if (!map_arena(frame, options)) goto fail;
    for (size_t i = 0; i < frame->n_buffers; i++) {
        frame_buffer *buffer = &frame->buffers[i];
        const vec_tensor *source;

        if (!buffer->field) continue;
        source = vec_find(test->in, test->n_in, buffer->field->name);
        if (source && !is_sparse(source)) give(source, buffer, 0, source->count);
        *slot(frame, buffer->field) = buffer->tensor;
    }
    if (!give_sparse(frame, test)) goto fail;
    if (test->alias_output) lay_alias(frame, test);
    for (size_t i = 0; i < frame->n_buffers; i++) {
        frame_buffer *buffer = &frame->buffers[i];

        if (buffer->field)
            *slot(frame, buffer->field) = buffer->tensor;
        else {
            frame->call->workspace = buffer->tensor.data;
            frame->call->workspace_size = workspace_size;
        }
        if (!buffer->output && buffer->bytes <= FRAME_HASH_LIMIT)
            buffer->fingerprint = frame_fingerprint(buffer->tensor.data, buffer->bytes);
    }
    frame_poison(frame, false);
    return 1;
fail:
    snprintf(why, 256, "%s: not enough memory for the case's tensors", test->id);
    frame_free(frame);
    return 0;
}

size_t frame_hide_taps(call_frame *frame, uint64_t hidden)
{
    size_t n = 0;

    for (size_t i = 0; i < frame->n_buffers; i++) {
        frame_buffer *buffer = &frame->buffers[i];

        if (!buffer->field || buffer->field->role != SLM_ROLE_TAP) continue;
        buffer->absent = hidden >> n & 1;
        *slot(frame, buffer->field) = buffer->absent ? (slm_tensor){0} : buffer->tensor;
        n++;
    }
    return n;
}

bool frame_can_turn(const slm_field *field)
{
    return (field->role == SLM_ROLE_IN || field->role == SLM_ROLE_OPTIONAL) &&
           strcmp(field->name, "ticket") != 0 && strcmp(field->name, "stamp") != 0;
}

int frame_build(call_frame *frame, const vec_case *test, bool golden,
                size_t workspace_size, int arena_fd, char *why)
{
    const frame_options options = {
        .golden = golden, .workspace_size = workspace_size, .arena_fd = arena_fd};

    return frame_build_as(frame, test, &options, why);
}

void frame_free(call_frame *frame)
{
    if (frame->on_heap)
        free(frame->arena);
    else if (frame->arena && frame->arena != MAP_FAILED)
        munmap(frame->arena, frame->arena_size);
    /* An arena of the caller's is emptied: its pages go back, the next is all zeros. */
    if (frame->arena_fd >= 0 && ftruncate(frame->arena_fd, 0)) abort();
    free(frame->args);
    memset(frame, 0, sizeof *frame);
    frame->arena_fd = -1;
}

slm_tensor *frame_tensor(const call_frame *frame, const char *field)
{
    size_t n_weights;
    const slm_field *weights = slm_weight_fields(&n_weights);

    for (size_t i = 0; i < frame->info->n_fields; i++)
        if (strcmp(frame->info->fields[i].name, field) == 0)
            return slot(frame, &frame->info->fields[i]);
    for (size_t i = 0; frame->info->prepared && i < n_weights; i++)
        if (strcmp(weights[i].name, field) == 0) return slot(frame, &weights[i]);
    return NULL;
}
