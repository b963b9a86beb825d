/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/topk_plain.c - selection and balancing in portable C: topk_tile.h with 4 lanes.
 * The vectors are GCC's and Clang's own, for any CPU. */
#include "topk.h"

#define LANES 4
#define PICK(which, yes, no) ((vec)(((mask)(yes) & (which)) | ((mask)(no) & ~(which))))
#define VEC_MAX(a, b) PICK((a) > (b), a, b)
#define VEC_MIN(a, b) PICK((a) < (b), a, b)
#define IS_GE(a, b) ((a) >= (b))
#define IS_GT(a, b) ((a) > (b))
#define IS_LT(a, b) ((a) < (b))
#define BITS(op, a, b) bits_of_mask(IS_##op(a, b))
#define COUNT_GT(to, a, b) ((to) - ((a) > (b)))

static inline uint32_t bits_of_mask(int32_t __attribute__((vector_size(16))) m)
{
    return (uint32_t)((m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8));
}

#include "topk_tile.h"

const slm_cpu_topk *slm_cpu_topk_plain(void)
{
    static const slm_cpu_topk table = {LANES, choose, below, pivots, bins};

    return &table;
}
