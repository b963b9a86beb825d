/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_device.c - tensors of a backend with device memory of its own.
 *
 * The device is the heap, with a key turned into every address: who follows a pointer of
 * the host's, or the host one of the device's, dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../plugin.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, WIDTH = 5 };
static const uintptr_t KEY = (uintptr_t)1 << 62;

static size_t n_blocks;
static int copies_left;

static unsigned char *real(const void *device)
{
    assert_true((uintptr_t)device & KEY);
    return (unsigned char *)((uintptr_t)device & ~KEY);
}

static void *take(size_t bytes)
{
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert_non_null(block);
    n_blocks++;
    return (void *)((uintptr_t)block | KEY);
}

/* Not aligned to a line. */
static void *take_askew(size_t bytes)
{
    return (char *)take(bytes + 8) + 8;
}

static void *take_nothing(size_t bytes)
{
    (void)bytes;
    return NULL;
}

static void give_back(void *memory)
{
    free((void *)((uintptr_t)real(memory) & ~(uintptr_t)63));
    n_blocks--;
}

static int copy(void *to, const void *from, size_t bytes)
{
    if (copies_left-- <= 0) return 1;
    memcpy((uintptr_t)to & KEY ? real(to) : to,
           (uintptr_t)from & KEY ? real(from) : from, bytes);
    return 0;
}

static int wait_for(void *stream)
{
    (void)stream;
    return 0;
}

static int wait_in_vain(void *stream)
{
    (void)stream;
    return 1;
}

/* What the operation does beside r = 2 u; offsets in bytes from r, or from u. */
static struct {
    ptrdiff_t in_r;
    ptrdiff_t in_u;
    ptrdiff_t in_workspace;
    slm_status status;
    uintptr_t misaligned; /* of r, seen by the operation */
} deed;

enum { NOTHING = PTRDIFF_MIN };

static slm_status twice(slm_handle *handle, const slm_rmsnorm_args *args,
                        slm_error *error)
{
    const float *u = (const float *)(const void *)real(args->u.data);
    float *r = (float *)(void *)real(args->r.data);

    (void)handle;
    (void)error;
    assert_int_equal(args->u.space, SLM_DEVICE);
    assert_int_equal(args->r.space, SLM_DEVICE);
    assert_int_equal((uintptr_t)real(args->call.workspace) % 64, 0);
    deed.misaligned = (uintptr_t)r % 64;
    if (!deed.status)
        for (size_t i = 0; i < ROWS * WIDTH; i++) r[i] = 2 * u[i];
    if (deed.in_r != NOTHING) real(args->r.data)[deed.in_r] ^= 1;
    if (deed.in_u != NOTHING) real(args->u.data)[deed.in_u] ^= 1;
    if (deed.in_workspace != NOTHING)
        real(args->call.workspace)[deed.in_workspace] ^= 1;
    return deed.status;
}

static const slm_arithmetic arithmetic = {.struct_size = sizeof arithmetic};
static const slm_ops ops = {.struct_size = sizeof ops, .rmsnorm = twice};

/* One call, its host memory, and what came of it. */
typedef struct trial {
    slm_backend table;
    float u[ROWS * WIDTH + 32];
    float r[ROWS * WIDTH + 32];
    size_t shift; /* elements */
    _Alignas(64) unsigned char workspace[64];
    plugin_conduct conduct;
    slm_status status;
    ptrdiff_t row; /* stride of u's rows, unless 0 */
    slm_rmsnorm_args args;
} trial;

static trial *prepare(void)
{
    static trial at;

    at = (trial){.table = {.struct_size = sizeof at.table,
                           .abi_major = SLM_ABI_MAJOR,
                           .abi_minor = SLM_ABI_MINOR,
                           .name = "heap",
                           .version = "1",
                           .levels = SLM_LEVEL_INFER,
                           .arithmetic = &arithmetic,
                           .ops = &ops,
                           .alloc = take,
                           .free = give_back,
                           .copy = copy,
                           .sync = wait_for}};
    deed.in_r = deed.in_u = deed.in_workspace = NOTHING;
    deed.status = SLM_OK;
    copies_left = 1000;
    for (size_t i = 0; i < ROWS * WIDTH + 32; i++) at.u[i] = (float)i;
    for (size_t i = 0; i < ROWS * WIDTH + 32; i++) at.r[i] = -1.0f;
    return &at;
}

static void run(trial *at)
{
    const size_t shape[] = {ROWS, WIDTH};
    const plugin_session session = {NULL, NULL};
    slm_rmsnorm_args before;
    slm_plugin plugin = {0};
    char why[PLUGIN_WHY];

    assert_true(plugin_adopt(&plugin, &at->table, "heap", why));
    at->args = (slm_rmsnorm_args){
        .call = {.struct_size = sizeof at->args,
                 .n_tokens = ROWS,
                 .workspace = at->workspace,
                 .workspace_size = sizeof at->workspace},
        .u = slm_tensor_packed(at->u, SLM_F32, 2, shape),
        .r = slm_tensor_packed(at->r + at->shift, SLM_F32, 2, shape)};
    if (at->row) at->args.u.stride[0] = at->row;
    memcpy(&before, &at->args, sizeof before);
    at->status =
        plugin_call(&plugin, &session, SLM_OP_rmsnorm, &at->args, NULL, &at->conduct);
    assert_memory_equal(&before, &at->args, sizeof before);
    assert_int_equal(n_blocks, 0);
}

static void assert_broken(ptrdiff_t in_r, ptrdiff_t in_u, ptrdiff_t in_workspace,
                          const char *words)
{
    trial *at = prepare();

    deed.in_r = in_r;
    deed.in_u = in_u;
    deed.in_workspace = in_workspace;
    run(at);
    assert_string_equal(at->conduct.broken, words);
}

static void results_come_back_and_nothing_else_changes(void **state)
{
    trial *at = prepare();

    (void)state;
    at->shift = 1;
    run(at);
    assert_int_equal(at->status, SLM_OK);
    assert_string_equal(at->conduct.broken, "");
    assert_true(at->r[0] == -1.0f && at->r[1 + ROWS * WIDTH] == -1.0f);
    for (size_t i = 0; i < ROWS * WIDTH; i++) assert_true(at->r[1 + i] == 2 * (float)i);
}

static void what_is_misaligned_on_the_host_is_misaligned_there(void **state)
{
    (void)state;
    for (size_t shift = 0; shift < 17; shift++) {
        trial *at = prepare();

        at->shift = shift;
        if (shift % 2) at->table.alloc = take_askew;
        run(at);
        assert_int_equal(deed.misaligned, (uintptr_t)(at->r + shift) % 64);
    }
}

static void a_refused_call_leaves_the_outputs_as_they_were(void **state)
{
    trial *at = prepare();

    (void)state;
    deed.status = SLM_ERR_NONFINITE;
    run(at);
    assert_int_equal(at->status, SLM_ERR_NONFINITE);
    for (size_t i = 0; i < ROWS * WIDTH; i++) assert_true(at->r[i] == -1.0f);
}

static void every_byte_of_both_canaries_is_watched(void **state)
{
    const ptrdiff_t end = ROWS * WIDTH * 4;

    (void)state;
    assert_broken(end, NOTHING, NOTHING,
                  "wrote 0 bytes past the end of r in device memory");
    assert_broken(end + 4095, NOTHING, NOTHING,
                  "wrote 4095 bytes past the end of r in device memory");
    assert_broken(-1, NOTHING, NOTHING, "wrote 1 bytes before r in device memory");
    assert_broken(-4096, NOTHING, NOTHING,
                  "wrote 4096 bytes before r in device memory");
    assert_broken(NOTHING, end + 7, NOTHING,
                  "wrote 7 bytes past the end of u in device memory");
    assert_broken(NOTHING, NOTHING, 64,
                  "wrote 0 bytes past the end of the workspace in device memory");
    assert_broken(NOTHING, NOTHING, -64,
                  "wrote 64 bytes before the workspace in device memory");
}

static void an_input_that_was_written_is_named(void **state)
{
    (void)state;
    assert_broken(NOTHING, 8, NOTHING,
                  "wrote into u, which is an input, in device memory");
}

static void a_device_that_fails_is_not_believed(void **state)
{
    trial *at = prepare();

    (void)state;
    at->table.sync = wait_in_vain;
    run(at);
    assert_string_equal(at->conduct.broken,
                        "sync() failed: the device did not do its work");
    at = prepare();
    copies_left = 3; /* u, r and the workspace in, nothing out */
    run(at);
    assert_string_equal(at->conduct.broken, "copy() from device memory failed");
    at = prepare();
    at->table.alloc = take_nothing;
    run(at);
    assert_int_equal(at->status, SLM_ERR_MEMORY);
}

/* Nothing of it is read: only the first row is there. */
static void what_is_mostly_gaps_is_not_copied(void **state)
{
    trial *at = prepare();

    (void)state;
    at->row = (ptrdiff_t)1 << 32;
    run(at);
    assert_int_equal(at->status, SLM_ERR_MEMORY);
    assert_int_equal(copies_left, 1000);
    at->row = -at->row;
    run(at);
    assert_int_equal(at->status, SLM_ERR_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_come_back_and_nothing_else_changes),
        cmocka_unit_test(what_is_misaligned_on_the_host_is_misaligned_there),
        cmocka_unit_test(a_refused_call_leaves_the_outputs_as_they_were),
        cmocka_unit_test(every_byte_of_both_canaries_is_watched),
        cmocka_unit_test(an_input_that_was_written_is_named),
        cmocka_unit_test(a_device_that_fails_is_not_believed),
        cmocka_unit_test(what_is_mostly_gaps_is_not_copied),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);

    return failed > 125 ? 125 : failed;
}
