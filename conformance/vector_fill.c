/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_fill.c - a tensor's values as a call's memory holds them. */
#include "vector_fill.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

/* Elements that are worth a thread; the most threads. */
enum { WORTH = 1 << 22, MOST = 64, PIECE = 1024 };

typedef struct part {
    const vec_tensor *tensor;
    slm_dtype dtype;
    size_t first;
    size_t n;
    void *out;
    pthread_t thread;
} part;

static void fill_narrow(const part *own)
{
    float wide[PIECE];
    uint16_t *narrow = own->out;

    for (size_t at = 0; at < own->n; at += PIECE) {
        const size_t piece = own->n - at < PIECE ? own->n - at : PIECE;

        vec_values_range(own->tensor, own->first + at, piece, wide);
        for (size_t i = 0; i < piece; i++) {
            uint32_t bits;

            memcpy(&bits, &wide[i], 4);
            narrow[at + i] = (uint16_t)(bits >> 16);
        }
    }
}

static void *fill_part(void *argument)
{
    const part *own = argument;

    if (own->dtype == SLM_BF16)
        fill_narrow(own);
    else
        vec_values_range(own->tensor, own->first, own->n, own->out);
    return NULL;
}

/* Threads beside the caller's. */
static size_t n_threads(size_t n)
{
    cpu_set_t set;
    size_t most =
        sched_getaffinity(0, sizeof set, &set) ? 0 : (size_t)CPU_COUNT(&set) - 1;

    if (most > MOST) most = MOST;
    return n / WORTH < most ? n / WORTH : most;
}

void vec_fill(const vec_tensor *tensor, slm_dtype dtype, size_t first, size_t n,
              void *out)
{
    part parts[MOST];
    size_t started = 0, done = 0;
    const size_t threads = n_threads(n), each = n / (threads + 1);

    for (; started < threads; started++, done += each) {
        part *one = &parts[started];

        *one = (part){tensor,
                      dtype,
                      first + done,
                      each,
                      (char *)out + done * slm_dtype_size(dtype),
                      0};
        if (pthread_create(&one->thread, NULL, fill_part, one)) break;
    }
    fill_part(&(part){tensor, dtype, first + done, n - done,
                      (char *)out + done * slm_dtype_size(dtype), 0});
    while (started-- > 0) pthread_join(parts[started].thread, NULL);
}
