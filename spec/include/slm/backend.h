/* SPDX-License-Identifier: Apache-2.0 */
/* slm/backend.h - the table that a backend fills: the plug-in interface.
 *
 * A plug-in exports one symbol, slm_backend_get(), that returns a const table living as
 * long as the library. The table, its parts, configurations, weights and argument
 * structs begin with their size and only grow at the end: the host reads the smaller of
 * its size and the plug-in's, and takes what is missing as absent. slm_call, slm_tensor
 * and slm_error are fixed. A new minor version appends, a new major version may break.
 * No CUDA or C++ types. */
#ifndef SLM_BACKEND_H
#define SLM_BACKEND_H

#include <slm/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SLM_ABI_MAJOR = 1, SLM_ABI_MINOR = 1 };

/* The stages whose rounding a backend declares; indices into slm_arithmetic.store. */
typedef enum slm_stage {
    SLM_STAGE_LOGIT,
    SLM_STAGE_SCORE,
    SLM_STAGE_WEIGHT,
    SLM_STAGE_Z,
    SLM_STAGE_H,
    SLM_STAGE_O,
    SLM_STAGE_U,
    SLM_STAGE_R,
    SLM_STAGE_HS,
    SLM_STAGE_Y,
    SLM_STAGE_COUNT
} slm_stage;

/* Declared arithmetic: the bounds are derived from it, and it becomes part of the
 * verdict ("conforms at ..."). Zero means exact unless said otherwise; a declared
 * store of logit, score or weight is ignored (R1). Clause A1. */
typedef struct slm_arithmetic {
    size_t struct_size;
    double accumulator;            /* u of one addition in a dot product: 0x1p-24     */
    double input;                  /* relative rounding of factors: tf32 0x1p-11      */
    double store[SLM_STAGE_COUNT]; /* v of the stored value, beyond f32: bf16 0x1p-8  */
    double sigmoid_ulp;            /* c_s: relative error of sigma in units of 2^-24  */
    double tanh_ulp;               /* c_t: relative error of tanh in units of 2^-24   */
    double tanh_abs;               /* c_a: absolute error of tanh in units of 2^-24   */
    double rsqrt_ulp;              /* c_r: relative error of 1/sqrt in units of 2^-24 */
    double balance;                /* u of balancing arithmetic, 0 stands for 0x1p-53 */
    uint32_t flushes_subnormals;   /* 1: inputs and results below 2^-126 may become 0 */
    /* Since ABI 1.1: v of what a backward pass stores, beyond f32 or the element type. */
    double store_gradient; /* dx, dr, du, dh, ...: gradients of activations      */
    double
        store_weight_gradient; /* dw_router, ..., dgamma                             */
} slm_arithmetic;

enum {
    SLM_CHECKS_ARGUMENTS = 1, /* wants cases that break SHAPE, ALIAS, DOMAIN         */
    SLM_DETERMINISTIC = 2,    /* same call, same bits                                */
    SLM_BATCH_INVARIANT = 4,  /* a token's bits do not depend on its batch           */
    SLM_STRIDED = 8           /* takes views of any stride (X2); else packed ones    */
};

/* State of one configuration. One handle belongs to one thread at a time; two handles
 * may be used from two threads. */
typedef struct slm_handle slm_handle;

/* The operations. NULL: not offered, and reported as skipped. Each call gets arguments
 * that passed slm_check() unless the table says SLM_CHECKS_ARGUMENTS. */
typedef struct slm_ops {
    size_t struct_size;
#define SLM_OP_MEMBER(name, level, purpose)                                            \
    slm_status (*name)(slm_handle * handle, const slm_##name##_args *args,             \
                       slm_error *error);
    SLM_OPS(SLM_OP_MEMBER)
#undef SLM_OP_MEMBER
} slm_ops;

typedef struct slm_backend {
    size_t struct_size;
    uint32_t abi_major;
    uint32_t abi_minor;
    const char *name;    /* "acme-moe"                    */
    const char *version; /* "0.3"                         */
    const char *url;     /* where to report, may be NULL  */
    uint32_t flags;      /* SLM_CHECKS_ARGUMENTS, ...     */
    uint32_t levels;     /* SLM_LEVEL_INFER, ...          */
    const slm_arithmetic *arithmetic;
    const slm_ops *ops;

    /* 1 when this operation runs under this configuration for that many tokens. Else 0
     * and a reason for people, at most reason_size bytes with its end. May be NULL:
     * everything that ops offers. After a yes, SLM_ERR_UNSUPPORTED is a failure. */
    int (*supports)(const slm_config *config, slm_op op, size_t n_tokens, char *reason,
                    size_t reason_size);

    /* Open a handle; the configuration is copied. May be NULL, then handles are NULL. */
    slm_status (*open)(const slm_config *config, slm_handle **handle, slm_error *error);
    void (*close)(slm_handle *handle); /* accepts NULL */

    /* Take the layer's weights, once before layer_forward or layer_backward. The caller keeps them alive
     * and unchanged until close(); the backend packs or refers to them and never writes
     * to them. NULL only without these two operations. */
    slm_status (*prepare)(slm_handle *handle, const slm_weights *weights,
                          slm_error *error);

    /* Bytes of workspace that a call needs; depends on the sizes alone. NULL means 0. */
    size_t (*workspace)(slm_handle *handle, slm_op op, const slm_call *call);

    /* Device memory; all four or none. copy() moves bytes in any direction and returns
     * 0 on success; sync() waits for everything queued. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
    int (*copy)(void *to, const void *from, size_t bytes);
    int (*sync)(void *stream);
} slm_backend;

/* The one symbol of a plug-in. host_major is the host's SLM_ABI_MAJOR; return NULL to
 * decline. */
#define SLM_BACKEND_SYMBOL "slm_backend_get"
typedef const slm_backend *(*slm_backend_getter)(uint32_t host_major);
#if defined(_WIN32)
#define SLM_EXPORT __declspec(dllexport)
#else
#define SLM_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
}
#endif
#endif
