/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/host_memory.c - the arena in a host: mapped, guarded, read as arguments. */
#include "host_memory.h"
#include "host_fault.h"
#include "protocol.h"

#include <string.h>
#include <sys/mman.h>

static size_t get_size(const json_t *object, const char *key)
{
    return (size_t)json_integer_value(json_object_get(object, key));
}

static int allow(const host_memory *memory, const json_t *object, int protection)
{
    const size_t offset = get_size(object, "span_offset");
    const size_t span = get_size(object, "span");

    return offset <= memory->size && span <= memory->size - offset &&
           mprotect(memory->arena + offset, span, protection) == 0;
}

/* What is larger is nearly all holes, and a core file of it would take hours. */
static const size_t DUMPED = (size_t)1 << 37;

int host_memory_map(host_memory *memory, const json_t *message)
{
    const size_t size = get_size(message, "arena");
    void *arena =
        mmap(NULL, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, HOST_ARENA_FD, 0);

    if (arena == MAP_FAILED) return 0;
    if (size > DUMPED) madvise(arena, size, MADV_DONTDUMP);
    memory->arena = arena;
    memory->size = size;
    host_fault_arena(arena, size);
    return 1;
}

int host_memory_allow(const host_memory *memory, const json_t *message)
{
    const json_t *workspace = json_object_get(message, "workspace");
    size_t i;
    json_t *object;

    json_array_foreach(json_object_get(message, "tensors"), i, object)
    {
        const char *role = json_string_value(json_object_get(object, "role"));
        const int in = role && strcmp(role, "in") == 0;

        if (!allow(memory, object, in ? PROT_READ : PROT_READ | PROT_WRITE)) return 0;
    }
    return !json_is_object(workspace) ||
           allow(memory, workspace, PROT_READ | PROT_WRITE);
}

void host_memory_unmap(host_memory *memory)
{
    host_fault_arena(NULL, 0);
    if (memory->arena) munmap(memory->arena, memory->size);
    memory->arena = NULL;
    memory->size = 0;
}

static int read_dtype(const char *name, slm_dtype *dtype)
{
    for (int i = 0; name && i < SLM_DTYPE_COUNT; i++)
        if (strcmp(slm_dtype_name((slm_dtype)i), name) == 0) {
            *dtype = (slm_dtype)i;
            return 1;
        }
    return 0;
}

static int read_tensor(const host_memory *memory, const json_t *object,
                       slm_tensor *tensor)
{
    const json_t *shape = json_object_get(object, "shape");
    const json_t *stride = json_object_get(object, "stride");
    const size_t rank = json_array_size(shape), offset = get_size(object, "offset");

    memset(tensor, 0, sizeof *tensor);
    if (!read_dtype(json_string_value(json_object_get(object, "dtype")),
                    &tensor->dtype))
        return 0;
    if (rank > SLM_MAX_RANK || json_array_size(stride) != rank) return 0;
    if (offset > memory->size) return 0;
    tensor->rank = (uint32_t)rank;
    tensor->data = memory->arena + offset;
    for (size_t i = 0; i < rank; i++) {
        tensor->shape[i] = (size_t)json_integer_value(json_array_get(shape, i));
        tensor->stride[i] = (ptrdiff_t)json_integer_value(json_array_get(stride, i));
    }
    return 1;
}

static const slm_field *find_field(const slm_field *fields, size_t n, const char *name)
{
    for (size_t i = 0; name && i < n; i++)
        if (strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

int host_memory_tensors(const host_memory *memory, const json_t *message, slm_op op,
                        void *args, slm_weights *weights)
{
    const slm_op_info *info = slm_op_describe(op);
    size_t i, n_weights;
    const slm_field *weight_fields = slm_weight_fields(&n_weights);
    json_t *object;

    json_array_foreach(json_object_get(message, "tensors"), i, object)
    {
        const char *name = json_string_value(json_object_get(object, "name"));
        const slm_field *field = find_field(info->fields, info->n_fields, name);
        char *target = args;
        slm_tensor tensor;

        if (!field) {
            field = find_field(weight_fields, n_weights, name);
            target = (char *)weights;
        }
        if (!field || !read_tensor(memory, object, &tensor)) return 0;
        if (target) memcpy(target + field->offset, &tensor, sizeof tensor);
    }
    return 1;
}

int host_memory_workspace(const host_memory *memory, const json_t *message,
                          slm_call *call)
{
    const json_t *workspace = json_object_get(message, "workspace");
    const size_t offset = get_size(workspace, "offset");
    const size_t bytes = get_size(workspace, "bytes");

    if (!json_is_object(workspace)) return 1;
    if (offset > memory->size || bytes > memory->size - offset) return 0;
    call->workspace = memory->arena + offset;
    call->workspace_size = bytes;
    return 1;
}
