/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/plugin_device.c - tensors of a call in a backend's own device memory. */
#include "plugin_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANARY = 4096, LINE = 64, PIECES = 64 };

/* Bytes of one copy; what is larger than COMPARED is no longer compared. */
enum { CHUNK = 1 << 20, COMPARED = 1 << 26 };

/* A tensor or the workspace. Its block of device memory: canary and up to a line more,
 * the bytes, canary. */
typedef struct piece {
    const slm_field *field; /* NULL: the workspace                     */
    slm_tensor on_host;     /* as it was in the struct                 */
    unsigned char *host;    /* its lowest byte                         */
    size_t bytes;           /* from the lowest to the highest, gaps included */
    unsigned char *block;   /* device                                  */
    size_t begin;           /* of the bytes in the block               */
    size_t end;
    size_t total; /* of the block                            */
    int output;
} piece;

struct plugin_device {
    const slm_backend *table;
    size_t canary;
    unsigned char *chunk; /* CHUNK bytes of host memory */
    size_t n;
    piece pieces[PIECES];
};

int device_is_wanted(const slm_backend *table)
{
    return table->alloc && table->free && table->copy && table->sync;
}

static unsigned char canary_at(size_t index)
{
    return (unsigned char)(0xc5 ^ index * 0x3d);
}

static const char *name_of(const piece *at)
{
    return at->field ? at->field->name : "the workspace";
}

/* Lowest byte and number of bytes of a view. */
static void measure(piece *at)
{
    const slm_tensor *view = &at->on_host;
    const ptrdiff_t size = (ptrdiff_t)slm_dtype_size(view->dtype);
    ptrdiff_t below = 0, above = size;

    if (slm_tensor_count(view) == 0) return;
    for (uint32_t i = 0; i < view->rank; i++) {
        const ptrdiff_t reach =
            (ptrdiff_t)(view->shape[i] - 1) * view->stride[i] * size;

        if (reach < 0)
            below += reach;
        else
            above += reach;
    }
    at->host = (unsigned char *)view->data + below;
    at->bytes = (size_t)(above - below);
}

/* How much of [first, first + count) lies before `limit`. */
static size_t part_before(size_t limit, size_t first, size_t count)
{
    if (limit <= first) return 0;
    return limit - first < count ? limit - first : count;
}

/* What bytes [first, first + count) of a block hold at first. */
static void draw(const piece *at, size_t first, size_t count, unsigned char *to)
{
    const size_t before = part_before(at->begin, first, count);
    const size_t inside = part_before(at->end, first, count);

    for (size_t i = 0; i < before; i++) to[i] = canary_at(first + i);
    if (inside > before)
        memcpy(to + before, at->host + (first + before - at->begin), inside - before);
    for (size_t i = inside; i < count; i++) to[i] = canary_at(first + i);
}

static int fill(const plugin_device *device, const piece *at)
{
    for (size_t first = 0; first < at->total; first += CHUNK) {
        const size_t count = part_before(at->total, first, CHUNK);

        draw(at, first, count, device->chunk);
        if (device->table->copy(at->block + first, device->chunk, count) != 0) return 0;
    }
    return 1;
}

/* Device memory for a piece whose host bytes are known. The distance from a line is that
 * on the host, so that what is misaligned there is misaligned here. */
static int acquire(plugin_device *device, piece *at)
{
    const slm_backend *table = device->table;
    const size_t around = 2 * device->canary + at->bytes;
    size_t shift = ((uintptr_t)at->host - device->canary) % LINE;

    at->block = table->alloc(around + shift);
    if (at->block && (uintptr_t)at->block % LINE) {
        table->free(at->block);
        at->block = table->alloc(around + LINE);
        shift = ((uintptr_t)at->host - (uintptr_t)(at->block + device->canary)) % LINE;
    }
    if (!at->block) return 0;
    at->begin = device->canary + shift;
    at->end = at->begin + at->bytes;
    at->total = at->end + device->canary;
    return fill(device, at);
}

/* Views of more bytes, most of them gaps, are not copied. */
static const size_t GAPS_COPIED = (size_t)1 << 32;

static int is_mostly_gaps(const piece *at)
{
    const slm_tensor *view = &at->on_host;

    return at->bytes > GAPS_COPIED &&
           at->bytes / 2 > slm_tensor_count(view) * slm_dtype_size(view->dtype);
}

static int place(plugin_device *device, const slm_field *field, slm_tensor *view)
{
    piece *at = &device->pieces[device->n++];

    *at = (piece){.field = field, .on_host = *view};
    at->output = field->role == SLM_ROLE_OUT || field->role == SLM_ROLE_TAP ||
                 field->role == SLM_ROLE_INOUT;
    measure(at);
    view->space = SLM_DEVICE;
    view->data = NULL;
    if (at->bytes == 0) return 1;
    if (is_mostly_gaps(at) || !acquire(device, at)) return 0;
    view->data = at->block + at->begin + ((unsigned char *)at->on_host.data - at->host);
    return 1;
}

static int place_workspace(plugin_device *device, slm_call *call)
{
    piece *at = &device->pieces[device->n];

    if (call->workspace_size == 0) return 1;
    *at = (piece){.host = call->workspace, .bytes = call->workspace_size, .output = 1};
    device->n++;
    if (!acquire(device, at)) return 0;
    call->workspace = at->block + at->begin;
    return 1;
}

static const slm_field *fields_of(slm_op op, size_t *n)
{
    if (op == SLM_OP_COUNT) return slm_weight_fields(n);
    *n = slm_op_describe(op)->n_fields;
    return slm_op_describe(op)->fields;
}

static slm_tensor *tensor_of(void *args, const slm_field *field)
{
    return (slm_tensor *)(void *)((char *)args + field->offset);
}

plugin_device *device_place(const slm_backend *table, slm_op op, void *args)
{
    plugin_device *device = calloc(1, sizeof *device);
    const char *canary = getenv("SLM_CANARY");
    size_t n;
    const slm_field *fields = fields_of(op, &n);
    int ok;

    if (!device) return NULL;
    device->table = table;
    device->canary = canary && strcmp(canary, "0") == 0 ? 0 : CANARY;
    device->chunk = malloc(CHUNK);
    ok = device->chunk != NULL;
    for (size_t i = 0; ok && i < n; i++)
        if (tensor_of(args, &fields[i])->rank)
            ok = place(device, &fields[i], tensor_of(args, &fields[i]));
    if (ok && op != SLM_OP_COUNT) ok = place_workspace(device, args);
    if (ok) return device;
    device_release(device, args);
    return NULL;
}

/* Canary bytes of [first, first + count), which `found` holds. */
static int check_canaries(const piece *at, size_t first, size_t count,
                          const unsigned char *found, char *why)
{
    const size_t before = part_before(at->begin, first, count);

    for (size_t i = before; i-- > 0;) { /* the nearest one */
        if (found[i] == canary_at(first + i)) continue;
        snprintf(why, DEVICE_WHY, "wrote %zu bytes before %s in device memory",
                 at->begin - first - i, name_of(at));
        return 0;
    }
    for (size_t i = part_before(at->end, first, count); i < count; i++) {
        if (found[i] == canary_at(first + i)) continue;
        snprintf(why, DEVICE_WHY, "wrote %zu bytes past the end of %s in device memory",
                 first + i - at->end, name_of(at));
        return 0;
    }
    return 1;
}

/* The bytes of an output are taken, those of an input compared. */
static int check_bytes(const piece *at, size_t first, size_t count,
                       const unsigned char *found, char *why)
{
    const size_t before = part_before(at->begin, first, count);
    const size_t inside = part_before(at->end, first, count);
    unsigned char *host = at->host + (first + before - at->begin);

    if (inside <= before) return 1;
    if (at->output) {
        memcpy(host, found + before, inside - before);
    } else if (memcmp(host, found + before, inside - before) != 0) {
        snprintf(why, DEVICE_WHY, "wrote into %s, which is an input, in device memory",
                 name_of(at));
        return 0;
    }
    return 1;
}

/* Bring bytes [first, end) of a block back. */
static int settle(const plugin_device *device, const piece *at, size_t first,
                  size_t end, char *why)
{
    for (; first < end; first += CHUNK) {
        const size_t count = part_before(end, first, CHUNK);

        if (device->table->copy(device->chunk, at->block + first, count) != 0) {
            snprintf(why, DEVICE_WHY, "copy() from device memory failed");
            return 0;
        }
        if (!check_canaries(at, first, count, device->chunk, why) ||
            !check_bytes(at, first, count, device->chunk, why))
            return 0;
    }
    return 1;
}

int device_collect(const plugin_device *device, void *stream, char *why)
{
    if (device->table->sync(stream) != 0) {
        snprintf(why, DEVICE_WHY, "sync() failed: the device did not do its work");
        return 0;
    }
    for (size_t i = 0; i < device->n; i++) {
        const piece *at = &device->pieces[i];
        const int edges = !at->output && at->bytes > COMPARED;

        if (!at->block) continue;
        if (!settle(device, at, 0, edges ? at->begin : at->total, why) ||
            (edges && !settle(device, at, at->end, at->total, why)))
            return 0;
    }
    return 1;
}

void device_release(plugin_device *device, void *args)
{
    if (!device) return;
    for (size_t i = 0; i < device->n; i++) {
        const piece *at = &device->pieces[i];

        if (at->block) device->table->free(at->block);
        if (!args) continue;
        if (at->field)
            *tensor_of(args, at->field) = at->on_host;
        else
            ((slm_call *)args)->workspace = at->host;
    }
    free(device->chunk);
    free(device);
}
