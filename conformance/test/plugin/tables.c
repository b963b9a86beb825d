/* SPDX-License-Identifier: Apache-2.0 */
/* tables.c - libraries whose tables are whole, wrong, older or newer. */
#include <slm/backend.h>

/* TABLE: 0 whole, 1 another ABI, 2 short, 3 declines, 4 without name, 5 operations that
 * end after rmsnorm, 6 a newer minor with a longer table, 7 sizes not set, 8
 * layer_forward without prepare, 9 the same behind the end of its operations, 10 no
 * symbol. */
static slm_status rmsnorm(slm_handle *handle, const slm_rmsnorm_args *args,
                          slm_error *error)
{
    (void)handle;
    (void)args;
    (void)error;
    return SLM_OK;
}

static slm_status layer_forward(slm_handle *handle, const slm_layer_forward_args *args,
                                slm_error *error)
{
    (void)handle;
    (void)args;
    (void)error;
    return SLM_OK;
}

static const slm_arithmetic arithmetic = {
    .struct_size = sizeof arithmetic, .accumulator = 0x1p-24, .balance = 0x1p-30};
static const slm_arithmetic older_arithmetic = {.struct_size =
                                                    offsetof(slm_arithmetic, balance),
                                                .accumulator = 0x1p-24,
                                                .balance = 0x1p-30};
static const slm_ops ops = {.struct_size = sizeof ops,
                            .rmsnorm = rmsnorm,
                            .layer_forward = TABLE == 8 ? layer_forward : 0};
static const slm_ops older_ops = {.struct_size = offsetof(slm_ops, layer_forward),
                                  .rmsnorm = rmsnorm,
                                  .layer_forward = layer_forward};
static const slm_ops unset_ops = {.rmsnorm = rmsnorm};

typedef struct newer_backend {
    slm_backend table;
    void *of_the_future[8];
} newer_backend;

static const newer_backend backend = {
    .table = {.struct_size = TABLE == 2   ? 40
                             : TABLE == 6 ? sizeof(newer_backend)
                                          : sizeof(slm_backend),
              .abi_major = TABLE == 1 ? 99 : SLM_ABI_MAJOR,
              .abi_minor = TABLE == 6 ? 7 : SLM_ABI_MINOR,
              .name = TABLE == 4 ? 0 : "part",
              .version = "0.1",
              .levels = SLM_LEVEL_INFER,
              .arithmetic = TABLE == 5 ? &older_arithmetic : &arithmetic,
              .ops = TABLE == 5 || TABLE == 9 ? &older_ops
                     : TABLE == 7             ? &unset_ops
                                              : &ops},
    .of_the_future = {(void *)1, (void *)2}};

#if TABLE == 10
#define slm_backend_get another_symbol
#endif

SLM_EXPORT const slm_backend *slm_backend_get(uint32_t host_major);

const slm_backend *slm_backend_get(uint32_t host_major)
{
    (void)host_major;
    return TABLE == 3 ? 0 : &backend.table;
}
