/* SPDX-License-Identifier: Apache-2.0 */
/* faulty.c - a backend that is right, but for one fault in one case.
 *
 * The variable SLM_FAULT names the fault; it shows where rows are FAULT_WIDTH wide. What
 * each one has to come to stands in isolation.sh. */
#define _GNU_SOURCE
#include <slm/backend.h>

#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#if defined(__SSE__)
#include <immintrin.h>
#endif

enum { FAULT_WIDTH = 33, MEBI = 1 << 20 };

struct slm_handle {
    float eps;
    int faulty;
};

static int is_fault(const char *name)
{
    const char *fault = getenv("SLM_FAULT");

    return fault && strcmp(fault, name) == 0;
}

/* Out of a compiler's sight. */
static int *volatile nowhere;
static char *volatile kept;

static void crash(void)
{
    *nowhere = 1;
}

static void hang(void)
{
    for (volatile int forever = 1; forever;) {
    }
}

static int recurse(volatile char *above)
{
    volatile char frame[4096];

    if (nowhere) return 0;
    frame[0] = above ? (char)(*above + 1) : 0;
    return recurse(frame) + frame[0];
}

static float element(const slm_tensor *tensor, size_t i, size_t j)
{
    return ((const float *)tensor->data)[(ptrdiff_t)i * tensor->stride[0] +
                                         (ptrdiff_t)j * tensor->stride[1]];
}

/* Its rows' offsets have 32 bits. */
static slm_tensor offsets_cut(slm_tensor tensor)
{
    tensor.stride[0] = (int32_t)(uint32_t)tensor.stride[0];
    return tensor;
}

/* Right, also for rows that hold a NaN or an infinity. */
static void normalise(const slm_handle *handle, const slm_rmsnorm_args *args)
{
    const size_t width = args->u.shape[1];

    for (size_t i = 0; i < args->call.n_tokens; i++) {
        double sum = 0, scale;

        for (size_t j = 0; j < width; j++) {
            const double u = (double)element(&args->u, i, j);

            sum += u * u;
        }
        scale = sum < (double)INFINITY
                    ? 1 / sqrt(sum / (double)width + (double)handle->eps)
                    : (double)NAN;
        for (size_t j = 0; j < width; j++) {
            const float *gamma = args->gamma.data;
            const double g = args->gamma.rank
                                 ? (double)gamma[(ptrdiff_t)j * args->gamma.stride[0]]
                                 : 1;
            float *r = args->r.data;

            r[(ptrdiff_t)i * args->r.stride[0] + (ptrdiff_t)j * args->r.stride[1]] =
                (float)((double)element(&args->u, i, j) * scale * g);
        }
    }
}

/* One element past the end, or before the beginning, of a tensor that lies there packed. */
static void touch(const slm_tensor *tensor, ptrdiff_t element_offset, int write)
{
    volatile float *at = (float *)tensor->data + element_offset;

    if (write)
        *at = 1;
    else
        (void)*at;
}

static void fault_memory(const slm_rmsnorm_args *args)
{
    const ptrdiff_t end = (ptrdiff_t)(args->u.shape[0] * args->u.shape[1]);

    if (is_fault("segfault")) crash();
    if (is_fault("write-past")) touch(&args->r, end, 1);
    if (is_fault("read-past")) touch(&args->u, end, 0);
    if (is_fault("write-input")) touch(&args->u, 0, 1);
    if (is_fault("write-workspace-past"))
        ((volatile char *)args->call.workspace)[args->call.workspace_size] = 1;
    if (is_fault("recurse")) exit(recurse(NULL));
    if (is_fault("leak")) {
        kept = malloc((size_t)512 * MEBI);
        if (kept) memset(kept, 1, (size_t)512 * MEBI);
    }
#if defined(__SSE__)
    /* The contract aligns to the element and no more: r ends at a page. */
    if (is_fault("unaligned"))
        _mm_store_ps((float *)args->r.data + end - 5, _mm_set1_ps(1));
#endif
}

static void fault_process(void)
{
    if (is_fault("hang")) hang();
    if (is_fault("exit")) exit(0);
    if (is_fault("abort")) abort();
    if (is_fault("kill")) raise(SIGKILL);
    if (is_fault("stop")) raise(SIGSTOP);
    if (is_fault("divide")) {
        volatile int zero = 0;

        zero = 1 / zero;
        raise(SIGFPE); /* where integers divide by zero in silence */
    }
    if (is_fault("close-descriptors"))
        for (int fd = 3; fd <= 5; fd++) close(fd);
    if (is_fault("close-output"))
        for (int fd = 0; fd <= 2; fd++) close(fd);
    if (is_fault("fork") && fork() == 0) hang();
    if (is_fault("fork-and-return") && fork() == 0) return;
    if (is_fault("fork-and-crash") && fork() == 0) crash();
    if (is_fault("fork-then-crash")) {
        if (fork() == 0) hang();
        crash();
    }
    if (is_fault("rounding")) fesetround(FE_UPWARD);
#if defined(__SSE__)
    if (is_fault("flush")) _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

static void fault_output(const slm_rmsnorm_args *args)
{
    static const char status[] = "{\"type\":\"status\",\"status\":\"SLM_OK\"}\n";

    if (is_fault("print")) {
        printf("words on standard output");
        fprintf(stderr, "words on standard error\n");
    }
    if (is_fault("print-json")) fputs(status, stdout);
    if (is_fault("print-bytes")) fputs("\xff\xfe\x01\x1b[31m words\n", stdout);
    for (int i = 0; is_fault("print-much") && i < 100000; i++)
        puts("a line that says nothing that the line before did not say");
    while (is_fault("print-forever")) puts("again");
    while (is_fault("progress-forever"))
        args->call.progress(args->call.progress_user, 1, 2);
    if (is_fault("reply-garbage") && write(4, "words\n", 6) < 0) abort();
    if (is_fault("reply-twice") && write(4, status, sizeof status - 1) < 0) abort();
    if (is_fault("reply-half") && write(4, "{\"type\":", 8) < 0) abort();
}

static slm_status fault_status(slm_error *error)
{
    if (is_fault("unknown-status")) return (slm_status)77;
    if (is_fault("negative-status")) return (slm_status)-1;
    if (is_fault("unsupported")) return SLM_ERR_UNSUPPORTED;
    if (is_fault("unterminated")) {
        memset(error, 0xff, sizeof *error);
        return SLM_ERR_INTERNAL;
    }
    return SLM_OK;
}

static slm_status rmsnorm(slm_handle *handle, const slm_rmsnorm_args *args,
                          slm_error *error)
{
    slm_rmsnorm_args cut = *args;

    if (handle->faulty && is_fault("offsets-cut")) cut.u = offsets_cut(args->u);
    normalise(handle, &cut);
    if (!handle->faulty) return SLM_OK;
    fault_memory(args);
    fault_process();
    fault_output(args);
    return fault_status(error);
}

static void fault_at(const char *crashes, const char *hangs)
{
    if (is_fault(crashes)) crash();
    if (is_fault(hangs)) hang();
}

static int supports(const slm_config *config, slm_op op, size_t n_tokens, char *reason,
                    size_t reason_size)
{
    (void)n_tokens;
    (void)op;
    if (config->d_latent == FAULT_WIDTH) fault_at("supports-crash", "supports-hang");
    if (config->d_latent == FAULT_WIDTH && is_fault("no-reason")) {
        memset(reason, 0xff, reason_size);
        return 0;
    }
    return config->dtype == SLM_F32;
}

/* Handles that are open. */
static int n_open;

static slm_status open_handle(const slm_config *config, slm_handle **handle,
                              slm_error *error)
{
    (void)error;
    if (config->d_latent == FAULT_WIDTH) fault_at("open-crash", "open-hang");
    if (config->d_latent == FAULT_WIDTH && n_open > 0) {
        fault_at("second-crash", "second-hang");
        if (is_fault("second-refuses")) return SLM_ERR_MEMORY;
    }
    *handle = malloc(sizeof **handle);
    if (!*handle) return SLM_ERR_MEMORY;
    (*handle)->eps = (float)config->eps;
    (*handle)->faulty = config->d_latent == FAULT_WIDTH;
    if ((*handle)->faulty && is_fault("open-refuses")) {
        free(*handle); /* and leaves the pointer behind */
        return SLM_ERR_MEMORY;
    }
    n_open++;
    return SLM_OK;
}

static void close_handle(slm_handle *handle)
{
    if (handle && handle->faulty) fault_at("close-crash", "close-hang");
    if (handle && handle->faulty && n_open > 1)
        fault_at("second-close-crash", "second-close-hang");
    n_open--;
    free(handle);
}

static size_t workspace(slm_handle *handle, slm_op op, const slm_call *call)
{
    (void)op;
    (void)call;
    if (!handle->faulty) return 0;
    fault_at("workspace-crash", "workspace-hang");
    return is_fault("workspace-huge") ? (size_t)-1 : 1000;
}

static int claims_strides(void)
{
    return is_fault("offsets-cut") || is_fault("no-address-space");
}

SLM_EXPORT const slm_backend *slm_backend_get(uint32_t host_major);

const slm_backend *slm_backend_get(uint32_t host_major)
{
    static const slm_arithmetic arithmetic = {
        .struct_size = sizeof arithmetic, .accumulator = 0x1p-24, .rsqrt_ulp = 2};
    static const slm_ops ops = {.struct_size = sizeof ops, .rmsnorm = rmsnorm};
    static slm_backend table = {.struct_size = sizeof table,
                                .abi_major = SLM_ABI_MAJOR,
                                .abi_minor = SLM_ABI_MINOR,
                                .name = "faulty",
                                .version = "0.1",
                                .flags = SLM_DETERMINISTIC,
                                .levels = SLM_LEVEL_INFER,
                                .arithmetic = &arithmetic,
                                .ops = &ops,
                                .supports = supports,
                                .open = open_handle,
                                .close = close_handle,
                                .workspace = workspace};

    (void)host_major;
    fault_at("load-crash", "load-hang");
    if (claims_strides()) table.flags |= SLM_STRIDED;
    if (is_fault("no-address-space"))
        setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)MEBI * MEBI / 64, RLIM_INFINITY});
    return &table;
}
