/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/frame_views.c - tensors as views: any stride, either sign, 0, far apart. X2 */
#include "frame.h"

#include <stdlib.h>
#include <string.h>

/* Larger tensors stay packed. */
enum { LARGEST = 1 << 22 };

/* So do tensors of more rows than may lie FAR_APART, which is more elements than 32 bits
 * count. */
enum { FAR_ROWS = 16 };
static const ptrdiff_t FAR_APART = (ptrdiff_t)1 << 32;

typedef enum view_form {
    ROWS_APART,     /* unit stride within a row, a gap behind it                  */
    TRANSPOSED,     /* unit stride in the first dimension                         */
    ELEMENTS_APART, /* no unit stride at all                                      */
    BACKWARDS,      /* negative strides: data is the highest element              */
    VIEW_FORMS,
    REPEATED, /* an input without its repetitions, its memory as large as ever */
    FAR       /* ROWS_APART, and every slice of the first dimension FAR_APART  */
} view_form;

/* How a packed buffer becomes a view. Strides are magnitudes. */
typedef struct view {
    view_form form;
    ptrdiff_t stride[SLM_MAX_RANK];
    size_t count;
    size_t extent; /* elements from the lowest to the highest */
    size_t size;   /* bytes of an element                     */
    size_t room;   /* bytes from the lowest on, to be filled  */
} view;

static view_form form_of(unsigned set, size_t index)
{
    switch (set) {
    case FRAME_VIEW_ROWS:
        return ROWS_APART;
    case FRAME_VIEW_REPEATS:
        return REPEATED;
    case FRAME_VIEW_FAR:
        return FAR;
    default:
        return (view_form)((index + set) % VIEW_FORMS);
    }
}

/* Elements between a row's end and the next row. */
static ptrdiff_t gap_of(view_form form)
{
    if (form == REPEATED) return 0;
    return form == ROWS_APART || form == FAR ? 3 : 1;
}

/* Whether one set of views makes a tensor anything but packed. */
static bool is_viewed(const call_frame *frame, const frame_buffer *buffer,
                      view_form form)
{
    const slm_tensor *tensor = &buffer->tensor;
    const size_t count = slm_tensor_count(tensor);

    if (!frame->views || !buffer->field || tensor->rank == 0) return false;
    if (count == 0 || count > LARGEST) return false;
    if (form == FAR) return tensor->shape[0] > 1 && tensor->shape[0] <= FAR_ROWS;
    return form != REPEATED || !buffer->output;
}

/* Returns 0 for what stays packed. */
static int view_of(const call_frame *frame, size_t index, view *out)
{
    const slm_tensor *tensor = &frame->buffers[index].tensor;
    const uint32_t rank = tensor->rank;
    ptrdiff_t width = 1;

    out->form = form_of(frame->views, index);
    if (!is_viewed(frame, &frame->buffers[index], out->form)) return 0;
    out->count = slm_tensor_count(tensor);
    out->size = slm_dtype_size(tensor->dtype);
    out->extent = 1;
    for (uint32_t done = 0; done < rank; done++) {
        const uint32_t i = out->form == TRANSPOSED ? done : rank - 1 - done;

        if (done == 0)
            out->stride[i] = out->form == ELEMENTS_APART ? 2 : 1;
        else
            out->stride[i] = width + gap_of(out->form);
        width = out->stride[i] * (ptrdiff_t)tensor->shape[i];
        out->extent += (tensor->shape[i] - 1) * (size_t)out->stride[i];
    }
    /* That of REPEATED is the packed tensor's, that of FAR what it is without FAR_APART:
     * an offset that was cut to 32 bits lands there. */
    out->room = (out->form == REPEATED ? out->count : out->extent) * out->size;
    if (out->form == FAR) {
        out->stride[0] += FAR_APART;
        out->extent += (tensor->shape[0] - 1) * (size_t)FAR_APART;
    }
    return 1;
}

size_t frame_view_bytes(const call_frame *frame, size_t index)
{
    view shape;

    return view_of(frame, index, &shape) ? shape.extent * shape.size
                                         : frame->buffers[index].bytes;
}

/* Bytes from the lowest one of the view to element `index`. */
static size_t place_of(const view *shape, const slm_tensor *tensor, size_t index)
{
    size_t at = 0;

    for (uint32_t i = tensor->rank; i-- > 0; index /= tensor->shape[i])
        at += index % tensor->shape[i] * (size_t)shape->stride[i];
    return (shape->form == BACKWARDS ? shape->extent - 1 - at : at) * shape->size;
}

/* Whether all of a packed tensor's slices along dimension `along` have the same bits. */
static bool repeats(const view *shape, const slm_tensor *tensor, uint32_t along,
                    const unsigned char *packed)
{
    const size_t step = (size_t)shape->stride[along];

    for (size_t i = 0; i < shape->count; i++) {
        const size_t slice = i / step % tensor->shape[along];

        if (memcmp(packed + i * shape->size, packed + (i - slice * step) * shape->size,
                   shape->size) != 0)
            return false;
    }
    return tensor->shape[along] > 1;
}

/* A stride of 0 for each dimension along which a packed tensor repeats itself. Returns
 * whether there is one. */
static bool fold(view *shape, const slm_tensor *tensor, const unsigned char *packed)
{
    ptrdiff_t stride[SLM_MAX_RANK] = {0};
    bool any = false;

    shape->extent = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (repeats(shape, tensor, i, packed))
            any = true;
        else
            stride[i] = shape->stride[i];
        shape->extent += (tensor->shape[i] - 1) * (size_t)stride[i];
    }
    memcpy(shape->stride, stride, sizeof stride);
    return any;
}

/* The elements whose place is below `limit`, a number of bytes. Gaps are filled with ones:
 * a NaN, or -1. So is what a view without its repetitions leaves free. */
static void scatter(const view *shape, const slm_tensor *tensor,
                    const unsigned char *packed, unsigned char *low, size_t limit)
{
    memset(low, 0xff, shape->room);
    for (size_t i = 0; i < shape->count; i++) {
        const size_t at = place_of(shape, tensor, i);

        if (at < limit) memcpy(low + at, packed + i * shape->size, shape->size);
    }
}

static void gather(const view *shape, const slm_tensor *tensor,
                   const unsigned char *low, unsigned char *packed)
{
    for (size_t i = 0; i < shape->count; i++)
        memcpy(packed + i * shape->size, low + place_of(shape, tensor, i), shape->size);
}

/* Point the buffer, and the argument, at the view or at the packed elements. */
static void point(call_frame *frame, frame_buffer *buffer, const view *shape,
                  bool spread)
{
    slm_tensor *tensor = &buffer->tensor;
    const int backwards = spread && shape->form == BACKWARDS;

    buffer->bytes = (spread ? shape->extent : shape->count) * shape->size;
    buffer->offset =
        buffer->home_offset + (backwards ? (shape->extent - 1) * shape->size : 0);
    *tensor = slm_tensor_packed(frame->arena + buffer->offset, tensor->dtype,
                                tensor->rank, tensor->shape);
    for (uint32_t i = 0; spread && i < tensor->rank; i++)
        tensor->stride[i] = backwards ? -shape->stride[i] : shape->stride[i];
    *frame_tensor(frame, buffer->field->name) = *tensor;
}

int frame_spread(call_frame *frame)
{
    int spread = 0;

    for (size_t i = 0; i < frame->n_buffers; i++) {
        frame_buffer *buffer = &frame->buffers[i];
        unsigned char *packed;
        view shape;

        if (!view_of(frame, i, &shape)) continue;
        packed = malloc(buffer->bytes);
        if (!packed) return 0;
        memcpy(packed, buffer->tensor.data, buffer->bytes);
        if (shape.form != REPEATED || fold(&shape, &buffer->tensor, packed)) {
            scatter(&shape, &buffer->tensor, packed, buffer->tensor.data, SIZE_MAX);
            point(frame, buffer, &shape, true);
            spread = 1;
        }
        free(packed);
    }
    return spread;
}

const char *frame_gather(call_frame *frame)
{
    const char *touched = NULL;

    for (size_t i = 0; i < frame->n_buffers; i++) {
        frame_buffer *buffer = &frame->buffers[i];
        unsigned char *low = frame->arena + buffer->home_offset, *packed, *clean;
        view shape;

        if (!view_of(frame, i, &shape)) continue;
        if (shape.form == REPEATED)
            memcpy(shape.stride, buffer->tensor.stride, sizeof shape.stride);
        packed = malloc(shape.count * shape.size);
        clean = malloc(shape.room);
        if (!packed || !clean) abort();
        gather(&shape, &buffer->tensor, low, packed);
        scatter(&shape, &buffer->tensor, packed, clean, shape.room);
        if (!touched && memcmp(low, clean, shape.room) != 0)
            touched = buffer->field->name;
        point(frame, buffer, &shape, false);
        memcpy(low, packed, shape.count * shape.size);
        free(clean);
        free(packed);
    }
    return touched;
}
